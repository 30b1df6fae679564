//! The scalar meaning, as the compiler renders it for any CPU of the target.

use super::{Job, block, line::Isa};
use herringbone_core::element::Reduction;

/// No instruction set beyond the target's own.
struct Portable;

const LINE: usize = 16;

impl Isa<LINE> for Portable {}
impl Isa<1> for Portable {}

/// See [`block::fold`].
///
/// # Safety
/// The job is one for `R`.
#[inline(never)]
pub(super) unsafe fn fold<R: Reduction>(job: &Job<'_>) {
    // SAFETY: as the caller says; the instruction set is the one that all code here is compiled for.
    unsafe {
        // A few elements are folded before a line of them is filled up.
        match job.count < LINE {
            true => block::fold::<Portable, R, 1>(job),
            false => block::fold::<Portable, R, LINE>(job),
        }
    }
}
