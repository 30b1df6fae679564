//! The pass over all sources: written once, and compiled once per instruction set.

use super::line::{Isa, MAX_LINE, Step, width};
use super::{
    Job,
    shape::{SourceGroups, rows},
};
use herringbone_core::element::Reduction;
use std::mem::{MaybeUninit, size_of};
use std::ops::Range;

/// Room for the partial results of a block that wait for others: it fits the first-level cache and any stack.
#[repr(C, align(64))]
struct Scratch([u8; SCRATCH]);

const SCRATCH: usize = 16 * 1024;

/// Folds a job's sources into its target: block by block, and each block of all sources in turn.
///
/// # Safety
/// The job is one for `R`. The CPU has the instruction set.
#[inline(always)]
pub(super) unsafe fn fold<I: Isa<LINE>, R: Reduction, const LINE: usize>(job: &Job<'_>) {
    const { assert!(LINE <= MAX_LINE) };
    let mut scratch = MaybeUninit::<Scratch>::uninit();
    let block = match rows(job.sources) {
        0 => job.count,
        rows => SCRATCH / rows / size_of::<R::Acc>() / LINE * LINE,
    };
    let mut start = 0;
    while start < job.count {
        let end = job.count.min(start + block);
        let rows = Rows { scratch: scratch.as_mut_ptr().cast(), bytes: block * size_of::<R::Acc>() };
        // SAFETY: the block lies within the job, and the rows within the scratch.
        unsafe { fold_block::<I, R, LINE>(job, start..end, rows) }
        start = end;
    }
}

/// The stack of partial results that wait.
struct Rows {
    scratch: *mut u8,
    bytes: usize,
}

impl Rows {
    #[inline(always)]
    fn at(&self, row: usize) -> *mut u8 {
        self.scratch.wrapping_add(row * self.bytes)
    }
}

/// Folds one block of elements.
///
/// # Safety
/// As [`fold`]. The block lies within the job. There are as many rows as the job needs, each with room for an
/// accumulator per element of the block.
#[inline(always)]
unsafe fn fold_block<I: Isa<LINE>, R: Reduction, const LINE: usize>(
    job: &Job<'_>,
    block: Range<usize>,
    rows: Rows,
) {
    let mut open = 0;
    let mut groups = SourceGroups::of(job.sources);
    while let Some(group) = groups.next() {
        let mut merges = group.merges;
        let offset = block.start * width::<R>(group.sources[0].form);
        let mut step = Step::of_sources(group.sources, offset, job.count - block.start);
        loop {
            if merges > 0 {
                open -= 1;
                step.left = rows.at(open);
            }
            step.into = rows.at(open);
            if merges <= 1 && groups.is_empty() {
                let offset = block.start * width::<R>(job.into.form);
                step.into = job.into.span.as_mut_ptr().wrapping_add(offset);
                (step.copies, step.copied) = (job.into.copies, offset);
                step.room = job.count - block.start;
                step.finish = job.finish;
            }
            // SAFETY: sources, rows and target have an item of their form for each element of the block; the job
            // vouches for what may overlap, and rows are nobody else's.
            unsafe { step.run::<I, R, LINE>(block.len()) }
            if merges <= 1 {
                break;
            }
            merges -= 1;
            step = Step::of_row(rows.at(open));
        }
        open += 1;
    }
}
