//! Numbers of bytes, as people write them.

use parse_size::Config;
use std::{fmt, str::FromStr};

/// A number of bytes. It is read as people write it: `4096`, `64K`, `1.5M`, `1MiB`, `25 MB`, `1e6`, in capitals or not. K,
/// M, G and T stand for 2^10, 2^20, 2^30 and 2^40, whatever follows them. It is written as `64K`.
///
/// ```
/// use herringbone::settings::Bytes;
/// assert_eq!("64K".parse(), Ok(Bytes(65_536)));
/// assert_eq!("1.5 MiB".parse(), Ok(Bytes(3 << 19)));
/// assert_eq!("1e6".parse(), Ok(Bytes(1_000_000)));
/// assert_eq!(Bytes(3 << 20).to_string(), "3M");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub usize);

/// A text that is no number of [`Bytes`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseBytesError {
    /// It is no number.
    #[error("{text:?} is no number of bytes: write 4096, 64K, 1.5M or 1G")]
    NoNumber {
        /// The text.
        text: String,
    },
    /// It is one that this machine has no number for.
    #[error("{text:?} is too many bytes to count: the most are {}", usize::MAX)]
    TooMany {
        /// The text.
        text: String,
    },
}

const UNITS: [(char, u32); 3] = [('G', 30), ('M', 20), ('K', 10)];

impl FromStr for Bytes {
    type Err = ParseBytesError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match read(text.trim()) {
            Ok(bytes) => Ok(bytes),
            Err(parse_size::Error::PosOverflow) => Err(ParseBytesError::TooMany { text: text.to_owned() }),
            Err(_) => Err(ParseBytesError::NoNumber { text: text.to_owned() }),
        }
    }
}

fn read(text: &str) -> Result<Bytes, parse_size::Error> {
    // There is no half of a byte, and a sign is a slip.
    let is_half = text.contains('.')
        && text.ends_with(|last: char| last.is_ascii_digit())
        && !text.contains(['e', 'E']);
    let begins = text.starts_with(|first: char| first.is_ascii_digit());
    if !begins || is_half {
        return Err(parse_size::Error::InvalidDigit);
    }
    let bytes = Config::new().with_binary().parse_size(text)?;
    usize::try_from(bytes).map(Bytes).map_err(|_| parse_size::Error::PosOverflow)
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = |(_, shift): &&(char, u32)| self.0 > 0 && self.0.is_multiple_of(1 << *shift);
        match UNITS.iter().find(whole) {
            Some((unit, shift)) => write!(f, "{}{unit}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_with_and_without_units_are_read() {
        let cases = [
            ("0", 0),
            ("4096", 4096),
            ("64K", 65_536),
            (" 25m ", 25 << 20),
            ("1G", 1 << 30),
            ("1.5M", 3 << 19),
            ("1MiB", 1 << 20),
            ("1MB", 1 << 20),
            ("64kb", 65_536),
            ("64 K", 65_536),
            ("2 GiB ", 2 << 30),
            ("512B", 512),
            ("1e6", 1_000_000),
            ("2.5e3", 2_500),
        ];
        for (text, bytes) in cases {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text:?}");
        }
        for text in ["", "K", "B", "-1", "+1", "1.5", "1X", "K1", "1\u{e9}"] {
            let error = text.parse::<Bytes>().unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")) && error.contains("64K"), "{error}");
        }
        for text in ["99999999999G", "1e30", "18446744073709551616"] {
            let error = text.parse::<Bytes>().unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?} is too many bytes to count")), "{error}");
        }
    }

    #[test]
    fn what_is_shown_is_read_again() {
        for bytes in [0, 1, 1023, 1024, 1025, 1536, 4 << 20, 5 << 30, (1 << 30) + 1024] {
            assert_eq!(Bytes(bytes).to_string().parse(), Ok(Bytes(bytes)));
        }
        assert_eq!([Bytes(1536).to_string(), Bytes(4096).to_string()], ["1536", "4K"]);
    }
}
