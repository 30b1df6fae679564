//! The synchronisation of the scheduler. Its test with loom compiles it with loom's in their place.

pub(crate) use std::{
    sync::{Condvar, Mutex, MutexGuard},
    thread,
};

use crate::sys::fork;
use std::cell::Cell;

/// A number that a process has and its forked children do not.
pub(crate) fn generation() -> u64 {
    fork::generation()
}

/// How often a thread that has nothing to do lets others run before it sleeps: to wake it costs more than to find it awake.
pub(crate) const YIELDS: usize = 32;

thread_local! {
    static INSIDE: Cell<usize> = const { Cell::new(0) };
}

/// Says of which engine (its address; 0: none) this thread is; returns what was said before.
pub(crate) fn set_inside(engine: usize) -> usize {
    INSIDE.replace(engine)
}

/// Of which engine this thread is.
pub(crate) fn inside() -> usize {
    INSIDE.get()
}
