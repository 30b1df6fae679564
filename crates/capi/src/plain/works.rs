//! The ends of operations in the background.

use crate::{failure::code_of, pointers::ResultPointer, registry::WORKS};
use std::ffi::c_int;

/// Waits for an operation; its handle is over.
#[unsafe(no_mangle)]
pub extern "C" fn herringbone_wait(work: u64) -> c_int {
    code_of(|| {
        let running = WORKS.find(work)?;
        let result = running.wait();
        // Another thread may have waited for the same one: both have its result.
        let _over_already = WORKS.remove(work);
        result
    })
}

/// Whether an operation is over; if it is, its handle is, too.
#[unsafe(no_mangle)]
pub extern "C" fn herringbone_test(work: u64, is_over: ResultPointer<c_int>) -> c_int {
    code_of(|| {
        let mut result = None;
        is_over.fill("is_over", || {
            result = WORKS.find(work).map_or_else(|failure| Some(Err(failure)), |running| running.result());
            Ok(c_int::from(result.is_some()))
        })?;
        let Some(result) = result else { return Ok(()) };
        let _over_already = WORKS.remove(work);
        result
    })
}
