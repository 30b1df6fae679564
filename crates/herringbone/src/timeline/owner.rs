//! The owner of a timeline, and the names of members in it.

use crate::{
    core::{
        session::membership::MemberId,
        trace::timeline::{ROLES, arrow},
    },
    observe::OperationId,
};
use std::collections::BTreeMap;

/// A member of a job, as a timeline names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TimelineMember {
    /// The number of its role among the [`ROLES`].
    pub(crate) role: usize,
    /// Its number in its role.
    pub(crate) number: u32,
    /// By what all processes of the job tell it from others.
    pub(crate) identity: u32,
}

impl TimelineMember {
    /// A worker, whose identity all processes know.
    pub(crate) fn rank(number: u32, id: MemberId) -> Self {
        Self { role: 0, number, identity: id.number() }
    }

    /// A reducer. It does not know the identity that workers give it, but its place among the reducers.
    pub(crate) fn reducer(number: u32) -> Self {
        Self { role: 1, number, identity: REDUCERS | number }
    }

    /// As `rank 3`.
    pub(crate) fn name(&self) -> String {
        format!("{} {}", ROLES[self.role], self.number)
    }
}

/// No worker has an identity from here on.
const REDUCERS: u32 = 1 << 31;

/// Of which process a timeline is.
#[derive(Clone, Debug)]
pub(crate) struct TimelineOwner {
    pub(crate) job: u64,
    /// A reducer learns its number later.
    pub(crate) me: TimelineMember,
    /// How many ranks its job has.
    pub(crate) world: u32,
    /// The others, as far as they are known by more than their identities.
    pub(crate) members: BTreeMap<MemberId, TimelineMember>,
}

impl TimelineOwner {
    pub(super) fn member(&self, id: MemberId) -> TimelineMember {
        // On a reducer, a worker's rank in the job that it has formed first.
        self.members.get(&id).cloned().unwrap_or_else(|| TimelineMember::rank(id.number(), id))
    }

    /// What the two ends of a message's arrow have in common.
    pub(super) fn arrow(&self, id: OperationId, peer: MemberId, is_sent: bool) -> u64 {
        let (me, peer) = (self.me.identity, self.member(peer).identity);
        let (from, to) = if is_sent { (me, peer) } else { (peer, me) };
        arrow(id.group, id.generation, id.sequence, from, to)
    }
}
