//! What is agreed about, run: tensors of a batch in one operation.

use super::{
    NamedFailure, NamedResult, adasum,
    queue::{NamedTask, Tensor},
    scale::{copy_scaled, open},
    timeline::Tracer,
};
use crate::{
    Collective, Communicator, DType, Error, Mapped, Pending, Region, Request,
    core::named::{NamedKind, NamedResponse},
};
use std::ops::Range;

/// Runs batches on a group of its own.
#[derive(Debug)]
pub(super) struct BatchRunner {
    pub(super) group: Communicator,
    /// Where tensors are put together; it only grows.
    fusion: Region,
}

/// The fusion buffer grows by so many bytes at least.
const GROWTH: usize = 4 << 20;
/// Tensors of more bytes than this go where they are: two copies of them cost more than an operation of their own.
const COPIED: u64 = 128 << 10;

/// An outcome for each task of a batch.
pub(super) type Outcomes = Vec<NamedResult>;

/// How many bytes a region can have.
fn whole(bytes: u64) -> Result<usize, NamedFailure> {
    usize::try_from(bytes)
        .ok()
        .filter(|bytes| *bytes <= isize::MAX as usize)
        .ok_or_else(|| NamedFailure::Engine(Error::unsupported("a tensor is longer than memory can be")))
}

impl BatchRunner {
    pub(super) fn new(group: Communicator) -> Self {
        Self { group, fusion: Region::zeroed(0) }
    }

    /// Runs a batch and says what each of its tasks has brought.
    ///
    /// # Errors
    /// Those of the engine.
    pub(super) fn run(
        &mut self,
        tasks: &[NamedTask],
        trace: &mut Tracer<'_>,
    ) -> Result<Outcomes, NamedFailure> {
        let Some(first) = tasks.first() else { return Ok(Vec::new()) };
        match (first.response.call.kind, tasks) {
            (NamedKind::AllReduce, tasks) => self.all_reduce(tasks, trace),
            (NamedKind::AllGather, [task]) => self.all_gather(task, trace),
            (NamedKind::AllGather, tasks) => self.all_gather_fused(tasks, trace),
            (NamedKind::Adasum, _) => tasks.iter().map(|task| self.adasum(task, trace)).collect(),
            (NamedKind::Broadcast, _) => tasks.iter().map(|task| self.broadcast(task, trace)).collect(),
            (NamedKind::AllToAll, _) => tasks.iter().map(|task| self.all_to_all(task, trace)).collect(),
            (NamedKind::ReduceScatter, _) => {
                tasks.iter().map(|task| self.reduce_scatter(task, trace)).collect()
            }
            (NamedKind::Barrier | NamedKind::Join, _) => Ok(vec![NamedResult::default(); tasks.len()]),
        }
    }

    /// A part of the fusion buffer with so many bytes.
    fn fusion(&mut self, bytes: usize) -> Region {
        if self.fusion.len() < bytes {
            // Memory that all ranks of the host map needs no further copies. Where there is not so much, any other will do.
            let mapped = self.group.allocate::<u8>(bytes.next_multiple_of(GROWTH));
            self.fusion = mapped.map_or_else(|_| Region::zeroed(bytes), Mapped::into_region);
        }
        self.fusion.part(0..bytes)
    }

    /// Begins an operation on elements like those of a task.
    fn begin(&self, task: &NamedTask, input: Region, output: Region) -> Result<Pending, NamedFailure> {
        let call = &task.response.call;
        let count = output.len() / call.dtype.bytes();
        let request = Request::new(Collective::AllReduce, call.dtype, count, input, output);
        Ok(self.group.begin(request.op(call.op).compression(task.compression()))?)
    }

    /// Large tensors each by itself, and small ones as one; all at the same time. Each element is folded as it would be alone.
    fn all_reduce(&mut self, tasks: &[NamedTask], trace: &mut Tracer<'_>) -> Result<Outcomes, NamedFailure> {
        // All ranks take the same ones, as they know the same sizes.
        let is_small = |task: &&NamedTask| task.response.call.bytes() <= COPIED;
        let (mut small, mut large): (Vec<&NamedTask>, Vec<&NamedTask>) = tasks.iter().partition(is_small);
        if small.len() == 1 {
            large.append(&mut small);
        }
        // Those that are fused have no codec, and the operation on all of them has the first one's name.
        for task in &small {
            task.owner().iter().for_each(|owner| owner.drop_of(&task.response.name, self.group.rank()));
        }
        let fused = if small.is_empty() { None } else { Some(self.put_together(&small, trace)?) };
        let all: Vec<&NamedTask> = tasks.iter().collect();
        trace.run(&all, "HERRINGBONE_ALLREDUCE", || {
            let fused = fused.iter().map(|fused| self.begin(small[0], fused.clone(), fused.clone()));
            let (mut running, mut outcome) = (Vec::with_capacity(1 + large.len()), Ok(()));
            for begun in fused.chain(large.iter().map(|task| self.begin_where_it_is(task))) {
                match begun {
                    Ok(operation) => running.push(operation),
                    Err(failure) => {
                        outcome = Err(failure);
                        break;
                    }
                }
            }
            // Also after a failure: nobody may touch the memory of operations that run.
            running.iter().fold(outcome, |outcome, operation| {
                let ended = operation.wait().map_err(NamedFailure::Engine);
                outcome.and(ended)
            })
        })?;
        if let Some(fused) = fused {
            take_apart(&small, &fused, trace)?;
        }
        large.iter().try_for_each(|task| scale_result(task))?;
        Ok(tasks.iter().map(folded_result).collect())
    }

    /// One tensor: from its input to its output, without a copy unless it is scaled.
    fn begin_where_it_is(&self, task: &NamedTask) -> Result<Pending, NamedFailure> {
        let call = &task.response.call;
        let Some(Tensor { input, output: Some(output), .. }) = &task.tensor else {
            // This rank has joined.
            let zeros = Region::zeroed(whole(call.bytes())?);
            return self.begin(task, zeros.clone(), zeros);
        };
        if call.prescale == 1.0 {
            return self.begin(task, input.clone(), output.clone());
        }
        copy_scaled(open(input)?.span(), open(output)?.span(), call.dtype, call.prescale);
        self.begin(task, output.clone(), output.clone())
    }

    /// Several tensors, one behind the other: where their results go, if these lie so, else in the fusion buffer.
    fn put_together(&mut self, tasks: &[&NamedTask], trace: &mut Tracer<'_>) -> Result<Region, NamedFailure> {
        let call = &tasks[0].response.call;
        let places = places(tasks)?;
        if let Some(outputs) = neighbours(tasks) {
            for Tensor { input, output, .. } in tasks.iter().filter_map(|task| task.tensor.as_ref()) {
                if let Some(output) = output {
                    copy_scaled(open(input)?.span(), open(output)?.span(), call.dtype, call.prescale);
                }
            }
            return Ok(outputs);
        }
        let fusion = self.fusion(places.last().map_or(0, |last| last.end));
        trace.run(tasks, "MEMCPY_IN_FUSION_BUFFER", || {
            let access = open(&fusion)?;
            for (task, place) in tasks.iter().zip(&places) {
                let to = access.span().slice(place.clone());
                match &task.tensor {
                    Some(tensor) => copy_scaled(open(&tensor.input)?.span(), to, call.dtype, call.prescale),
                    None => to.zero(),
                }
            }
            Ok(())
        })?;
        Ok(fusion)
    }

    fn adasum(&mut self, task: &NamedTask, trace: &mut Tracer<'_>) -> Result<NamedResult, NamedFailure> {
        let call = &task.response.call;
        let bytes = whole(call.bytes())?;
        let target = match &task.tensor {
            Some(Tensor { input, output: Some(output), .. }) => {
                copy_scaled(open(input)?.span(), open(output)?.span(), call.dtype, call.prescale);
                output.clone()
            }
            _ => Region::zeroed(bytes),
        };
        trace.run(&[task], "HERRINGBONE_ADASUM", || adasum::all_reduce(&self.group, call.dtype, &target))?;
        let access = open(&target)?;
        copy_scaled(access.span(), access.span(), call.dtype, call.postscale);
        Ok(NamedResult { shape: call.shape.clone(), ..NamedResult::default() })
    }

    fn broadcast(&mut self, task: &NamedTask, trace: &mut Tracer<'_>) -> Result<NamedResult, NamedFailure> {
        let call = &task.response.call;
        let Some(Tensor { input, output: Some(output), .. }) = &task.tensor else {
            return Ok(NamedResult::default());
        };
        if call.root == self.group.rank() {
            copy_scaled(open(input)?.span(), open(output)?.span(), call.dtype, 1.0);
        }
        let collective = Collective::Broadcast { root: call.root };
        trace.run(&[task], "HERRINGBONE_BCAST", || {
            let request = Request::new(collective, DType::U8, output.len(), output.clone(), output.clone());
            Ok(self.group.execute(request)?)
        })?;
        Ok(NamedResult { shape: call.shape.clone(), ..NamedResult::default() })
    }

    /// How many bytes of a tensor come from each rank.
    fn gathered(response: &NamedResponse) -> Result<Vec<usize>, NamedFailure> {
        let row = response.call.row_elements().saturating_mul(response.call.dtype.bytes() as u64);
        response.sizes.iter().map(|rows| whole(rows.saturating_mul(row))).collect()
    }

    fn gather(&self, input: Region, output: Region, parts: &[usize]) -> Result<(), NamedFailure> {
        let request = Request::new(Collective::AllGather, DType::U8, 0, input.clone(), output);
        Ok(self.group.execute(request.parts(&[input.len()], parts))?)
    }

    fn all_gather(&mut self, task: &NamedTask, trace: &mut Tracer<'_>) -> Result<Outcomes, NamedFailure> {
        let parts = Self::gathered(&task.response)?;
        let Some(Tensor { input, .. }) = &task.tensor else { return Ok(vec![NamedResult::default()]) };
        whole(task.response.bytes())?;
        let result = Region::own(vec![0u8; parts.iter().sum()]);
        trace.run(&[task], "HERRINGBONE_ALLGATHER", || {
            self.gather(input.clone(), result.region().clone(), &parts)
        })?;
        Ok(vec![gathered_result(&task.response, result.take())])
    }

    /// Several tensors: each rank's parts of all of them travel together.
    fn all_gather_fused(
        &mut self,
        tasks: &[NamedTask],
        trace: &mut Tracer<'_>,
    ) -> Result<Outcomes, NamedFailure> {
        let parts: Vec<Vec<usize>> =
            tasks.iter().map(|task| Self::gathered(&task.response)).collect::<Result<_, _>>()?;
        let ranks = self.group.size() as usize;
        let of_rank = |rank: usize| parts.iter().map(|parts| parts[rank]).sum::<usize>();
        let totals: Vec<usize> = (0..ranks).map(of_rank).collect();
        let own = totals[self.group.rank() as usize];
        let buffer = self.fusion(own + totals.iter().sum::<usize>());
        let (input, output) = (buffer.part(0..own), buffer.part(own..buffer.len()));
        let all: Vec<&NamedTask> = tasks.iter().collect();
        trace.run(&all, "MEMCPY_IN_FUSION_BUFFER", || {
            let (access, mut at) = (open(&input)?, 0);
            for tensor in tasks.iter().filter_map(|task| task.tensor.as_ref()) {
                let bytes = tensor.input.len();
                access.span().slice(at..at + bytes).copy_from(open(&tensor.input)?.span());
                at += bytes;
            }
            Ok(())
        })?;
        trace.run(&all, "HERRINGBONE_ALLGATHER", || self.gather(input.clone(), output.clone(), &totals))?;
        let mut results: Vec<Vec<u8>> =
            parts.iter().map(|parts| Vec::with_capacity(parts.iter().sum())).collect();
        trace.run(&all, "MEMCPY_OUT_FUSION_BUFFER", || {
            let (access, mut at) = (open(&output)?, 0);
            for rank in 0..ranks {
                for (result, parts) in results.iter_mut().zip(&parts) {
                    let start = result.len();
                    result.resize(start + parts[rank], 0);
                    access.span().slice(at..at + parts[rank]).read(&mut result[start..]);
                    at += parts[rank];
                }
            }
            Ok(())
        })?;
        Ok(tasks.iter().zip(results).map(|(task, data)| gathered_result(&task.response, data)).collect())
    }

    fn all_to_all(&mut self, task: &NamedTask, trace: &mut Tracer<'_>) -> Result<NamedResult, NamedFailure> {
        let call = &task.response.call;
        let Some(Tensor { input, splits, .. }) = &task.tensor else { return Ok(NamedResult::default()) };
        let mut received = vec![0u64; splits.len()];
        self.group.all_to_all(splits, &mut received)?;
        let row = call.row_elements().saturating_mul(call.dtype.bytes() as u64);
        let bytes = |rows: &[u64]| -> Result<Vec<usize>, NamedFailure> {
            rows.iter().map(|rows| whole(rows.saturating_mul(row))).collect()
        };
        let (sends, receives) = (bytes(splits)?, bytes(&received)?);
        let total = receives.iter().try_fold(0usize, |sum, bytes| sum.checked_add(*bytes));
        let result = Region::own(vec![0u8; whole(total.unwrap_or(usize::MAX) as u64)?]);
        trace.run(&[task], "HERRINGBONE_ALLTOALL", || {
            let output = result.region().clone();
            let request = Request::new(Collective::AllToAll, DType::U8, 0, input.clone(), output);
            Ok(self.group.execute(request.parts(&sends, &receives))?)
        })?;
        let shape = with_rows(&call.shape, received.iter().sum());
        Ok(NamedResult {
            data: Some(result.take()),
            shape,
            received_splits: Some(received),
            last_joined: None,
        })
    }

    /// The first ranks get a row more if the rows do not come out even; then all parts are filled up to that length.
    fn reduce_scatter(
        &mut self,
        task: &NamedTask,
        trace: &mut Tracer<'_>,
    ) -> Result<NamedResult, NamedFailure> {
        let call = &task.response.call;
        let Some(Tensor { input, .. }) = &task.tensor else { return Ok(NamedResult::default()) };
        let (ranks, rows) = (u64::from(self.group.size()), call.shape.first().copied().unwrap_or_default());
        let row = whole(call.row_elements().saturating_mul(call.dtype.bytes() as u64))?;
        let (least, longer) = (whole(rows / ranks)?, whole(rows % ranks)?);
        let part = row * (least + usize::from(longer > 0));
        let own = row * (least + usize::from((self.group.rank() as usize) < longer));
        let source = if longer == 0 && call.prescale == 1.0 {
            input.clone()
        } else {
            let filled = self.fusion(part * ranks as usize);
            let (from, to) = (open(input)?, open(&filled)?);
            let mut at = 0;
            for rank in 0..ranks as usize {
                let bytes = row * (least + usize::from(rank < longer));
                let place = to.span().slice(rank * part..(rank + 1) * part);
                copy_scaled(
                    from.span().slice(at..at + bytes),
                    place.slice(0..bytes),
                    call.dtype,
                    call.prescale,
                );
                place.slice(bytes..part).zero();
                at += bytes;
            }
            drop(to);
            filled
        };
        let result = Region::own(vec![0u8; part]);
        trace.run(&[task], "HERRINGBONE_REDUCESCATTER", || {
            let (count, output) = (part / call.dtype.bytes(), result.region().clone());
            let request = Request::new(Collective::ReduceScatter, call.dtype, count, source.clone(), output);
            Ok(self.group.execute(request.op(call.op))?)
        })?;
        let access = open(result.region())?;
        copy_scaled(access.span(), access.span(), call.dtype, call.postscale);
        drop(access);
        let mut data = result.take();
        data.truncate(own);
        let own_rows = rows / ranks + u64::from((self.group.rank() as usize) < longer);
        Ok(NamedResult {
            data: Some(data),
            shape: with_rows(&call.shape, own_rows),
            ..NamedResult::default()
        })
    }
}

/// Where each of some tensors lies, one behind the other.
fn places(tasks: &[&NamedTask]) -> Result<Vec<Range<usize>>, NamedFailure> {
    let mut end = 0u64;
    let place = |task: &&NamedTask| {
        let start = whole(end)?;
        end = end.saturating_add(task.response.call.bytes());
        Ok(start..whole(end)?)
    };
    tasks.iter().map(place).collect()
}

/// The results of these tasks as one region, if they lie one behind the other.
fn neighbours(tasks: &[&NamedTask]) -> Option<Region> {
    let output = |task: &&NamedTask| task.tensor.as_ref()?.output.clone();
    Region::spanning(&tasks.iter().map(output).collect::<Option<Vec<_>>>()?)
}

/// Gives each task its result, out of what has all of them.
fn take_apart(tasks: &[&NamedTask], fused: &Region, trace: &mut Tracer<'_>) -> Result<(), NamedFailure> {
    if neighbours(tasks).is_some() {
        return tasks.iter().try_for_each(|task| scale_result(task));
    }
    let call = &tasks[0].response.call;
    trace.run(tasks, "MEMCPY_OUT_FUSION_BUFFER", || {
        let access = open(fused)?;
        for (task, place) in tasks.iter().zip(places(tasks)?) {
            if let Some(Tensor { output: Some(output), .. }) = &task.tensor {
                copy_scaled(access.span().slice(place), open(output)?.span(), call.dtype, call.postscale);
            }
        }
        Ok(())
    })
}

/// Multiplies the result that a task has where it belongs.
fn scale_result(task: &NamedTask) -> Result<(), NamedFailure> {
    let call = &task.response.call;
    if call.postscale != 1.0
        && let Some(Tensor { output: Some(output), .. }) = &task.tensor
    {
        let access = open(output)?;
        copy_scaled(access.span(), access.span(), call.dtype, call.postscale);
    }
    Ok(())
}

fn folded_result(task: &NamedTask) -> NamedResult {
    NamedResult { shape: task.response.call.shape.clone(), ..NamedResult::default() }
}

fn gathered_result(response: &NamedResponse, data: Vec<u8>) -> NamedResult {
    let shape = with_rows(&response.call.shape, response.sizes.iter().sum());
    NamedResult { data: Some(data), shape, ..NamedResult::default() }
}

/// The dimensions of so many rows.
fn with_rows(shape: &[u64], rows: u64) -> Vec<u64> {
    [rows].into_iter().chain(shape.iter().skip(1).copied()).collect()
}
