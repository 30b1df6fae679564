//! The dependency engine, seen from Python: its functions are Python's, and take the interpreter's lock while they run.

use crate::{errors, pending::Pending, waiting};
use herringbone::dependency::{
    DependencyEngine, DependencyError, DependencyResult, Follower, OnComplete, OperationFailure, Unfinished,
    Uses, Variable,
};
use pyo3::{exceptions::PyValueError, prelude::*};
use std::{
    error::Error,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// The error for a program whose function has forgotten to end its operation.
const UNFINISHED: &str = "its function returned without using `done`, and nothing holds it any more; call done.complete(), \
                          done.fail(error) or done.follow(work), or keep it for the thread that does";

/// Something that operations of one engine read and mutate.
#[pyclass(frozen, module = "herringbone._herringbone", name = "Variable")]
pub(crate) struct PyVariable(Variable);

#[pymethods]
impl PyVariable {
    /// How many operations that mutate it have succeeded so far.
    #[getter]
    fn version(&self) -> u64 {
        self.0.version()
    }

    fn __repr__(&self) -> String {
        format!("<herringbone {:?}>", self.0)
    }
}

/// The end of an operation that ends later than its function: used once, on any thread.
#[pyclass(frozen, module = "herringbone._herringbone", name = "OnComplete")]
pub(crate) struct PyOnComplete {
    ticket: Mutex<Option<OnComplete>>,
    follower: Follower,
    /// Its operation's name in texts.
    label: String,
}

impl PyOnComplete {
    /// The ticket, for the method of this name. It can be used once.
    fn take(&self, method: &str) -> PyResult<OnComplete> {
        let ticket = self.ticket.lock().unwrap_or_else(PoisonError::into_inner).take();
        ticket.ok_or_else(|| {
            let label = &self.label;
            errors::plain(format!(
                "done.{method} of {label}: it has ended already; call one of complete, fail and follow, once"
            ))
        })
    }
}

#[pymethods]
impl PyOnComplete {
    /// End the operation successfully.
    fn complete(&self, py: Python<'_>) -> PyResult<()> {
        let ticket = self.take("complete")?;
        py.detach(|| ticket.complete());
        Ok(())
    }

    /// End it as failed, with an exception.
    fn fail(&self, py: Python<'_>, error: Bound<'_, PyAny>) -> PyResult<()> {
        let (ticket, error) = (self.take("fail")?, PyErr::from_value(error));
        py.detach(|| ticket.fail(error));
        Ok(())
    }

    /// Free a variable for later operations before the end.
    fn release(&self, py: Python<'_>, variable: &PyVariable) -> PyResult<()> {
        let released = py.detach(|| {
            let ticket = self.ticket.lock().unwrap_or_else(PoisonError::into_inner);
            ticket.as_ref().map_or(Ok(()), |ticket| ticket.release(&variable.0))
        });
        released.map_err(|error| match error {
            DependencyError::Foreign | DependencyError::Unused { .. } => {
                PyValueError::new_err(format!("done.release of {}: {error}", self.label))
            }
            error => raised(py, &error),
        })
    }

    /// End it when a running collective ends, with the same outcome.
    fn follow(&self, py: Python<'_>, pending: &Pending) -> PyResult<()> {
        let ticket = self.take("follow")?;
        let boxed = |error: herringbone::Error| Box::new(error) as Box<dyn Error + Send + Sync>;
        py.detach(|| self.follower.follow(ticket, pending.0.clone(), boxed));
        Ok(())
    }
}

/// Runs functions on its own threads, each as soon as the variables that it reads and mutates are free.
#[pyclass(frozen, module = "herringbone._herringbone", name = "DependencyEngine")]
pub(crate) struct PyDependencyEngine(DependencyEngine, IsQuiet);

/// Whether unreported failures are not printed.
type IsQuiet = AtomicBool;

#[pymethods]
impl PyDependencyEngine {
    #[new]
    fn new(threads: usize) -> PyResult<Self> {
        // The interpreter knows each thread for its whole life: to tell it of a thread for every function takes locks that a
        // fork at that moment would leave taken in the child.
        let engine = DependencyEngine::new_around(threads, |live| Python::attach(|py| py.detach(live)));
        Ok(Self(engine?, IsQuiet::new(false)))
    }

    /// A new variable, with a name for pictures.
    #[pyo3(signature = (name=None))]
    fn var(&self, name: Option<&str>) -> PyResult<PyVariable> {
        self.check_usable()?;
        Ok(PyVariable(name.map_or_else(|| self.0.var(), |name| self.0.named_var(name))))
    }

    /// The variable that stands for the order in which a communicator's collectives are issued.
    fn order_of(&self, communicator: &crate::communicator::Communicator) -> PyResult<PyVariable> {
        self.check_usable()?;
        Ok(PyVariable(self.0.order_of(&communicator.inner)))
    }

    /// Push a function without arguments.
    #[pyo3(signature = (function, reads, mutates, priority=0, name=None))]
    fn push(
        &self,
        py: Python<'_>,
        function: Py<PyAny>,
        reads: Vec<Bound<'_, PyVariable>>,
        mutates: Vec<Bound<'_, PyVariable>>,
        priority: i32,
        name: Option<&str>,
    ) -> PyResult<()> {
        self.enter(py, (&reads, &mutates, priority, name), |uses| {
            self.0.push_as(uses, move || {
                Python::attach(|py| {
                    let function = function.into_bound(py);
                    function.call0().map(drop).map_err(Into::into)
                })
            })
        })
    }

    /// Push a function whose argument, an `OnComplete`, ends its operation.
    #[pyo3(signature = (function, reads, mutates, priority=0, name=None))]
    fn push_async(
        &self,
        py: Python<'_>,
        function: Py<PyAny>,
        reads: Vec<Bound<'_, PyVariable>>,
        mutates: Vec<Bound<'_, PyVariable>>,
        priority: i32,
        name: Option<&str>,
    ) -> PyResult<()> {
        let follower = self.0.follower();
        self.enter(py, (&reads, &mutates, priority, name), |uses| {
            self.0.push_async_as(uses, move |done| {
                // This waits for the engine's threads, of which one may wait for the GIL.
                let label = done.label();
                let ticket = Mutex::new(Some(done));
                let done = PyOnComplete { ticket, follower, label };
                Python::attach(|py| begin(py, function.into_bound(py), done));
            })
        })
    }

    /// Wait for a variable, without the GIL; raise the exception that spoiled it.
    fn wait(&self, py: Python<'_>, variable: &PyVariable) -> PyResult<()> {
        let waiting = py.detach(|| self.0.begin_wait(&variable.0)).map_err(|error| raised(py, &error))?;
        let waiting = Mutex::new(waiting);
        let result = waiting::in_slices(py, None, |slice| {
            waiting.lock().unwrap_or_else(PoisonError::into_inner).wait_for(slice)
        })?;
        ended(py, result)
    }

    /// Wait until nothing is pending, without the GIL; raise the earliest unreported failure.
    fn wait_all(&self, py: Python<'_>) -> PyResult<()> {
        let result = waiting::in_slices(py, None, |slice| self.0.wait_all_for(slice))?;
        ended(py, result)
    }

    /// How many operations are not over.
    fn pending(&self) -> PyResult<usize> {
        self.check_usable()?;
        Ok(self.0.pending())
    }

    /// The present queues as an SVG.
    fn picture(&self) -> PyResult<String> {
        self.check_usable()?;
        Ok(self.0.picture())
    }

    /// Record the operations that run from now on, for `trace`.
    fn record(&self) -> PyResult<()> {
        self.check_usable()?;
        self.0.record();
        Ok(())
    }

    /// The operations since `record`, as a Chrome trace.
    fn trace(&self, py: Python<'_>) -> PyResult<String> {
        self.check_usable()?;
        Ok(py.detach(|| self.0.trace()))
    }

    /// Run all functions that can run, and end the threads. After Ctrl-C it does not wait for them.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let closed = waiting::in_slices(py, None, |slice| self.0.close_for(slice).then_some(()));
        closed.map(drop).inspect_err(|_| self.0.leave())
    }

    /// The name or number of the first operation with an unreported failure, and its exception.
    fn unreported(&self, py: Python<'_>) -> Option<(String, PyErr)> {
        let failure = self.0.unreported()?;
        let name = failure.name().map_or_else(|| failure.operation().to_string(), str::to_owned);
        Some((name, of_function(py, &failure)))
    }

    /// Print nothing when it is dropped.
    fn be_quiet(&self) {
        self.1.store(true, Ordering::Relaxed);
    }
}

/// The description of an operation: reads, mutates, priority, name.
type Said<'a, 'py> = (&'a [Bound<'py, PyVariable>], &'a [Bound<'py, PyVariable>], i32, Option<&'a str>);

impl PyDependencyEngine {
    fn check_usable(&self) -> PyResult<()> {
        match self.0.is_forked() {
            true => Err(errors::forked(DependencyError::Forked.to_string())),
            false => Ok(()),
        }
    }

    /// Pushes without the GIL, because a push can wait for functions that need it.
    fn enter(
        &self,
        py: Python<'_>,
        (reads, mutates, priority, name): Said<'_, '_>,
        push: impl FnOnce(Uses<'_>) -> DependencyResult<()> + Send,
    ) -> PyResult<()> {
        // A function that is refused is dropped here, with the GIL: without it that may need a lock that a thread of the parent held.
        self.check_usable()?;
        let own = |variables: &[Bound<'_, PyVariable>]| -> Vec<Variable> {
            variables.iter().map(|variable| variable.get().0.clone()).collect()
        };
        let (reads, mutates) = (own(reads), own(mutates));
        if !self.0.wait_for_room(Duration::ZERO) {
            waiting::in_slices(py, None, |slice| self.0.wait_for_room(slice).then_some(()))?;
        }
        let pushed = py.detach(|| {
            let (reads, mutates): (Vec<_>, Vec<_>) = (reads.iter().collect(), mutates.iter().collect());
            push(Uses { name, reads: &reads, mutates: &mutates, priority })
        });
        pushed.map_err(|error| raised(py, &error))
    }
}

impl Drop for PyDependencyEngine {
    /// Its threads might wait for the lock that this thread holds.
    fn drop(&mut self) {
        Python::attach(|py| {
            let unreported = self.close(py).err().or_else(|| self.unreported(py).map(|(_, error)| error));
            if let Some(error) = unreported
                && !self.1.load(Ordering::Relaxed)
            {
                error.write_unraisable(py, None);
            }
        });
    }
}

/// Calls a function that ends its operation later. If the function raises, the operation fails, if it has not ended already.
fn begin(py: Python<'_>, function: Bound<'_, PyAny>, done: PyOnComplete) {
    let Ok(done) = Py::new(py, done) else { return };
    if let Err(error) = function.call1((done.clone_ref(py),)) {
        let ticket = done.get().ticket.lock().unwrap_or_else(PoisonError::into_inner).take();
        match ticket {
            Some(ticket) => py.detach(|| ticket.fail(error)),
            None => error.write_unraisable(py, Some(&function)),
        }
    }
}

/// The outcome of a wait.
fn ended(py: Python<'_>, result: Option<DependencyResult<()>>) -> PyResult<()> {
    result.unwrap_or(Ok(())).map_err(|error| raised(py, &error))
}

/// An error for Python: a function's own exception, or the engine's.
fn raised(py: Python<'_>, error: &DependencyError) -> PyErr {
    match error {
        DependencyError::Failed(failure) => of_function(py, failure),
        DependencyError::Foreign => PyValueError::new_err(error.to_string()),
        DependencyError::Closed => errors::closed(error.to_string()),
        DependencyError::Forked => errors::forked(error.to_string()),
        _ => errors::plain(error.to_string()),
    }
}

fn of_function(py: Python<'_>, failure: &OperationFailure) -> PyErr {
    if let Some(error) = failure.error().downcast_ref::<PyErr>() {
        return error.clone_ref(py);
    }
    if failure.error().is::<Unfinished>() {
        let text = failure.to_string().replace(&Unfinished.to_string(), UNFINISHED);
        return errors::plain(text);
    }
    match failure.error().downcast_ref::<herringbone::Error>() {
        Some(error) => errors::of(error, failure.name()),
        None => errors::plain(failure.to_string()),
    }
}
