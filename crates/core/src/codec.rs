//! Codecs: fewer bytes for a message of f32, at the price of bits. Error feedback keeps the error for the next message.
//!
//! A codec works on **blocks** of [`BLOCK`] elements, counted from the tensor's first one. The code of a block depends
//! on that block alone. So bits do not depend on how an operation is cut: on the ranks' chunks, segments or the number
//! of reducers.
//!
//! Inputs, which are sent to be folded, are coded by the codec that the user names. Results are coded by the codec's
//! [`result`](Codec::result): the same codec if its error is next to nothing, otherwise [`Codec::Exact`], which is
//! exact. A sum of a few numbers with few values has few values too, so it is still short, and only one rank's error
//! has to be fed back.
//!
//! Numbers are little-endian. Casts and [`TopK`](Codec::TopK) pass NaNs and infinities on. Blocks of the other codecs
//! begin with a tag, which can mark a block with a NaN or an infinity. All elements of such a block decode to NaN, so
//! the error shows as in the plain sum.
//!
//! ```
//! use herringbone_core::codec::Codec;
//! let codec: Codec = "twobit:0.5".parse()?;
//! let (mut coded, mut values) = (Vec::new(), [0.0; 3]);
//! let mut left = [0.0; 3];
//! codec.encode_with(0, &[0.75, -0.25, -2.0], &[0.0; 3], &mut left, &mut coded);
//! assert_eq!(codec.decode(&coded, &mut values)?, coded.len());
//! assert_eq!((values, left), ([0.5, 0.0, -0.5], [0.25, -0.25, -1.5]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bits;
mod casts;
mod choice;
mod exact;
mod expected;
mod format;
mod name;
mod sparse;

pub use choice::CodecChoice;
pub use expected::CodecSpeed;
pub use format::{BLOCK, CodedError, PREFIX_BYTES, Parameter};
pub use name::{CodecCode, ParseCodecError};

use crate::element::convert::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use alloc::vec::Vec;
use format::{Put, tag};
use half::{bf16, f16};

/// A codec. [`FromStr`](core::str::FromStr) reads its name, and [`Display`](core::fmt::Display) writes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Codec {
    /// None: messages are sent as the schedule has them.
    #[default]
    Plain,
    /// Rounded to bfloat16.
    Bf16,
    /// Rounded to binary16; values that are too large become infinite.
    Fp16,
    /// To one of 255 multiples of 1/127 of the block's largest magnitude.
    Int8,
    /// +1 above a threshold, else -1: MXNet's `1bit`.
    OneBit {
        /// The threshold, any finite number.
        threshold: Parameter,
    },
    /// A threshold, its negative or 0, whichever does not overshoot: MXNet's `2bit`.
    TwoBit {
        /// The threshold, above 0.
        threshold: Parameter,
    },
    /// The sign, times the block's mean magnitude: BytePS's scaled `onebit`.
    Sign,
    /// The share of a block's elements that are largest.
    TopK {
        /// Above 0, at most 1.
        share: Parameter,
    },
    /// A share of a block's elements, drawn by numbers that all ranks draw alike.
    RandomK {
        /// Above 0, at most 1.
        share: Parameter,
    },
    /// If elements exceed a threshold, the threshold with their sign (Strom, 2015).
    Threshold {
        /// The threshold, above 0.
        threshold: Parameter,
    },
    /// All bits: either the bits of the elements that are not 0, or a number for each value if there are few values, or
    /// plain values.
    Exact,
}

impl Codec {
    /// The codec of results if inputs are coded by this one.
    pub fn result(self) -> Self {
        match self {
            Self::Plain | Self::Bf16 | Self::Fp16 | Self::Int8 => self,
            _ => Self::Exact,
        }
    }

    /// The most bytes that a message of `elements` elements takes, with its prefix. The message begins with a block.
    pub fn bound(self, elements: usize) -> usize {
        let (blocks, rest) = (elements / BLOCK, elements % BLOCK);
        let rest = if rest == 0 { 0 } else { self.block_bound(rest) };
        PREFIX_BYTES + blocks * self.block_bound(BLOCK) + rest
    }

    /// The most bytes of a block of `elements`, above 0.
    #[inline(always)]
    fn block_bound(self, elements: usize) -> usize {
        match self {
            Self::Plain => 4 * elements,
            Self::Bf16 | Self::Fp16 => 2 * elements,
            Self::Int8 => 1 + 4 + elements,
            Self::OneBit { .. } => 1 + 4 * elements.div_ceil(32),
            Self::TwoBit { .. } => 1 + 4 * elements.div_ceil(16),
            Self::Sign => 1 + 4 + elements.div_ceil(8),
            Self::TopK { share } => 6 * sparse::kept(share, elements),
            Self::RandomK { share } => 1 + 8 + 4 * sparse::kept(share, elements),
            Self::Threshold { .. } => 1 + 2 + 2 * elements,
            Self::Exact => 1 + 4 * elements,
        }
    }

    /// Appends the code of a block of at most [`BLOCK`] values. `seed` is the seed of [`RandomK`](Self::RandomK).
    #[inline(always)]
    pub fn encode(self, seed: u64, values: &[f32], coded: &mut Vec<u8>) {
        debug_assert!(values.len() <= BLOCK);
        match self {
            Self::Plain => coded.extend(values.iter().flat_map(|value| value.to_le_bytes())),
            Self::Bf16 => casts::cast(values, coded, |value| f32_to_bf16(value).to_bits()),
            Self::Fp16 => casts::cast(values, coded, |value| f32_to_f16(value).to_bits()),
            Self::TopK { share } => sparse::top(share, values, coded),
            Self::Exact => exact::encode(values, coded),
            _ => {
                let largest = largest(values);
                if !largest.is_finite() {
                    coded.push(tag::NOT_FINITE);
                    return;
                }
                coded.push(tag::CODED);
                match self {
                    Self::OneBit { threshold } => bits::one(threshold.value(), values, coded),
                    Self::TwoBit { threshold } => bits::two(threshold.value(), values, coded),
                    Self::Sign => bits::signs(values, coded),
                    Self::RandomK { share } => sparse::drawn(share, seed, values, coded),
                    Self::Threshold { threshold } => sparse::above(threshold.value(), values, coded),
                    _ => casts::to_int8(largest, values, coded),
                }
            }
        }
    }

    /// Appends the code of a block of values plus the earlier error, and returns the new error.
    ///
    /// The error is the part that the receiver lacks. A block that is not finite takes nothing from the earlier error,
    /// and a value that becomes infinite leaves no error.
    ///
    /// # Panics
    /// If the lengths differ, or are above [`BLOCK`].
    #[inline(always)]
    pub fn encode_with(
        self,
        seed: u64,
        values: &[f32],
        before: &[f32],
        after: &mut [f32],
        coded: &mut Vec<u8>,
    ) {
        assert!(values.len() == before.len() && values.len() == after.len(), "there is as much of each");
        for ((whole, value), before) in after.iter_mut().zip(values).zip(before) {
            *whole = value + before;
        }
        let start = coded.len();
        self.encode(seed, after, coded);
        let block = &coded[start..];
        if self.is_tagged() && block.first() == Some(&tag::NOT_FINITE) {
            after.copy_from_slice(before);
        } else {
            self.take(block, after);
        }
    }

    /// Takes what a block says from the values that it was encoded from.
    #[inline(always)]
    fn take(self, block: &[u8], values: &mut [f32]) {
        let finite = |value: f32| if value.is_finite() { value } else { 0.0 };
        match self {
            Self::Plain | Self::Exact => values.fill(0.0),
            Self::TopK { .. } => {
                values.iter_mut().for_each(|value| *value = finite(*value));
                self.put(block, values, |value, _| *value = 0.0);
            }
            _ => self.put(block, values, |value, decoded| *value = finite(*value - decoded)),
        }
    }

    #[inline(always)]
    fn is_tagged(self) -> bool {
        match self {
            Self::Plain | Self::Bf16 | Self::Fp16 | Self::TopK { .. } | Self::Exact => false,
            Self::Int8
            | Self::OneBit { .. }
            | Self::TwoBit { .. }
            | Self::Sign
            | Self::RandomK { .. }
            | Self::Threshold { .. } => true,
        }
    }

    /// Decodes a block of `values.len()` elements from the start of `coded`. Returns how many bytes it takes.
    ///
    /// # Errors
    /// [`CodedError`] if there is no such block; the values are of no use then.
    #[inline(always)]
    pub fn decode(self, coded: &[u8], values: &mut [f32]) -> Result<usize, CodedError> {
        let bytes = self.measure(coded, values.len())?;
        let block = &coded[..bytes];
        match self {
            Self::Plain => casts::from_plain(block, values),
            Self::Exact => exact::decode(block, values),
            _ if self.is_tagged() && block.first() == Some(&tag::NOT_FINITE) => values.fill(f32::NAN),
            _ => {
                if self.leaves_out() {
                    values.fill(0.0);
                }
                self.put(block, values, |value, decoded| *value = decoded);
            }
        }
        Ok(bytes)
    }

    /// Whether its blocks do not have all elements; those that are missing are 0.
    #[inline(always)]
    fn leaves_out(self) -> bool {
        matches!(self, Self::TopK { .. } | Self::RandomK { .. } | Self::Threshold { .. })
    }

    /// Puts each element that a measured block has to its value. The block is coded element by element, and finite if it is tagged.
    #[inline(always)]
    fn put(self, block: &[u8], values: &mut [f32], put: impl Put) {
        let body = block.get(1..).unwrap_or_default();
        match self {
            Self::Plain | Self::Exact => {}
            Self::Bf16 => casts::uncast(block, values, put, |bits| bf16_to_f32(bf16::from_bits(bits))),
            Self::Fp16 => casts::uncast(block, values, put, |bits| f16_to_f32(f16::from_bits(bits))),
            Self::Int8 => casts::from_int8(body, values, put),
            Self::OneBit { .. } => bits::unpack(body, values, 1.0, -1.0, put),
            Self::TwoBit { threshold } => bits::from_two(threshold.value(), body, values, put),
            Self::Sign => bits::from_signs(body, values, put),
            Self::TopK { .. } => sparse::from_top(block, values, put),
            Self::RandomK { .. } => sparse::from_drawn(body, values, put),
            Self::Threshold { threshold } => sparse::from_above(threshold.value(), body, values, put),
        }
    }

    /// How many bytes the block of so many elements takes that `coded` starts with, after a check of all that decoding relies on.
    #[inline(always)]
    fn measure(self, coded: &[u8], elements: usize) -> Result<usize, CodedError> {
        if elements == 0 {
            return Ok(0);
        }
        let is_empty = self.is_tagged() && *coded.first().ok_or(CodedError::Short)? == tag::NOT_FINITE;
        let bytes = match self {
            _ if is_empty => 1,
            Self::Exact => exact::measure(coded, elements)?,
            Self::Threshold { .. } => 1 + sparse::measure_above(coded.get(1..3), elements)?,
            _ => self.block_bound(elements),
        };
        let block = coded.get(..bytes).ok_or(CodedError::Short)?;
        if self.is_tagged() && block[0] > tag::NOT_FINITE {
            return Err(CodedError::Code);
        }
        match self {
            Self::TwoBit { .. } if !is_empty => bits::check_two(&block[1..])?,
            Self::TopK { .. } => sparse::check(sparse::indices(block, bytes / 6), elements)?,
            Self::Threshold { .. } if !is_empty => sparse::check_above(&block[1..], elements)?,
            _ => {}
        }
        Ok(bytes)
    }

    /// Checks a message of `elements` elements, without its prefix. A message that passes decodes without an error.
    ///
    /// # Errors
    /// [`CodedError`] for bytes that the codec never writes.
    pub fn check(self, mut coded: &[u8], elements: usize) -> Result<(), CodedError> {
        let mut left = elements;
        while left > 0 {
            let block = left.min(BLOCK);
            coded = &coded[self.measure(coded, block)?..];
            left -= block;
        }
        if coded.is_empty() { Ok(()) } else { Err(CodedError::Long) }
    }
}

/// The seed of [`Codec::RandomK`] for a block's places, in the operation after `steps` others on the same tensor.
pub fn seed_of(steps: u64, block: usize) -> u64 {
    steps << 32 ^ block as u64
}

/// The largest magnitude; not finite if a value is not.
#[inline(always)]
fn largest(values: &[f32]) -> f32 {
    // Bits of magnitudes have the order of the magnitudes; their maximum becomes vector code.
    f32::from_bits(values.iter().fold(0, |largest, value| largest.max(value.to_bits() & 0x7fff_ffff)))
}

#[cfg(test)]
mod naive;
#[cfg(test)]
mod tests;
