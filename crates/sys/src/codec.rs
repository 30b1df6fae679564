//! Codecs with this machine's instructions: the pure functions of [`core`](herringbone_core::codec), compiled for wider registers.
//!
//! Each codec has one source text, so no two versions can differ. Nothing is reordered or fused, whatever the
//! registers' width, or the caller's modes of rounding and of denormal numbers, which are restored.

use crate::kernel::{Level, mode::DefaultMode};
use herringbone_core::codec::{Codec, CodedError};

/// [`Codec::encode`].
pub fn encode(codec: Codec, seed: u64, values: &[f32], coded: &mut Vec<u8>) {
    encode_at(Level::best(), codec, seed, values, coded);
}

/// [`Codec::encode_with`].
///
/// # Panics
/// As that.
pub fn encode_with(
    codec: Codec,
    seed: u64,
    values: &[f32],
    before: &[f32],
    after: &mut [f32],
    coded: &mut Vec<u8>,
) {
    encode_with_at(Level::best(), codec, seed, values, before, after, coded);
}

/// [`Codec::decode`].
///
/// # Errors
/// As that.
pub fn decode(codec: Codec, coded: &[u8], values: &mut [f32]) -> Result<usize, CodedError> {
    decode_at(Level::best(), codec, coded, values)
}

/// A codec's method, compiled for a level.
macro_rules! at {
    ($level:ident, $codec:ident.$method:ident($($argument:ident),*)) => {{
        let _mode = DefaultMode::enter();
        assert!($level.is_available());
        match $level {
            // SAFETY: the CPU has the instructions.
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => unsafe { avx512::$method($codec, $($argument),*) },
            // SAFETY: the CPU has the instructions.
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => unsafe { avx2::$method($codec, $($argument),*) },
            _ => $codec.$method($($argument),*),
        }
    }};
}

fn encode_at(level: Level, codec: Codec, seed: u64, values: &[f32], coded: &mut Vec<u8>) {
    at!(level, codec.encode(seed, values, coded));
}

fn encode_with_at(
    level: Level,
    codec: Codec,
    seed: u64,
    values: &[f32],
    before: &[f32],
    after: &mut [f32],
    coded: &mut Vec<u8>,
) {
    at!(level, codec.encode_with(seed, values, before, after, coded));
}

fn decode_at(level: Level, codec: Codec, coded: &[u8], values: &mut [f32]) -> Result<usize, CodedError> {
    at!(level, codec.decode(coded, values))
}

/// The functions, compiled for a level.
#[cfg(target_arch = "x86_64")]
macro_rules! compiled_for {
    ($level:ident, $features:literal) => {
        mod $level {
            use super::{Codec, CodedError};

            #[target_feature(enable = $features)]
            pub(super) fn encode(codec: Codec, seed: u64, values: &[f32], coded: &mut Vec<u8>) {
                codec.encode(seed, values, coded);
            }

            #[target_feature(enable = $features)]
            pub(super) fn encode_with(
                codec: Codec,
                seed: u64,
                values: &[f32],
                before: &[f32],
                after: &mut [f32],
                coded: &mut Vec<u8>,
            ) {
                codec.encode_with(seed, values, before, after, coded);
            }

            #[target_feature(enable = $features)]
            pub(super) fn decode(
                codec: Codec,
                coded: &[u8],
                values: &mut [f32],
            ) -> Result<usize, CodedError> {
                codec.decode(coded, values)
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
compiled_for!(avx2, "avx2");
#[cfg(target_arch = "x86_64")]
compiled_for!(avx512, "avx2,avx512f,avx512bw,avx512dq,avx512vl");

#[cfg(test)]
mod tests {
    use super::*;
    use herringbone_core::codec::BLOCK;

    #[test]
    fn the_bits_are_those_of_the_pure_functions() {
        let codecs = Codec::EXAMPLES.into_iter().chain([Codec::Plain]);
        for (codec, count) in
            codecs.flat_map(|codec| [1, 7, 33, BLOCK - 5, BLOCK].map(|count| (codec, count)))
        {
            let values = |seed: usize| -> Vec<f32> {
                (0..count).map(|at| ((at * seed * 2_654_435_761) % 10_007) as f32 / 2500.0 - 2.0).collect()
            };
            let (gradient, before) = (values(3), values(5));
            let (mut pure, mut left_pure, mut decoded_pure) =
                (Vec::new(), vec![0.0; count], vec![0.0; count]);
            codec.encode_with(1, &gradient, &before, &mut left_pure, &mut pure);
            assert_eq!(codec.decode(&pure, &mut decoded_pure), Ok(pure.len()));
            let mut alone_pure = Vec::new();
            codec.encode(1, &gradient, &mut alone_pure);
            for level in Level::ALL.into_iter().filter(|level| level.is_available()) {
                let (mut fast, mut left_fast, mut decoded) = (Vec::new(), vec![0.0; count], vec![0.0; count]);
                encode_with_at(level, codec, 1, &gradient, &before, &mut left_fast, &mut fast);
                assert_eq!((&pure, &left_pure), (&fast, &left_fast), "{codec} {count} {level}");
                assert_eq!(decode_at(level, codec, &fast, &mut decoded), Ok(pure.len()), "{codec} {level}");
                assert_eq!(decoded, decoded_pure, "{codec} {count} {level}");
                fast.clear();
                encode_at(level, codec, 1, &gradient, &mut fast);
                assert_eq!(alone_pure, fast, "{codec} {count} {level}");
            }
        }
    }
}
