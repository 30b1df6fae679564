//! The meaning of a fold, element by element.
//!
//! Every pair of a [`DType`] and a [`ReduceOp`] has one [`Reduction`]. It defines how an input element is lifted into
//! the accumulator's type, how two partial results merge, and how the last one is finished. [`dispatch`] finds it.
//! Everything that folds (the interpreter here, every kernel in `herringbone-sys`) takes its meaning from this module.
//!
//! # What is promised
//! * **Order.** The canonical tree fixes the shape of a sum, so a merge only has to be commutative bit for bit. It is,
//!   except for the payload of a NaN, and every stored NaN is the canonical quiet one: f32 `7fc00000`, f64
//!   `7ff8000000000000`, f16 `7e00`, bf16 `7fc0`.
//! * **One rounding.** f16 and bf16 are lifted to f32, exactly; partial results stay f32; [`Reduction::finish`] rounds
//!   once, to nearest, ties to even. f32 folds in f32 and f64 in f64: at most log2 N roundings lie on the path of an
//!   input, so a wider accumulator would buy nothing.
//! * **Average** divides the accumulator by the number of contributors, before that rounding. It is a true division:
//!   x * (1 / N) has other bits than x / N for most N that are no power of two.
//! * **Min and max** are IEEE 754-2019 `minimum` and `maximum`: a NaN wins, and -0 is below +0.
//! * **Integers** wrap. Their average folds in i64, for u64 in u64, and truncates once, toward zero.
//! * **Bit operations** take integers.
//! * No denormal is flushed to zero, no multiplication is fused with an addition, and no fold starts from a zero of
//!   its own making (-0 + 0 is +0).

pub(crate) mod convert;
mod kinds;
mod number;

pub use crate::choice::UnknownName;
pub use kinds::{DType, ReduceOp};
pub use number::{Divide, Element, Integer, Number};

use core::marker::PhantomData;

/// The meaning of one [`ReduceOp`] on one element type. See [`dispatch`] and the [module](self).
pub trait Reduction: 'static {
    /// The type of the user's buffers.
    type Element: Element;
    /// The type in which partial results are kept and sent: [`DType::accumulator`] as a type.
    type Acc: Number;
    /// The operation.
    const OP: ReduceOp;

    /// The partial result of a single input. Exact.
    fn lift(element: Self::Element) -> Self::Acc;

    /// Joins two partial results. Commutative bit for bit, up to the payload of a NaN.
    fn merge(a: Self::Acc, b: Self::Acc) -> Self::Acc;

    /// The last step in the accumulator's type once all inputs are merged: the division of an average.
    ///
    /// `contributors` is converted to the accumulator's type: exact up to 2^24 for f32, always for the others.
    ///
    /// # Panics
    /// If an integer average has no contributors.
    fn scale(acc: Self::Acc, _contributors: u32) -> Self::Acc {
        acc
    }

    /// Turns a scaled result into an element: the only rounding of a 16-bit float. A NaN becomes the canonical one.
    fn round(acc: Self::Acc) -> Self::Element;

    /// The result: [`scale`](Self::scale), then [`round`](Self::round).
    ///
    /// # Panics
    /// As [`scale`](Self::scale) does.
    fn finish(acc: Self::Acc, contributors: u32) -> Self::Element {
        Self::round(Self::scale(acc, contributors))
    }
}

/// Code that is written once for all reductions. See [`dispatch`].
pub trait Visitor {
    /// The type of its result.
    type Output;

    /// Runs for the reduction that was asked for.
    fn visit<R: Reduction>(self) -> Self::Output;
}

/// Calls `visitor` with the [`Reduction`] of `op` on elements of `dtype`. A reduction of another type replaces it if
/// both make the same bytes from the same bytes. For example, unsigned integers are summed as signed ones, and bits are
/// joined byte by byte.
///
/// # Panics
/// If the operation does not [take](ReduceOp::takes) the type.
pub fn dispatch<V: Visitor>(dtype: DType, op: ReduceOp, visitor: V) -> V::Output {
    match (dtype, op) {
        (_, ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor) => dispatch_bits(dtype, op, visitor),
        (DType::U8, ReduceOp::Sum | ReduceOp::Product) => dispatch_op::<i8, V>(op, visitor),
        (DType::U16, ReduceOp::Sum | ReduceOp::Product) => dispatch_op::<i16, V>(op, visitor),
        (DType::U32, ReduceOp::Sum | ReduceOp::Product) => dispatch_op::<i32, V>(op, visitor),
        (DType::U64, ReduceOp::Sum | ReduceOp::Product) => dispatch_op::<i64, V>(op, visitor),
        (DType::F32, _) => dispatch_op::<f32, V>(op, visitor),
        (DType::F64, _) => dispatch_op::<f64, V>(op, visitor),
        (DType::F16, _) => dispatch_op::<half::f16, V>(op, visitor),
        (DType::Bf16, _) => dispatch_op::<half::bf16, V>(op, visitor),
        (DType::I8, _) => dispatch_op::<i8, V>(op, visitor),
        (DType::I16, _) => dispatch_op::<i16, V>(op, visitor),
        (DType::I32, _) => dispatch_op::<i32, V>(op, visitor),
        (DType::I64, _) => dispatch_op::<i64, V>(op, visitor),
        (DType::U8, _) => dispatch_unsigned::<u8, V>(op, visitor),
        (DType::U16, _) => dispatch_unsigned::<u16, V>(op, visitor),
        (DType::U32, _) => dispatch_unsigned::<u32, V>(op, visitor),
        (DType::U64, _) => dispatch_unsigned::<u64, V>(op, visitor),
    }
}

fn dispatch_op<E: Element, V: Visitor>(op: ReduceOp, visitor: V) -> V::Output {
    match op {
        ReduceOp::Sum => visitor.visit::<Sum<E>>(),
        ReduceOp::Product => visitor.visit::<Product<E>>(),
        op => dispatch_unsigned::<E, V>(op, visitor),
    }
}

/// The operations that an unsigned integer has no signed one for.
fn dispatch_unsigned<E: Element, V: Visitor>(op: ReduceOp, visitor: V) -> V::Output {
    match op {
        ReduceOp::Average => visitor.visit::<Average<E>>(),
        ReduceOp::Min => visitor.visit::<Min<E>>(),
        ReduceOp::Max => visitor.visit::<Max<E>>(),
        op => unreachable!("{op} has a branch of its own"),
    }
}

/// Bits do not care how they are grouped, so bytes stand for all integers.
fn dispatch_bits<V: Visitor>(dtype: DType, op: ReduceOp, visitor: V) -> V::Output {
    assert!(op.takes(dtype), "{op} takes integers, not {dtype}");
    match op {
        ReduceOp::BitAnd => visitor.visit::<BitAnd<u8>>(),
        ReduceOp::BitOr => visitor.visit::<BitOr<u8>>(),
        _ => visitor.visit::<BitXor<u8>>(),
    }
}

macro_rules! reduction {
    ($name:ident, $acc:ident, $merge:ident, $doc:literal) => {
        #[doc = $doc]
        #[derive(Debug)]
        pub struct $name<E>(PhantomData<E>);

        impl<E: Element<Acc: $acc>> Reduction for $name<E> {
            type Element = E;
            type Acc = E::Acc;
            const OP: ReduceOp = ReduceOp::$name;

            #[inline(always)]
            fn lift(element: E) -> E::Acc {
                element.lift()
            }

            #[inline(always)]
            fn merge(a: E::Acc, b: E::Acc) -> E::Acc {
                a.$merge(b)
            }

            #[inline(always)]
            fn round(acc: E::Acc) -> E {
                E::round(acc)
            }
        }
    };
}

reduction!(Sum, Number, plus, "[`ReduceOp::Sum`] of elements of type `E`.");
reduction!(Product, Number, times, "[`ReduceOp::Product`] of elements of type `E`.");
reduction!(Min, Number, minimum, "[`ReduceOp::Min`] of elements of type `E`.");
reduction!(Max, Number, maximum, "[`ReduceOp::Max`] of elements of type `E`.");
reduction!(BitAnd, Integer, bit_and, "[`ReduceOp::BitAnd`] of integers of type `E`.");
reduction!(BitOr, Integer, bit_or, "[`ReduceOp::BitOr`] of integers of type `E`.");
reduction!(BitXor, Integer, bit_xor, "[`ReduceOp::BitXor`] of integers of type `E`.");

/// [`ReduceOp::Average`] of elements of type `E`.
#[derive(Debug)]
pub struct Average<E>(PhantomData<E>);

impl<E: Element> Reduction for Average<E> {
    type Element = E;
    type Acc = E::Mean;
    const OP: ReduceOp = ReduceOp::Average;

    #[inline(always)]
    fn lift(element: E) -> E::Mean {
        element.lift_for_mean()
    }

    #[inline(always)]
    fn merge(a: E::Mean, b: E::Mean) -> E::Mean {
        a.plus(b)
    }

    #[inline(always)]
    fn scale(acc: E::Mean, contributors: u32) -> E::Mean {
        acc.divided_by(contributors)
    }

    #[inline(always)]
    fn round(acc: E::Mean) -> E {
        E::round_mean(acc)
    }
}

#[cfg(test)]
mod tests;
