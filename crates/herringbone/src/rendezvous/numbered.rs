//! Keys of one meeting, in a store that outlives it.

use super::{Store, StoreError};
use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// How many meetings this process has begun. All ranks begin the same ones, so the numbers agree.
static ROUNDS: AtomicU64 = AtomicU64::new(0);

/// A store in which each meeting of a process has keys of its own: what an earlier one left there is not taken for this
/// one's.
pub(crate) struct Numbered<S> {
    store: S,
    number: OnceLock<u64>,
}

impl<S: Store> Numbered<S> {
    /// The meeting gets its number when the store is first used.
    pub(crate) fn new(store: S) -> Self {
        Self { store, number: OnceLock::new() }
    }

    fn key(&self, key: &str) -> String {
        let number = self.number.get_or_init(|| ROUNDS.fetch_add(1, Ordering::Relaxed));
        format!("{key}/{number}")
    }
}

impl<S: Store> Store for Numbered<S> {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.store.set(&self.key(key), value)
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, StoreError> {
        self.store.get(&self.key(key), timeout)
    }
}
