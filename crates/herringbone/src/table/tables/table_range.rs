//! A range of one table: its rows, and the requests that fit it.

use crate::{
    core::{
        element::DType,
        table::{HotKeys, OptimizerSpec, RangeState, RowKeys, TableError, TableSpec, ValueCodec},
    },
    sys::plain,
    table::{
        kept_push::{KeptPayload, KeptPush},
        memory::CountedKeys,
        rows::Rows,
    },
};
use std::{ops::Range, sync::Arc};

/// A range of a table.
pub(super) struct TableRange {
    pub(super) spec: TableSpec,
    /// The optimizer as it was last tuned.
    pub(super) optimizer: OptimizerSpec,
    /// How many ranges it has.
    pub(super) ranges: u32,
    /// The number with which it was [made](TableRequest::Open).
    pub(super) birth: Option<u32>,
    pub(super) keys: Range<u64>,
    pub(super) state: RangeState<KeptPush, WaitingPull>,
    pub(super) rows: Box<dyn Rows>,
    /// What it takes up of the server's memory.
    pub(super) used: u64,
    /// How many pulls are to be answered before another step takes effect.
    pub(super) owed: usize,
    /// Rows with a NaN that were pushed.
    pub(super) not_numbers: u64,
    /// Snapshots that are to be taken of it.
    pub(super) saves: Vec<WantedSave>,
    pub(super) hot: HotKeys,
}

/// A snapshot that is to be taken once so many steps have ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct WantedSave {
    pub(super) connection: u64,
    pub(super) number: u64,
    pub(super) id: u64,
    pub(super) step: u64,
}

#[derive(Debug)]
pub(super) struct WaitingPull {
    pub(super) connection: u64,
    pub(super) number: u64,
    pub(super) codec: ValueCodec,
    pub(super) keys: CountedKeys,
}

impl TableRange {
    /// What pushes took up that are dropped.
    pub(super) fn free(&mut self, dropped: &[KeptPush]) -> u64 {
        let freed: u64 = dropped.iter().map(|push| push.reserved).sum();
        self.used -= freed;
        freed
    }

    pub(super) fn check_codec(&self, codec: ValueCodec) -> Result<(), TableError> {
        if codec.is_plain() || self.spec.dtype == DType::F32 {
            return Ok(());
        }
        let what = format!("values of {} coded by {}: only f32 can be", self.spec.dtype, codec.codec());
        Err(TableError::Unusable(what))
    }

    /// The values of a push as they are.
    pub(super) fn plain(
        &self,
        codec: ValueCodec,
        keys: &RowKeys,
        payload: KeptPayload,
    ) -> Result<KeptPayload, TableError> {
        if codec.is_plain() {
            return Ok(payload);
        }
        self.check_codec(codec)?;
        let values = codec.decode(self.spec.width as usize, keys.len(), payload.values())?;
        Ok(KeptPayload { bytes: Arc::new(plain::bytes(&values).to_vec()), values_at: 0 })
    }

    pub(super) fn check_keys(&self, keys: &RowKeys) -> Result<(), TableError> {
        if keys.are_right(&self.keys) {
            return Ok(());
        }
        let (first, last) = (keys.get(0), keys.get(keys.len() - 1));
        let (begin, end) = (self.keys.start, self.keys.end.saturating_sub(1));
        if begin <= first && last <= end {
            // A caller's keys may be in any order, a message's are not.
            return Err(TableError::Malformed("keys that are not ascending, each there once".into()));
        }
        Err(TableError::RowKeys { first, last, begin, end })
    }
}

/// The payload of an answer whose rows of f32 are as they are from some place on, coded.
pub(super) fn coded(codec: ValueCodec, width: usize, payload: &[u8], rows_at: usize) -> Vec<u8> {
    let (head, rows) = payload.split_at(rows_at);
    let rows: Vec<f32> = rows.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let mut coded = head.to_vec();
    codec.encode(width, &rows, &mut coded);
    coded
}
