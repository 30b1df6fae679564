//! A push that waits for the end of its step.

use crate::core::table::RowKeys;
use std::sync::Arc;

/// A push that waits for the end of its step.
#[derive(Debug)]
pub(super) struct KeptPush {
    pub(super) keys: RowKeys,
    /// Shared with images of its table that are being sent.
    pub(super) payload: Arc<Vec<u8>>,
    /// Where in it the values begin.
    pub(super) values_at: usize,
    /// How much memory was set aside for it, with that for rows that are not there yet.
    pub(super) reserved: u64,
}

impl KeptPush {
    pub(super) fn values(&self) -> &[u8] {
        &self.payload[self.values_at..]
    }
}
