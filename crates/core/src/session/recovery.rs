//! How a group goes on with other reducers: operations that have begun are finished by the workers.
//!
//! ```text
//! worker    Accuse       a reducer that an operation needs is gone
//! worker    Gain         or there are reducers that the group does not use
//! hub       Recover      to all members of the group: operations with reducers stand still from now on
//! worker    Held         what it has called, and which segments of which unfinished operations it holds, for each chunk
//! hub       Resume       once all members have answered: what somebody holds and what nobody holds
//! ```
//!
//! All of it holds where all members have made the same calls: who has called something else has nothing of an operation that the
//! others have begun, as if it had ended there. So the hub compares their [histories](Calls) first. If they differ, a
//! [fence](super::fence) comes before the decision, and nothing is left to do. Who has called less compares its next calls with
//! what the others have called, which comes with the decision.
//!
//! What a worker returned to its user all workers hold, because an operation with reducers is complete only once every worker
//! has said that it holds the whole result. So what is not held by all has not been returned by any, and everything that
//! is needed is still there: a result at those who hold it, the inputs at all who do not. A segment that somebody holds is
//! sent by the lowest of these ranks to all others; what nobody holds is folded again, by the workers themselves and in the
//! same canonical tree, so with the same bits. No reducer takes part, so the loss of another one changes nothing.
//!
//! What the group calls after all of [`Resume::calls`] runs in a new group, its [heir](heir_of), with the reducers that are left and
//! those that came. What is left of its operations is done in its [carrier](carrier_of). The hub knows both groups from the decision
//! on: who has left the group takes no part in them. A member that leaves the group before it hears of the decision says so then.

use super::{
    codec::{Malformed, Reader, Writer},
    membership::MemberId,
};
use crate::{group::Rank, wire::digest};
use alloc::{
    collections::{BTreeMap, BTreeSet},
    string::String,
    vec::Vec,
};
use core::ops::Range;

/// The number of the group in which members finish what a group has left.
pub fn carrier_of(group: u32) -> u32 {
    follower_of(group, b"carrier")
}

/// The number of the group that takes a group's next calls.
pub fn heir_of(group: u32) -> u32 {
    follower_of(group, b"heir")
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
pub struct Accuse {
    /// The group.
    pub group: u32,
    /// Its members, ascending.
    pub members: Vec<Rank>,
    /// What is lost.
    pub lost: LostReducer,
}

/// A reducer that is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostReducer {
    /// Which member it was: another one may listen at its address by now.
    pub id: MemberId,
    /// Where it listened.
    pub address: String,
    /// What was seen.
    pub reason: String,
}

/// A group could use more reducers. To the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gain {
    /// The group.
    pub group: u32,
    /// Its members, ascending.
    pub members: Vec<Rank>,
    /// The reducers, ascending.
    pub reducers: Vec<MemberId>,
}

/// What a worker holds of one operation that has not ended there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// The operation.
    pub sequence: u64,
    /// In how many segments it goes.
    pub segments: u32,
    /// For each chunk, the segments whose result is there, as ascending ranges. No chunks: it holds nothing.
    pub chunks: Vec<Vec<Range<u32>>>,
}

/// What a member has called in a generation of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// The generation: in each, the hashes begin anew.
    pub generation: u32,
    /// How many operations it has issued.
    pub next: u64,
    /// The rolling hashes after the last of them, up to that of number `next - 1`; as many as are known, and at most
    /// [`Calls::KNOWN`].
    pub hashes: Vec<u64>,
}

/// The answer of a worker. To the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The group.
    pub group: u32,
    /// What it has called.
    pub calls: Calls,
    /// Those with reducers that have not ended, ascending. All others of these have ended well.
    pub operations: Vec<Holding>,
}

/// What is to be done about some segments of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The segments.
    pub segments: Range<u32>,
    /// Who sends the result to all others, by its number in the job; `None` if it is to be folded again.
    pub holder: Option<Rank>,
}

/// What is to be done about one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rest {
    /// The operation.
    pub sequence: u64,
    /// For each chunk. No chunks: all of it is to be done again.
    pub chunks: Vec<Vec<Piece>>,
}

/// The decision. From the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resume {
    /// The group.
    pub group: u32,
    /// All operations of the group: those from [`Calls::next`] on run in the next group.
    pub calls: Calls,
    /// The reducers that are gone, ascending.
    pub lost: Vec<LostReducer>,
    /// The reducers that are new, ascending.
    pub gained: Vec<MemberId>,
    /// What is left to do, ascending. An operation that is not listed, and uses reducers, has ended well or is to be done again
    /// as a whole, if no worker had issued it.
    pub operations: Vec<Rest>,
}

impl Rest {
    /// The same in a group of these members, ascending: holders by their places among them.
    #[must_use]
    pub fn among(mut self, members: &[Rank]) -> Self {
        let place = |rank: Rank| members.binary_search(&rank).ok().map(|place| place as Rank);
        self.chunks.iter_mut().flatten().for_each(|piece| piece.holder = piece.holder.and_then(place));
        self
    }
}

impl Calls {
    /// Of so many operations the hashes are told.
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

/// What comes of a recovery once all members have answered.
#[derive(Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "it is looked at where it is returned, and not kept")]
pub(super) enum RecoveryEnd {
    /// This is to be told.
    Resume(Resume),
    /// Members have called something else than others, first in this operation: the decision follows a fence.
    Differ(u64),
}

/// A recovery at the hub.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    awaited: BTreeSet<Rank>,
    held: BTreeMap<Rank, Held>,
    lost: BTreeMap<MemberId, LostReducer>,
    gained: BTreeSet<MemberId>,
    /// All operations below this number have failed.
    failed: Option<u64>,
    is_over: bool,
}

impl Recovery {
    /// A recovery that these members have to answer.
    pub(super) fn of(awaited: BTreeSet<Rank>) -> Self {
        Self { awaited, ..Self::default() }
    }

    /// Whether nothing is decided yet.
    pub(super) fn is_under_way(&self) -> bool {
        !self.is_over
    }

    /// Another reducer is gone, or the same one.
    pub(super) fn accuse(&mut self, accuse: Accuse) {
        if !self.is_over {
            self.lost.entry(accuse.lost.id).or_insert(accuse.lost);
        }
    }

    /// There are more reducers than the group uses.
    pub(super) fn gain(&mut self, reducers: Vec<MemberId>) {
        if !self.is_over {
            self.gained.extend(reducers);
        }
    }

    /// A member has answered.
    pub(super) fn answered(&mut self, from: Rank, held: Held) {
        if self.awaited.remove(&from) {
            self.held.insert(from, held);
        }
    }

    /// A member takes no part any more.
    pub(super) fn without(&mut self, rank: Rank) {
        self.awaited.remove(&rank);
    }

    /// A fence has ended meanwhile: all operations below this number have failed, so nothing is left to do of them.
    pub(super) fn fenced(&mut self, next: u64) {
        self.failed = self.failed.max(Some(next));
    }

    /// What comes of it, once all have answered. Of the members that take no part any more, the one that called most had called
    /// `left`.
    pub(super) fn decide(&mut self, group: u32, left: &Calls) -> Option<RecoveryEnd> {
        if self.is_over || !self.awaited.is_empty() {
            return None;
        }
        let all = || self.held.values().map(|held| &held.calls);
        let most = all().chain([left]).max_by_key(|calls| calls.next)?;
        let (calls, operations) = match self.failed {
            Some(failed) => (Calls { next: failed.max(most.next), ..Calls::default() }, Vec::new()),
            None => {
                if let Some(sequence) = all().filter_map(|calls| calls.differ_at(most)).min() {
                    return Some(RecoveryEnd::Differ(sequence));
                }
                let least = all().map(|calls| calls.next).min().unwrap_or_default();
                (most.clone().since(least), self.rests())
            }
        };
        self.is_over = true;
        let lost = self.lost.values().cloned().collect();
        let gained = self.gained.iter().copied().collect();
        Some(RecoveryEnd::Resume(Resume { group, calls, lost, gained, operations }))
    }

    fn rests(&self) -> Vec<Rest> {
        let listed = self.held.values().flat_map(|held| &held.operations);
        let sequences: BTreeSet<u64> = listed.map(|holding| holding.sequence).collect();
        sequences.into_iter().map(|sequence| self.rest(sequence)).collect()
    }

    /// What is left of an operation: for each chunk and run of segments the lowest rank that holds it, unless all do.
    fn rest(&self, sequence: u64) -> Rest {
        let of = |held: &Held| held.operations.iter().find(|holding| holding.sequence == sequence).cloned();
        let holdings: Vec<(Rank, Option<Holding>, bool)> =
            self.held.iter().map(|(rank, held)| (*rank, of(held), held.calls.next > sequence)).collect();
        if holdings.iter().any(|(_, holding, issued)| holding.is_none() && *issued) {
            // It has ended on that one, so all hold all of it.
            return Rest { sequence, chunks: Vec::from([Vec::new()]) };
        }
        let holds_any = |holding: &&Holding| holding.chunks.iter().any(|runs| !runs.is_empty());
        let Some(shape) = holdings.iter().filter_map(|(_, holding, _)| holding.as_ref()).find(holds_any)
        else {
            return Rest { sequence, chunks: Vec::new() };
        };
        let piece_of = |chunk: usize, segment: u32| {
            let holds = |holding: &Holding| {
                holding.chunks.get(chunk).is_some_and(|runs| runs.iter().any(|run| run.contains(&segment)))
            };
            let mut holders = holdings
                .iter()
                .filter(|(_, holding, _)| holding.as_ref().is_some_and(holds))
                .map(|(rank, _, _)| *rank);
            let lowest = holders.next();
            let all = lowest.is_some() && 1 + holders.count() == holdings.len();
            (!all).then_some(lowest)
        };
        // Nothing changes between two borders of what somebody holds.
        let borders = |chunk: usize| {
            let all = holdings.iter().filter_map(|(_, holding, _)| holding.as_ref()?.chunks.get(chunk));
            let ends = all.flatten().flat_map(|run| [run.start, run.end]);
            let ends: BTreeSet<u32> = ends.chain([0, shape.segments]).collect();
            ends.into_iter().filter(|border| *border <= shape.segments).collect::<Vec<u32>>()
        };
        let pieces = |chunk: usize| {
            let mut pieces: Vec<Piece> = Vec::new();
            for run in borders(chunk).windows(2) {
                let Some(holder) = piece_of(chunk, run[0]) else { continue };
                match pieces.last_mut() {
                    Some(last) if last.segments.end == run[0] && last.holder == holder => {
                        last.segments.end = run[1];
                    }
                    _ => pieces.push(Piece { segments: run[0]..run[1], holder }),
                }
            }
            pieces
        };
        Rest { sequence, chunks: (0..shape.chunks.len()).map(pieces).collect() }
    }
}

impl Accuse {
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

impl Gain {
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
        to.list("a list of operations", &self.operations, |to, rest| {
            to.u64(rest.sequence);
            to.list("a list of chunks", &rest.chunks, |to, pieces| {
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
                let pieces: Vec<Piece> = from.list(|from| {
                    let segments = read_run(from, u32::MAX)?;
                    Ok(Piece { segments, holder: from.option(Reader::u32)? })
                })?;
                ascending(pieces.iter().map(|piece| &piece.segments))?;
                Ok(pieces)
            })?;
            Ok(Rest { sequence, chunks })
        })?;
        Ok(Self { group, calls, lost, gained, operations })
    }
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "lists of one run of segments")]
mod tests {
    use super::*;

    const NONE: Calls = Calls { generation: 0, next: 0, hashes: Vec::new() };

    fn accuse(address: &str) -> Accuse {
        let id = MemberId::new(u32::from(address.as_bytes()[0]));
        let lost = LostReducer { id, address: address.into(), reason: "gone".into() };
        Accuse { group: 7, members: Vec::from([0, 1, 2]), lost }
    }

    fn held(next: u64, operations: &[(u64, &[&[Range<u32>]])]) -> Held {
        let holding = |(sequence, chunks): &(u64, &[&[Range<u32>]])| Holding {
            sequence: *sequence,
            segments: 4,
            chunks: chunks.iter().map(|runs| runs.to_vec()).collect(),
        };
        let calls = Calls { next, hashes: (0..next).collect(), ..NONE };
        Held { group: 7, calls, operations: operations.iter().map(holding).collect() }
    }

    fn resume(recovery: &mut Recovery, left: &Calls) -> Resume {
        match recovery.decide(7, left) {
            Some(RecoveryEnd::Resume(resume)) => resume,
            other => panic!("{other:?}"),
        }
    }

    fn decided(answers: [Held; 3]) -> Resume {
        let mut recovery = Recovery::of([0, 1, 2].into());
        recovery.accuse(accuse("b:1"));
        recovery.accuse(accuse("a:1"));
        recovery.accuse(accuse("b:1"));
        for (rank, held) in (0..).zip(answers) {
            assert_eq!(recovery.decide(7, &NONE), None);
            recovery.answered(rank, held);
        }
        let resume = resume(&mut recovery, &NONE);
        assert_eq!(recovery.decide(7, &NONE), None, "once");
        resume
    }

    fn piece(segments: Range<u32>, holder: Option<Rank>) -> Piece {
        Piece { segments, holder }
    }

    #[test]
    fn what_all_hold_is_done_what_some_hold_is_sent_and_the_others_are_folded_again() {
        let resume = decided([
            held(5, &[(3, &[&[0..2], &[]]), (4, &[])]),
            held(5, &[(3, &[&[0..1, 2..3], &[0..4]]), (4, &[])]),
            held(4, &[(3, &[&[0..2], &[0..1]])]),
        ]);
        assert_eq!((resume.calls.next, resume.calls.hashes), (5, [4].into()));
        assert_eq!(resume.lost.iter().map(|lost| &lost.address[..]).collect::<Vec<_>>(), ["a:1", "b:1"]);
        let first = [piece(1..2, Some(0)), piece(2..3, Some(1)), piece(3..4, None)];
        let second = [piece(0..4, Some(1))];
        let expected = [
            Rest { sequence: 3, chunks: Vec::from([first.to_vec(), second.to_vec()]) },
            Rest { sequence: 4, chunks: Vec::new() },
        ];
        assert_eq!(resume.operations, expected);
    }

    /// It may wait on some worker for older ones that write its input, so its pieces cannot be begun one by one.
    #[test]
    fn what_nobody_holds_any_of_is_done_again_as_a_whole() {
        let nothing: &[&[Range<u32>]] = &[&[], &[]];
        let resume = decided([held(4, &[(3, nothing)]), held(4, &[(3, &[])]), held(4, &[(3, nothing)])]);
        assert_eq!(resume.operations, [Rest { sequence: 3, chunks: Vec::new() }]);
    }

    /// One worker has returned an operation that another one does not know to be complete.
    #[test]
    fn what_has_ended_on_one_is_held_by_all() {
        let all: &[&[Range<u32>]] = &[&[0..4], &[0..4]];
        let resume = decided([held(9, &[]), held(9, &[(8, all)]), held(9, &[(8, all)])]);
        assert_eq!(resume.operations, [Rest { sequence: 8, chunks: Vec::from([Vec::new()]) }]);
    }

    #[test]
    fn in_a_group_holders_have_other_numbers_than_in_the_job() {
        let rest = |holder| Rest { sequence: 3, chunks: Vec::from([Vec::from([piece(0..4, holder)])]) };
        assert_eq!(rest(Some(5)).among(&[2, 5, 9]), rest(Some(1)));
        assert_eq!(rest(None).among(&[2, 5, 9]), rest(None));
    }

    /// A reducer comes while another one is lost: one decision tells of both.
    #[test]
    fn reducers_come_and_go_in_one_decision() {
        let mut recovery = Recovery::of([0].into());
        recovery.gain([7, 5].map(MemberId::new).into());
        recovery.accuse(accuse("a:1"));
        recovery.gain([5].map(MemberId::new).into());
        recovery.answered(0, held(5, &[]));
        let resume = resume(&mut recovery, &NONE);
        assert_eq!((resume.lost.len(), resume.gained), (1, [5, 7].map(MemberId::new).into()));
        recovery.gain([9].map(MemberId::new).into());
        assert_eq!(recovery.decide(7, &NONE), None);
    }

    /// Whoever has left has issued operations that the others issue yet: in the group, as it did.
    #[test]
    fn what_those_have_issued_that_left_is_not_done_elsewhere() {
        let mut recovery = Recovery::of([0, 2].into());
        recovery.answered(0, held(1, &[]));
        recovery.answered(2, held(0, &[]));
        let left = Calls { next: 3, hashes: [0, 1, 2].into(), ..NONE };
        assert_eq!(
            resume(&mut recovery, &left).calls,
            left,
            "a rank that has called nothing compares them all"
        );
    }

    #[test]
    fn after_a_fence_nothing_is_left_to_do() {
        let mut recovery = Recovery::of([0, 1].into());
        recovery.accuse(accuse("a:1"));
        recovery.answered(0, held(5, &[(4, &[])]));
        recovery.without(1);
        recovery.fenced(9);
        let resume = resume(&mut recovery, &NONE);
        assert_eq!((resume.calls, resume.operations), (Calls { next: 9, ..NONE }, Vec::new()));
    }

    /// A rank that has called something else holds nothing of what the others have begun, as if it had ended there.
    #[test]
    fn ranks_that_have_not_called_the_same_do_not_resume() {
        let recovery = |other: Calls| {
            let mut recovery = Recovery::of([0, 1].into());
            recovery.answered(0, held(5, &[(4, &[])]));
            recovery.answered(1, Held { group: 7, calls: other, operations: Vec::new() });
            recovery
        };
        let calls = |next, hashes: &[u64]| Calls { next, hashes: hashes.into(), ..NONE };
        let differ = |other: Calls, left: &Calls| match recovery(other).decide(7, left) {
            Some(RecoveryEnd::Differ(sequence)) => Some(sequence),
            _ => None,
        };
        assert_eq!(differ(calls(5, &[0, 1, 2, 8, 9]), &NONE), Some(3));
        assert_eq!(differ(calls(4, &[2, 8]), &NONE), Some(3), "it has called less");
        let left = calls(9, &[8, 5, 6, 7, 8]);
        assert_eq!(differ(calls(4, &[2, 3]), &left), Some(4), "who left had called something else");
        assert_eq!(
            differ(calls(4, &[2, 3]), &Calls { generation: 1, ..left }),
            None,
            "not in this generation"
        );
        let mut recovery = recovery(calls(5, &[7]));
        assert_eq!(recovery.decide(7, &NONE), Some(RecoveryEnd::Differ(4)));
        recovery.fenced(6);
        assert_eq!(resume(&mut recovery, &NONE).calls, calls(6, &[]));
    }
}
