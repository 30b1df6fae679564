//! Two processes of a host that continue through shared memory once they have proved themselves over TCP.
//!
//! The called process names a unix socket that exists for this connection only; the caller passes its memory there.
//! Each reports over TCP whether it has what it needs, so both ends continue through memory, or both over TCP.

use super::{
    acceptor,
    greet::{self, GreetError},
    owner,
};
use crate::{
    core::session::handshake::Keys,
    sys::{doorbell::Bell, fork::Guarded, peer, segment::Segment, socket},
    transport::tcp::{MemorySide, SEGMENT_BYTES, SharedParts, TcpLink},
};
use rustix::process::geteuid;
use std::{
    io::{self, Read, Write},
    net::TcpStream,
    os::unix::net::{UnixListener, UnixStream},
    sync::Arc,
    time::Duration,
};

/// Bytes of a socket's name, of which all but the first say whose it is.
const NAME_BYTES: usize = 24;
const PREFIX: &[u8; 8] = b"hb-link-";
const YES: u8 = b'+';
const NO: u8 = b'-';

/// The caller's end of a link, to a process that [welcomes](welcome_link) it so. `shares` says whether this process wants to.
pub(crate) fn call_link(
    mut stream: TcpStream,
    keys: Keys,
    patience: Duration,
    shares: bool,
) -> Result<TcpLink, GreetError> {
    let mut offer = [0; 1 + NAME_BYTES];
    stream.read_exact(&mut offer)?;
    let [has_name, name @ ..] = offer;
    let wanted = shares && has_name == YES;
    let made = wanted.then(|| pass(&name)).and_then(|made| made.inspect_err(explain).ok());
    stream.write_all(&[if made.is_some() { YES } else { NO }])?;
    let mut answer = [NO];
    stream.read_exact(&mut answer)?;
    link(stream, keys, patience, made.filter(|_| answer == [YES]), MemorySide::Maker)
}

/// The end of a link at the process that was called. `shares` as for [`call_link`].
pub(crate) fn welcome_link(
    mut stream: TcpStream,
    keys: Keys,
    patience: Duration,
    shares: bool,
) -> Result<TcpLink, GreetError> {
    let is_wanted = shares && socket::is_within_host(&stream).unwrap_or(false);
    let opened = if is_wanted { open().ok() } else { None };
    let (listener, name) = opened.unzip();
    let mut offer = [NO; 1 + NAME_BYTES];
    if let Some(name) = name {
        offer[0] = YES;
        offer[1..].copy_from_slice(&name);
    }
    stream.write_all(&offer)?;
    let mut passed = [NO];
    stream.read_exact(&mut passed)?;
    let got = listener.filter(|_| passed == [YES]).and_then(|listener| {
        let taken = take(&listener);
        taken.inspect_err(explain).ok()
    });
    stream.write_all(&[if got.is_some() { YES } else { NO }])?;
    link(stream, keys, patience, got, MemorySide::Other)
}

/// A socket whose name nobody knows yet.
fn open() -> io::Result<(UnixListener, [u8; NAME_BYTES])> {
    let mut name = [0; NAME_BYTES];
    name[..PREFIX.len()].copy_from_slice(PREFIX);
    greet::random(&mut name[PREFIX.len()..])?;
    Ok((socket::listen_abstract(&name)?, name))
}

/// Makes memory, and passes it to who listens under a name.
fn pass(name: &[u8; NAME_BYTES]) -> Result<SharedParts, GreetError> {
    if !name.starts_with(PREFIX) {
        return Err(GreetError::Protocol("the name of a socket that is for something else"));
    }
    let segment = Segment::create("herringbone-link", SEGMENT_BYTES);
    let segment = segment.map_err(|error| GreetError::Unshared(error.to_string()))?;
    let (own_bell, their_bell) = (Bell::new()?, Bell::new()?);
    let there = socket::connect_abstract(name)?;
    check_owner(&there)?;
    socket::pass_fds(&there, &[YES], &[segment.fd(), own_bell.fd(), their_bell.fd()])?;
    Ok(SharedParts { segment: Arc::new(segment), own_bell, their_bell })
}

/// Takes memory that was passed already.
fn take(listener: &UnixListener) -> Result<SharedParts, GreetError> {
    let there = socket::accept(listener)?;
    check_owner(&there)?;
    let (_, descriptors) = socket::receive_fds(&there, &mut [0], 3)?;
    let Ok([segment, their_bell, own_bell]) = <[_; 3]>::try_from(descriptors) else {
        return Err(GreetError::Protocol("it did not pass its memory"));
    };
    let segment = Segment::attach(segment).map_err(|error| GreetError::Unshared(error.to_string()))?;
    let [their_bell, own_bell] = [Bell::from_fd(their_bell)?, Bell::from_fd(own_bell)?];
    Ok(SharedParts { segment: Arc::new(segment), own_bell, their_bell })
}

/// Sockets have names that all processes of the host can see, so who is there has to be this user, or root.
fn check_owner(there: &UnixStream) -> Result<(), GreetError> {
    let (theirs, own) = (peer::peer_owner(there)?.user, geteuid().as_raw());
    if owner::may_call(theirs, own) || owner::may_call(own, theirs) {
        return Ok(());
    }
    Err(GreetError::Unshared(format!(
        "it is user {theirs}'s and this process is user {own}'s: run both as one user"
    )))
}

fn explain(error: &GreetError) {
    let what =
        format_args!("memory is not shared with a process of this host, so messages go over TCP: {error}");
    crate::log::info("tables", what);
}

fn link(
    stream: TcpStream,
    keys: Keys,
    patience: Duration,
    parts: Option<SharedParts>,
    end: MemorySide,
) -> Result<TcpLink, GreetError> {
    let Some(parts) = parts else { return acceptor::into_link(stream, keys, patience) };
    stream.set_nonblocking(true)?;
    Ok(TcpLink::shared(Guarded::new(stream.into())?, parts, end, keys)?)
}

#[cfg(test)]
mod tests;
