//! Fork: a child that does not pretend to be its parent.
//!
//! A training process forks: every data loader worker is a copy of it, with a copy of every descriptor. A socket that a
//! forgotten child holds stays open when the parent dies, so the other end learns of the death only when the child
//! ends, seconds later or never. Close-on-exec does not help, because such children do not exec. So every descriptor of
//! the engine lives in a [`Guarded`], and a handler that `pthread_atfork` runs in the child replaces each with a
//! harmless descriptor. The connection has one holder again. If the child's copy of the engine still uses the number,
//! it fails with `EBADF`, or closes something that does not matter.
//!
//! Not seen: raw `clone` system calls that bypass the C library, and the instant between opening a descriptor and
//! guarding it. Death is found through [`pidfd`](crate::pidfd) and heartbeats too.

use rustix::fs::{Mode, OFlags};
use std::fmt;
use std::io;
use std::mem;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, Ordering};

/// A number that a process keeps and that its forked children do not have, once forks are [watched](watch) for. An
/// object from another generation was made by another process: its connections and mappings are not this one's.
#[inline]
pub fn generation() -> u64 {
    GENERATION.load(Ordering::Relaxed)
}

/// Watches for forks, from now on. [`Guarded`] and [`Segment`](crate::segment::Segment) do it themselves.
///
/// # Errors
/// If the process has no descriptor or memory left for the handler; a later call tries again.
pub fn watch() -> io::Result<()> {
    if HARMLESS.load(Ordering::Acquire) != NONE {
        return Ok(());
    }
    let harmless = rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    // No lock, which a fork at this moment would leave locked in the child. Two threads may both come here, and then
    // the handler runs twice, which does no harm.
    // SAFETY: `in_child` may run in a forked child of a process with threads: see there.
    let code = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    if code != 0 {
        return Err(io::Error::from_raw_os_error(code));
    }
    let number = harmless.as_raw_fd();
    if HARMLESS.compare_exchange(NONE, number, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
        mem::forget(harmless);
    }
    Ok(())
}

/// Something with a descriptor that no forked child keeps open.
///
/// It owns the descriptor for as long as it is guarded, so that the number cannot mean another file later, and it gives
/// only shared access to it.
pub struct Guarded<F: AsFd + 'static> {
    inner: F,
    place: Place,
}

impl<F: AsFd + 'static> Guarded<F> {
    /// Guards `inner`, whose descriptor must stay the same.
    ///
    /// # Errors
    /// As [`watch`].
    pub fn new(inner: F) -> io::Result<Self> {
        watch()?;
        let place = Place::take(inner.as_fd());
        Ok(Guarded { inner, place })
    }
}

impl<F: AsFd + 'static> Deref for Guarded<F> {
    type Target = F;

    fn deref(&self) -> &F {
        &self.inner
    }
}

impl<F: AsFd + 'static> AsFd for Guarded<F> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

/// Before `inner` is closed: afterwards the number may at once be another file's.
impl<F: AsFd + 'static> Drop for Guarded<F> {
    fn drop(&mut self) {
        self.place.0.store(NONE, Ordering::Release);
    }
}

impl<F: AsFd + fmt::Debug + 'static> fmt::Debug for Guarded<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Guarded").field(&self.inner).finish()
    }
}

/// No descriptor.
const NONE: i32 = -1;

static GENERATION: AtomicU64 = AtomicU64::new(0);

/// Open for good once the handler is installed: `/` with `O_PATH`, which can be neither read, written nor waited for.
static HARMLESS: AtomicI32 = AtomicI32::new(NONE);

/// A list of blocks that only grows: a child can walk it whatever its parent's threads were doing.
static GUARDED: Block = Block::new();

struct Block {
    descriptors: [AtomicI32; Block::PLACES],
    next: AtomicPtr<Block>,
}

/// Where one guarded descriptor is listed.
struct Place(&'static AtomicI32);

impl Block {
    const PLACES: usize = 254;

    const fn new() -> Block {
        Block {
            descriptors: [const { AtomicI32::new(NONE) }; Block::PLACES],
            next: AtomicPtr::new(ptr::null_mut()),
        }
    }

    fn next(&self) -> Option<&'static Block> {
        // SAFETY: null, or a block that `grow` leaked.
        unsafe { self.next.load(Ordering::Acquire).as_ref() }
    }

    /// The block after the last one: a new one, or the one that another thread was faster to append.
    fn grow(&self) -> &'static Block {
        let new = Box::into_raw(Box::new(Block::new()));
        let appended = self.next.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire);
        match appended {
            // SAFETY: leaked above; nobody frees it.
            Ok(_) => unsafe { &*new },
            Err(faster) => {
                // SAFETY: `new` came from a box and was not shared; `faster` was leaked by the thread that appended it.
                unsafe {
                    drop(Box::from_raw(new));
                    &*faster
                }
            }
        }
    }
}

impl Place {
    fn take(descriptor: BorrowedFd<'_>) -> Place {
        let number = descriptor.as_raw_fd();
        let mut block: &'static Block = &GUARDED;
        loop {
            let free = block.descriptors.iter().find(|place| {
                place.compare_exchange(NONE, number, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            });
            if let Some(place) = free {
                return Place(place);
            }
            block = block.next().unwrap_or_else(|| block.grow());
        }
    }
}

/// Runs in every forked child, where the memory is as the parent's threads left it in the middle of anything: so it
/// takes no lock, allocates nothing, and calls nothing but atomics and `dup3`.
extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    let harmless = HARMLESS.load(Ordering::Acquire);
    if harmless == NONE {
        return;
    }
    let mut block = Some(&GUARDED);
    while let Some(here) = block {
        for place in &here.descriptors {
            let number = place.load(Ordering::Acquire);
            if number != NONE {
                // SAFETY: the number belongs to a `Guarded` of the parent, whose copy in this child is the only
                // owner here and expects no more of it than that closing it is its own business.
                unsafe { libc::dup3(harmless, number, libc::O_CLOEXEC) };
            }
        }
        block = here.next();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(number: i32) -> usize {
        let mut count = 0;
        let mut block = Some(&GUARDED);
        while let Some(here) = block {
            count += here.descriptors.iter().filter(|place| place.load(Ordering::Relaxed) == number).count();
            block = here.next();
        }
        count
    }

    #[test]
    fn the_list_grows_and_forgets() {
        let (end, _other) = io::pipe().unwrap();
        let end = std::os::fd::OwnedFd::from(end);
        let number = end.as_raw_fd();
        let shared = std::sync::Arc::new(end);
        let guards: Vec<_> = (0..3 * Block::PLACES).map(|_| Guarded::new(shared.clone()).unwrap()).collect();
        assert_eq!(listed(number), guards.len());
        drop(guards);
        assert_eq!(listed(number), 0);
    }
}
