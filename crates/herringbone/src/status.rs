//! The status of a job, reported by each of its processes: `herringbone status` shows it.
//!
//! A process answers for itself. A program that wants to know about a job asks one member, takes the roster from its
//! answer, and asks the others as well. A stopped member does not keep the others from answering.

pub use crate::core::session::{
    Role,
    flight::{FlightCall, FlightGroup, FlightOperation, FlightRecord, FlightState},
    handshake::Identity,
    membership::{Member, MemberId, Roster},
    status::{
        Activity, ClockReading, GroupStatus, HotKey, InFlight, JobStatus, LinkStatus, RangeStatus, ServedJob,
        Status, TableServerStatus, TableStatus, TableWorker, Way,
    },
};

use crate::{
    clock,
    config::check_exposure,
    core::session::{
        Refusal,
        control::{ControlChannel, Message, StatusQuestion},
        handshake::{HandshakeError, Hello, Purpose, Versions},
        status::JOBS,
    },
    fabric::greet::{self, GreetError},
};
use std::{
    io,
    net::{TcpStream, ToSocketAddrs},
    time::{Duration, Instant},
};

/// A process's answer about itself.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Its identity. For a reducer and for a job that forms, rank, world and job have no meaning.
    pub identity: Identity,
    /// The members of its job, if it is a worker of one that has formed.
    pub roster: Option<Roster>,
    /// How it stands.
    pub status: Status,
}

/// The clocks of a process, and this one's before and after.
#[derive(Clone, Debug)]
pub struct Clocks {
    /// Its identity.
    pub identity: Identity,
    /// The protocol version that both processes speak.
    pub version: u16,
    /// In the order in which it was asked.
    pub samples: Vec<ClockSample>,
}

/// One reading of another process's clocks, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockSample {
    /// This process's monotonic clock, just before the question was sent.
    pub sent: u64,
    /// The other process's clocks.
    pub clock: ClockReading,
    /// This process's monotonic clock, just after the answer had come.
    pub received: u64,
}

/// The flight records of a process.
#[derive(Clone, Debug)]
pub struct FlightAnswer {
    /// Its identity.
    pub identity: Identity,
    /// One of each of its jobs. None of a process that is in no job yet.
    pub records: Vec<FlightRecord>,
}

impl Clocks {
    /// The sample with the shortest way, which shows the offset of the clocks most exactly.
    pub fn best(&self) -> Option<ClockSample> {
        self.samples.iter().copied().min_by_key(|sample| sample.round_trip())
    }
}

impl ClockSample {
    /// How long the question and its answer were under way. The [offset](Self::offset) is at most half of it off.
    pub fn round_trip(self) -> u64 {
        self.received.saturating_sub(self.sent)
    }

    /// By how much the other monotonic clock is ahead of this process's, if both ways took the same time.
    pub fn offset(self) -> i64 {
        let middle = i128::from(self.sent) + i128::from(self.round_trip() / 2);
        let ahead = i128::from(self.clock.monotonic) - middle;
        ahead.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// A process listens there, or the way there is cut: a stopped process takes connections, too.
    #[error("no answer for {} s: stopped, or cut off?", .0.as_secs_f64())]
    Silent(Duration),
    /// No process listens there, or the address is invalid.
    #[error("nobody answers: {0}")]
    Absent(io::Error),
    /// It ended the connection before it answered: it ends just now, or is something else.
    #[error("it closed the connection: is it Herringbone's address, and of the same release?")]
    Closed,
    /// The token is not that job's, or none is set although one is needed.
    #[error("{0}")]
    Token(String),
    /// A process of another release, with which this one has no protocol version in common.
    #[error("{0}")]
    Release(String),
    /// Something else is there.
    #[error("{0}")]
    Stranger(String),
}

/// Asks the process at an address, `host:port`, for its state, within a time that excludes the look-up of a name. If
/// `job` is given, the process has to belong to it.
///
/// # Errors
/// Why there is no answer.
pub fn ask(
    address: &str,
    token: Option<&str>,
    job: Option<u64>,
    within: Duration,
) -> Result<Answer, AskError> {
    conversation(address, token, job, within, |talk| {
        talk.send(StatusQuestion::Status)?;
        let mut known = None;
        loop {
            match talk.receive()? {
                Message::Roster { roster, .. } => known = Some(roster),
                Message::Status(status) => {
                    return Ok(Answer { identity: talk.identity, roster: known, status });
                }
                _ => return Err(UNEXPECTED),
            }
        }
    })
}

/// Asks the process at an address several times for its clocks, over one connection. Otherwise as [`ask`].
///
/// # Errors
/// Why there is no answer, if there is none to one of the questions.
pub fn ask_clock(
    address: &str,
    token: Option<&str>,
    job: Option<u64>,
    times: usize,
    within: Duration,
) -> Result<Clocks, AskError> {
    conversation(address, token, job, within, |talk| {
        let sample = |_| {
            let sent = talk.send(StatusQuestion::Clock)?;
            match talk.receive()? {
                Message::Clock(clock) => Ok(ClockSample { sent, clock, received: clock::monotonic() }),
                _ => Err(UNEXPECTED),
            }
        };
        let samples = (0..times).map(sample).collect::<Result<_, GreetError>>()?;
        Ok(Clocks { identity: talk.identity, version: talk.version, samples })
    })
}

/// Asks the process at an address for its [flight records](FlightRecord). As [`ask`] else.
///
/// # Errors
/// Why there is no answer.
pub fn ask_flight(
    address: &str,
    token: Option<&str>,
    job: Option<u64>,
    within: Duration,
) -> Result<FlightAnswer, AskError> {
    conversation(address, token, job, within, |talk| {
        talk.send(StatusQuestion::Flight)?;
        let mut records = Vec::new();
        loop {
            let Message::Flight { record, more } = talk.receive()? else { return Err(UNEXPECTED) };
            records.extend(record.map(|record| *record));
            if more == 0 {
                return Ok(FlightAnswer { identity: talk.identity, records });
            }
            if records.len() >= JOBS {
                return Err(GreetError::Protocol("it has more records than the protocol allows"));
            }
        }
    })
}

const UNEXPECTED: GreetError = GreetError::Protocol("it sent another message than the protocol expects");

/// A connection to a process that is asked.
struct Conversation {
    stream: TcpStream,
    channel: ControlChannel,
    identity: Identity,
    version: u16,
    deadline: Instant,
}

impl Conversation {
    /// Returns what the monotonic clock showed just before.
    fn send(&mut self, question: StatusQuestion) -> Result<u64, GreetError> {
        let sent = clock::monotonic();
        greet::send(&mut self.stream, &mut self.channel, &Message::Ask(question))?;
        Ok(sent)
    }

    fn receive(&mut self) -> Result<Message, GreetError> {
        greet::receive(&mut self.stream, &mut self.channel, self.deadline)
    }
}

fn conversation<R>(
    address: &str,
    token: Option<&str>,
    job: Option<u64>,
    within: Duration,
    ask: impl FnOnce(&mut Conversation) -> Result<R, GreetError>,
) -> Result<R, AskError> {
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
    let token = token.unwrap_or_default().as_bytes();
    let answer = || {
        stream.set_nodelay(true)?;
        let established = greet::greet_anyone(&mut stream, hello, token, deadline)?;
        let (identity, version) = (established.other, established.version);
        let channel = greet::channel(established);
        ask(&mut Conversation { stream, channel, identity, version, deadline })
    };
    answer().map_err(|error| unanswered(error, within))
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

fn unanswered(error: GreetError, within: Duration) -> AskError {
    match error {
        GreetError::Late => AskError::Silent(within),
        GreetError::Closed => AskError::Closed,
        GreetError::Io(error) => AskError::Absent(error),
        GreetError::Handshake(HandshakeError::Refused(Refusal::Token) | HandshakeError::Unproven) => {
            AskError::Token(error.to_string())
        }
        GreetError::Handshake(HandshakeError::Refused(Refusal::Version { .. })) => {
            AskError::Release(error.to_string())
        }
        error => AskError::Stranger(error.to_string()),
    }
}
