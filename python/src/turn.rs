//! Turns in lines of calls, seen from Python.

use pyo3::{prelude::*, types::PyTuple};

/// A place in the order of a group's calls, for code that runs later or on another thread.
#[pyclass(frozen, module = "herringbone._herringbone", name = "Turn")]
pub(crate) struct PyTurn(pub(crate) herringbone::LineTurn);

#[pymethods]
impl PyTurn {
    /// Call `function(*arguments)`: the calls that it makes on this thread have this turn's place. The first of these
    /// calls waits, without the GIL, until all earlier turns of the line are over.
    #[pyo3(signature = (function, *arguments))]
    fn run<'py>(
        &self,
        function: &Bound<'py, PyAny>,
        arguments: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.0.run(|| function.call1(arguments))
    }

    /// Whether all earlier turns of the line are over, so that its calls wait for none.
    fn is_next(&self) -> bool {
        self.0.is_next()
    }

    /// End the turn: no more calls are made in it. It also ends when its last reference is gone.
    fn end(&self) {
        self.0.end();
    }
}
