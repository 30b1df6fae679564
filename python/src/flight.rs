//! The form in which the process writes its flight records.

use herringbone::flight::{FlightFormat, write_as};
use pyo3::prelude::*;

/// Write flight records as torch's `torchfrtrace` reads them, from now on.
#[pyfunction]
pub(crate) fn write_torch_records() {
    write_as(FlightFormat::Torch);
}
