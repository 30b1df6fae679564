//! The hub's decision once all members have reported their holdings.

use super::{Calls, Held, Holding, LostReducer, OperationRepair, Resume, SegmentRepair, Suspect};
use crate::{group::Rank, session::membership::MemberId};
use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};

/// What comes of a recovery once all members have answered.
#[derive(Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "it is looked at where it is returned, and not kept")]
pub(in crate::session) enum RecoveryEnd {
    /// This is to be told.
    Resume(Resume),
    /// Members have called something else than others, first in this operation: the decision follows a fence.
    Differ(u64),
}

/// A recovery at the hub.
#[derive(Debug, Default)]
pub(in crate::session) struct Recovery {
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
    pub(in crate::session) fn of(awaited: BTreeSet<Rank>) -> Self {
        Self { awaited, ..Self::default() }
    }

    /// Whether nothing is decided yet.
    pub(in crate::session) fn is_under_way(&self) -> bool {
        !self.is_over
    }

    /// Another reducer is gone, or the same one.
    pub(in crate::session) fn suspect(&mut self, suspect: Suspect) {
        if !self.is_over {
            self.lost.entry(suspect.lost.id).or_insert(suspect.lost);
        }
    }

    /// There are more reducers than the group uses.
    pub(in crate::session) fn grow(&mut self, reducers: Vec<MemberId>) {
        if !self.is_over {
            self.gained.extend(reducers);
        }
    }

    /// A member has answered.
    pub(in crate::session) fn answered(&mut self, from: Rank, held: Held) {
        if self.awaited.remove(&from) {
            self.held.insert(from, held);
        }
    }

    /// A member takes no part any more.
    pub(in crate::session) fn without(&mut self, rank: Rank) {
        self.awaited.remove(&rank);
    }

    /// A fence has ended meanwhile: all operations below this number have failed, so nothing is left to do of them.
    pub(in crate::session) fn fenced(&mut self, next: u64) {
        self.failed = self.failed.max(Some(next));
    }

    /// What comes of it, once all have answered. Of the members that take no part any more, the one that called most had called
    /// `left`.
    pub(in crate::session) fn decide(&mut self, group: u32, left: &Calls) -> Option<RecoveryEnd> {
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
                (most.clone().since(least), self.repairs())
            }
        };
        self.is_over = true;
        let lost = self.lost.values().cloned().collect();
        let gained = self.gained.iter().copied().collect();
        Some(RecoveryEnd::Resume(Resume { group, calls, lost, gained, operations }))
    }

    fn repairs(&self) -> Vec<OperationRepair> {
        let listed = self.held.values().flat_map(|held| &held.operations);
        let sequences: BTreeSet<u64> = listed.map(|holding| holding.sequence).collect();
        sequences.into_iter().map(|sequence| self.repair(sequence)).collect()
    }

    /// What is left of an operation: for each chunk and run of segments the lowest rank that holds it, unless all do.
    fn repair(&self, sequence: u64) -> OperationRepair {
        let of = |held: &Held| held.operations.iter().find(|holding| holding.sequence == sequence).cloned();
        let holdings: Vec<(Rank, Option<Holding>, bool)> =
            self.held.iter().map(|(rank, held)| (*rank, of(held), held.calls.next > sequence)).collect();
        if holdings.iter().any(|(_, holding, issued)| holding.is_none() && *issued) {
            // It has ended on that one, so all hold all of it.
            return OperationRepair { sequence, chunks: Vec::from([Vec::new()]) };
        }
        let holds_any = |holding: &&Holding| holding.chunks.iter().any(|runs| !runs.is_empty());
        let Some(shape) = holdings.iter().filter_map(|(_, holding, _)| holding.as_ref()).find(holds_any)
        else {
            return OperationRepair { sequence, chunks: Vec::new() };
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
            let mut pieces: Vec<SegmentRepair> = Vec::new();
            for run in borders(chunk).windows(2) {
                let Some(holder) = piece_of(chunk, run[0]) else { continue };
                match pieces.last_mut() {
                    Some(last) if last.segments.end == run[0] && last.holder == holder => {
                        last.segments.end = run[1];
                    }
                    _ => pieces.push(SegmentRepair { segments: run[0]..run[1], holder }),
                }
            }
            pieces
        };
        OperationRepair { sequence, chunks: (0..shape.chunks.len()).map(pieces).collect() }
    }
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "lists of one run of segments")]
mod tests {
    use super::*;
    use core::ops::Range;

    const NONE: Calls = Calls { generation: 0, next: 0, hashes: Vec::new() };

    fn suspect(address: &str) -> Suspect {
        let id = MemberId::new(u32::from(address.as_bytes()[0]));
        let lost = LostReducer { id, address: address.into(), reason: "gone".into() };
        Suspect { group: 7, members: Vec::from([0, 1, 2]), lost }
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
        recovery.suspect(suspect("b:1"));
        recovery.suspect(suspect("a:1"));
        recovery.suspect(suspect("b:1"));
        for (rank, held) in (0..).zip(answers) {
            assert_eq!(recovery.decide(7, &NONE), None);
            recovery.answered(rank, held);
        }
        let resume = resume(&mut recovery, &NONE);
        assert_eq!(recovery.decide(7, &NONE), None, "once");
        resume
    }

    fn piece(segments: Range<u32>, holder: Option<Rank>) -> SegmentRepair {
        SegmentRepair { segments, holder }
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
            OperationRepair { sequence: 3, chunks: Vec::from([first.to_vec(), second.to_vec()]) },
            OperationRepair { sequence: 4, chunks: Vec::new() },
        ];
        assert_eq!(resume.operations, expected);
    }

    /// It may wait on some worker for older ones that write its input, so its pieces cannot be begun one by one.
    #[test]
    fn what_nobody_holds_any_of_is_done_again_as_a_whole() {
        let nothing: &[&[Range<u32>]] = &[&[], &[]];
        let resume = decided([held(4, &[(3, nothing)]), held(4, &[(3, &[])]), held(4, &[(3, nothing)])]);
        assert_eq!(resume.operations, [OperationRepair { sequence: 3, chunks: Vec::new() }]);
    }

    /// One worker has returned an operation that another one does not know to be complete.
    #[test]
    fn what_has_ended_on_one_is_held_by_all() {
        let all: &[&[Range<u32>]] = &[&[0..4], &[0..4]];
        let resume = decided([held(9, &[]), held(9, &[(8, all)]), held(9, &[(8, all)])]);
        assert_eq!(resume.operations, [OperationRepair { sequence: 8, chunks: Vec::from([Vec::new()]) }]);
    }

    #[test]
    fn in_a_group_holders_have_other_numbers_than_in_the_job() {
        let repair =
            |holder| OperationRepair { sequence: 3, chunks: Vec::from([Vec::from([piece(0..4, holder)])]) };
        assert_eq!(repair(Some(5)).among(&[2, 5, 9]), repair(Some(1)));
        assert_eq!(repair(None).among(&[2, 5, 9]), repair(None));
    }

    /// A reducer comes while another one is lost: one decision tells of both.
    #[test]
    fn reducers_come_and_go_in_one_decision() {
        let mut recovery = Recovery::of([0].into());
        recovery.grow([7, 5].map(MemberId::new).into());
        recovery.suspect(suspect("a:1"));
        recovery.grow([5].map(MemberId::new).into());
        recovery.answered(0, held(5, &[]));
        let resume = resume(&mut recovery, &NONE);
        assert_eq!((resume.lost.len(), resume.gained), (1, [5, 7].map(MemberId::new).into()));
        recovery.grow([9].map(MemberId::new).into());
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
        recovery.suspect(suspect("a:1"));
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
