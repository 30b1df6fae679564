//! How a running job gives a host whose port became slow less to carry, and more again once it is fast.
//!
//! ```text
//! member    PortReport     what its connections carried lately, once for an interval with a few large all-reduces
//! hub       PortProposal   once the ports of hosts have looked otherwise for long: what plans are to take them for
//! member    PortPledge     it issues no operation from this number on before it knows the outcome
//! hub       PortOutcome    from which operation on plans take the ports so, or that nothing changes
//! ```
//!
//! All members have to take the same plan for the same operation, and each numbers its calls for itself. So the hub
//! takes the highest of the pledged numbers, up to which no member has issued anything. Operations from there on are
//! planned with the new ports on all members, and earlier ones with the old ports. A pledge leaves room for a few more
//! calls, so that usually no member waits. A member that has made these calls waits for the outcome, as calls wait for
//! the decision of a [recovery](super::recovery). Control threads answer, so a program that computes delays no other.
//! This is a commit in two phases (Gray, 1978) with the hub as coordinator.
//!
//! Connections keep the order of the hub's messages. So members agree about the decisions before a
//! [recovery](super::recovery): the hub withdraws its proposal first, and the group that takes the calls inherits the
//! ports of the plans. If a member leaves or dies, the hub withdraws its proposal too, and makes no other one in that
//! group.
//!
//! Shares are part of the algorithm's name in the [basis](super::Basis) of a plan, so of every call's fingerprint: had members
//! other shares, the call would fail with both.

mod decider;
mod follower;

pub(super) use decider::Rebalancing;
pub use follower::LEAD;
pub(super) use follower::Switchover;

use super::{
    codec::{Malformed, Reader, Writer},
    membership::MemberId,
};
use crate::topology::{Ports, Wiring};
use alloc::vec::Vec;

/// The traffic of a member's connections since its last report in this group. To the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortReport {
    /// The group.
    pub group: u32,
    /// How long ago that was, in microseconds.
    pub microseconds: u64,
    /// The connections that have carried anything.
    pub links: Vec<LinkUse>,
}

/// The traffic of a connection from this process to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkUse {
    /// The other process.
    pub peer: MemberId,
    /// How many bytes have come there.
    pub bytes: u64,
    /// For how many microseconds at least one was on its way, and the other side had room for it.
    pub microseconds: u64,
}

/// The ports that plans should use. From the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortProposal {
    /// The group.
    pub group: u32,
    /// The number of the proposal in this group.
    pub change: u32,
    /// The port of each worker's host, in the order of the group's ranks.
    pub ports: Ports,
}

/// The answer to a proposal. To the hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortPledge {
    /// The group.
    pub group: u32,
    /// The proposal.
    pub change: u32,
    /// The sender has not issued the operation of this number or a later one, and does not before it knows the outcome.
    pub bound: u64,
}

/// The outcome of a proposal. From the hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortOutcome {
    /// The group.
    pub group: u32,
    /// The proposal.
    pub change: u32,
    /// The first operation for which plans take the ports so; `None` if nothing changes.
    pub from: Option<u64>,
}

impl PortReport {
    pub(super) fn write(&self, to: &mut Writer) {
        to.u32(self.group);
        to.u64(self.microseconds);
        to.list("a list of connections", &self.links, |to, link| {
            link.peer.write(to);
            to.u64(link.bytes);
            to.u64(link.microseconds);
        });
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (group, microseconds) = (from.u32()?, from.u64()?);
        let links = from.list(|from| {
            Ok(LinkUse { peer: MemberId::read(from)?, bytes: from.u64()?, microseconds: from.u64()? })
        })?;
        Ok(Self { group, microseconds, links })
    }
}

impl PortProposal {
    pub(super) fn write(&self, to: &mut Writer) {
        to.u32(self.group);
        to.u32(self.change);
        to.wiring(&Wiring { ports: Some(self.ports.clone()), ..Wiring::default() });
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (group, change, wiring) = (from.u32()?, from.u32()?, from.wiring()?);
        match wiring {
            Wiring { links: None, ports: Some(ports), .. } => Ok(Self { group, change, ports }),
            _ => Err(Malformed("a proposal without ports")),
        }
    }
}

impl PortPledge {
    pub(super) fn write(&self, to: &mut Writer) {
        to.u32(self.group);
        to.u32(self.change);
        to.u64(self.bound);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self { group: from.u32()?, change: from.u32()?, bound: from.u64()? })
    }
}

impl PortOutcome {
    pub(super) fn write(&self, to: &mut Writer) {
        to.u32(self.group);
        to.u32(self.change);
        to.option(self.from.as_ref(), |to, from| to.u64(*from));
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self { group: from.u32()?, change: from.u32()?, from: from.option(Reader::u64)? })
    }
}
