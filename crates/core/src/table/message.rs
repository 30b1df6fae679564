//! The messages of workers and table servers: the payloads of [request](crate::wire::Kind::Request) and
//! [answer](crate::wire::Kind::Answer) frames.
//!
//! A payload is a head, as written here, and then the values, row after row, as many as the head names keys. Nothing is
//! reserved because of a number in a head: keys and values are there, or the payload is malformed.

use super::{
    TableError,
    known_keys::{KeyForm, KnownKeys},
    payload::{BODY_BYTES, PAYLOAD_BYTES},
    row_keys::RowKeys,
    spec::TableSpec,
    values::ValueCodec,
};
use crate::session::{Malformed, Reader, TooLong, Writer};
use alloc::{string::String, vec::Vec};

/// To which range a request goes: the first bytes of its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestAddress {
    /// The range.
    pub range: u32,
    /// Whether the worker starts over at this server: all its earlier requests for the range were answered, or come
    /// after this one. A server that has answered a request with [elsewhere](TableAnswer::Elsewhere) gives the same
    /// answer to all requests for the range on the connection until one is marked. So no request passes another one.
    pub is_first: bool,
}

/// A request of a worker.
#[derive(Clone, Debug, PartialEq)]
pub enum TableRequest {
    /// To take part in a table, which is made if no table has the name.
    Open {
        /// Its name.
        name: String,
        /// Its specification.
        spec: TableSpec,
        /// How many ranges there are.
        ranges: u32,
        /// The table's number at range 0, which is opened first. Ranges with another number have not been made
        /// together. Range 0 gets its own number once all others exist: then the table is whole.
        birth: Option<u32>,
        /// Whether the range has to be there.
        is_whole: bool,
    },
    /// To change rows. Values follow.
    Push {
        /// The table, by the number that the answer to [`Open`](Self::Open) gave.
        table: u32,
        /// How many steps the worker has ended.
        step: u64,
        /// Whether this ends one more.
        ends: bool,
        /// How the values are coded.
        codec: ValueCodec,
        /// Which rows.
        keys: RowKeys,
    },
    /// To get rows.
    Pull {
        /// The table.
        table: u32,
        /// How many steps the worker has ended.
        step: u64,
        /// How the values of the answer are to be coded.
        codec: ValueCodec,
        /// Which rows.
        keys: RowKeys,
    },
    /// To change a number of the table's optimizer, for all later changes.
    Tune {
        /// The table.
        table: u32,
        /// The [name](super::OptimizerParameter::name) of the number.
        parameter: String,
        /// Its new value.
        number: f64,
    },
    /// To drop the pushes of a step of a sync table that has not ended, and to learn the worker's step. Nothing is
    /// dropped if that is another step.
    Withdraw {
        /// The table.
        table: u32,
        /// How many steps the worker has ended, as far as it knows.
        step: u64,
        /// The number of the first request whose push is dropped.
        least: u64,
    },
    /// To take part in it no more: the other workers' steps do without it.
    Leave {
        /// The table.
        table: u32,
    },
    /// To forget a table for good.
    Drop {
        /// Its name.
        name: String,
    },
    /// To write the range to disk as it is once all workers have ended `step` steps. An async table is written as it
    /// is.
    Save {
        /// The table.
        table: u32,
        /// The snapshot's number, above the numbers of all earlier ones.
        id: u64,
        /// How many steps.
        step: u64,
    },
    /// To make a range as it is in the newest snapshot. A table of the name that exists stays as it is.
    Restore {
        /// The table's name.
        name: String,
        /// Its specification.
        spec: TableSpec,
        /// How many ranges there are.
        ranges: u32,
    },
    /// To learn which server has the range. The answer is [elsewhere](TableAnswer::Elsewhere), even if it is the asked
    /// server.
    Locate,
}

/// An answer of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableAnswer {
    /// The worker takes part.
    Opened {
        /// The table's number on this connection.
        table: u32,
        /// How many steps this worker has ended in it, perhaps in an earlier life.
        step: u64,
        /// Whether pushes are kept of a step that it has not ended.
        has_half: bool,
        /// Whether this made the table.
        is_new: bool,
        /// Whether the range has a number that it was made with: of range 0, whether all ranges of the table have been made.
        is_whole: bool,
    },
    /// It is done.
    Done,
    /// Pushes are withdrawn.
    Withdrawn {
        /// How many steps the worker has ended in the range.
        step: u64,
    },
    /// No table has the name.
    Dropped {
        /// Whether it existed.
        was_there: bool,
    },
    /// The range is as in this snapshot; or there is no snapshot, and nothing was done.
    Restored {
        /// The snapshot's number.
        id: Option<u64>,
    },
    /// The rows: values follow.
    Rows,
    /// It is not done, and has changed nothing.
    Refused(TableError),
    /// The server does not have the range. It is not done.
    Elsewhere {
        /// The place of the server that has it, as far as it is known.
        owner: Option<u32>,
        /// Whether no server in the epoch has it.
        is_lost: bool,
    },
}

const LOCATE: u8 = 7;

impl TableRequest {
    /// Whether a payload, behind its address, is [`Locate`](Self::Locate).
    pub fn is_locate(payload: &[u8]) -> bool {
        payload == [LOCATE]
    }

    /// The table that it is about, by its number.
    pub fn table(&self) -> Option<u32> {
        match self {
            Self::Push { table, .. }
            | Self::Pull { table, .. }
            | Self::Tune { table, .. }
            | Self::Withdraw { table, .. }
            | Self::Leave { table }
            | Self::Save { table, .. } => Some(*table),
            Self::Open { .. } | Self::Drop { .. } | Self::Restore { .. } | Self::Locate => None,
        }
    }

    /// Its keys, if it has some.
    pub fn keys(&self) -> Option<&RowKeys> {
        match self {
            Self::Push { keys, .. } | Self::Pull { keys, .. } => Some(keys),
            _ => None,
        }
    }

    /// The head of its payload, with all of its keys.
    ///
    /// # Errors
    /// If it has too long a name or too many keys.
    pub fn encode(&self) -> Result<Vec<u8>, TooLong> {
        self.encode_as(KeyForm::Whole)
    }

    /// The head of its payload, with its keys in this form.
    ///
    /// # Errors
    /// If it has too long a name or too many keys.
    pub fn encode_as(&self, form: KeyForm) -> Result<Vec<u8>, TooLong> {
        let mut to = Writer::default();
        match self {
            Self::Open { name, spec, ranges, birth, is_whole } => {
                to.u8(1);
                spec.write(name, &mut to);
                to.u32(*ranges);
                to.option(birth.as_ref(), |to, birth| to.u32(*birth));
                to.bool(*is_whole);
            }
            Self::Push { table, step, ends, codec, keys } => {
                to.u8(2);
                to.u32(*table);
                to.u64(*step);
                to.bool(*ends);
                codec.write(&mut to);
                keys.write(form, &mut to);
            }
            Self::Pull { table, step, codec, keys } => {
                to.u8(3);
                to.u32(*table);
                to.u64(*step);
                codec.write(&mut to);
                keys.write(form, &mut to);
            }
            Self::Tune { table, parameter, number } => {
                to.u8(4);
                to.u32(*table);
                to.text("a number's name", parameter);
                to.u64(number.to_bits());
            }
            Self::Leave { table } => {
                to.u8(5);
                to.u32(*table);
            }
            Self::Drop { name } => {
                to.u8(6);
                to.text("a table's name", name);
            }
            Self::Locate => to.u8(LOCATE),
            Self::Withdraw { table, step, least } => {
                to.u8(10);
                to.u32(*table);
                to.u64(*step);
                to.u64(*least);
            }
            Self::Save { table, id, step } => {
                to.u8(8);
                to.u32(*table);
                to.u64(*id);
                to.u64(*step);
            }
            Self::Restore { name, spec, ranges } => {
                to.u8(9);
                spec.write(name, &mut to);
                to.u32(*ranges);
            }
        }
        to.finish(PAYLOAD_BYTES)
    }

    /// Reads a payload with all of its keys: the request, and the values behind it.
    ///
    /// # Errors
    /// [`TableError::Malformed`].
    pub fn decode(payload: &[u8]) -> Result<(Self, &[u8]), TableError> {
        Self::decode_knowing(payload, &mut KnownKeys::default())
    }

    /// Reads a payload from a connection that knows some lists of keys. It learns the lists that the payload teaches,
    /// whatever the answer.
    ///
    /// # Errors
    /// [`TableError::Malformed`].
    pub fn decode_knowing<'a>(
        payload: &'a [u8],
        known: &mut KnownKeys,
    ) -> Result<(Self, &'a [u8]), TableError> {
        let mut from = Reader(payload);
        let request =
            Self::read(&mut from, known).map_err(|Malformed(what)| TableError::Malformed(what.into()))?;
        match &request {
            // It has to fit a message with all of its keys, too: copies get it so.
            Self::Push { keys: keys @ RowKeys::Listed(_), .. }
                if keys.bytes() + from.0.len() > BODY_BYTES =>
            {
                Err(TableError::Malformed("keys and values that do not fit one message".into()))
            }
            Self::Push { .. } => Ok((request, from.0)),
            _ if from.0.is_empty() => Ok((request, from.0)),
            _ => Err(TableError::Malformed("it is longer than it should be".into())),
        }
    }

    fn read(from: &mut Reader<'_>, known: &mut KnownKeys) -> Result<Self, Malformed> {
        Ok(match from.u8()? {
            1 => {
                let (name, spec) = TableSpec::read(from)?;
                let (ranges, birth) = (from.u32()?, from.option(Reader::u32)?);
                Self::Open { name, spec, ranges, birth, is_whole: from.bool()? }
            }
            2 => Self::Push {
                table: from.u32()?,
                step: from.u64()?,
                ends: from.bool()?,
                codec: ValueCodec::read(from)?,
                keys: RowKeys::read(from, known)?,
            },
            3 => Self::Pull {
                table: from.u32()?,
                step: from.u64()?,
                codec: ValueCodec::read(from)?,
                keys: RowKeys::read(from, known)?,
            },
            4 => {
                let (table, parameter) = (from.u32()?, from.text()?);
                Self::Tune { table, parameter, number: f64::from_bits(from.u64()?) }
            }
            5 => Self::Leave { table: from.u32()? },
            6 => Self::Drop { name: from.text()? },
            LOCATE => Self::Locate,
            10 => Self::Withdraw { table: from.u32()?, step: from.u64()?, least: from.u64()? },
            8 => Self::Save { table: from.u32()?, id: from.u64()?, step: from.u64()? },
            9 => {
                let (name, spec) = TableSpec::read(from)?;
                Self::Restore { name, spec, ranges: from.u32()? }
            }
            _ => return Err(Malformed("a request that is unknown: install the same release everywhere")),
        })
    }
}

impl RequestAddress {
    /// The position in a payload at which its request begins.
    pub const BYTES: usize = 5;

    /// The first bytes of a payload.
    pub fn encode(self) -> [u8; Self::BYTES] {
        let [one, two, three, four] = self.range.to_le_bytes();
        [one, two, three, four, u8::from(self.is_first)]
    }

    /// Reads them.
    ///
    /// # Errors
    /// [`TableError::Malformed`].
    pub fn decode(payload: &[u8]) -> Result<Self, TableError> {
        let mut from = Reader(payload);
        let read = from.u32().and_then(|range| Ok(Self { range, is_first: from.bool()? }));
        read.map_err(|Malformed(what)| TableError::Malformed(what.into()))
    }
}

impl TableAnswer {
    /// The head of its payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        match self {
            Self::Opened { table, step, has_half, is_new, is_whole } => {
                to.u8(1);
                to.u32(*table);
                to.u64(*step);
                [has_half, is_new, is_whole].into_iter().for_each(|answer| to.bool(*answer));
            }
            Self::Done => to.u8(2),
            Self::Rows => to.u8(3),
            Self::Refused(error) => {
                to.u8(4);
                error.write(&mut to);
            }
            Self::Withdrawn { step } => {
                to.u8(8);
                to.u64(*step);
            }
            Self::Dropped { was_there } => {
                to.u8(7);
                to.bool(*was_there);
            }
            Self::Restored { id } => {
                to.u8(6);
                to.option(id.as_ref(), |to, id| to.u64(*id));
            }
            Self::Elsewhere { owner, is_lost } => {
                to.u8(5);
                to.option(owner.as_ref(), |to, owner| to.u32(*owner));
                to.bool(*is_lost);
            }
        }
        to.into_bytes()
    }

    /// Reads a payload: the answer, and the values behind it.
    ///
    /// # Errors
    /// [`TableError::Malformed`].
    pub fn decode(payload: &[u8]) -> Result<(Self, &[u8]), TableError> {
        let mut from = Reader(payload);
        let answer = Self::read(&mut from).map_err(|Malformed(what)| TableError::Malformed(what.into()))?;
        match answer {
            Self::Rows => Ok((answer, from.0)),
            _ if from.0.is_empty() => Ok((answer, from.0)),
            _ => Err(TableError::Malformed("it is longer than it should be".into())),
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(match from.u8()? {
            1 => Self::Opened {
                table: from.u32()?,
                step: from.u64()?,
                has_half: from.bool()?,
                is_new: from.bool()?,
                is_whole: from.bool()?,
            },
            2 => Self::Done,
            3 => Self::Rows,
            4 => Self::Refused(TableError::read(from)?),
            5 => Self::Elsewhere { owner: from.option(Reader::u32)?, is_lost: from.bool()? },
            6 => Self::Restored { id: from.option(Reader::u64)? },
            7 => Self::Dropped { was_there: from.bool()? },
            8 => Self::Withdrawn { step: from.u64()? },
            _ => return Err(Malformed("an answer that is unknown: install the same release everywhere")),
        })
    }
}
