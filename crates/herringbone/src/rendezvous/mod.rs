//! How ranks find each other, before there is anything of ours to talk over.

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

/// Why a store did not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The key was not set in time.
    #[error("the key was not set in time")]
    Timeout,
    /// The store failed, in its own words.
    #[error("{0}")]
    Failed(String),
}
