//! Handles of named operations, and how these end.

use crate::{Error, ErrorKind, sys::fork};
use std::{
    fmt,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

/// Why a named operation has failed.
#[derive(Clone, Debug)]
pub enum NamedFailure {
    /// The ranks do not agree about it, it cannot be submitted, or they have shut down: Horovod's text. The ranks
    /// continue, except after a shutdown.
    Text(String),
    /// The engine has failed, and the controller has ended.
    Engine(Error),
}

impl NamedFailure {
    /// Whether a rank lacked memory, of which all have been told.
    pub(super) fn is_lack_of_memory(&self) -> bool {
        matches!(self, Self::Engine(error) if matches!(error.kind(), ErrorKind::Memory { .. }))
    }
}

impl fmt::Display for NamedFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Engine(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for NamedFailure {}

impl From<Error> for NamedFailure {
    fn from(error: Error) -> Self {
        Self::Engine(error)
    }
}

/// The result of a named operation, in addition to its output buffer.
#[derive(Clone, Debug, Default)]
pub struct NamedResult {
    /// The result, if its size was not known before: in an allgather, an alltoall and a reducescatter.
    pub data: Option<Vec<u8>>,
    /// The result's dimensions.
    pub shape: Vec<u64>,
    /// How many rows have come from each rank, of an alltoall.
    pub received_splits: Option<Vec<u64>>,
    /// The rank that has joined last, of a join.
    pub last_joined: Option<u32>,
}

/// A named operation that is under way. Dropping it does not stop the operation.
#[derive(Clone, Debug)]
#[must_use = "an operation's errors are seen by waiting for it"]
pub struct NamedWork {
    pub(super) state: Arc<NamedState>,
    pub(super) listener: Weak<dyn WaitListener>,
}

/// Is told when a thread begins to wait for an operation, and when it does not wait any more.
pub(super) trait WaitListener: fmt::Debug + Send + Sync {
    fn begin(&self);
    fn end(&self);
}

/// A thread that waits.
struct Waiter(Option<Arc<dyn WaitListener>>);

impl Waiter {
    fn of(work: &NamedWork) -> Self {
        let listener = work.listener.upgrade().filter(|_| !work.is_done());
        listener.iter().for_each(|listener| listener.begin());
        Self(listener)
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.0.iter().for_each(|listener| listener.end());
    }
}

/// The state of an operation, shared by the controller and the threads that wait for it.
#[derive(Debug)]
pub(super) struct NamedState {
    outcome: Mutex<Option<Outcome>>,
    is_over: Condvar,
    /// The generation of processes in which something ends it.
    born: u64,
}

type Outcome = Result<NamedResult, NamedFailure>;

impl NamedState {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { outcome: Mutex::new(None), is_over: Condvar::new(), born: fork::generation() })
    }

    fn outcome(&self) -> MutexGuard<'_, Option<Outcome>> {
        let mut outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        if fork::generation() != self.born {
            // Nothing in this process would end it.
            outcome.get_or_insert_with(|| Err(NamedFailure::Engine(Error::new(ErrorKind::Forked))));
        }
        outcome
    }

    /// Ends the operation, once.
    pub(super) fn finish(&self, outcome: Result<NamedResult, NamedFailure>) {
        let mut place = self.outcome();
        if place.is_none() {
            *place = Some(outcome);
            self.is_over.notify_all();
        }
    }
}

impl NamedWork {
    /// Whether the operation is over.
    pub fn is_done(&self) -> bool {
        self.state.outcome().is_some()
    }

    /// Waits until it is over, but not longer than `limit`. Returns whether it is.
    pub fn wait_for(&self, limit: Duration) -> bool {
        let _waiter = Waiter::of(self);
        let until = Instant::now().checked_add(limit);
        let mut outcome = self.state.outcome();
        while outcome.is_none() {
            let left = until.map_or(limit, |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return false;
            }
            outcome =
                self.state.is_over.wait_timeout(outcome, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Waits until it is over. The data goes to the first caller.
    ///
    /// # Errors
    /// Why it has failed.
    pub fn wait(&self) -> Result<NamedResult, NamedFailure> {
        let _waiter = Waiter::of(self);
        let mut outcome = self.state.outcome();
        loop {
            if let Some(outcome) = outcome.as_mut() {
                return taken(outcome);
            }
            outcome = self.state.is_over.wait(outcome).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Why it has failed, if it is over and has.
    pub fn failure(&self) -> Option<NamedFailure> {
        self.state.outcome().as_ref()?.as_ref().err().cloned()
    }

    /// Its result, once it is over. The data goes to the first caller.
    pub fn take(&self) -> Option<Result<NamedResult, NamedFailure>> {
        self.state.outcome().as_mut().map(taken)
    }
}

/// What there is, without a copy of its data.
fn taken(outcome: &mut Outcome) -> Outcome {
    let data = outcome.as_mut().ok().and_then(|result| result.data.take());
    outcome.clone().map(|result| NamedResult { data, ..result })
}
