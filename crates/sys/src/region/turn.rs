//! The lock of a region: one thread at a time, as often as that thread likes, until it is closed for good.

use std::cell::{Cell, UnsafeCell};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Nobody holds it.
const FREE: u64 = 0;
/// Nobody will hold it again.
const CLOSED: u64 = 2;
/// Added to the holder's number while somebody sleeps until it leaves.
const AWAITED: u64 = 1;

/// Invariant: `holder` contains a thread's number exactly while that thread is inside, and only that thread puts it
/// there or takes it away; so a thread that reads its own number there is inside.
pub(super) struct Turn {
    holder: AtomicU64,
    /// How often the holder is inside; touched by the holder only.
    depth: UnsafeCell<usize>,
    sleepers: Mutex<()>,
    left: Condvar,
}

// SAFETY: `depth` is the only field without a lock of its own; the thread inside owns it, and the exchange of
// `holder` (release on leaving, acquire on entering) hands it over.
unsafe impl Sync for Turn {}

impl Turn {
    pub(super) fn new() -> Self {
        Turn {
            holder: AtomicU64::new(FREE),
            depth: UnsafeCell::new(0),
            sleepers: Mutex::new(()),
            left: Condvar::new(),
        }
    }

    /// Enters, waiting for another thread to leave; `false` once closed.
    #[inline]
    #[must_use]
    pub(super) fn enter(&self) -> bool {
        let me = thread_number();
        if self.holder.load(Ordering::Relaxed) & !AWAITED != me {
            while let Err(seen) = self.holder.compare_exchange(FREE, me, Ordering::Acquire, Ordering::Relaxed)
            {
                if seen == CLOSED {
                    return false;
                }
                self.wait();
            }
        }
        // SAFETY: this thread is inside.
        unsafe { *self.depth.get() += 1 };
        true
    }

    /// Takes back one `enter` of this thread.
    #[inline]
    pub(super) fn leave(&self) {
        debug_assert!(self.held_here(), "leave without enter");
        // SAFETY: this thread is inside.
        let depth = unsafe { &mut *self.depth.get() };
        *depth -= 1;
        if *depth == 0 && self.holder.swap(FREE, Ordering::Release) & AWAITED != 0 {
            let _sleepers = self.lock();
            self.left.notify_all();
        }
    }

    /// Waits until nobody is inside and closes it. To be called by a thread that is not inside.
    pub(super) fn close(&self) {
        while let Err(seen) = self.holder.compare_exchange(FREE, CLOSED, Ordering::Acquire, Ordering::Relaxed)
        {
            if seen == CLOSED {
                return;
            }
            self.wait();
        }
    }

    /// Whether this thread is inside.
    pub(super) fn held_here(&self) -> bool {
        self.holder.load(Ordering::Relaxed) & !AWAITED == thread_number()
    }

    /// Sleeps until the thread inside, if any, leaves. The mark is set under the lock that the leaver takes after
    /// removing it, so either the leaver sees the mark and wakes us, or the mark cannot be set any more.
    fn wait(&self) {
        let sleepers = self.lock();
        let seen = self.holder.load(Ordering::Relaxed);
        if seen == FREE || seen == CLOSED {
            return;
        }
        let marked = self.holder.compare_exchange(seen, seen | AWAITED, Ordering::Relaxed, Ordering::Relaxed);
        if marked.is_ok() {
            drop(self.left.wait(sleepers).unwrap_or_else(PoisonError::into_inner));
        }
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.sleepers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A number that no other thread of this process has or had: even, and neither [`FREE`] nor [`CLOSED`].
#[inline]
fn thread_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(CLOSED + 2);
    thread_local! { static MINE: Cell<u64> = const { Cell::new(FREE) } }
    MINE.with(|mine| {
        if mine.get() == FREE {
            mine.set(NEXT.fetch_add(2, Ordering::Relaxed));
        }
        mine.get()
    })
}
