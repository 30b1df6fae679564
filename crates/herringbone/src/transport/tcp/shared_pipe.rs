//! A pipe within a host: bytes go through two rings in shared memory, and a socket shows when the other end is gone.
//!
//! A ring has one writer and one reader. Each counts the bytes that it has moved, and shows its count to the other one.
//! It believes the other's count only within the possible range. So a faulty partner does no harm beyond the bytes,
//! which links check.
//!
//! # Why no wake-up is lost
//! A reader that waits for bytes, or a writer that waits for room, sets a word, and then looks once more
//! ([`doorbell`]). A reader that leaves bytes in its ring rings its own bell. So whenever a ring has bytes and its
//! reader does not read, its bell is audible.

use super::pipe::Pipe;
use crate::sys::{
    doorbell::{self, Bell},
    fork::{self, Guarded},
    segment::{Segment, Words},
    socket::{self, IoVec},
    span::Span,
};
use rustix::event::epoll;
use std::{
    fmt, io,
    ops::Range,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

/// How many bytes a ring holds: more than the longest message of a table, and little enough to stay in caches.
const RING_BYTES: usize = 2 << 20;
/// Where the rings begin: before them are words of both.
const RINGS_AT: usize = 4096;
/// How many bytes the segment has.
pub(crate) const SEGMENT_BYTES: usize = RINGS_AT + 2 * RING_BYTES;

/// Words of a ring, each on cache lines of its own: how many bytes were written, how many were read, whether the reader waits for
/// bytes, and whether the writer waits for room.
const WRITTEN: usize = 0;
const READ: usize = APART;
const HUNGRY: usize = 2 * APART;
const FULL: usize = 3 * APART;
const WORDS: usize = 4 * APART;
const APART: usize = 16;

/// Which end of a pipe this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemorySide {
    /// The one that has made the segment.
    Maker,
    /// The one that has received it.
    Other,
}

/// What both ends of a pipe share.
#[derive(Debug)]
pub(crate) struct SharedParts {
    pub(crate) segment: Arc<Segment>,
    /// What wakes this end.
    pub(crate) own_bell: Bell,
    /// What wakes the other one.
    pub(crate) their_bell: Bell,
}

/// One end.
pub(super) struct SharedPipe {
    socket: Guarded<OwnedFd>,
    segment: Arc<Segment>,
    out: PipeRing,
    inn: PipeRing,
    own_bell: Bell,
    their_bell: Bell,
    /// Whether this end has rung its own bell since it was last drained.
    is_rung: AtomicBool,
    /// What is readable if the socket or the bell is.
    poller: Guarded<OwnedFd>,
    generation: u64,
}

/// One direction, as one end sees it.
struct PipeRing {
    words: Words,
    /// Where its bytes begin in the segment.
    at: usize,
    /// How many bytes this end has moved.
    moved: AtomicU64,
}

impl PipeRing {
    fn new(segment: &Arc<Segment>, number: usize) -> Self {
        let words = segment.words(number * WORDS..(number + 1) * WORDS);
        Self { words, at: RINGS_AT + number * RING_BYTES, moved: AtomicU64::new(0) }
    }

    fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// How many bytes can be read.
    fn filled(&self) -> io::Result<usize> {
        believed(self.words[WRITTEN].load(Ordering::Acquire).wrapping_sub(self.moved()))
    }

    /// How many bytes can be written.
    fn room(&self) -> io::Result<usize> {
        let filled = believed(self.moved().wrapping_sub(self.words[READ].load(Ordering::Acquire)))?;
        Ok(RING_BYTES - filled)
    }

    /// The stretches of the segment that hold `bytes` after the next `skipped` ones.
    fn stretches(&self, skipped: usize, bytes: usize) -> [Range<usize>; 2] {
        let begin = (self.moved() as usize + skipped) % RING_BYTES;
        let first = bytes.min(RING_BYTES - begin);
        [self.at + begin..self.at + begin + first, self.at..self.at + bytes - first]
    }

    /// So many bytes more were moved; `count` is the word that says so.
    fn advance(&self, bytes: usize, count: usize) {
        let moved = self.moved() + bytes as u64;
        self.moved.store(moved, Ordering::Relaxed);
        self.words[count].store(moved, Ordering::Release);
    }
}

/// The number of bytes in a ring, if it is one.
fn believed(bytes: u64) -> io::Result<usize> {
    let wrong = || io::Error::new(io::ErrorKind::InvalidData, "the other end counts bytes that cannot be");
    usize::try_from(bytes).ok().filter(|bytes| *bytes <= RING_BYTES).ok_or_else(wrong)
}

impl SharedPipe {
    /// # Errors
    /// If the process has no descriptor left, or the segment is of another size.
    pub(super) fn new(socket: Guarded<OwnedFd>, parts: SharedParts, end: MemorySide) -> io::Result<Self> {
        let SharedParts { segment, own_bell, their_bell } = parts;
        if segment.len() != SEGMENT_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a segment of another size"));
        }
        let poller = Guarded::new(epoll::create(epoll::CreateFlags::CLOEXEC)?)?;
        for watched in [socket.as_fd(), own_bell.fd()] {
            epoll::add(&poller, watched, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        }
        // The other end may have written before this one can say that it waits.
        own_bell.ring()?;
        let (out, inn) = match end {
            MemorySide::Maker => (0, 1),
            MemorySide::Other => (1, 0),
        };
        Ok(Self {
            socket,
            out: PipeRing::new(&segment, out),
            inn: PipeRing::new(&segment, inn),
            segment,
            own_bell,
            their_bell,
            is_rung: AtomicBool::new(true),
            poller,
            generation: fork::generation(),
        })
    }

    /// # Errors
    /// In a forked child, which does not have its parent's memory.
    fn check_process(&self) -> io::Result<()> {
        match self.generation == fork::generation() {
            true => Ok(()),
            false => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Wakes the other end if it waits for what was just done to a ring.
    fn wake(&self, waits: &AtomicU64) {
        doorbell::published();
        // A bell that cannot be rung is that of an end that is gone, as the socket says.
        let _rung = doorbell::wake_published(waits, &self.their_bell);
    }

    /// This end has seen all there was. Returns whether the other one has ended the stream.
    fn fall_silent(&self) -> io::Result<bool> {
        self.is_rung.store(false, Ordering::Relaxed);
        self.own_bell.drain()?;
        // Nobody sends anything there.
        let mut nothing = [0];
        match socket::recv(&*self.socket, Span::of(&mut nothing)) {
            Ok(0) => Ok(true),
            Ok(_) => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "unexpected bytes on the socket of the shared memory",
            )),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Copies the next `bytes` of the ring to some spaces, of which the first `read` bytes are full.
    fn take(&self, spaces: [Option<Span<'_>>; 2], mut read: usize, bytes: usize) {
        let mut left = self.inn.stretches(0, bytes).map(|stretch| self.segment.span(stretch));
        for space in spaces.into_iter().flatten() {
            let full = read.min(space.len());
            read -= full;
            let mut space = space.slice(full..space.len());
            for source in &mut left {
                let now = source.len().min(space.len());
                space.slice(0..now).copy_from(source.slice(0..now));
                (space, *source) = (space.slice(now..space.len()), source.slice(now..source.len()));
            }
        }
    }
}

impl Pipe for SharedPipe {
    fn write(&self, parts: &[IoVec<'_>], _more: bool) -> io::Result<usize> {
        self.check_process()?;
        let mut room = self.out.room()?;
        if room == 0 {
            doorbell::announce_sleep(&self.out.words[FULL]);
            room = self.out.room()?;
        }
        if room == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let parts = parts.iter().map(|part| match *part {
            IoVec::Bytes(bytes) => Span::of_shared(bytes),
            IoVec::Span(span) => span,
        });
        let mut written = 0;
        for part in parts {
            let part = part.slice(0..part.len().min(room - written));
            let [first, second] = self.out.stretches(written, part.len());
            let (head, tail) = part.split(first.len());
            self.segment.span(first).copy_from(head);
            self.segment.span(second).copy_from(tail);
            written += part.len();
        }
        self.out.advance(written, WRITTEN);
        self.wake(&self.out.words[HUNGRY]);
        Ok(written)
    }

    fn read(&self, first: Span<'_>, second: Option<Span<'_>>) -> io::Result<usize> {
        self.check_process()?;
        let spaces = [Some(first), second];
        let space: usize = spaces.iter().flatten().map(|space| space.len()).sum();
        let mut read = 0;
        while read < space {
            let filled = self.inn.filled()?;
            if filled == 0 {
                let has_ended = self.fall_silent();
                doorbell::announce_sleep(&self.inn.words[HUNGRY]);
                if self.inn.filled()? > 0 {
                    continue;
                }
                return match has_ended {
                    _ if read > 0 => Ok(read),
                    Ok(true) => Ok(0),
                    Ok(false) => Err(io::ErrorKind::WouldBlock.into()),
                    Err(error) => Err(error),
                };
            }
            let now = filled.min(space - read);
            self.take(spaces, read, now);
            read += now;
            self.inn.advance(now, READ);
            self.wake(&self.inn.words[FULL]);
        }
        // Its reader may go away before it has seen all there is.
        if !self.is_rung.swap(true, Ordering::Relaxed) {
            self.own_bell.ring()?;
        }
        Ok(read)
    }

    fn set_wanted(&self, _bytes: usize) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn is_memory(&self) -> bool {
        true
    }

    fn hang_up(&self) {
        self.socket.hang_up();
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.poller.as_fd())
    }
}

impl fmt::Debug for SharedPipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedPipe").field("socket", &self.socket).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
