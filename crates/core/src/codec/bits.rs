//! Codecs of one and two bits: MXNet's, to the bit, and BytePS's signs.

use super::format::{BLOCK, CodedError, Put};
use alloc::vec::Vec;

/// How many bytes a word has: codes fill whole words, with 0 at the end.
const WORD: usize = 4;

/// A bit for each value, the first in a byte's top bit.
#[inline(always)]
fn pack(values: &[f32], bytes: usize, coded: &mut Vec<u8>, bit: impl Fn(f32) -> bool) {
    let start = coded.len();
    coded.resize(start + bytes, 0);
    let (whole, rest) = values.as_chunks::<8>();
    let packed = |values: &[f32]| {
        (0..8).zip(values).fold(0u8, |byte, (at, value)| byte | u8::from(bit(*value)) << (7 - at))
    };
    let bytes = &mut coded[start..];
    for (byte, values) in bytes.iter_mut().zip(whole) {
        *byte = packed(values);
    }
    if !rest.is_empty() {
        bytes[whole.len()] = packed(rest);
    }
}

/// One of two values for each bit.
#[inline(always)]
pub(super) fn unpack(coded: &[u8], values: &mut [f32], set: f32, clear: f32, put: impl Put) {
    for (values, byte) in values.chunks_mut(8).zip(coded) {
        for (at, value) in values.iter_mut().enumerate() {
            put(value, if byte >> (7 - at) & 1 == 1 { set } else { clear });
        }
    }
}

#[inline(always)]
pub(super) fn one(threshold: f32, values: &[f32], coded: &mut Vec<u8>) {
    pack(values, WORD * values.len().div_ceil(8 * WORD), coded, |value| value > threshold);
}

const POSITIVE: u8 = 0b11;
const NEGATIVE: u8 = 0b10;

/// The codes of a block, a byte each, four of them to a word: with these, loops become vector code.
type Codes = [[u8; 4]; BLOCK / 4];

/// Two bits for each value, the first in a byte's top two.
#[inline(always)]
pub(super) fn two(threshold: f32, values: &[f32], coded: &mut Vec<u8>) {
    let start = coded.len();
    coded.resize(start + WORD * values.len().div_ceil(4 * WORD), 0);
    let mut codes: Codes = [[0; 4]; BLOCK / 4];
    for (code, value) in codes.as_flattened_mut().iter_mut().zip(values) {
        let (above, below) = (*value >= threshold, *value <= -threshold);
        *code = (u8::from(above) * POSITIVE) | (u8::from(below) * NEGATIVE);
    }
    for (byte, codes) in coded[start..].iter_mut().zip(codes) {
        let word = u32::from_le_bytes(codes);
        *byte = (word << 6 | word >> 4 | word >> 14 | word >> 24) as u8;
    }
}

/// Refuses the code that stands for nothing.
#[inline(always)]
pub(super) fn check_two(coded: &[u8]) -> Result<(), CodedError> {
    // A low bit without its high one.
    let has = |byte: &u8| byte & !(byte >> 1) & 0b0101_0101 != 0;
    if coded.iter().any(has) { Err(CodedError::Code) } else { Ok(()) }
}

#[inline(always)]
pub(super) fn from_two(threshold: f32, coded: &[u8], values: &mut [f32], put: impl Put) {
    let mut codes: Codes = [[0; 4]; BLOCK / 4];
    for (codes, byte) in codes.iter_mut().zip(coded) {
        let word = u32::from(*byte);
        *codes = (word >> 6 | (word & 0x30) << 4 | (word & 0x0c) << 14 | (word & 0x03) << 24).to_le_bytes();
    }
    for (value, code) in values.iter_mut().zip(codes.as_flattened()) {
        // The high bit says that there is a threshold, and the low one takes its sign away.
        let (high, low) = (u32::from(code >> 1), u32::from(code & 1));
        let negative = threshold.to_bits() | 1 << 31;
        put(value, f32::from_bits(high.wrapping_neg() & (negative ^ low << 31)));
    }
}

/// The mean magnitude, added up in f64 in the order of the elements, then a bit for each, set where it is negative.
#[inline(always)]
pub(super) fn signs(values: &[f32], coded: &mut Vec<u8>) {
    let sum = values.iter().fold(0.0, |sum, value| sum + f64::from(value.abs()));
    let mean = (sum / values.len() as f64) as f32;
    coded.extend(mean.to_le_bytes());
    pack(values, values.len().div_ceil(8), coded, |value| value < 0.0);
}

#[inline(always)]
pub(super) fn from_signs(coded: &[u8], values: &mut [f32], put: impl Put) {
    let Some((mean, bits)) = coded.split_first_chunk() else { return };
    let mean = f32::from_le_bytes(*mean);
    unpack(bits, values, -mean, mean, put);
}
