//! A link in memory and in virtual time: it has latency, a rate, a bounded buffer, and faults, all of them seeded.
//!
//! A direction is a queue of bytes with the times at which they arrive. It behaves like a kernel's socket. It takes in
//! a part of the data that it is given, and hands out a part of the data that has arrived. It delivers what was written
//! before an end closed, and takes back what was under way if that end had not read all.

use super::{TcpLink, pipe::Pipe};
use crate::{
    clock::Moment,
    core::session::handshake::Keys,
    sys::{socket::IoVec, span::Span},
};
use std::{
    collections::VecDeque,
    fmt, io,
    os::fd::BorrowedFd,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// The time of a world.
#[derive(Clone, Debug, Default)]
pub(crate) struct VirtualClock(Arc<AtomicU64>);

impl VirtualClock {
    pub(crate) fn now(&self) -> Moment {
        Moment::default() + Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }

    /// How long it has run.
    pub(crate) fn passed(&self) -> Duration {
        self.now().since(Moment::default())
    }

    pub(crate) fn set(&self, now: Moment) {
        self.0.store(now.since(Moment::default()).as_nanos() as u64, Ordering::Relaxed);
    }
}

/// Seeded numbers: SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.roll() % limit
    }

    /// Whether the one case of so many has come.
    pub(crate) fn one_in(&mut self, cases: u64) -> bool {
        self.below(cases) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// What a link is like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkConditions {
    pub(crate) latency: Duration,
    /// Bytes per second, if there is a limit.
    pub(crate) rate: Option<u64>,
    /// How many bytes a direction holds that its reader has not read.
    pub(crate) buffer: usize,
    /// Whether reads and writes take a part, or nothing, of what they could.
    pub(crate) choppy: bool,
}

impl Default for LinkConditions {
    fn default() -> Self {
        Self { latency: Duration::from_micros(50), rate: None, buffer: 256 << 10, choppy: false }
    }
}

/// Changes what is written before it is on its way: a fault.
pub(crate) type Tamper = Box<dyn FnMut(Vec<u8>) -> Vec<u8> + Send>;

/// One direction of a link.
#[derive(Default)]
struct Direction {
    flying: VecDeque<(Moment, Vec<u8>)>,
    arrived: VecDeque<u8>,
    /// Bytes that were read, and when their writer hears of it.
    released: VecDeque<(Moment, usize)>,
    /// Bytes that take up the buffer.
    held: usize,
    /// When what is written next can arrive at the earliest.
    line: Moment,
    /// Nothing arrives before.
    held_until: Moment,
    /// The end of the stream arrives then.
    ended: Option<Moment>,
    /// The reader hears then that the connection is broken.
    reset: Option<Moment>,
    /// Whether nothing that is written goes anywhere any more.
    dead: bool,
    /// How many bytes have to be there for the reader's poller.
    wanted: usize,
    tamper: Option<Tamper>,
}

impl Direction {
    fn settle(&mut self, now: Moment) {
        while self.flying.front().is_some_and(|(at, _)| *at <= now)
            && let Some((_, bytes)) = self.flying.pop_front()
        {
            self.arrived.extend(bytes);
        }
        while self.released.front().is_some_and(|(at, _)| *at <= now)
            && let Some((_, bytes)) = self.released.pop_front()
        {
            self.held -= bytes;
        }
    }

    /// What is under way from some point on never arrives.
    fn lose_from(&mut self, kept: usize) {
        let mut left = kept;
        for (_, bytes) in &mut self.flying {
            bytes.truncate(left);
            left -= bytes.len();
        }
        self.flying.retain(|(_, bytes)| !bytes.is_empty());
        self.dead = true;
    }

    fn is_under_way(&self) -> usize {
        self.flying.iter().map(|(_, bytes)| bytes.len()).sum()
    }

    /// The next moment at which something changes by itself.
    fn next(&self, now: Moment) -> Option<Moment> {
        let times = [self.flying.front().map(|(at, _)| *at), self.released.front().map(|(at, _)| *at)];
        times.into_iter().chain([self.ended, self.reset]).flatten().filter(|at| *at > now).min()
    }

    /// Whether its writer's poller finds room, of so many bytes in all.
    fn has_room(&self, most: usize) -> bool {
        most.saturating_sub(self.held) >= most / 3
    }

    /// Whether its reader's poller finds something: also less than is wanted, if no more can come before it is read.
    fn is_readable(&self, most: usize, now: Moment) -> bool {
        let wanted = if self.has_room(most) && !self.dead { self.wanted.max(1) } else { 1 };
        let enough = self.arrived.len() >= wanted;
        enough || [self.ended, self.reset].into_iter().flatten().any(|at| at <= now)
    }
}

struct Both {
    conditions: LinkConditions,
    rng: Rng,
    /// By the side that writes.
    directions: [Direction; 2],
    open: [bool; 2],
}

/// A link, as its world sees it.
#[derive(Clone)]
pub(crate) struct VirtualLink {
    both: Arc<Mutex<Both>>,
    clock: VirtualClock,
}

/// One end of a link, as its world sees it.
#[derive(Clone)]
pub(crate) struct PipeEnd {
    pub(crate) link: VirtualLink,
    pub(crate) side: usize,
}

/// One end of a link, as an engine's [`TcpLink`] has it.
pub(crate) struct End {
    link: VirtualLink,
    side: usize,
}

impl TcpLink {
    /// One end of a virtual link, whose frames are not sealed: its world may make others in their place.
    pub(crate) fn of_virtual(end: End) -> Self {
        Self::over(Arc::new(end), Keys::default())
    }
}

impl VirtualLink {
    /// A link, and its two ends.
    pub(crate) fn new(conditions: LinkConditions, seed: u64, clock: &VirtualClock) -> (Self, [End; 2]) {
        let both = Both { conditions, rng: Rng(seed), directions: Default::default(), open: [true, true] };
        let link = Self { both: Arc::new(Mutex::new(both)), clock: clock.clone() };
        let ends = [0, 1].map(|side| End { link: link.clone(), side });
        (link, ends)
    }

    fn lock(&self) -> (MutexGuard<'_, Both>, Moment) {
        let now = self.clock.now();
        let mut both = self.both.lock().expect("no thread panics with it");
        both.directions.iter_mut().for_each(|direction| direction.settle(now));
        (both, now)
    }

    /// Whether the end of `side` takes something, and whether it has something to read: what a poller would say.
    pub(crate) fn ready(&self, side: usize) -> (bool, bool) {
        let (both, now) = self.lock();
        let (ours, theirs) = (&both.directions[side], &both.directions[1 - side]);
        let most = both.conditions.buffer;
        (ours.has_room(most), theirs.is_readable(most, now))
    }

    /// When something changes next by itself.
    pub(crate) fn next(&self) -> Option<Moment> {
        let (both, now) = self.lock();
        both.directions.iter().filter_map(|direction| direction.next(now)).min()
    }

    /// The connection breaks: of what is under way a part arrives, up to a random point.
    pub(crate) fn cut(&self) {
        let (mut both, now) = self.lock();
        let Both { rng, directions, conditions, .. } = &mut *both;
        for direction in directions {
            let kept = rng.below(direction.is_under_way() as u64 + 1) as usize;
            direction.lose_from(kept);
            let last = direction.flying.back().map_or(now, |(at, _)| *at);
            direction.reset = Some(last.max(direction.held_until).max(now + conditions.latency));
        }
    }

    /// Nothing that `side` writes arrives for a while: a packet was lost, and is sent again.
    pub(crate) fn stall(&self, side: usize, delay: Duration) {
        let (mut both, now) = self.lock();
        let direction = &mut both.directions[side];
        direction.line = direction.line.max(now) + delay;
        let ends = direction.ended.iter_mut().chain(&mut direction.reset).filter(|at| **at > now);
        for at in direction.flying.iter_mut().map(|(at, _)| at).chain(ends) {
            *at = *at + delay;
        }
    }

    /// Nothing that `side` writes arrives before this: neither bytes nor an end of the stream.
    pub(crate) fn hold(&self, side: usize, until: Moment) {
        let (mut both, now) = self.lock();
        let direction = &mut both.directions[side];
        direction.line = direction.line.max(until);
        direction.held_until = direction.held_until.max(until);
        let ends = direction.ended.iter_mut().chain(&mut direction.reset).filter(|at| **at > now);
        for at in direction.flying.iter_mut().map(|(at, _)| at).chain(ends) {
            *at = (*at).max(until);
        }
    }

    /// Bits of a byte change that `side` writes after so many others.
    pub(crate) fn flip(&self, side: usize, after: usize, bits: u8) {
        let mut left = Some(after);
        self.tamper(
            side,
            Box::new(move |mut bytes| {
                match left {
                    Some(at) if at < bytes.len() => {
                        bytes[at] ^= bits;
                        left = None;
                    }
                    Some(at) => left = Some(at - bytes.len()),
                    None => {}
                }
                bytes
            }),
        );
    }

    /// What `side` writes goes through this.
    pub(crate) fn tamper(&self, side: usize, tamper: Tamper) {
        self.lock().0.directions[side].tamper = Some(tamper);
    }
}

impl Pipe for End {
    /// Takes in what there is room for.
    fn write(&self, parts: &[IoVec<'_>], _more: bool) -> io::Result<usize> {
        let (mut both, now) = self.link.lock();
        let Both { conditions, rng, directions, open } = &mut *both;
        if directions[1 - self.side].reset.is_some_and(|at| at <= now) {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let direction = &mut directions[self.side];
        let length = |part: &IoVec<'_>| match part {
            IoVec::Bytes(bytes) => bytes.len(),
            IoVec::Span(span) => span.len(),
        };
        let whole: usize = parts.iter().map(length).sum();
        let mut most = whole.min(conditions.buffer.saturating_sub(direction.held));
        if conditions.choppy && rng.one_in(2) {
            most = rng.below(most as u64 + 1) as usize;
        }
        if most == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if direction.dead || !open[1 - self.side] {
            return Ok(most);
        }
        let bytes = first(parts, most);
        let bytes = match &mut direction.tamper {
            Some(tamper) => tamper(bytes),
            None => bytes,
        };
        direction.held += bytes.len();
        let takes = conditions
            .rate
            .map_or(Duration::ZERO, |rate| Duration::from_nanos(bytes.len() as u64 * 1_000_000_000 / rate));
        direction.line = direction.line.max(now) + takes;
        direction.flying.push_back((direction.line + conditions.latency, bytes));
        Ok(most)
    }

    /// Reads a part of what has arrived.
    fn read(&self, first: Span<'_>, second: Option<Span<'_>>) -> io::Result<usize> {
        let (mut both, now) = self.link.lock();
        let Both { conditions, rng, directions, .. } = &mut *both;
        let direction = &mut directions[1 - self.side];
        let space = first.len() + second.map_or(0, Span::len);
        let mut most = space.min(direction.arrived.len());
        if most == 0 {
            return match (direction.reset, direction.ended) {
                (Some(at), _) if at <= now => Err(io::ErrorKind::ConnectionReset.into()),
                (_, Some(at)) if at <= now => Ok(0),
                _ => Err(io::ErrorKind::WouldBlock.into()),
            };
        }
        if conditions.choppy && rng.one_in(2) {
            most = 1 + rng.below(most as u64) as usize;
        }
        let (front, back) = direction.arrived.as_slices();
        let front = &front[..front.len().min(most)];
        let bytes = [front, &back[..most - front.len()]].concat();
        drop(direction.arrived.drain(..most));
        let (one, two) = bytes.split_at(most.min(first.len()));
        first.slice(0..one.len()).write(one);
        if let Some(second) = second {
            second.slice(0..two.len()).write(two);
        }
        direction.released.push_back((now + conditions.latency, most));
        Ok(most)
    }

    fn set_wanted(&self, bytes: usize) -> io::Result<()> {
        self.link.lock().0.directions[1 - self.side].wanted = bytes;
        Ok(())
    }

    /// The other end reads the end of the stream after all that was written.
    fn hang_up(&self) {
        let (mut both, now) = self.link.lock();
        let latency = both.conditions.latency;
        let direction = &mut both.directions[self.side];
        let last = direction.line.max(now) + latency;
        direction.ended.get_or_insert(last);
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// The first bytes of what is written.
fn first(parts: &[IoVec<'_>], most: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(most);
    for part in parts {
        let left = most - bytes.len();
        match part {
            IoVec::Bytes(part) => bytes.extend_from_slice(&part[..part.len().min(left)]),
            IoVec::Span(span) => bytes.extend(span.slice(0..span.len().min(left)).to_vec()),
        }
    }
    bytes
}

impl Drop for End {
    /// As a kernel closes a socket: what was written still arrives, unless there was something that nobody will read now.
    fn drop(&mut self) {
        self.hang_up();
        let (mut both, now) = self.link.lock();
        let Both { conditions, rng, directions, open } = &mut *both;
        open[self.side] = false;
        let unread = &directions[1 - self.side];
        let unread = !unread.arrived.is_empty() || !unread.flying.is_empty();
        let ours = &mut directions[self.side];
        if unread {
            let kept = rng.below(ours.is_under_way() as u64 + 1) as usize;
            ours.lose_from(kept);
            ours.reset.get_or_insert(ours.held_until.max(now) + conditions.latency);
        }
        // What the other end writes from now on goes nowhere, and it is told so.
        directions[1 - self.side].dead = true;
        directions[1 - self.side].flying.clear();
    }
}

impl fmt::Debug for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("End").field("side", &self.side).finish_non_exhaustive()
    }
}
