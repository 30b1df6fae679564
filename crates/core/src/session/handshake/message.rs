//! The messages of a handshake.

use crate::{
    group::Rank,
    session::{
        Role,
        codec::{Malformed, Reader, Writer},
        versions::Versions,
    },
};
use alloc::vec::Vec;
use core::fmt;

pub(super) const MAGIC: [u8; 4] = *b"\xa8HRB";
pub(super) const PREFIX_BYTES: usize = 8;
pub(super) const BODY_BYTES: usize = 1024 - PREFIX_BYTES;

pub(super) const HELLO: u8 = 1;
pub(super) const CHALLENGE: u8 = 2;
pub(super) const PROOF: u8 = 3;
pub(super) const WELCOME: u8 = 4;
pub(super) const REFUSE: u8 = 5;

/// The last message of a client whose purpose [stays](Purpose::stays): it has no body.
pub const READY: [u8; PREFIX_BYTES] = [MAGIC[0], MAGIC[1], MAGIC[2], MAGIC[3], 6, 0, 0, 0];

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Purpose {
    /// To take part in a world that forms.
    Join = 1,
    /// To exchange [control messages](crate::session::control).
    Control = 2,
    /// To exchange [frames](crate::wire).
    Data = 3,
    /// To hand over a shared-memory segment.
    Segment = 4,
    /// To see whether a reducer that knows the token is there; nothing follows.
    Greeting = 5,
    /// A reducer wants to be used: its address follows, and the other end answers.
    Enlist = 6,
    /// To get a process's [status](crate::session::status). The client is no member: its role, rank and world have no
    /// meaning.
    Status = 7,
    /// To elect a new hub, at the lowest surviving rank; see [`election`](crate::session::election).
    Election = 8,
    /// To exchange [requests and answers](crate::table) for tables. The worker's job is not sent: tables outlive jobs.
    Table = 9,
    /// To report that the worker does not come, because it cannot use its settings. To rank 0.
    Decline = 10,
}

impl Purpose {
    /// Whether such a connection stays, and either side can speak first. Then the client ends the handshake with [`READY`].
    pub fn stays(self) -> bool {
        matches!(self, Purpose::Data | Purpose::Table)
    }
}

/// The identity of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Its role in the job.
    pub role: Role,
    /// The job; 0 as long as it is unknown, which is allowed for all purposes except [`Purpose::Control`],
    /// [`Purpose::Data`], [`Purpose::Segment`] and [`Purpose::Election`].
    pub job: u64,
    /// Its rank; a reducer's is its place in the list of reducers.
    pub rank: Rank,
    /// The number of ranks of its role, by its settings.
    pub world: u32,
    /// Its life: a new random number for each start of a process.
    pub incarnation: u64,
}

/// A client's description of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hello {
    /// Its identity.
    pub identity: Identity,
    /// Its purpose.
    pub purpose: Purpose,
    /// Its versions.
    pub versions: Versions,
}

/// The first bytes that a stranger sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    bytes: [u8; PREFIX_BYTES],
    length: usize,
}

/// Puts the prefix in front of a body.
///
/// # Panics
/// If the body is too long. None is: they have fixed sizes, or texts that are cut.
pub(super) fn message(kind: u8, body: Writer) -> Vec<u8> {
    let body = body.finish(BODY_BYTES).expect("the bodies of handshake messages are short");
    let mut bytes = Vec::with_capacity(PREFIX_BYTES + body.len());
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&[kind, 0]);
    bytes.extend_from_slice(&(body.len() as u16).to_le_bytes());
    bytes.extend_from_slice(&body);
    bytes
}

/// The kind of a whole message.
pub(super) fn kind(message: &[u8]) -> u8 {
    message[MAGIC.len()]
}

impl Seen {
    pub(super) fn new(held: &[u8]) -> Self {
        let length = held.len().min(PREFIX_BYTES);
        let mut bytes = [0; PREFIX_BYTES];
        bytes[..length].copy_from_slice(&held[..length]);
        Self { bytes, length }
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.bytes[..self.length].escape_ascii())
    }
}

impl Purpose {
    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let code = from.u8()?;
        let all = [
            Purpose::Join,
            Purpose::Control,
            Purpose::Data,
            Purpose::Segment,
            Purpose::Greeting,
            Purpose::Enlist,
            Purpose::Status,
            Purpose::Election,
            Purpose::Table,
            Purpose::Decline,
        ];
        all.into_iter().find(|purpose| *purpose as u8 == code).ok_or(Malformed("its purpose is unknown"))
    }
}

impl Identity {
    pub(super) fn write(&self, to: &mut Writer) {
        self.role.write(to);
        to.u64(self.job);
        to.u32(self.rank);
        to.u32(self.world);
        to.u64(self.incarnation);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (role, job, rank, world) = (Role::read(from)?, from.u64()?, from.u32()?, from.u32()?);
        Ok(Self { role, job, rank, world, incarnation: from.u64()? })
    }
}

impl Hello {
    pub(super) fn write(&self, to: &mut Writer) {
        self.versions.write(to);
        to.u8(self.purpose as u8);
        self.identity.write(to);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (versions, purpose) = (Versions::read(from)?, Purpose::read(from)?);
        Ok(Self { versions, purpose, identity: Identity::read(from)? })
    }
}
