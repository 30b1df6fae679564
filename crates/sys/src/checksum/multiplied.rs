//! CRC-32C without a copy, even of memory that others write meanwhile, if the CPU has the instructions.
//!
//! With wide vectors (AVX-512 and VPCLMULQDQ) all is folded by carry-less multiplication, in sixteen lanes of 16 bytes
//! that lie side by side. Without them a block is cut in two. Its front is folded in the same way in four lanes; its
//! back goes through the CRC instruction in three streams, as many as hide its latency. The two use different units of
//! the CPU, so both together take hardly longer than one of them. The result of each part is then multiplied by the
//! power of x that the bytes behind it stand for, and all are added up. The CPU's own prefetcher does not follow four
//! streams that are a few hundred bytes apart, so each block prefetches the next one. That is half again as fast if
//! nothing is in cache.
//!
//! Polynomials are reflected: the highest power of x is the lowest bit.

use crate::span::Span;
use std::arch::x86_64::*;

const POLYNOMIAL: u32 = 0x82f6_3b78;
/// Bytes per round in the front's lanes together, and in each of the back's streams.
const LANES: usize = 64;
const STREAM: usize = 24;
const ROUND: usize = LANES + 3 * STREAM;
const CACHE_LINE: usize = 64;
/// Bytes per round of wide vectors.
const WIDE: usize = 4 * CACHE_LINE;
/// Rounds of a block: many, so that joining costs little, and for what is left a few.
const MANY: usize = 32;
const FEW: usize = 4;

/// The checksum, or `None` if this CPU lacks the instructions.
pub(super) fn crc32c(bytes: Span<'_>) -> Option<u32> {
    let able = is_x86_feature_detected!("sse4.2") && is_x86_feature_detected!("pclmulqdq");
    let (mut crc, mut rest) = (u64::from(!0u32), bytes);
    let rounds = bytes.len() / WIDE;
    if rounds > 0 && able && is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("vpclmulqdq") {
        // SAFETY: the CPU has all four features, and so many bytes, one round at the least, can be read.
        crc = unsafe { wide_rounds(bytes.as_ptr(), rounds, crc) };
        rest = bytes.slice(rounds * WIDE..bytes.len());
    }
    // SAFETY: the CPU has both features.
    able.then(|| unsafe { checksum(rest, crc) })
}

/// The checksum of all bytes up to the last of `bytes`, if `crc` is that of those before, not yet inverted.
#[target_feature(enable = "sse4.2,pclmulqdq")]
fn checksum(bytes: Span<'_>, mut crc: u64) -> u32 {
    let (mut next, mut left) = (bytes.as_ptr(), bytes.len());
    let mut take = |len: usize| {
        let from = next;
        let enough = left >= len;
        if enough {
            (next, left) = (from.wrapping_add(len), left - len);
        }
        enough.then_some(from)
    };
    while let Some(from) = take(MANY * ROUND) {
        // SAFETY: `from` is the start of as many bytes as a block of so many rounds has.
        crc = unsafe { block::<MANY>(from, crc) };
    }
    while let Some(from) = take(FEW * ROUND) {
        // SAFETY: as above.
        crc = unsafe { block::<FEW>(from, crc) };
    }
    while let Some(from) = take(8) {
        // SAFETY: eight bytes begin at `from`.
        crc = _mm_crc32_u64(crc, unsafe { word(from) });
    }
    let mut crc = crc as u32;
    while let Some(from) = take(1) {
        // SAFETY: one byte is at `from`.
        crc = _mm_crc32_u8(crc, unsafe { from.read() });
    }
    !crc
}

/// Appends a block to a checksum.
///
/// # Safety
/// `ROUNDS * ROUND` bytes can be read at `from`.
#[inline]
#[target_feature(enable = "sse4.2,pclmulqdq")]
unsafe fn block<const ROUNDS: usize>(from: *const u8, crc: u64) -> u64 {
    let (far, near) = const { (lane_power(8 * LANES), lane_power(8 * LANES / 4)) };
    let (far, near) = (_mm_set_epi64x(far.1, far.0), _mm_set_epi64x(near.1, near.0));
    // SAFETY: the front's rounds, then the streams' one after the other, are the bytes that can be read.
    unsafe {
        let lane = |at: usize| _mm_loadu_si128(from.add(at).cast());
        let stream = |at: usize| word(from.add(ROUNDS * LANES + at));
        let mut lanes = [lane(0), lane(16), lane(32), lane(48)];
        lanes[0] = _mm_xor_si128(lanes[0], _mm_cvtsi64_si128(crc as i64));
        let mut streams = [0; 3];
        for round in 0..ROUNDS {
            let ahead = (ROUNDS + round) * ROUND;
            for at in (ahead..ahead + ROUND).step_by(CACHE_LINE) {
                // Only a hint, for any address.
                _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(at).cast());
            }
            for at in (round * STREAM..(round + 1) * STREAM).step_by(8) {
                for (number, crc) in streams.iter_mut().enumerate() {
                    *crc = _mm_crc32_u64(*crc, stream(number * ROUNDS * STREAM + at));
                }
            }
            if round > 0 {
                for (number, folded) in lanes.iter_mut().enumerate() {
                    *folded = fold(*folded, far, lane(round * LANES + number * 16));
                }
            }
        }
        let [first, second, third, fourth] = lanes;
        let front = fold(fold(fold(first, near, second), near, third), near, fourth);
        let (low, high) = (_mm_cvtsi128_si64(front) as u64, _mm_extract_epi64::<1>(front) as u64);
        let front = _mm_crc32_u64(_mm_crc32_u64(0, low), high);
        shift(front, const { power(8 * 3 * STREAM * ROUNDS - 33) })
            ^ shift(streams[0], const { power(8 * 2 * STREAM * ROUNDS - 33) })
            ^ shift(streams[1], const { power(8 * STREAM * ROUNDS - 33) })
            ^ streams[2]
    }
}

/// Appends rounds of wide vectors to a checksum.
///
/// # Safety
/// `rounds * WIDE` bytes can be read at `from`; they are not none.
#[target_feature(enable = "sse4.2,pclmulqdq,avx512f,vpclmulqdq")]
unsafe fn wide_rounds(from: *const u8, rounds: usize, crc: u64) -> u64 {
    let (far, near) = const { (lane_power(8 * WIDE), lane_power(8 * CACHE_LINE)) };
    let powers = |(low, high)| _mm512_broadcast_i32x4(_mm_set_epi64x(high, low));
    let (far, near) = (powers(far), powers(near));
    // SAFETY: `at` is below `rounds * WIDE`.
    let load = |at: usize| unsafe { _mm512_loadu_si512(from.add(at).cast()) };
    let mut lanes = [0, 1, 2, 3].map(|line| load(line * CACHE_LINE));
    lanes[0] = _mm512_xor_si512(lanes[0], _mm512_zextsi128_si512(_mm_cvtsi64_si128(crc as i64)));
    for round in 1..rounds {
        for (line, folded) in lanes.iter_mut().enumerate() {
            *folded = fold_wide(*folded, far, load(round * WIDE + line * CACHE_LINE));
        }
    }
    let [first, second, third, fourth] = lanes;
    let line = fold_wide(fold_wide(fold_wide(first, near, second), near, third), near, fourth);
    let near = const { lane_power(8 * 16) };
    let near = _mm_set_epi64x(near.1, near.0);
    let mut last = _mm512_extracti32x4_epi32::<0>(line);
    last = fold(last, near, _mm512_extracti32x4_epi32::<1>(line));
    last = fold(last, near, _mm512_extracti32x4_epi32::<2>(line));
    last = fold(last, near, _mm512_extracti32x4_epi32::<3>(line));
    let (low, high) = (_mm_cvtsi128_si64(last) as u64, _mm_extract_epi64::<1>(last) as u64);
    _mm_crc32_u64(_mm_crc32_u64(0, low), high)
}

/// [`fold`] of four lanes.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn fold_wide(lanes: __m512i, powers: __m512i, next: __m512i) -> __m512i {
    const XOR_OF_THREE: i32 = 0x96;
    let low = _mm512_clmulepi64_epi128::<0x00>(lanes, powers);
    let high = _mm512_clmulepi64_epi128::<0x11>(lanes, powers);
    _mm512_ternarylogic_epi64::<XOR_OF_THREE>(low, high, next)
}

/// Moves a lane's bytes up by as far as `powers` say, and adds what lies there.
#[inline]
#[target_feature(enable = "sse4.2,pclmulqdq")]
fn fold(lane: __m128i, powers: __m128i, next: __m128i) -> __m128i {
    let low = _mm_clmulepi64_si128::<0x00>(lane, powers);
    let high = _mm_clmulepi64_si128::<0x11>(lane, powers);
    _mm_xor_si128(_mm_xor_si128(low, next), high)
}

/// A checksum with zero bytes appended: `power` is x to the power of 33 bits less than they are. The product lacks one
/// power for lying in the low 63 of 64 bits, and the CRC of its 8 bytes multiplies it by the other 32.
#[inline]
#[target_feature(enable = "sse4.2,pclmulqdq")]
fn shift(crc: u64, power: u32) -> u64 {
    let product =
        _mm_clmulepi64_si128::<0>(_mm_cvtsi64_si128(crc as i64), _mm_cvtsi64_si128(i64::from(power)));
    _mm_crc32_u64(0, _mm_cvtsi128_si64(product) as u64)
}

/// # Safety
/// Eight bytes can be read at `from`.
#[inline]
unsafe fn word(from: *const u8) -> u64 {
    // SAFETY: the caller's promise; a read that need not be aligned.
    unsafe { from.cast::<u64>().read_unaligned() }
}

/// By what the two halves of a lane are multiplied to move them up by `bits`.
const fn lane_power(bits: usize) -> (i64, i64) {
    ((power(bits + 32) as i64) << 1, (power(bits - 32) as i64) << 1)
}

/// x^n modulo the polynomial.
const fn power(n: usize) -> u32 {
    let mut power = 1 << 31;
    let mut at = 0;
    while at < n {
        power = (power >> 1) ^ (POLYNOMIAL & (power & 1u32).wrapping_neg());
        at += 1;
    }
    power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_length_and_alignment_has_the_checksum_of_the_table_driven_definition() {
        let bytes: Vec<u8> = (0..20_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let lengths = (0..1_200).chain([4_096, 4_351, 4_352, 4_353, 9_000, 13_063, 19_990]);
        for (len, offset) in lengths.flat_map(|len| (0..9).map(move |offset| (len, offset))) {
            let bytes = &bytes[offset..offset + len];
            let Some(checksum) = crc32c(Span::of_shared(bytes)) else { return };
            assert_eq!(checksum, definition(bytes), "{len} bytes at {offset}");
            assert_eq!(narrow(bytes), checksum, "{len} bytes at {offset}, without wide vectors");
        }
    }

    #[test]
    fn every_bit_of_a_block_counts() {
        let mut bytes = vec![0; MANY * ROUND + FEW * ROUND + 9];
        let Some(whole) = crc32c(Span::of(&mut bytes)) else { return };
        for bit in (0..8 * bytes.len()).step_by(7) {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(crc32c(Span::of(&mut bytes)), Some(whole), "bit {bit}");
            assert_ne!(narrow(&bytes), whole, "bit {bit}, without wide vectors");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    /// Without wide vectors, on a CPU that has the other instructions.
    fn narrow(bytes: &[u8]) -> u32 {
        assert!(crc32c(Span::of_shared(bytes)).is_some());
        // SAFETY: there is a checksum, so the CPU has the features.
        unsafe { super::checksum(Span::of_shared(bytes), u64::from(!0u32)) }
    }

    fn definition(bytes: &[u8]) -> u32 {
        !bytes.iter().fold(!0, |crc, byte| {
            (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
                (crc >> 1) ^ (POLYNOMIAL & (crc & 1u32).wrapping_neg())
            })
        })
    }
}
