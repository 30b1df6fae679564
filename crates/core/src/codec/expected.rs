//! The expected cost of a codec if nothing is known of the numbers: bytes, and time relative to other codecs.

use super::{BLOCK, Codec, PREFIX_BYTES, sparse};

/// The speed of a codec, in thousandths of the speed of [`Codec::Int8`] on the same machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodecSpeed {
    /// The speed of encoding with error feedback: the earlier error is added and the new one is noted.
    pub encoding: u64,
    /// The speed of decoding.
    pub decoding: u64,
}

impl Codec {
    /// The expected number of bytes of a message of `elements` elements, with its prefix. For codecs whose size depends
    /// on the numbers, such as [`Codec::Threshold`], this is the [`bound`](Self::bound).
    pub fn expected_bytes(self, elements: usize) -> usize {
        self.bound(elements)
    }

    /// The expected number of bytes of a message of `elements` elements of a result, the sum of `workers` inputs, in
    /// this codec's [`result`](Self::result) form. For codecs whose size depends on the numbers, this is the maximum.
    pub fn expected_result_bytes(self, elements: usize, workers: u32) -> usize {
        let workers = workers.max(1) as usize;
        // Each worker's input has so many values in a block, so the sum has one more each time, or a product of them.
        let of_block = |elements: usize| -> usize {
            let plain = self.result().block_bound(elements);
            let least = match self {
                Self::OneBit { .. } => exact_palette(workers + 1, elements),
                Self::TwoBit { .. } => exact_palette(2 * workers + 1, elements),
                Self::Sign => {
                    exact_palette(1usize.checked_shl(workers as u32).unwrap_or(usize::MAX), elements)
                }
                Self::TopK { share } => 3 + 6 * (workers * sparse::kept(share, elements)).min(elements),
                Self::RandomK { share } => 3 + 6 * sparse::kept(share, elements),
                _ => plain,
            };
            least.min(plain)
        };
        let rest = elements % BLOCK;
        let rest = if rest == 0 { 0 } else { of_block(rest) };
        PREFIX_BYTES + elements / BLOCK * of_block(BLOCK) + rest
    }

    /// Its speed, where [`Codec::Int8`] has 1,000; record/codec-rates.md has the measurements.
    pub fn speed(self) -> CodecSpeed {
        let (encoding, decoding) = match self {
            Self::Plain => (2000, 2000),
            Self::Int8 => (1000, 1000),
            Self::Bf16 | Self::Fp16 => (900, 800),
            Self::OneBit { .. } | Self::RandomK { .. } => (900, 1300),
            Self::TwoBit { .. } => (1000, 800),
            Self::Sign => (600, 1000),
            Self::TopK { .. } => (500, 2800),
            Self::Threshold { .. } => (400, 700),
            Self::Exact => (500, 500),
        };
        CodecSpeed { encoding, decoding }
    }

    /// Whether the number of bytes depends on the numbers. If so, the expected number is the maximum.
    pub fn depends_on_numbers(self) -> bool {
        matches!(self, Self::Threshold { .. } | Self::Exact)
    }
}

/// A block of [`Codec::Exact`] with so many values.
fn exact_palette(values: usize, elements: usize) -> usize {
    match values {
        0..=super::exact::MOST_VALUES => 1 + super::exact::palette_bytes(values, elements),
        _ => usize::MAX,
    }
}
