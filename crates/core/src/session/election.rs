//! How the ranks that are left of a group agree on who they are when the hub is among the lost: at the lowest of them.
//!
//! Each rank that is left looks for the lowest one that may live. If that is another one, it calls it and says
//! [`Shrink`]; if it is this one, the others call here, and it decides as a hub would. A call that fails tells nothing for
//! certain: the other end may live beyond a broken network, or have gone on with others already. So whoever cannot be called
//! counts as silent, and those that have come go on only if they are more than the silent ones: of all disjoint sets of ranks
//! at most one does.
//!
//! It is a state machine without connections or a clock; milliseconds count from any beginning.

use super::survivors::{Shrink, Survival};
use crate::group::Rank;
use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};

/// For how long calls to a rank fail until it counts as silent.
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
    /// Rank `me` begins: it wants what `own` says, and knows of these ranks that they are gone; `true` for those of which
    /// that is certain.
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

    /// What this rank says to the one that it calls.
    pub fn wish(&self) -> Shrink {
        Shrink { dead: self.dead.iter().copied().collect(), ..self.own.clone() }
    }

    /// Those that may live, ascending; this rank is one of them.
    fn expected(&self) -> impl Iterator<Item = Rank> + '_ {
        let is_lost = |rank: &Rank| self.dead.contains(rank) || self.silent.contains(rank);
        self.own.members.iter().copied().filter(move |rank| !is_lost(rank))
    }

    /// Whether the others come here.
    pub fn decides(&self) -> bool {
        self.expected().next() == Some(self.me)
    }

    /// Ranks that are to be called now. A lower one is told [what is wished](Self::wish), and answers once it has decided; a
    /// higher one is only called, to see whether it lives.
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

    /// More is known of who is gone; `true` for those of which that is certain.
    pub fn learn(&mut self, gone: &BTreeMap<Rank, bool>) {
        let is_dead = |rank: &Rank| gone.get(rank) == Some(&true) && *rank != self.me;
        let dead: Vec<Rank> = self.own.members.iter().copied().filter(is_dead).collect();
        for rank in dead {
            self.silent.remove(&rank);
            self.here.remove(&rank);
            self.dead.insert(rank);
        }
    }

    /// Nobody has answered a call.
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

    /// A rank comes here. Returns whether it is to wait here; else it is to look again.
    pub fn comes(&mut self, rank: Rank, wish: &Shrink) -> bool {
        let is_of_it = (wish.group, &wish.members) == (self.own.group, &self.own.members);
        if !is_of_it || !self.own.members.contains(&rank) || rank <= self.me || self.dead.contains(&rank) {
            return false;
        }
        self.silent.remove(&rank);
        if !self.decides() {
            return false;
        }
        self.here.insert(rank, (wish.least, wish.completed));
        let is_absent = |dead: &Rank| *dead != self.me && !self.here.contains_key(dead);
        self.dead.extend(wish.dead.iter().copied().filter(is_absent));
        true
    }

    /// A rank that had come waits no longer.
    pub fn withdraws(&mut self, rank: Rank) {
        self.here.remove(&rank);
    }

    /// Those that may live and have not come here, ascending.
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

    /// What comes of it, once all that may live are here.
    pub fn outcome(&self) -> Option<Survival> {
        if !self.decides() || !self.missing().is_empty() {
            return None;
        }
        let least =
            self.here.values().map(|(least, _)| *least).chain([self.own.least]).max().unwrap_or_default();
        Some(Survival::of(self.left(), self.silent.iter().copied().collect(), least))
    }
}

#[cfg(test)]
mod tests;
