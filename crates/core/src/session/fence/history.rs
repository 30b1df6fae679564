//! The operations that a member has issued.

use super::{super::recovery::Calls, REMEMBERED};
use crate::wire::{Fingerprint, roll};
use alloc::collections::VecDeque;

/// What a member has issued.
#[derive(Debug, Default)]
pub(super) struct History {
    /// The number of the next operation.
    pub(super) next: u64,
    /// The first number of this generation.
    pub(super) first: u64,
    /// The rolling hash after the last operation.
    pub(super) hash: u64,
    /// The last operations of this generation, among them all open ones; the last one is `next - 1`.
    pub(super) operations: VecDeque<HistoryEntry>,
    /// How many operations of this generation are issued and not complete.
    pub(super) open: u64,
    /// All members have issued the same below this number, as far as is known.
    pub(super) confirmed: u64,
    /// Whether a call has failed already, ahead of the decision.
    pub(super) has_failed_early: bool,
    /// Whether an operation has ended well since this member has reported: the decision fails it on others.
    pub(super) has_ended_late: bool,
    /// What others have called, as far as this member has to follow it.
    pub(super) others: Calls,
    /// How many open operations have parts that may differ.
    uneven: u64,
}

impl History {
    /// Nothing, in a generation whose first number this is; the next operation has number `next`.
    pub(super) fn new(next: u64, first: u64) -> Self {
        Self { next, first, ..Self::default() }
    }

    /// Adds a call, and says its rolling hash and what it is, with its number.
    pub(super) fn add(&mut self, call: Fingerprint) -> (u64, Fingerprint) {
        let fingerprint = Fingerprint { sequence: self.next, ..call };
        self.next += 1;
        self.open += 1;
        self.hash = roll(self.hash, &fingerprint);
        while self.operations.len() >= REMEMBERED
            && self.operations.front().is_some_and(|oldest| !oldest.open)
        {
            self.operations.pop_front();
        }
        let besides_uneven = self.uneven > 0;
        self.uneven += u64::from(fingerprint.count == Fingerprint::UNEVEN);
        self.operations.push_back(HistoryEntry { hash: self.hash, fingerprint, open: true, besides_uneven });
        (self.hash, fingerprint)
    }

    pub(super) fn complete(&mut self, sequence: u64) {
        if sequence >= self.first {
            self.open = self.open.saturating_sub(1);
            if let Some(operation) = self.place(sequence).and_then(|at| self.operations.get_mut(at)) {
                let was_open = core::mem::take(&mut operation.open);
                let is_uneven = operation.fingerprint.count == Fingerprint::UNEVEN;
                self.uneven -= u64::from(was_open && is_uneven);
            }
        }
    }

    /// Whether an operation that is remembered, and all before it, are complete.
    pub(super) fn is_complete(&self, sequence: u64) -> bool {
        let up_to = self.place(sequence).map_or(0, |at| at + 1);
        self.operations.iter().take(up_to).all(|operation| !operation.open)
    }

    /// The number of the first operation whose caller does not know yet how it ended; if there is none, of the next one.
    pub(super) fn first_open(&self) -> u64 {
        let open = self.operations.iter().position(|operation| operation.open);
        self.next - open.map_or(0, |at| (self.operations.len() - at) as u64)
    }

    pub(super) fn entry(&self, sequence: u64) -> Option<&HistoryEntry> {
        self.operations.get(self.place(sequence)?)
    }

    /// Where an operation lies, if it is not further back.
    fn place(&self, sequence: u64) -> Option<usize> {
        let back = usize::try_from(self.next.checked_sub(sequence)?).ok()?;
        self.operations.len().checked_sub(back)
    }
}

/// An operation that was issued.
#[derive(Debug)]
pub(super) struct HistoryEntry {
    /// The rolling hash after it.
    pub(super) hash: u64,
    pub(super) fingerprint: Fingerprint,
    /// Whether its caller does not know yet how it ended.
    pub(super) open: bool,
    /// Whether one was open when it was issued whose parts may differ: of how long they are ranks hear only as they receive them.
    pub(super) besides_uneven: bool,
}
