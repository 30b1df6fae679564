//! Errors that tests plant into recoveries, to see that they find them.

use std::cell::Cell;

/// An error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plant {
    /// An operation with reducers ends before all workers hold its result.
    CompleteEarly,
    /// What was reported to the hub changes after that.
    NoFence,
    /// A result is read from a socket straight into the only copy of an input.
    ReadIntoInput,
    /// What somebody holds is folded again.
    ForgetHolders,
    /// What is left of an operation is done twice.
    ResumeTwice,
}

thread_local! {
    static PLANTED: Cell<Option<Plant>> = const { Cell::new(None) };
}

/// An error that is there until this is dropped, on this thread.
pub(crate) struct Planted;

impl Drop for Planted {
    fn drop(&mut self) {
        PLANTED.set(None);
    }
}

/// Plants an error on this thread.
pub(crate) fn plant(plant: Plant) -> Planted {
    PLANTED.set(Some(plant));
    Planted
}

/// Whether an error was planted.
pub(crate) fn has(plant: Plant) -> bool {
    PLANTED.get() == Some(plant)
}
