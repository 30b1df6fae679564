//! What the plans of a group take the ports of hosts for; see [rebalancing](super::super::rebalance).

use super::{super::rebalance::Outcome, GroupState};
use crate::topology::Ports;

impl GroupState {
    /// The hub says what comes of a proposal about ports, and calls that wait for that go on. Returns the ports that plans take from an
    /// operation on, with its number.
    pub fn settle_ports(&mut self, outcome: &Outcome) -> Option<(u64, &Ports)> {
        self.switchover.settled(outcome)
    }

    /// Whether plans of the next operation take the ports of hosts for something else than those before.
    #[inline]
    pub fn has_new_ports(&self) -> bool {
        self.switchover.is_due(self.next())
    }

    /// What they take them for from the next operation on, if that [changes](Self::has_new_ports).
    pub fn take_ports(&mut self) -> Option<&Ports> {
        let next = self.next();
        self.switchover.take_due(next)
    }

    /// That of a group which takes the calls of another one: what was agreed on about ports there holds here.
    #[must_use]
    pub fn succeeding(self, other: &Self) -> Self {
        Self { switchover: other.switchover.succeeded(), ..self }
    }
}
