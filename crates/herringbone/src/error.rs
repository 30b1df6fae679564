//! Errors, with the numbers that a program needs and the next step for a person.

use crate::core::{group::Rank, replay::ReplayError, session::Ranks, table::TableError};
use rustix::io::Errno;
use std::{fmt, io, sync::Arc, time::Duration};

/// An error of a communicator, an operation or a server. Cheap to clone; the same error is given to all callers that it
/// concerns.
#[derive(Clone, Debug)]
pub struct Error {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    kind: ErrorKind,
    rank: Option<Rank>,
    operation: Option<String>,
}

/// Advice about an error, for programs that call the engine directly. An interface with other names replaces each text
/// by its own words, so errors have them whole.
#[doc(hidden)]
pub const ADVICE: [(&str, &str); 3] = [("lost", LOST), ("closed", CLOSED), ("late", LATE)];

const LOST: &str = "shrink() the group to the ranks that are left, or restart the job";
const CLOSED: &str = "this rank has closed the communicator; close it when all its operations have ended, or make a new one (shrink() and \
                      replace() end the group that they follow)";
const LATE: &str = "raise the timeout (the call's, the process group's or HERRINGBONE_TIMEOUT_S)";

/// The kind of an error. The documentation of each kind tells whether the group can continue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Ranks died, left or aborted the group while an operation needed them. The group is finished: restart the job, or form a new
    /// group.
    #[error("{} lost: {reason}; the group cannot continue without {}: {LOST}", ranks_are(.ranks), if .ranks.len() == 1 { "it" } else { "them" })]
    PeerLost {
        /// The lost ranks, by their numbers in the job.
        ranks: Vec<Rank>,
        /// The observed reason.
        reason: String,
    },
    /// A reducer would not take part in an operation, or did not within a timeout that is shorter than it takes to give
    /// it up. Operations that need no reducer continue. A lost reducer fails none of them.
    #[error(
        "the reducer at {address} is lost: {reason}; restart it, or leave it out of HERRINGBONE_REDUCERS"
    )]
    ReducerLost {
        /// The address where it listened.
        address: String,
        /// The observed reason.
        reason: String,
    },
    /// A table server does not do what it was asked, or a call is invalid. Nothing has changed, with one exception:
    /// if the call was in several messages, others can have been taken. The table stays usable.
    #[error("table {table:?}{}: {problem}", if .server.is_empty() { String::new() } else { format!(", at {server}") })]
    Table {
        /// Its name.
        table: String,
        /// The server that reports it; empty if this process found it.
        server: String,
        /// The problem.
        problem: TableError,
    },
    /// A table server is gone, with its tables.
    #[error(
        "the table server at {address} is lost: {reason}; once it is back, connect again and make the tables again, from a snapshot if there is one"
    )]
    TableServerLost {
        /// The address where it listened.
        address: String,
        /// The observed reason.
        reason: String,
    },
    /// A program with [recovery](crate::rabit) cannot continue from the same call.
    #[error("{problem}")]
    Replay {
        /// Why.
        problem: ReplayError,
    },
    /// Ranks called different operations. Every rank gets this error; a rank whose call had succeeded gets it in its
    /// next call. The group stays usable, and a rank's n-th call still meets the others' n-th.
    #[error("the ranks disagree about operation {sequence}: {}; make every rank call the same operation, under the same settings", said(.calls, *.sequence))]
    Mismatch {
        /// The number of the operation: how many calls of the group came before it on each rank.
        sequence: u64,
        /// The calls of the ranks, where they differ.
        calls: Vec<(Vec<Rank>, String)>,
    },
    /// An operation took longer than its timeout. The group stays usable if the missing ranks come back, unless they have never made
    /// it, and it is one [without a name](crate::Communicator::subgroup_of).
    #[error("the operation timed out: its timeout of {} s passed on rank {}{}; if the ranks are only slow, {LATE}", .after.as_secs_f64(), .rank, waited_for(.missing))]
    Timeout {
        /// The rank that gave up; it was not necessarily late itself.
        rank: Rank,
        /// Its timeout.
        after: Duration,
        /// The ranks (or reducers) that were waited for.
        missing: Vec<String>,
    },
    /// A rank lacks memory for its part of an operation, which fails on all ranks. The group stays usable.
    #[error(
        "rank {rank} lacks {bytes} bytes of memory for its part{}: give it more memory, or send less at once", of_another(.ended_by)
    )]
    Memory {
        /// Which rank.
        rank: Rank,
        /// How many bytes it asked the system for, which has not given them.
        bytes: u64,
        /// The operation that has failed, if this is the error of another one, which was under way beside it.
        ended_by: Option<String>,
    },
    /// The other side does not have this job's token, or no token is set although one is needed.
    #[error("{problem}; {hint}")]
    Auth {
        /// The problem.
        problem: String,
        /// The one-line fix.
        hint: &'static str,
    },
    /// A setting cannot be used.
    #[error("{setting}: {problem}")]
    Config {
        /// The setting's name.
        setting: String,
        /// The problem, and how to fix it.
        problem: String,
    },
    /// The group could not be formed.
    #[error("the group was not formed: {problem}")]
    Rendezvous {
        /// The problem, with ranks and addresses.
        problem: String,
    },
    /// A rank broke the protocol (a bug, or different versions).
    #[error(
        "{from} broke the protocol: {problem}; run one release on all ranks, and if they do, report it as a bug"
    )]
    Protocol {
        /// The process that broke it.
        from: String,
        /// How.
        problem: String,
    },
    /// Bytes changed on the way. The connection was closed; the group stays usable.
    #[error("data between {from} and {to} was damaged on the way; check the network")]
    Corrupt {
        /// The sender.
        from: String,
        /// The receiver.
        to: String,
    },
    /// Two ranks are cut from each other, and both live. Every rank gets this error. The group stays usable, and the
    /// link is made again when it is needed.
    #[error("the link between rank {} and rank {} is lost, and both live; check the network between their hosts", .ranks[0], .ranks[1])]
    LinkLost {
        /// The two, the lower one first.
        ranks: [Rank; 2],
    },
    /// The handle was made before a fork and is used in the child.
    #[error(
        "this process was forked after the group was formed, or the table servers were called; use them in the parent only, or connect again"
    )]
    Forked,
    /// The communicator was closed, or aborted while the operation was under way.
    #[error("{CLOSED}")]
    Closed,
    /// The request is one that cannot be served.
    #[error("{problem}")]
    Unsupported {
        /// The problem, and an alternative.
        problem: String,
    },
    /// A buffer has the wrong size.
    #[error("{buffer} has {actual} bytes where {expected} are needed")]
    BufferSize {
        /// Which buffer.
        buffer: &'static str,
        /// The size that the operation needs.
        expected: usize,
        /// The size given.
        actual: usize,
    },
    /// The operating system refused something.
    #[error("{action}: {problem}")]
    Io {
        /// The action.
        action: String,
        /// The system's words.
        problem: String,
    },
}

impl ErrorKind {
    /// What happened, without what a program does about it, if ranks are lost: for interfaces that do something about it themselves.
    pub(crate) fn seen(&self) -> String {
        match self {
            Self::PeerLost { ranks, reason } => format!("{} lost: {reason}", ranks_are(ranks)),
            kind => kind.to_string(),
        }
    }
}

fn ranks_are(ranks: &[Rank]) -> String {
    if ranks.is_empty() {
        "ranks are".to_owned()
    } else {
        format!("{} {}", Ranks(ranks), if ranks.len() == 1 { "is" } else { "are" })
    }
}

/// Who called what. The number of the operation, which each call ends with, has been said.
fn said(calls: &[(Vec<Rank>, String)], sequence: u64) -> String {
    if calls.is_empty() {
        return "no rank remembers what was called".to_owned();
    }
    let number = format!(" (operation {sequence})");
    let each: Vec<String> = calls
        .iter()
        .map(|(ranks, call)| format!("{} called {}", Ranks(ranks), call.replacen(&number, "", 1)))
        .collect();
    each.join(", ")
}

fn waited_for(missing: &[String]) -> String {
    if missing.is_empty() { String::new() } else { format!(" while waiting for {}", missing.join(", ")) }
}

fn of_another(operation: &Option<String>) -> String {
    let of = |operation: &String| format!(" of {operation}, whose failure has ended this one");
    operation.as_ref().map_or_else(String::new, of)
}

/// What to do about an error of the system, where that is known.
pub(crate) fn remedy(error: &io::Error) -> &'static str {
    let known = [Errno::MFILE, Errno::NFILE].map(Errno::raw_os_error);
    match error.raw_os_error() {
        Some(code) if known.contains(&code) => "; let each process open more files (ulimit -n)",
        _ => "",
    }
}

impl Error {
    pub(crate) fn new(kind: ErrorKind) -> Self {
        Self { inner: Arc::new(Inner { kind, rank: None, operation: None }) }
    }

    /// The same error, said by `rank` about `operation`.
    pub(crate) fn about(&self, rank: Rank, operation: impl fmt::Display) -> Self {
        let (mut kind, operation) = (self.inner.kind.clone(), operation.to_string());
        if let ErrorKind::Memory { ended_by, .. } = &mut kind {
            *ended_by = ended_by.take().filter(|failed| !operation.contains(failed.as_str()));
        }
        Self { inner: Arc::new(Inner { kind, rank: Some(rank), operation: Some(operation) }) }
    }

    pub(crate) fn at(&self, rank: Rank) -> Self {
        let Inner { kind, operation, .. } = &*self.inner;
        Self { inner: Arc::new(Inner { kind: kind.clone(), rank: Some(rank), operation: operation.clone() }) }
    }

    /// The same error, as a later call tells it, because nobody has asked the one that failed.
    pub(crate) fn of_earlier_call(&self) -> Self {
        let operation =
            format!("an earlier call has failed, {}", self.operation().unwrap_or("which is over"));
        let Inner { kind, rank, .. } = &*self.inner;
        Self { inner: Arc::new(Inner { kind: kind.clone(), rank: *rank, operation: Some(operation) }) }
    }

    pub(crate) fn config(setting: impl Into<String>, problem: impl fmt::Display) -> Self {
        Self::new(ErrorKind::Config { setting: setting.into(), problem: problem.to_string() })
    }

    pub(crate) fn rendezvous(problem: impl fmt::Display) -> Self {
        Self::new(ErrorKind::Rendezvous { problem: problem.to_string() })
    }

    pub(crate) fn unsupported(problem: impl fmt::Display) -> Self {
        Self::new(ErrorKind::Unsupported { problem: problem.to_string() })
    }

    /// An error of the calling program, in something that it was asked to do. The program gets it back unchanged.
    pub fn of_program(what: impl fmt::Display, error: impl fmt::Display) -> Self {
        Self::unsupported(format_args!("{what}: {error}"))
    }

    pub(crate) fn io(action: impl fmt::Display, error: impl Into<io::Error>) -> Self {
        let error = error.into();
        Self::new(ErrorKind::Io { action: action.to_string(), problem: format!("{error}{}", remedy(&error)) })
    }

    /// The kind of the error.
    pub fn kind(&self) -> &ErrorKind {
        &self.inner.kind
    }

    /// The rank that reports it, if there is one: like all ranks in errors, by its number in the job.
    pub fn rank(&self) -> Option<Rank> {
        self.inner.rank
    }

    /// The operation that failed, in words, if there is one.
    pub fn operation(&self) -> Option<&str> {
        self.inner.operation.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.inner.rank {
            Some(rank) => write!(f, "herringbone, on rank {rank}: ")?,
            None => write!(f, "herringbone: ")?,
        }
        match (&self.inner.kind, &self.inner.operation) {
            (ErrorKind::Mismatch { calls, .. }, Some(own))
                if calls.iter().any(|(_, call)| call.starts_with(own.as_str())) => {}
            (_, Some(operation)) => write!(f, "{operation}: ")?,
            (_, None) => {}
        }
        self.inner.kind.fmt(f)
    }
}

impl std::error::Error for Error {}

/// Gives every kind of error a number.
macro_rules! error_codes {
    ($($Kind:ident = $code:literal,)+) => {
        /// The number of an [`ErrorKind`], which the C interface returns. A number never changes, and a new kind gets a
        /// new one. Only that interface uses it, and has a name for each, so it can match all of them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[doc(hidden)]
        #[repr(i32)]
        pub enum ErrorCode {
            $(#[doc = concat!("That of [`ErrorKind::", stringify!($Kind), "`].")] $Kind = $code,)+
        }

        impl ErrorCode {
            /// All of them, ascending.
            pub const ALL: &[Self] = &[$(Self::$Kind),+];

            /// The kind's name.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$Kind => stringify!($Kind),)+
                }
            }
        }

        impl ErrorKind {
            /// Its number.
            #[doc(hidden)]
            pub fn code(&self) -> ErrorCode {
                match self {
                    $(Self::$Kind { .. } => ErrorCode::$Kind,)+
                }
            }
        }
    };
}

error_codes! {
    PeerLost = 1,
    ReducerLost = 2,
    Table = 3,
    TableServerLost = 4,
    Mismatch = 5,
    Timeout = 6,
    Memory = 7,
    Auth = 8,
    Config = 9,
    Rendezvous = 10,
    Protocol = 11,
    Corrupt = 12,
    LinkLost = 13,
    Forked = 14,
    Closed = 15,
    Unsupported = 16,
    BufferSize = 17,
    Io = 18,
    Replay = 19,
}

impl ErrorKind {
    /// Its name, as it stands here.
    pub fn name(&self) -> &'static str {
        self.code().name()
    }
}

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mismatch_says_each_thing_once() {
        let calls = [(0, 5), (1, 6)]
            .map(|(rank, count)| (vec![rank], format!("all_reduce of {count} f32, sum (operation 7)")));
        let error = Error::new(ErrorKind::Mismatch { sequence: 7, calls: calls.to_vec() });
        let error = error.about(0, "all_reduce of 5 f32, sum (operation 7)");
        assert_eq!(
            error.to_string(),
            "herringbone, on rank 0: the ranks disagree about operation 7: rank 0 called all_reduce of 5 f32, sum, rank 1 \
             called all_reduce of 6 f32, sum; make every rank call the same operation, under the same settings"
        );
        assert_eq!(error.operation(), Some("all_reduce of 5 f32, sum (operation 7)"));
        let later = error.about(0, "barrier (operation 8)").to_string();
        assert!(
            later.starts_with("herringbone, on rank 0: barrier (operation 8): the ranks disagree"),
            "{later}"
        );
    }

    #[test]
    fn an_interface_finds_each_advice_in_the_error_that_gives_it() {
        let lost = ErrorKind::PeerLost { ranks: vec![1], reason: "it was killed".to_owned() };
        let late = ErrorKind::Timeout { rank: 0, after: Duration::from_secs(1), missing: Vec::new() };
        for (kind, (name, advice)) in [&lost, &ErrorKind::Closed, &late].into_iter().zip(ADVICE) {
            assert!(kind.to_string().contains(advice), "{name}: {kind}");
        }
        assert_eq!(lost.seen(), "rank 1 is lost: it was killed");
        assert_eq!(late.seen(), late.to_string());
    }

    #[test]
    fn a_mismatch_that_nobody_can_explain_says_so() {
        let error = Error::new(ErrorKind::Mismatch { sequence: 7, calls: Vec::new() });
        let said = "the ranks disagree about operation 7: no rank remembers what was called; make every rank";
        assert!(error.to_string().contains(said), "{error}");
    }
}
