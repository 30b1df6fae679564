//! The residuals of an owner's tensors: the parts that codecs have dropped.

use crate::{codecs::parse_codec, errors};
use herringbone::{Residual, Residuals};
use pyo3::{prelude::*, types::PyBytes};

/// A tensor's name, how many operations on it are complete, the codec, and the residual, as bytes of f32.
type Saved<'py> = (String, u64, Option<String>, Bound<'py, PyBytes>);

/// An owner of tensors' residuals.
#[pyclass(frozen, name = "Residuals", module = "herringbone._herringbone")]
pub(crate) struct PyResiduals(pub(crate) Residuals);

#[pymethods]
impl PyResiduals {
    #[new]
    fn new() -> Self {
        Self(Residuals::new())
    }

    /// All residuals, by the tensor's name.
    fn saved<'py>(&self, py: Python<'py>) -> Vec<Saved<'py>> {
        let saved = py.detach(|| self.0.saved());
        let entry = |Residual { tensor, steps, codec, left }| {
            (tensor, steps, codec.map(|codec| codec.to_string()), PyBytes::new(py, &bytes(&left)))
        };
        saved.into_iter().map(entry).collect()
    }

    /// The residual of a tensor, as bytes of f32; None if no operation on it has begun.
    fn left<'py>(&self, py: Python<'py>, tensor: &str) -> Option<Bound<'py, PyBytes>> {
        py.detach(|| self.0.left(tensor).map(|left| bytes(&left))).map(|left| PyBytes::new(py, &left))
    }

    /// Replace all residuals by the result of `saved`.
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

    /// Multiply each residual.
    fn scale(&self, factor: f32) -> PyResult<()> {
        self.0.scale(factor).map_err(|error| errors::to_python(&error))
    }

    /// Let the next operation on each tensor use another codec.
    fn release_codecs(&self) {
        self.0.release_codecs();
    }

    /// Drop the residual of a tensor.
    fn forget(&self, tensor: &str) {
        self.0.forget(tensor);
    }
}

fn bytes(left: &[f32]) -> Vec<u8> {
    left.iter().flat_map(|left| left.to_le_bytes()).collect()
}
