//! The tensors that this process has submitted to named operations, and the threads that wait for them.

use super::{
    NamedFailure,
    work::{NamedResult, NamedState},
};
use crate::{
    Compression, Region, Residuals,
    completion::Completion,
    core::named::{
        DUPLICATE, NamedDecision, NamedKind, NamedRequest, NamedResponse, Negotiator, SHUT_DOWN, SubmitError,
    },
};
use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

/// A named operation with its memory.
#[derive(Debug)]
pub struct NamedSubmission {
    /// The operation.
    pub request: NamedRequest,
    /// The tensor. If it or the output is [lacking](Region::lacking), the operation fails on all ranks.
    pub input: Region,
    /// The place for the result, if its size is known.
    pub output: Option<Region>,
    /// How many rows go to each rank in an alltoall; by default the same number to each.
    pub splits: Option<Vec<u64>>,
    /// The owner of the tensor's error feedback, in an allreduce; by default none.
    pub residuals: Option<Residuals>,
}

/// A tensor.
#[derive(Debug)]
pub(super) struct Tensor {
    pub(super) input: Region,
    pub(super) output: Option<Region>,
    pub(super) splits: Vec<u64>,
    pub(super) residuals: Option<Residuals>,
}

/// The tensors submitted under a name.
#[derive(Debug)]
struct Submitted {
    tensor: Tensor,
    state: Arc<NamedState>,
    since: Instant,
}

/// An operation that is run, with this rank's tensor if it has one.
#[derive(Debug)]
pub(super) struct NamedTask {
    pub(super) response: NamedResponse,
    pub(super) tensor: Option<Tensor>,
    pub(super) state: Option<Arc<NamedState>>,
    /// When it was submitted here.
    pub(super) since: Option<Instant>,
}

impl NamedTask {
    pub(super) fn finish(&self, outcome: Result<NamedResult, NamedFailure>) {
        if let Some(state) = &self.state {
            state.finish(outcome);
        }
    }

    /// How its messages are coded. A rank that has joined loses nothing of its zeros.
    pub(super) fn compression(&self) -> Compression {
        let compression = Compression::of(self.response.call.codec);
        match self.owner() {
            Some(owner) => compression.tensor(&self.response.name).kept_by(owner),
            None => compression,
        }
    }

    /// Whether this rank has no memory for its tensor, or for the result.
    pub(super) fn lacks(&self) -> bool {
        self.tensor.as_ref().is_some_and(|Tensor { input, output, .. }| {
            input.is_lacking() || output.as_ref().is_some_and(Region::is_lacking)
        })
    }

    /// Who keeps what codecs lose of it.
    pub(super) fn owner(&self) -> Option<&Residuals> {
        self.tensor.as_ref()?.residuals.as_ref()
    }
}

/// The queue of one controller.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) negotiator: Negotiator,
    size: u32,
    submitted: BTreeMap<String, Submitted>,
    joining: Option<Arc<NamedState>>,
    /// What ends the rest of the controller's thread, while it rests.
    pub(super) asleep: Option<Arc<Completion>>,
    /// Whether it rests so that more can be submitted.
    pub(super) gathers: bool,
    /// Why nothing more is taken.
    pub(super) end: Option<NamedFailure>,
    pub(super) cycles: u64,
}

impl Queue {
    pub(super) fn new(negotiator: Negotiator, size: u32) -> Self {
        Self {
            negotiator,
            size,
            submitted: BTreeMap::new(),
            joining: None,
            asleep: None,
            gathers: false,
            end: None,
            cycles: 0,
        }
    }

    /// Takes an operation.
    ///
    /// # Errors
    /// If it cannot be one.
    pub(super) fn submit(
        &mut self,
        submission: NamedSubmission,
        now: Duration,
    ) -> Result<Arc<NamedState>, NamedFailure> {
        if let Some(end) = &self.end {
            return Err(end.clone());
        }
        let NamedSubmission { request, input, output, splits, residuals } = submission;
        let tensor = Tensor { input, output, splits: splits.unwrap_or_default(), residuals };
        let tensor = check(&request, tensor, self.size).map_err(NamedFailure::Text)?;
        let name = request.name.clone();
        self.negotiator.submit(request, now).map_err(|error| NamedFailure::Text(text(error)))?;
        let state = NamedState::new();
        let submitted = Submitted { tensor, state: state.clone(), since: Instant::now() };
        self.submitted.insert(name, submitted);
        Ok(state)
    }

    /// Joins.
    ///
    /// # Errors
    /// If this rank has joined already, or the controller has ended.
    pub(super) fn join(&mut self) -> Result<Arc<NamedState>, NamedFailure> {
        if let Some(end) = &self.end {
            return Err(end.clone());
        }
        self.negotiator.join().map_err(|error| NamedFailure::Text(text(error)))?;
        let state = NamedState::new();
        self.joining = Some(state.clone());
        Ok(state)
    }

    /// Sees to what fails and to joins, and takes out what is to be run.
    pub(super) fn take(&mut self, decision: &mut NamedDecision) -> Vec<Vec<NamedTask>> {
        for (name, text) in decision.failed.drain(..) {
            if let Some(submitted) = self.submitted.remove(&name) {
                submitted.state.finish(Err(NamedFailure::Text(text)));
            }
        }
        if let Some(last) = decision.joined
            && let Some(joining) = self.joining.take()
        {
            joining.finish(Ok(NamedResult { last_joined: Some(last), ..NamedResult::default() }));
        }
        let batches = std::mem::take(&mut decision.batches);
        let mut task = |response: NamedResponse| match self.submitted.remove(&response.name) {
            Some(Submitted { tensor, state, since }) => {
                NamedTask { response, tensor: Some(tensor), state: Some(state), since: Some(since) }
            }
            None => NamedTask { response, tensor: None, state: None, since: None },
        };
        batches.into_iter().map(|batch| batch.into_iter().map(&mut task).collect()).collect()
    }

    /// Fails all that is queued, and all that comes.
    pub(super) fn finish(&mut self, failure: NamedFailure) {
        for submitted in std::mem::take(&mut self.submitted).into_values() {
            submitted.state.finish(Err(failure.clone()));
        }
        self.joining.take().into_iter().for_each(|joining| joining.finish(Err(failure.clone())));
        self.end.get_or_insert(failure);
    }
}

/// The end of a controller whose ranks have shut down.
pub(super) fn shut_down() -> NamedFailure {
    NamedFailure::Text(SHUT_DOWN.to_owned())
}

fn text(error: SubmitError) -> String {
    match error {
        SubmitError::Duplicate => DUPLICATE.to_owned(),
        error => error.to_string(),
    }
}

/// Whether a tensor fits what is to be done with it. The other ranks are not asked.
fn check(request: &NamedRequest, mut tensor: Tensor, ranks: u32) -> Result<Tensor, String> {
    let (name, call) = (&request.name, &request.call);
    let kind = call.kind;
    if matches!(kind, NamedKind::Barrier | NamedKind::Join) {
        return Ok(tensor);
    }
    if tensor.input.len() as u64 != call.bytes() {
        let (bytes, needed) = (tensor.input.len(), call.bytes());
        return Err(format!("{name}: the input has {bytes} bytes where its shape and type need {needed}"));
    }
    if matches!(kind, NamedKind::AllReduce | NamedKind::Adasum | NamedKind::Broadcast) {
        match &tensor.output {
            Some(output) if output.len() == tensor.input.len() && output.is_writable() => {}
            _ => {
                return Err(format!(
                    "{name}: pass an output that is as long as the input and can be written"
                ));
            }
        }
    }
    match kind {
        NamedKind::Adasum if !ranks.is_power_of_two() => {
            Err("Running Adasum with non-power of 2 ranks is not supported yet.".to_owned())
        }
        NamedKind::Adasum if !call.dtype.is_float() => {
            Err(format!("{name}: Adasum takes floating-point tensors, not {}", call.dtype))
        }
        NamedKind::Broadcast if call.root >= ranks => {
            Err(format!("{name}: the root rank {} is none of the {ranks} ranks", call.root))
        }
        NamedKind::AllToAll => {
            tensor.splits = splits(name, tensor.splits, call.shape.first().copied(), ranks)?;
            Ok(tensor)
        }
        _ => Ok(tensor),
    }
}

/// How many rows go to each rank.
fn splits(name: &str, given: Vec<u64>, rows: Option<u64>, ranks: u32) -> Result<Vec<u64>, String> {
    let ranks = u64::from(ranks);
    // A tensor without rows is refused by rank 0, on all ranks.
    let rows = rows.unwrap_or_default();
    if given.is_empty() {
        return match rows % ranks {
            0 => Ok(vec![rows / ranks; ranks as usize]),
            _ => Err(format!(
                "{name}: tensor's first dimension of {rows} cannot be split evenly among {ranks} ranks; pass splits"
            )),
        };
    }
    let sum = given.iter().try_fold(0u64, |sum, rows| sum.checked_add(*rows));
    match given.len() as u64 == ranks && sum == Some(rows) {
        true => Ok(given),
        false => Err(format!(
            "{name}: the splits have to be {ranks} numbers whose sum is the first dimension of the tensor, {rows}"
        )),
    }
}
