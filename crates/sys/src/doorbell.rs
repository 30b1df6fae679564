//! Sleeping until another process has published something, without a system call for publishers if the sleeper is
//! awake.
//!
//! A process that sleeps has one [`Bell`] and one word, its *flag*, in its segment. The bell is an eventfd, which it
//! can wait for together with its sockets. The flag is 1 while the process sleeps or is about to. The sleeper calls
//! [`announce_sleep`], **then** looks at everything it could be woken for once more, then waits for the bell, then
//! [`drain`](Bell::drain)s it, calls [`awake`] and looks again. A process that publishes something for it calls
//! [`published`] **afterwards**, and then [`wake_published`].
//!
//! # Why no wake-up is lost
//! The sleeper stores the flag, passes a fence F1, and looks. The publisher stores its message, passes a fence F2, and
//! loads the flag. Both fences are sequentially consistent, so one comes first. If F1 does, the publisher loads the
//! flag that the sleeper stored (or a 0 that another publisher made of it, which then rings), and rings. If F2 does,
//! the sleeper sees the message when it looks. The bell stays audible until it is drained, and a drain is followed by
//! a look. `tests/loom.rs` tries every order, on the flag's own source.

use crate::fork::Guarded;
use crate::sync::AtomicU64;
use rustix::event::EventfdFlags;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

mod flag;

pub use flag::{announce_sleep, awake, must_ring, published};

/// An eventfd: readable from the first [`ring`](Self::ring) to the next [`drain`](Self::drain).
#[derive(Debug)]
pub struct Bell(Guarded<OwnedFd>);

impl Bell {
    /// A new one, silent.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn new() -> io::Result<Bell> {
        let eventfd = rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Bell(Guarded::new(eventfd)?))
    }

    /// The bell of another process, received from it.
    ///
    /// # Errors
    /// `InvalidData` if it is not a nonblocking eventfd: ringing anything else could block.
    pub fn from_fd(descriptor: OwnedFd) -> io::Result<Bell> {
        let what = std::fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd()))?;
        let nonblocking = rustix::fs::fcntl_getfl(&descriptor)?.contains(OFlags::NONBLOCK);
        if !nonblocking || what.as_os_str() != "anon_inode:[eventfd]" {
            let text = format!("a doorbell must be a nonblocking eventfd; received {}", what.display());
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok(Bell(Guarded::new(descriptor)?))
    }

    /// Makes it readable.
    ///
    /// # Errors
    /// None that a living bell gives; in a forked child, `EBADF`.
    pub fn ring(&self) -> io::Result<()> {
        match rustix::io::write(&*self.0, &1u64.to_ne_bytes()) {
            Ok(_) | Err(Errno::AGAIN) => Ok(()), // AGAIN: the count is at its limit, so it is audible
            Err(errno) => Err(errno.into()),
        }
    }

    /// Makes it silent, and returns whether it had been rung.
    ///
    /// # Errors
    /// As [`ring`](Self::ring).
    pub fn drain(&self) -> io::Result<bool> {
        match rustix::io::read(&*self.0, &mut [0; 8]) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Its descriptor: to wait for, or to pass to the processes that will ring.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Wakes the owner of `flag`, if it sleeps, after [`published`].
///
/// # Errors
/// As [`Bell::ring`].
#[inline]
pub fn wake_published(flag: &AtomicU64, bell: &Bell) -> io::Result<()> {
    if must_ring(flag) { bell.ring() } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};

    fn wake(flag: &AtomicU64, bell: &Bell) -> io::Result<()> {
        published();
        wake_published(flag, bell)
    }

    fn audible(bell: &Bell) -> bool {
        poll(&mut [PollFd::from_borrowed_fd(bell.fd(), PollFlags::IN)], Some(&Default::default())).unwrap()
            == 1
    }

    #[test]
    fn a_bell_rings_until_drained_also_through_a_passed_descriptor() {
        let bell = Bell::new().unwrap();
        let rope = Bell::from_fd(bell.fd().try_clone_to_owned().unwrap()).unwrap();
        assert!(!audible(&bell) && !bell.drain().unwrap());
        rope.ring().unwrap();
        rope.ring().unwrap();
        assert!(audible(&bell) && bell.drain().unwrap());
        assert!(!audible(&bell));
    }

    #[test]
    fn only_one_rings_for_a_sleeper_and_nobody_for_the_awake() {
        let (flag, bell) = (AtomicU64::new(0), Bell::new().unwrap());
        wake(&flag, &bell).unwrap();
        assert!(!audible(&bell));
        announce_sleep(&flag);
        assert!(must_ring(&flag) && !must_ring(&flag));
        announce_sleep(&flag);
        wake(&flag, &bell).unwrap();
        assert!(audible(&bell));
        announce_sleep(&flag);
        awake(&flag);
        assert!(!must_ring(&flag));
    }

    #[test]
    fn a_bell_that_cannot_take_more_still_rings() {
        let bell = Bell::new().unwrap();
        rustix::io::write(bell.fd(), &(u64::MAX - 1).to_ne_bytes()).unwrap();
        bell.ring().unwrap();
        assert!(audible(&bell));
    }

    #[test]
    fn what_could_block_is_no_bell() {
        let blocking = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let (pipe, _writer) = io::pipe().unwrap();
        for impostor in [blocking, pipe.into()] {
            assert_eq!(Bell::from_fd(impostor).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
    }
}
