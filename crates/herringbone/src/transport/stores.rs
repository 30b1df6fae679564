//! Copies into memory that other cores read: slots and payload rings.
//!
//! Some processors have clusters of cores with a cache each (AMD's core complexes, sockets). There it takes 15 to 35 ns
//! to write to a line that a core of another cluster has read, one line after the other. That is five to ten times as
//! long as inside a cluster. Stores past the caches do not wait for it, but inside a cluster they make a message up to
//! twice as slow. The cores of two ranks are unknown, and on a virtual machine they change while the ranks run. So
//! copies are timed now and then, and as long as they are that slow, they bypass the caches. The bytes are the same.

use crate::sys::span::Span;
use std::{
    cell::Cell,
    time::{Duration, Instant},
};

/// Shorter copies neither tell nor gain anything.
const LEAST_BYTES: usize = 2 << 10;
const LINE: u128 = 64;
/// For a line: more than a copy between memory and a cache takes, less than lines of another cluster.
const SLOW_NANOSECONDS: u128 = 12;
/// What a copy takes besides, if nothing of it is in a cache.
const BEGIN_NANOSECONDS: u128 = 1_000;
/// Of so many copies one is timed, on average.
const SAMPLE: u32 = 8;
/// What a slow one counts, where a fast one takes 1 back: where ranks share cores, only some of the lines that a rank
/// writes were read in another cluster.
const SLOW_COUNTS: u32 = 2;
/// When they are slow: single ones are where a thread lost its core.
const SLOW: u32 = 5 * SLOW_COUNTS;
/// After so many timed copies without that, all is as at first.
const CALM: u32 = 64;
/// How many copies go past the caches before one is timed again, at first and at most.
const STREAMED: u32 = 1 << 10;
const MOST_STREAMED: u32 = 1 << 16;
/// How many copies are not timed at first, when pages are new, and after those: ordinary stores are as slow as they are
/// only where others have read what ordinary stores had written.
const WARMED: u32 = 64;

thread_local! { static STORES: Cell<Stores> = const { Cell::new(Stores::new()) } }

/// Copies what another core will read.
pub(crate) fn copy_for_others(from: Span<'_>, into: Span<'_>) {
    write_for_others(from, Some(into), |copy| {
        if let Some(copy) = copy {
            copy.push_from(from);
        }
    });
}

/// Has `write` fill `from`, of which another core may read a copy: it is given that to fill as well, unless it is better copied
/// afterwards.
pub(crate) fn write_for_others<'a>(
    from: Span<'_>,
    copy: Option<Span<'a>>,
    write: impl FnOnce(Option<Span<'a>>),
) {
    let Some(copy) = copy.filter(|_| from.len() >= LEAST_BYTES) else { return write(copy) };
    let mut stores = STORES.get();
    let way = stores.way();
    STORES.set(stores);
    write((way == Way::Cached).then_some(copy));
    match way {
        Way::Cached => {}
        Way::Streamed => copy.stream_from(from),
        Way::Timed => {
            let start = Instant::now();
            copy.push_from(from);
            let mut stores = STORES.get();
            stores.took(from.len(), start.elapsed());
            STORES.set(stores);
        }
    }
}

/// How the next copy is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Cached,
    Timed,
    Streamed,
}

/// Statistics of this thread's copies.
#[derive(Clone, Copy, Debug)]
struct Stores {
    /// How many more go past the caches.
    streamed: u32,
    /// How many more are not timed.
    untimed: u32,
    /// How slow those that were timed are.
    slow: u32,
    /// How many were timed since some went past the caches.
    timed: u32,
    /// How many go past the caches the next time.
    next_streamed: u32,
    /// What the next interval is drawn from.
    random: u32,
}

impl Stores {
    const fn new() -> Self {
        Self { streamed: 0, untimed: WARMED, slow: 0, timed: 0, next_streamed: STREAMED, random: 0 }
    }

    fn way(&mut self) -> Way {
        let way = match (self.streamed, self.untimed) {
            (0, 0) => Way::Timed,
            (0, _) => Way::Cached,
            _ => Way::Streamed,
        };
        match way {
            Way::Timed => self.untimed = self.interval(),
            Way::Cached => self.untimed -= 1,
            Way::Streamed => self.streamed -= 1,
        }
        way
    }

    /// How many copies to the next one that is timed. Each eighth would be the same one of every segment, for ever: what
    /// a rank copies repeats, a message for each local rank and the result, and only some of them are slow.
    fn interval(&mut self) -> u32 {
        self.random = self.random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.random >> 16) % (2 * SAMPLE - 1)
    }

    /// A timed copy took so long.
    fn took(&mut self, bytes: usize, time: Duration) {
        let is_slow = time.as_nanos() >= BEGIN_NANOSECONDS + SLOW_NANOSECONDS * (bytes as u128 / LINE);
        self.slow = if is_slow { self.slow + SLOW_COUNTS } else { self.slow.saturating_sub(1) };
        self.timed += 1;
        if self.slow >= SLOW {
            let next_streamed = (2 * self.next_streamed).min(MOST_STREAMED);
            *self = Self { streamed: self.next_streamed, next_streamed, random: self.random, ..Self::new() };
        } else if self.timed >= CALM {
            *self = Self { untimed: self.untimed, slow: self.slow, random: self.random, ..Self::new() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 64 << 10;

    /// How many of so many copies go past the caches, where they in turn take so long for a line.
    fn streamed(stores: &mut Stores, copies: u32, nanoseconds: &[u64]) -> u32 {
        let mut count = 0;
        for (_, nanoseconds) in (0..copies).zip(nanoseconds.iter().cycle()) {
            match stores.way() {
                Way::Timed => stores.took(BYTES, Duration::from_nanos(nanoseconds * (BYTES as u64 / 64))),
                Way::Streamed => count += 1,
                Way::Cached => {}
            }
        }
        count
    }

    #[test]
    fn where_lines_come_fast_no_copy_goes_past_the_caches() {
        let mut stores = Stores::new();
        assert_eq!(streamed(&mut stores, 100_000, &[6]), 0);
        assert_eq!(
            streamed(&mut stores, 100_000, &[[6; 15].as_slice(), &[1_000]].concat()),
            0,
            "single slow ones"
        );
        assert_eq!(
            streamed(&mut stores, 100_000, &[[6; 30].as_slice(), &[50, 50]].concat()),
            0,
            "two slow ones"
        );
    }

    #[test]
    fn where_they_come_slowly_nearly_all_do_until_they_come_fast() {
        let mut stores = Stores::new();
        assert!(streamed(&mut stores, 2_000, &[30]) > STREAMED - SAMPLE);
        let lasting = streamed(&mut stores, 1_000_000, &[30]);
        assert!(lasting > 990_000, "{lasting}");
        assert!(streamed(&mut stores, MOST_STREAMED + 10_000, &[6]) <= MOST_STREAMED);
        assert_eq!(streamed(&mut stores, 100_000, &[6]), 0);
        assert_eq!(streamed(&mut stores, STREAMED + WARMED, &[30]), STREAMED, "not longer than at first");
    }

    #[test]
    fn half_of_them_slow_is_slow_whichever_half() {
        for times in [
            &[4, 25][..],
            &[25, 4],
            &[4, 25, 25, 25],
            &[4, 25, 25, 25, 25, 25, 25, 25],
            &[25, 25, 25, 25, 4, 4, 4],
        ] {
            let mut stores = Stores::new();
            let lasting = streamed(&mut stores, 1_000_000, times);
            assert!(lasting > 980_000, "{lasting} {times:?}");
        }
    }

    #[test]
    fn each_way_copies() {
        for bytes in [0, 1, LEAST_BYTES - 1, LEAST_BYTES, 5_000, 70_001] {
            for slow in [false, true] {
                STORES.set(Stores { streamed: if slow { 3 } else { 0 }, untimed: 0, ..Stores::new() });
                for round in 0..5 {
                    let mut from: Vec<u8> = (0..bytes).map(|at| (at * 7 + round) as u8).collect();
                    let mut into = vec![0; bytes];
                    copy_for_others(Span::of(&mut from), Span::of(&mut into));
                    assert_eq!(from, into);
                }
            }
        }
    }

    #[test]
    fn a_copy_is_of_what_was_written_whichever_way_it_goes() {
        let mut placed = Vec::new();
        for (streamed, untimed) in [(0, 0), (0, 1), (1, 0)] {
            STORES.set(Stores { streamed, untimed, ..Stores::new() });
            let (mut from, mut copy) = (vec![0; BYTES], vec![1; BYTES]);
            let (from, copy) = (Span::of(&mut from), Span::of(&mut copy));
            write_for_others(from, Some(copy), |place| {
                from.write(&[7; BYTES]);
                if let Some(place) = place {
                    place.write(&[8; BYTES]);
                }
                placed.push(place.is_some());
            });
            assert_eq!(copy.to_vec(), [if placed.ends_with(&[true]) { 8 } else { 7 }; BYTES]);
        }
        assert_eq!(placed, [false, true, false]);
    }
}
