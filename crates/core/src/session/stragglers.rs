//! Stragglers: ranks that have not called an operation in which others wait.
//!
//! While members wait, they report to the hub in which operation, once per round (see [`fence`](super::fence)). When a member has
//! waited for several rounds, the hub names the stragglers: members that have not reported a wait in this group since its
//! first round. They are slow, do something else, or do not run. Members that wait for a straggler themselves are not named.

use super::{
    codec::{Malformed, Reader, Writer},
    control::Waiting,
};
use crate::group::Rank;
use alloc::{collections::BTreeMap, vec::Vec};

/// The round of [waiting](Waiting::round) in which stragglers are named: after three seconds.
pub const NAMED_IN_ROUND: u32 = 3;
/// A member that waits has reported it since this round, because each reports once per round.
const FRESH_SINCE_ROUND: u32 = 1;

/// Members of a group have not called an operation. From the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Late {
    /// The group.
    pub group: u32,
    /// The operation.
    pub sequence: u64,
    /// The ranks that have not called it, ascending; empty if all wait.
    pub ranks: Vec<Rank>,
}

/// Who waits in the operations of one group, as its hub knows.
#[derive(Debug, Default)]
pub(super) struct StragglerTracker {
    /// How often members have said that they wait.
    said: u64,
    members: BTreeMap<Rank, Waiter>,
    /// The last operation whose stragglers were named.
    reported: Option<u64>,
}

/// A member's last report.
#[derive(Debug)]
struct Waiter {
    sequence: u64,
    /// When it said so last, and when it said so in the round since which others count, by [`StragglerTracker::said`].
    last: u64,
    since: u64,
}

impl StragglerTracker {
    /// A member reports that it waits. Returns the message for all `live` members, once for each operation.
    pub(super) fn waits(&mut self, waiting: &Waiting, live: impl Iterator<Item = Rank>) -> Option<Late> {
        let (sequence, now) = (waiting.fingerprint.sequence, self.said);
        self.said += 1;
        let waiter = self.members.entry(waiting.rank).or_insert(Waiter { sequence, last: now, since: now });
        waiter.last = now;
        if waiter.sequence != sequence || waiting.round <= FRESH_SINCE_ROUND {
            (waiter.sequence, waiter.since) = (sequence, now);
        }
        let since = waiter.since;
        let is_new = self.reported.is_none_or(|reported| reported < sequence);
        if waiting.round < NAMED_IN_ROUND || !is_new {
            return None;
        }
        self.reported = Some(sequence);
        let waits = |rank: &Rank| self.members.get(rank).is_some_and(|waiter| waiter.last >= since);
        let ranks = live.filter(|rank| !waits(rank)).collect();
        Some(Late { group: waiting.group, sequence, ranks })
    }

    /// Another generation begins.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Late {
    pub(super) fn write(&self, to: &mut Writer) {
        to.u32(self.group);
        to.u64(self.sequence);
        to.ranks(&self.ranks);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self { group: from.u32()?, sequence: from.u64()?, ranks: from.ranks()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Fingerprint;

    fn waits(of: &mut StragglerTracker, rank: Rank, sequence: u64, round: u32) -> Option<Vec<Rank>> {
        let fingerprint = Fingerprint { sequence, collective: 1, ..Fingerprint::default() };
        let waiting = Waiting { rank, group: 7, generation: 0, round, hash: 0, fingerprint };
        of.waits(&waiting, 0..4).map(|late| late.ranks)
    }

    #[test]
    fn those_that_wait_nowhere_are_late() {
        let mut of = StragglerTracker::default();
        for round in 0..NAMED_IN_ROUND {
            assert_eq!([0, 1].map(|rank| waits(&mut of, rank, 5, round)), [None, None]);
        }
        assert_eq!(waits(&mut of, 3, 4, 0), None, "it waits in an older one, so somebody else is late");
        assert_eq!(waits(&mut of, 0, 5, NAMED_IN_ROUND), Some(Vec::from([2])));
        assert_eq!(waits(&mut of, 1, 5, NAMED_IN_ROUND), None, "once");
        assert_eq!(waits(&mut of, 1, 6, 0), None);
        assert_eq!(waits(&mut of, 1, 6, 1), None);
        assert_eq!(waits(&mut of, 1, 6, NAMED_IN_ROUND), Some(Vec::from([0, 2, 3])));
    }

    #[test]
    fn if_all_wait_nobody_is_late() {
        let mut of = StragglerTracker::default();
        for round in 0..NAMED_IN_ROUND {
            (0..4).for_each(|rank| assert_eq!(waits(&mut of, rank, 9, round), None));
        }
        assert_eq!(waits(&mut of, 2, 9, NAMED_IN_ROUND), Some(Vec::new()));
    }

    /// All have waited in an operation, which is over; to the next one rank 3 does not come.
    #[test]
    fn who_has_waited_before_may_be_late() {
        let mut of = StragglerTracker::default();
        (0..4).for_each(|rank| assert_eq!(waits(&mut of, rank, 9, 0), None));
        for round in 0..NAMED_IN_ROUND {
            (0..3).for_each(|rank| assert_eq!(waits(&mut of, rank, 10, round), None));
        }
        assert_eq!(waits(&mut of, 1, 10, NAMED_IN_ROUND), Some(Vec::from([3])));
    }
}
