//! The keys of requests, as messages carry them.

use super::known_keys::{KeyForm, KnownKeys};
use crate::session::{Malformed, Reader, Writer};
use alloc::sync::Arc;
use core::ops::Range;

/// The keys of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowKeys {
    /// So many that follow each other.
    Run {
        /// The first.
        first: u64,
        /// How many.
        count: u64,
    },
    /// These, in ascending order, each once. Requests with one list can share it.
    Listed(Arc<[u64]>),
}

impl RowKeys {
    /// How many they are.
    pub fn len(&self) -> usize {
        match self {
            Self::Run { count, .. } => *count as usize,
            Self::Listed(keys) => keys.len(),
        }
    }

    /// Whether it has no keys.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The one at a place below [`len`](Self::len).
    pub fn get(&self, at: usize) -> u64 {
        match self {
            // A malformed run may go beyond the last number.
            Self::Run { first, .. } => first.saturating_add(at as u64),
            Self::Listed(keys) => keys[at],
        }
    }

    /// All of them, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.len()).map(|at| self.get(at))
    }

    /// Those at some places.
    pub fn part(&self, places: Range<usize>) -> Self {
        match self {
            Self::Run { first, .. } => {
                Self::Run { first: first.saturating_add(places.start as u64), count: places.len() as u64 }
            }
            Self::Listed(keys) => Self::Listed(keys[places].into()),
        }
    }

    /// Whether they are ascending, each there once, and all in `among`.
    pub fn are_right(&self, among: &Range<u64>) -> bool {
        match self {
            Self::Run { first, count } => {
                let end = first.checked_add(*count);
                *count == 0 || among.contains(first) && end.is_some_and(|end| end <= among.end)
            }
            Self::Listed(keys) => {
                keys.is_sorted_by(|one, next| one < next)
                    && keys.first().is_none_or(|first| *first >= among.start)
                    && keys.last().is_none_or(|last| *last < among.end)
            }
        }
    }

    /// The list, if they are one.
    pub fn list(&self) -> Option<&Arc<[u64]>> {
        match self {
            Self::Run { .. } => None,
            Self::Listed(keys) => Some(keys),
        }
    }

    /// Bytes of the keys in a message, for each of them.
    pub fn bytes_each(&self) -> usize {
        match self {
            Self::Run { .. } => 0,
            Self::Listed(_) => size_of::<u64>(),
        }
    }

    /// Bytes of the keys in a message.
    pub fn bytes(&self) -> usize {
        self.len() * self.bytes_each()
    }

    pub(super) fn write(&self, form: KeyForm, to: &mut Writer) {
        match (self, form) {
            (_, KeyForm::Known(number)) => {
                to.u8(3);
                to.u64(number);
            }
            (Self::Run { first, count }, _) => {
                to.u8(0);
                to.u64(*first);
                to.u64(*count);
            }
            (Self::Listed(keys), KeyForm::Whole) => {
                to.u8(1);
                to.u64s("a list of keys", keys);
            }
            (Self::Listed(keys), KeyForm::Taught(number)) => {
                to.u8(2);
                to.u64(number);
                to.u64s("a list of keys", keys);
            }
        }
    }

    /// Reads keys that came over a connection that knows some.
    pub(super) fn read(from: &mut Reader<'_>, known: &mut KnownKeys) -> Result<Self, Malformed> {
        match from.u8()? {
            0 => Ok(Self::Run { first: from.u64()?, count: from.u64()? }),
            1 => from.u64s().map(Self::Listed),
            2 => {
                let (number, keys) = (from.u64()?, from.u64s()?);
                known.learn(number, &keys).map(|()| Self::Listed(keys))
            }
            3 => known.list(from.u64()?).map(Self::Listed),
            _ => Err(Malformed("keys of an unknown kind")),
        }
    }
}
