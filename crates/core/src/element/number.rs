//! The types that buffers and accumulators hold.

use super::{DType, convert};
use core::fmt::Debug;
use half::{bf16, f16};

mod sealed {
    /// Keeps [`Element`](super::Element) to the types listed here: unsafe code relies on them being plain data.
    pub trait Sealed {}
}

/// A type that a buffer can hold.
///
/// Sealed: exactly the types of [`DType`]. Each is plain data without padding: any [`DType::bytes`] bytes are a value.
pub trait Element: Copy + Default + PartialEq + Debug + Send + Sync + 'static + sealed::Sealed {
    /// Which type it is.
    const DTYPE: DType;
    /// The type in which every operation but the average folds: f32 for 16-bit floats, otherwise the type itself.
    type Acc: Number;
    /// The type in which the average folds: as `Acc`, but i64 for integers, and u64 for u64.
    type Mean: Divide;

    /// The accumulator that holds just this element. Exact.
    fn lift(self) -> Self::Acc;

    /// The average's accumulator that holds just this element. Exact.
    fn lift_for_mean(self) -> Self::Mean;

    /// The nearest element, ties to even; a NaN becomes the canonical one.
    fn round(acc: Self::Acc) -> Self;

    /// As [`round`](Self::round), from an average.
    fn round_mean(mean: Self::Mean) -> Self;

    /// Reads an element: little endian.
    ///
    /// # Panics
    /// If there are not exactly [`DType::bytes`] bytes.
    fn load(bytes: &[u8]) -> Self;

    /// Writes the element: little endian.
    ///
    /// # Panics
    /// If there is not room for exactly [`DType::bytes`] bytes.
    fn store(self, bytes: &mut [u8]);
}

/// A type that partial results are kept in.
///
/// Results are the ones of the type's own arithmetic: floats round to nearest, integers wrap.
pub trait Number: Element<Acc = Self> {
    /// self + other.
    fn plus(self, other: Self) -> Self;

    /// self * other.
    fn times(self, other: Self) -> Self;

    /// The smaller one; for floats IEEE 754-2019 `minimum`: a NaN if either is one, and -0 below +0.
    fn minimum(self, other: Self) -> Self;

    /// The larger one; for floats IEEE 754-2019 `maximum`: a NaN if either is one, and +0 above -0.
    fn maximum(self, other: Self) -> Self;

    /// The value itself, except that every NaN becomes the canonical quiet one.
    fn canonical(self) -> Self;
}

/// A type that the partial results of an average are kept in.
pub trait Divide: Number {
    /// self / divisor, after converting the divisor to this type; integers truncate toward zero.
    ///
    /// # Panics
    /// If the type is an integer and the divisor is 0.
    fn divided_by(self, divisor: u32) -> Self;
}

macro_rules! bytes {
    () => {
        #[inline]
        fn load(bytes: &[u8]) -> Self {
            Self::from_le_bytes(bytes.try_into().expect("the bytes of one element"))
        }

        #[inline]
        fn store(self, bytes: &mut [u8]) {
            bytes.copy_from_slice(&self.to_le_bytes());
        }
    };
}

macro_rules! float {
    ($float:ident, $dtype:ident, $sign:literal, $nan:literal) => {
        impl sealed::Sealed for $float {}

        impl Element for $float {
            const DTYPE: DType = DType::$dtype;
            type Acc = Self;
            type Mean = Self;

            #[inline(always)]
            fn lift(self) -> Self {
                self
            }

            #[inline(always)]
            fn lift_for_mean(self) -> Self {
                self
            }

            #[inline(always)]
            fn round(acc: Self) -> Self {
                acc.canonical()
            }

            #[inline(always)]
            fn round_mean(mean: Self) -> Self {
                mean.canonical()
            }

            bytes!();
        }

        impl Number for $float {
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self + other
            }

            #[inline(always)]
            fn times(self, other: Self) -> Self {
                self * other
            }

            // Both selections yield the lesser number, where there is one. Equal numbers differ in nothing but a
            // zero's sign, which is negative if either is. With a NaN they yield one operand each, and the bits of a
            // NaN, or-ed with any, are a NaN's.
            #[inline(always)]
            fn minimum(self, other: Self) -> Self {
                let one = if self < other { self } else { other };
                let two = if other < self { other } else { self };
                Self::from_bits(one.to_bits() | two.to_bits())
            }

            // As above, but a zero is negative only if both are.
            #[inline(always)]
            fn maximum(self, other: Self) -> Self {
                let one = if self > other { self } else { other }.to_bits();
                let two = if other > self { other } else { self }.to_bits();
                Self::from_bits((one | two) & !$sign | one & two & $sign)
            }

            #[inline(always)]
            fn canonical(self) -> Self {
                if self.is_nan() { Self::from_bits($nan) } else { self }
            }
        }

        impl Divide for $float {
            #[inline(always)]
            fn divided_by(self, divisor: u32) -> Self {
                self / divisor as Self
            }
        }
    };
}

float!(f32, F32, 0x8000_0000, 0x7fc0_0000);
float!(f64, F64, 0x8000_0000_0000_0000, 0x7ff8_0000_0000_0000);

macro_rules! float16 {
    ($float:ident, $dtype:ident, $widen:ident, $narrow:ident) => {
        impl sealed::Sealed for $float {}

        impl Element for $float {
            const DTYPE: DType = DType::$dtype;
            type Acc = f32;
            type Mean = f32;

            #[inline(always)]
            fn lift(self) -> f32 {
                convert::$widen(self)
            }

            #[inline(always)]
            fn lift_for_mean(self) -> f32 {
                convert::$widen(self)
            }

            #[inline(always)]
            fn round(acc: f32) -> Self {
                convert::$narrow(acc)
            }

            #[inline(always)]
            fn round_mean(mean: f32) -> Self {
                convert::$narrow(mean)
            }

            bytes!();
        }
    };
}

float16!(f16, F16, f16_to_f32, f32_to_f16);
float16!(bf16, Bf16, bf16_to_f32, f32_to_bf16);

/// An integer, whose bits can be joined one by one.
pub trait Integer: Number {
    /// self & other.
    fn bit_and(self, other: Self) -> Self;

    /// self | other.
    fn bit_or(self, other: Self) -> Self;

    /// self ^ other.
    fn bit_xor(self, other: Self) -> Self;
}

macro_rules! integer {
    ($integer:ident, $dtype:ident, $mean:ident) => {
        impl sealed::Sealed for $integer {}

        impl Element for $integer {
            const DTYPE: DType = DType::$dtype;
            type Acc = Self;
            type Mean = $mean;

            #[inline(always)]
            fn lift(self) -> Self {
                self
            }

            #[inline(always)]
            fn lift_for_mean(self) -> $mean {
                $mean::from(self)
            }

            #[inline(always)]
            fn round(acc: Self) -> Self {
                acc
            }

            #[inline(always)]
            fn round_mean(mean: $mean) -> Self {
                mean as Self
            }

            bytes!();
        }

        impl Number for $integer {
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            #[inline(always)]
            fn times(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            #[inline(always)]
            fn minimum(self, other: Self) -> Self {
                self.min(other)
            }

            #[inline(always)]
            fn maximum(self, other: Self) -> Self {
                self.max(other)
            }

            #[inline(always)]
            fn canonical(self) -> Self {
                self
            }
        }

        impl Integer for $integer {
            #[inline(always)]
            fn bit_and(self, other: Self) -> Self {
                self & other
            }

            #[inline(always)]
            fn bit_or(self, other: Self) -> Self {
                self | other
            }

            #[inline(always)]
            fn bit_xor(self, other: Self) -> Self {
                self ^ other
            }
        }
    };
}

integer!(i8, I8, i64);
integer!(u8, U8, i64);
integer!(i32, I32, i64);
integer!(i64, I64, i64);
integer!(i16, I16, i64);
integer!(u16, U16, i64);
integer!(u32, U32, i64);
integer!(u64, U64, u64);

macro_rules! divide {
    ($integer:ident) => {
        impl Divide for $integer {
            #[inline(always)]
            fn divided_by(self, divisor: u32) -> Self {
                self / Self::from(divisor)
            }
        }
    };
}

divide!(i64);
divide!(u64);
