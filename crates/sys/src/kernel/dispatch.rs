//! From a fold as it is asked for to the code that is compiled for it.

use super::{Job, Level, Source, Target, mode::DefaultMode, portable, shape::MAX_DEPTH};
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};
use crate::span::Span;
use herringbone_core::element::{DType, Element, ReduceOp, Reduction, Visitor, dispatch};
use herringbone_core::schedule::Form;
use std::marker::PhantomData;

/// Folds `sources` into `into`, with the fastest instructions for this number of elements.
///
/// With `finish`, the number of contributors, the result is elements ([`Form::Plain`]): divided if it is an average,
/// and rounded. Without, it is a partial result ([`Form::Acc`]). Every NaN that is written is the canonical one.
///
/// The number of elements is the room of `into`. Spans need no alignment.
///
/// # Panics
/// * If a place of `into` is not writable, not a whole number of items, not as long as the others, or overlaps one of them.
/// * If a source is coded, has another number of items, or overlaps a place without being it.
/// * If the form of `into` does not match `finish`, or an average is finished for no contributors.
/// * If the operation does not take the type, or the sources do not fold into exactly one result.
#[track_caller]
pub fn fold(dtype: DType, op: ReduceOp, into: Target<'_>, sources: &[Source<'_>], finish: Option<u32>) {
    fold_with(Level::of(into.span.len() * sources.len()), dtype, op, into, sources, finish);
}

/// [`fold`], with the instructions of `level`: for comparing levels.
///
/// # Panics
/// As [`fold`] does, and if the CPU does not have the level.
#[track_caller]
pub fn fold_with(
    level: Level,
    dtype: DType,
    op: ReduceOp,
    into: Target<'_>,
    sources: &[Source<'_>],
    finish: Option<u32>,
) {
    assert!(level.is_available(), "this CPU has no {level}");
    let finished = if finish.is_some() { Form::Plain } else { Form::Acc };
    assert!(into.form == finished, "a fold makes elements if it is the last, and otherwise partial results");
    assert!(op != ReduceOp::Average || finish != Some(0), "an average of no contributors");
    assert!(op.takes(dtype), "{op} takes integers, not {dtype}");
    // As `dispatch` takes it.
    let dtype = if op.joins_bits() { DType::U8 } else { dtype };
    let width = |form| match form {
        Form::Acc => dtype.accumulator(op).bytes(),
        _ => dtype.bytes(),
    };
    let (bytes, width_into) = (into.span.len(), width(into.form));
    let count = bytes / width_into;
    assert!(bytes == count * width_into, "{bytes} bytes are no whole number of items");
    let mut open = 0;
    for source in sources {
        assert!(!source.form.is_coded(), "a fold of what was not decoded");
        let expected = count * width(source.form);
        assert!(source.span.len() == expected, "a source of {} bytes, not {expected}", source.span.len());
        assert!(usize::from(source.merges) <= open, "the merges of a fold exceed its partial results");
        open = open + 1 - usize::from(source.merges);
        assert!(open <= MAX_DEPTH, "a fold with more than {MAX_DEPTH} open partial results");
    }
    assert!(open == 1, "a fold of {} sources leaves {open} partial results", sources.len());
    check_place(into.span, sources);
    for (at, copy) in into.copies.iter().enumerate() {
        assert!(copy.len() == bytes, "a copy of {} bytes, not {bytes}", copy.len());
        check_place(*copy, sources);
        let overlaps =
            copy.overlaps(into.span) || into.copies[..at].iter().any(|other| copy.overlaps(*other));
        assert!(!overlaps, "two places of the target overlap");
    }
    let job = Job { sources, into, finish, count };
    let _mode = DefaultMode::enter();
    dispatch(dtype, op, Run { level, job });
}

/// Panics unless a result may be written there.
#[inline]
#[track_caller]
fn check_place(place: Span<'_>, sources: &[Source<'_>]) {
    assert!(place.is_writable(), "a target of memory that was lent for reading only");
    for Source { span, .. } in sources {
        let is_place = span.same_start(place) && span.len() == place.len();
        assert!(is_place || !span.overlaps(place), "the target overlaps a source without being it");
    }
}

struct Run<'a> {
    level: Level,
    job: Job<'a>,
}

/// Whether a reduction is compiled for every level. Gradients are of none of the others, and each more takes a compiler a
/// second, and a program 10 KiB.
struct Compiled<R>(PhantomData<R>);

impl<R: Reduction> Compiled<R> {
    const FOR_ALL_LEVELS: bool = !R::OP.joins_bits()
        && !matches!(R::Element::DTYPE, DType::I16 | DType::U16 | DType::U32 | DType::U64);
}

impl Visitor for Run<'_> {
    type Output = ();

    fn visit<R: Reduction>(self) {
        if !Compiled::<R>::FOR_ALL_LEVELS {
            // SAFETY: `fold_with` has checked the job, with the element type and operation of `R`.
            return unsafe { portable::fold::<R>(&self.job) };
        }
        // SAFETY: `fold_with` has checked the job, with the element type and operation of `R`, and the level.
        unsafe {
            match self.level {
                Level::Portable => portable::fold::<R>(&self.job),
                #[cfg(target_arch = "x86_64")]
                Level::Avx2 => avx2::fold::<R>(&self.job),
                #[cfg(target_arch = "x86_64")]
                Level::Avx512 => avx512::fold::<R>(&self.job),
                #[cfg(not(target_arch = "x86_64"))]
                Level::Avx2 | Level::Avx512 => unreachable!("not available on this target"),
            }
        }
    }
}
