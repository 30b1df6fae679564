//! Error feedback: the error of a tensor's encoded elements, which is added to the next ones.

use crate::{
    core::codec::{BLOCK, Codec, seed_of},
    memory,
    sys::codec::{encode, encode_with},
};
use std::{
    collections::BTreeSet,
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
    elements: usize,
    /// Empty until an operation has [taken the memory](Fed::allocate).
    before: Vec<f32>,
    after: Vec<f32>,
    /// The next operation's number.
    next: u64,
    /// The operations that have been called and are not over.
    open: BTreeSet<u64>,
}

/// An operation on a tensor of which something is left. It is over when it ends, or is dropped without having begun.
#[derive(Debug)]
struct OperationOnTensor {
    feedback: Arc<Feedback>,
    number: u64,
}

/// An operation's part of a tensor of which something is left.
#[derive(Clone, Debug)]
pub(crate) struct Fed {
    operation: Arc<OperationOnTensor>,
    /// Which of the tensor's elements is the part's first.
    pub(crate) first: usize,
}

impl Fed {
    /// All of a tensor, in the next operation on it.
    pub(crate) fn next(feedback: &Arc<Feedback>) -> Self {
        let mut left = feedback.lock();
        let number = left.next;
        left.next += 1;
        left.open.insert(number);
        let operation = OperationOnTensor { feedback: feedback.clone(), number };
        Self { operation: Arc::new(operation), first: 0 }
    }

    /// A part of the operation, which begins so many elements later.
    pub(crate) fn part(&self, elements: usize) -> Self {
        Self { operation: self.operation.clone(), first: self.first + elements }
    }

    /// Whether all older operations on the tensor are over, so that it is known what they leave.
    pub(crate) fn may_begin(&self) -> bool {
        self.lock().open.first().is_none_or(|oldest| *oldest >= self.operation.number)
    }

    /// Takes the memory for what is left.
    ///
    /// # Errors
    /// How many bytes the system has not given.
    pub(crate) fn allocate(&self) -> Result<(), u64> {
        let mut left = self.lock();
        let Left { elements, before, after, .. } = &mut *left;
        for left in [before, after] {
            if left.len() < *elements {
                let bytes = elements.saturating_mul(size_of::<f32>()) as u64;
                *left = memory::zeros(*elements).ok_or(bytes)?;
            }
        }
        Ok(())
    }

    /// The operation is over: if it is complete, what it leaves counts from now on.
    pub(crate) fn end(&self, complete: bool) {
        self.operation.end(complete);
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Left> {
        self.operation.feedback.lock()
    }
}

impl OperationOnTensor {
    fn end(&self, complete: bool) {
        let mut left = self.feedback.lock();
        if left.open.remove(&self.number) && complete {
            left.steps += 1;
            let Left { before, after, .. } = &mut *left;
            std::mem::swap(before, after);
        }
    }
}

impl Drop for OperationOnTensor {
    fn drop(&mut self) {
        self.end(false);
    }
}

impl Feedback {
    /// Of a tensor of which this is left, after so many operations.
    pub(crate) fn of(steps: u64, left: Vec<f32>) -> Self {
        let elements = left.len();
        Self(Mutex::new(Left { steps, elements, after: left.clone(), before: left, ..Left::default() }))
    }

    /// Of a new tensor of so many elements.
    pub(crate) fn new(elements: usize) -> Self {
        Self(Mutex::new(Left { elements, ..Left::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, Left> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many elements the tensor has.
    pub(crate) fn len(&self) -> usize {
        self.lock().elements
    }

    /// Multiplies what is left of each element. An infinite product becomes the largest f32 with its sign, and one that is NaN 0.
    pub(crate) fn scale(&self, factor: f32) {
        let scaled = |left: f32| match left * factor {
            product if product.is_nan() => 0.0,
            product => product.clamp(-f32::MAX, f32::MAX),
        };
        self.lock().before.iter_mut().for_each(|left| *left = scaled(*left));
    }

    /// Whether nothing is left of any element.
    pub(crate) fn is_zero(&self) -> bool {
        self.lock().before.iter().all(|left| *left == 0.0)
    }

    /// Whether there is memory for what is left: not before the first operation begins.
    pub(crate) fn has_begun(&self) -> bool {
        let left = self.lock();
        left.before.len() == left.elements
    }

    /// How many operations are complete, and what is left of them.
    pub(crate) fn committed(&self) -> (u64, Vec<f32>) {
        let left = self.lock();
        (left.steps, left.before.clone())
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
            (Some(before), Some(after)) => encode_with(codec, seed, values, before, after, coded),
            _ => encode(codec, seed, values, coded),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encodes in an operation.
    fn encoded(fed: &Fed) -> Vec<u8> {
        let mut coded = Vec::new();
        fed.lock().encode(Codec::Int8, 0..2, &[127.0, 0.375], &mut coded);
        coded
    }

    #[test]
    fn what_is_left_changes_when_an_operation_is_complete() {
        let feedback = Arc::new(Feedback::of(0, vec![0.0; 2]));
        let operation = Fed::next(&feedback);
        let first = encoded(&operation);
        assert_eq!((encoded(&operation), feedback.committed()), (first.clone(), (0, vec![0.0; 2])));
        operation.end(true);
        operation.end(true);
        assert_eq!(feedback.committed(), (1, vec![0.0, 0.375]));
        let failing = Fed::next(&feedback);
        assert_ne!(encoded(&failing), first, "0.75 is rounded to 1");
        failing.end(false);
        assert_eq!(feedback.committed(), (1, vec![0.0, 0.375]));
        drop((operation, failing));
        assert_eq!(feedback.committed(), (1, vec![0.0, 0.375]));
    }

    #[test]
    fn operations_on_a_tensor_wait_for_older_ones() {
        let feedback = Arc::new(Feedback::of(0, vec![0.0; 2]));
        let [first, second, third] = [(); 3].map(|()| Fed::next(&feedback));
        let may_begin = || [&first, &second, &third].map(Fed::may_begin);
        assert_eq!(may_begin(), [true, false, false]);
        assert!(first.part(1).may_begin() && !second.part(1).may_begin());
        first.end(true);
        assert_eq!(may_begin(), [true, true, false]);
        drop(second);
        assert!(third.may_begin(), "one that never began is waited for no longer");
    }
}
