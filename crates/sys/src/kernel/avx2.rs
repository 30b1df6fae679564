//! AVX2, with F16C's conversions.

use super::{Job, block, line, line::Isa};
use herringbone_core::element::{DType, Element, Reduction};
use std::arch::x86_64::*;

const LINE: usize = 32;

/// f32 in a register.
const LANES: usize = 8;

struct Avx2;

impl Isa<LINE> for Avx2 {
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
        // SAFETY: as the caller says; the accumulators of f16 and bf16 are f32.
        unsafe {
            match R::Element::DTYPE {
                DType::F16 => narrow_f16(line::canonical(line).as_ptr().cast(), into.cast()),
                DType::Bf16 => narrow_bf16(line::canonical(line).as_ptr().cast(), into.cast()),
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
#[target_feature(enable = "avx2,f16c")]
pub(super) unsafe fn fold<R: Reduction>(job: &Job<'_>) {
    // SAFETY: as the caller says.
    unsafe { block::fold::<Avx2, R, LINE>(job) }
}

/// Widens a line of f16.
///
/// # Safety
/// A line can be read at `from` and written at `into`; neither need be aligned.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn widen_f16(from: *const u16, into: *mut f32) {
    for at in (0..LINE).step_by(LANES) {
        // SAFETY: these lanes are part of the line.
        unsafe { _mm256_storeu_ps(into.add(at), _mm256_cvtph_ps(_mm_loadu_si128(from.add(at).cast()))) }
    }
}

/// Rounds a line of f32 to f16. Its NaNs are canonical, and stay so.
///
/// # Safety
/// A line can be read at `from` and written at `into`; neither need be aligned.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn narrow_f16(from: *const f32, into: *mut u16) {
    for at in (0..LINE).step_by(LANES) {
        // SAFETY: these lanes are part of the line.
        unsafe {
            let narrow = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(from.add(at)));
            _mm_storeu_si128(into.add(at).cast(), narrow);
        }
    }
}

/// Rounds a line of f32 to bf16. Its NaNs are canonical, and stay so: the addition does not overflow.
///
/// # Safety
/// A line can be read at `from` and written at `into`; neither need be aligned.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn narrow_bf16(from: *const f32, into: *mut u16) {
    for at in (0..LINE).step_by(2 * LANES) {
        // SAFETY: these lanes are part of the line.
        unsafe {
            let [low, high] = [at, at + LANES].map(|at| {
                let bits = _mm256_loadu_si256(from.add(at).cast());
                let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
                let half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
                _mm256_srli_epi32::<16>(_mm256_add_epi32(bits, half))
            });
            let packed = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(low, high));
            _mm256_storeu_si256(into.add(at).cast(), packed);
        }
    }
}
