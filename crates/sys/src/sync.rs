//! The atomics of the lock-free parts: the machine's, or loom's when built with `--cfg loom`, which then tries every
//! order in which threads can see each other's writes.

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU64, Ordering, fence};

#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU64, Ordering, fence};
