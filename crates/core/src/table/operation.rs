//! The changes of a range, which its owner sends to its copies: they execute the same, in the same order.

use super::TableError;
use crate::session::{Malformed, Reader, Writer};
use alloc::vec::Vec;

/// A change of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableOperation {
    /// A worker's request, that was not refused.
    Request {
        /// The worker's rank.
        worker: u32,
        /// The life of its process.
        life: u64,
        /// The request's number.
        number: u64,
        /// The payload of its message.
        payload: Vec<u8>,
    },
    /// A record of an image of a table: the first makes it, and the last ends it.
    Load {
        /// The record.
        record: Vec<u8>,
    },
    /// No more records of an image come: its table's earlier records are dropped.
    Unload,
    /// A step takes effect that all workers have ended.
    EndStep {
        /// The table.
        table: u32,
    },
    /// A worker is not waited for any more.
    GiveUp {
        /// The table.
        table: u32,
        /// Its rank.
        worker: u32,
        /// The life of its process.
        life: u64,
    },
}

impl TableOperation {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        match self {
            Self::Request { worker, life, number, payload } => {
                to.u8(1);
                to.u32(*worker);
                to.u64(*life);
                to.u64(*number);
                to.bytes(payload);
            }
            Self::Load { record } => {
                to.u8(4);
                to.bytes(record);
            }
            Self::Unload => to.u8(5),
            Self::EndStep { table } => {
                to.u8(2);
                to.u32(*table);
            }
            Self::GiveUp { table, worker, life } => {
                to.u8(3);
                to.u32(*table);
                to.u32(*worker);
                to.u64(*life);
            }
        }
        to.into_bytes()
    }

    /// Reads one.
    ///
    /// # Errors
    /// [`TableError::Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<Self, TableError> {
        let mut from = Reader(bytes);
        let operation = Self::read(&mut from).and_then(|operation| from.finish().map(|()| operation));
        operation.map_err(|Malformed(what)| TableError::Malformed(what.into()))
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(match from.u8()? {
            1 => {
                let (worker, life, number) = (from.u32()?, from.u64()?, from.u64()?);
                Self::Request { worker, life, number, payload: core::mem::take(&mut from.0).to_vec() }
            }
            2 => Self::EndStep { table: from.u32()? },
            3 => Self::GiveUp { table: from.u32()?, worker: from.u32()?, life: from.u64()? },
            4 => Self::Load { record: core::mem::take(&mut from.0).to_vec() },
            5 => Self::Unload,
            _ => return Err(Malformed("an operation that is unknown: install the same release everywhere")),
        })
    }
}
