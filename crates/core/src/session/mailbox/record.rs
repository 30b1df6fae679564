//! The records that the two ranks of a message exchange; a record has one of a few fixed lengths.

use super::Envelope;
use crate::element::DType;
use alloc::vec::Vec;

/// The longest record, in bytes. On any transport, this much leaves before its receiver asks for it.
pub const RECORD_BYTES: usize = 1024;

/// The shortest record. Records are padded to this length, twice this length and so on, so that there are few lengths.
const LEAST_BYTES: usize = 64;

const HEAD_BYTES: usize = 32;

/// The longest message that goes with its announcement, in bytes.
pub const CARRIED_BYTES: usize = RECORD_BYTES - HEAD_BYTES;

/// A record between two ranks about a message. The sender of a message numbers it, for each receiver from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// Its sender has called `send`; the number is the next one. A short message comes with the record.
    Announced {
        /// The message.
        number: u64,
        /// Its envelope.
        envelope: Envelope,
        /// The message itself, if it is no longer than [`CARRIED_BYTES`].
        carried: Option<&'a [u8]>,
    },
    /// Its receiver has a place for it, or has it already if it was carried.
    Taken {
        /// The message.
        number: u64,
    },
    /// Its receiver has asked for another type or number of elements, so it refuses the message.
    Refused {
        /// The message.
        number: u64,
        /// The envelope of the receive.
        wanted: Envelope,
    },
    /// Its sender has given up waiting.
    Withdrawn {
        /// The message.
        number: u64,
    },
}

/// Bytes that make no record, with the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoRecord(&'static str);

impl<'a> Record<'a> {
    /// As bytes, padded.
    ///
    /// # Panics
    /// If it carries more than [`CARRIED_BYTES`].
    pub fn encode(&self) -> Vec<u8> {
        let none = Envelope { tag: 0, dtype: DType::U8, count: 0 };
        let (kind, number, envelope, carried) = match *self {
            Record::Announced { number, envelope, carried: None } => (1, number, envelope, &[][..]),
            Record::Announced { number, envelope, carried: Some(bytes) } => (2, number, envelope, bytes),
            Record::Taken { number } => (3, number, none, &[][..]),
            Record::Refused { number, wanted } => (4, number, wanted, &[][..]),
            Record::Withdrawn { number } => (5, number, none, &[][..]),
        };
        assert!(carried.len() <= CARRIED_BYTES, "a long message is announced without its bytes");
        let mut bytes = Vec::with_capacity(RECORD_BYTES);
        bytes.extend([kind, envelope.dtype.code(), 0, 0]);
        bytes.extend((carried.len() as u32).to_le_bytes());
        bytes.extend(number.to_le_bytes());
        bytes.extend(envelope.tag.to_le_bytes());
        bytes.extend(envelope.count.to_le_bytes());
        bytes.extend(carried);
        bytes.resize(padded(bytes.len()), 0);
        bytes
    }

    /// Reads the bytes of [`encode`](Self::encode).
    ///
    /// # Errors
    /// If it has made no such bytes.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, NoRecord> {
        let (head, rest) =
            bytes.split_first_chunk::<HEAD_BYTES>().ok_or(NoRecord("a record that is too short"))?;
        let number_at = |at: usize| {
            let mut eight = [0; 8];
            eight.copy_from_slice(&head[at..at + 8]);
            u64::from_le_bytes(eight)
        };
        let dtype = DType::from_code(head[1]).ok_or(NoRecord("a message of an unknown type"))?;
        let length = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        let number = number_at(8);
        let envelope = Envelope { tag: number_at(16) as i64, dtype, count: number_at(24) };
        let carried = rest.get(..length).ok_or(NoRecord("a record that is shorter than its own length"))?;
        match (head[0], length) {
            (1, 0) => Ok(Record::Announced { number, envelope, carried: None }),
            (2, _) if envelope.bytes() == Some(length) => {
                Ok(Record::Announced { number, envelope, carried: Some(carried) })
            }
            (3, 0) => Ok(Record::Taken { number }),
            (4, 0) => Ok(Record::Refused { number, wanted: envelope }),
            (5, 0) => Ok(Record::Withdrawn { number }),
            _ => Err(NoRecord("a record that contradicts itself")),
        }
    }
}

/// How long a record of so many bytes is made.
fn padded(bytes: usize) -> usize {
    bytes.next_power_of_two().max(LEAST_BYTES)
}

/// Whether a record can have this length.
pub fn is_length(bytes: usize) -> bool {
    bytes.is_power_of_two() && (LEAST_BYTES..=RECORD_BYTES).contains(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn records(bytes: &[u8]) -> Vec<Record<'_>> {
        let envelope = Envelope { tag: -7, dtype: DType::U8, count: bytes.len() as u64 };
        let long = Envelope { count: u64::MAX / 16, dtype: DType::F64, ..envelope };
        vec![
            Record::Announced { number: 3, envelope, carried: Some(bytes) },
            Record::Announced { number: u64::MAX, envelope: long, carried: None },
            Record::Taken { number: 9 },
            Record::Refused { number: 1 << 40, wanted: long },
            Record::Withdrawn { number: 0 },
        ]
    }

    #[test]
    fn records_come_back_and_have_few_lengths() {
        let bytes = vec![0xa5; CARRIED_BYTES];
        for length in [0, 1, 31, 32, 33, 500, CARRIED_BYTES] {
            for record in records(&bytes[..length]) {
                let encoded = record.encode();
                assert!(is_length(encoded.len()), "{}", encoded.len());
                assert_eq!(Record::decode(&encoded), Ok(record));
            }
        }
    }

    /// No bytes from a socket make it panic, and contradictory records are refused.
    #[test]
    fn other_bytes_are_no_records() {
        for record in records(&[1, 2, 3]) {
            let good = record.encode();
            for length in 0..HEAD_BYTES {
                assert!(Record::decode(&good[..length]).is_err());
            }
            for at in 0..HEAD_BYTES {
                for value in [0, 1, 2, 5, 6, 0x80, 0xff] {
                    let mut bad = good.clone();
                    bad[at] = value;
                    if let Ok(read) = Record::decode(&bad) {
                        assert_eq!(Record::decode(&read.encode()), Ok(read));
                    }
                }
            }
        }
        let mut more = Record::Taken { number: 1 }.encode();
        more[4] = 200;
        assert_eq!(Record::decode(&more), Err(NoRecord("a record that is shorter than its own length")));
    }
}
