//! How values of rows travel: as they are, or coded.

use super::{TableError, error::Unusable, payload::BODY_BYTES};
use crate::{
    codec::{BLOCK, Codec},
    session::{Malformed, Reader, Writer},
};
use alloc::{format, vec, vec::Vec};
use core::str::FromStr;

/// Those that code values one by one, or row by row, and need nothing fed back: by their places in messages.
const CODECS: [Codec; 4] = [Codec::Plain, Codec::Bf16, Codec::Fp16, Codec::Int8];

/// A [`Codec`] for the values of a push or a pull, of rows of f32. Each row is coded by itself, so its error does not
/// depend on the other rows of its message. Keys are never coded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ValueCodec(Codec);

/// How the codecs of [`CODECS`] are called.
const NAMES: &str = "plain, bf16, fp16 or int8";

impl FromStr for ValueCodec {
    type Err = Unusable;

    fn from_str(text: &str) -> Result<Self, Unusable> {
        let unknown = |_| Unusable(format!("{text:?} is no codec of a table's values: use {NAMES}"));
        text.parse().map_err(unknown).and_then(Self::new)
    }
}

impl ValueCodec {
    /// Values travel as they are.
    pub const PLAIN: Self = Self(Codec::Plain);

    /// # Errors
    /// For a codec that loses too much without error feedback: a row might never be pushed to again.
    pub fn new(codec: Codec) -> Result<Self, Unusable> {
        match CODECS.contains(&codec) {
            true => Ok(Self(codec)),
            false => Err(Unusable(format!(
                "values of a table coded by {codec}: it works only where what it loses is fed back; use {NAMES}"
            ))),
        }
    }

    /// Which it is.
    pub fn codec(self) -> Codec {
        self.0
    }

    /// Whether values travel as they are.
    pub fn is_plain(self) -> bool {
        self == Self::PLAIN
    }

    /// The most bytes that `rows` rows of `width` elements take.
    pub fn bound(self, width: usize, rows: usize) -> usize {
        let blocks = width.div_ceil(BLOCK);
        match self.0 {
            Codec::Int8 => rows.saturating_mul(width + blocks * 5),
            Codec::Bf16 | Codec::Fp16 => rows.saturating_mul(2 * width),
            _ => rows.saturating_mul(4 * width),
        }
    }

    /// Appends rows of `width` elements, coded.
    pub fn encode(self, width: usize, rows: &[f32], into: &mut Vec<u8>) {
        into.reserve(self.bound(width, rows.len() / width.max(1)));
        for row in rows.chunks(width.max(1)) {
            row.chunks(BLOCK).for_each(|block| self.0.encode(0, block, into));
        }
    }

    /// Decodes `rows` rows of `width` elements. `coded` must contain all of them, and nothing else.
    ///
    /// # Errors
    /// [`TableError::Malformed`] for bytes that the codec never writes, and for more than fit a message if they are not
    /// coded.
    pub fn decode(self, width: usize, rows: usize, mut coded: &[u8]) -> Result<Vec<f32>, TableError> {
        let malformed = |what: &str| TableError::Malformed(format!("values coded by {}: {what}", self.0));
        // A message has no more rows than would fit it as they are, however short their codes are.
        let plain = rows.checked_mul(width).and_then(|values| values.checked_mul(size_of::<f32>()));
        if plain.is_none_or(|bytes| bytes > BODY_BYTES) {
            return Err(malformed("they are too many for a message"));
        }
        let mut values = vec![0.0; rows * width];
        for row in values.chunks_mut(width.max(1)) {
            for block in row.chunks_mut(BLOCK) {
                let taken = self.0.decode(coded, block).map_err(|error| malformed(&format!("{error}")))?;
                coded = &coded[taken..];
            }
        }
        if coded.is_empty() { Ok(values) } else { Err(malformed("they are too long")) }
    }

    pub(super) fn write(self, to: &mut Writer) {
        to.u8(CODECS.iter().position(|codec| *codec == self.0).unwrap_or_default() as u8);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let codec = CODECS.get(usize::from(from.u8()?)).copied();
        codec.map(Self).ok_or(Malformed("values of an unknown codec"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(width: usize, count: usize) -> Vec<f32> {
        (0..width * count)
            .map(|at| ((at * 7919) % 2003) as f32 * (1.0 + (at / width) as f32) - 900.0)
            .collect()
    }

    #[test]
    fn a_row_has_the_same_bits_whatever_message_it_is_in() {
        for codec in CODECS.map(ValueCodec) {
            for width in [1, 3, 64, BLOCK + 1] {
                let rows = rows(width, 5);
                let (mut whole, mut parts) = (Vec::new(), Vec::new());
                codec.encode(width, &rows, &mut whole);
                rows.chunks(2 * width).for_each(|part| codec.encode(width, part, &mut parts));
                assert_eq!(whole, parts, "{codec:?}");
                assert!(whole.len() <= codec.bound(width, 5), "{codec:?}");
                let back = codec.decode(width, 5, &whole).unwrap();
                for (row, decoded) in rows.chunks(width).zip(back.chunks(width)) {
                    let largest = row.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
                    let is_near = |(one, other): (&f32, &f32)| (one - other).abs() <= largest / 120.0;
                    assert!(row.iter().zip(decoded).all(is_near), "{codec:?}");
                }
                assert!(codec.is_plain() != (back != rows) || width == 1, "{codec:?} of {width}");
            }
        }
    }

    #[test]
    fn what_is_no_code_is_refused_and_a_nan_stays_one() {
        for codec in CODECS.map(ValueCodec) {
            let mut coded = Vec::new();
            codec.encode(3, &[1.0, f32::NAN, 3.0, 4.0, 5.0, 6.0], &mut coded);
            let back = codec.decode(3, 2, &coded).unwrap();
            assert!(back[1].is_nan() && !back[4].is_nan(), "{codec:?}");
            for length in 0..coded.len() {
                codec.decode(3, 2, &coded[..length]).unwrap_err();
            }
            codec.decode(3, 2, &[&coded[..], &[0]].concat()).unwrap_err();
            codec.decode(1 << 20, 1 << 40, &coded).unwrap_err();
        }
        let refused = ValueCodec::new(Codec::Sign).unwrap_err().0;
        assert!(refused.contains("use plain, bf16, fp16 or int8"), "{refused}");
    }
}
