//! Numbers of bytes, as people write them.

use std::{fmt, str::FromStr};

/// A number of bytes, read and written as `4096`, `64K`, `25M` or `1G`: K, M and G (or k, m and g) stand for 2^10, 2^20
/// and 2^30.
///
/// ```
/// use herringbone::settings::Bytes;
/// assert_eq!("64K".parse(), Ok(Bytes(65_536)));
/// assert_eq!(Bytes(3 << 20).to_string(), "3M");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub usize);

/// A text that is no number of [`Bytes`], or one that this machine has no number for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no number of bytes: write {}", .meant.map_or("4096, 64K, 25M or 1G".to_owned(), |bytes| bytes.to_string()))]
pub struct ParseBytesError {
    text: String,
    meant: Option<Bytes>,
}

impl ParseBytesError {
    /// What was meant, if only the unit is not as it has to be: 1M by `1MB`, `1MiB` and `1 M`.
    pub fn meant(&self) -> Option<Bytes> {
        self.meant
    }
}

const UNITS: [(char, u32); 3] = [('G', 30), ('M', 20), ('K', 10)];

impl FromStr for Bytes {
    type Err = ParseBytesError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let trimmed = text.trim();
        read(trimmed).ok_or_else(|| ParseBytesError { text: text.to_owned(), meant: read(&bare(trimmed)) })
    }
}

fn read(text: &str) -> Option<Bytes> {
    let unit = UNITS.iter().find(|(unit, _)| text.ends_with([*unit, unit.to_ascii_lowercase()]));
    let (digits, shift) = unit.map_or((text, 0), |(_, shift)| (&text[..text.len() - 1], *shift));
    // A number of the standard library may have a sign.
    let count = digits.parse::<usize>().ok().filter(|_| !digits.starts_with('+'));
    count.and_then(|count| count.checked_mul(1 << shift)).map(Bytes)
}

/// `text` without the `B` or `iB` of its unit and without spaces.
fn bare(text: &str) -> String {
    let unit =
        text.strip_suffix(['B', 'b']).map_or(text, |unit| unit.strip_suffix(['i', 'I']).unwrap_or(unit));
    unit.split_whitespace().collect()
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
        let cases = [("0", 0), ("4096", 4096), ("64K", 65_536), (" 25m ", 25 << 20), ("1G", 1 << 30)];
        for (text, bytes) in cases {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text:?}");
        }
        for text in ["", "K", "-1", "+1", "1.5K", "1T", "99999999999G", "1é"] {
            let error = text.parse::<Bytes>().unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")) && error.contains("64K"), "{error}");
        }
    }

    #[test]
    fn units_of_others_are_answered_with_ours() {
        let cases = [
            ("1MB", "1M"),
            ("1MiB", "1M"),
            ("64kb", "64K"),
            ("64 K", "64K"),
            ("2 GiB ", "2G"),
            ("512B", "512"),
        ];
        for (text, meant) in cases {
            let error = text.parse::<Bytes>().unwrap_err();
            assert_eq!(error.to_string(), format!("{text:?} is no number of bytes: write {meant}"));
            assert_eq!(error.meant(), meant.parse().ok());
        }
        for text in ["", "B", "iB", "KB", "1TB", "1.5MB", "-1KB", "99999999999GB"] {
            assert_eq!(text.parse::<Bytes>().unwrap_err().meant(), None, "{text:?}");
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
