//! Reducers and workers fold side by side: each has as much of the buffer as its link can bear (BytePS, OSDI 2020).
//!
//! Let k reducers and n workers be behind links of one rate. The time is least if the parts of a reducer and of a
//! worker are as 2(n-1) : (n-k), and each link then carries 2n(n-1)/(n^2+kn-2k) K each way. Without reducers this is
//! `radix` in one stage; with k = n it is `reduction_server`.

use super::partial::Inputs;
use super::shares::{Owners, Shares};
use crate::group::{Group, Rank};
use crate::schedule::{Chunk, Cut, Form, Place, Program, ProgramBuilder, Schedule};
use alloc::vec::Vec;
use core::ops::Range;

/// The most chunks of one reducer: more would make messages small for a share that is hardly better.
const MOST_CHUNKS: u32 = 16;

/// How many chunks a reducer and a worker have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MixedShares {
    /// A reducer.
    pub reducer: u32,
    /// A worker.
    pub worker: u32,
}

impl MixedShares {
    /// The shares nearest to the best ones, for links of one rate: at most 16 chunks for a reducer.
    pub fn best(workers: u32, reducers: u32) -> Self {
        Self::of_ratio(2 * (u64::from(workers).max(2) - 1), u64::from(workers.saturating_sub(reducers)))
    }

    /// The shares nearest to a ratio of a reducer's part to a worker's.
    pub fn of_ratio(reducer: u64, worker: u64) -> Self {
        if worker == 0 || reducer >= worker * 2 * u64::from(MOST_CHUNKS) {
            return Self { reducer: 1, worker: 0 };
        }
        let distance = |chunks: &u64| {
            let own = (chunks * worker + reducer / 2) / reducer.max(1);
            // How far own/chunks is from worker/reducer, in units that do not depend on either.
            (((own * reducer).abs_diff(chunks * worker)) * 720_720 / chunks, *chunks)
        };
        let chunks = (1..=u64::from(MOST_CHUNKS)).min_by_key(distance).unwrap_or(1);
        let own = (chunks * worker + reducer / 2) / reducer.max(1);
        Self { reducer: chunks as u32, worker: own as u32 }
    }
}

pub(super) fn all_reduce(group: &Group, reducers: u32, shares: Option<MixedShares>) -> Schedule {
    let MixedShares { reducer, worker } = shares.unwrap_or_else(|| MixedShares::best(group.size(), reducers));
    let owned =
        Owned::new(group.size(), reducers, |place| if place < group.size() { worker } else { reducer });
    let cut = Cut::Even { chunks: owned.chunks };
    shared_out(group, owned, cut)
}

/// One chunk for each worker and each reducer, by their shares: workers first.
pub(super) fn by_shares(group: &Group, reducers: u32, shares: &Shares) -> Schedule {
    let owners = Owners::of(shares);
    let has_chunk = |place| u32::from(owners.chunk(place).is_some());
    let owned = Owned::new(group.size(), reducers, has_chunk);
    // Chunks are in another order than owners.
    let in_order = owned.in_order().map(|place| shares.parts()[place as usize]);
    let cut = Shares::new(in_order.collect()).map(|shares| Owners::of(&shares).cut(1, false));
    shared_out(group, owned, cut.expect("the same shares"))
}

/// What `radix` in one stage is for members with several inputs: each owner folds one chunk of all of them.
pub(super) fn of_workers(group: &Group, owners: &Owners) -> Schedule {
    let has_chunk = |place| u32::from(owners.chunk(place).is_some());
    shared_out(group, Owned::new(group.size(), 0, has_chunk), owners.cut(1, false))
}

/// What `reduction_server` is for them.
pub(super) fn of_reducers(group: &Group, reducers: u32, owners: &Owners) -> Schedule {
    let reducer = |place: Rank| place.checked_sub(group.size()).and_then(|reducer| owners.chunk(reducer));
    let has_chunk = |place| u32::from(reducer(place).is_some());
    shared_out(group, Owned::new(group.size(), reducers, has_chunk), owners.cut(1, false))
}

fn shared_out(group: &Group, owned: Owned, cut: Cut) -> Schedule {
    let inputs = Inputs { group: group.clone(), chunks: owned.chunks };
    let (workers, reducers) = (owned.workers, owned.reducers);
    Schedule::generated(workers, reducers, cut, move |rank| owned.program(rank, &inputs))
}

/// Who folds which chunks: the reducers' come first.
#[derive(Clone, Debug)]
struct Owned {
    workers: u32,
    reducers: u32,
    chunks: u32,
    /// By place.
    of: Vec<Range<Chunk>>,
}

impl Owned {
    /// `count` says how many chunks each has.
    fn new(workers: u32, reducers: u32, count: impl Fn(Rank) -> u32) -> Self {
        let mut owned =
            Self { workers, reducers, chunks: 0, of: alloc::vec![0..0; (workers + reducers) as usize] };
        for place in owned.in_order() {
            let first = owned.chunks;
            owned.chunks += count(place);
            owned.of[place as usize] = first..owned.chunks;
        }
        owned
    }

    /// The places in the order of their chunks.
    fn in_order(&self) -> impl Iterator<Item = Rank> + use<> {
        (self.workers..self.workers + self.reducers).chain(0..self.workers)
    }

    fn of(&self, place: Rank) -> Range<Chunk> {
        self.of[place as usize].clone()
    }

    /// A worker sends what others fold, first to those after it; an owner folds all inputs and sends the result to all workers.
    fn program(&self, rank: Rank, inputs: &Inputs) -> Program {
        let mut program = ProgramBuilder::new();
        let members = self.workers + self.reducers;
        let others = || (1..members).map(|distance| (rank + distance) % members);
        let is_worker = rank < self.workers;
        if is_worker {
            for owner in others() {
                self.of(owner).for_each(|chunk| inputs.send(&mut program, rank, chunk, &[owner]));
            }
        }
        for chunk in self.of(rank) {
            let result = if is_worker { Place::User(chunk) } else { program.slot(Form::Plain) };
            program.fold(chunk, &inputs.sources(rank, chunk), result, true);
            program.send(result, others().filter(|other| *other < self.workers));
        }
        if is_worker {
            for owner in others() {
                self.of(owner).for_each(|chunk| {
                    program.recv(owner, chunk, Place::User(chunk));
                });
            }
        }
        program.build()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_near_the_optimum() {
        for (workers, reducers, expected) in
            [(4, 2, (3, 1)), (4, 4, (1, 0)), (4, 1, (2, 1)), (64, 16, (13, 5)), (2, 1, (2, 1))]
        {
            let found = MixedShares::best(workers, reducers);
            assert_eq!((found.reducer, found.worker), expected, "{workers} workers, {reducers} reducers");
        }
    }
}
