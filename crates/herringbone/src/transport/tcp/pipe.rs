//! The carrier of a link's bytes: a socket, or in tests one end of a virtual link.

use crate::sys::{
    fork::Guarded,
    socket::{self, IoVec, TcpSent},
    span::Span,
};
use std::{
    fmt, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

/// One end of a stream of bytes in both directions. Neither reading nor writing blocks.
pub(crate) trait Pipe: fmt::Debug + Send + Sync {
    /// Writes the first bytes of `parts`, in order, and returns how many it took. If there is `more` to write at once, a last
    /// packet that is not full may wait for it.
    ///
    /// # Errors
    /// `WouldBlock` if it takes nothing now; whatever else the system reports.
    fn write(&self, parts: &[IoVec<'_>], more: bool) -> io::Result<usize>;

    /// Reads what has arrived into `first` and then into `second`: 0 bytes at the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` if nothing has arrived; whatever else the system reports.
    fn read(&self, first: Span<'_>, second: Option<Span<'_>>) -> io::Result<usize>;

    /// Has a poller find it readable only when `bytes` have arrived, or its stream has ended. It may not take the hint.
    fn set_wanted(&self, bytes: usize) -> io::Result<()>;

    /// Says that nothing more will be written.
    fn hang_up(&self);

    /// Whether bytes go through memory and no device, so that payloads need no checksum.
    fn is_memory(&self) -> bool {
        false
    }

    /// What it has sent since it was made; `None` where nobody counts it, as in memory.
    fn sent(&self) -> Option<TcpSent> {
        None
    }

    /// What a poller watches, if it can.
    fn fd(&self) -> Option<BorrowedFd<'_>>;
}

impl Pipe for Guarded<OwnedFd> {
    fn write(&self, parts: &[IoVec<'_>], more: bool) -> io::Result<usize> {
        socket::send_vectored(self.as_fd(), parts, more)
    }

    fn read(&self, first: Span<'_>, second: Option<Span<'_>>) -> io::Result<usize> {
        match second {
            Some(second) => socket::recv_two(self.as_fd(), first, second),
            None => socket::recv(self.as_fd(), first),
        }
    }

    fn set_wanted(&self, bytes: usize) -> io::Result<()> {
        socket::set_wanted(self.as_fd(), bytes)
    }

    fn hang_up(&self) {
        // A socket that is broken needs no goodbye.
        let _gone = rustix::net::shutdown(self, rustix::net::Shutdown::Write);
    }

    fn sent(&self) -> Option<TcpSent> {
        socket::tcp_sent(self.as_fd()).ok()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }
}
