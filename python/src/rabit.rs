//! Programs that continue where they were.

use crate::{
    call::{PyCall, rabit_collective, readable},
    errors::{plain, to_python},
    logging,
    memory::PySpan,
    waiting::DropWithoutGil,
};
use herringbone::{
    Error,
    rabit::{Rabit, RabitOptions},
};
use pyo3::{prelude::*, types::PyBytes};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// A checkpoint: its version, the model that all ranks have, and this rank's own.
type PyModels<'py> = (u32, Bound<'py, PyBytes>, Option<Bound<'py, PyBytes>>);

/// A process of a program that continues where it was. `None` once it has ended.
#[pyclass(frozen, name = "Rabit", module = "herringbone._herringbone")]
pub(crate) struct PyRabit {
    rabit: DropWithoutGil<Mutex<Option<Rabit>>>,
    /// The exception that a signal's handler has raised while a call waited, such as KeyboardInterrupt.
    raised: Arc<Mutex<Option<PyErr>>>,
}

#[pymethods]
impl PyRabit {
    /// Joins, or continues; the program's arguments can include RABIT's.
    #[new]
    fn new(py: Python<'_>, arguments: Vec<String>) -> PyResult<Self> {
        logging::begin(py)?;
        let joined = py.detach(|| {
            let options = RabitOptions::from_env()?.with_arguments(arguments.iter().map(String::as_str))?;
            Rabit::init_with(options)
        });
        let mut rabit = joined.map_err(|error| to_python(&error))?;
        rabit.on_forming(herringbone_admin::attach);
        let raised = Arc::new(Mutex::new(None));
        let raising = raised.clone();
        rabit.ask_while_waiting(move || {
            Python::attach(|py| py.check_signals()).map_err(|raised| {
                let error = Error::of_program("a signal ended the call", &raised);
                *raising.lock().unwrap_or_else(PoisonError::into_inner) = Some(raised);
                error
            })
        });
        Ok(Self { rabit: Mutex::new(Some(rabit)).into(), raised })
    }

    /// Its rank, the number of ranks, and the name of its host.
    fn place(&self, py: Python<'_>) -> PyResult<(u32, u32, String)> {
        self.with(py, |rabit| Ok((rabit.rank(), rabit.size(), rabit.processor_name())))
    }

    fn version(&self, py: Python<'_>) -> PyResult<u32> {
        self.with(py, |rabit| Ok(rabit.version()))
    }

    /// How many bytes of results it keeps for others.
    fn kept_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |rabit| Ok(rabit.kept_bytes()))
    }

    fn tracker_print(&self, py: Python<'_>, line: &str) -> PyResult<()> {
        self.with(py, |rabit| {
            rabit.tracker_print(line);
            Ok(())
        })
    }

    /// Makes a collective. `prepare` puts the input into its memory; it is not called if the result is there already.
    #[pyo3(signature = (call, place, prepare=None))]
    fn call(
        &self,
        py: Python<'_>,
        call: PyCall<'_>,
        place: u64,
        prepare: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let call = rabit_collective(call, place);
        let Some(prepare) = prepare else {
            return self.with(py, |rabit| if rabit.begin(&call)? { rabit.finish(&call) } else { Ok(()) });
        };
        if self.with(py, |rabit| rabit.begin(&call))? {
            prepare.call0()?;
            self.with(py, |rabit| rabit.finish(&call))?;
        }
        Ok(())
    }

    fn load_checkpoint<'py>(&self, py: Python<'py>) -> PyResult<Option<PyModels<'py>>> {
        let loaded = self.with(py, Rabit::load_checkpoint)?;
        Ok(loaded.map(|models| {
            let local = models.local.map(|local| PyBytes::new(py, &local));
            (models.version, PyBytes::new(py, &models.global), local)
        }))
    }

    /// The models' memory, which `keep` owns and no code writes any more.
    fn checkpoint(
        &self,
        py: Python<'_>,
        global: PySpan,
        local: Option<PySpan>,
        keep: Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (global, local) = (readable(global, &keep), local.map(|local| readable(local, &keep)));
        self.with(py, |rabit| rabit.checkpoint_regions(global, local))
    }

    /// `save` turns the model into bytes if a rank asks for them.
    fn lazy_checkpoint(&self, py: Python<'_>, save: Py<PyAny>) -> PyResult<()> {
        self.with(py, |rabit| {
            rabit.lazy_checkpoint(move || {
                Python::attach(|py| save.call0(py).and_then(|bytes| bytes.extract::<Vec<u8>>(py)))
                    .map_err(|error| Error::of_program("the model's bytes", error))
            })
        })
    }

    /// Returns when all ranks have called it.
    fn finalize(&self, py: Python<'_>) -> PyResult<()> {
        let rabit = self.lock()?.take();
        let rabit = rabit.ok_or_else(|| plain("rabit.finalize was called before"))?;
        py.detach(|| rabit.finalize()).map_err(|error| self.error(&error))
    }
}

impl PyRabit {
    fn lock(&self) -> PyResult<MutexGuard<'_, Option<Rabit>>> {
        match self.rabit.try_lock() {
            Ok(rabit) => Ok(rabit),
            Err(TryLockError::WouldBlock) => Err(plain(
                "another thread of this program is in a call of rabit: make all calls from one thread",
            )),
            Err(TryLockError::Poisoned(_)) => Err(plain("a call of rabit panicked: start the program again")),
        }
    }

    /// Makes a call without the interpreter's lock.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut Rabit) -> herringbone::Result<T> + Send,
    ) -> PyResult<T> {
        let mut rabit = self.lock()?;
        let rabit = rabit.as_mut().ok_or_else(|| plain("rabit has ended: call init() first"))?;
        py.detach(|| call(rabit)).map_err(|error| self.error(&error))
    }

    fn error(&self, error: &Error) -> PyErr {
        let raised = self.raised.lock().unwrap_or_else(PoisonError::into_inner).take();
        raised.unwrap_or_else(|| to_python(error))
    }
}
