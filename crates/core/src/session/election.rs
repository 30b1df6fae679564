//! How the surviving ranks of a group elect a new hub if rank 0 is lost: the lowest survivor becomes the hub.
//!
//! Each survivor determines the lowest rank that might be alive. If that is another rank, it connects to it and sends
//! [`Shrink`]. If it is itself, it waits for the others to connect, and decides as a hub would. A failed connection
//! proves nothing: the other rank might be alive on the other side of a network split, or might have continued with
//! others. So a rank that cannot be reached is silent, and the ranks that have met continue only if they outnumber the
//! silent ones. At most one of several disjoint sets of ranks does.
//!
//! It is a state machine without connections or a clock; milliseconds count from any beginning.

use super::survivors::{Shrink, ShrinkOutcome};
use crate::group::Rank;
use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};

/// The time for which calls to a rank fail until it is silent.
pub const PATIENCE_MILLISECONDS: u64 = 400;
/// Between two calls of the rank that this one waits for.
const PAUSE: u64 = 40;
/// Between two calls of a rank that is to come here: whether it lives yet.
const PROBE: u64 = 250;

/// One rank's view of an election.
#[derive(Clone, Debug)]
pub struct Election {
    me: Rank,
    own: Shrink,
    /// Ranks whose processes are known to have ended.
    dead: BTreeSet<Rank>,
    /// Ranks that do not answer.
    silent: BTreeSet<Rank>,
    /// Ranks that have come here, with the fewest that each would go on with, and how many operations it has completed.
    here: BTreeMap<Rank, (u32, u64)>,
    calls: BTreeMap<Rank, Call>,
}

/// Calls to a rank.
#[derive(Clone, Copy, Debug, Default)]
struct Call {
    is_under_way: bool,
    /// When the first of those that have failed in a row began.
    failing_since: Option<u64>,
    began: u64,
    next: u64,
}

impl Election {
    /// Rank `me` begins with its request `own`. It knows that the ranks `gone` are lost: `true` if their processes have certainly
    /// ended.
    pub fn new(me: Rank, own: Shrink, gone: &BTreeMap<Rank, bool>) -> Self {
        let of = |certain: bool| {
            own.members
                .iter()
                .copied()
                .filter(|rank| gone.get(rank) == Some(&certain) && *rank != me)
                .collect()
        };
        let (dead, silent) = (of(true), of(false));
        Self { me, own, dead, silent, here: BTreeMap::new(), calls: BTreeMap::new() }
    }

    /// The request that this rank sends to the rank that it connects to.
    pub fn request(&self) -> Shrink {
        Shrink { dead: self.dead.iter().copied().collect(), ..self.own.clone() }
    }

    /// The ranks that may be alive, ascending, with this one.
    fn expected(&self) -> impl Iterator<Item = Rank> + '_ {
        let is_lost = |rank: &Rank| self.dead.contains(rank) || self.silent.contains(rank);
        self.own.members.iter().copied().filter(move |rank| !is_lost(rank))
    }

    /// Whether this rank is the lowest that might be alive, so that the others connect to it.
    pub fn decides(&self) -> bool {
        self.expected().next() == Some(self.me)
    }

    /// The ranks to connect to now. A lower rank gets this rank's [request](Self::request), and answers once it has decided; a
    /// higher rank is only probed, to see whether it is alive.
    pub fn to_call(&mut self, now: u64) -> Vec<Rank> {
        let wanted: Vec<Rank> = match self.decides() {
            true => self.missing(),
            false => self.expected().take(1).collect(),
        };
        let Self { calls, .. } = self;
        let due = |rank: &Rank| {
            let call = calls.entry(*rank).or_default();
            let is_due = !call.is_under_way && now >= call.next;
            if is_due {
                (call.is_under_way, call.began) = (true, now);
            }
            is_due
        };
        wanted.into_iter().filter(due).collect()
    }

    /// More ranks are known to be lost: `true` if their processes have certainly ended.
    pub fn learn(&mut self, gone: &BTreeMap<Rank, bool>) {
        let is_dead = |rank: &Rank| gone.get(rank) == Some(&true) && *rank != self.me;
        let dead: Vec<Rank> = self.own.members.iter().copied().filter(is_dead).collect();
        for rank in dead {
            self.silent.remove(&rank);
            self.here.remove(&rank);
            self.dead.insert(rank);
        }
    }

    /// No process has answered a call.
    pub fn failed(&mut self, rank: Rank, now: u64) {
        let call = self.calls.entry(rank).or_default();
        let since = *call.failing_since.get_or_insert(call.began);
        (call.is_under_way, call.next) = (false, now + PAUSE);
        if now >= since + PATIENCE_MILLISECONDS {
            self.silent.insert(rank);
        }
    }

    /// A rank lives, and has not decided.
    pub fn lives(&mut self, rank: Rank, now: u64) {
        let pause = if rank < self.me { PAUSE } else { PROBE };
        self.calls.insert(rank, Call { next: now + pause, ..Call::default() });
        self.silent.remove(&rank);
    }

    /// Whether a rank has not answered calls for so long that no rank waits for it.
    pub fn is_silent(&self, rank: Rank) -> bool {
        self.silent.contains(&rank)
    }

    /// A rank comes here. Returns whether it is to wait here; else it is to look again.
    pub fn comes(&mut self, rank: Rank, request: &Shrink) -> bool {
        let is_of_it = (request.group, &request.members) == (self.own.group, &self.own.members);
        if !is_of_it || !self.own.members.contains(&rank) || rank <= self.me || self.dead.contains(&rank) {
            return false;
        }
        self.silent.remove(&rank);
        if !self.decides() {
            return false;
        }
        self.here.insert(rank, (request.least, request.completed));
        let is_absent = |dead: &Rank| *dead != self.me && !self.here.contains_key(dead);
        self.dead.extend(request.dead.iter().copied().filter(is_absent));
        true
    }

    /// A rank that had come no longer waits.
    pub fn withdraws(&mut self, rank: Rank) {
        self.here.remove(&rank);
    }

    /// The ranks that might be alive and have not come here, ascending.
    pub fn missing(&self) -> Vec<Rank> {
        self.expected().filter(|rank| *rank != self.me && !self.here.contains_key(rank)).collect()
    }

    /// Those that are here, with this rank, ascending.
    fn left(&self) -> Vec<Rank> {
        let is_here = |rank: &Rank| *rank == self.me || self.here.contains_key(rank);
        self.own.members.iter().copied().filter(is_here).collect()
    }

    /// How many operations of the group all have completed that are here.
    pub fn completed(&self) -> u64 {
        self.here
            .values()
            .map(|(_, completed)| *completed)
            .chain([self.own.completed])
            .min()
            .unwrap_or_default()
    }

    /// The decision, once all ranks that might be alive are here.
    pub fn outcome(&self) -> Option<ShrinkOutcome> {
        if !self.decides() || !self.missing().is_empty() {
            return None;
        }
        let least =
            self.here.values().map(|(least, _)| *least).chain([self.own.least]).max().unwrap_or_default();
        Some(ShrinkOutcome::of(self.left(), self.silent.iter().copied().collect(), least))
    }
}

#[cfg(test)]
mod tests;
