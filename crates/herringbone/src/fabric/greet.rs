//! The caller's side of the handshake, and the messages after it: blocking, with a deadline, on threads of their own.

use super::owner;
use crate::{
    Error, ErrorKind,
    core::session::{
        Refusal,
        control::{ControlChannel, Message},
        handshake::{
            Claim, Client, DEADLINE_MILLISECONDS, Established, Expected, HandshakeError, Hello, Identity,
            NONCE_BYTES, READY,
        },
    },
    sys::peer,
    tcp_table::{TcpOwner, tcp_owner},
};
use std::{
    io::{self, Read, Write},
    net::TcpStream,
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

/// How long a handshake may take.
pub(crate) const DEADLINE: Duration = Duration::from_millis(DEADLINE_MILLISECONDS);

/// A connection on which handshakes and control messages are exchanged.
pub(crate) trait Stream: Read + Write {
    /// Bounds the next read or write.
    fn limit(&self, limit: Duration) -> io::Result<()>;
    /// Whose process is at the other end, as the kernel says.
    fn owner(&self) -> io::Result<TcpOwner>;
}

impl Stream for TcpStream {
    fn limit(&self, limit: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(limit))?;
        self.set_write_timeout(Some(limit))
    }

    fn owner(&self) -> io::Result<TcpOwner> {
        tcp_owner(self)
    }
}

impl Stream for UnixStream {
    fn limit(&self, limit: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(limit))?;
        self.set_write_timeout(Some(limit))
    }

    fn owner(&self) -> io::Result<TcpOwner> {
        Ok(TcpOwner::User(peer::peer_owner(self)?.user))
    }
}

/// Why a connection did not come about.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GreetError {
    #[error("{0}")]
    Handshake(#[from] HandshakeError),
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("it sent nothing for {} s", DEADLINE.as_secs())]
    Late,
    #[error("it closed the connection")]
    Closed,
    #[error("it broke the protocol: {0}")]
    Protocol(&'static str),
    /// This process cannot have the other one's memory.
    #[error("{0}")]
    Unshared(String),
    #[error("it cannot map this process's memory; its own log has the reason")]
    UnsharedThere,
    /// It was not called, as others than this job's could answer.
    #[error("{0}")]
    Unprotected(ErrorKind),
}

impl GreetError {
    /// Whether trying again may help: the other side was not there, or too busy to answer.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            GreetError::Io(_) | GreetError::Late | GreetError::Closed => true,
            GreetError::Handshake(HandshakeError::Refused(refusal)) => {
                matches!(refusal, Refusal::NoRoom { .. })
            }
            GreetError::Handshake(_)
            | GreetError::Protocol(_)
            | GreetError::Unshared(_)
            | GreetError::UnsharedThere
            | GreetError::Unprotected(_) => false,
        }
    }

    /// Whether the other end has gone.
    pub(crate) fn is_end(&self) -> bool {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        match self {
            GreetError::Closed => true,
            GreetError::Io(error) => matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof),
            _ => false,
        }
    }

    /// As an error of a user's call.
    pub(crate) fn at(&self, whom: &str) -> Error {
        match self {
            GreetError::Handshake(
                error @ (HandshakeError::Refused(Refusal::Token | Refusal::User { .. })
                | HandshakeError::Refusing(Refusal::User { .. })
                | HandshakeError::Unproven),
            ) => Error::new(ErrorKind::Auth {
                problem: format!("{whom}: {error}"),
                hint: "a file for all of them is HERRINGBONE_TOKEN_FILE",
            }),
            GreetError::Handshake(HandshakeError::Refused(Refusal::Unusable { setting, problem })) => {
                Error::config(setting, format_args!("{problem} (says {whom})"))
            }
            GreetError::Handshake(HandshakeError::Refused(Refusal::UnusableAt {
                rank,
                setting,
                problem,
            })) => unusable_at(*rank, setting, problem),
            error => Error::rendezvous(format_args!("{whom}: {error}")),
        }
    }
}

/// The error on all ranks if one other than rank 0 cannot use a setting.
pub(super) fn unusable_at(rank: u32, setting: &str, problem: &str) -> Error {
    Error::config(setting, format_args!("{problem} (reported by rank {rank})"))
}

pub(super) fn nonce() -> io::Result<[u8; NONCE_BYTES]> {
    let mut nonce = [0; NONCE_BYTES];
    random(&mut nonce)?;
    Ok(nonce)
}

/// Fills `bytes` from the system's random numbers.
pub(crate) fn random(bytes: &mut [u8]) -> io::Result<()> {
    let mut at = 0;
    while at < bytes.len() {
        at += rustix::rand::getrandom(&mut bytes[at..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(())
}

/// A random number that is not 0.
pub(crate) fn random_number() -> io::Result<u64> {
    let mut bytes = [0; 8];
    random(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes) | 1)
}

/// Reads the bytes that are there, within the deadline. A process that was stopped and is continued gets more time.
fn read(stream: &mut impl Stream, deadline: Instant, into: &mut [u8]) -> Result<usize, GreetError> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(GreetError::Late);
        }
        stream.limit(left)?;
        return match stream.read(into) {
            Ok(0) => Err(GreetError::Closed),
            Ok(bytes) => Ok(bytes),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                Err(GreetError::Late)
            }
            Err(error) => Err(error.into()),
        };
    }
}

/// The client's side. Nothing beyond the handshake is read: what follows it stays in the socket.
pub(crate) fn greet(
    stream: &mut impl Stream,
    hello: Hello,
    expected: Expected,
    token: &[u8],
) -> Result<Established, GreetError> {
    // A life is a secret of members, too.
    let is_unproven = token.is_empty() && expected.incarnation.is_none();
    let client = Client::new(hello, expected, token, nonce()?);
    let deadline = Instant::now() + DEADLINE;
    let established = converse(stream, client, deadline)?;
    if is_unproven {
        owner::check(stream.owner()).map_err(HandshakeError::Refusing)?;
    }
    if established.purpose.stays() {
        // This process stood still, and the server may have given up.
        if Instant::now() >= deadline {
            return Err(GreetError::Late);
        }
        stream.write_all(&READY)?;
    }
    Ok(established)
}

/// As [`greet`], whoever is at the other end, until `deadline`.
pub(crate) fn greet_anyone(
    stream: &mut impl Stream,
    hello: Hello,
    token: &[u8],
    deadline: Instant,
) -> Result<Established, GreetError> {
    converse(stream, Client::of_anyone(hello, token, nonce()?), deadline)
}

fn converse(
    stream: &mut impl Stream,
    mut client: Client,
    deadline: Instant,
) -> Result<Established, GreetError> {
    loop {
        if let Some(bytes) = client.transmit() {
            stream.write_all(&bytes)?;
        }
        let mut bytes = vec![0; client.wants()];
        let got = read(stream, deadline, &mut bytes)?;
        if let Some(established) = client.receive(&bytes[..got])?.done {
            return Ok(established);
        }
    }
}

/// Lets a client in. If the connection [stays](crate::core::session::handshake::Purpose::stays), this returns once the client has
/// said that it keeps it. A client that has waited for the whole [`DEADLINE`], because this process stood still, hangs up and calls
/// again.
pub(crate) fn welcome(
    stream: &mut impl Stream,
    claim: Claim,
    own: Identity,
) -> Result<Established, GreetError> {
    let (bytes, established) = claim.accept(own);
    stream.write_all(&bytes)?;
    if established.purpose.stays() {
        wait_until_kept(stream)?;
    }
    Ok(established)
}

/// A client keeps no connection after [`DEADLINE`], so its decision is here by then.
const DECIDED: Duration = Duration::from_millis(2 * DEADLINE_MILLISECONDS);

fn wait_until_kept(stream: &mut impl Stream) -> Result<(), GreetError> {
    let (deadline, mut bytes, mut held) = (Instant::now() + DECIDED, [0; READY.len()], 0);
    while held < bytes.len() {
        held += read(stream, deadline, &mut bytes[held..])?;
    }
    if bytes == READY { Ok(()) } else { Err(GreetError::Protocol("it did not end the handshake")) }
}

/// Turns a client away, with a reason.
pub(crate) fn refuse(stream: &mut impl Stream, claim: Claim, refusal: &Refusal) {
    // It is turned away whether or not it hears why.
    let _unheard = stream.write_all(&claim.refuse(refusal));
}

/// The channel of control messages on a connection after its handshake.
pub(crate) fn channel(established: Established) -> ControlChannel {
    ControlChannel::new(crc32c::crc32c, established.keys)
}

/// Sends a control message.
pub(crate) fn send(
    stream: &mut impl Stream,
    channel: &mut ControlChannel,
    message: &Message,
) -> Result<(), GreetError> {
    let bytes = channel.encode(message).map_err(|_| GreetError::Protocol("a message that is too long"))?;
    stream.write_all(&bytes)?;
    Ok(())
}

/// Waits for a control message; bytes that follow it stay in `channel`.
pub(crate) fn receive(
    stream: &mut impl Stream,
    channel: &mut ControlChannel,
    deadline: Instant,
) -> Result<Message, GreetError> {
    loop {
        match channel.next_message() {
            Ok(Some(message)) => return Ok(message),
            Ok(None) => {}
            Err(_) => return Err(GreetError::Protocol("a malformed control message")),
        }
        let mut bytes = [0; 4096];
        let got = read(stream, deadline, &mut bytes)?;
        channel.push(&bytes[..got]);
    }
}
