//! Operations with names, as Horovod's programs call them.

use crate::{
    call::{parse, regions},
    codecs::parse_codec,
    communicator::Communicator,
    errors,
    memory::PySpan,
    residuals::PyResiduals,
    waiting,
};
use herringbone::{
    AutotuneOptions, NamedController, NamedFailure, NamedOptions, NamedSubmission, ReduceOp,
    core::{
        codec::Codec,
        named::{NamedCall, NamedGroup, NamedKind, NamedRequest},
    },
};
use pyo3::{
    create_exception,
    exceptions::{PyRuntimeError, PyTimeoutError, PyTypeError, PyValueError},
    prelude::*,
    types::{PyByteArray, PyDict, PyTuple},
};
use std::{
    path::PathBuf,
    sync::{Arc, Mutex, Once, OnceLock, PoisonError, Weak},
    time::Duration,
};

create_exception!(
    herringbone._herringbone,
    NamedError,
    PyRuntimeError,
    "The ranks disagree about an operation with a name, it cannot be submitted, or they have shut down."
);

/// Controllers that have to shut down before the process ends.
static CONTROLLERS: Mutex<Vec<Weak<NamedController>>> = Mutex::new(Vec::new());
static AT_EXIT: Once = Once::new();

/// One rank's controller of operations with names, which ranks submit in any order.
#[pyclass(frozen, module = "herringbone._herringbone")]
pub(crate) struct Controller(Arc<NamedController>);

#[pymethods]
impl Controller {
    /// Make one, on all ranks of the communicator and with the same options.
    #[new]
    #[pyo3(signature = (
        communicator, *, cycle_time=0.001, fusion_threshold=134_217_728, cache_capacity=1024, stall_warning=60.0,
        stall_shutdown=0.0, group_fusion=true, autotune=false, autotune_log=None, autotune_warmup_samples=3,
        autotune_steps_per_sample=10
    ))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords")]
    fn new(
        py: Python<'_>,
        communicator: &Communicator,
        cycle_time: f64,
        fusion_threshold: u64,
        cache_capacity: usize,
        stall_warning: f64,
        stall_shutdown: f64,
        group_fusion: bool,
        autotune: bool,
        autotune_log: Option<PathBuf>,
        autotune_warmup_samples: u32,
        autotune_steps_per_sample: u32,
    ) -> PyResult<Self> {
        let tune = AutotuneOptions {
            log: autotune_log,
            warmup_samples: autotune_warmup_samples,
            steps_per_sample: autotune_steps_per_sample,
        };
        let options = NamedOptions {
            cycle: seconds(cycle_time)?,
            threshold: fusion_threshold,
            capacity: cache_capacity,
            stall_warning: seconds(stall_warning)?,
            stall_shutdown: seconds(stall_shutdown)?,
            across_groups: group_fusion,
            autotune: autotune.then_some(tune),
        };
        let made = py.detach(|| NamedController::new(&communicator.inner, &options));
        let controller = Arc::new(made.map_err(|error| errors::to_python(&error))?);
        let mut known = CONTROLLERS.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|controller| controller.strong_count() > 0);
        known.push(Arc::downgrade(&controller));
        drop(known);
        shut_down_at_exit(py)?;
        Ok(Self(controller))
    }

    /// Submit an operation. `input` and `output` are (address, bytes) of memory that lives as long as `keep` does, or
    /// contiguous arrays or tensors. `compression` is a codec's name, and `residuals` owns the error feedback, if there is one.
    #[pyo3(signature = (
        operation, name, input, output, *, dtype, shape, op="sum", root=0, prescale=1.0, postscale=1.0, splits=None,
        group=None, priority=0, keep=None, compression="none", residuals=None
    ))]
    #[allow(
        clippy::too_many_arguments,
        reason = "one call per operation, so nothing is built to be taken apart"
    )]
    fn submit(
        &self,
        py: Python<'_>,
        operation: &str,
        name: String,
        input: Option<Bound<'_, PyAny>>,
        output: Option<Bound<'_, PyAny>>,
        dtype: &str,
        shape: Vec<u64>,
        op: &str,
        root: u32,
        prescale: f64,
        postscale: f64,
        splits: Option<Vec<u64>>,
        group: Option<(String, u32)>,
        priority: i32,
        keep: Option<Bound<'_, PyAny>>,
        compression: &str,
        residuals: Option<&PyResiduals>,
    ) -> PyResult<PyNamedWork> {
        let (kind, op) = parse_operation(operation, op)?;
        let codec = parse_codec::<Codec>(compression)?;
        let call = NamedCall { kind, dtype: parse(dtype)?, op, shape, root, prescale, postscale, codec };
        let group = group.map(|(name, members)| NamedGroup { name, members });
        let request = NamedRequest { name, call, group, priority };
        let source = input.as_ref().map_or(Ok((0, 0)), |buffer| span(buffer, false))?;
        let target = output.as_ref().map(|buffer| span(buffer, true)).transpose()?;
        let owners = PyTuple::new(py, [input, output, keep])?;
        let (input, target_region) = regions(source, target.unwrap_or_default(), owners.as_any());
        let output = target.map(|_| target_region);
        let residuals = residuals.map(|owner| owner.0.clone());
        let submission = NamedSubmission { request, input, output, splits, residuals };
        let work = py.detach(|| self.0.submit(submission)).map_err(|failure| to_python(&failure))?;
        Ok(PyNamedWork { work, result: OnceLock::new() })
    }

    /// This rank has no more data. The work ends when all ranks have joined.
    fn join(&self, py: Python<'_>) -> PyResult<PyNamedWork> {
        let work = py.detach(|| self.0.join()).map_err(|failure| to_python(&failure))?;
        Ok(PyNamedWork { work, result: OnceLock::new() })
    }

    /// Write a trace of all tensors to a file from now on, on rank 0.
    #[pyo3(signature = (path, mark_cycles=false))]
    fn start_timeline(&self, py: Python<'_>, path: PathBuf, mark_cycles: bool) -> PyResult<()> {
        py.detach(|| self.0.start_timeline(&path, mark_cycles)).map_err(|error| errors::to_python(&error))
    }

    /// End the trace.
    fn stop_timeline(&self, py: Python<'_>) {
        py.detach(|| self.0.stop_timeline());
    }

    /// Shut down the controllers of all ranks.
    fn shutdown(&self, py: Python<'_>) {
        py.detach(|| self.0.shut_down());
    }

    /// Counters of events so far, by name.
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let all = PyDict::new(py);
        for (name, count) in py.detach(|| self.0.counters()) {
            all.set_item(name, count)?;
        }
        Ok(all)
    }
}

/// Other threads might need the interpreter before the ranks have shut down.
impl Drop for Controller {
    fn drop(&mut self) {
        Python::attach(|py| py.detach(|| self.0.shut_down()));
    }
}

/// A running operation with a name.
#[pyclass(frozen, name = "NamedWork", module = "herringbone._herringbone")]
pub(crate) struct PyNamedWork {
    work: herringbone::NamedWork,
    result: OnceLock<Py<PyNamedResult>>,
}

#[pymethods]
impl PyNamedWork {
    /// Whether it is over, successfully or not.
    fn poll(&self, py: Python<'_>) -> bool {
        py.detach(|| self.work.is_done())
    }

    /// Wait without the GIL, at most `timeout` seconds.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let limit = waiting::duration(timeout)?;
        let is_over = waiting::in_slices(py, limit, |slice| self.work.wait_for(slice).then_some(()))?;
        if is_over.is_none() {
            let seconds = timeout.unwrap_or_default();
            return Err(PyTimeoutError::new_err(format!(
                "the operation is not over after {seconds} s; wait again"
            )));
        }
        match py.detach(|| self.work.failure()) {
            Some(failure) => Err(to_python(&failure)),
            None => Ok(()),
        }
    }

    /// Its results. Waits for them.
    fn result(&self, py: Python<'_>) -> PyResult<Py<PyNamedResult>> {
        self.wait(py, None)?;
        if let Some(result) = self.result.get() {
            return Ok(result.clone_ref(py));
        }
        let brought = match py.detach(|| self.work.take()) {
            Some(Ok(brought)) => brought,
            Some(Err(failure)) => return Err(to_python(&failure)),
            None => return Err(PyRuntimeError::new_err("the operation is not over")),
        };
        let bytes = |data: Vec<u8>| {
            let copy = |to: &mut [u8]| {
                to.copy_from_slice(&data);
                Ok(())
            };
            PyByteArray::new_with(py, data.len(), copy).map(Bound::unbind)
        };
        let result = PyNamedResult {
            data: brought.data.map(bytes).transpose()?,
            shape: brought.shape,
            received_splits: brought.received_splits,
            last_joined: brought.last_joined,
        };
        let result = Py::new(py, result)?;
        Ok(self.result.get_or_init(|| result).clone_ref(py))
    }
}

/// The results of an operation, in addition to its output.
#[pyclass(frozen, name = "NamedResult", module = "herringbone._herringbone")]
pub(crate) struct PyNamedResult {
    data: Option<Py<PyByteArray>>,
    shape: Vec<u64>,
    received_splits: Option<Vec<u64>>,
    last_joined: Option<u32>,
}

#[pymethods]
impl PyNamedResult {
    /// The result, if its size was not known before.
    #[getter]
    fn data(&self, py: Python<'_>) -> Option<Py<PyByteArray>> {
        self.data.as_ref().map(|data| data.clone_ref(py))
    }

    /// The result's dimensions.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }

    /// For an alltoall: how many rows each rank has sent here.
    #[getter]
    fn received_splits(&self) -> Option<Vec<u64>> {
        self.received_splits.clone()
    }

    /// For a join: the rank that has joined last.
    #[getter]
    fn last_joined(&self) -> Option<u32> {
        self.last_joined
    }
}

/// Lets the interpreter shut down all controllers before it ends. They were made after the objects that they need.
fn shut_down_at_exit(py: Python<'_>) -> PyResult<()> {
    let mut outcome = Ok(());
    AT_EXIT.call_once(|| {
        outcome = wrap_pyfunction!(shut_all_down, py)
            .and_then(|function| py.import("atexit")?.call_method1("register", (function,)))
            .map(|_| ());
    });
    outcome
}

#[pyfunction]
fn shut_all_down(py: Python<'_>) {
    py.detach(|| {
        let known = std::mem::take(&mut *CONTROLLERS.lock().unwrap_or_else(PoisonError::into_inner));
        known.iter().filter_map(Weak::upgrade).for_each(|controller| controller.shut_down());
    });
}

fn to_python(failure: &NamedFailure) -> PyErr {
    match failure {
        NamedFailure::Text(text) => NamedError::new_err(text.clone()),
        NamedFailure::Engine(error) => errors::to_python(error),
    }
}

fn seconds(seconds: f64) -> PyResult<Duration> {
    Ok(waiting::duration(Some(seconds))?.unwrap_or_default())
}

/// The operation, and how elements are folded.
fn parse_operation(operation: &str, op: &str) -> PyResult<(NamedKind, ReduceOp)> {
    let kind = match (operation, op) {
        ("allreduce", "adasum") => return Ok((NamedKind::Adasum, ReduceOp::Sum)),
        ("allreduce", _) => NamedKind::AllReduce,
        ("allgather", _) => NamedKind::AllGather,
        ("broadcast", _) => NamedKind::Broadcast,
        ("alltoall", _) => NamedKind::AllToAll,
        ("reducescatter", _) => NamedKind::ReduceScatter,
        ("barrier", _) => NamedKind::Barrier,
        _ => {
            return Err(PyValueError::new_err(format!(
                "no operation is called {operation}: use allreduce, allgather, broadcast, alltoall, reducescatter or barrier"
            )));
        }
    };
    let op: ReduceOp = parse(op)?;
    if op.joins_bits() {
        let name = op.name();
        return Err(PyValueError::new_err(format!("{name}: use sum, average, min, max, product or adasum")));
    }
    Ok((kind, op))
}

/// The place of a buffer: (address, bytes) as given, or the memory that an array or a tensor describes. A read-only array cannot be a
/// buffer for a result.
fn span(buffer: &Bound<'_, PyAny>, is_written: bool) -> PyResult<PySpan> {
    if let Ok(span) = buffer.extract::<PySpan>() {
        return Ok(span);
    }
    if let Ok(interface) = buffer.getattr("__array_interface__") {
        if !interface.get_item("strides").map_or(true, |strides| strides.is_none()) {
            return Err(PyValueError::new_err(
                "the array is not contiguous: pass numpy.ascontiguousarray(array)",
            ));
        }
        let (address, is_read_only): (usize, bool) = interface.get_item("data")?.extract()?;
        if is_written && is_read_only {
            return Err(PyValueError::new_err("the array is read-only: pass array.copy()"));
        }
        return Ok((address, buffer.getattr("nbytes")?.extract()?));
    }
    if buffer.hasattr("data_ptr")? {
        if !buffer.call_method0("is_contiguous")?.extract::<bool>()? {
            return Err(PyValueError::new_err("the tensor is not contiguous: pass tensor.contiguous()"));
        }
        let elements: usize = buffer.call_method0("numel")?.extract()?;
        let bytes = elements * buffer.call_method0("element_size")?.extract::<usize>()?;
        return Ok((buffer.call_method0("data_ptr")?.extract()?, bytes));
    }
    let name = buffer.get_type().name()?.to_string();
    Err(PyTypeError::new_err(format!("a buffer is (address, bytes), an array or a tensor, not {name}")))
}
