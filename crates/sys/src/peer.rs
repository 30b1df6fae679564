//! The process at the other end of a unix socket, by the kernel and not by its own claim.

use crate::pidfd::Pidfd;
use rustix::event::{PollFd, PollFlags, poll};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The process at the other end of a unix socket: the one that connected, or that began to listen.
///
/// Kernels before 6.5 tell only its number, which could meanwhile be another process's. There the answer is believed
/// only if the connection is still up after the process was opened under its number.
///
/// # Errors
/// If it has ended, or lives in a process namespace that this one cannot see.
pub fn peer_pidfd(socket: impl AsFd) -> io::Result<Pidfd> {
    let socket = socket.as_fd();
    // SAFETY: the option's value is an int.
    match unsafe { socket_option::<libc::c_int>(socket, libc::SO_PEERPIDFD, -1) } {
        // SAFETY: the kernel has just made this descriptor for us.
        Ok(descriptor) => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }.into()),
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => peer_by_number(socket),
        Err(error) => Err(error),
    }
}

/// Whose process is at the other end of a unix socket: the one that connected, or that began to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Its effective user, as seen from here.
    pub user: u32,
    /// Its number; 0 if it lives in a process namespace that this one cannot see.
    pub process: u32,
}

/// The owner of the other end of a unix socket.
///
/// # Errors
/// If it is no unix socket.
pub fn peer_owner(socket: impl AsFd) -> io::Result<Owner> {
    let peer = credentials(socket.as_fd())?;
    Ok(Owner { user: peer.uid, process: u32::try_from(peer.pid).unwrap_or(0) })
}

fn credentials(socket: BorrowedFd<'_>) -> io::Result<libc::ucred> {
    let nobody = libc::ucred { pid: 0, uid: 0, gid: 0 };
    // SAFETY: the option's value is a `ucred`.
    unsafe { socket_option(socket, libc::SO_PEERCRED, nobody) }
}

/// As [`peer_pidfd`], for kernels without `SO_PEERPIDFD`.
fn peer_by_number(socket: BorrowedFd<'_>) -> io::Result<Pidfd> {
    let process = Pidfd::open(u32::try_from(credentials(socket)?.pid).unwrap_or(0))?;
    let mut descriptors = [PollFd::from_borrowed_fd(socket, PollFlags::RDHUP)];
    poll(&mut descriptors, Some(&Default::default()))?;
    if descriptors[0].revents().intersects(PollFlags::HUP | PollFlags::RDHUP) {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    Ok(process)
}

/// Reads an option of level `SOL_SOCKET`.
///
/// # Safety
/// The kernel writes a valid `T`, or a prefix of one, for this option.
unsafe fn socket_option<T>(socket: BorrowedFd<'_>, option: libc::c_int, mut value: T) -> io::Result<T> {
    let mut len = size_of::<T>() as libc::socklen_t;
    let place = (&raw mut value).cast();
    // SAFETY: `place` is valid for `len` bytes, and by contract what is written there is a T.
    let code = unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, place, &mut len) };
    if code == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_other_process_is_found_while_its_connection_is_up() {
        let (here, there) = UnixStream::pair().unwrap();
        for process in [peer_pidfd(&here).unwrap(), peer_by_number(there.as_fd()).unwrap()] {
            assert!(!process.has_ended().unwrap());
        }
        drop(there);
        let gone = peer_by_number(here.as_fd()).unwrap_err();
        assert_eq!(gone.raw_os_error(), Some(libc::ESRCH));
    }

    #[test]
    fn the_owner_is_the_process_that_has_connected() {
        let (here, there) = UnixStream::pair().unwrap();
        let own = Owner { user: rustix::process::geteuid().as_raw(), process: std::process::id() };
        assert_eq!([peer_owner(&here).unwrap(), peer_owner(&there).unwrap()], [own; 2]);
        assert!(peer_owner(std::fs::File::open("/").unwrap()).is_err());
    }
}
