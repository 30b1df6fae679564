//! A push that waits for the end of its step.

use super::spare;
use crate::core::table::RowKeys;
use std::{mem, sync::Arc};

/// A push that waits for the end of its step.
#[derive(Debug)]
pub(super) struct KeptPush {
    pub(super) keys: RowKeys,
    pub(super) payload: KeptPayload,
    /// How much memory was set aside for it, with that for rows that are not there yet.
    pub(super) reserved: u64,
}

/// The payload of a push.
#[derive(Clone, Debug)]
pub(super) struct KeptPayload {
    /// Shared with images of its table that are being sent.
    pub(super) bytes: Arc<Vec<u8>>,
    /// Where in it the values begin.
    pub(super) values_at: usize,
}

impl KeptPush {
    pub(super) fn values(&self) -> &[u8] {
        self.payload.values()
    }
}

impl KeptPayload {
    pub(super) fn values(&self) -> &[u8] {
        &self.bytes[self.values_at..]
    }
}

impl Drop for KeptPayload {
    fn drop(&mut self) {
        if let Some(bytes) = Arc::get_mut(&mut self.bytes) {
            spare::keep(mem::take(bytes));
        }
    }
}
