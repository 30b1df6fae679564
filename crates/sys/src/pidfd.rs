//! Processes of this host, so that their deaths are seen when they happen.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A process, whatever becomes of its number. The descriptor is readable once the process has ended, reaped or not.
#[derive(Debug)]
pub struct Pidfd(OwnedFd);

impl Pidfd {
    /// The process that has number `pid` now.
    ///
    /// # Errors
    /// `ESRCH` if there is none; `EINVAL` if `pid` is 0 or no number of a process.
    pub fn open(pid: u32) -> io::Result<Pidfd> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        Ok(Pidfd(rustix::process::pidfd_open(pid, PidfdFlags::empty())?))
    }

    /// Whether the process has ended.
    ///
    /// # Errors
    /// If the system is out of memory.
    pub fn has_ended(&self) -> io::Result<bool> {
        let mut descriptors = [PollFd::new(self, PollFlags::IN)];
        Ok(poll(&mut descriptors, Some(&Default::default()))? == 1)
    }
}

impl AsFd for Pidfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for Pidfd {
    /// Of a descriptor that the kernel gave out as a process's.
    fn from(descriptor: OwnedFd) -> Self {
        Pidfd(descriptor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_death_is_seen_before_the_process_is_reaped() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let process = Pidfd::open(child.id()).unwrap();
        assert!(!process.has_ended().unwrap());
        child.kill().unwrap();
        poll(&mut [PollFd::new(&process, PollFlags::IN)], None).unwrap();
        assert!(process.has_ended().unwrap());
        child.wait().unwrap();
        assert!(process.has_ended().unwrap());
    }

    #[test]
    fn no_process_has_these_numbers() {
        for pid in [0, u32::MAX, i32::MAX as u32] {
            assert!(Pidfd::open(pid).is_err());
        }
    }
}
