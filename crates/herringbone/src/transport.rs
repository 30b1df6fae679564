//! Moving messages between two processes (or threads).
//!
//! A link carries frames in both directions, in order. Frames are small; transports differ in the place of a message's
//! payload. In shared memory ([`shm`], also used by ranks that are threads) the payload stays in its sender's slot and
//! the frame has its place. Over a socket ([`tcp`]) it follows the frame into a slot of the receiver.

pub(crate) mod endpoint;
pub(crate) mod frame;
mod lane;
pub(crate) mod layout;
pub(crate) mod shm;
pub(crate) mod stats;
#[expect(clippy::disallowed_methods, reason = "it times copies, to choose how the next is done")]
pub(crate) mod stores;
pub(crate) mod tcp;
pub(crate) mod ticket;

use crate::{
    core::{
        codec::{Codec, CodedError},
        execution::Violation,
        group::Rank,
        session::Cause,
        wire::{Fingerprint, Header},
    },
    sys::span::Span,
    transport::ticket::{OpKey, Token},
};
use std::{ops::Range, sync::Arc, time::Duration};

/// Where the payload of an outgoing message lies.
#[derive(Clone, Debug)]
pub(crate) enum Payload {
    /// No payload.
    None,
    /// Bytes of its own: a control message, or what is left of a message whose operation has failed.
    Owned(Vec<u8>),
    /// Bytes that others keep, too, perhaps to send them again.
    Kept(Arc<Vec<u8>>),
    /// A stretch of this process's staging segment.
    Staged(Range<usize>),
    /// A stretch of a user's buffer of a running operation.
    User {
        /// Whose buffer.
        op: OpKey,
        /// Whether the output buffer rather than the input is meant.
        output: bool,
        /// The bytes within the buffer.
        range: Range<usize>,
    },
}

impl Payload {
    pub(crate) fn len(&self) -> usize {
        match self {
            Payload::None => 0,
            Payload::Owned(bytes) => bytes.len(),
            Payload::Kept(bytes) => bytes.len(),
            Payload::Staged(range) | Payload::User { range, .. } => range.len(),
        }
    }
}

/// A frame on its way out over a socket.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) header: Header,
    pub(crate) fingerprint: Option<Fingerprint>,
    pub(crate) payload: Payload,
    /// Its operation's priority: higher ones go first.
    pub(crate) priority: i32,
    /// Told when the last byte has been handed to the kernel.
    pub(crate) done: Option<Token>,
}

/// Where an incoming payload goes.
#[derive(Debug)]
pub(crate) enum Destination {
    /// Into this process's staging segment.
    Staged(usize),
    /// Into the output of a running operation.
    User { op: OpKey, range: Range<usize> },
    /// Into memory of its own: an eager message or a control message (both bounded).
    Owned(Vec<u8>),
    /// Nowhere: a message of an operation that is over.
    Skip,
}

/// Why a link has to be closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// The other end closed it.
    Closed,
    /// The system says so.
    Io(String),
    /// A checksum does not match.
    Corrupt,
    /// The other end breaks the protocol.
    Protocol(&'static str),
    /// The other end does not follow the schedule.
    Schedule(Violation),
    /// The other end sent, with a right checksum, what the codec does not write.
    Coded {
        /// Which codec.
        codec: Codec,
        /// What is wrong.
        problem: CodedError,
    },
    /// Nothing has come for so long, though the other end was to show that it lives.
    Silent(Duration),
}

impl Broken {
    /// Why the link from a rank to this one broke, if the other end cannot know it.
    pub(crate) fn cause(&self, from: Rank, to: Rank) -> Option<Cause> {
        match self {
            Broken::Corrupt => Some(Cause::Corrupt { from, to }),
            Broken::Coded { codec, problem } => {
                Some(Cause::Protocol { from, to, problem: format!("{problem} ({codec})") })
            }
            _ => None,
        }
    }
}

/// What to do about a rank that breaks the protocol.
const REMEDY: &str = "if all ranks run one release, this is a bug: please report it";

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Broken::Closed => f.write_str("its connection was closed"),
            Broken::Io(problem) => write!(f, "its connection failed: {problem}"),
            Broken::Corrupt => {
                f.write_str("a checksum of its data does not match: it was damaged, or does not belong there")
            }
            Broken::Protocol(problem) => write!(f, "it broke the protocol: {problem} ({REMEDY})"),
            Broken::Schedule(violation) => write!(f, "it broke the protocol: {violation} ({REMEDY})"),
            Broken::Coded { codec, problem } => {
                write!(f, "it broke the protocol: {problem}, with {codec} ({REMEDY})")
            }
            Broken::Silent(silence) => write!(f, "nothing has come from it for {} s", silence.as_secs()),
        }
    }
}

impl From<Violation> for Broken {
    fn from(violation: Violation) -> Self {
        Self::Schedule(violation)
    }
}

/// The engine, as links see it.
pub(crate) trait Inbox {
    /// Decides where a payload goes, before it is read. The frame's length is not trusted before this.
    fn admit(&mut self, header: &Header, fingerprint: Option<&Fingerprint>) -> Result<Destination, Broken>;
    /// Calls `f` with the place of a payload of so many bytes, or with `None` if it is of no use any more.
    fn with<R>(
        &self,
        destination: &mut Destination,
        length: usize,
        f: impl FnOnce(Option<Span<'_>>) -> R,
    ) -> R;
    /// A frame without payload, or whose payload has arrived and was checked.
    fn arrived(&mut self, header: &Header, destination: Destination) -> Result<(), Broken>;
    /// Whether a wrong checksum matters: not for a message of an operation that is over.
    fn matters(&self, header: &Header) -> bool;
}
