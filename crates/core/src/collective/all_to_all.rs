//! How the chunks of an all_to_all are numbered.
//!
//! A rank reads a chunk of its buffer as input until it first writes there. Suppose that the data that it sends over
//! some distance and the data that it receives over that distance were one chunk. Then its receive would wait for its
//! send. That send would wait for the receive of the next rank, and so on, around a circle of ranks. So each distance,
//! up or down, has two chunks, which the ranks along it send in turn. No rank has an input and an output at one chunk,
//! except for its own part, which is chunk 0.

use crate::{group::Rank, schedule::Chunk};
use core::cmp::Ordering;

/// How many chunks an all_to_all has.
pub fn chunks(workers: u32) -> u32 {
    4 * (workers - 1) + 1
}

/// The chunk that `from` sends to `to`.
pub fn chunk(workers: u32, from: Rank, to: Rank) -> Chunk {
    let (first, distance) = match to.cmp(&from) {
        Ordering::Equal => return 0,
        Ordering::Greater => (1, to - from),
        Ordering::Less => (2 * workers - 1, from - to),
    };
    first + 2 * (distance - 1) + from / distance % 2
}

/// To which rank `worker` sends a chunk; `None` if it does not.
pub(super) fn receiver(workers: u32, worker: Rank, chunk: Chunk) -> Option<Rank> {
    let Some(way) = Way::of(workers, chunk) else { return Some(worker) };
    way.from(worker, workers).filter(|_| way.is_of(worker))
}

/// From which rank `worker` receives a chunk; `None` if it does not.
pub(super) fn sender(workers: u32, worker: Rank, chunk: Chunk) -> Option<Rank> {
    let Some(way) = Way::of(workers, chunk) else { return Some(worker) };
    let back = Way { up: !way.up, ..way };
    back.from(worker, workers).filter(|from| way.is_of(*from))
}

/// From rank to rank over some distance.
#[derive(Clone, Copy)]
struct Way {
    up: bool,
    distance: u32,
    /// Which of the two chunks of this way it is.
    turn: u32,
}

impl Way {
    /// Of a chunk, unless ranks keep that.
    fn of(workers: u32, chunk: Chunk) -> Option<Self> {
        let up = chunk < 2 * workers - 1;
        let at = chunk.checked_sub(if up { 1 } else { 2 * workers - 1 })?;
        Some(Self { up, distance: at / 2 + 1, turn: at % 2 })
    }

    fn from(self, rank: Rank, workers: u32) -> Option<Rank> {
        match self.up {
            true => rank.checked_add(self.distance).filter(|to| *to < workers),
            false => rank.checked_sub(self.distance),
        }
    }

    /// Whether it is this rank's turn to send that chunk.
    fn is_of(self, rank: Rank) -> bool {
        rank / self.distance % 2 == self.turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pair_has_its_chunk_and_no_rank_sends_what_it_receives() {
        for workers in 1..=40 {
            for from in 0..workers {
                let mut of_it = 0;
                for at in 0..chunks(workers) {
                    let (to, other) = (receiver(workers, from, at), sender(workers, from, at));
                    assert!(at == 0 || to.is_none() || other.is_none(), "{workers} {from} {at}");
                    if let Some(to) = to {
                        assert_eq!((chunk(workers, from, to), sender(workers, to, at)), (at, Some(from)));
                        of_it += 1;
                    }
                }
                assert_eq!(of_it, workers);
            }
        }
    }
}
