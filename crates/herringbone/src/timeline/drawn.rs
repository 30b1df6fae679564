//! An operation as a timeline draws it.

use super::record::Nanoseconds;
use crate::{
    core::{session::membership::MemberId, trace::timeline, wire::Fingerprint},
    observe::StepKind,
};

/// Shorter times between steps are no waiting, and equal steps that are nearer to each other are one.
const GAP: Nanoseconds = 1_000;
/// More phases than this of one operation are left out.
pub(super) const PHASES: usize = 4096;

/// What is done for an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DrawnPhase {
    Queue,
    /// For a member and so many others, as far as it is known.
    Wait {
        first: Option<MemberId>,
        others: u32,
    },
    Move,
    Fold,
    Copy,
}

impl DrawnPhase {
    pub(super) fn of(kind: StepKind) -> Self {
        match kind {
            StepKind::Send | StepKind::Receive => DrawnPhase::Move,
            StepKind::Fold => DrawnPhase::Fold,
            StepKind::Copy | StepKind::Encode | StepKind::Decode => DrawnPhase::Copy,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            DrawnPhase::Queue => timeline::QUEUE,
            DrawnPhase::Wait { .. } => timeline::WAIT,
            DrawnPhase::Move => timeline::MOVE,
            DrawnPhase::Fold => timeline::FOLD,
            DrawnPhase::Copy => timeline::COPY,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DrawnSpan {
    pub(super) phase: DrawnPhase,
    pub(super) start: Nanoseconds,
    pub(super) end: Nanoseconds,
    pub(super) bytes: u64,
}

/// An end of an arrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DrawnArrow {
    pub(super) peer: MemberId,
    pub(super) is_sent: bool,
    /// When the message came; or when it left at the earliest.
    pub(super) at: Nanoseconds,
    /// When the engine told of it. A receiver may have a message before its sender's thread has told that it was sent.
    pub(super) reported: Nanoseconds,
}

/// What was called, and where it is drawn.
#[derive(Clone, Copy, Debug)]
pub(super) struct DrawnCall {
    /// Its row, which no other has meanwhile.
    pub(super) row: u32,
    pub(super) fingerprint: Fingerprint,
    /// Numbers of names.
    pub(super) group: u32,
    pub(super) algorithm: u32,
    pub(super) issued: Nanoseconds,
}

/// An operation that is under way.
#[derive(Debug)]
pub(super) struct DrawnOperation {
    pub(super) call: DrawnCall,
    pub(super) sent: u64,
    pub(super) received: u64,
    /// They do not overlap, and are in order.
    pub(super) spans: Vec<DrawnSpan>,
    /// How many spans were too many.
    pub(super) left_out: u64,
    pub(super) arrows: Vec<DrawnArrow>,
    has_begun: bool,
    /// Until when it is known what was done.
    known: Nanoseconds,
    /// For whom it waits since, as the engine says.
    waits: Option<DrawnPhase>,
    /// From whom the last message came since.
    from: Option<MemberId>,
}

impl DrawnOperation {
    pub(super) fn new(call: DrawnCall) -> Self {
        Self {
            call,
            sent: 0,
            received: 0,
            spans: Vec::new(),
            left_out: 0,
            arrows: Vec::new(),
            has_begun: false,
            known: call.issued,
            waits: None,
            from: None,
        }
    }

    pub(super) fn began(&mut self, at: Nanoseconds) {
        if !self.has_begun {
            self.add(DrawnPhase::Queue, self.known, at, 0);
            self.has_begun = true;
            self.known = self.known.max(at);
        }
    }

    pub(super) fn step(&mut self, kind: StepKind, began: Nanoseconds, ended: Nanoseconds, bytes: u64) {
        // What was told during the step left after its beginning.
        let in_step = |arrow: &&mut DrawnArrow| arrow.is_sent && (arrow.at..=arrow.reported).contains(&began);
        self.arrows.iter_mut().filter(in_step).for_each(|arrow| arrow.at = began);
        let began = began.max(self.known);
        self.idle_until(began);
        self.add(DrawnPhase::of(kind), began, ended.max(began), bytes);
        self.known = ended.max(began);
    }

    /// Nothing was done for it up to a moment.
    fn idle_until(&mut self, at: Nanoseconds) {
        let from = self.from.take().map(|from| DrawnPhase::Wait { first: Some(from), others: 0 });
        let waits = self.waits.take().or(from).unwrap_or(DrawnPhase::Wait { first: None, others: 0 });
        let waits = if self.has_begun { waits } else { DrawnPhase::Queue };
        self.add(waits, self.known, at, 0);
        self.known = self.known.max(at);
    }

    /// It waits for these from now on.
    pub(super) fn waited(&mut self, at: Nanoseconds, first: Option<MemberId>, others: u32) {
        if self.waits.is_some() {
            self.idle_until(at);
        }
        self.waits = Some(DrawnPhase::Wait { first, others });
    }

    /// A message was taken in, or given to a link.
    pub(super) fn message(&mut self, arrow: DrawnArrow, segment: u32, bytes: u64) {
        match arrow.is_sent {
            true => self.sent += bytes,
            false => {
                self.received += bytes;
                self.from = self.from.or(Some(arrow.peer));
            }
        }
        let is_same = |other: &DrawnArrow| (other.peer, other.is_sent) == (arrow.peer, arrow.is_sent);
        if segment == 0 && !self.arrows.iter().any(is_same) {
            self.arrows.push(arrow);
        }
    }

    pub(super) fn ended(&mut self, at: Nanoseconds) -> Nanoseconds {
        let at = at.max(self.known);
        self.idle_until(at);
        at
    }

    fn add(&mut self, phase: DrawnPhase, start: Nanoseconds, end: Nanoseconds, bytes: u64) {
        let is_idle = matches!(phase, DrawnPhase::Queue | DrawnPhase::Wait { .. });
        if end <= start || (is_idle && end - start < GAP) {
            return;
        }
        let has_room = self.spans.len() < PHASES;
        match self.spans.last_mut() {
            Some(last) if last.phase == phase && start - last.end < GAP => {
                last.end = end;
                last.bytes += bytes;
            }
            _ if has_room => self.spans.push(DrawnSpan { phase, start, end, bytes }),
            _ => self.left_out += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation() -> DrawnOperation {
        let fingerprint = Fingerprint::default();
        DrawnOperation::new(DrawnCall { row: 0, fingerprint, group: 0, algorithm: 0, issued: 1_000_000 })
    }

    fn drawn(operation: &DrawnOperation) -> Vec<(&'static str, u64, u64)> {
        operation.spans.iter().map(|span| (span.phase.name(), span.start / 1000, span.end / 1000)).collect()
    }

    #[test]
    fn phases_follow_each_other_and_fill_the_time() {
        let mut operation = operation();
        operation.began(1_010_000);
        operation.step(StepKind::Send, 1_010_100, 1_012_000, 8);
        operation.step(StepKind::Send, 1_012_100, 1_013_000, 8);
        operation.waited(1_013_000, Some(MemberId::new(2)), 1);
        let arrow = DrawnArrow { peer: MemberId::new(2), is_sent: false, at: 1_020_000, reported: 1_020_000 };
        operation.message(arrow, 0, 16);
        operation.message(arrow, 0, 16);
        operation.step(StepKind::Fold, 1_020_000, 1_030_000, 16);
        operation.message(DrawnArrow { peer: MemberId::new(3), ..arrow }, 1, 16);
        operation.step(StepKind::Receive, 1_040_000, 1_041_000, 16);
        assert_eq!(operation.ended(1_050_000), 1_050_000);
        let expected = [
            ("queue", 1000, 1010),
            ("move", 1010, 1013),
            ("wait", 1013, 1020),
            ("fold", 1020, 1030),
            ("wait", 1030, 1040),
            ("move", 1040, 1041),
            ("wait", 1041, 1050),
        ];
        assert_eq!(drawn(&operation), expected);
        assert_eq!((operation.spans[1].bytes, operation.received, operation.arrows.len()), (16, 48, 1));
        let whom = |index: usize| match operation.spans[index].phase {
            DrawnPhase::Wait { first, others } => (first.map(MemberId::number), others),
            _ => panic!("{index}"),
        };
        assert_eq!([whom(2), whom(4), whom(6)], [(Some(2), 1), (Some(3), 0), (None, 0)]);
    }

    #[test]
    fn a_message_leaves_when_its_step_begins_or_when_nothing_else_was_told_yet() {
        let mut operation = operation();
        operation.began(1_000_000);
        let arrow =
            |peer, at, reported| DrawnArrow { peer: MemberId::new(peer), is_sent: true, at, reported };
        operation.message(arrow(1, 1_000_000, 1_015_000), 0, 8);
        operation.step(StepKind::Send, 1_010_000, 1_016_000, 8);
        operation.message(arrow(2, 1_016_000, 1_030_000), 0, 8);
        operation.step(StepKind::Fold, 1_040_000, 1_050_000, 8);
        let at: Vec<u64> = operation.arrows.iter().map(|arrow| arrow.at).collect();
        assert_eq!(at, [1_010_000, 1_016_000]);
    }

    #[test]
    fn what_is_told_late_overlaps_nothing_and_memory_is_bounded() {
        let mut operation = operation();
        operation.began(1_000_000);
        operation.step(StepKind::Send, 1_000_000, 1_020_000, 1);
        operation.step(StepKind::Fold, 1_010_000, 1_015_000, 1);
        assert_eq!(operation.ended(1_010_000), 1_020_000);
        assert_eq!(drawn(&operation), [("move", 1000, 1020)]);
        for at in 0..PHASES as u64 {
            operation.step(StepKind::Send, 1_030_000 + at * 10_000, 1_031_000 + at * 10_000, 1);
        }
        assert_eq!(operation.spans.len(), PHASES);
        assert!(operation.left_out > 0);
    }
}
