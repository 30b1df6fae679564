//! AVX-512, with its own conversions of f16.

use super::{Job, block, line, line::Isa};
use herringbone_core::element::{DType, Element, Reduction};
use std::arch::x86_64::*;

const LINE: usize = 64;

/// f32 in a register.
const LANES: usize = 16;

struct Avx512;

impl Isa<LINE> for Avx512 {
    #[inline(always)]
    unsafe fn lift<R: Reduction>(from: *const R::Element) -> [R::Acc; LINE] {
        let mut line = [R::Acc::default(); LINE];
        // SAFETY: as the caller says; the accumulator of f16 is f32.
        unsafe {
            match R::Element::DTYPE {
                DType::F16 => widen_f16(from.cast(), line.as_mut_ptr().cast()),
                _ => return line::lift::<R, LINE>(from),
            }
        }
        line
    }

    #[inline(always)]
    unsafe fn round<R: Reduction>(line: [R::Acc; LINE], into: *mut R::Element) {
        // SAFETY: as the caller says; the accumulator of f16 is f32.
        unsafe {
            match R::Element::DTYPE {
                DType::F16 => narrow_f16(line::canonical(line).as_ptr().cast(), into.cast()),
                _ => line::round::<R, LINE>(line, into),
            }
        }
    }
}

/// See [`block::fold`].
///
/// # Safety
/// The job is one for `R`. The CPU has these features.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn fold<R: Reduction>(job: &Job<'_>) {
    // SAFETY: as the caller says.
    unsafe { block::fold::<Avx512, R, LINE>(job) }
}

/// Widens a line of f16.
///
/// # Safety
/// A line can be read at `from` and written at `into`; neither need be aligned.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn widen_f16(from: *const u16, into: *mut f32) {
    for at in (0..LINE).step_by(LANES) {
        // SAFETY: these lanes are part of the line.
        unsafe { _mm512_storeu_ps(into.add(at), _mm512_cvtph_ps(_mm256_loadu_si256(from.add(at).cast()))) }
    }
}

/// Rounds a line of f32 to f16. Its NaNs are canonical, and stay so.
///
/// # Safety
/// A line can be read at `from` and written at `into`; neither need be aligned.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn narrow_f16(from: *const f32, into: *mut u16) {
    for at in (0..LINE).step_by(LANES) {
        // SAFETY: these lanes are part of the line.
        unsafe {
            let narrow = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm512_loadu_ps(from.add(at)));
            _mm256_storeu_si256(into.add(at).cast(), narrow);
        }
    }
}
