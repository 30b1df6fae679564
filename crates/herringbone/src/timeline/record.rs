//! The records that the engine's thread hands to the writing thread.

use crate::{
    core::{session::membership::MemberId, wire::Fingerprint},
    observe::{OperationId, StepKind},
};

/// Nanoseconds of the monotonic clock.
pub(super) type Nanoseconds = u64;

/// How a member's clock stands: `there` is what it said in the middle of a round trip, around the moment `here`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClockMeasurement {
    /// Its [identity](super::owner::TimelineMember::identity).
    pub(crate) member: u32,
    pub(crate) here: u64,
    pub(crate) there: u64,
    pub(crate) round_trip: u64,
}

/// Something that happened. Only what is rare has memory of its own.
#[derive(Clone, Debug)]
pub(super) enum TimelineRecord {
    /// The next number of a name is this one.
    Name(Box<str>),
    /// This process is the reducer of this number.
    Introduced {
        reducer: u32,
    },
    /// The group and the algorithm are numbers of names.
    Issued {
        id: OperationId,
        at: Nanoseconds,
        call: Fingerprint,
        group: u32,
        algorithm: u32,
    },
    Began {
        id: OperationId,
        at: Nanoseconds,
    },
    Step {
        id: OperationId,
        began: Nanoseconds,
        ended: Nanoseconds,
        kind: StepKind,
        bytes: u64,
    },
    Sent {
        id: OperationId,
        at: Nanoseconds,
        to: MemberId,
        segment: u32,
        bytes: u64,
    },
    Received {
        id: OperationId,
        at: Nanoseconds,
        from: MemberId,
        segment: u32,
        bytes: u64,
    },
    /// For the first, and for so many others.
    Waited {
        id: OperationId,
        at: Nanoseconds,
        first: Option<MemberId>,
        others: u32,
    },
    Ended {
        id: OperationId,
        at: Nanoseconds,
        failed: Option<&'static str>,
    },
    Suspected {
        at: Nanoseconds,
        member: MemberId,
        silent: Nanoseconds,
    },
    Lost {
        at: Nanoseconds,
        member: MemberId,
        reason: Box<str>,
    },
    Fenced {
        at: Nanoseconds,
        what: Box<str>,
    },
    /// The program's step of this number begins.
    Marked {
        at: Nanoseconds,
        step: u64,
    },
    Clock(ClockMeasurement),
}

impl TimelineRecord {
    /// When the engine told of it.
    pub(super) fn at(&self) -> Option<Nanoseconds> {
        match *self {
            Self::Issued { at, .. }
            | Self::Began { at, .. }
            | Self::Step { ended: at, .. }
            | Self::Sent { at, .. }
            | Self::Received { at, .. }
            | Self::Waited { at, .. }
            | Self::Ended { at, .. }
            | Self::Suspected { at, .. }
            | Self::Lost { at, .. }
            | Self::Fenced { at, .. } => Some(at),
            Self::Name(_) | Self::Introduced { .. } | Self::Marked { .. } | Self::Clock(_) => None,
        }
    }
}
