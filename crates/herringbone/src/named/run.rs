//! Runs the agreed operations: the tensors of a batch as one operation.

use super::{
    NamedFailure, NamedResult, adasum,
    fusion::{self, FusionBuffer, scale_result, whole},
    queue::{NamedTask, Tensor},
    scale::{copy_scaled, open},
    timeline::Tracer,
};
use crate::{
    Collective, Communicator, DType, Error, ErrorKind, Pending, ReduceOp, Region, Request,
    core::named::{NamedKind, NamedResponse},
    memory,
};

/// Runs batches on a group of its own.
#[derive(Debug)]
pub(super) struct BatchRunner {
    pub(super) group: Communicator,
    fusion: FusionBuffer,
}

/// Tensors of more bytes than this go where they are: two copies of them cost more than an operation of their own.
const COPIED: u64 = 128 << 10;

/// An outcome for each task of a batch.
pub(super) type Outcomes = Vec<NamedResult>;

/// How many bytes these are, as far as memory can be that long: there never is more.
fn capped(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

impl BatchRunner {
    pub(super) fn new(group: Communicator) -> Self {
        Self { group, fusion: FusionBuffer::default() }
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

    /// Has an operation fail on all ranks, as this one lacks so many bytes for it. What it is folds, or moves bytes in parts.
    ///
    /// # Errors
    /// That of the engine.
    fn lack<T>(
        &self,
        collective: Collective,
        dtype: DType,
        op: ReduceOp,
        bytes: usize,
    ) -> Result<T, NamedFailure> {
        let nothing = Region::lacking(bytes);
        let count = bytes / dtype.bytes();
        let request = Request::new(collective, dtype, count, nothing.clone(), nothing).op(op);
        self.group.execute(if collective.folds() { request } else { request.parts(&[], &[]) })?;
        Err(NamedFailure::Engine(Error::new(ErrorKind::Closed)))
    }

    /// Begins an operation on so many bytes of elements like those of a task, in an input and an output.
    fn begin(
        &self,
        task: &NamedTask,
        bytes: usize,
        input: Region,
        output: Region,
    ) -> Result<Pending, NamedFailure> {
        let call = &task.response.call;
        let count = bytes / call.dtype.bytes();
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
        let places = fusion::places(&small)?;
        let bytes = places.last().map_or(0, |last| last.end);
        let fused = if small.is_empty() {
            None
        } else {
            Some(self.fusion.copy_in(&self.group, &small, &places, trace)?)
        };
        let all: Vec<&NamedTask> = tasks.iter().collect();
        trace.run(&all, "HERRINGBONE_ALLREDUCE", || {
            let fused = fused.iter().map(|fused| self.begin(small[0], bytes, fused.clone(), fused.clone()));
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
            fusion::copy_out(&small, &fused, trace)?;
        }
        large.iter().try_for_each(|task| scale_result(task))?;
        let result = |task: &NamedTask| NamedResult {
            shape: task.response.call.shape.clone(),
            ..NamedResult::default()
        };
        Ok(tasks.iter().map(result).collect())
    }

    /// One tensor: from its input to its output, without a copy unless it is scaled.
    fn begin_where_it_is(&self, task: &NamedTask) -> Result<Pending, NamedFailure> {
        let call = &task.response.call;
        let Some(Tensor { input, output: Some(output), .. }) = &task.tensor else {
            // This rank has joined.
            let bytes = capped(call.bytes());
            let zeros = memory::region(bytes).unwrap_or_else(|| Region::lacking(bytes));
            return self.begin(task, bytes, zeros.clone(), zeros);
        };
        if call.prescale == 1.0 || task.lacks() {
            return self.begin(task, output.len(), input.clone(), output.clone());
        }
        copy_scaled(open(input)?.span(), open(output)?.span(), call.dtype, call.prescale);
        self.begin(task, output.len(), output.clone(), output.clone())
    }

    fn adasum(&mut self, task: &NamedTask, trace: &mut Tracer<'_>) -> Result<NamedResult, NamedFailure> {
        let call = &task.response.call;
        let bytes = whole(call.bytes())?;
        let target = match &task.tensor {
            Some(Tensor { output: Some(output), .. }) => Some(output.clone()),
            _ => memory::region(bytes),
        };
        let memory = if task.lacks() { None } else { target.zip(memory::region(bytes)) };
        // Its messages are between two ranks at a time, so all ranks agree first that there is memory.
        let agreed = if memory.is_some() { Region::zeroed(0) } else { Region::lacking(bytes) };
        self.group.execute(Request::new(Collective::Barrier, DType::U8, 0, agreed.clone(), agreed))?;
        let Some((target, second)) = memory else {
            return Err(NamedFailure::Engine(Error::new(ErrorKind::Closed)));
        };
        if let Some(Tensor { input, .. }) = &task.tensor {
            copy_scaled(open(input)?.span(), open(&target)?.span(), call.dtype, call.prescale);
        }
        trace.run(&[task], "HERRINGBONE_ADASUM", || {
            adasum::all_reduce(&self.group, call.dtype, &target, &second)
        })?;
        let access = open(&target)?;
        copy_scaled(access.span(), access.span(), call.dtype, call.postscale);
        Ok(NamedResult { shape: call.shape.clone(), ..NamedResult::default() })
    }

    fn broadcast(&mut self, task: &NamedTask, trace: &mut Tracer<'_>) -> Result<NamedResult, NamedFailure> {
        let call = &task.response.call;
        let Some(Tensor { input, output: Some(output), .. }) = &task.tensor else {
            return Ok(NamedResult::default());
        };
        let buffer = if task.lacks() { Region::lacking(output.len()) } else { output.clone() };
        if call.root == self.group.rank() && !task.lacks() {
            copy_scaled(open(input)?.span(), open(output)?.span(), call.dtype, 1.0);
        }
        let collective = Collective::Broadcast { root: call.root };
        trace.run(&[task], "HERRINGBONE_BCAST", || {
            let request = Request::new(collective, DType::U8, output.len(), buffer.clone(), buffer.clone());
            Ok(self.group.execute(request)?)
        })?;
        Ok(NamedResult { shape: call.shape.clone(), ..NamedResult::default() })
    }

    /// How many bytes of a tensor come from each rank.
    fn gathered(response: &NamedResponse) -> Vec<usize> {
        let row = response.call.row_elements().saturating_mul(response.call.dtype.bytes() as u64);
        response.sizes.iter().map(|rows| capped(rows.saturating_mul(row))).collect()
    }

    fn gather(&self, input: Region, output: Region, parts: &[usize]) -> Result<(), NamedFailure> {
        let request = Request::new(Collective::AllGather, DType::U8, 0, input.clone(), output);
        Ok(self.group.execute(request.parts(&[input.len()], parts))?)
    }

    fn all_gather(&mut self, task: &NamedTask, trace: &mut Tracer<'_>) -> Result<Outcomes, NamedFailure> {
        let parts = Self::gathered(&task.response);
        let Some(Tensor { input, .. }) = &task.tensor else { return Ok(vec![NamedResult::default()]) };
        let (Some(result), false) = (memory::zeros(total(&parts)), task.lacks()) else {
            return self.lack(Collective::AllGather, DType::U8, ReduceOp::Sum, total(&parts));
        };
        let result = Region::own(result);
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
        let parts: Vec<Vec<usize>> = tasks.iter().map(|task| Self::gathered(&task.response)).collect();
        let ranks = self.group.size() as usize;
        let of_rank = |rank: usize| total(parts.iter().map(|parts| &parts[rank]));
        let totals: Vec<usize> = (0..ranks).map(of_rank).collect();
        let own = totals[self.group.rank() as usize];
        let bytes = own.saturating_add(total(&totals));
        let results: Option<Vec<Vec<u8>>> = parts.iter().map(|parts| memory::zeros(total(parts))).collect();
        let lacks = tasks.iter().any(NamedTask::lacks);
        let (Some(buffer), Some(mut results), false) = (self.fusion.part(&self.group, bytes), results, lacks)
        else {
            return self.lack(Collective::AllGather, DType::U8, ReduceOp::Sum, bytes);
        };
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
        trace.run(&all, "MEMCPY_OUT_FUSION_BUFFER", || {
            let (access, mut at) = (open(&output)?, 0);
            let mut ends = vec![0; results.len()];
            for rank in 0..ranks {
                for ((result, end), parts) in results.iter_mut().zip(&mut ends).zip(&parts) {
                    let place = *end..*end + parts[rank];
                    *end = place.end;
                    access.span().slice(at..at + parts[rank]).read(&mut result[place]);
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
        let bytes = |rows: &[u64]| -> Vec<usize> {
            rows.iter().map(|rows| capped(rows.saturating_mul(row))).collect()
        };
        let (sends, receives) = (bytes(splits), bytes(&received));
        let (Some(result), false) = (memory::zeros(total(&receives)), task.lacks()) else {
            return self.lack(Collective::AllToAll, DType::U8, ReduceOp::Sum, total(&receives));
        };
        let result = Region::own(result);
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
        let (Some(result), false) = (memory::zeros(part), task.lacks()) else {
            return self.lack(Collective::ReduceScatter, call.dtype, call.op, part);
        };
        let source = if longer == 0 && call.prescale == 1.0 {
            input.clone()
        } else {
            let Some(filled) = self.fusion.part(&self.group, part * ranks as usize) else {
                return self.lack(Collective::ReduceScatter, call.dtype, call.op, part);
            };
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
        let result = Region::own(result);
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

/// As many bytes as these parts have.
fn total<'a>(parts: impl IntoIterator<Item = &'a usize>) -> usize {
    parts.into_iter().fold(0, |sum, part| sum.saturating_add(*part))
}

fn gathered_result(response: &NamedResponse, data: Vec<u8>) -> NamedResult {
    let shape = with_rows(&response.call.shape, response.sizes.iter().sum());
    NamedResult { data: Some(data), shape, ..NamedResult::default() }
}

/// The dimensions of so many rows.
fn with_rows(shape: &[u64], rows: u64) -> Vec<u64> {
    [rows].into_iter().chain(shape.iter().skip(1).copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        core::{codec::Codec, named::NamedCall},
        local,
    };

    /// A byte to be gathered, as all ranks are told that each has so many.
    fn gathered(name: &str, rows: [u64; 2]) -> NamedTask {
        let call = NamedCall {
            kind: NamedKind::AllGather,
            dtype: DType::U8,
            op: ReduceOp::Sum,
            shape: vec![1],
            root: 0,
            prescale: 1.0,
            postscale: 1.0,
            codec: Codec::Plain,
        };
        let response =
            NamedResponse { name: name.to_owned(), call, sizes: rows.to_vec(), group: None, priority: 0 };
        let tensor = Tensor { input: Region::zeroed(1), output: None, splits: Vec::new(), residuals: None };
        NamedTask { response, tensor: Some(tensor), state: None, since: None }
    }

    /// A rank that says another number of rows than it has is not believed to the point of an abort.
    #[test]
    fn more_than_memory_can_hold_fails_on_all_ranks_and_the_group_goes_on() {
        std::thread::scope(|scope| {
            for comm in local(2).unwrap() {
                scope.spawn(move || {
                    let mut runner = BatchRunner::new(comm);
                    for rows in [1 << 50, u64::MAX] {
                        for fused in [1, 2] {
                            let tasks: Vec<_> = (0..fused).map(|_| gathered("all", [rows, 1])).collect();
                            let failure = runner.run(&tasks, &mut Tracer(None)).unwrap_err();
                            assert!(failure.is_lack_of_memory(), "{failure}");
                        }
                    }
                    let outcomes = runner.run(&[gathered("all", [1, 1])], &mut Tracer(None)).unwrap();
                    assert_eq!(outcomes[0].data, Some(vec![0, 0]));
                });
            }
        });
    }
}
