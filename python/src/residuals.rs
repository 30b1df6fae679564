//! What codecs have left of an owner's tensors.

use crate::{codecs::parse_codec, errors};
use herringbone::{Residual, Residuals};
use pyo3::{prelude::*, types::PyBytes};

/// A tensor's name, how many operations on it are complete, the codec, and what is left of its elements, as bytes of f32.
type Saved<'py> = (String, u64, Option<String>, Bound<'py, PyBytes>);

/// An owner of what codecs leave of tensors.
#[pyclass(frozen, name = "Residuals", module = "herringbone._herringbone")]
pub(crate) struct PyResiduals(pub(crate) Residuals);

#[pymethods]
impl PyResiduals {
    #[new]
    fn new() -> Self {
        Self(Residuals::new())
    }

    /// All of it, by name.
    fn saved<'py>(&self, py: Python<'py>) -> Vec<Saved<'py>> {
        let saved = py.detach(|| self.0.saved());
        let entry = |Residual { tensor, steps, codec, left }| {
            (tensor, steps, codec.map(|codec| codec.to_string()), PyBytes::new(py, &bytes(&left)))
        };
        saved.into_iter().map(entry).collect()
    }

    /// What is left of a tensor's elements, as bytes of f32; None if no operation on it has begun.
    fn left<'py>(&self, py: Python<'py>, tensor: &str) -> Option<Bound<'py, PyBytes>> {
        py.detach(|| self.0.left(tensor).map(|left| bytes(&left))).map(|left| PyBytes::new(py, &left))
    }

    /// Go on with what `saved` gave, in place of what is left now.
    fn restore(&self, saved: Vec<Saved<'_>>) -> PyResult<()> {
        let floats =
            |bytes: &[u8]| bytes.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect();
        let restored = |(tensor, steps, codec, left): Saved<'_>| {
            let codec = codec.as_deref().map(parse_codec).transpose()?;
            Ok(Residual { tensor, steps, codec, left: floats(left.as_bytes()) })
        };
        self.0.restore(saved.into_iter().map(restored).collect::<PyResult<_>>()?);
        Ok(())
    }

    /// Multiply what is left of each tensor.
    fn scale(&self, factor: f32) -> PyResult<()> {
        self.0.scale(factor).map_err(|error| errors::to_python(&error))
    }

    /// Let the next operation on each tensor have another codec.
    fn release_codecs(&self) {
        self.0.release_codecs();
    }

    /// Drop what is left of a tensor.
    fn forget(&self, tensor: &str) {
        self.0.forget(tensor);
    }
}

fn bytes(left: &[f32]) -> Vec<u8> {
    left.iter().flat_map(|left| left.to_le_bytes()).collect()
}
