//! Messages about a group: to a reducer before its first operation, and to the hub when something goes wrong.

use super::super::{
    basis::Basis,
    cause::Cause,
    codec::{Malformed, Reader, Writer},
    membership::{MEMBERS, MemberId},
};
use crate::{
    group::{Group, Rank},
    shards::MOST_NODES,
    wire::Fingerprint,
};
use alloc::vec::Vec;

/// How many operations a [`Report`] lists.
pub const REPORTED: usize = 32;

/// A group, as a reducer has to know it. Its [`Parameters`](crate::session::Parameters) go before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Introduction {
    /// The group.
    pub group: u32,
    /// The generation that begins.
    pub generation: u32,
    /// The roster's epoch.
    pub epoch: u64,
    /// Its workers, ascending.
    pub members: Vec<MemberId>,
    /// The receiver's place among the roster's reducers.
    pub reducer: u32,
    /// How many reducers the roster has.
    pub reducers: u32,
    /// The host of each worker, equal for workers of one host.
    pub hosts: Vec<u32>,
    /// How its sums are folded.
    pub fold: Group,
    /// The digest of its parameters.
    pub parameters: u64,
}

/// The basis of a plan: to a reducer, before the sender's first operation of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanInfo {
    /// The group.
    pub group: u32,
    /// The generation.
    pub generation: u32,
    /// The basis of the plan. Fingerprints carry its digest.
    pub basis: Basis,
}

/// The operation that a rank waits in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The waiting rank.
    pub rank: Rank,
    /// In which group.
    pub group: u32,
    /// In which generation of it.
    pub generation: u32,
    /// How many earlier reports it has sent about this.
    pub round: u32,
    /// The rolling hash after the operation.
    pub hash: u64,
    /// The operation.
    pub fingerprint: Fingerprint,
}

/// The name of a group to which programs give no name: its members, and how many groups of exactly these members each
/// of them had made before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ordinal {
    /// A hash of the kind of group and its members; groups with the same hash are counted.
    pub of: u32,
    /// How many the member had made before.
    pub at: u64,
}

/// Something went wrong in a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dispute {
    /// The group.
    pub group: u32,
    /// The generation that has to end.
    pub generation: u32,
    /// The group's members, ascending; the hub is not necessarily one of them.
    pub members: Vec<Rank>,
    /// The cause.
    pub cause: Cause,
    /// The group's name, if it is an ordinal.
    pub ordinal: Option<Ordinal>,
}

/// The state of a member at a fence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The group.
    pub group: u32,
    /// The generation that ends.
    pub generation: u32,
    /// Whether the member's program has made the group.
    pub is_made: bool,
    /// The sequence number of the member's next operation: how many it has issued.
    pub next: u64,
    /// Calls below this number have to fail, so that the member learns of it in one that takes its number.
    pub below: u64,
    /// The member's last operations up to the disputed one, ascending, at most [`REPORTED`].
    pub recent: Vec<Fingerprint>,
    /// The inputs of their plans, each once.
    pub plans: Vec<Basis>,
}

/// How a generation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The group.
    pub group: u32,
    /// The generation that ended; the next one follows it.
    pub generation: u32,
    /// The first sequence number of the next generation. Every operation below it that was not complete has failed.
    pub next: u64,
    /// Why.
    pub cause: Cause,
}

impl Introduction {
    pub(super) fn write(&self, to: &mut Writer) {
        to.u32(self.group);
        to.u32(self.generation);
        to.u64(self.epoch);
        to.list("a list of members", &self.members, |to, member| member.write(to));
        to.u32(self.reducer);
        to.u32(self.reducers);
        to.ranks(&self.hosts);
        write_fold(to, &self.fold);
        to.u64(self.parameters);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (group, generation, epoch) = (from.u32()?, from.u32()?, from.u64()?);
        let members = from.list(MemberId::read)?;
        let (reducer, reducers, hosts) = (from.u32()?, from.u32()?, from.ranks()?);
        let (fold, parameters) = (read_fold(from, members.len())?, from.u64()?);
        let ascending = members.is_sorted_by(|a, b| a < b);
        let all = members.len().saturating_add(reducers as usize);
        if members.is_empty()
            || !ascending
            || hosts.len() != members.len()
            || reducer >= reducers
            || all > MEMBERS
        {
            return Err(Malformed("a group that cannot be"));
        }
        Ok(Self { group, generation, epoch, members, reducer, reducers, hosts, fold, parameters })
    }
}

/// Only where they are not as many as the members, how many of the inputs each member has goes with their keys.
fn write_fold(to: &mut Writer, fold: &Group) {
    let numbers = |to: &mut Writer, list: &[u32]| {
        to.list("a list of fold keys", list, |to, number| to.u32(*number));
    };
    numbers(to, fold.keys());
    if fold.has_several() {
        let inputs = (0..fold.size()).map(|rank| fold.inputs_of(rank).len() as u32);
        numbers(to, &inputs.collect::<Vec<_>>());
    }
    to.u32(fold.contributors());
}

fn read_fold(from: &mut Reader<'_>, members: usize) -> Result<Group, Malformed> {
    let cannot_be = |_| Malformed("a group that cannot be");
    let keys = from.list(Reader::u32)?;
    let has_several = keys.len() != members;
    let mut fold = Group::with_keys(keys).map_err(cannot_be)?;
    if has_several {
        let inputs = from.list(Reader::u32)?;
        if inputs.len() != members || inputs.iter().any(|inputs| *inputs > MOST_NODES) {
            return Err(Malformed("a group that cannot be"));
        }
        fold = fold.with_inputs(&inputs).map_err(cannot_be)?;
    }
    fold.with_contributors(from.u32()?).map_err(cannot_be)
}

impl PlanInfo {
    pub(super) fn write(&self, to: &mut Writer) {
        to.u32(self.group);
        to.u32(self.generation);
        self.basis.write(to);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self { group: from.u32()?, generation: from.u32()?, basis: Basis::read(from)? })
    }
}

impl Waiting {
    pub(super) fn write(&self, to: &mut Writer) {
        to.u32(self.rank);
        to.u32(self.group);
        to.u32(self.generation);
        to.u32(self.round);
        to.u64(self.hash);
        to.fingerprint(&self.fingerprint);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (rank, group, generation) = (from.u32()?, from.u32()?, from.u32()?);
        let (round, hash) = (from.u32()?, from.u64()?);
        Ok(Self { rank, group, generation, round, hash, fingerprint: from.fingerprint()? })
    }
}

impl Ordinal {
    pub(super) fn write(to: &mut Writer, ordinal: &Self) {
        to.u32(ordinal.of);
        to.u64(ordinal.at);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self { of: from.u32()?, at: from.u64()? })
    }
}

impl Dispute {
    pub(super) fn write(&self, to: &mut Writer) {
        to.u32(self.group);
        to.u32(self.generation);
        to.ranks(&self.members);
        self.cause.write(to);
        to.option(self.ordinal.as_ref(), Ordinal::write);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (group, generation) = (from.u32()?, from.u32()?);
        let (members, cause) = (from.ranks()?, Cause::read(from)?);
        Ok(Self { group, generation, members, cause, ordinal: from.option(Ordinal::read)? })
    }
}

impl Report {
    pub(super) fn write(&self, to: &mut Writer) {
        to.u32(self.group);
        to.u32(self.generation);
        to.bool(self.is_made);
        to.u64(self.next);
        to.u64(self.below);
        to.list("a list of operations", &self.recent, Writer::fingerprint);
        to.list("a list of plans", &self.plans, |to, basis| basis.write(to));
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (group, generation, is_made) = (from.u32()?, from.u32()?, from.bool()?);
        let (next, below) = (from.u64()?, from.u64()?);
        let (recent, plans) = (from.list(Reader::fingerprint)?, from.list(Basis::read)?);
        if recent.len() > REPORTED || plans.len() > recent.len() {
            return Err(Malformed("it lists too many operations"));
        }
        Ok(Self { group, generation, is_made, next, below, recent, plans })
    }
}

impl Decision {
    pub(super) fn write(&self, to: &mut Writer) {
        to.u32(self.group);
        to.u32(self.generation);
        to.u64(self.next);
        self.cause.write(to);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (group, generation, next) = (from.u32()?, from.u32()?, from.u64()?);
        Ok(Self { group, generation, next, cause: Cause::read(from)? })
    }
}
