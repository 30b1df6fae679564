//! A link over a stream socket: 64-byte headers with their own checksum, payloads with theirs.

use super::{Broken, Destination, Inbox, Outgoing, Payload};
use crate::{
    core::wire::{FINGERPRINT_BYTES, Fingerprint, HEADER_BYTES, Header},
    execute::operation::Token,
    sys::{
        fork::Guarded,
        socket::{self, Part},
        span::Span,
    },
};
use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

/// Frames with payloads up to this size are gathered into one write.
const GATHER_BYTES: usize = 4096;
/// How much of them is gathered before it is written.
const GATHERED_BYTES: usize = 8192;
/// How much is read at once while no long message arrives: more than the first packet of one.
const READ_BYTES: usize = 16 << 10;
/// How much is read of what follows a payload: its header, with a fingerprint.
const NEXT: usize = HEADER_BYTES + FINGERPRINT_BYTES;
/// How much has to be missing of a message for its bytes to be waited for, and for how many at a time: mostly all of
/// them, for nothing can be done with a part.
const WORTH_WAITING: usize = 16 << 10;
const ENOUGH_BYTES: usize = 256 << 10;
/// How much one turn moves at most in each direction, so that links take turns.
const TURN_IN: usize = 2 << 20;
const TURN_OUT: usize = 16 << 10;

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct TcpLink {
    socket: Guarded<OwnedFd>,
    urgent: VecDeque<Outgoing>,
    queue: VecDeque<Outgoing>,
    sending: Option<Sending>,
    spare: Vec<u8>,
    buffer: Box<[u8]>,
    filled: std::ops::Range<usize>,
    receiving: Option<Receiving>,
    /// Whether the socket may take something: no longer once it took less than it was given, until the poller says so.
    pub(crate) has_room: bool,
    /// Whether the poller watches for room.
    pub(crate) watched: bool,
    /// How many bytes have to be there before the poller finds the socket readable.
    wanted: usize,
}

#[derive(Debug)]
struct Sending {
    head: Vec<u8>,
    payload: Payload,
    written: usize,
    /// Whose messages are in it, and where each of them ends: an answer may come before what follows it has left.
    done: VecDeque<(usize, Token)>,
}

#[derive(Debug)]
struct Receiving {
    header: Header,
    destination: Destination,
    received: usize,
}

/// How outgoing payloads are found when their turn comes.
pub(crate) trait Memory {
    /// Calls `f` with the payload's bytes, or with `None` if their operation is over.
    fn with<R>(&self, payload: &Payload, f: impl FnOnce(Option<Span<'_>>) -> R) -> R;
    /// The checksum of a frame's payload.
    fn checksum(&mut self, frame: &Outgoing) -> u32;
}

impl TcpLink {
    pub(crate) fn new(socket: Guarded<OwnedFd>) -> Self {
        Self {
            socket,
            urgent: VecDeque::new(),
            queue: VecDeque::new(),
            sending: None,
            spare: Vec::new(),
            buffer: vec![0; READ_BYTES].into(),
            filled: 0..0,
            receiving: None,
            has_room: true,
            watched: false,
            wanted: 1,
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
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

    /// Forgets what has not been sent yet of operations that are over.
    pub(crate) fn cancel(&mut self, over: impl Fn(&Token) -> bool) {
        self.queue.retain(|frame| !frame.done.as_ref().is_some_and(&over));
    }

    /// Forgets everything that was not written in full; the sends that it was part of.
    pub(crate) fn give_up(&mut self) -> Vec<Token> {
        let under_way = self.sending.take().into_iter().flat_map(|sending| sending.done);
        let under_way = under_way.map(|(_, token)| token);
        let in_line = self.urgent.drain(..).chain(self.queue.drain(..)).filter_map(|frame| frame.done);
        under_way.chain(in_line).collect()
    }

    /// A payload that is arriving in `staged` is read to nowhere from now on.
    pub(crate) fn divert(&mut self, staged: &std::ops::Range<usize>) {
        if let Some(receiving) = &mut self.receiving
            && matches!(receiving.destination, Destination::Staged(at) if staged.contains(&at))
        {
            receiving.destination = Destination::Skip;
        }
    }

    /// Writes what the socket takes; tells `done` what was written in full. Returns whether anything moved.
    pub(crate) fn flush(
        &mut self,
        memory: &mut impl Memory,
        mut done: impl FnMut(Token),
    ) -> Result<bool, Broken> {
        let mut moved = 0;
        while moved < TURN_OUT {
            if self.sending.is_none() {
                self.sending = self.gather(memory);
            }
            let Some(sending) = &mut self.sending else { break };
            let more = !self.urgent.is_empty() || !self.queue.is_empty();
            let head_left = &sending.head[sending.written.min(sending.head.len())..];
            let payload_at = sending.written.saturating_sub(sending.head.len());
            let result = memory.with(&sending.payload, |span| match span {
                Some(span) => {
                    let rest = span.slice(payload_at..span.len());
                    socket::send_vectored(
                        self.socket.as_fd(),
                        &[Part::Bytes(head_left), Part::Span(rest)],
                        more,
                    )
                }
                None if head_left.is_empty() => {
                    let rest = (sending.payload.len() - payload_at).min(ZEROES.len());
                    socket::send_vectored(self.socket.as_fd(), &[Part::Bytes(&ZEROES[..rest])], more)
                }
                None => socket::send_vectored(self.socket.as_fd(), &[Part::Bytes(head_left)], more),
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
    fn gather(&mut self, memory: &mut impl Memory) -> Option<Sending> {
        let mut sending = Sending {
            head: std::mem::take(&mut self.spare),
            payload: Payload::None,
            written: 0,
            done: VecDeque::new(),
        };
        while sending.head.len() < GATHERED_BYTES {
            let Some(mut frame) = self.urgent.pop_front().or_else(|| self.queue.pop_front()) else { break };
            frame.header.payload_crc = memory.checksum(&frame);
            sending.head.extend_from_slice(&frame.header.encode(crc32c::crc32c));
            if let Some(fingerprint) = &frame.fingerprint {
                sending.head.extend_from_slice(&fingerprint.encode(crc32c::crc32c));
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

    /// Reads what there is, up to a turn. Returns whether anything moved.
    pub(crate) fn receive(&mut self, inbox: &mut impl Inbox) -> Result<bool, Broken> {
        let mut moved = 0;
        while moved < TURN_IN {
            self.parse(inbox)?;
            let (result, space) = match &mut self.receiving {
                Some(receiving) => {
                    // All that was in the buffer is in the message; what follows it there is the next header.
                    let (result, space) =
                        receiving.read(self.socket.as_fd(), inbox, &mut self.buffer[..NEXT]);
                    let result = result.map(|(bytes, next)| {
                        self.filled = 0..next;
                        bytes
                    });
                    (result, space)
                }
                None => {
                    self.buffer.copy_within(self.filled.clone(), 0);
                    self.filled = 0..self.filled.len();
                    let space = Span::of(&mut self.buffer[self.filled.end..]);
                    let result = socket::recv(self.socket.as_fd(), space);
                    (result.inspect(|bytes| self.filled.end += bytes), space.len())
                }
            };
            match result {
                Ok(0) => return Err(Broken::Closed),
                Ok(bytes) => {
                    moved += bytes;
                    if bytes < space {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(broken(&error)),
            }
        }
        self.parse(inbox)?;
        self.wait_for_more();
        Ok(moved > 0)
    }

    /// While a long message arrives, has the poller speak up once for many packets.
    fn wait_for_more(&mut self) {
        let missing = self.receiving.as_ref().map_or(0, Receiving::missing);
        let wanted = if missing < WORTH_WAITING { 1 } else { missing.min(ENOUGH_BYTES) };
        // A socket that does not take the hint is read more often.
        if wanted != self.wanted && socket::set_wanted(self.socket.as_fd(), wanted).is_ok() {
            self.wanted = wanted;
        }
    }

    /// Works through the buffer: headers, small payloads, the beginnings of large ones.
    fn parse(&mut self, inbox: &mut impl Inbox) -> Result<(), Broken> {
        loop {
            if let Some(receiving) = &mut self.receiving {
                let bytes = receiving.missing().min(self.filled.len());
                receiving.take(&self.buffer[self.filled.start..self.filled.start + bytes], inbox);
                self.filled.start += bytes;
                if receiving.missing() > 0 {
                    return Ok(());
                }
                let Some(complete) = self.receiving.take() else { return Ok(()) };
                complete.deliver(inbox)?;
            }
            let Some((header, fingerprint, used)) = self.header()? else { return Ok(()) };
            self.filled.start += used;
            let destination = inbox.admit(&header, fingerprint.as_ref())?;
            self.receiving = Some(Receiving { header, destination, received: 0 });
        }
    }

    fn header(&self) -> Result<Option<(Header, Option<Fingerprint>, usize)>, Broken> {
        let bytes = &self.buffer[self.filled.clone()];
        let Some(head) = bytes.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let header = Header::decode(head, crc32c::crc32c).map_err(|error| match error {
            crate::core::wire::WireError::HeaderChecksum { .. } => Broken::Corrupt,
            _ => Broken::Protocol("a frame that this version does not know"),
        })?;
        if !header.fingerprint {
            return Ok(Some((header, None, HEADER_BYTES)));
        }
        let Some(bytes) = bytes[HEADER_BYTES..].first_chunk::<FINGERPRINT_BYTES>() else { return Ok(None) };
        let fingerprint = Fingerprint::decode(bytes, crc32c::crc32c).map_err(|_| Broken::Corrupt)?;
        Ok(Some((header, Some(fingerprint), HEADER_BYTES + FINGERPRINT_BYTES)))
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

impl Receiving {
    fn missing(&self) -> usize {
        self.header.length as usize - self.received
    }

    fn take(&mut self, bytes: &[u8], inbox: &impl Inbox) {
        let at = self.received;
        inbox.with(&mut self.destination, self.header.length as usize, |span| {
            if let Some(span) = span {
                span.slice(at..at + bytes.len()).write(bytes);
            }
        });
        self.received += bytes.len();
    }

    /// Reads what there is of the rest, and into `next` of what follows: how many bytes in all and there, and how many
    /// there could have been.
    fn read(
        &mut self,
        socket: BorrowedFd<'_>,
        inbox: &impl Inbox,
        next: &mut [u8],
    ) -> (io::Result<(usize, usize)>, usize) {
        let (at, missing) = (self.received, self.missing());
        let space = missing + next.len();
        let length = self.header.length as usize;
        let result = inbox.with(&mut self.destination, length, |span| match span {
            Some(span) => socket::recv_two(socket, span.slice(at..span.len()), Span::of(next)),
            None => {
                let mut nowhere = [0; 8192];
                let most = missing.min(nowhere.len());
                socket::recv(socket, Span::of(&mut nowhere[..most]))
            }
        });
        let result = result.map(|bytes| {
            let own = bytes.min(missing);
            self.received += own;
            (bytes, bytes - own)
        });
        (result, space)
    }

    fn deliver(mut self, inbox: &mut impl Inbox) -> Result<(), Broken> {
        let length = self.header.length as usize;
        let crc = inbox.with(&mut self.destination, length, |span| {
            span.filter(|span| !span.is_empty()).map(|span| span.crc32c())
        });
        if crc.is_some_and(|crc| crc != self.header.payload_crc) && inbox.matters(&self.header) {
            return Err(Broken::Corrupt);
        }
        inbox.arrived(&self.header, self.destination)
    }
}

#[cfg(test)]
mod tests;
