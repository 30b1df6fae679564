//! Numbers on the command line: sets like `2..8,16` (both ends included), sizes like `64K`, and times for people.

use herringbone::Collective;
use herringbone::settings::{Bytes, ParseBytesError};
use std::{
    collections::BTreeSet,
    fmt::{self, Display},
    ops::RangeInclusive,
    str::FromStr,
};

/// A parser of an option that takes a whole number of a range, both ends included. Its error says which range.
pub(crate) fn whole(
    range: RangeInclusive<u32>,
) -> impl Fn(&str) -> Result<u32, String> + Clone + Send + Sync + 'static {
    move |text| within(text, &range)
}

/// As [`whole`], up to 64 bits.
pub(crate) fn whole_of_64_bits(text: &str) -> Result<u64, String> {
    within(text, &(0..=u64::MAX))
}

fn within<T: PartialOrd + Display + FromStr>(text: &str, range: &RangeInclusive<T>) -> Result<T, String> {
    let found = text.trim().parse().ok().filter(|number| range.contains(number));
    found.ok_or_else(|| format!("write a whole number from {} to {}", range.start(), range.end()))
}

/// A parser of an option that takes a number of a range, both ends included, with a fraction if need be.
pub(crate) fn decimal(
    range: RangeInclusive<f64>,
) -> impl Fn(&str) -> Result<f64, String> + Clone + Send + Sync + 'static {
    move |text| {
        let found = text.trim().parse().ok().filter(|number| range.contains(number));
        found.ok_or_else(|| format!("write a number from {} to {}", range.start(), range.end()))
    }
}

/// A parser of an option that takes a number above 0, up to `most`, with a fraction if need be.
pub(crate) fn above_zero(most: f64) -> impl Fn(&str) -> Result<f64, String> + Clone + Send + Sync + 'static {
    move |text| {
        let found = text.trim().parse().ok().filter(|number| *number > 0.0 && *number <= most);
        found.ok_or_else(|| format!("write a number above 0, up to {most}"))
    }
}

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
    #[error("`{0}` is not a number above 0 or a range of them: write 8, 2..64 (both included) or 2..8,16")]
    Set(String),
    /// More than can be meant.
    #[error("{0} is above 65536")]
    Large(String),
    /// For [`Sizes`].
    #[error("`{0}` is not a size or a range of sizes: write 4, 64K, 1.5M, 1G or 1K..16M (doubling)")]
    Size(String),
    /// For [`Sizes`]: more than can be counted.
    #[error(transparent)]
    Bytes(ParseBytesError),
    /// A range from its larger end.
    #[error("`{last}..{first}` is empty: write {first}..{last}")]
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
        let is_number = |part: &str| !part.is_empty() && part.bytes().all(|digit| digit.is_ascii_digit());
        let number = |part: &str| match part.trim().parse() {
            Ok(number @ 1..=65_536) => Ok(number),
            // There can be more digits than any number here has.
            Ok(65_537..) => Err(NumberError::Large(part.trim().to_owned())),
            Err(_) if is_number(part.trim()) => Err(NumberError::Large(part.trim().to_owned())),
            Ok(0) | Err(_) => Err(NumberError::Set(text.to_owned())),
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

impl Sizes {
    /// Each size once as `elements` rounds it, in their order: the first of sizes with the same number of elements.
    pub(crate) fn distinct(&self, elements: impl Fn(usize) -> usize) -> Vec<usize> {
        let mut seen = BTreeSet::new();
        self.0.iter().copied().filter(|bytes| seen.insert(elements(*bytes))).collect()
    }
}

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

/// A time for people, in microseconds, milliseconds or seconds.
pub(crate) fn time(seconds: f64) -> String {
    match seconds {
        less if less < 1e-3 => format!("{:.1} us", less * 1e6),
        less if less < 1.0 => format!("{:.2} ms", less * 1e3),
        more => format!("{more:.2} s"),
    }
}

/// How many elements of `width` bytes each rank gives or gets, whichever is fewer, if the larger of the two buffers has at
/// least this many bytes.
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
    fn numbers_out_of_range_are_answered_with_the_range() {
        let said = |text: &str| whole(1..=4096)(text).unwrap_err();
        for text in ["0", "-3", "4097", "1.5", "many", "", "99999999999999999999"] {
            assert_eq!(said(text), "write a whole number from 1 to 4096");
        }
        assert_eq!(
            (whole(1..=4096)(" 16 "), whole_of_64_bits("18446744073709551615")),
            (Ok(16), Ok(u64::MAX))
        );
        assert_eq!(above_zero(1e6)("0").unwrap_err(), "write a number above 0, up to 1000000");
        for text in ["-1", "NaN", "inf", "1.1", "x"] {
            assert_eq!(decimal(0.0..=1.0)(text).unwrap_err(), "write a number from 0 to 1");
        }
        let far = "1,99999999999999999999".parse::<Set>().unwrap_err();
        assert_eq!(far.to_string(), "99999999999999999999 is above 65536");
    }

    #[test]
    fn times_have_the_unit_that_suits_them() {
        let shown = [0.0, 12.34e-6, 0.0116667, 0.5, 1.0, 90.0].map(time);
        assert_eq!(shown, ["0.0 us", "12.3 us", "11.67 ms", "500.00 ms", "1.00 s", "90.00 s"]);
    }

    #[test]
    fn sizes_that_round_to_the_same_are_there_once() {
        let sizes = |text: &str| text.parse::<Sizes>().unwrap().distinct(|bytes| bytes.div_ceil(4));
        assert_eq!(sizes("1..16"), [1, 8, 16]);
        assert_eq!(sizes("0,8,4,3,7"), [0, 8, 4]);
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
        assert_eq!(said("4,16M..1K"), "`16M..1K` is empty: write 1K..16M");
        assert!(said("1K..").contains("1K..16M (doubling)"));
        assert!(said("4,99999999999G").contains("too many bytes to count"));
        assert_eq!("4,8..2".parse::<Set>().unwrap_err().to_string(), "`8..2` is empty: write 2..8");
    }
}
