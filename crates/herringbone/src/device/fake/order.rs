//! Knowledge of accesses to memory: two accesses to the same bytes need an order if one of them writes.
//!
//! Every stream, and every thread of the host, has a clock of what it knows of all others (vector clocks: Fidge and Mattern, 1988). An
//! event carries its stream's clock, and so does a value. An access that does not know of an earlier one, which it meets, is a
//! *hazard*, whichever of them ran first this time. So a missing wait is found though the run went well.

use std::{collections::BTreeMap, ops::Range};

/// A stream, or a thread of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Actor {
    Stream(usize),
    Host(u64),
}

/// How much an actor knows of each.
#[derive(Clone, Debug, Default)]
pub(super) struct Clock(BTreeMap<Actor, u64>);

impl Clock {
    pub(super) fn join(&mut self, other: &Self) {
        for (actor, ticks) in &other.0 {
            let known = self.0.entry(*actor).or_default();
            *known = (*known).max(*ticks);
        }
    }

    /// The actor does one more thing. Returns its number.
    pub(super) fn tick(&mut self, actor: Actor) -> u64 {
        let ticks = self.0.entry(actor).or_default();
        *ticks += 1;
        *ticks
    }

    fn knows(&self, access: &MemoryAccess) -> bool {
        self.0.get(&access.actor).is_some_and(|ticks| *ticks >= access.tick)
    }
}

#[derive(Clone, Debug)]
struct MemoryAccess {
    bytes: Range<usize>,
    writes: bool,
    actor: Actor,
    tick: u64,
    what: &'static str,
}

/// All accesses that a later one may meet.
#[derive(Debug, Default)]
pub(super) struct Accesses(Vec<MemoryAccess>);

impl Accesses {
    /// An actor that knows `clock` uses these bytes. Returns what it meets without knowing of it.
    pub(super) fn note(
        &mut self,
        bytes: Range<usize>,
        writes: bool,
        actor: Actor,
        clock: &mut Clock,
        what: &'static str,
    ) -> Vec<String> {
        if bytes.is_empty() {
            return Vec::new();
        }
        let meets = |other: &&MemoryAccess| {
            other.bytes.start < bytes.end && bytes.start < other.bytes.end && (writes || other.writes)
        };
        let unknown = self.0.iter().filter(meets).filter(|other| !clock.knows(other));
        let found = unknown
            .map(|other| format!("{what} by {actor:?} does not wait for {} by {:?}", other.what, other.actor))
            .collect();
        // What a write covers, later accesses meet in the write.
        self.0.retain(|other| !(writes && bytes.start <= other.bytes.start && other.bytes.end <= bytes.end));
        let tick = clock.tick(actor);
        self.0.push(MemoryAccess { bytes, writes, actor, tick, what });
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_access_that_does_not_know_of_a_write_is_found_and_one_that_does_is_not() {
        let (one, two) = (Actor::Stream(0), Actor::Stream(1));
        let (mut first, mut second) = (Clock::default(), Clock::default());
        let mut accesses = Accesses::default();
        assert!(accesses.note(0..8, true, one, &mut first, "a write").is_empty());
        assert_eq!(accesses.note(4..6, false, two, &mut second, "a read").len(), 1);
        // Other bytes, and reads beside reads, are no hazard.
        assert!(accesses.note(8..9, true, two, &mut second, "a write").is_empty());
        let mut third = second.clone();
        third.join(&first);
        assert!(accesses.note(0..9, false, Actor::Host(1), &mut third, "a read").is_empty());
        assert!(accesses.note(4..6, false, one, &mut first, "a read").is_empty());
        // A write meets the reads that it does not know of.
        assert_eq!(accesses.note(4..6, true, one, &mut first, "a write").len(), 2);
    }
}
