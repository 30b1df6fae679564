//! What a schedule means: the oracle that every executor is compared with, bit for bit.
//!
//! One thread, one buffer per place, one queue per lane, one element at a time. Nothing here is fast.

mod coding;

pub use coding::Coding;

use crate::{
    collective::{Collective, Lengths, UnevenParts, Viewpoint},
    element::{DType, Element, ReduceOp, Reduction, Visitor, dispatch},
    schedule::{Chunk, Form, Origin, Place, Program, Rank, Step},
    verify::Verified,
};
use alloc::{
    borrow::Cow,
    collections::{BTreeMap, VecDeque},
    vec,
    vec::Vec,
};
use coding::{CodingLeft, bytes_of, floats};
use core::ops::Range;

/// Why there is nothing to interpret.
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
/// `count` and the lengths of inputs and outputs are as [`Collective::elements_of`] and
/// [`Collective::output_elements`] say; numbers lie in little-endian bytes. The input of a worker that has none (in a
/// broadcast, all but the root) is not looked at. The output of a worker that has none (in a reduce, all but the
/// root) is all zeroes. Of collectives that do not fold, `dtype` matters only for its size, and `op` not at all.
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

/// The same where parts differ in length: `parts` are those of each worker.
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

/// Runs an all-reduce of f32 whose schedule has coded messages. `left` has, for each worker, what was left of every element
/// before, and what is left after it; nothing, if nothing is fed back.
///
/// # Errors
/// If the inputs do not fit, or what is left has another number of elements.
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
    let input = |rank: Rank| inputs.get(rank as usize).copied().unwrap_or_default();
    let mut left = left.into_iter();
    let mut ranks: Vec<State<'_>> = (0..schedule.ranks())
        .map(|rank| State { left: left.next().unwrap_or_default(), ..task.start(rank, input(rank)) })
        .collect();
    let mut lanes = Lanes::new();
    while ranks.iter().any(|rank| rank.done.contains(&false)) {
        let mut moved = false;
        for rank in &mut ranks {
            moved |= rank.advance(task, &mut lanes);
        }
        assert!(moved, "a verified schedule does not deadlock");
    }
    ranks.truncate(schedule.workers() as usize);
    Ok(ranks.into_iter().map(|rank| rank.finish(task)).unzip())
}

/// The messages under way, by sender and receiver.
type Lanes = BTreeMap<(Rank, Rank), VecDeque<Vec<u8>>>;

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

    fn start(&self, rank: Rank, input: &'a [u8]) -> State<'a> {
        let schedule = self.schedule.schedule();
        let program = match schedule.program(rank) {
            Cow::Borrowed(program) => program.chunk_by_chunk(),
            Cow::Owned(program) => Cow::Owned(program.chunk_by_chunk().into_owned()),
        };
        let output = match self.parts.get(rank as usize) {
            Some(parts) => parts.output_elements(),
            None => self.schedule.collective().output_elements(schedule.workers(), rank, self.count),
        };
        let output = if rank < schedule.workers() { output * self.dtype.bytes() } else { 0 };
        State {
            rank,
            done: vec![false; program.steps().len()],
            slots: vec![(0, Vec::new()); program.slots().len()],
            left: CodingLeft::default(),
            input,
            output: vec![0; output],
            written: vec![false; schedule.cut().chunks() as usize],
            program,
        }
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

/// One rank, while it runs.
struct State<'a> {
    rank: Rank,
    program: Cow<'a, Program>,
    done: Vec<bool>,
    /// Of which chunk each is, and what it holds.
    slots: Vec<(Chunk, Vec<u8>)>,
    left: CodingLeft,
    input: &'a [u8],
    output: Vec<u8>,
    /// By chunk, whether the output has it.
    written: Vec<bool>,
}

impl State<'_> {
    /// Runs every step that can run; whether there was one.
    ///
    /// A step can run if its messages are there, and no earlier step that has not run conflicts with it or shares a
    /// lane and a direction with it.
    fn advance(&mut self, task: &Task<'_>, lanes: &mut Lanes) -> bool {
        let mut moved = false;
        let mut held = Held::default();
        for at in 0..self.done.len() {
            if self.done[at] {
                continue;
            }
            let uses = Uses::of(&self.program, at);
            let there = |lane: &Rank| {
                let taken = uses.receives.iter().filter(|other| *other == lane).count();
                lanes.get(&(*lane, self.rank)).is_some_and(|queue| queue.len() >= taken)
            };
            if held.allow(&uses) && uses.receives.iter().all(there) {
                self.step(task, at, lanes);
                self.done[at] = true;
                moved = true;
            } else {
                held.hold(uses);
            }
        }
        moved
    }

    fn step(&mut self, task: &Task<'_>, at: usize, lanes: &mut Lanes) {
        let rank = self.rank;
        let mut take = |lane: Rank| lanes.get_mut(&(lane, rank)).and_then(VecDeque::pop_front);
        match self.program.steps()[at] {
            Step::Send { from, to } => {
                for to in self.program.lanes(to) {
                    lanes.entry((rank, *to)).or_default().push_back(self.read(task, from).to_vec());
                }
            }
            Step::Recv { lane, chunk, into } => {
                let message = take(lane).expect("the message is there");
                self.write(task, into, chunk, message);
            }
            Step::Fold { chunk, from, into, finish } => {
                let sources = self.program.sources(from).iter().map(|source| {
                    let (values, form) = match source.from {
                        Origin::At(place) => (
                            self.read(task, place).to_vec(),
                            self.program.form(place).expect("a place of the program"),
                        ),
                        Origin::Head { lane, form } => (take(lane).expect("the message is there"), form),
                    };
                    match form {
                        Form::Coded => {
                            let values = coding::decode(task.coding.codec, &values, task.elements(chunk));
                            Operand { values: bytes_of(&values), form: Form::Plain, merges: source.merges }
                        }
                        form => Operand { values, form, merges: source.merges },
                    }
                });
                let sources: Vec<Operand> = sources.collect();
                let finish = finish.then_some(task.schedule.group().contributors());
                let folded = dispatch(task.dtype, task.op, Fold { sources: &sources, finish });
                self.write(task, into, chunk, folded);
            }
            Step::Copy { from, into } => {
                self.write(task, into, self.chunk(from), self.read(task, from).to_vec());
            }
            Step::Encode { from, into } => self.encode(task, from, into),
            Step::Decode { chunk, from, into } => {
                let coded = match from {
                    Origin::At(place) => self.read(task, place).to_vec(),
                    Origin::Head { lane, .. } => take(lane).expect("the message is there"),
                };
                let values = coding::decode(task.coding.codec.result(), &coded, task.elements(chunk));
                self.write(task, into, chunk, bytes_of(&values));
            }
        }
    }

    fn encode(&mut self, task: &Task<'_>, from: Place, into: Place) {
        let (values, chunk) = (floats(self.read(task, from)), self.chunk(from));
        let coded = match self.program.form(into) {
            Some(Form::Coded) => {
                let bytes = task.input(self.rank, chunk);
                coding::encode(task.coding, bytes.start / 4..bytes.end / 4, &values, &mut self.left)
            }
            _ => {
                let coding = Coding { codec: task.coding.codec.result(), ..task.coding };
                coding::encode(coding, 0..values.len(), &values, &mut CodingLeft::default())
            }
        };
        self.write(task, into, chunk, coded);
    }

    fn chunk(&self, place: Place) -> Chunk {
        match place {
            Place::User(chunk) => chunk,
            Place::Slot(slot) => self.slots[slot as usize].0,
        }
    }

    fn read(&self, task: &Task<'_>, place: Place) -> &[u8] {
        match place {
            Place::Slot(slot) => &self.slots[slot as usize].1,
            Place::User(chunk) if self.written.get(chunk as usize) == Some(&true) => {
                &self.output[task.output(self.rank, chunk)]
            }
            Place::User(chunk) => &self.input[task.input(self.rank, chunk)],
        }
    }

    fn write(&mut self, task: &Task<'_>, place: Place, of: Chunk, values: Vec<u8>) {
        match place {
            Place::Slot(slot) => self.slots[slot as usize] = (of, values),
            Place::User(chunk) => {
                self.output[task.output(self.rank, chunk)].copy_from_slice(&values);
                self.written[chunk as usize] = true;
            }
        }
    }

    /// The output, and what is left of what was encoded; what the program leaves as it is (the own part of an all_gather)
    /// comes from the input.
    fn finish(mut self, task: &Task<'_>) -> (Vec<u8>, CodingLeft) {
        let workers = task.schedule.workers();
        for chunk in 0..self.written.len() as Chunk {
            let promised = task.schedule.collective().result(workers, self.rank, chunk).is_some();
            if promised && !self.written[chunk as usize] {
                self.output[task.output(self.rank, chunk)]
                    .copy_from_slice(&self.input[task.input(self.rank, chunk)]);
            }
        }
        (self.output, self.left)
    }
}

/// What a step touches.
struct Uses {
    reads: Vec<Place>,
    writes: Option<Place>,
    sends: Vec<Rank>,
    receives: Vec<Rank>,
}

impl Uses {
    fn of(program: &Program, at: usize) -> Self {
        let mut uses = Self { reads: Vec::new(), writes: None, sends: Vec::new(), receives: Vec::new() };
        match program.steps()[at] {
            Step::Send { from, to } => {
                uses.reads.push(from);
                uses.sends.extend(program.lanes(to));
            }
            Step::Recv { lane, into, .. } => {
                uses.receives.push(lane);
                uses.writes = Some(into);
            }
            Step::Fold { from, into, .. } => {
                for source in program.sources(from) {
                    match source.from {
                        Origin::At(place) => uses.reads.push(place),
                        Origin::Head { lane, .. } => uses.receives.push(lane),
                    }
                }
                uses.writes = Some(into);
            }
            Step::Copy { from, into } | Step::Encode { from, into } => {
                uses.reads.push(from);
                uses.writes = Some(into);
            }
            Step::Decode { from, into, .. } => {
                match from {
                    Origin::At(place) => uses.reads.push(place),
                    Origin::Head { lane, .. } => uses.receives.push(lane),
                }
                uses.writes = Some(into);
            }
        }
        uses
    }
}

/// What earlier steps that have not run touch.
#[derive(Default)]
struct Held {
    reads: Vec<Place>,
    writes: Vec<Place>,
    sends: Vec<Rank>,
    receives: Vec<Rank>,
}

impl Held {
    fn allow(&self, uses: &Uses) -> bool {
        let written = |place: &Place| self.writes.contains(place);
        !uses.reads.iter().any(written)
            && !uses.writes.iter().any(|place| written(place) || self.reads.contains(place))
            && !uses.sends.iter().any(|lane| self.sends.contains(lane))
            && !uses.receives.iter().any(|lane| self.receives.contains(lane))
    }

    fn hold(&mut self, uses: Uses) {
        self.reads.extend(uses.reads);
        self.writes.extend(uses.writes);
        self.sends.extend(uses.sends);
        self.receives.extend(uses.receives);
    }
}

/// A source of a fold.
struct Operand {
    values: Vec<u8>,
    form: Form,
    merges: u8,
}

struct Fold<'a> {
    sources: &'a [Operand],
    /// The number of contributors, if this fold is the last.
    finish: Option<u32>,
}

impl Visitor for Fold<'_> {
    type Output = Vec<u8>;

    fn visit<R: Reduction>(self) -> Vec<u8> {
        let (plain, acc) = (R::Element::DTYPE.bytes(), R::Acc::DTYPE.bytes());
        let width = |form| if form == Form::Acc { acc } else { plain };
        let elements = self.sources[0].values.len() / width(self.sources[0].form);
        let bytes = |source: &Operand, element: usize| {
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
