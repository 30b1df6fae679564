//! Floats as the contract's test sees them: their arithmetic, and values that show every wrong order.

use half::{bf16, f16};
use herringbone::{Element, Plain};
use std::fmt::Debug;

/// Xorshift64* (Vigna, 2016).
pub(super) struct Random(u64);

impl Random {
    /// `seed` must not be 0.
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 16) % end
    }
}

/// A float type, with the type that its sums are kept in.
pub(super) trait Number: Element + Plain {
    type Wide: Copy + Debug + Send + Sync;

    fn widen(self) -> Self::Wide;
    fn add(a: Self::Wide, b: Self::Wide) -> Self::Wide;
    fn divide(sum: Self::Wide, ranks: u32) -> Self::Wide;
    /// Rounds to nearest, ties to even; a NaN becomes the one that stands for all.
    fn narrow(wide: Self::Wide) -> Self;
    fn bits(self) -> u64;
    fn from_bits(bits: u64) -> Self;
    /// Bits in all, and of the fraction.
    const SHAPE: (u32, u32);

    /// A value for a position: most are finite and of magnitudes around 1 that are far apart, so that sums cancel and
    /// round; every eighth position has one of the oddities.
    fn draw(element: usize, random: &mut Random) -> Self {
        let (bits, fraction) = Self::SHAPE;
        let infinity = ((1 << (bits - 1 - fraction)) - 1) << fraction;
        let one = (infinity >> (fraction + 1)) << fraction;
        let part = random.next() & ((1 << fraction) - 1);
        let magnitude = match (element % 32, random.below(4)) {
            (0, _) => 0,
            (8, 0) => infinity,
            (16, _) | (24, 1) => part,
            (24, 0) => infinity | part | 1,
            _ => {
                let exponent = random.below(25) << fraction;
                one + exponent - (12 << fraction) + part
            }
        };
        Self::from_bits(magnitude | random.below(2) << (bits - 1))
    }
}

macro_rules! number {
    ($float:ident as $wide:ident, $int:ident, $fraction:literal, $widen:expr, $narrow:expr) => {
        impl Number for $float {
            type Wide = $wide;
            const SHAPE: (u32, u32) = ($int::BITS, $fraction);

            fn widen(self) -> $wide {
                $widen(self)
            }

            fn add(a: $wide, b: $wide) -> $wide {
                a + b
            }

            fn divide(sum: $wide, ranks: u32) -> $wide {
                sum / ranks as $wide
            }

            fn narrow(wide: $wide) -> Self {
                let quiet = (1 << (Self::SHAPE.0 - 1)) - (1 << ($fraction - 1));
                if wide.is_nan() { <Self as Number>::from_bits(quiet) } else { $narrow(wide) }
            }

            fn bits(self) -> u64 {
                u64::from(self.to_bits())
            }

            fn from_bits(bits: u64) -> Self {
                Self::from_bits(bits as $int)
            }
        }
    };
}

number!(f32 as f32, u32, 23, std::convert::identity, std::convert::identity);
number!(f64 as f64, u64, 52, std::convert::identity, std::convert::identity);
number!(f16 as f32, u16, 10, f16::to_f32, f16::from_f32);
number!(bf16 as f32, u16, 7, bf16::to_f32, bf16::from_f32);
