//! A member's side: its pledge, and the ports that plans use from an operation on.

use super::{PortOutcome, PortPledge, PortProposal};
use crate::topology::Ports;
use alloc::collections::VecDeque;

/// How many operations a member can still issue after it was asked, before it waits for the outcome.
pub const LEAD: u64 = 2;

/// What plans take ports for, now and from later operations on.
#[derive(Clone, Debug, Default)]
pub(in crate::session) struct Switchover {
    pledged: Option<Pledged>,
    /// Agreed, and not there yet, ascending.
    coming: VecDeque<AgreedPorts>,
    /// What plans take them for now, if not for what the group began with.
    now: Option<Ports>,
}

#[derive(Clone, Debug)]
struct Pledged {
    change: u32,
    bound: u64,
    ports: Ports,
}

#[derive(Clone, Debug)]
struct AgreedPorts {
    from: u64,
    ports: Ports,
}

impl Switchover {
    /// The hub proposes something, as the next operation has number `next`.
    pub(in crate::session) fn proposed(&mut self, proposal: &PortProposal, next: u64) -> PortPledge {
        let PortProposal { group, change, ports } = proposal;
        // What was agreed on before begins before this.
        let least = self.coming.back().map_or(0, |last| last.from);
        let bound = next.saturating_add(LEAD).max(least);
        self.pledged = Some(Pledged { change: *change, bound, ports: ports.clone() });
        PortPledge { group: *group, change: *change, bound }
    }

    /// The hub says what comes of it. Returns the ports and their first operation, if it does.
    pub(in crate::session) fn settled(&mut self, outcome: &PortOutcome) -> Option<(u64, &Ports)> {
        let Pledged { ports, .. } = self.pledged.take_if(|pledged| pledged.change == outcome.change)?;
        let from = outcome.from?;
        self.coming.push_back(AgreedPorts { from, ports });
        self.coming.back().map(|agreed| (agreed.from, &agreed.ports))
    }

    /// Whether no outcome has come for what this member has pledged.
    pub(in crate::session) fn is_open(&self) -> bool {
        self.pledged.is_some()
    }

    /// Whether the operation of this number waits for an outcome.
    #[inline]
    pub(in crate::session) fn holds(&self, next: u64) -> bool {
        self.pledged.as_ref().is_some_and(|pledged| next >= pledged.bound)
    }

    /// Whether plans of the operation of this number take ports for something else than those before.
    #[inline]
    pub(in crate::session) fn is_due(&self, next: u64) -> bool {
        self.coming.front().is_some_and(|agreed| next >= agreed.from)
    }

    /// What plans take the ports for from the operation of this number on, if that [changes](Self::is_due).
    pub(in crate::session) fn take_due(&mut self, next: u64) -> Option<&Ports> {
        while self.is_due(next) {
            self.now = self.coming.pop_front().map(|agreed| agreed.ports);
        }
        self.now.as_ref()
    }

    /// That of a group which takes the calls of this one: it takes over all that is agreed on.
    pub(in crate::session) fn succeeded(&self) -> Self {
        let mut coming = self.coming.clone();
        coming.extend(self.now.clone().map(|ports| AgreedPorts { from: 0, ports }));
        coming.rotate_right(usize::from(self.now.is_some()));
        Self { coming, ..Self::default() }
    }
}
