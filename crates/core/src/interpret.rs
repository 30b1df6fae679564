//! The meaning of a schedule: the oracle with which every executor is compared, bit for bit.
//!
//! One thread, one buffer per place, one queue per lane, one element at a time. Nothing here is fast. `lockstep` runs the steps, and
//! knows nothing of numbers.

mod coding;
pub(crate) mod lockstep;

pub use coding::Coding;

use crate::{
    collective::{Collective, Lengths, UnevenParts, Viewpoint},
    element::{DType, Element, ReduceOp, Reduction, Visitor, dispatch},
    schedule::{Chunk, Form, Rank},
    verify::Verified,
};
use alloc::{borrow::Cow, vec, vec::Vec};
use coding::{CodingLeft, bytes_of, floats};
use core::ops::Range;
use lockstep::{Domain, FoldOperand, Lockstep};

/// Why a schedule cannot be interpreted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InterpretError {
    /// There must be one input per worker.
    #[error("{given} inputs for {workers} workers")]
    Inputs {
        /// How many inputs there are.
        given: usize,
        /// How many workers there are.
        workers: u32,
    },
    /// An input has the wrong length.
    #[error("the input of rank {rank} has {given} bytes; {needed} are needed")]
    InputLength {
        /// Whose input.
        rank: Rank,
        /// Its length.
        given: usize,
        /// The length that the collective asks for.
        needed: usize,
    },
    /// No buffer can hold this many elements.
    #[error("{count} elements are too many for memory")]
    TooLong {
        /// The number of elements.
        count: usize,
    },
}

/// Runs a schedule on numbers, and gives every worker's output.
///
/// `count` and the lengths of inputs and outputs follow [`Collective::elements_of`] and
/// [`Collective::output_elements`]. Numbers are little-endian bytes. The input of a worker that has none (in a
/// broadcast, all but the root) is ignored. The output of a worker that has none (in a reduce, all but the root) is all
/// zeroes. Collectives that do not fold use only the size of `dtype`, and ignore `op`.
///
/// # Errors
/// If the inputs do not fit.
///
/// [`Collective::elements_of`]: crate::collective::Collective::elements_of
/// [`Collective::output_elements`]: crate::collective::Collective::output_elements
pub fn interpret(
    schedule: &Verified,
    dtype: DType,
    op: ReduceOp,
    count: usize,
    inputs: &[&[u8]],
) -> Result<Vec<Vec<u8>>, InterpretError> {
    let (workers, most_inputs) = (schedule.workers(), schedule.group().most_inputs());
    let buffers = workers.max(most_inputs) as usize;
    if count.checked_mul(buffers).is_none_or(|all| all > isize::MAX as usize / 8) {
        return Err(InterpretError::TooLong { count });
    }
    let task = Task { schedule, dtype, op, count, parts: &[], coding: Coding::default() };
    Ok(run(&task, inputs, Vec::new())?.0)
}

/// The same if parts differ in length: `parts` has the length of each worker's part.
///
/// # Errors
/// If the inputs do not fit.
pub fn interpret_uneven(
    schedule: &Verified,
    dtype: DType,
    parts: &[UnevenParts],
    inputs: &[&[u8]],
) -> Result<Vec<Vec<u8>>, InterpretError> {
    if parts.len() != schedule.workers() as usize {
        return Err(InterpretError::Inputs { given: parts.len(), workers: schedule.workers() });
    }
    let task = Task { schedule, dtype, op: ReduceOp::Sum, count: 0, parts, coding: Coding::default() };
    Ok(run(&task, inputs, Vec::new())?.0)
}

/// Runs an all-reduce of f32 whose schedule has coded messages. `left` has each worker's error of every element, before
/// the call and after it. It is empty without error feedback.
///
/// # Errors
/// If the inputs do not fit, or `left` has another number of elements.
pub fn interpret_coded(
    schedule: &Verified,
    op: ReduceOp,
    count: usize,
    coding: Coding,
    inputs: &[&[u8]],
    left: &mut [Vec<f32>],
) -> Result<Vec<Vec<u8>>, InterpretError> {
    debug_assert_eq!(schedule.collective(), Collective::AllReduce);
    if let Some(rank) = left.iter().position(|left| left.len() != count) {
        let (given, needed) = (left[rank].len() * 4, count * 4);
        return Err(InterpretError::InputLength { rank: rank as u32, given, needed });
    }
    let task = Task { schedule, dtype: DType::F32, op, count, parts: &[], coding };
    let kept = left.iter().map(|left| CodingLeft { before: left.clone(), after: left.clone() }).collect();
    let (outputs, kept) = run(&task, inputs, kept)?;
    for (left, kept) in left.iter_mut().zip(kept) {
        *left = kept.after;
    }
    Ok(outputs)
}

/// The outputs of all workers, and what is left of what each has encoded.
type Ends = (Vec<Vec<u8>>, Vec<CodingLeft>);

fn run(task: &Task<'_>, inputs: &[&[u8]], left: Vec<CodingLeft>) -> Result<Ends, InterpretError> {
    let schedule = task.schedule;
    task.check(inputs)?;
    let mut left = left.into_iter();
    let left = (0..schedule.ranks()).map(|_| left.next().unwrap_or_default()).collect();
    let mut numbers = Numbers { task, inputs, left };
    let mut ranks = Lockstep::new(schedule.schedule());
    while !ranks.is_done() {
        ranks.round(&mut numbers);
    }
    let outputs = (0..schedule.workers()).map(|worker| numbers.output(&ranks, worker)).collect();
    numbers.left.truncate(schedule.workers() as usize);
    Ok((outputs, numbers.left))
}

/// What is to be done, for all ranks.
struct Task<'a> {
    schedule: &'a Verified,
    dtype: DType,
    op: ReduceOp,
    count: usize,
    /// Per worker, where they differ.
    parts: &'a [UnevenParts],
    coding: Coding,
}

impl<'a> Task<'a> {
    fn check(&self, inputs: &[&[u8]]) -> Result<(), InterpretError> {
        let (collective, workers) = (self.schedule.collective(), self.schedule.workers());
        if inputs.len() != workers as usize {
            return Err(InterpretError::Inputs { given: inputs.len(), workers });
        }
        for (rank, input) in inputs.iter().enumerate() {
            let (rank, given) = (rank as Rank, input.len());
            let elements = match self.parts.get(rank as usize) {
                Some(parts) => parts.input_elements(),
                None => collective.elements_of(self.schedule.group(), rank, self.count),
            };
            let needed = elements * self.dtype.bytes();
            let read =
                (0..self.schedule.cut().chunks()).any(|chunk| collective.has_input(workers, rank, chunk));
            if read && given != needed {
                return Err(InterpretError::InputLength { rank, given, needed });
            }
        }
        Ok(())
    }

    fn place(&self, worker: Rank) -> (Viewpoint<'_>, Lengths<'_>) {
        let (count, element_bytes) = (self.count, self.dtype.bytes());
        let even = Lengths::Even { count, element_bytes };
        let sizes = self.parts.get(worker as usize).map_or(even, Lengths::Uneven);
        (Viewpoint { cut: self.schedule.cut(), workers: self.schedule.workers(), worker }, sizes)
    }

    /// Where a chunk lies in a worker's input, in bytes.
    fn input(&self, worker: Rank, chunk: Chunk) -> Range<usize> {
        let ((at, sizes), bytes) = (self.place(worker), self.dtype.bytes());
        let range = self.schedule.collective().input_range(at, chunk, &sizes);
        range.start * bytes..range.end * bytes
    }

    /// How many elements a chunk of an all-reduce has.
    fn elements(&self, chunk: Chunk) -> usize {
        self.schedule.cut().range(chunk, self.count, self.dtype.bytes()).len()
    }

    /// Where a chunk lies in a worker's output, in bytes.
    fn output(&self, worker: Rank, chunk: Chunk) -> Range<usize> {
        let ((at, sizes), bytes) = (self.place(worker), self.dtype.bytes());
        let range = self.schedule.collective().output_range(at, chunk, &sizes);
        range.start * bytes..range.end * bytes
    }
}

/// Steps on numbers, in little-endian bytes.
struct Numbers<'a> {
    task: &'a Task<'a>,
    inputs: &'a [&'a [u8]],
    /// By rank.
    left: Vec<CodingLeft>,
}

impl Numbers<'_> {
    /// A worker's output; what its program leaves as it is (the own part of an all_gather) comes from the input.
    fn output(&mut self, ranks: &Lockstep<'_, Vec<u8>>, worker: Rank) -> Vec<u8> {
        let task = self.task;
        let (collective, workers) = (task.schedule.collective(), task.schedule.workers());
        let elements = match task.parts.get(worker as usize) {
            Some(parts) => parts.output_elements(),
            None => collective.output_elements(workers, worker, task.count),
        };
        let mut output = vec![0; elements * task.dtype.bytes()];
        for chunk in 0..task.schedule.cut().chunks() {
            if collective.result(workers, worker, chunk).is_some() {
                let written = ranks.output(worker, chunk).cloned();
                let value = written.unwrap_or_else(|| self.input(worker, chunk));
                output[task.output(worker, chunk)].copy_from_slice(&value);
            }
        }
        output
    }
}

impl Domain for Numbers<'_> {
    type Value = Vec<u8>;

    fn input(&mut self, worker: Rank, place: Chunk) -> Vec<u8> {
        let input = self.inputs.get(worker as usize).copied().unwrap_or_default();
        input[self.task.input(worker, place)].to_vec()
    }

    fn fold(&mut self, chunk: Chunk, sources: &[FoldOperand<Vec<u8>>], finish: bool) -> Vec<u8> {
        let task = self.task;
        let values = sources.iter().map(|source| match source.form {
            Form::Coded => {
                let values = coding::decode(task.coding.codec, &source.value, task.elements(chunk));
                (Cow::Owned(bytes_of(&values)), Form::Plain, source.merges)
            }
            form => (Cow::Borrowed(&source.value[..]), form, source.merges),
        });
        let sources: Vec<Source<'_>> =
            values.map(|(values, form, merges)| Source { values, form, merges }).collect();
        let finish = finish.then_some(task.schedule.group().contributors());
        dispatch(task.dtype, task.op, Fold { sources: &sources, finish })
    }

    fn encode(&mut self, rank: Rank, chunk: Chunk, value: &Vec<u8>, into: Form) -> Vec<u8> {
        let (values, coding) = (floats(value), self.task.coding);
        match into {
            Form::Coded => {
                let bytes = self.task.input(rank, chunk);
                coding::encode(coding, bytes.start / 4..bytes.end / 4, &values, &mut self.left[rank as usize])
            }
            _ => {
                let coding = Coding { codec: coding.codec.result(), ..coding };
                coding::encode(coding, 0..values.len(), &values, &mut CodingLeft::default())
            }
        }
    }

    fn decode(&mut self, chunk: Chunk, coded: &Vec<u8>) -> Vec<u8> {
        bytes_of(&coding::decode(self.task.coding.codec.result(), coded, self.task.elements(chunk)))
    }
}

/// A source of a fold, whose values are elements or partial sums.
struct Source<'a> {
    values: Cow<'a, [u8]>,
    form: Form,
    merges: u8,
}

struct Fold<'a> {
    sources: &'a [Source<'a>],
    /// The number of contributors, if this fold is the last.
    finish: Option<u32>,
}

impl Visitor for Fold<'_> {
    type Output = Vec<u8>;

    fn visit<R: Reduction>(self) -> Vec<u8> {
        let (plain, acc) = (R::Element::DTYPE.bytes(), R::Acc::DTYPE.bytes());
        let width = |form| if form == Form::Acc { acc } else { plain };
        let elements = self.sources[0].values.len() / width(self.sources[0].form);
        let bytes = |source: &Source<'_>, element: usize| {
            let width = width(source.form);
            element * width..(element + 1) * width
        };
        let mut folded = Vec::new();
        for element in 0..elements {
            let mut stack: Vec<R::Acc> = Vec::new();
            for source in self.sources {
                let value = &source.values[bytes(source, element)];
                let mut top = match source.form {
                    Form::Acc => R::Acc::load(value),
                    _ => R::lift(R::Element::load(value)),
                };
                for _ in 0..source.merges {
                    let below = stack.pop().expect("the shape is verified");
                    top = R::merge(below, top);
                }
                stack.push(top);
            }
            let at = folded.len();
            match self.finish {
                Some(contributors) => {
                    folded.resize(at + plain, 0);
                    R::finish(stack[0], contributors).store(&mut folded[at..]);
                }
                None => {
                    folded.resize(at + acc, 0);
                    stack[0].store(&mut folded[at..]);
                }
            }
        }
        folded
    }
}
