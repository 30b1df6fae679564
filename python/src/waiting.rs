//! Waiting without the interpreter's lock, interruptible with Ctrl-C.

use herringbone::Pending;
use pyo3::{exceptions::PyValueError, prelude::*};
use std::{
    ops::Deref,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

/// A value whose drop can wait for other processes. It is dropped without the interpreter's lock.
pub(crate) struct DropWithoutGil<T: Send>(Option<T>);

impl<T: Send> From<T> for DropWithoutGil<T> {
    fn from(value: T) -> Self {
        Self(Some(value))
    }
}

impl<T: Send> Deref for DropWithoutGil<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().unwrap_or_else(|| unreachable!("only its drop takes the value"))
    }
}

impl<T: Send> Drop for DropWithoutGil<T> {
    fn drop(&mut self) {
        let value = self.0.take();
        // Without an interpreter, at its end, there is no lock to let go of.
        Python::try_attach(|py| py.detach(|| drop(value)));
    }
}

/// How long a wait lasts before it lets Python run its signal handlers.
const SLICE: Duration = Duration::from_millis(100);

/// Calls `poll` with the time that it can wait, until it returns a value or `timeout` has passed (then `None`).
///
/// # Errors
/// The exception of a signal handler, such as `KeyboardInterrupt`.
pub(crate) fn in_slices<T: Send>(
    py: Python<'_>,
    timeout: Option<Duration>,
    poll: impl Fn(Duration) -> Option<T> + Sync,
) -> PyResult<Option<T>> {
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let slice = left.map_or(SLICE, |left| left.min(SLICE));
        let value = py.detach(|| poll(slice));
        if value.is_some() || left.is_some_and(|left| left <= SLICE) {
            return Ok(value);
        }
        py.check_signals()?;
    }
}

/// Begins an operation and waits for its result. If that takes only a moment, the interpreter's lock is released only once.
///
/// # Errors
/// The exception of a signal handler; the operation then continues.
pub(crate) fn to_the_end(
    py: Python<'_>,
    begin: impl FnOnce() -> herringbone::Result<Pending> + Send,
) -> PyResult<herringbone::Result<()>> {
    let begun = py.detach(|| begin().map(|pending| (pending.wait_for(SLICE), pending)));
    let pending = match begun {
        Err(error) => return Ok(Err(error)),
        Ok((Some(result), _)) => return Ok(result),
        Ok((None, pending)) => pending,
    };
    loop {
        py.check_signals()?;
        if let Some(result) = py.detach(|| pending.wait_for(SLICE)) {
            return Ok(result);
        }
    }
}

/// Runs `work`, which can wait long for other processes, on its own thread, and returns its result.
///
/// # Errors
/// The exception of a signal handler; the thread then continues until its own timeout.
pub(crate) fn on_a_thread<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let worker = thread::Builder::new().name("herringbone-join".to_owned()).spawn(move || {
        // Nobody receives it if a signal has ended the wait.
        let _unwanted = sender.send(work());
    })?;
    let receiver = std::sync::Mutex::new(receiver);
    let outcome = in_slices(py, None, |slice| {
        let receiver = receiver.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match receiver.recv_timeout(slice) {
            Ok(value) => Some(Some(value)),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(None),
        }
    })?;
    match outcome.flatten() {
        Some(value) => Ok(value),
        None => {
            let panic = py.detach(|| worker.join()).err().unwrap_or_else(|| Box::new("the thread ended"));
            std::panic::resume_unwind(panic)
        }
    }
}

/// Seconds of Python as a duration; `None` stays `None`.
///
/// # Errors
/// `ValueError` if it is negative, not a number, or longer than the machine can count.
pub(crate) fn duration(seconds: Option<f64>) -> PyResult<Option<Duration>> {
    let convert = |seconds| {
        Duration::try_from_secs_f64(seconds)
            .map_err(|_| PyValueError::new_err(format!("{seconds} is no number of seconds from 0")))
    };
    seconds.map(convert).transpose()
}
