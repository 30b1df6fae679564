//! Codecs with this machine's instructions: the pure functions of [`core`](herringbone_core::codec), compiled for wider registers.
//!
//! There is one text of each codec, so there is nothing in which two could differ: nothing is reordered or fused, whatever the
//! registers' width, or the caller's modes of rounding and of denormal numbers, which are put back.

use crate::kernel::{Level, mode::DefaultMode};
use herringbone_core::codec::{Codec, CodedError};

/// [`Codec::encode`].
pub fn encode(codec: Codec, seed: u64, values: &[f32], coded: &mut Vec<u8>) {
    let _mode = DefaultMode::enter();
    #[cfg(target_arch = "x86_64")]
    if Level::Avx2.is_available() {
        // SAFETY: the CPU has the instructions.
        return unsafe { avx2::encode(codec, seed, values, coded) };
    }
    codec.encode(seed, values, coded);
}

/// [`Codec::encode_with`].
///
/// # Panics
/// As that.
pub fn encode_with(
    codec: Codec,
    seed: u64,
    values: &[f32],
    (before, after): (&[f32], &mut [f32]),
    coded: &mut Vec<u8>,
) {
    let _mode = DefaultMode::enter();
    #[cfg(target_arch = "x86_64")]
    if Level::Avx2.is_available() {
        // SAFETY: the CPU has the instructions.
        return unsafe { avx2::encode_with(codec, seed, values, (before, after), coded) };
    }
    codec.encode_with(seed, values, before, after, coded);
}

/// [`Codec::decode`].
///
/// # Errors
/// As that.
pub fn decode(codec: Codec, coded: &[u8], values: &mut [f32]) -> Result<usize, CodedError> {
    let _mode = DefaultMode::enter();
    #[cfg(target_arch = "x86_64")]
    if Level::Avx2.is_available() {
        // SAFETY: the CPU has the instructions.
        return unsafe { avx2::decode(codec, coded, values) };
    }
    codec.decode(coded, values)
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::{Codec, CodedError};

    #[target_feature(enable = "avx2")]
    pub(super) fn encode(codec: Codec, seed: u64, values: &[f32], coded: &mut Vec<u8>) {
        codec.encode(seed, values, coded);
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn encode_with(
        codec: Codec,
        seed: u64,
        values: &[f32],
        (before, after): (&[f32], &mut [f32]),
        coded: &mut Vec<u8>,
    ) {
        codec.encode_with(seed, values, before, after, coded);
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn decode(codec: Codec, coded: &[u8], values: &mut [f32]) -> Result<usize, CodedError> {
        codec.decode(coded, values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use herringbone_core::codec::BLOCK;

    #[test]
    fn the_bits_are_those_of_the_pure_functions() {
        let names = [
            "none",
            "bf16",
            "fp16",
            "int8",
            "onebit:0",
            "twobit:0.5",
            "sign",
            "topk:0.01",
            "randomk:0.1",
            "threshold:0.5",
            "exact",
        ];
        for (codec, count) in names.iter().flat_map(|name| {
            [1, 7, 33, BLOCK - 5, BLOCK].map(|count| (name.parse::<Codec>().unwrap(), count))
        }) {
            let values = |seed: usize| -> Vec<f32> {
                (0..count).map(|at| ((at * seed * 2_654_435_761) % 10_007) as f32 / 2500.0 - 2.0).collect()
            };
            let (gradient, before) = (values(3), values(5));
            let (mut pure, mut fast) = (Vec::new(), Vec::new());
            let (mut left_pure, mut left_fast) = (vec![0.0; count], vec![0.0; count]);
            codec.encode_with(1, &gradient, &before, &mut left_pure, &mut pure);
            encode_with(codec, 1, &gradient, (&before, &mut left_fast), &mut fast);
            assert_eq!((&pure, &left_pure), (&fast, &left_fast), "{codec} {count}");
            let mut decoded = vec![0.0; count];
            assert_eq!(decode(codec, &fast, &mut decoded), codec.decode(&pure, &mut left_pure), "{codec}");
            assert_eq!(decoded, left_pure, "{codec} {count}");
            pure.clear();
            fast.clear();
            codec.encode(1, &gradient, &mut pure);
            encode(codec, 1, &gradient, &mut fast);
            assert_eq!(pure, fast, "{codec} {count}");
        }
    }
}
