//! What is left of a tensor's elements after they were encoded, and goes with the next ones.

use crate::{
    core::codec::{BLOCK, Codec, seed_of},
    sys::codec::{encode, encode_with},
};
use std::{
    fmt,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// What is left of one tensor on one rank. It is replaced when an operation is complete, and only then: one that fails, or is
/// begun again because a reducer is lost, starts from what was left before it.
#[derive(Default)]
pub(crate) struct Feedback(Mutex<Left>);

/// What is left, and what will be left when the operation under way is complete.
#[derive(Default)]
pub(crate) struct Left {
    steps: u64,
    before: Vec<f32>,
    after: Vec<f32>,
}

/// An operation's part of a tensor of which something is left.
#[derive(Clone, Debug)]
pub(crate) struct Fed {
    pub(crate) feedback: Arc<Feedback>,
    /// Which of the tensor's elements is the operation's first.
    pub(crate) first: usize,
    /// Whether the operation is all of it: what is left changes with its end.
    pub(crate) commits: bool,
}

impl Fed {
    /// A part of the operation, which begins so many elements later.
    pub(crate) fn part(&self, elements: usize) -> Self {
        Self { feedback: self.feedback.clone(), first: self.first + elements, commits: false }
    }

    /// Whether both are of one tensor: then the later operation waits for what the earlier one leaves. Parts of one operation
    /// do not wait for each other.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.feedback, &other.feedback) && (self.commits || other.commits)
    }
}

impl Feedback {
    /// Of a tensor of which this is left, after so many operations.
    pub(crate) fn of(steps: u64, left: Vec<f32>) -> Self {
        Self(Mutex::new(Left { steps, after: left.clone(), before: left }))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Left> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many elements the tensor has.
    pub(crate) fn len(&self) -> usize {
        self.lock().before.len()
    }

    /// How many operations are complete, and what is left of them.
    pub(crate) fn committed(&self) -> (u64, Vec<f32>) {
        let left = self.lock();
        (left.steps, left.before.clone())
    }

    /// An operation is complete.
    pub(crate) fn commit(&self) {
        let mut left = self.lock();
        left.steps += 1;
        let Left { before, after, .. } = &mut *left;
        std::mem::swap(before, after);
    }
}

impl fmt::Debug for Feedback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Feedback of {} elements", self.len())
    }
}

impl Left {
    /// Encodes a block, elements `range` of the tensor, with what is left of it.
    pub(crate) fn encode(&mut self, codec: Codec, range: Range<usize>, values: &[f32], coded: &mut Vec<u8>) {
        let seed = seed_of(self.steps, range.start / BLOCK);
        match (self.before.get(range.clone()), self.after.get_mut(range)) {
            (Some(before), Some(after)) => encode_with(codec, seed, values, (before, after), coded),
            _ => encode(codec, seed, values, coded),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_changes_when_an_operation_is_complete() {
        let (codec, feedback) = (Codec::Int8, Feedback::of(0, vec![0.0; 2]));
        let encode = || {
            let mut coded = Vec::new();
            feedback.lock().encode(codec, 0..2, &[127.0, 0.25], &mut coded);
            coded
        };
        let first = encode();
        assert_eq!((encode(), feedback.committed()), (first.clone(), (0, vec![0.0; 2])));
        feedback.commit();
        assert_eq!(feedback.committed(), (1, vec![0.0, 0.25]));
        feedback.commit();
        assert_ne!(first, {
            encode();
            feedback.commit();
            encode()
        });
    }
}
