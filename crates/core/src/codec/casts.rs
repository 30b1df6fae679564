//! Codecs that code every element by itself: casts, and 8 bits of the block's largest magnitude.

use super::format::Put;
use alloc::vec::Vec;

#[inline(always)]
pub(super) fn from_plain(coded: &[u8], values: &mut [f32]) {
    for (value, bytes) in values.iter_mut().zip(coded.as_chunks::<4>().0) {
        *value = f32::from_le_bytes(*bytes);
    }
}

/// Codes each value by itself, as 16 bits.
#[inline(always)]
pub(super) fn cast(values: &[f32], coded: &mut Vec<u8>, cast: impl Fn(f32) -> u16) {
    let start = coded.len();
    coded.resize(start + 2 * values.len(), 0);
    for (bytes, value) in coded[start..].as_chunks_mut::<2>().0.iter_mut().zip(values) {
        *bytes = cast(*value).to_le_bytes();
    }
}

/// What [`cast`] wrote.
#[inline(always)]
pub(super) fn uncast(coded: &[u8], values: &mut [f32], put: impl Put, cast: impl Fn(u16) -> f32) {
    for (value, bytes) in values.iter_mut().zip(coded.as_chunks::<2>().0) {
        put(value, cast(u16::from_le_bytes(*bytes)));
    }
}

/// What brings a small number's last place to 1, so that an addition rounds it to an integer, ties to even, which is then in the
/// low bits of the sum.
const ROUNDING: f32 = 12_582_912.0;

/// As [`ROUNDING`], of an f64.
const WIDE_ROUNDING: f64 = 6_755_399_441_055_744.0;

/// The largest code.
const MOST: f32 = 127.0;

/// The scale, then a signed byte for each element.
#[inline(always)]
pub(super) fn to_int8(largest: f32, values: &[f32], coded: &mut Vec<u8>) {
    let inverse = MOST / largest;
    if !inverse.is_finite() {
        tiny_to_int8(largest, values, coded);
        return;
    }
    let scale = largest / MOST;
    // Of f32::MAX alone 127 steps would be infinite.
    let scale = if (scale * MOST).is_finite() { scale } else { scale.next_down() };
    coded.extend(scale.to_le_bytes());
    let start = coded.len();
    coded.resize(start + values.len(), 0);
    for (byte, value) in coded[start..].iter_mut().zip(values) {
        // The quotient is rounded twice, by less than a part of 2^22, so it never rounds to more than 127.
        *byte = (value * inverse + ROUNDING).to_bits() as u8;
    }
}

/// As [`to_int8`], where the largest magnitude is below 127 / [`f32::MAX`], about 3.7e-37, or 0.
///
/// A scale is a multiple of the smallest f32 here. It is rounded up, because a code of 127 steps has to reach the largest magnitude;
/// where the scale is that smallest f32 itself, codes have all bits.
fn tiny_to_int8(largest: f32, values: &[f32], coded: &mut Vec<u8>) {
    let nearest = largest / MOST;
    let is_short = f64::from(nearest) * f64::from(MOST) < f64::from(largest);
    let scale = if is_short { nearest.next_up() } else { nearest };
    let step = if scale > 0.0 { f64::from(scale) } else { 1.0 };
    coded.extend(scale.to_le_bytes());
    coded.extend(values.iter().map(|value| (f64::from(*value) / step + WIDE_ROUNDING).to_bits() as u8));
}

#[inline(always)]
pub(super) fn from_int8(coded: &[u8], values: &mut [f32], put: impl Put) {
    let Some((scale, codes)) = coded.split_first_chunk() else { return };
    let scale = f32::from_le_bytes(*scale);
    for (value, code) in values.iter_mut().zip(codes) {
        put(value, f32::from(*code as i8) * scale);
    }
}
