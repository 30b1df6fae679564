//! The operations of a range, in the order in which its owner executed them.

use super::epoch::CopyPlace;
use alloc::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    vec::Vec,
};

/// One server's knowledge of a range's operations: their number, how many of them all copies have, and the remaining
/// ones themselves.
#[derive(Clone, Debug, Default)]
pub struct RangeLog {
    sequence: u64,
    stable: u64,
    /// Those after `stable`.
    tail: VecDeque<Vec<u8>>,
    /// Of an owner, which copies hold the range whole, and how many operations each has.
    whole: BTreeMap<u32, u64>,
    /// Of an owner, which copies get an image.
    imaged: BTreeSet<u32>,
}

impl RangeLog {
    /// The log of a range that begins with an image after `sequence` operations.
    pub fn at(sequence: u64) -> Self {
        Self { sequence, stable: sequence, ..Self::default() }
    }

    /// How many operations were executed here.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// How many of them all copies have that hold the range whole.
    pub fn stable(&self) -> u64 {
        self.stable
    }

    /// This server owns the range in a new epoch, with these copies. A copy might hold the range whole and lack
    /// operations that are not kept here any more. The owner waits for it and sends it an image, as it does for copies
    /// that do not hold the range whole.
    pub fn own(&mut self, copies: &[CopyPlace]) {
        self.whole = copies.iter().filter_map(|copy| Some((copy.server, copy.sequence?))).collect();
        let is_short = |copy: &&CopyPlace| copy.sequence.is_none_or(|sequence| sequence < self.stable);
        self.imaged = copies.iter().filter(is_short).map(|copy| copy.server).collect();
        self.settle();
    }

    /// Whether a copy gets an image.
    pub fn is_imaged(&self, server: u32) -> bool {
        self.imaged.contains(&server)
    }

    /// The owner has executed an operation. Returns its number.
    pub fn append(&mut self, operation: Vec<u8>) -> u64 {
        self.sequence += 1;
        self.tail.push_back(operation);
        self.settle();
        self.sequence
    }

    /// A copy gets an operation. Returns whether it is the next one, to be executed.
    pub fn follow(&mut self, sequence: u64, operation: &[u8]) -> bool {
        let is_next = sequence == self.sequence + 1;
        if is_next {
            self.sequence = sequence;
            self.tail.push_back(operation.to_vec());
        }
        is_next
    }

    /// A copy learns that all copies have `stable` operations.
    pub fn settled_to(&mut self, stable: u64) {
        let stable = stable.min(self.sequence);
        while self.stable < stable && self.tail.pop_front().is_some() {
            self.stable += 1;
        }
    }

    /// A copy has `sequence` operations. Returns whether more operations are stable now.
    pub fn has(&mut self, server: u32, sequence: u64) -> bool {
        let before = self.stable;
        if let Some(has) = self.whole.get_mut(&server).filter(|_| !self.imaged.contains(&server)) {
            *has = (*has).max(sequence.min(self.sequence));
            self.settle();
        }
        self.stable > before
    }

    /// A copy has an image and `sequence` operations, and is included from this moment on. Returns `false` if it got
    /// none.
    pub fn count(&mut self, server: u32, sequence: u64) -> bool {
        let is_imaged = self.imaged.remove(&server);
        if is_imaged {
            self.whole.insert(server, sequence.min(self.sequence));
        }
        is_imaged
    }

    /// The operations after `sequence`, each with its number.
    pub fn after(&self, sequence: u64) -> impl Iterator<Item = (u64, &Vec<u8>)> {
        (self.stable + 1..).zip(&self.tail).filter(move |(number, _)| *number > sequence)
    }

    fn settle(&mut self) {
        let stable = self.whole.values().copied().min().unwrap_or(self.sequence);
        self.settled_to(stable);
    }
}
