//! Why a table server does not do a request.

use crate::session::{Malformed, Reader, Writer};
use alloc::string::String;

/// Why a request was refused: it has changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum TableError {
    /// No worker has opened it on this connection, or it was dropped.
    #[error("there is no such table: open it first; perhaps it was dropped meanwhile")]
    Unknown,
    /// A different table has its name.
    #[error(
        "there is a table of this name that differs in {what}: give this one another name, or drop that one"
    )]
    Differs {
        /// The difference, for people.
        what: String,
    },
    /// There can be no such table.
    #[error("{0}")]
    Unusable(String),
    /// A key that the table does not have, or that is not of this server.
    #[error(
        "not all keys from {first} to {last} exist: the table's keys here are {begin} to {end}; give it more rows, or other keys"
    )]
    RowKeys {
        /// The least key of the request.
        first: u64,
        /// The largest.
        last: u64,
        /// The first key that is possible.
        begin: u64,
        /// The last.
        end: u64,
    },
    /// No worker has pushed to this row, and the table has no initializer.
    #[error("row {key} was never pushed to, and the table has no initializer: push it first")]
    Missing {
        /// Its key.
        key: u64,
    },
    /// Not as many bytes as the rows have.
    #[error("{found} bytes for rows of {expected}: rows of another width or type")]
    Length {
        /// How many belong to the keys.
        expected: u64,
        /// How many there are.
        found: u64,
    },
    /// A NaN in a row.
    #[error("row {key} has a NaN: nothing of the push was taken")]
    NotANumber {
        /// Its key.
        key: u64,
    },
    /// The server has no memory for more.
    #[error(
        "the server is full: its tables can take {limit} bytes; give it more with --memory, or drop tables"
    )]
    Full {
        /// How much its tables can take.
        limit: u64,
    },
    /// The worker has ended another number of steps than its request has.
    #[error(
        "a request in step {found} of a worker that is in step {expected}: does another process have its rank?"
    )]
    Step {
        /// The server's count.
        expected: u64,
        /// The worker's.
        found: u64,
    },
    /// A rank that the table has no place for.
    #[error("worker {worker} of a table of {workers}: ranks count from 0")]
    Worker {
        /// The rank.
        worker: u32,
        /// How many workers the table has.
        workers: u32,
    },
    /// The same rank exists already, in another process.
    #[error("worker {worker} exists already, in another live process: give each process a rank of its own")]
    Twice {
        /// The rank.
        worker: u32,
    },
    /// Too much of something waits here.
    #[error("more than {limit} {what}")]
    TooMany {
        /// The name of the thing.
        what: String,
        /// The limit.
        limit: u64,
    },
    /// Its rows are read from a snapshot.
    #[error("it is being restored: wait a moment")]
    Restoring,
    /// The workers have ended more steps than the snapshot was to have.
    #[error("the step of this snapshot is over: take another one")]
    Passed,
    /// Bytes that make no message.
    #[error("a malformed message: {0}")]
    Malformed(String),
}

/// Why a table cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unusable(pub String);

impl TableError {
    pub(super) fn write(&self, to: &mut Writer) {
        let (code, numbers, text): (u8, [u64; 4], &str) = match self {
            Self::Unknown => (1, [0; 4], ""),
            Self::Differs { what } => (2, [0; 4], what),
            Self::Unusable(what) => (3, [0; 4], what),
            Self::RowKeys { first, last, begin, end } => (4, [*first, *last, *begin, *end], ""),
            Self::Missing { key } => (5, [*key, 0, 0, 0], ""),
            Self::Length { expected, found } => (6, [*expected, *found, 0, 0], ""),
            Self::NotANumber { key } => (7, [*key, 0, 0, 0], ""),
            Self::Full { limit } => (8, [*limit, 0, 0, 0], ""),
            Self::Step { expected, found } => (9, [*expected, *found, 0, 0], ""),
            Self::Worker { worker, workers } => (10, [u64::from(*worker), u64::from(*workers), 0, 0], ""),
            Self::Twice { worker } => (11, [u64::from(*worker), 0, 0, 0], ""),
            Self::TooMany { what, limit } => (12, [*limit, 0, 0, 0], what),
            Self::Malformed(what) => (13, [0; 4], what),
            Self::Restoring => (14, [0; 4], ""),
            Self::Passed => (15, [0; 4], ""),
        };
        to.u8(code);
        numbers.into_iter().for_each(|number| to.u64(number));
        to.cut_text(text);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let code = from.u8()?;
        let [one, two, three, four] = [from.u64()?, from.u64()?, from.u64()?, from.u64()?];
        let what = from.text()?;
        Ok(match code {
            1 => Self::Unknown,
            2 => Self::Differs { what },
            3 => Self::Unusable(what),
            4 => Self::RowKeys { first: one, last: two, begin: three, end: four },
            5 => Self::Missing { key: one },
            6 => Self::Length { expected: one, found: two },
            7 => Self::NotANumber { key: one },
            8 => Self::Full { limit: one },
            9 => Self::Step { expected: one, found: two },
            10 => Self::Worker { worker: one as u32, workers: two as u32 },
            11 => Self::Twice { worker: one as u32 },
            12 => Self::TooMany { what, limit: one },
            13 => Self::Malformed(what),
            14 => Self::Restoring,
            15 => Self::Passed,
            _ => return Err(Malformed("a reason that is unknown: install the same release everywhere")),
        })
    }
}
