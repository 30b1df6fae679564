//! The scalar meaning, as the compiler renders it for any CPU of the target.

use super::{Job, block, line::Isa, shape::MAX_DEPTH};
use crate::span::Span;
use herringbone_core::element::{Number, Reduction};
use herringbone_core::schedule::Form;

/// No instruction set beyond the target's own.
struct Portable;

const LINE: usize = 16;

impl Isa<LINE> for Portable {}

/// See [`block::fold`].
///
/// # Safety
/// The job is one for `R`.
#[inline(never)]
pub(super) unsafe fn fold<R: Reduction>(job: &Job<'_>) {
    // SAFETY: as the caller says; the instruction set is the one that all code here is compiled for.
    unsafe {
        // A few elements are folded before a line of them is filled up, and its groups are found.
        match job.count < LINE {
            true => (0..job.count).for_each(|at| one::<R>(job, at)),
            false => block::fold::<Portable, R, LINE>(job),
        }
    }
}

/// Folds one element of all sources, by the letter of [`Source::merges`](super::Source::merges).
///
/// # Safety
/// The job is one for `R`, and has such an element.
#[inline]
unsafe fn one<R: Reduction>(job: &Job<'_>, at: usize) {
    let (mut stack, mut open) = ([R::Acc::default(); MAX_DEPTH], 0);
    for source in job.sources {
        let from = source.span.as_ptr();
        // SAFETY: each source has an item of its form for each element of the job.
        let mut acc = unsafe {
            match source.form {
                Form::Acc => from.cast::<R::Acc>().add(at).read_unaligned(),
                _ => R::lift(from.cast::<R::Element>().add(at).read_unaligned()),
            }
        };
        for _ in 0..source.merges {
            open -= 1;
            acc = R::merge(stack[open], acc);
        }
        stack[open] = acc;
        open += 1;
    }
    let write = |place: &Span<'_>| {
        let into = place.as_mut_ptr();
        // SAFETY: there is room for as many items of the result's form as the job has elements.
        unsafe {
            match job.finish {
                Some(n) => into.cast::<R::Element>().add(at).write_unaligned(R::finish(stack[0], n)),
                None => into.cast::<R::Acc>().add(at).write_unaligned(stack[0].canonical()),
            }
        }
    };
    write(&job.into.span);
    job.into.copies.iter().for_each(write);
}
