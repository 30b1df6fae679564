//! The arithmetic: folding N sources in one pass, in the shape that a schedule asks for.
//!
//! [`herringbone_core::element`] defines the meaning of a fold, element by element. The code here is generic over that
//! and compiled once per [`Level`]. All levels give the same bits, at any length and alignment, whatever floating-point
//! mode the calling thread has set. Nothing here is fused, reordered, or multiplied instead of divided.

// What the crate's own unit tests do not call, and which takes as long to compile as all the rest, is not compiled for them.
// `tests/kernels.rs` and all other crates have it.
#[cfg(all(target_arch = "x86_64", not(test)))]
mod avx2;
#[cfg(all(target_arch = "x86_64", not(test)))]
mod avx512;
#[cfg(not(test))]
mod block;
#[cfg(not(test))]
mod dispatch;
#[cfg(not(test))]
mod line;
pub(crate) mod mode;
#[cfg(not(test))]
mod portable;
#[cfg(not(test))]
mod shape;

#[cfg(not(test))]
pub use dispatch::{fold, fold_with};

use crate::span::Span;
use herringbone_core::schedule::Form;
use std::fmt;

/// One of the values that a fold joins.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// Its place.
    pub span: Span<'a>,
    /// Whether it is an input, or a partial result in the accumulator's type.
    pub form: Form,
    /// How many merges follow: the sources are pushed on a stack in order, and each merge joins the top two.
    pub merges: u8,
}

/// The destination of a fold.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// The place that is written first. It can be one of the sources, or several of them; in any other way it must not
    /// overlap them.
    pub span: Span<'a>,
    /// Whether the result is finished, or a partial one in the accumulator's type.
    pub form: Form,
    /// Places that get the same, line by line, while it is in the nearest cache. What holds for the first place holds for each;
    /// no two places overlap.
    pub copies: &'a [Span<'a>],
}

impl<'a> Target<'a> {
    /// One place.
    pub fn of(span: Span<'a>, form: Form) -> Self {
        Self { span, form, copies: &[] }
    }
}

/// Folds of at most this many bytes in all are over before wide registers pay: these have longer lines to fill up, and cost
/// more to save when threads take turns.
const SMALL: usize = 8 << 10;

/// Instructions that a fold can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// The instructions of every CPU of the compilation target.
    Portable,
    /// AVX2 and F16C.
    Avx2,
    /// AVX-512: F, BW, DQ and VL.
    Avx512,
}

impl Level {
    /// All levels, slowest first.
    pub const ALL: [Level; 3] = [Level::Portable, Level::Avx2, Level::Avx512];

    /// Whether this CPU has it. Asked of the CPU once, then remembered.
    #[cfg(target_arch = "x86_64")]
    pub fn is_available(self) -> bool {
        match self {
            Level::Portable => true,
            Level::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c"),
            Level::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
        }
    }

    /// Whether this CPU has it. Asked of the CPU once, then remembered.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn is_available(self) -> bool {
        self == Level::Portable
    }

    /// The fastest one that this CPU has.
    pub fn best() -> Self {
        Self::ALL.into_iter().rev().find(|level| level.is_available()).unwrap_or(Level::Portable)
    }

    /// The fastest level for a fold of `bytes` bytes, the sum over all sources.
    #[inline]
    pub fn of(bytes: usize) -> Self {
        if bytes <= SMALL { Level::Portable } else { Self::best() }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Level::Portable => "portable",
            Level::Avx2 => "avx2",
            Level::Avx512 => "avx512",
        })
    }
}

/// A fold that has been checked.
///
/// Each source has `count` items of its form, and so has each place of `into`, which can be written; no place overlaps a
/// source without being equal to it, and no two places overlap; and the sources fold into one result, on a stack of at most
/// [`MAX_DEPTH`](shape::MAX_DEPTH).
#[cfg(not(test))]
struct Job<'a> {
    sources: &'a [Source<'a>],
    into: Target<'a>,
    finish: Option<u32>,
    count: usize,
}
