//! 16-bit floats to f32 and back.
//!
//! The code is plain integer and float arithmetic without branches, so a loop over it becomes vector code on any
//! machine. The results do not depend on whether the thread flushes denormals: no step has a denormal that matters as
//! its operand or result.

use half::{bf16, f16};

const F32_INFINITY: u32 = 0x7f80_0000;

/// Exact. A NaN keeps its payload.
#[inline(always)]
pub(crate) fn bf16_to_f32(value: bf16) -> f32 {
    f32::from_bits(u32::from(value.to_bits()) << 16)
}

/// To nearest, ties to even; too large a value becomes infinite, a NaN the canonical one.
#[inline(always)]
pub(crate) fn f32_to_bf16(value: f32) -> bf16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    bf16::from_bits(if value.is_nan() { 0x7fc0 } else { rounded } as u16)
}

/// How far the exponents of f16 and f32 are apart, at f32's place for them.
const EXPONENT_GAP: u32 = (127 - 15) << 23;

/// Exact. A NaN keeps its payload.
#[inline(always)]
pub(crate) fn f16_to_f32(value: f16) -> f32 {
    const MIN_NORMAL: u32 = 0x0400 << 13;
    const INFINITY: u32 = 0x7c00 << 13;
    let bits = u32::from(value.to_bits());
    let magnitude = (bits & 0x7fff) << 13;
    let denormal = ((bits & 0x03ff) as i32 as f32 * f32::from_bits((127 - 24) << 23)).to_bits();
    let normal = magnitude + EXPONENT_GAP;
    let special = magnitude | F32_INFINITY;
    let finite = if magnitude < MIN_NORMAL { denormal } else { normal };
    let widened = if magnitude < INFINITY { finite } else { special };
    f32::from_bits(widened | (bits & 0x8000) << 16)
}

/// To nearest, ties to even; too large a value becomes infinite, a NaN the canonical one.
#[inline(always)]
pub(crate) fn f32_to_f16(value: f32) -> f16 {
    const MIN_NORMAL: u32 = (127 - 14) << 23;
    const INFINITE_FROM: u32 = ((127 + 16) << 23) - (1 << 12);
    let bits = value.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    // The last place of 0.5 as an f32 is the smallest f16, so this addition rounds as a denormal f16 needs it.
    let denormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let normal = magnitude.wrapping_sub(EXPONENT_GAP).wrapping_add(0x0fff + ((magnitude >> 13) & 1)) >> 13;
    let finite = if magnitude < MIN_NORMAL { denormal } else { normal };
    let number = if magnitude < INFINITE_FROM { finite } else { 0x7c00 };
    let signed = number | (bits >> 16) & 0x8000;
    f16::from_bits(if value.is_nan() { 0x7e00 } else { signed } as u16)
}
