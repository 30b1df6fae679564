//! How a job stands, as each of its processes says when it is asked: what `herringbone status` shows.
//!
//! A process answers for itself. So who wants to know of a job asks one member, takes the roster from its answer, and asks
//! the others as well; one that is stopped keeps no other from answering.

pub use crate::core::session::{
    Role,
    handshake::Identity,
    membership::{Member, MemberId, Roster},
    status::{
        Activity, GroupStatus, HotKey, InFlight, JobStatus, LinkStatus, RangeStatus, ServedJob, Status,
        TableServerStatus, TableStatus, TableWorker, Way,
    },
};

use crate::{
    config::check_exposure,
    core::session::{
        Refusal,
        control::Message,
        handshake::{HandshakeError, Hello, Purpose, Versions},
    },
    fabric::greet::{self, GreetError},
};
use std::{
    io,
    net::{TcpStream, ToSocketAddrs},
    time::{Duration, Instant},
};

/// What a process has said of itself.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Who it is. Of a reducer and of a job that forms, rank, world and job say nothing.
    pub identity: Identity,
    /// The members of its job, if it is a worker of one that has formed.
    pub roster: Option<Roster>,
    /// How it stands.
    pub status: Status,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// Somebody is there, or the way there is cut: a process that is stopped takes connections, too.
    #[error("no answer for {} s: stopped, or cut off?", .0.as_secs_f64())]
    Silent(Duration),
    /// Nobody listens there, or the address is none.
    #[error("nobody answers: {0}")]
    Absent(io::Error),
    /// It ended the connection before it answered: it ends just now, or is something else.
    #[error("it closed the connection: is it Herringbone's address, and of the same release?")]
    Closed,
    /// The token is not that job's, or none is set where one is needed.
    #[error("{0}")]
    Token(String),
    /// Something else is there, or another release.
    #[error("{0}")]
    Stranger(String),
}

/// Asks the process at an address, `host:port`, how it stands: within a time, but for the look-up of a name. Of `job`, if one is
/// named.
///
/// # Errors
/// Why there is no answer.
pub fn ask(
    address: &str,
    token: Option<&str>,
    job: Option<u64>,
    within: Duration,
) -> Result<Answer, AskError> {
    let deadline = Instant::now() + within;
    let identity = Identity {
        role: Role::Worker,
        job: job.unwrap_or_default(),
        rank: 0,
        world: 1,
        incarnation: greet::random_number().map_err(AskError::Absent)?,
    };
    let hello = Hello { identity, purpose: Purpose::Status, versions: Versions::CURRENT };
    let mut stream = dial(address, token, within)?;
    heard(&mut stream, hello, token.unwrap_or_default().as_bytes(), deadline)
        .map_err(|error| unanswered(error, within))
}

fn dial(address: &str, token: Option<&str>, within: Duration) -> Result<TcpStream, AskError> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "no such host");
    for there in address.to_socket_addrs().map_err(AskError::Absent)? {
        check_exposure(there, token).map_err(|error| AskError::Token(error.kind().to_string()))?;
        match TcpStream::connect_timeout(&there, within) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(match last.kind() {
        io::ErrorKind::TimedOut => AskError::Silent(within),
        _ => AskError::Absent(last),
    })
}

fn heard(
    stream: &mut TcpStream,
    hello: Hello,
    token: &[u8],
    deadline: Instant,
) -> Result<Answer, GreetError> {
    let established = greet::greet_anyone(stream, hello, token, deadline)?;
    let (identity, mut channel, mut known) = (established.other, greet::channel(established), None);
    loop {
        match greet::receive(stream, &mut channel, deadline)? {
            Message::Roster { roster, .. } => known = Some(roster),
            Message::Status(status) => return Ok(Answer { identity, roster: known, status }),
            _ => return Err(GreetError::Protocol("it sent another message than the protocol expects")),
        }
    }
}

fn unanswered(error: GreetError, within: Duration) -> AskError {
    match error {
        GreetError::Late => AskError::Silent(within),
        GreetError::Closed => AskError::Closed,
        GreetError::Io(error) => AskError::Absent(error),
        GreetError::Handshake(HandshakeError::Refused(Refusal::Token) | HandshakeError::Unproven) => {
            AskError::Token(error.to_string())
        }
        error => AskError::Stranger(error.to_string()),
    }
}
