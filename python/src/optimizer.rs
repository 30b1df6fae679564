//! The optimizers of local stores, for `herringbone/kvstore/optimizer.py`.

use crate::{
    call::{parse, regions},
    errors::{self, to_python},
    memory::PySpan,
};
use herringbone::{
    core::table::{OptimizerKind, OptimizerSpec, Unusable},
    table::LocalOptimizer,
};
use pyo3::{prelude::*, types::PyBytes};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Numbers of an optimizer by their names.
pub(crate) type PyNumbers = Vec<(String, f64)>;

/// Each optimizer's name, with the defaults of its numbers.
#[pyfunction]
pub(crate) fn optimizers() -> Vec<(String, Vec<(&'static str, f64)>)> {
    let numbers = |kind: OptimizerKind| {
        kind.parameters().into_iter().map(|(parameter, number)| (parameter.name(), number)).collect()
    };
    OptimizerKind::ALL.into_iter().map(|kind| (kind.name().to_owned(), numbers(kind))).collect()
}

/// An optimizer and its state for one array. A wrong address in a call is a wrong memory access, so only this package's modules use it.
#[pyclass(frozen, name = "LocalOptimizer", module = "herringbone._herringbone")]
pub(crate) struct PyLocalOptimizer(Mutex<LocalOptimizer>);

#[pymethods]
impl PyLocalOptimizer {
    /// For this number of elements of a type, given by its short name.
    #[new]
    fn new(optimizer: &str, numbers: PyNumbers, dtype: &str, elements: usize) -> PyResult<Self> {
        let spec = optimizer_spec(optimizer, &numbers).map_err(errors::argument)?;
        let made = LocalOptimizer::new(spec, parse(dtype)?, elements);
        Ok(Self(Mutex::new(made.map_err(|error| to_python(&error))?)))
    }

    /// Use other numbers from the next step on.
    fn set(&self, numbers: PyNumbers) -> PyResult<()> {
        let mut optimizer = self.lock();
        let spec = optimizer_spec(&optimizer.spec().kind.to_string(), &numbers).map_err(errors::argument)?;
        optimizer.set(spec).map_err(|error| to_python(&error))
    }

    /// Change weights by gradients in memory that `owner` keeps.
    fn step(
        &self,
        py: Python<'_>,
        weights: PySpan,
        gradients: PySpan,
        owner: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (gradients, weights) = regions(gradients, weights, owner);
        let stepped = py.detach(|| self.lock().step_regions(&weights, &gradients));
        stepped.map_err(|error| to_python(&error))
    }

    /// How many steps it has taken.
    #[getter]
    fn steps(&self) -> u32 {
        self.lock().steps()
    }

    /// Its state: the first number of all elements, then the second one.
    fn state<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &py.detach(|| self.lock().state()))
    }

    /// Continue after this number of steps with the result of `state`.
    fn restore(&self, steps: u32, state: &[u8]) -> PyResult<()> {
        self.lock().restore(steps, state).map_err(|error| to_python(&error))
    }
}

impl PyLocalOptimizer {
    fn lock(&self) -> MutexGuard<'_, LocalOptimizer> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An optimizer by its name, with some numbers other than the defaults.
///
/// # Errors
/// A text that names what is wrong.
pub(crate) fn optimizer_spec(name: &str, numbers: &PyNumbers) -> Result<OptimizerSpec, String> {
    let kind = OptimizerKind::from_name(name).ok_or_else(|| {
        let known = OptimizerKind::ALL.map(|kind| kind.name().to_owned()).join(", ");
        format!("no optimizer is called {name:?}; use one of {known}, or own:NAME of a server that has it")
    })?;
    let with = |spec: OptimizerSpec, (parameter, number): &(String, f64)| spec.with(parameter, *number);
    numbers.iter().try_fold(OptimizerSpec::of(kind), with).map_err(|Unusable(what)| what)
}
