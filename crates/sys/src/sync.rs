//! The atomics of the lock-free parts: the machine's, or loom's when built with `--cfg loom`, which then tries every
//! order in which threads can see each other's writes.

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU64, Ordering, fence};

#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU64, Ordering, fence};

/// A sequentially consistent fence. On x86 compilers make one of `mfence`, which takes several times as long as any locked
/// instruction; these are full barriers too, by the chapters on memory ordering of Intel's and AMD's manuals.
#[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
#[inline]
pub fn full_fence() {
    // SAFETY: leaves a word of this thread's own stack as it is. As the asm may touch any memory, the compiler moves no
    // access past it.
    unsafe { std::arch::asm!("lock or dword ptr [rsp], 0", options(nostack)) }
}

/// A sequentially consistent fence.
#[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
#[inline]
pub fn full_fence() {
    fence(Ordering::SeqCst);
}
