//! Processes that another one started.

use crate::failure::Failure;
use rustix::process::{Signal, set_parent_process_death_signal};

/// Makes this process end when the one that started it does, however that ends.
pub(crate) fn end_with_parent() -> Result<(), Failure> {
    set_parent_process_death_signal(Some(Signal::TERM))
        .map_err(|errno| Failure::system("cannot follow the parent process")(errno.into()))
}
