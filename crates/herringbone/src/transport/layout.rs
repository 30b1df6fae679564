//! The layout of the memory that a process shares with its local ranks, and its own words there.

use super::lane::LANE_BYTES;
use crate::{
    core::session::membership::MemberId,
    sys::{ring, segment::Segment},
};
use std::{
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
};

/// Where things lie in a process's segment: control words, then what it tells its local ranks, then its
/// lanes, its slots, and its user's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// How many ranks share the host.
    pub(crate) locals: usize,
    /// Bytes for slots.
    pub(crate) pool: usize,
    /// Bytes for users' buffers; each process has as many as it likes.
    pub(crate) heap: usize,
}

const PAGE: usize = 4096;
const WORD: usize = 8;
const TAIL_BYTES: usize = ring::TAIL_WORDS * WORD;
/// Control words of a segment, by their number.
const STAMP: Range<usize> = 0..3;
const GOODBYE: Range<usize> = 3..4;
pub(super) const SLEEPING: Range<usize> = 16..17;

impl Layout {
    /// The whole segment.
    pub(crate) fn bytes(self) -> usize {
        self.heap_at() + self.heap
    }

    /// Where users' buffers begin.
    pub(crate) fn heap_at(self) -> usize {
        (self.pool_at() + self.pool).next_multiple_of(PAGE)
    }

    /// Where slots begin.
    pub(crate) fn pool_at(self) -> usize {
        (self.lane_at(self.locals)).next_multiple_of(PAGE)
    }

    /// Where the lane of this process to a local rank begins. The one to itself is its board.
    pub(super) fn lane_at(self, local: usize) -> usize {
        (PAGE + 3 * self.locals * TAIL_BYTES).next_multiple_of(PAGE) + local * LANE_BYTES
    }

    /// The words in which this process tells a local rank how far it has read its lane.
    pub(super) fn tail(self, local: usize) -> Range<usize> {
        let at = (PAGE + local * TAIL_BYTES) / WORD;
        at..at + ring::TAIL_WORDS
    }

    /// A worker, and where builds that lay things out differently differ.
    fn stamp(self, worker: MemberId) -> u64 {
        u64::from(worker.number()) | (self.pool_at() as u64) << 32
    }

    /// The words in which it tells a local rank how far it has read its board.
    pub(super) fn board_tail(self, local: usize) -> Range<usize> {
        self.tail(self.locals + local)
    }

    /// The words in which it tells a local rank that its lane to it has no room.
    pub(super) fn full(self, local: usize) -> Range<usize> {
        self.tail(2 * self.locals + local)
    }
}

/// The word that tells others that this process sleeps and wants its bell rung.
pub(crate) fn sleeping(segment: &Segment) -> &AtomicU64 {
    &segment.atomics(SLEEPING)[0]
}

/// The word in which a process says that it leaves in order: 0 until then.
pub(crate) fn goodbye(segment: &Segment) -> &AtomicU64 {
    &segment.atomics(GOODBYE)[0]
}

/// Stamps a new segment, so that whoever maps it can tell that it is the one it was promised.
pub(crate) fn stamp(segment: &Segment, layout: Layout, job: u64, worker: MemberId, incarnation: u64) {
    for (word, value) in segment.atomics(STAMP).iter().zip([job, layout.stamp(worker), incarnation]) {
        word.store(value, Ordering::Release);
    }
}

/// Whether a mapped segment carries this stamp and has this layout's size.
pub(crate) fn is_stamped(
    segment: &Segment,
    layout: Layout,
    job: u64,
    worker: MemberId,
    incarnation: u64,
) -> bool {
    segment.len() >= layout.heap_at()
        && segment
            .atomics(STAMP)
            .iter()
            .zip([job, layout.stamp(worker), incarnation])
            .all(|(word, value)| word.load(Ordering::Acquire) == value)
}
