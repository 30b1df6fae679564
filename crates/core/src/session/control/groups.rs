//! What is said about a group: to a reducer before its first operation, and to the hub when something goes wrong.

use super::super::{
    cause::Cause,
    codec::{Malformed, Reader, Writer},
    formation,
};
use crate::{
    group::{FoldOrder, Rank},
    wire::Fingerprint,
};
use alloc::{string::String, vec::Vec};

/// How many operations a [`Report`] lists.
pub const REPORTED: usize = 32;

/// A group, as a reducer has to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Introduction {
    /// The group.
    pub group: u32,
    /// The generation that begins.
    pub generation: u32,
    /// Its members, ascending: the workers of the roster.
    pub members: Vec<Rank>,
    /// The receiver's place among the roster's reducers.
    pub reducer: u32,
    /// How many reducers the roster has.
    pub reducers: u32,
    /// The host of each member, equal for members of one host.
    pub hosts: Vec<u32>,
    /// Where the group's fold keys come from.
    pub order: FoldOrder,
    /// The algorithm that the job forces, by its name.
    pub forced: Option<String>,
    /// The job's wish for a segment's bytes; 0 leaves it to the engine.
    pub segment: u64,
    /// The most staging memory that an operation gets on any worker, in bytes.
    pub most_staged: u64,
}

/// What a rank is waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Who waits.
    pub rank: Rank,
    /// In which group.
    pub group: u32,
    /// In which generation of it.
    pub generation: u32,
    /// How often it has said so before.
    pub round: u32,
    /// The rolling hash after the operation.
    pub hash: u64,
    /// The operation.
    pub fingerprint: Fingerprint,
}

/// Something went wrong in a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dispute {
    /// The group.
    pub group: u32,
    /// The generation that has to end.
    pub generation: u32,
    /// The group's members, ascending: the hub may not be one of them.
    pub members: Vec<Rank>,
    /// What went wrong.
    pub cause: Cause,
}

/// Where a member stands at a fence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The group.
    pub group: u32,
    /// The generation that ends.
    pub generation: u32,
    /// The sequence number of the member's next operation: how many it has issued.
    pub next: u64,
    /// Calls below this number have to fail, so that the member learns of it in one that takes its number.
    pub below: u64,
    /// The member's last operations up to the disputed one, ascending, at most [`REPORTED`].
    pub recent: Vec<Fingerprint>,
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
        to.ranks(&self.members);
        to.u32(self.reducer);
        to.u32(self.reducers);
        to.ranks(&self.hosts);
        to.u8(self.order.code());
        to.option(self.forced.as_ref(), |to, name| to.text("an algorithm", name));
        to.u64(self.segment);
        to.u64(self.most_staged);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (group, generation, members) = (from.u32()?, from.u32()?, from.ranks()?);
        let (reducer, reducers, hosts) = (from.u32()?, from.u32()?, from.ranks()?);
        let order = formation::fold_order(from)?;
        let (forced, segment, most_staged) = (from.option(Reader::text)?, from.u64()?, from.u64()?);
        let ascending = members.is_sorted_by(|a, b| a < b);
        if members.is_empty() || !ascending || hosts.len() != members.len() || reducer >= reducers {
            return Err(Malformed("a group that cannot be"));
        }
        Ok(Self { group, generation, members, reducer, reducers, hosts, order, forced, segment, most_staged })
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

impl Dispute {
    pub(super) fn write(&self, to: &mut Writer) {
        to.u32(self.group);
        to.u32(self.generation);
        to.ranks(&self.members);
        self.cause.write(to);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (group, generation) = (from.u32()?, from.u32()?);
        Ok(Self { group, generation, members: from.ranks()?, cause: Cause::read(from)? })
    }
}

impl Report {
    pub(super) fn write(&self, to: &mut Writer) {
        to.u32(self.group);
        to.u32(self.generation);
        to.u64(self.next);
        to.u64(self.below);
        to.list("a list of operations", &self.recent, Writer::fingerprint);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (group, generation) = (from.u32()?, from.u32()?);
        let (next, below) = (from.u64()?, from.u64()?);
        let recent = from.list(Reader::fingerprint)?;
        if recent.len() > REPORTED {
            return Err(Malformed("it lists too many operations"));
        }
        Ok(Self { group, generation, next, below, recent })
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
