//! torch's store as the engine's place to meet.

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
        self.with(|store| {
            store.call_method1("wait", (vec![key], timeout))?;
            store.call_method1("get", (key,))?.extract()
        })
    }
}

impl TorchStore {
    fn with<T>(&self, call: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>) -> Result<T, StoreError> {
        let outcome = Python::try_attach(|py| call(self.0.bind(py)).map_err(|error| error.to_string()));
        outcome.unwrap_or_else(|| Err("the interpreter is ending".to_owned())).map_err(StoreError::new)
    }
}
