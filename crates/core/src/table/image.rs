//! The image of a range: its records as bytes. A copy on another server is made from one, and a snapshot on disk is one.
//!
//! The records are a [head](ImageRecord::Head), the [clocks](ImageRecord::Clocks) of the workers, the pushes that are
//! [kept](ImageRecord::Kept), blocks of [rows](ImageRecord::Rows), and an [end](ImageRecord::End), in this order. Some have bytes
//! behind them, as [messages](super::TableRequest) do, and none is longer than [`PAYLOAD_BYTES`].

use super::{KeyForm, KnownKeys, OptimizerSpec, PAYLOAD_BYTES, RowKeys, TableError, TableSpec, WorkerClock};
use crate::session::{Malformed, Reader, TooLong, Writer};
use alloc::{boxed::Box, string::String, vec::Vec};

/// The most clocks of a record.
pub const IMAGE_CLOCKS: usize = 4096;

/// A record of an image.
#[derive(Clone, Debug, PartialEq)]
pub enum ImageRecord {
    /// The description of the table.
    Head(Box<ImageHead>),
    /// Clocks of workers, ascending, at most [`IMAGE_CLOCKS`].
    Clocks(Vec<WorkerClock>),
    /// A push of a step that is not over. Its values follow.
    Kept {
        /// The step.
        step: u64,
        /// Whose push it is.
        worker: u32,
        /// The number of its request.
        number: u64,
        /// The rows.
        keys: RowKeys,
    },
    /// Rows. After them come, for each row, its elements, the optimizer's state, and the count of its steps.
    Rows {
        /// In a dense table this is a run. In a sparse table the keys are listed in no order.
        keys: RowKeys,
    },
    /// The image is complete.
    End {
        /// How many records come before this one.
        records: u64,
        /// How many rows all blocks have.
        rows: u64,
    },
}

/// The description of a table, and the progress of its range.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageHead {
    /// Its name.
    pub name: String,
    /// Its number on the server.
    pub number: u32,
    /// Its specification.
    pub spec: TableSpec,
    /// The optimizer as it was last tuned.
    pub optimizer: OptimizerSpec,
    /// Which range of it this is.
    pub range: u32,
    /// How many ranges there are.
    pub ranges: u32,
    /// The [version](super::RangeState::version) of the range.
    pub version: u64,
    /// How many steps workers that have not come are taken to have [ended](super::RangeState::began_at).
    pub began_at: u64,
    /// The number with which it was [made](super::TableRequest::Open).
    pub birth: Option<u32>,
    /// Pushes with a NaN that were taken.
    pub not_numbers: u64,
}

impl ImageRecord {
    /// The record without the bytes that follow.
    ///
    /// # Errors
    /// If it has too long a name, or too many keys or clocks.
    pub fn encode(&self) -> Result<Vec<u8>, TooLong> {
        let mut to = Writer::default();
        match self {
            Self::Head(head) => {
                to.u8(1);
                head.spec.write(&head.name, &mut to);
                head.optimizer.write(&mut to);
                [head.number, head.range, head.ranges].into_iter().for_each(|number| to.u32(number));
                [head.version, head.began_at, head.not_numbers].into_iter().for_each(|number| to.u64(number));
                to.option(head.birth.as_ref(), |to, birth| to.u32(*birth));
            }
            Self::Clocks(clocks) => {
                to.u8(2);
                to.list("a list of clocks", clocks, |to, clock| {
                    to.u32(clock.worker);
                    [clock.life, clock.step, clock.number].into_iter().for_each(|number| to.u64(number));
                    to.bool(clock.has_left);
                });
            }
            Self::Kept { step, worker, number, keys } => {
                to.u8(3);
                to.u64(*step);
                to.u32(*worker);
                to.u64(*number);
                keys.write(KeyForm::Whole, &mut to);
            }
            Self::Rows { keys } => {
                to.u8(4);
                keys.write(KeyForm::Whole, &mut to);
            }
            Self::End { records, rows } => {
                to.u8(5);
                to.u64(*records);
                to.u64(*rows);
            }
        }
        to.finish(PAYLOAD_BYTES)
    }

    /// Reads a record, and the bytes behind it.
    ///
    /// # Errors
    /// [`TableError::Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<(Self, &[u8]), TableError> {
        let mut from = Reader(bytes);
        let record = Self::read(&mut from).map_err(|Malformed(what)| TableError::Malformed(what.into()))?;
        let has_more = matches!(record, Self::Kept { .. } | Self::Rows { .. });
        if !has_more && !from.0.is_empty() {
            return Err(TableError::Malformed("it is longer than it should be".into()));
        }
        Ok((record, from.0))
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(match from.u8()? {
            1 => {
                let (name, spec) = TableSpec::read(from)?;
                let optimizer = OptimizerSpec::read(from)?;
                let [number, range, ranges] = [from.u32()?, from.u32()?, from.u32()?];
                let [version, began_at, not_numbers] = [from.u64()?, from.u64()?, from.u64()?];
                Self::Head(Box::new(ImageHead {
                    name,
                    number,
                    spec,
                    optimizer,
                    range,
                    ranges,
                    version,
                    began_at,
                    not_numbers,
                    birth: from.option(Reader::u32)?,
                }))
            }
            2 => Self::Clocks(from.list(|from| {
                let worker = from.u32()?;
                let [life, step, number] = [from.u64()?, from.u64()?, from.u64()?];
                Ok(WorkerClock { worker, life, step, number, has_left: from.bool()? })
            })?),
            3 => Self::Kept {
                step: from.u64()?,
                worker: from.u32()?,
                number: from.u64()?,
                keys: RowKeys::read(from, &mut KnownKeys::default())?,
            },
            4 => Self::Rows { keys: RowKeys::read(from, &mut KnownKeys::default())? },
            5 => Self::End { records: from.u64()?, rows: from.u64()? },
            _ => return Err(Malformed("a record that is unknown: install the same release everywhere")),
        })
    }
}
