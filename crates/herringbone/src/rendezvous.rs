//! How ranks find each other, before any connection between them.

mod machine;
mod numbered;
mod torchrun;

pub(crate) use machine::MachineStore;
pub(crate) use numbered::Numbered;
pub(crate) use torchrun::TorchrunStore;

use std::time::Duration;

/// A key-value store that all ranks reach, such as torch's.
pub trait Store: Send + Sync {
    /// Sets a key.
    ///
    /// # Errors
    /// If the store cannot be reached.
    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError>;

    /// Waits for a key, at most `timeout`.
    ///
    /// # Errors
    /// [`StoreError::Timeout`] if the key is not set by then; [`StoreError::Failed`] if the store cannot be reached.
    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, StoreError>;
}

/// The failure of a store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The key was not set in time.
    #[error("the key was not set in time")]
    Timeout,
    /// The store failed, in its own words.
    #[error("{0}")]
    Failed(String),
}

impl StoreError {
    /// The error of a store that says `what` it did when the system failed it.
    fn of(what: impl std::fmt::Display, error: impl std::fmt::Display) -> Self {
        StoreError::Failed(format!("{what}: {error}"))
    }
}
