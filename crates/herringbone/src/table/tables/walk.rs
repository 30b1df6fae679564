//! How far the image of a table has gone: out of the table, and into another one.

use crate::{
    core::{
        session::TooLong,
        table::{
            BODY_BYTES, IMAGE_CLOCKS, ImageHead, ImageRecord, NumberedPush, RangeState, TableError,
            WorkerClock,
        },
    },
    table::{
        chunks::{PlacedRows, RowBlock},
        kept_push::{KeptPayload, KeptPush},
    },
};
use std::{collections::VecDeque, ops::Range};

/// How far an image of a table has been walked.
pub(in crate::table) struct ImageCursor {
    head: VecDeque<HeadRecord>,
    /// How many records have been there.
    records: u64,
    /// The place of the next row.
    next: u64,
    is_over: bool,
}

/// A record before the first row, with the values behind it.
struct HeadRecord {
    record: ImageRecord,
    values: Option<KeptPayload>,
}

/// A table as it was at one moment, without the pushes that it kept. What it costs: [`Rows::freeze`](crate::table::rows::Rows::freeze).
pub(in crate::table) struct FrozenTable {
    pub(in crate::table) head: ImageHead,
    pub(super) cursor: ImageCursor,
    pub(super) rows: Box<dyn PlacedRows>,
}

/// A table that comes record by record.
#[derive(Debug)]
pub(in crate::table) struct TableLoader {
    pub(super) name: String,
    pub(in crate::table) number: u32,
    /// Of the table.
    pub(super) all_keys: Range<u64>,
    /// How many records have come.
    pub(super) records: u64,
    /// How many rows, with those of other ranges.
    pub(super) rows: u64,
}

impl ImageCursor {
    pub(super) fn new<Q>(head: &ImageHead, state: &RangeState<KeptPush, Q>, has_kept: bool) -> Self {
        let mut records = VecDeque::from([HeadRecord::from(ImageRecord::Head(Box::new(head.clone())))]);
        let clocks: Vec<WorkerClock> = state.worker_clocks().collect();
        records.extend(
            clocks.chunks(IMAGE_CLOCKS).map(|part| HeadRecord::from(ImageRecord::Clocks(part.to_vec()))),
        );
        let kept = state.kept().filter(|_| has_kept);
        records.extend(kept.map(|(step, worker, NumberedPush { number, push })| HeadRecord {
            record: ImageRecord::Kept { step, worker, number: *number, keys: push.keys.clone() },
            values: Some(push.payload.clone()),
        }));
        Self { head: records, records: 0, next: 0, is_over: false }
    }

    /// Whether records are left that a copy needs before it can be told of anything that changes the table. They have been as they
    /// are since the image began.
    pub(in crate::table) fn is_in_head(&self) -> bool {
        !self.head.is_empty()
    }

    /// The next record, if one is left.
    pub(super) fn next(&mut self, rows: &dyn PlacedRows) -> Result<Option<Vec<u8>>, TableError> {
        self.records += 1;
        if let Some(HeadRecord { record, values }) = self.head.pop_front() {
            let mut bytes = encode(&record)?;
            if let Some(values) = values {
                bytes.extend_from_slice(values.values());
            }
            return Ok(Some(bytes));
        }
        if self.is_over {
            return Ok(None);
        }
        if self.next < rows.places() {
            let RowBlock { keys, bytes, next } = rows.block(self.next, BODY_BYTES);
            self.next = next;
            let mut record = encode(&ImageRecord::Rows { keys })?;
            record.extend_from_slice(&bytes);
            return Ok(Some(record));
        }
        self.is_over = true;
        encode(&ImageRecord::End { records: self.records - 1, rows: self.next }).map(Some)
    }
}

impl From<ImageRecord> for HeadRecord {
    fn from(record: ImageRecord) -> Self {
        Self { record, values: None }
    }
}

fn encode(record: &ImageRecord) -> Result<Vec<u8>, TableError> {
    record.encode().map_err(|too_long: TooLong| TableError::Malformed(too_long.to_string()))
}

impl FrozenTable {
    /// The next record of its image, if one is left.
    pub(in crate::table) fn next(&mut self) -> Result<Option<Vec<u8>>, TableError> {
        self.cursor.next(&*self.rows)
    }
}
