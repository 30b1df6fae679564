//! The atomics of the lock-free parts. Their test with loom compiles them with loom's in their place.

pub use std::sync::atomic::{AtomicU64, Ordering, fence};

/// A sequentially consistent fence. On x86, compilers emit `mfence` for one, which takes several times as long as any
/// locked instruction. Locked instructions are full barriers too, by the chapters on memory ordering of Intel's and
/// AMD's manuals.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
pub fn full_fence() {
    // SAFETY: leaves a word of this thread's own stack as it is. As the asm may touch any memory, the compiler moves no
    // access past it.
    unsafe { std::arch::asm!("lock or dword ptr [rsp], 0", options(nostack)) }
}

/// A sequentially consistent fence.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[inline]
pub fn full_fence() {
    fence(Ordering::SeqCst);
}
