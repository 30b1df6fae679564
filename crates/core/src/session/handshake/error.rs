//! Why a handshake fails.

use super::message::{BODY_BYTES, Identity, Seen};
use crate::{
    group::Rank,
    session::{Refusal, Role, codec::Malformed},
};
use core::fmt;

/// The server that a client means to reach. A field that is `None` allows any value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Expected {
    /// Its role.
    pub role: Role,
    /// Its rank.
    pub rank: Option<Rank>,
    /// Its life.
    pub incarnation: Option<u64>,
}

/// Why a handshake failed. Send the bytes that `transmit` still returns, then close the connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// A stranger, or a stranger's port.
    #[error("the other side does not speak Herringbone, it sent {0}: check address and port")]
    NotHerringbone(Seen),
    /// A message that is longer than any of a handshake.
    #[error("the other side sent a handshake message of {length} bytes, at most {BODY_BYTES} are allowed")]
    TooLong {
        /// The announced length.
        length: u16,
    },
    /// A message out of turn, or with fields that make no sense.
    #[error("the other side sent a malformed handshake message: {reason}")]
    Malformed {
        /// The problem.
        reason: &'static str,
    },
    /// The other side does not let this one in.
    #[error("the other side refused: {0}")]
    Refused(Refusal),
    /// This side does not let the other one in, and has sent it this refusal.
    #[error("refused the other side: {0}")]
    Refusing(Refusal),
    /// The server could not prove that it knows the token.
    #[error("the other side does not know the job's token: check its address, and HERRINGBONE_TOKEN there")]
    Unproven,
    /// The server is of this job, but not the expected one.
    #[error("expected {expected} at this address, found {} {}: check addresses and ports", found.role, found.rank)]
    WrongPeer {
        /// The expected server.
        expected: Expected,
        /// The identity of the server that answered.
        found: Identity,
    },
}

impl From<Malformed> for HandshakeError {
    fn from(Malformed(reason): Malformed) -> Self {
        HandshakeError::Malformed { reason }
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rank {
            Some(rank) => write!(f, "{} {rank}", self.role),
            None => write!(f, "a {}", self.role),
        }
    }
}
