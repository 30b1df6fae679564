//! What carries a link's bytes: a socket, or in tests one end of a [virtual link](super::virtual_link).

#[cfg(any(test, feature = "simulator"))]
use super::virtual_link::End;
use crate::sys::{
    fork::Guarded,
    socket::{self, Part},
    span::Span,
};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

/// One end of a stream of bytes in both directions. Neither reading nor writing blocks.
#[derive(Clone, Debug)]
pub(crate) enum Pipe {
    Socket(Arc<Guarded<OwnedFd>>),
    #[cfg(any(test, feature = "simulator"))]
    Virtual(Arc<End>),
}

impl Pipe {
    /// Writes the first bytes of `parts`, in order, and returns how many it took. If there is `more` to write at once, a last
    /// packet that is not full may wait for it.
    ///
    /// # Errors
    /// `WouldBlock` if it takes nothing now; whatever else the system reports.
    pub(super) fn write(&self, parts: &[Part<'_>], more: bool) -> io::Result<usize> {
        match self {
            Pipe::Socket(socket) => socket::send_vectored(socket.as_fd(), parts, more),
            #[cfg(any(test, feature = "simulator"))]
            Pipe::Virtual(end) => end.write(parts),
        }
    }

    /// Reads what has arrived into `first` and then into `second`: 0 bytes at the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` if nothing has arrived; whatever else the system reports.
    pub(super) fn read(&self, first: Span<'_>, second: Option<Span<'_>>) -> io::Result<usize> {
        match self {
            Pipe::Socket(socket) => match second {
                Some(second) => socket::recv_two(socket.as_fd(), first, second),
                None => socket::recv(socket.as_fd(), first),
            },
            #[cfg(any(test, feature = "simulator"))]
            Pipe::Virtual(end) => end.read(first, second),
        }
    }

    /// Has a poller find it readable only when `bytes` have arrived, or its stream has ended. It may not take the hint.
    pub(super) fn set_wanted(&self, bytes: usize) -> io::Result<()> {
        match self {
            Pipe::Socket(socket) => socket::set_wanted(socket.as_fd(), bytes),
            #[cfg(any(test, feature = "simulator"))]
            Pipe::Virtual(end) => {
                end.set_wanted(bytes);
                Ok(())
            }
        }
    }

    /// Says that nothing more will be written.
    pub(super) fn hang_up(&self) {
        match self {
            Pipe::Socket(socket) => {
                // A socket that is broken needs no goodbye.
                let _gone = rustix::net::shutdown(&**socket, rustix::net::Shutdown::Write);
            }
            #[cfg(any(test, feature = "simulator"))]
            Pipe::Virtual(end) => end.hang_up(),
        }
    }

    /// What a poller watches, if it can.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Pipe::Socket(socket) => Some(socket.as_fd()),
            #[cfg(any(test, feature = "simulator"))]
            Pipe::Virtual(_) => None,
        }
    }
}
