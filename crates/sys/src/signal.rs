//! SIGUSR1 as something that a thread waits for.
//!
//! A handler is allowed to do next to nothing. Python runs its own handlers only between two instructions of the main
//! thread, which might wait in a call forever. So this one writes to a descriptor that a thread of ours reads.

use crate::fork;
use rustix::event::{EventfdFlags, eventfd};
use std::{
    io, mem,
    os::fd::{AsRawFd, OwnedFd},
    ptr,
    sync::atomic::{AtomicI32, AtomicU64, Ordering},
};

/// The descriptor that the handler writes to; -1 for none.
static BELL: AtomicI32 = AtomicI32::new(-1);
/// The [generation](fork::generation) of the process that listens: a forked child has the handler, and the same descriptor.
static BORN: AtomicU64 = AtomicU64::new(0);

/// SIGUSR1, from now on.
#[derive(Debug)]
pub struct UserSignal {
    bell: OwnedFd,
}

impl UserSignal {
    /// Takes the signal. `None` if the program has a handler for it, or lets it be ignored: that stays. A handler that the program
    /// installs later takes this one's place, and nothing is heard any more. To be called once.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn listen() -> io::Result<Option<Self>> {
        fork::watch()?;
        // SAFETY: both are structures of numbers and addresses, for which zeros are a value.
        let (mut before, mut action) =
            unsafe { (mem::zeroed::<libc::sigaction>(), mem::zeroed::<libc::sigaction>()) };
        // SAFETY: `before` may be written, and no action is given.
        check(unsafe { libc::sigaction(libc::SIGUSR1, ptr::null(), &raw mut before) })?;
        if before.sa_sigaction != libc::SIG_DFL {
            return Ok(None);
        }
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        BORN.store(fork::generation(), Ordering::SeqCst);
        BELL.store(bell.as_raw_fd(), Ordering::SeqCst);
        action.sa_sigaction = on_signal as extern "C" fn(libc::c_int) as libc::sighandler_t;
        action.sa_flags = libc::SA_RESTART;
        // SAFETY: `action` is whole, and its handler does only what handlers may do: see there.
        check(unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, ptr::null_mut()) })?;
        Ok(Some(Self { bell }))
    }

    /// Waits until the signal has come since this was last called.
    ///
    /// # Errors
    /// Only errors of a descriptor that another part of the program has closed.
    pub fn wait(&self) -> io::Result<()> {
        loop {
            let mut waiting = [rustix::event::PollFd::new(&self.bell, rustix::event::PollFlags::IN)];
            match rustix::event::poll(&mut waiting, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let mut count = [0; 8];
            match rustix::io::read(&self.bell, &mut count) {
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Drop for UserSignal {
    fn drop(&mut self) {
        BELL.store(-1, Ordering::SeqCst);
    }
}

fn check(code: libc::c_int) -> io::Result<()> {
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Runs at any instant of any thread. It reads two atomics, writes eight bytes, and leaves `errno` as it was.
extern "C" fn on_signal(_signal: libc::c_int) {
    let bell = BELL.load(Ordering::SeqCst);
    if bell < 0 || BORN.load(Ordering::SeqCst) != fork::generation() {
        return;
    }
    let one = 1_u64.to_ne_bytes();
    // SAFETY: `write` may be called in a handler, the bytes are there, and a closed descriptor is an error of it. `errno` is this
    // thread's.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        let _written = libc::write(bell, one.as_ptr().cast(), one.len());
        *errno = before;
    }
}
