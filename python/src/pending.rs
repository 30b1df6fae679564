//! Running operations, and the queue of finished ones.

use crate::{errors, waiting};
use pyo3::prelude::*;
use std::sync::{
    Mutex, PoisonError,
    mpsc::{self, Receiver, Sender},
};

/// A running operation, and the owner of its buffers until it has finished.
#[pyclass(frozen, module = "herringbone._herringbone")]
pub(crate) struct Pending(pub(crate) herringbone::Pending);

#[pymethods]
impl Pending {
    /// Wait without the GIL, at most `timeout` seconds; false if it is still running then.
    ///
    /// Raises the operation's error if it failed, and `KeyboardInterrupt` on Ctrl-C.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let timeout = waiting::duration(timeout)?;
        match waiting::in_slices(py, timeout, |slice| self.0.wait_for(slice))? {
            Some(result) => result.map(|()| true).map_err(|error| errors::to_python(&error)),
            None => Ok(false),
        }
    }

    /// Whether it has finished, successfully or not.
    fn done(&self) -> bool {
        self.0.is_done()
    }

    /// Why it failed; `None` while it runs and after success.
    fn error(&self) -> Option<PyErr> {
        self.0.result()?.err().map(|error| errors::to_python(&error))
    }

    /// The rank whose message a receive has got; `None` before, and for other operations.
    fn source(&self) -> Option<u32> {
        self.0.source()
    }

    /// Put `token` into `completions` once this has finished; at once if it already has.
    fn notify(&self, completions: &Completions, token: u64) {
        self.0.notify(completions.sender.clone(), token);
    }
}

/// The token that closes a queue.
const CLOSE: u64 = u64::MAX;

/// A queue of finished operations: `Pending.notify` puts tokens in, `next` takes them out.
#[pyclass(frozen, module = "herringbone._herringbone")]
pub(crate) struct Completions {
    sender: Sender<u64>,
    receiver: Mutex<Receiver<u64>>,
}

impl Completions {
    /// What puts tokens in.
    pub(crate) fn sender(&self) -> Sender<u64> {
        self.sender.clone()
    }
}

#[pymethods]
impl Completions {
    #[new]
    fn new() -> Self {
        let (sender, receiver) = mpsc::channel();
        Self { sender, receiver: Mutex::new(receiver) }
    }

    /// Let a `next` return `token`.
    fn put(&self, token: u64) {
        // The receiver lives as long as this sender does.
        let _delivered = self.sender.send(token);
    }

    /// Wait for an operation to finish and return its token; `None` once the queue is closed.
    fn next(&self, py: Python<'_>) -> Option<u64> {
        let token = py.detach(|| self.receiver.lock().unwrap_or_else(PoisonError::into_inner).recv().ok());
        if token == Some(CLOSE) {
            self.close();
            return None;
        }
        token
    }

    /// Let every present and future `next` return `None`.
    fn close(&self) {
        self.put(CLOSE);
    }
}
