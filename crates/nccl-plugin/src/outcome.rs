//! How a call ends for NCCL: by a code, and with a line of the log if it has failed.

use crate::{
    failure::{PluginFailure, SUCCESS},
    logger,
};
use std::{
    ffi::c_int,
    panic::{AssertUnwindSafe, catch_unwind},
};

/// Makes a call of NCCL: a failure is logged, and becomes its code. A panic ends here.
pub(crate) fn code_of(call: impl FnOnce() -> Result<(), PluginFailure>) -> c_int {
    let outcome = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let failure = PluginFailure::panic(&*panic);
        // What a panic carries may panic as it is dropped.
        std::mem::forget(panic);
        Err(failure)
    });
    let Err(failure) = outcome else { return SUCCESS };
    logger::warn(failure.text());
    failure.code()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_internal_error() {
        assert_eq!(code_of(|| Ok(())), 0);
        assert_eq!(code_of(|| Err(PluginFailure::argument("x"))), 4);
        assert_eq!(code_of(|| panic!("a bug of the test")), 3);
    }
}
