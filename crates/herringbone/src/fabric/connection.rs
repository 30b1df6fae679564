//! A control connection, after its handshake.

use crate::{
    core::session::control::{ControlChannel, Message},
    sys::fork::Guarded,
};
use rustix::{io::Errno, net::SendFlags};
use std::os::fd::OwnedFd;

/// Errors of a socket whose other end may live.
const CUT: [Errno; 5] =
    [Errno::TIMEDOUT, Errno::HOSTUNREACH, Errno::NETUNREACH, Errno::NETDOWN, Errno::HOSTDOWN];

/// One control connection.
pub(crate) struct Connection {
    pub(super) fd: Guarded<OwnedFd>,
    channel: ControlChannel,
    out: Vec<u8>,
    /// Whether anything was read since this was last asked.
    heard: bool,
    pub(super) full: bool,
    /// Whether it broke because nothing comes through any more: its other end may live.
    pub(super) is_cut: bool,
}

impl Connection {
    /// Takes over a connection after the handshake, with what was read beyond it.
    pub(crate) fn new(fd: OwnedFd, channel: ControlChannel) -> std::io::Result<Self> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        let fd = Guarded::new(fd)?;
        Ok(Self { fd, channel, out: Vec::new(), heard: false, full: false, is_cut: false })
    }

    pub(super) fn send(&mut self, message: &Message) -> bool {
        match self.channel.encode(message) {
            Ok(bytes) => {
                self.out.extend_from_slice(&bytes);
                self.flush()
            }
            Err(_) => true,
        }
    }

    /// Returns false once the connection is broken.
    pub(super) fn flush(&mut self) -> bool {
        while !self.out.is_empty() {
            match rustix::net::send(&*self.fd, &self.out, SendFlags::NOSIGNAL) {
                Ok(sent) => drop(self.out.drain(..sent)),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => {
                    self.is_cut |= CUT.contains(&error);
                    return false;
                }
            }
        }
        self.full = !self.out.is_empty();
        true
    }

    pub(super) fn take_heard(&mut self) -> bool {
        std::mem::take(&mut self.heard)
    }

    /// Reads what is there. Returns the messages, and whether the connection goes on.
    pub(super) fn receive(&mut self) -> (Vec<Message>, bool) {
        let (mut messages, mut open) = (Vec::new(), true);
        let mut bytes = [0u8; 16 << 10];
        while open {
            match rustix::io::read(&*self.fd, &mut bytes[..]) {
                Ok(0) => open = false,
                Ok(got) => {
                    self.channel.push(&bytes[..got]);
                    self.heard = true;
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => continue,
                Err(error) => {
                    self.is_cut |= CUT.contains(&error);
                    open = false;
                }
            }
        }
        loop {
            match self.channel.next_message() {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => return (messages, open),
                Err(_) => return (messages, false),
            }
        }
    }
}
