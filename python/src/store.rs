//! torch's store as the engine's meeting point.

use herringbone::{Store, StoreError};
use pyo3::{prelude::*, types::PyBytes};
use std::time::Duration;

/// A `torch.distributed.Store`. Its methods release the interpreter's lock while they wait.
pub(crate) struct TorchStore(pub(crate) Py<PyAny>);

impl Store for TorchStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.with(|store| {
            store.call_method1("set", (key, PyBytes::new(store.py(), value)))?;
            Ok(())
        })
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, StoreError> {
        self.with(|store| match store.call_method1("wait", (vec![key], timeout)) {
            Ok(_) => Ok(Some(store.call_method1("get", (key,))?.extract()?)),
            Err(error) if is_timeout(&error, store.py()) => Ok(None),
            Err(error) => Err(error),
        })?
        .ok_or(StoreError::Timeout)
    }
}

impl TorchStore {
    fn with<T>(&self, call: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>) -> Result<T, StoreError> {
        let failed = |error: &dyn std::fmt::Display| StoreError::Failed(error.to_string());
        let outcome = Python::try_attach(|py| call(self.0.bind(py)).map_err(|error| failed(&error)));
        outcome.unwrap_or_else(|| Err(failed(&"the interpreter is ending")))
    }
}

/// Whether torch reports that a key did not come in time.
fn is_timeout(error: &PyErr, py: Python<'_>) -> bool {
    let text = error.value(py).to_string().to_lowercase();
    text.contains("timeout") || text.contains("timed out")
}
