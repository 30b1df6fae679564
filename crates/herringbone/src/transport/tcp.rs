//! A link over a stream socket: 64-byte headers with their own checksum, payloads with theirs.
//!
//! Every frame is sealed with the key of its connection and its number there. So the receiver takes each frame once and
//! in turn, and none from another connection. [`Seals`] describes what this protects against, and what it does not.

mod incoming;
mod pipe;
mod shared_pipe;
#[cfg(any(test, feature = "simulator"))]
pub(crate) mod virtual_link;

use super::{Broken, Outgoing, Payload};
use crate::{
    core::session::handshake::{Keys, Seals},
    sys::{
        fork::Guarded,
        socket::{IoVec, TcpSent},
        span::Span,
    },
    transport::ticket::Token,
};
pub(crate) use incoming::Incoming;
use pipe::Pipe;
use shared_pipe::SharedPipe;
pub(crate) use shared_pipe::{MemorySide, SEGMENT_BYTES, SharedParts};
use std::{
    collections::VecDeque,
    io,
    ops::Range,
    os::fd::{BorrowedFd, OwnedFd},
    sync::Arc,
};

/// Frames with payloads up to this size are gathered into one write.
const GATHER_BYTES: usize = 4096;
/// How much of them is gathered before it is written.
const GATHERED_BYTES: usize = 8192;
/// After so much no further write begins in a turn, so that links take turns.
const TURN_BYTES: usize = 16 << 10;

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct TcpLink {
    pipe: Arc<dyn Pipe>,
    urgent: VecDeque<Outgoing>,
    queue: VecDeque<Outgoing>,
    sending: Option<Sending>,
    seals: Seals,
    spare: Vec<u8>,
    /// `None` while it is being read.
    incoming: Option<Box<Incoming>>,
    /// Whether the socket may take something: no longer once it took less than it was given, until the poller says so.
    pub(crate) has_room: bool,
    /// Whether the poller watches for room.
    pub(crate) watched: bool,
}

#[derive(Debug)]
struct Sending {
    head: Vec<u8>,
    payload: Payload,
    written: usize,
    /// Whose messages are in it, and where each of them ends: an answer may come before what follows it has left.
    done: VecDeque<(usize, Token)>,
}

/// How outgoing payloads are found when their turn comes.
pub(crate) trait Memory {
    /// Calls `f` with the payload's bytes, or with `None` if they were taken back.
    fn with<R>(&self, payload: &Payload, f: impl FnOnce(Option<Span<'_>>) -> R) -> R;
    /// The checksum of a frame's payload.
    fn checksum(&mut self, frame: &Outgoing) -> u32;
    /// A payload has been written in full.
    fn spent(&mut self, _payload: Payload) {}
}

impl TcpLink {
    /// One end of a connection, after the handshake that gave it `keys`.
    pub(crate) fn new(socket: Guarded<OwnedFd>, keys: Keys) -> Self {
        Self::over(Arc::new(socket), keys)
    }

    /// As [`new`](Self::new), within a host: all but the end of the stream goes through shared memory.
    ///
    /// # Errors
    /// If the process has no descriptor left, or it is not the memory of a link.
    pub(crate) fn shared(
        socket: Guarded<OwnedFd>,
        parts: SharedParts,
        end: MemorySide,
        keys: Keys,
    ) -> io::Result<Self> {
        Ok(Self::over(Arc::new(SharedPipe::new(socket, parts, end)?), keys))
    }

    fn over(pipe: Arc<dyn Pipe>, keys: Keys) -> Self {
        Self {
            incoming: Some(Box::new(Incoming::new(pipe.clone(), keys.receiving))),
            pipe,
            urgent: VecDeque::new(),
            queue: VecDeque::new(),
            sending: None,
            seals: Seals::new(keys.sending),
            spare: Vec::new(),
            has_room: true,
            watched: false,
        }
    }

    /// What a poller watches, if it can.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.fd()
    }

    /// Says that nothing more will come.
    /// What it has sent since it was made, if it goes through a socket.
    pub(crate) fn sent(&self) -> Option<TcpSent> {
        self.pipe.sent()
    }

    pub(crate) fn hang_up(&self) {
        self.pipe.hang_up();
    }

    /// Puts a frame in line: grants and the like before data, data by priority.
    pub(crate) fn send(&mut self, frame: Outgoing, urgent: bool) {
        if urgent {
            self.urgent.push_back(frame);
            return;
        }
        let before = self.queue.iter().rposition(|other| other.priority >= frame.priority);
        self.queue.insert(before.map_or(0, |at| at + 1), frame);
    }

    /// Whether everything was handed to the kernel.
    pub(crate) fn is_flushed(&self) -> bool {
        self.sending.is_none() && self.urgent.is_empty() && self.queue.is_empty()
    }

    /// Drops unsent messages of operations that are over. Returns how many of them were eager. Of a
    /// message of which a part has left the rest has to follow, or its receiver would find it damaged: that is copied, as
    /// its memory is about to be used for something else.
    pub(crate) fn cancel(&mut self, over: impl Fn(&Token) -> bool, memory: &impl Memory) -> u16 {
        if let Some(Sending { payload, done, .. }) = &mut self.sending
            && matches!(payload, Payload::Staged(_) | Payload::User { .. })
            && done.back().is_some_and(|(_, token)| over(token))
            && let Some(bytes) = memory.with(payload, |span| span.map(Span::to_vec))
        {
            *payload = Payload::Owned(bytes);
        }
        let mut eager = 0;
        self.queue.retain(|frame| {
            let is_over = frame.done.as_ref().is_some_and(&over);
            eager += u16::from(is_over && frame.header.eager);
            !is_over
        });
        eager
    }

    /// Forgets everything that was not written in full; the sends that it was part of.
    pub(crate) fn give_up(&mut self) -> Vec<Token> {
        let under_way = self.sending.take().into_iter().flat_map(|sending| sending.done);
        let under_way = under_way.map(|(_, token)| token);
        let in_line = self.urgent.drain(..).chain(self.queue.drain(..)).filter_map(|frame| frame.done);
        under_way.chain(in_line).collect()
    }

    /// A payload that is arriving in `staged` is read to nowhere from now on.
    pub(crate) fn divert(&mut self, staged: &Range<usize>) {
        if let Some(incoming) = &mut self.incoming {
            incoming.divert(staged);
        }
    }

    /// Its reading half, unless somebody has it already: to be [put back](Self::put_back). Writing goes on meanwhile.
    pub(crate) fn take_incoming(&mut self) -> Option<Box<Incoming>> {
        self.incoming.take()
    }

    pub(crate) fn put_back(&mut self, incoming: Box<Incoming>) {
        self.incoming = Some(incoming);
    }

    /// Writes what the socket takes; tells `done` what was written in full. Each frame says how many eager slots are
    /// empty again, as `credits` says when it leaves. Returns whether anything moved.
    pub(crate) fn flush(
        &mut self,
        memory: &mut impl Memory,
        mut credits: impl FnMut() -> u16,
        mut done: impl FnMut(Token),
    ) -> Result<bool, Broken> {
        let mut moved = 0;
        while moved < TURN_BYTES {
            if self.sending.is_none() {
                self.sending = self.gather(memory, &mut credits);
            }
            let Some(sending) = &mut self.sending else { break };
            let more = !self.urgent.is_empty() || !self.queue.is_empty();
            let head_left = &sending.head[sending.written.min(sending.head.len())..];
            let payload_at = sending.written.saturating_sub(sending.head.len());
            let result = memory.with(&sending.payload, |span| match span {
                Some(span) => {
                    let rest = span.slice(payload_at..span.len());
                    self.pipe.write(&[IoVec::Bytes(head_left), IoVec::Span(rest)], more)
                }
                None if head_left.is_empty() => {
                    let rest = (sending.payload.len() - payload_at).min(ZEROES.len());
                    self.pipe.write(&[IoVec::Bytes(&ZEROES[..rest])], more)
                }
                None => self.pipe.write(&[IoVec::Bytes(head_left)], more),
            });
            match result {
                Ok(0) => return Err(Broken::Closed),
                Ok(bytes) => {
                    moved += bytes;
                    sending.written += bytes;
                    while let Some(&(end, token)) = sending.done.front()
                        && end <= sending.written
                    {
                        sending.done.pop_front();
                        done(token);
                    }
                    if sending.written == sending.head.len() + sending.payload.len() {
                        let Some(mut sent) = self.sending.take() else { break };
                        sent.head.clear();
                        self.spare = sent.head;
                        memory.spent(sent.payload);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.has_room = false;
                    break;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(broken(&error)),
            }
        }
        Ok(moved > 0)
    }

    /// The next write: any number of small frames, and one large one at the end.
    fn gather(&mut self, memory: &mut impl Memory, credits: &mut impl FnMut() -> u16) -> Option<Sending> {
        let mut sending = Sending {
            head: std::mem::take(&mut self.spare),
            payload: Payload::None,
            written: 0,
            done: VecDeque::new(),
        };
        while sending.head.len() < GATHERED_BYTES {
            let Some(mut frame) = self.urgent.pop_front().or_else(|| self.queue.pop_front()) else { break };
            frame.header.payload_crc = if self.pipe.is_memory() { 0 } else { memory.checksum(&frame) };
            frame.header.credits = credits();
            let seal = self.seals.present();
            self.seals.advance();
            let sealed = |bytes: &[u8]| crc32c::crc32c(bytes) ^ seal;
            sending.head.extend_from_slice(&frame.header.encode(sealed));
            if let Some(fingerprint) = &frame.fingerprint {
                sending.head.extend_from_slice(&fingerprint.encode(sealed));
            }
            let end = sending.head.len() + frame.payload.len();
            sending.done.extend(frame.done.map(|token| (end, token)));
            if frame.payload.len() > GATHER_BYTES {
                sending.payload = frame.payload;
                break;
            }
            append(&mut sending.head, &frame.payload, memory);
        }
        (!sending.head.is_empty()).then_some(sending)
    }
}

static ZEROES: [u8; 16384] = [0; 16384];

fn append(head: &mut Vec<u8>, payload: &Payload, memory: &impl Memory) {
    let start = head.len();
    head.resize(start + payload.len(), 0);
    memory.with(payload, |span| {
        if let Some(span) = span {
            span.read(&mut head[start..]);
        }
    });
}

fn broken(error: &io::Error) -> Broken {
    match error.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionAborted => {
            Broken::Closed
        }
        _ => Broken::Io(error.to_string()),
    }
}

#[cfg(test)]
mod tests;
