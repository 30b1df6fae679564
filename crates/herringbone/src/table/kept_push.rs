//! A push that waits for the end of its step.

use super::spare;
use crate::core::table::{KnownKeys, RequestAddress, RowKeys, TableError, TableRequest};
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

    /// What it takes up until the end of its step.
    pub(super) fn bytes(&self) -> u64 {
        (self.keys.bytes() + self.values().len()) as u64
    }
}

impl KeptPayload {
    /// The request of a payload behind its [address](RequestAddress), and the payload with its values.
    ///
    /// # Errors
    /// [`TableError::Malformed`].
    pub(super) fn decode(bytes: Vec<u8>, known: &mut KnownKeys) -> Result<(TableRequest, Self), TableError> {
        let behind = bytes.get(RequestAddress::BYTES..).unwrap_or_default();
        let (request, values) = TableRequest::decode_knowing(behind, known)?;
        let values_at = bytes.len() - values.len();
        Ok((request, Self { bytes: Arc::new(bytes), values_at }))
    }

    /// The payload as another connection can carry it, with all keys of the request that it came with.
    ///
    /// # Errors
    /// [`TableError::Malformed`] if that is too long.
    pub(super) fn whole(&self, request: &TableRequest) -> Result<Vec<u8>, TableError> {
        let head = request.encode().map_err(|error| TableError::Malformed(error.to_string()))?;
        let address = self.bytes.get(..RequestAddress::BYTES).unwrap_or_default();
        Ok([address, &head, self.values()].concat())
    }

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
