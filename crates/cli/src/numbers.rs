//! Numbers on the command line: sets like `2..8,16` (both ends included), sizes like `64K`, and bytes for people.

use herringbone::Collective;
use herringbone::settings::{Bytes, ParseBytesError};
use std::{
    collections::BTreeSet,
    fmt::{self, Display},
    str::FromStr,
};

/// A set of whole numbers: `8`, `2..64` with both ends, or a list of those.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Set(BTreeSet<u32>);

impl Set {
    /// Ascending.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = u32> {
        self.0.iter().copied()
    }

    pub(crate) fn of(numbers: impl IntoIterator<Item = u32>) -> Self {
        Self(numbers.into_iter().collect())
    }
}

impl Display for Set {
    /// As it is read: `2..8,16`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<u32> = self.iter().collect();
        for (at, run) in numbers.chunk_by(|a, b| a + 1 == *b).enumerate() {
            let comma = if at == 0 { "" } else { "," };
            match run {
                [first, .., last] => write!(f, "{comma}{first}..{last}")?,
                lone => lone.iter().try_for_each(|number| write!(f, "{comma}{number}"))?,
            }
        }
        Ok(())
    }
}

/// A text that is no [`Set`] or no list of [`Sizes`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NumberError {
    /// For a [`Set`].
    #[error("`{0}` is no number above 0 and no range of them: write 8, 2..64 (both included) or 2..8,16")]
    Set(String),
    /// More than can be meant.
    #[error("{0} is above 65536")]
    Large(u32),
    /// For [`Sizes`].
    #[error("`{0}` is no size and no range of sizes: write 4, 64K, 1.5M, 1G or 1K..16M (doubling)")]
    Size(String),
    /// For [`Sizes`]: more than can be counted.
    #[error(transparent)]
    Bytes(ParseBytesError),
    /// A range from its larger end.
    #[error("`{last}..{first}` holds nothing: write {first}..{last}")]
    Backwards {
        /// The smaller end.
        first: String,
        /// The larger one.
        last: String,
    },
}

impl FromStr for Set {
    type Err = NumberError;

    fn from_str(text: &str) -> Result<Self, NumberError> {
        let number = |part: &str| match part.trim().parse() {
            Ok(0) | Err(_) => Err(NumberError::Set(text.to_owned())),
            Ok(number @ 65_537..) => Err(NumberError::Large(number)),
            Ok(number) => Ok(number),
        };
        let mut set = BTreeSet::new();
        for part in text.split(',') {
            let (first, last) = part.split_once("..").unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last.strip_prefix('=').unwrap_or(last))?);
            in_order(first, last)?;
            set.extend(first..=last);
        }
        if set.is_empty() { Err(NumberError::Set(text.to_owned())) } else { Ok(Self(set)) }
    }
}

/// Sizes of messages in bytes: `4`, `64K`, `1.5M`, `1GiB`, `1e6`, ranges that double like `1K..16M`, or a list of those.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sizes(pub(crate) Vec<usize>);

impl FromStr for Sizes {
    type Err = NumberError;

    fn from_str(text: &str) -> Result<Self, NumberError> {
        let mut sizes = Vec::new();
        for part in text.split(',') {
            match part.split_once("..") {
                None => sizes.push(size(part)?),
                Some((first, last)) => {
                    let (first, last) = (size(first)?, size(last)?);
                    in_order(Bytes(first), Bytes(last))?;
                    sizes.extend(
                        std::iter::successors(Some(first.max(1)), |size| size.checked_mul(2))
                            .take_while(|s| *s <= last),
                    );
                }
            }
        }
        if sizes.is_empty() { Err(NumberError::Size(text.to_owned())) } else { Ok(Self(sizes)) }
    }
}

/// Refuses a range of nothing.
fn in_order<T: PartialOrd + Display>(first: T, last: T) -> Result<(), NumberError> {
    match last < first {
        true => Err(NumberError::Backwards { first: last.to_string(), last: first.to_string() }),
        false => Ok(()),
    }
}

fn size(text: &str) -> Result<usize, NumberError> {
    match text.parse() {
        Ok(Bytes(bytes)) => Ok(bytes),
        Err(many @ ParseBytesError::TooMany { .. }) => Err(NumberError::Bytes(many)),
        Err(_) => Err(NumberError::Size(text.to_owned())),
    }
}

/// How many elements of `width` bytes each rank gives or gets, whichever is fewer, if the larger of the two buffers has at
/// least so many bytes.
pub(crate) fn elements(collective: Collective, ranks: u32, bytes: usize, width: usize) -> usize {
    let root = collective.root().unwrap_or(0);
    let parts = collective.input_elements(ranks, root, 1).max(collective.output_elements(ranks, root, 1));
    bytes.div_ceil(width).div_ceil(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> Option<Vec<u32>> {
        text.parse::<Set>().ok().map(|set| set.iter().collect())
    }

    #[test]
    fn sets_include_both_ends() {
        assert_eq!(set("2..5"), Some(vec![2, 3, 4, 5]));
        assert_eq!(set("2..=3,8"), Some(vec![2, 3, 8]));
        assert_eq!(set("4, 2, 4"), Some(vec![2, 4]));
        for text in ["8", "2..8,16", "1,3..4"] {
            assert_eq!(text.parse::<Set>().unwrap().to_string(), text);
        }
        for text in ["", "0", "a", "5..2", "1..", "-1", "2..70000"] {
            assert_eq!(set(text), None, "{text}");
        }
    }

    #[test]
    fn sizes_have_units_and_double() {
        let sizes = |text: &str| text.parse::<Sizes>().ok().map(|sizes| sizes.0);
        assert_eq!(sizes("4,1K,25m"), Some(vec![4, 1024, 25 << 20]));
        assert_eq!(sizes("1K..6K"), Some(vec![1024, 2048, 4096]));
        assert_eq!(sizes("1.5M,1MiB,1e6"), Some(vec![3 << 19, 1 << 20, 1_000_000]));
        for text in ["", "K", "1X", "1.5", "8..4", "99999999999G"] {
            assert_eq!(sizes(text), None, "{text}");
        }
    }

    #[test]
    fn sizes_that_are_nearly_right_are_answered_with_what_is() {
        let said = |text: &str| text.parse::<Sizes>().unwrap_err().to_string();
        assert_eq!(said("4,16M..1K"), "`16M..1K` holds nothing: write 1K..16M");
        assert!(said("1K..").contains("1K..16M (doubling)"));
        assert!(said("4,99999999999G").contains("too many bytes to count"));
        assert_eq!("4,8..2".parse::<Set>().unwrap_err().to_string(), "`8..2` holds nothing: write 2..8");
    }
}
