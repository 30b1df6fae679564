//! The word by which a sleeper and its publishers find each other. It imports nothing but atomics, so that
//! `tests/loom.rs` can compile it with loom's.

use crate::sync::{AtomicU64, Ordering, fence, full_fence};

/// Says that the owner of `flag` is going to sleep. It must look once more before it does.
pub fn announce_sleep(flag: &AtomicU64) {
    flag.store(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// Marks the owner of `flag` as awake, so that no publisher needs to ring.
pub fn awake(flag: &AtomicU64) {
    flag.store(0, Ordering::Relaxed);
}

/// Data that this caller has published comes before every later [`must_ring`] of it: one call for any number of owners.
#[inline]
pub fn published() {
    full_fence();
}

/// Whether the owner of `flag` sleeps and this caller, after [`published`], is the one to ring.
#[inline]
#[must_use = "who is told to ring must ring"]
pub fn must_ring(flag: &AtomicU64) -> bool {
    flag.load(Ordering::Relaxed) != 0 && flag.swap(0, Ordering::Relaxed) != 0
}
