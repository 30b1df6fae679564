//! How a group continues with other reducers: the workers finish the operations that have begun.
//!
//! ```text
//! worker    Suspect      a reducer that an operation needs is gone
//! worker    Grow         or there are reducers that the group does not use
//! hub       Recover      to all members of the group: operations with reducers stand still from now on
//! worker    Held         what it has called, and which segments of which unfinished operations it holds, for each chunk
//! hub       Resume       once all members have answered: what somebody holds and what nobody holds
//! ```
//!
//! All of this requires that all members have made the same calls. A member that has called something else holds
//! nothing of the others' operation, as if it had ended there. So the hub compares their [histories](Calls) first. If
//! they differ, a [fence](super::fence) comes before the decision, and nothing remains to be done. A member that has
//! called fewer operations compares its next calls with the others' calls, which come with the decision.
//!
//! If a worker has returned a result to its user, all workers hold it. The reason is that an operation with reducers is
//! complete only once every worker has reported that it holds the whole result. So a result that some worker lacks has
//! not been returned by any worker. Everything that is needed still exists: some workers hold the result, and all
//! others hold their inputs. If workers hold a segment, the lowest of these ranks sends it to all others. If none holds
//! it, the workers fold it again themselves, in the same canonical tree and so with the same bits. No reducer takes
//! part, so the loss of another one changes nothing.
//!
//! The group's calls after all of [`Resume::calls`] run in a new group, its [successor](successor_of), with the
//! remaining reducers and the new ones. Its unfinished operations are completed in its [repair group](repair_of). The
//! hub knows both groups from the decision on. A rank that has left the group takes no part in them. A member that
//! leaves the group before it hears of the decision reports it then.

pub(super) mod decision;

use super::{
    codec::{Malformed, Reader, Writer},
    membership::MemberId,
};
use crate::{group::Rank, wire::digest};
use alloc::{string::String, vec::Vec};
use core::ops::Range;

/// The number of the group in which members finish a group's open operations.
pub fn repair_of(group: u32) -> u32 {
    follower_of(group, b"repair")
}

/// The number of the group that takes a group's next calls.
pub fn successor_of(group: u32) -> u32 {
    follower_of(group, b"successor")
}

fn follower_of(group: u32, what: &[u8]) -> u32 {
    let hash = digest(&[what, &group.to_le_bytes()].concat());
    // 0 is the group of all ranks.
    ((hash ^ hash >> 32) as u32).max(1)
}

/// The most operations that a report lists.
const OPERATIONS: usize = 65_536;

/// A reducer that an operation needs is gone. To the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspect {
    /// The group.
    pub group: u32,
    /// Its members, ascending.
    pub members: Vec<Rank>,
    /// The lost reducer.
    pub lost: LostReducer,
}

/// A reducer that is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostReducer {
    /// Its identity: another member might listen at its address by now.
    pub id: MemberId,
    /// The address where it listened.
    pub address: String,
    /// The observed reason.
    pub reason: String,
}

/// A group could use more reducers. To the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grow {
    /// The group.
    pub group: u32,
    /// Its members, ascending.
    pub members: Vec<Rank>,
    /// The reducers, ascending.
    pub reducers: Vec<MemberId>,
}

/// A worker's part of the result of one operation that has not ended there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// The operation.
    pub sequence: u64,
    /// In how many segments it goes.
    pub segments: u32,
    /// For each chunk, the segments whose result is there, as ascending ranges. No chunks: it holds nothing.
    pub chunks: Vec<Vec<Range<u32>>>,
}

/// The calls of a member in a generation of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// The generation. The hashes start again in each.
    pub generation: u32,
    /// How many operations it has issued.
    pub next: u64,
    /// The rolling hashes after the last of them, up to number `next - 1`'s; as many as are known, and at most
    /// [`Calls::KNOWN`].
    pub hashes: Vec<u64>,
}

/// The answer of a worker. To the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The group.
    pub group: u32,
    /// Its calls.
    pub calls: Calls,
    /// Those with reducers that have not ended, ascending. All others of these have ended well.
    pub operations: Vec<Holding>,
}

/// How the repair group finishes some segments of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentRepair {
    /// The segments.
    pub segments: Range<u32>,
    /// The rank that sends the result to all others, by its number in the job; `None` if the segment is to be folded
    /// again.
    pub holder: Option<Rank>,
}

/// How the repair group finishes one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationRepair {
    /// The operation.
    pub sequence: u64,
    /// For each chunk. No chunks: all of it is to be done again.
    pub chunks: Vec<Vec<SegmentRepair>>,
}

/// The decision. From the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resume {
    /// The group.
    pub group: u32,
    /// All operations of the group: the calls from [`Calls::next`] on run in the next group.
    pub calls: Calls,
    /// The reducers that are gone, ascending.
    pub lost: Vec<LostReducer>,
    /// The reducers that are new, ascending.
    pub gained: Vec<MemberId>,
    /// The operations that are not finished, ascending. An operation that is not listed, and uses reducers, has ended
    /// well, or is to be done again as a whole if no worker had issued it.
    pub operations: Vec<OperationRepair>,
}

impl OperationRepair {
    /// The same in a group of these members, ascending: holders by their places among them.
    #[must_use]
    pub fn among(mut self, members: &[Rank]) -> Self {
        let place = |rank: Rank| members.binary_search(&rank).ok().map(|place| place as Rank);
        self.chunks.iter_mut().flatten().for_each(|piece| piece.holder = piece.holder.and_then(place));
        self
    }
}

impl Calls {
    /// The most operations whose hashes are reported.
    pub const KNOWN: usize = 4_096;

    /// The number of the first operation whose hash is known.
    fn first(&self) -> u64 {
        self.next.saturating_sub(self.hashes.len() as u64)
    }

    /// The rolling hash after an operation, if it is known.
    pub fn hash(&self, sequence: u64) -> Option<u64> {
        let at = sequence.checked_sub(self.first())?;
        self.hashes.get(usize::try_from(at).ok()?).copied()
    }

    /// The first operation after which another member's hash is known to be another.
    fn differ_at(&self, other: &Self) -> Option<u64> {
        let mut both = self.first().max(other.first())..self.next.min(other.next);
        both.find(|sequence| {
            self.generation == other.generation && self.hash(*sequence) != other.hash(*sequence)
        })
    }

    /// The same without the hashes of operations below this number.
    fn since(mut self, sequence: u64) -> Self {
        let before = sequence.saturating_sub(self.first()).min(self.hashes.len() as u64);
        self.hashes.drain(..before as usize);
        self
    }

    fn write(&self, to: &mut Writer) {
        to.u32(self.generation);
        to.u64(self.next);
        to.list("a list of hashes", &self.hashes, |to, hash| to.u64(*hash));
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (generation, next, hashes) = (from.u32()?, from.u64()?, from.list(Reader::u64)?);
        match hashes.len() <= Self::KNOWN && hashes.len() as u64 <= next {
            true => Ok(Self { generation, next, hashes }),
            false => Err(Malformed("hashes that cannot be")),
        }
    }
}

impl Suspect {
    pub(super) fn write(&self, to: &mut Writer) {
        to.u32(self.group);
        to.ranks(&self.members);
        self.lost.write(to);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self { group: from.u32()?, members: from.ranks()?, lost: LostReducer::read(from)? })
    }
}

impl LostReducer {
    fn write(&self, to: &mut Writer) {
        self.id.write(to);
        to.text("an address", &self.address);
        to.cut_text(&self.reason);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self { id: MemberId::read(from)?, address: from.text()?, reason: from.text()? })
    }
}

impl Grow {
    pub(super) fn write(&self, to: &mut Writer) {
        to.u32(self.group);
        to.ranks(&self.members);
        write_members(to, &self.reducers);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self { group: from.u32()?, members: from.ranks()?, reducers: read_members(from)? })
    }
}

fn write_members(to: &mut Writer, members: &[MemberId]) {
    to.list("a list of members", members, |to, id| id.write(to));
}

/// Members that ascend.
fn read_members(from: &mut Reader<'_>) -> Result<Vec<MemberId>, Malformed> {
    let members = from.list(MemberId::read)?;
    match members.is_sorted_by(|a, b| a < b) {
        true => Ok(members),
        false => Err(Malformed("members that do not ascend")),
    }
}

fn write_run(to: &mut Writer, run: &Range<u32>) {
    to.u32(run.start);
    to.u32(run.end);
}

/// A range that is not empty and ends at `segments` at the latest.
fn read_run(from: &mut Reader<'_>, segments: u32) -> Result<Range<u32>, Malformed> {
    let run = from.u32()?..from.u32()?;
    match run.is_empty() || run.end > segments {
        true => Err(Malformed("segments that cannot be")),
        false => Ok(run),
    }
}

/// Refuses ranges that do not ascend.
fn ascending<'a>(runs: impl Iterator<Item = &'a Range<u32>> + Clone) -> Result<(), Malformed> {
    let follows = runs.clone().zip(runs.skip(1)).all(|(one, next)| one.end <= next.start);
    if follows { Ok(()) } else { Err(Malformed("segments that do not ascend")) }
}

impl Held {
    pub(super) fn write(&self, to: &mut Writer) {
        to.u32(self.group);
        self.calls.write(to);
        to.list("a list of operations", &self.operations, |to, holding| {
            to.u64(holding.sequence);
            to.u32(holding.segments);
            to.list("a list of chunks", &holding.chunks, |to, runs| {
                to.list("a list of segments", runs, write_run);
            });
        });
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (group, calls) = (from.u32()?, Calls::read(from)?);
        let operations: Vec<Holding> = from.list(|from| {
            let (sequence, segments) = (from.u64()?, from.u32()?);
            let chunks = from.list(|from| {
                let runs = from.list(|from| read_run(from, segments))?;
                ascending(runs.iter())?;
                Ok(runs)
            })?;
            Ok(Holding { sequence, segments, chunks })
        })?;
        let ascend = operations.is_sorted_by(|a, b| a.sequence < b.sequence);
        if !ascend || operations.len() > OPERATIONS || operations.iter().any(|of| of.sequence >= calls.next) {
            return Err(Malformed("operations that cannot be"));
        }
        Ok(Self { group, calls, operations })
    }
}

impl Resume {
    pub(super) fn write(&self, to: &mut Writer) {
        to.u32(self.group);
        self.calls.write(to);
        to.list("a list of reducers", &self.lost, |to, lost| lost.write(to));
        write_members(to, &self.gained);
        to.list("a list of operations", &self.operations, |to, repair| {
            to.u64(repair.sequence);
            to.list("a list of chunks", &repair.chunks, |to, pieces| {
                to.list("a list of segments", pieces, |to, piece| {
                    write_run(to, &piece.segments);
                    to.option(piece.holder.as_ref(), |to, holder| to.u32(*holder));
                });
            });
        });
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (group, calls) = (from.u32()?, Calls::read(from)?);
        let lost = from.list(LostReducer::read)?;
        let gained = read_members(from)?;
        let operations = from.list(|from| {
            let sequence = from.u64()?;
            let chunks = from.list(|from| {
                let pieces: Vec<SegmentRepair> = from.list(|from| {
                    let segments = read_run(from, u32::MAX)?;
                    Ok(SegmentRepair { segments, holder: from.option(Reader::u32)? })
                })?;
                ascending(pieces.iter().map(|piece| &piece.segments))?;
                Ok(pieces)
            })?;
            Ok(OperationRepair { sequence, chunks })
        })?;
        Ok(Self { group, calls, lost, gained, operations })
    }
}
