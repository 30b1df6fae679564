//! The memory of a server's tables, and its limit.

use crate::core::table::{RowKeys, TableError};
use std::{
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// What a pull takes up until it is answered, beside its keys.
const PULL_BYTES: u64 = 256;

/// A server's memory for tables, which all of its ranges share.
#[derive(Clone, Debug)]
pub(super) struct TableMemory {
    /// How many bytes rows, pushes that wait for the end of a step, and pulls that are not answered may take up.
    limit: u64,
    used: Arc<AtomicU64>,
}

impl TableMemory {
    pub(super) fn new(limit: u64) -> Self {
        Self { limit, used: Arc::default() }
    }

    /// Copies take memory without a check, so a server may be above its limit: then there is still room for nothing.
    ///
    /// # Errors
    /// [`TableError::Full`] if so many bytes more are too many.
    pub(super) fn check(&self, more: u64) -> Result<(), TableError> {
        match more == 0 || self.used.load(Relaxed).saturating_add(more) <= self.limit {
            true => Ok(()),
            false => Err(TableError::Full { limit: self.limit }),
        }
    }

    /// # Errors
    /// [`TableError::Full`] if what counts already is too much.
    pub(super) fn check_counted(&self) -> Result<(), TableError> {
        match self.used.load(Relaxed) <= self.limit {
            true => Ok(()),
            false => Err(TableError::Full { limit: self.limit }),
        }
    }

    /// In bytes.
    pub(super) fn used_and_limit(&self) -> (u64, u64) {
        (self.used.load(Relaxed), self.limit)
    }

    /// Counts a pull until its keys are dropped.
    pub(super) fn count(&self, keys: RowKeys) -> CountedKeys {
        let listed = if let RowKeys::Listed(listed) = &keys { listed.len() * size_of::<u64>() } else { 0 };
        let bytes = PULL_BYTES + listed as u64;
        let mut share = MemoryShare::new(self);
        share.set(bytes);
        CountedKeys { keys, _share: share }
    }

    pub(super) fn take(&self, bytes: u64) {
        self.used.fetch_add(bytes, Relaxed);
    }

    pub(super) fn give_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Relaxed);
    }
}

/// What something takes up of a server's memory, as long as it is there.
#[derive(Debug)]
pub(super) struct MemoryShare {
    memory: TableMemory,
    bytes: u64,
}

impl MemoryShare {
    /// Nothing yet.
    pub(super) fn new(memory: &TableMemory) -> Self {
        Self { memory: memory.clone(), bytes: 0 }
    }

    /// It takes up so many bytes from now on, whether or not there is room for them.
    pub(super) fn set(&mut self, bytes: u64) {
        self.memory.take(bytes);
        self.memory.give_back(std::mem::replace(&mut self.bytes, bytes));
    }
}

impl Drop for MemoryShare {
    fn drop(&mut self) {
        self.memory.give_back(self.bytes);
    }
}

/// The keys of a pull that is not answered yet.
#[derive(Debug)]
pub(super) struct CountedKeys {
    keys: RowKeys,
    /// What the pull takes up of the memory.
    _share: MemoryShare,
}

impl Deref for CountedKeys {
    type Target = RowKeys;

    fn deref(&self) -> &RowKeys {
        &self.keys
    }
}
