//! The fusion buffer: several small tensors become one operation.

use super::{
    NamedFailure,
    queue::{NamedTask, Tensor},
    scale::{copy_scaled, open},
    timeline::Tracer,
};
use crate::{Communicator, Error, Mapped, Region, memory};
use std::ops::Range;

/// The fusion buffer grows by so many bytes at least.
const GROWTH: usize = 4 << 20;

/// Where tensors are put together; it only grows.
#[derive(Debug)]
pub(super) struct FusionBuffer(Region);

impl Default for FusionBuffer {
    fn default() -> Self {
        Self(Region::zeroed(0))
    }
}

impl FusionBuffer {
    /// A part of the fusion buffer with so many bytes, if there is so much memory.
    pub(super) fn part(&mut self, group: &Communicator, bytes: usize) -> Option<Region> {
        if self.0.len() < bytes {
            // Memory that all ranks of the host map needs no further copies. Where there is not so much, any other will do.
            let mapped = group.allocate::<u8>(bytes.checked_next_multiple_of(GROWTH).unwrap_or(bytes));
            self.0 = mapped.map(Mapped::into_region).ok().or_else(|| memory::region(bytes))?;
        }
        Some(self.0.part(0..bytes))
    }

    /// Several tensors, one behind the other in these places: where their results go, if these lie so, else in the fusion buffer.
    /// It is lacking if there is no memory for that, or for one of the tensors.
    pub(super) fn copy_in(
        &mut self,
        group: &Communicator,
        tasks: &[&NamedTask],
        places: &[Range<usize>],
        trace: &mut Tracer<'_>,
    ) -> Result<Region, NamedFailure> {
        let call = &tasks[0].response.call;
        if let Some(outputs) = adjacent(tasks) {
            for Tensor { input, output, .. } in tasks.iter().filter_map(|task| task.tensor.as_ref()) {
                if let Some(output) = output {
                    copy_scaled(open(input)?.span(), open(output)?.span(), call.dtype, call.prescale);
                }
            }
            return Ok(outputs);
        }
        let bytes = places.last().map_or(0, |last| last.end);
        let is_there = !tasks.iter().any(|task| task.lacks());
        let Some(fusion) = is_there.then(|| self.part(group, bytes)).flatten() else {
            return Ok(Region::lacking(bytes));
        };
        trace.run(tasks, "MEMCPY_IN_FUSION_BUFFER", || {
            let access = open(&fusion)?;
            for (task, place) in tasks.iter().zip(places) {
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
}

/// How many bytes a region can have.
pub(super) fn whole(bytes: u64) -> Result<usize, NamedFailure> {
    usize::try_from(bytes).ok().filter(|bytes| *bytes <= isize::MAX as usize).ok_or_else(|| {
        NamedFailure::Engine(Error::unsupported(
            "a tensor has more bytes than memory can hold: send it in parts",
        ))
    })
}

/// Where each of some tensors lies, one behind the other.
pub(super) fn places(tasks: &[&NamedTask]) -> Result<Vec<Range<usize>>, NamedFailure> {
    let mut end = 0u64;
    let place = |task: &&NamedTask| {
        let start = whole(end)?;
        end = end.saturating_add(task.response.call.bytes());
        Ok(start..whole(end)?)
    };
    tasks.iter().map(place).collect()
}

/// The results of these tasks as one region, if they lie one behind the other.
fn adjacent(tasks: &[&NamedTask]) -> Option<Region> {
    let output = |task: &&NamedTask| task.tensor.as_ref()?.output.clone();
    Region::spanning(&tasks.iter().map(output).collect::<Option<Vec<_>>>()?)
}

/// Copies the result of each task out of the fusion buffer.
pub(super) fn copy_out(
    tasks: &[&NamedTask],
    fused: &Region,
    trace: &mut Tracer<'_>,
) -> Result<(), NamedFailure> {
    if adjacent(tasks).is_some() {
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
pub(super) fn scale_result(task: &NamedTask) -> Result<(), NamedFailure> {
    let call = &task.response.call;
    if call.postscale != 1.0
        && let Some(Tensor { output: Some(output), .. }) = &task.tensor
    {
        let access = open(output)?;
        copy_scaled(access.span(), access.span(), call.dtype, call.postscale);
    }
    Ok(())
}
