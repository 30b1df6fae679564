//! The fixed pool from which operations take their slots.

use crate::{
    core::prepare::Sizing,
    sys::{heap::Free, segment::Segment},
};
use std::{ops::Range, sync::Arc};

/// Which part of the pool memory may come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Zone {
    /// What all operations take.
    Common,
    /// What only urgent ones take.
    Urgent,
    /// That, or if there is not enough, what all take.
    Either,
}

/// What an older operation that cannot start yet will take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    /// How much; unknown as long as its links are not up.
    pub(crate) bytes: Option<usize>,
    pub(crate) part: Zone,
}

/// A pool of slots in one segment. First fit at the lowest address: what was used last is used again, while it is in
/// cache. A part of it is kept for urgent operations, so that they never wait for others' memory.
#[derive(Debug)]
pub(crate) struct Staging {
    segment: Arc<Segment>,
    common: Free,
    urgent: Free,
    /// Where `urgent` begins.
    border: usize,
    most: usize,
    /// All of it.
    bytes: usize,
    /// What operations have now.
    in_use: usize,
    most_in_use: usize,
}

impl Staging {
    /// A pool over `range` of a segment.
    pub(crate) fn new(segment: Arc<Segment>, range: Range<usize>) -> Self {
        let border = range.start + Sizing::most_staged(range.len());
        let (common, urgent) = (Free::new(range.start..border), Free::new(border..range.end));
        let (most, bytes) = (border - range.start, range.len());
        Self { segment, common, urgent, border, most, bytes, in_use: 0, most_in_use: 0 }
    }

    pub(crate) fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// The most that one operation can take.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// How many bytes the pool has.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many bytes operations have now.
    pub(crate) fn in_use(&self) -> usize {
        self.in_use
    }

    /// The most bytes that operations had at once.
    pub(crate) fn most_in_use(&self) -> usize {
        self.most_in_use
    }

    /// Takes `bytes` from the pool, or nothing if there is no such stretch now.
    pub(crate) fn take(&mut self, bytes: usize, part: Zone) -> Option<Range<usize>> {
        let memory = self.find(bytes, part)?;
        self.count(&memory);
        Some(memory)
    }

    fn count(&mut self, memory: &Range<usize>) {
        self.in_use += memory.len();
        self.most_in_use = self.most_in_use.max(self.in_use);
    }

    fn find(&mut self, bytes: usize, part: Zone) -> Option<Range<usize>> {
        match part {
            _ if bytes == 0 => Some(0..0),
            Zone::Common => self.common.take(bytes),
            Zone::Urgent => self.urgent.take(bytes),
            Zone::Either => self.urgent.take(bytes).or_else(|| self.common.take(bytes)),
        }
    }

    /// Takes `bytes` as [`take`](Self::take) does, if what older operations claim fits beside them.
    pub(crate) fn take_beside(&mut self, bytes: usize, part: Zone, claims: &[Claim]) -> Option<Range<usize>> {
        let memory = self.find(bytes, part)?;
        // What is left in the common part is nothing to who takes of the urgent part only, and the reverse.
        let either = |claim: &Claim| claim.part == Zone::Either || part == Zone::Either;
        let meets = |claim: &&Claim| bytes > 0 && (claim.part == part || either(claim));
        let mut taken = Vec::new();
        let fits = claims.iter().filter(meets).all(|claim| {
            let claimed = claim.bytes.and_then(|bytes| self.find(bytes, claim.part));
            taken.extend(claimed.clone());
            claimed.is_some()
        });
        taken.into_iter().for_each(|range| self.free(range));
        if !fits {
            self.free(memory);
            return None;
        }
        self.count(&memory);
        Some(memory)
    }

    /// Gives back what `take` gave.
    pub(crate) fn give_back(&mut self, range: Range<usize>) {
        self.in_use -= range.len();
        self.free(range);
    }

    fn free(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        let pool = if range.start < self.border { &mut self.common } else { &mut self.urgent };
        pool.give_back(range);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn staging() -> Staging {
        Staging::new(Arc::new(Segment::create("staging-test", 1 << 20).unwrap()), 4096..1 << 20)
    }

    #[test]
    fn what_is_given_back_is_whole_again() {
        let mut staging = staging();
        let whole = staging.most();
        let taken: Vec<_> = (1..20).map(|i| staging.take(i * 64, Zone::Common).unwrap()).collect();
        for pair in taken.windows(2) {
            assert_eq!(pair[0].end, pair[1].start);
        }
        assert_eq!(staging.take(whole, Zone::Common), None);
        for range in taken.iter().step_by(2).chain(taken.iter().skip(1).step_by(2)) {
            staging.give_back(range.clone());
        }
        assert_eq!(staging.take(whole, Zone::Common), Some(4096..4096 + whole));
    }

    #[test]
    fn urgent_operations_find_memory_when_others_do_not() {
        let mut staging = staging();
        let common = staging.take(staging.most(), Zone::Common).unwrap();
        assert_eq!(staging.take(64, Zone::Common), None);
        let urgent = staging.take(64, Zone::Urgent).unwrap();
        assert_eq!(urgent.start, common.end);
        staging.give_back(urgent.clone());
        staging.give_back(common);
        assert_eq!(staging.take(64, Zone::Either), Some(urgent));
    }

    #[test]
    fn what_older_operations_claim_stays_free() {
        let mut staging = staging();
        let most = staging.most();
        let claim = |bytes, part| [Claim { bytes, part }];
        let ordinary = claim(Some(most - 64), Zone::Common);
        assert_eq!(staging.take_beside(128, Zone::Common, &ordinary), None);
        assert!(staging.take_beside(128, Zone::Urgent, &ordinary).is_some(), "another part");
        assert_eq!(staging.take_beside(0, Zone::Common, &ordinary), Some(0..0));
        assert_eq!(
            staging.take_beside(64, Zone::Common, &claim(None, Zone::Common)),
            None,
            "who knows how much"
        );
        assert_eq!(staging.take_beside(128, Zone::Common, &claim(Some(most - 64), Zone::Either)), None);
        assert!(staging.take_beside(64, Zone::Common, &ordinary).is_some());
        assert!(staging.take(most - 64, Zone::Common).is_some(), "nothing else was kept");
    }

    #[test]
    fn what_is_too_large_for_the_urgent_part_comes_from_the_common_one_only_if_it_may() {
        let mut staging = staging();
        let large = staging.most() / 2;
        assert_eq!(staging.take(large, Zone::Urgent), None);
        assert_eq!(staging.take(large, Zone::Either), Some(4096..4096 + large));
    }
}
