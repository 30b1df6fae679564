//! One size: checked once in each placement, then timed back to back.

use super::sample::{Pattern, Sample};
use crate::{failure::Failure, numbers::elements};
use herringbone::{Collective, Communicator, ReduceOp};
use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// What a back-to-back loop of one rank took.
#[derive(Clone, Debug)]
pub(super) struct Timing {
    /// Wall time of the whole loop.
    pub(super) wall: Duration,
    /// CPU time of this process, all threads, in the same loop.
    pub(super) cpu: Duration,
    /// Wall time of each operation, ascending.
    pub(super) each: Vec<Duration>,
}

/// Times `operation` back to back: two warm-ups, from which rank 0 chooses the number of iterations, one more, the loop.
pub(super) fn time(
    communicator: &Communicator,
    budget: Duration,
    mut operation: impl FnMut() -> Result<(), Failure>,
) -> Result<Timing, Failure> {
    let began = Instant::now();
    operation()?;
    operation()?;
    let one = (began.elapsed() / 2).max(Duration::from_nanos(100));
    let wanted = (budget.as_secs_f64() / one.as_secs_f64()).clamp(3.0, 20_000.0) as i64;
    let mut agreed = [if communicator.rank() == 0 { wanted } else { 0 }];
    communicator.all_reduce(&mut agreed, ReduceOp::Sum)?;

    let mut each = Vec::with_capacity(agreed[0] as usize);
    operation()?;
    let (cpu, began) = (cpu_time(), Instant::now());
    let mut last = began;
    for _ in 0..agreed[0] {
        operation()?;
        let now = Instant::now();
        each.push(now - last);
        last = now;
    }
    let (wall, cpu) = (last - began, cpu_time() - cpu);
    each.sort_unstable();
    Ok(Timing { wall, cpu, each })
}

impl Timing {
    /// The time that `tenths` tenths of the operations stayed below.
    pub(super) fn quantile(&self, tenths: usize) -> Duration {
        self.each[(self.each.len() * tenths / 10).min(self.each.len() - 1)]
    }

    fn mean(&self) -> Duration {
        self.wall / self.each.len() as u32
    }
}

/// What this process has used of all cores together.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A zeroed buffer that starts on a page, so that all runs meet the same alignment.
pub(super) struct Pages<T> {
    memory: Vec<T>,
    start: usize,
    len: usize,
}

impl<T: Sample> Pages<T> {
    pub(super) fn new(len: usize) -> Result<Self, Failure> {
        const PAGE: usize = 4096;
        let with_slack = len.saturating_add(PAGE / size_of::<T>());
        let mut memory = Vec::new();
        memory.try_reserve_exact(with_slack).map_err(|_| Failure::Usage {
            problem: format!(
                "{} bytes are more than the memory of this machine",
                len.saturating_mul(size_of::<T>())
            ),
            hint: "write smaller sizes; every rank needs its input and its output in memory",
        })?;
        memory.resize(with_slack, T::default());
        let start = memory.as_ptr().align_offset(PAGE).min(memory.len() - len);
        Ok(Self { memory, start, len })
    }

    pub(super) fn get(&mut self) -> &mut [T] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

/// A row of the table: one size, out of place and in place.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// The larger of input and output, as nccl-tests has it.
    pub(super) bytes: usize,
    /// Elements per rank of the smaller one.
    pub(super) count: usize,
    pub(super) algorithm: String,
    /// Why it is this one.
    pub(super) why: String,
    pub(super) out_of_place: Option<Column>,
    pub(super) in_place: Option<Column>,
}

/// One placement's result, the same on every rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    /// Mean over iterations and ranks.
    pub(super) seconds: f64,
    /// Incorrect elements on all ranks.
    pub(super) wrong: u64,
}

impl Row {
    pub(super) fn wrong(&self) -> u64 {
        [self.out_of_place, self.in_place].iter().flatten().map(|column| column.wrong).sum()
    }
}

/// Whether the input's memory can take the result.
pub(super) fn has_place(collective: Collective) -> bool {
    matches!(collective, Collective::AllReduce | Collective::Broadcast { .. })
}

/// What one placement gave on one rank.
pub(super) struct Run {
    pub(super) timing: Timing,
    pub(super) wrong: u64,
}

/// One size of one collective.
pub(super) struct Case<'a, T> {
    communicator: &'a Communicator,
    collective: Collective,
    pattern: Pattern,
    /// Elements of this rank's input and output.
    input: usize,
    output: usize,
    count: usize,
    element: std::marker::PhantomData<T>,
}

impl<'a, T: Sample> Case<'a, T> {
    /// `bytes` is the size of the larger buffer; it is rounded up to whole elements, and parts for all ranks.
    pub(super) fn new(
        communicator: &'a Communicator,
        collective: Collective,
        op: ReduceOp,
        bytes: usize,
    ) -> Self {
        let ranks = communicator.size();
        let count = elements(collective, ranks, bytes, size_of::<T>());
        let rank = communicator.rank();
        let input = collective.input_elements(ranks, rank, count);
        let output = collective.output_elements(ranks, rank, count);
        // What only moves shows best what came from where.
        let op = if collective.folds() { op } else { ReduceOp::Max };
        let pattern = Pattern { op, ranks };
        Self { communicator, collective, pattern, input, output, count, element: std::marker::PhantomData }
    }

    /// Says how it is done, and checks and times each placement that the collective has.
    pub(super) fn row(&self, mapped: bool, budget: Duration) -> Result<Row, Failure> {
        let apart = !matches!(self.collective, Collective::Broadcast { .. });
        let within = has_place(self.collective);
        let choice = self.communicator.explain(self.collective, T::DTYPE, self.count)?;
        let (algorithm, why) = choice.split_once(": ").unwrap_or((&choice, ""));
        Ok(Row {
            bytes: self.whole() * size_of::<T>(),
            count: self.count,
            algorithm: algorithm.to_owned(),
            why: why.to_owned(),
            out_of_place: apart.then(|| self.agree(&self.out_of_place(budget)?)).transpose()?,
            in_place: within.then(|| self.agree(&self.one(mapped, budget)?)).transpose()?,
        })
    }

    /// Checks and times the placement that costs least: in place, if the collective has that, else out of place.
    /// `mapped`: in place, in memory that all ranks of a host map.
    pub(super) fn one(&self, mapped: bool, budget: Duration) -> Result<Run, Failure> {
        if !has_place(self.collective) {
            self.out_of_place(budget)
        } else if mapped {
            self.in_place(&mut self.communicator.allocate(self.input)?, budget)
        } else {
            self.in_place(Pages::new(self.input)?.get(), budget)
        }
    }

    fn out_of_place(&self, budget: Duration) -> Result<Run, Failure> {
        let (mut input, mut output) = (Pages::new(self.input)?, Pages::new(self.output)?);
        self.pattern.fill(input.get(), self.communicator.rank(), self.first(self.input));
        self.apart(input.get(), output.get())?;
        let wrong = self.wrong(output.get());
        input.get().fill(T::default());
        let timing = time(self.communicator, budget, || self.apart(input.get(), output.get()))?;
        Ok(Run { timing, wrong })
    }

    fn in_place(&self, buffer: &mut [T], budget: Duration) -> Result<Run, Failure> {
        self.pattern.fill(buffer, self.communicator.rank(), 0);
        self.within(buffer)?;
        let wrong = self.wrong(buffer);
        buffer.fill(T::default());
        let timing = time(self.communicator, budget, || self.within(buffer))?;
        Ok(Run { timing, wrong })
    }

    fn apart(&self, input: &[T], output: &mut [T]) -> Result<(), Failure> {
        let (communicator, op) = (self.communicator, self.pattern.op);
        Ok(match self.collective {
            Collective::AllReduce => communicator.all_reduce_into(input, output, op),
            Collective::Reduce { root } => communicator.reduce(input, output, root, op),
            Collective::ReduceScatter => communicator.reduce_scatter(input, output, op),
            Collective::AllGather => communicator.all_gather(input, output),
            Collective::Gather { root } => communicator.gather(input, output, root),
            Collective::Scatter { root } => communicator.scatter(input, output, root),
            Collective::AllToAll => communicator.all_to_all(input, output),
            Collective::Broadcast { .. } | Collective::Barrier => Ok(()),
        }?)
    }

    fn within(&self, buffer: &mut [T]) -> Result<(), Failure> {
        Ok(match self.collective {
            Collective::Broadcast { root } => self.communicator.broadcast(buffer, root),
            _ => self.communicator.all_reduce(buffer, self.pattern.op),
        }?)
    }

    /// The elements of the larger buffer, of the rank that has it.
    fn whole(&self) -> usize {
        let (collective, ranks) = (self.collective, self.communicator.size());
        let root = collective.root().unwrap_or(0);
        collective
            .input_elements(ranks, root, self.count)
            .max(collective.output_elements(ranks, root, self.count))
    }

    /// Which element of the whole buffer this rank's part starts with, if it has `len` elements.
    fn first(&self, len: usize) -> usize {
        if len < self.whole() { self.communicator.rank() as usize * len } else { 0 }
    }

    fn wrong(&self, output: &[T]) -> u64 {
        let rank = self.communicator.rank();
        match self.collective {
            Collective::Reduce { root } if root != rank => 0,
            Collective::Broadcast { root } => self.pattern.wrong_inputs(output, root, 0),
            Collective::Scatter { root } => {
                self.pattern.wrong_inputs(output, root, rank as usize * self.count)
            }
            // Part r of it starts where rank r's whole input, or its part for this rank, does.
            Collective::AllGather | Collective::Gather { .. } | Collective::AllToAll if self.count > 0 => {
                let from = |sender: u32| match self.collective {
                    Collective::AllToAll => rank as usize * self.count,
                    _ => sender as usize * self.count,
                };
                (0..)
                    .zip(output.chunks(self.count))
                    .map(|(sender, part)| self.pattern.wrong_inputs(part, sender, from(sender)))
                    .sum()
            }
            _ => self.pattern.wrong_folds(output, self.first(self.output)),
        }
    }

    /// The mean time and the sum of wrong elements, over all ranks.
    fn agree(&self, run: &Run) -> Result<Column, Failure> {
        let mut seconds = [run.timing.mean().as_secs_f64()];
        self.communicator.all_reduce(&mut seconds, ReduceOp::Average)?;
        let mut all_wrong = [run.wrong as i64];
        self.communicator.all_reduce(&mut all_wrong, ReduceOp::Sum)?;
        Ok(Column { seconds: seconds[0], wrong: all_wrong[0] as u64 })
    }
}
