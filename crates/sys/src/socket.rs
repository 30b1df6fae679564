//! Sockets, as far as the standard library does not have them: into and out of raw memory, descriptors as cargo, unix
//! sockets without a path. Nothing here blocks.

use crate::span::Span;
use rustix::cmsg_space;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType,
};
use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::{self, MaybeUninit};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::linux::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

/// How many parts [`send_vectored`] takes at once.
pub const MOST_PARTS: usize = 32;

/// How many descriptors travel in one message.
pub const MOST_DESCRIPTORS: usize = 16;

/// Socket buffers large enough for a fast local network: half again the throughput of the usual ones on loopback.
const BUFFER_BYTES: usize = 4 << 20;

/// How many bytes a socket takes that cannot be sent yet: what an urgent message may have to wait for.
const UNSENT_BYTES: libc::c_int = 256 << 10;

/// The congestion control that every kernel has, and lets everybody choose unless its administrator has narrowed that.
const UNPACED: &str = "reno";

/// A piece of a message.
#[derive(Clone, Copy, Debug)]
pub enum IoVec<'a> {
    /// Private memory, such as a header.
    Bytes(&'a [u8]),
    /// Memory that others can write, such as a payload.
    Span(Span<'a>),
}

/// Reads the bytes that have arrived on `socket`, at most as many as `into` holds; 0 at the end of the stream.
///
/// # Errors
/// `WouldBlock` if nothing has arrived; whatever else the socket reports.
///
/// # Panics
/// If `into` is empty or not writable.
pub fn recv(socket: impl AsFd, into: Span<'_>) -> io::Result<usize> {
    assert!(!into.is_empty(), "zero bytes received must mean the end of the stream");
    let socket = socket.as_fd().as_raw_fd();
    uninterrupted(|| {
        // SAFETY: the span is valid for writing this many bytes; the kernel does not care who else writes there.
        unsafe { libc::recv(socket, into.as_mut_ptr().cast(), into.len(), libc::MSG_DONTWAIT) }
    })
}

/// As [`recv`], into one span after the other.
///
/// # Errors
/// As [`recv`].
///
/// # Panics
/// As [`recv`].
pub fn recv_two(socket: impl AsFd, first: Span<'_>, second: Span<'_>) -> io::Result<usize> {
    assert!(!first.is_empty(), "zero bytes received must mean the end of the stream");
    let mut pieces =
        [first, second].map(|span| libc::iovec { iov_base: span.as_mut_ptr().cast(), iov_len: span.len() });
    // SAFETY: a plain struct of C, for which zero means: no address, no pieces, no control data.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (pieces.as_mut_ptr(), pieces.len() as _);
    let socket = socket.as_fd().as_raw_fd();
    uninterrupted(|| {
        // SAFETY: `message` names two pieces, each a span that is valid for writing as many bytes.
        unsafe { libc::recvmsg(socket, &mut message, libc::MSG_DONTWAIT) }
    })
}

/// Sends the first [`MOST_PARTS`] of `parts`, in order, with one system call. Returns how many of their bytes were
/// sent, which can be fewer than they have. Never raises `SIGPIPE`. If there is `more` to send at once, a last packet
/// that is not full can wait for it.
///
/// # Errors
/// `WouldBlock` if the socket takes nothing now; whatever else it reports.
pub fn send_vectored(socket: impl AsFd, parts: &[IoVec<'_>], more: bool) -> io::Result<usize> {
    let mut pieces = [const { libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 } }; MOST_PARTS];
    let count = parts.len().min(MOST_PARTS);
    for (piece, part) in pieces.iter_mut().zip(parts) {
        let (start, len) = part.raw();
        *piece = libc::iovec { iov_base: start.cast_mut().cast(), iov_len: len };
    }
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | if more { libc::MSG_MORE } else { 0 };
    // SAFETY: a plain struct of C, for which zero means: no address, no pieces, no control data.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = pieces.as_mut_ptr();
    message.msg_iovlen = count as _;
    let socket = socket.as_fd().as_raw_fd();
    uninterrupted(|| {
        // SAFETY: `message` names `count` pieces, each valid for reading while `parts` is borrowed.
        unsafe { libc::sendmsg(socket, &message, flags) }
    })
}

impl IoVec<'_> {
    fn raw(&self) -> (*const u8, usize) {
        match self {
            IoVec::Bytes(bytes) => (bytes.as_ptr(), bytes.len()),
            IoVec::Span(span) => (span.as_ptr(), span.len()),
        }
    }
}

/// Sends `bytes` on a unix socket, and with the first of them copies of `descriptors`; returns how many bytes were
/// sent.
///
/// # Errors
/// `WouldBlock` if the socket takes nothing now; `InvalidInput` for no bytes or more than [`MOST_DESCRIPTORS`].
pub fn pass_fds(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
    if bytes.is_empty() || descriptors.len() > MOST_DESCRIPTORS {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fits = descriptors.is_empty() || control.push(SendAncillaryMessage::ScmRights(descriptors));
    assert!(fits, "there is space for MOST_DESCRIPTORS");
    let (pieces, flags) = ([IoSlice::new(bytes)], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    Ok(retry_on_intr(|| rustix::net::sendmsg(&socket, &pieces, &mut control, flags))?)
}

/// Reads the bytes that have arrived on a unix socket, and the descriptors that came with them: 0 bytes at the end of
/// the stream. At most `most` descriptors are kept, close-on-exec; further ones are closed.
///
/// # Errors
/// `WouldBlock` if nothing has arrived; `InvalidInput` if `into` is empty or `most` exceeds [`MOST_DESCRIPTORS`].
/// `EMFILE` if this process is not allowed to open as many files as came: the message is lost then.
pub fn receive_fds(socket: impl AsFd, into: &mut [u8], most: usize) -> io::Result<(usize, Vec<OwnedFd>)> {
    if into.is_empty() || most > MOST_DESCRIPTORS {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received =
        retry_on_intr(|| rustix::net::recvmsg(&socket, &mut [IoSliceMut::new(into)], &mut control, flags))?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            descriptors.extend(passed);
        }
    }
    if received.flags.contains(ReturnFlags::CTRUNC) && descriptors.len() < most {
        return Err(Errno::MFILE.into());
    }
    descriptors.truncate(most);
    Ok((received.bytes, descriptors))
}

/// Listens under `name` in the abstract space of unix sockets. It makes no file, is gone with the socket, and is
/// visible exactly in this network namespace. So hosts that share a file system do not meet there.
///
/// # Errors
/// `AddrInUse`; `ENAMETOOLONG` beyond 107 bytes.
pub fn listen_abstract(name: &[u8]) -> io::Result<UnixListener> {
    let socket = unix_stream()?;
    rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
    rustix::net::listen(&socket, 1024)?;
    Ok(socket.into())
}

/// Connects to the process that listens under `name`; see [`listen_abstract`].
///
/// # Errors
/// `ConnectionRefused` if no process listens; `WouldBlock` if its queue is full.
pub fn connect_abstract(name: &[u8]) -> io::Result<UnixStream> {
    let socket = unix_stream()?;
    rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
    Ok(socket.into())
}

/// Accepts a connection: nonblocking, close-on-exec.
///
/// # Errors
/// `WouldBlock` if there is none.
pub fn accept(listener: &UnixListener) -> io::Result<UnixStream> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Ok(retry_on_intr(|| rustix::net::accept_with(listener, flags))?.into())
}

fn unix_stream() -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// Sets up a TCP socket for collectives whose receiver always reads, as [`tune_tcp_buffers`] does. In addition it fails
/// if sent data stays unacknowledged for `silence`, instead of the quarter of an hour that TCP would wait.
///
/// # Errors
/// If it is no TCP socket.
pub fn tune_tcp(socket: impl AsFd, silence: Duration) -> io::Result<()> {
    sockopt::set_tcp_user_timeout(&socket, silence.as_millis().max(1).try_into().unwrap_or(u32::MAX))?;
    tune_tcp_buffers(socket)
}

/// Has the kernel end a connection on which nothing is under way once the other host has been silent for `silence`: it asks that
/// host three times within it. The kernel there answers, whatever its processes do.
///
/// # Errors
/// If it is no TCP socket.
pub fn keep_alive(socket: impl AsFd, silence: Duration) -> io::Result<()> {
    // The first question comes after half of it, and the connection ends when the third has had no answer.
    let between = (silence / 6).max(Duration::from_secs(1));
    sockopt::set_socket_keepalive(&socket, true)?;
    sockopt::set_tcp_keepidle(&socket, between * 3)?;
    sockopt::set_tcp_keepintvl(&socket, between)?;
    Ok(sockopt::set_tcp_keepcnt(&socket, 3)?)
}

/// Sets up a TCP socket for collectives: no delay, large buffers if the system permits them, but few unsendable bytes
/// in them. A connection within the host does not pace its data: it meets no congestion, and BBR, if that is the
/// system's choice, takes half as long again.
///
/// A receiver that does not read for long is no error: its full buffer stops the sender until it reads.
///
/// A buffer is left to the kernel's own tuning if its limit (`net.core.rmem_max`, `wmem_max`) would give less than that
/// tuning does.
///
/// # Errors
/// If it is no TCP socket.
pub fn tune_tcp_buffers(socket: impl AsFd) -> io::Result<()> {
    sockopt::set_tcp_nodelay(&socket, true)?;
    set_option(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, UNSENT_BYTES)?;
    let enough = |limit: &str| {
        let limit = fs::read_to_string(limit).ok().and_then(|text| text.trim().parse::<usize>().ok());
        limit.is_some_and(|limit| limit >= BUFFER_BYTES)
    };
    if sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER_BYTES).is_err()
        && enough("/proc/sys/net/core/rmem_max")
    {
        sockopt::set_socket_recv_buffer_size(&socket, BUFFER_BYTES)?;
    }
    if sockopt::set_socket_send_buffer_size_force(&socket, BUFFER_BYTES).is_err()
        && enough("/proc/sys/net/core/wmem_max")
    {
        sockopt::set_socket_send_buffer_size(&socket, BUFFER_BYTES)?;
    }
    if is_within_host(&socket).unwrap_or(false) {
        // A kernel without it keeps what it has.
        let _unpaced = sockopt::set_tcp_congestion(&socket, UNPACED);
    }
    Ok(())
}

/// The least round trip that the kernel has seen on a TCP connection, from its handshake on: to the other kernel and
/// back, without the processes. `None` if it has seen none, or does not report it (before Linux 4.6).
pub fn least_round_trip(socket: impl AsFd) -> Option<Duration> {
    let mut info = [0u8; MIN_RTT + size_of::<u32>()];
    let mut length = info.len() as libc::socklen_t;
    let place = info.as_mut_ptr().cast();
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: `place` is valid for `length` bytes, of which the kernel writes as many as it knows.
    let code = unsafe { libc::getsockopt(socket, libc::IPPROTO_TCP, libc::TCP_INFO, place, &mut length) };
    let microseconds = u32::from_ne_bytes(*info.last_chunk()?);
    let is_known = code == 0 && length as usize == info.len() && microseconds != u32::MAX;
    is_known.then(|| Duration::from_micros(microseconds.into()))
}

/// Where the least round trip is in the kernel's `tcp_info`, in microseconds: the last word of it that is read here.
const MIN_RTT: usize = 148;

/// Whether both ends of a connection have the same address, or one of loopback.
///
/// # Errors
/// If the other end is gone.
pub fn is_within_host(socket: impl AsFd) -> io::Result<bool> {
    let ip = |end: SocketAddrAny| SocketAddr::try_from(end).ok().map(|end| end.ip());
    let here = ip(rustix::net::getsockname(&socket)?);
    let there = rustix::net::getpeername(&socket)?.and_then(ip);
    Ok(there.is_some_and(|there| there.is_loopback() || Some(there) == here))
}

/// Has a poller find `socket` readable only when `bytes` have arrived, or its stream has ended.
///
/// # Errors
/// If it is no stream socket.
pub fn set_wanted(socket: impl AsFd, bytes: usize) -> io::Result<()> {
    let bytes = bytes.try_into().unwrap_or(libc::c_int::MAX);
    set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, bytes)
}

/// The traffic that a TCP connection has sent since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpSent {
    /// Bytes that the other end has acknowledged.
    pub acknowledged: u64,
    /// For how long bytes were on their way or waited in the socket, while the other end had room for them. The kernel counts it in
    /// ticks of 1 to 10 ms, right on average.
    pub busy: Duration,
}

/// Asks the kernel for a TCP connection's traffic (`TCP_INFO`). It costs one system call.
///
/// # Errors
/// If it is no TCP socket, and `Unsupported` from a kernel without these counters (before Linux 4.10).
pub fn tcp_sent(socket: impl AsFd) -> io::Result<TcpSent> {
    // struct tcp_info of <linux/tcp.h>, in words of 8 bytes: tcpi_bytes_acked, tcpi_busy_time and tcpi_rwnd_limited.
    const WORDS: usize = 23;
    const ACKED: usize = 15;
    const BUSY: usize = 21;
    const NO_ROOM: usize = 22;
    let mut words = [0u64; WORDS];
    let mut len = size_of_val(&words) as libc::socklen_t;
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: `words` is valid for writing `len` bytes, and any bytes are numbers.
    let code = unsafe {
        libc::getsockopt(socket, libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut words).cast(), &raw mut len)
    };
    if code != 0 {
        return Err(io::Error::last_os_error());
    }
    if (len as usize) < size_of_val(&words) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let busy = words[BUSY].saturating_sub(words[NO_ROOM]);
    Ok(TcpSent { acknowledged: words[ACKED], busy: Duration::from_micros(busy) })
}

fn set_option(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let (place, len) = ((&raw const value).cast(), size_of_val(&value) as libc::socklen_t);
    // SAFETY: `place` is valid for reading `len` bytes.
    let code = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, place, len) };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A number that processes of one host, in one network namespace, share: the kernel's boot and the namespace, hashed.
///
/// It is a *claim*, good for choosing which processes to try: two processes are known to share memory only once both
/// have mapped the same segment. If `/proc` does not have it, it is random, and matches no other.
pub fn host_identity() -> u64 {
    let read = || -> io::Result<u64> {
        let boot = fs::read("/proc/sys/kernel/random/boot_id")?;
        let namespace = fs::metadata("/proc/self/ns/net")?.st_ino();
        Ok(fnv1a(boot.iter().copied().chain(namespace.to_le_bytes())))
    };
    read().unwrap_or_else(|_| RandomState::new().build_hasher().finish())
}

/// The 64-bit FNV-1a hash (Fowler, Noll, Vo), which is the same in every version of this library.
fn fnv1a(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// The result of a system call, repeated while signals interrupt it.
fn uninterrupted(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        if let Ok(count) = usize::try_from(call()) {
            return Ok(count);
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(Errno::INTR.raw_os_error()) {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::Segment;
    use std::io::{ErrorKind, Read, Write};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_connection_has_a_round_trip_and_other_sockets_have_none() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        for end in [&stream, &accepted] {
            let time = least_round_trip(end).unwrap();
            assert!(time < Duration::from_secs(1), "{time:?} within this machine");
        }
        assert_eq!(least_round_trip(pair().0), None);
    }

    fn pair() -> (UnixStream, UnixStream) {
        let (one, two) = UnixStream::pair().unwrap();
        one.set_nonblocking(true).unwrap();
        two.set_nonblocking(true).unwrap();
        (one, two)
    }

    #[test]
    fn parts_arrive_in_order() {
        let (one, two) = pair();
        let segment = Segment::create("herringbone-test", 4_096).unwrap();
        segment.span(0..8).write(b"payload!");
        let parts = [IoVec::Bytes(b"header "), IoVec::Bytes(b""), IoVec::Span(segment.span(0..8))];
        assert_eq!(send_vectored(&one, &parts, false).unwrap(), 15);
        let into = segment.span(100..200);
        assert_eq!(recv(&two, into).unwrap(), 15);
        assert_eq!(into.slice(0..15).to_vec(), b"header payload!");
        assert_eq!(recv(&two, into).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert_eq!(send_vectored(&one, &[IoVec::Bytes(b"x"); MOST_PARTS + 1], false).unwrap(), MOST_PARTS);
    }

    #[test]
    fn a_full_socket_takes_a_part_and_then_nothing() {
        let (one, mut two) = pair();
        let large = vec![7; 1 << 20];
        let mut sent = 0;
        let error = loop {
            match send_vectored(&one, &[IoVec::Bytes(&large[sent..])], false) {
                Ok(count) => sent += count,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        assert!(0 < sent && sent < large.len());
        drop(one);
        let mut received = Vec::new();
        two.read_to_end(&mut received).unwrap();
        assert_eq!(received, &large[..sent]);
    }

    #[test]
    fn the_end_of_a_stream_is_zero_bytes_one_way_and_an_error_the_other() {
        let (one, two) = pair();
        drop(two);
        assert_eq!(recv(&one, Span::of(&mut [0])).unwrap(), 0);
        assert_eq!(
            send_vectored(&one, &[IoVec::Bytes(b"x")], false).unwrap_err().kind(),
            ErrorKind::BrokenPipe
        );
    }

    #[test]
    fn a_passed_segment_is_the_same_memory() {
        let (one, two) = pair();
        let segment = Segment::create("herringbone-test", 4_096).unwrap();
        assert_eq!(pass_fds(&one, b"segment", &[segment.fd()]).unwrap(), 7);
        let mut text = [0; 16];
        let (len, mut descriptors) = receive_fds(&two, &mut text, 1).unwrap();
        assert_eq!(&text[..len], b"segment");
        let same = Segment::attach(descriptors.pop().unwrap()).unwrap();
        segment.span(0..4).write(b"seen");
        assert_eq!(same.span(0..4).to_vec(), b"seen");
        assert_eq!(receive_fds(&two, &mut text, 1).unwrap_err().kind(), ErrorKind::WouldBlock);
    }

    #[test]
    fn descriptors_beyond_the_limit_are_closed() {
        let (one, two) = pair();
        let (mut reader, writer) = io::pipe().unwrap();
        pass_fds(&one, b"x", &[writer.as_fd(); MOST_DESCRIPTORS]).unwrap();
        let (_, kept) = receive_fds(&two, &mut [0; 4], 2).unwrap();
        assert_eq!(kept.len(), 2);
        let flags = rustix::io::fcntl_getfd(&kept[0]).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        drop((writer, kept));
        assert_eq!(reader.read(&mut [0]).unwrap(), 0, "somebody still holds a writing end");
    }

    #[test]
    fn nothing_and_too_much_are_refused() {
        let (one, two) = pair();
        let many = [one.as_fd(); MOST_DESCRIPTORS + 1];
        let refused = [
            pass_fds(&one, b"", &[]).unwrap_err(),
            pass_fds(&one, b"x", &many).unwrap_err(),
            receive_fds(&two, &mut [], 1).unwrap_err(),
            receive_fds(&two, &mut [0], MOST_DESCRIPTORS + 1).unwrap_err(),
        ];
        assert!(refused.iter().all(|error| error.kind() == ErrorKind::InvalidInput));
    }

    #[test]
    fn abstract_names_connect_and_are_taken_once() {
        let name = format!("herringbone-test-{}", std::process::id());
        let refused = connect_abstract(name.as_bytes()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        let listener = listen_abstract(name.as_bytes()).unwrap();
        assert_eq!(listen_abstract(name.as_bytes()).unwrap_err().kind(), ErrorKind::AddrInUse);
        assert_eq!(accept(&listener).unwrap_err().kind(), ErrorKind::WouldBlock);
        let mut dialled = connect_abstract(name.as_bytes()).unwrap();
        let accepted = accept(&listener).unwrap();
        dialled.write_all(b"hi").unwrap();
        let mut text = [0; 2];
        assert_eq!(recv(&accepted, Span::of(&mut text)).unwrap(), 2);
    }

    #[test]
    fn a_tcp_socket_is_tuned_and_nothing_else_is() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        tune_tcp(&stream, Duration::from_secs(6)).unwrap();
        assert!(stream.nodelay().unwrap());
        assert_eq!(sockopt::tcp_user_timeout(&stream).unwrap(), 6_000);
        let allowed = fs::read_to_string("/proc/sys/net/ipv4/tcp_allowed_congestion_control").unwrap();
        let unpaced = sockopt::tcp_congestion(&stream).unwrap() == UNPACED;
        assert_eq!(unpaced, allowed.split_whitespace().any(|name| name == UNPACED));
        assert!(tune_tcp(pair().0, Duration::from_secs(6)).is_err());
    }

    #[test]
    fn a_connection_without_a_limit_of_silence_asks_only_while_it_is_idle() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        tune_tcp_buffers(&stream).unwrap();
        keep_alive(&stream, Duration::from_secs(60)).unwrap();
        assert!(stream.nodelay().unwrap() && sockopt::socket_keepalive(&stream).unwrap());
        assert_eq!(sockopt::tcp_user_timeout(&stream).unwrap(), 0);
        assert_eq!(sockopt::tcp_keepidle(&stream).unwrap(), Duration::from_secs(30));
        assert_eq!(sockopt::tcp_keepintvl(&stream).unwrap(), Duration::from_secs(10));
        assert_eq!(sockopt::tcp_keepcnt(&stream).unwrap(), 3);
        assert!(tune_tcp_buffers(pair().0).is_err());
    }

    /// Whoever reads or writes next learns what has become of it.
    #[test]
    fn a_connection_that_was_reset_is_tuned_all_the_same() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        stream.write_all(b"unread").unwrap();
        while accepted.peek(&mut [0; 6]).unwrap() < 6 {}
        drop(accepted);
        while stream.peer_addr().is_ok() {
            std::thread::yield_now();
        }
        tune_tcp(&stream, Duration::from_secs(6)).unwrap();
    }

    #[test]
    fn a_host_has_one_identity() {
        assert_eq!(host_identity(), host_identity());
        assert_eq!(fnv1a(b"foobar".iter().copied()), 0x8594_4171_f739_67e8, "the published test vector");
    }
}
