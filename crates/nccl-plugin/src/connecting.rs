//! A connection that a sender is making.

use crate::{
    failure::PluginFailure,
    sending::SendSide,
    wire::greeting::{ListenHandle, SecretNumber, StreamHello},
};
use herringbone_sys::socket::{IoVec, keep_alive, send_vectored, tune_tcp_buffers};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, sockopt::socket_error},
    rand::{GetRandomFlags, getrandom},
};
use std::{
    io,
    net::{SocketAddr, TcpStream},
    time::Duration,
};

/// How long another host may be silent, on a stream with nothing under way, until the stream fails.
const SILENCE: Duration = Duration::from_secs(60);
/// A question that waits for nothing.
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// A stream that is being made.
#[derive(Debug)]
struct DialledStream {
    socket: TcpStream,
    is_connected: bool,
    /// How much of its hello is written.
    written: usize,
}

/// The streams to one receiver until all of them have said whose they are.
#[derive(Debug)]
pub(crate) struct StreamDial {
    handle: ListenHandle,
    connection: SecretNumber,
    streams: Vec<DialledStream>,
}

/// A number that nobody guesses.
///
/// # Errors
/// If the system gives none.
pub(crate) fn secret_number() -> io::Result<SecretNumber> {
    let mut number = SecretNumber::default();
    getrandom(&mut number, GetRandomFlags::empty())?;
    Ok(number)
}

/// Sets up a stream of either end.
///
/// # Errors
/// If the system refuses an option.
pub(crate) fn tune(socket: &TcpStream) -> io::Result<()> {
    tune_tcp_buffers(socket)?;
    keep_alive(socket, SILENCE)
}

impl StreamDial {
    /// Begins to connect all streams at once.
    ///
    /// # Errors
    /// If the system gives no sockets, or knows no way to the receiver.
    pub(crate) fn begin(handle: ListenHandle) -> Result<Self, PluginFailure> {
        let connection =
            secret_number().map_err(|error| PluginFailure::system("drawing a random number", &error))?;
        let streams = (0..handle.streams).map(|_| dial(handle.address)).collect::<Result<_, _>>()?;
        Ok(Self { handle, connection, streams })
    }

    /// Whether the handle is the one with which this began, whatever its own place for the sender says.
    pub(crate) fn is_for(&self, handle: &ListenHandle) -> bool {
        self.handle.token == handle.token && self.handle.address == handle.address
    }

    /// Goes on as far as that needs no waiting. Whether all streams are ready.
    ///
    /// # Errors
    /// If a stream cannot be connected.
    pub(crate) fn advance(&mut self) -> Result<bool, PluginFailure> {
        let mut is_ready = true;
        for index in 0..self.streams.len() {
            let peer = self.handle.address;
            let done =
                self.greet(index).map_err(|error| PluginFailure::remote("connecting to", peer, error))?;
            is_ready &= done;
        }
        Ok(is_ready)
    }

    /// The sending end, once all streams are ready.
    pub(crate) fn finish(self) -> SendSide {
        SendSide::new(self.streams.into_iter().map(|stream| stream.socket).collect(), self.handle.address)
    }

    /// Whether a stream is connected and its hello written.
    fn greet(&mut self, index: usize) -> io::Result<bool> {
        let hello = StreamHello {
            token: self.handle.token,
            connection: self.connection,
            streams: self.handle.streams as u8,
            index: index as u8,
        };
        let (hello, stream) = (hello.to_bytes(), &mut self.streams[index]);
        if !stream.is_connected && !is_connected(&stream.socket)? {
            return Ok(false);
        }
        if !stream.is_connected {
            tune(&stream.socket)?;
            stream.is_connected = true;
        }
        while stream.written < hello.len() {
            match send_vectored(&stream.socket, &[IoVec::Bytes(&hello[stream.written..])], false) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                sent => stream.written += sent?,
            }
        }
        Ok(true)
    }
}

fn dial(there: SocketAddr) -> Result<DialledStream, PluginFailure> {
    let family = if there.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)
        .map_err(|error| PluginFailure::system(format_args!("a socket to {there}"), &error.into()))?;
    match rustix::net::connect(&socket, &there) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => {
            Ok(DialledStream { socket: socket.into(), is_connected: false, written: 0 })
        }
        Err(error) => Err(PluginFailure::remote("connecting to", there, io::Error::from(error))),
    }
}

/// Whether a connection is made.
///
/// # Errors
/// If it was refused.
fn is_connected(socket: &TcpStream) -> io::Result<bool> {
    let mut question = [PollFd::new(socket, PollFlags::OUT)];
    match poll(&mut question, Some(&AT_ONCE)) {
        Ok(0) | Err(Errno::INTR) => return Ok(false),
        answered => answered?,
    };
    socket_error(socket)??;
    // Where nobody listens, TCP may connect a socket with itself.
    if socket.local_addr()? == socket.peer_addr()? {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    Ok(true)
}
