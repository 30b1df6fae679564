//! Collectives on an accelerator's memory, seen from Python.
#![allow(unsafe_code)]

use crate::{
    call::{PyCall, PyMessage, StagedSpans, regions, staged_message, staged_request},
    communicator::Communicator,
    errors,
    memory::PySpan,
    pending::Completions,
    waiting::{self, DropWithoutGil},
};
use herringbone::{
    Region,
    device::{
        Accelerator, Cuda, DeviceGroup, DeviceMemory, DeviceStream, StagedBuffers, StagedCall, StagedPending,
        fake::FakeAccelerator,
    },
};
use pyo3::{exceptions::PyRuntimeError, prelude::*};
use std::{
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard},
    time::Duration,
};

/// An accelerator: a device of CUDA, or one of the tests.
#[pyclass(frozen, name = "Device", module = "herringbone._herringbone")]
pub(crate) struct PyDevice {
    accelerator: Arc<dyn Accelerator>,
    fake: Option<Arc<FakeAccelerator>>,
}

#[pymethods]
impl PyDevice {
    /// The device of CUDA of this number, by the driver that the machine has.
    #[staticmethod]
    #[pyo3(signature = (number, waits_for_values=false))]
    fn cuda(py: Python<'_>, number: i32, waits_for_values: bool) -> PyResult<Self> {
        let cuda = py.detach(|| Cuda::open(number, waits_for_values));
        let cuda = cuda.map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
        Ok(Self { accelerator: Arc::new(cuda), fake: None })
    }

    /// For tests: one whose memory is the host's and whose streams move when the test says so.
    #[staticmethod]
    #[pyo3(signature = (waits_for_values=true))]
    fn fake(waits_for_values: bool) -> Self {
        let fake = FakeAccelerator::new(waits_for_values, None);
        Self { accelerator: fake.clone(), fake: Some(fake) }
    }

    /// Whether streams can wait for the host without the program's thread.
    fn waits_for_values(&self) -> bool {
        self.accelerator.waits_for_values()
    }

    /// A new stream of a fake device.
    fn fake_stream(&self) -> PyResult<usize> {
        let stream = self.of_tests()?.stream().map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
        Ok(stream.number().unwrap_or_default())
    }

    /// Queue on a fake device's stream that these bytes are written.
    fn fake_write(
        &self,
        stream: usize,
        span: PySpan,
        keep: &Bound<'_, PyAny>,
        bytes: Vec<u8>,
    ) -> PyResult<()> {
        let memory = DeviceMemory::of_host(regions((0, 0), span, keep).1);
        let queued = self.of_tests()?.write(&DeviceStream::own(stream), &memory, bytes);
        queued.map_err(|error| PyRuntimeError::new_err(error.to_string()))
    }

    /// Have streams of a fake device that are captured for a graph refuse calls.
    fn fake_capture(&self, stream: usize, capturing: bool) -> PyResult<()> {
        self.of_tests()?.set_capturing(&DeviceStream::own(stream), capturing);
        Ok(())
    }

    /// Let one stream of a fake device do one thing; false if none can.
    fn fake_step(&self, pick: u64) -> PyResult<bool> {
        Ok(self.of_tests()?.step(pick))
    }

    /// Whether a stream of a fake device has something to do, which may wait.
    fn fake_is_busy(&self) -> PyResult<bool> {
        Ok(self.of_tests()?.is_busy())
    }

    /// What a fake device has found: accesses to memory that wait for no others which they meet.
    fn fake_hazards(&self) -> PyResult<Vec<String>> {
        Ok(self.of_tests()?.hazards())
    }
}

impl PyDevice {
    fn of_tests(&self) -> PyResult<&FakeAccelerator> {
        self.fake.as_deref().ok_or_else(|| PyRuntimeError::new_err("the device is no fake one"))
    }

    /// A stream and the memory of a call, by the numbers that Python has for them.
    fn place(&self, stream: usize, spans: &StagedSpans<'_>) -> Place {
        let StagedSpans { input, output, keep } = spans;
        if self.fake.is_some() {
            let (read, written) = regions(*input, *output, keep);
            let memory = |region: Region| (!region.is_empty()).then(|| DeviceMemory::of_host(region));
            let buffers = StagedBuffers { input: memory(read), output: memory(written) };
            return Place { stream: DeviceStream::own(stream), buffers };
        }
        raw_place(stream, *input, *output, keep.clone().unbind())
    }
}

/// Where a call is made.
struct Place {
    stream: DeviceStream,
    buffers: StagedBuffers,
}

/// A stream and memory of a device, by the driver's numbers.
fn raw_place(stream: usize, input: PySpan, output: PySpan, owner: Py<PyAny>) -> Place {
    let owner = Arc::new(owner);
    // SAFETY: the Python modules that make calls take the stream and the addresses from torch, of one device, and pass the owner of
    // the tensors, which the memory keeps; the module that exports this is private to them.
    unsafe {
        let memory = |(address, bytes): PySpan| {
            (bytes > 0).then(|| DeviceMemory::from_raw(address, bytes, owner.clone()))
        };
        let buffers = StagedBuffers { input: memory(input), output: memory(output) };
        Place { stream: DeviceStream::from_raw(stream), buffers }
    }
}

/// One group's calls on the memory of one device.
#[pyclass(frozen, name = "DeviceGroup", module = "herringbone._herringbone")]
pub(crate) struct PyDeviceGroup {
    device: Py<PyDevice>,
    /// Written when it is closed. Calls side by side: one may wait for its turn, which another one has to make first.
    inner: DropWithoutGil<RwLock<DeviceGroup>>,
}

#[pymethods]
impl PyDeviceGroup {
    /// The calls of a group for a device.
    #[new]
    fn new(communicator: &Communicator, device: Py<PyDevice>) -> PyResult<Self> {
        let (of, accelerator) = (communicator.inner.clone(), device.get().accelerator.clone());
        let group = DeviceGroup::new(of, accelerator).map_err(|error| errors::to_python(&error))?;
        Ok(Self { device, inner: RwLock::new(group).into() })
    }

    /// Start one operation behind what the program has queued on its stream.
    fn submit(&self, py: Python<'_>, call: PyCall<'_>, stream: usize) -> PyResult<PyStagedPending> {
        let (request, spans) = staged_request(call)?;
        self.start(py, StagedCall::Collective(request), &spans, stream)
    }

    /// Send a message to rank `to`, which receives it with the same tag.
    fn send(
        &self,
        py: Python<'_>,
        to: u32,
        message: PyMessage<'_>,
        stream: usize,
    ) -> PyResult<PyStagedPending> {
        let (message, spans) = staged_message(message, false)?;
        self.start(py, StagedCall::Send { to, message }, &spans, stream)
    }

    /// Receive a message from rank `of`, or from any rank if it is `None`.
    fn receive(
        &self,
        py: Python<'_>,
        of: Option<u32>,
        message: PyMessage<'_>,
        stream: usize,
    ) -> PyResult<PyStagedPending> {
        let (message, spans) = staged_message(message, true)?;
        self.start(py, StagedCall::Receive { from: of, message }, &spans, stream)
    }

    /// The driver's handles of the streams that copy.
    fn streams(&self, py: Python<'_>) -> Vec<usize> {
        let accelerator = &self.device.get().accelerator;
        py.detach(|| self.read().streams().iter().map(|stream| accelerator.handle(stream)).collect())
    }

    /// End once all operations are over, at the latest after the group's timeout.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.inner.write().unwrap_or_else(PoisonError::into_inner).close());
    }
}

impl PyDeviceGroup {
    fn read(&self) -> RwLockReadGuard<'_, DeviceGroup> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(
        &self,
        py: Python<'_>,
        call: StagedCall,
        spans: &StagedSpans<'_>,
        stream: usize,
    ) -> PyResult<PyStagedPending> {
        let Place { stream, buffers } = self.device.get().place(stream, spans);
        let pending = py.detach(|| self.read().submit(call, buffers, &stream));
        let pending = pending.map_err(|error| errors::to_python(&error))?;
        Ok(PyStagedPending { pending, is_fake: self.device.get().fake.is_some() })
    }
}

/// A running operation on an accelerator's memory, and the owner of its buffers until it is over.
#[pyclass(frozen, name = "StagedPending", module = "herringbone._herringbone")]
pub(crate) struct PyStagedPending {
    pending: StagedPending,
    is_fake: bool,
}

#[pymethods]
impl PyStagedPending {
    /// Have the stream wait for the result. If streams cannot wait for values, this blocks the program's thread until the last copy is
    /// queued, for at most `timeout` seconds; false if it is not by then.
    #[pyo3(signature = (stream, timeout=None))]
    fn wait_on_stream(&self, py: Python<'_>, stream: usize, timeout: Option<f64>) -> PyResult<bool> {
        let timeout = waiting::duration(timeout)?;
        let stream = match self.is_fake {
            true => DeviceStream::own(stream),
            false => raw_place(stream, (0, 0), (0, 0), py.None()).stream,
        };
        self.outcome(waiting::in_slices(py, timeout, |slice| self.pending.wait_on_stream(&stream, slice))?)
    }

    /// Wait without the GIL until the result is in the accelerator's memory, at most `timeout` seconds; false if it is not by then.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let timeout = waiting::duration(timeout)?;
        self.outcome(waiting::in_slices(py, timeout, |slice: Duration| self.pending.wait_for(slice))?)
    }

    /// Whether it is over, well or not.
    fn done(&self) -> bool {
        self.pending.is_done()
    }

    /// Why it has failed; `None` while it runs and where it succeeded.
    fn error(&self) -> Option<PyErr> {
        self.pending.result()?.err().map(|error| errors::to_python(&error))
    }

    /// Why an earlier call has failed, if nobody had asked for that when this one was made; else `None`.
    fn earlier(&self) -> Option<PyErr> {
        self.pending.earlier_failure().map(|error| errors::to_python(&error))
    }

    /// The rank whose message a receive has got, once it has; else `None`.
    fn source(&self) -> Option<u32> {
        self.pending.source()
    }

    /// Put `token` into `completions` once this is over; at once if it already is.
    fn notify(&self, completions: &Completions, token: u64) {
        self.pending.notify(completions.sender(), token);
    }
}

impl PyStagedPending {
    fn outcome(&self, outcome: Option<herringbone::Result<()>>) -> PyResult<bool> {
        match outcome {
            Some(result) => result.map(|()| true).map_err(|error| errors::to_python(&error)),
            None => Ok(false),
        }
    }
}
