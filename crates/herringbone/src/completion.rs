//! The end of an operation, shared by the engine and the threads that wait.

use crate::{Result, core::group::Rank, feedback::Fed};
use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
    mpsc::Sender,
};

/// The end of an operation, shared by the engine and the threads that wait.
#[derive(Debug, Default)]
pub(crate) struct Completion {
    done: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    result: Option<Result<()>>,
    source: Option<Rank>,
    fed: Option<Fed>,
    listeners: Vec<(Sender<u64>, u64)>,
}

impl Completion {
    /// Of an operation that is over.
    pub(crate) fn over() -> Arc<Self> {
        let completion = Self::default();
        completion.finish(Ok(()));
        Arc::new(completion)
    }

    pub(crate) fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    pub(crate) fn result(&self) -> Option<Result<()>> {
        if !self.is_done() {
            return None;
        }
        self.state.lock().unwrap_or_else(PoisonError::into_inner).result.clone()
    }

    /// Says whose message it ends with, before it does.
    pub(crate) fn set_source(&self, source: Rank) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).source = Some(source);
    }

    /// Whose message it has ended with, if with any.
    pub(crate) fn source(&self) -> Option<Rank> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.source.filter(|_| matches!(state.result, Some(Ok(()))))
    }

    /// Says of what tensor something is left, which counts if it ends well.
    pub(crate) fn commits(&self, fed: Fed) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).fed = Some(fed);
    }

    /// Sets the result, once.
    pub(crate) fn finish(&self, result: Result<()>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.result.is_none() {
            if let Some(fed) = state.fed.take() {
                fed.end(result.is_ok());
            }
            state.result = Some(result);
            self.done.store(true, Ordering::Release);
            for (listener, token) in state.listeners.drain(..) {
                // A listener that has gone away does not want to know.
                let _gone = listener.send(token);
            }
        }
    }

    pub(crate) fn listen(&self, listener: Sender<u64>, token: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match state.result {
            None => state.listeners.push((listener, token)),
            Some(_) => {
                let _gone = listener.send(token);
            }
        }
    }
}
