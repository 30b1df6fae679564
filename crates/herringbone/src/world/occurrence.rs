//! What can happen in a world.

use crate::{
    core::session::{control::Message, membership::MemberId},
    transport::tcp::{TcpLink, virtual_link::PipeEnd},
};
use std::{fmt, time::Duration};

/// What happens.
pub(crate) enum Occurrence {
    /// Time passes; the world goes no further in one step.
    Nothing,
    /// A worker's control thread looks at time.
    Tick(usize),
    /// A reducer shows its workers that it lives.
    SignOfLife(usize),
    /// A thread that drives an engine looks again.
    Look(usize),
    /// A control message arrives.
    Said { from: usize, to: usize, message: Message },
    /// A control connection's end is noticed.
    Parted { at: usize, from: usize },
    /// A call for a link reaches another process; for so long it was not answered.
    Called { caller: usize, endpoint: MemberId, other: usize, for_so_long: Duration },
    /// A link that was accepted is there at its caller, too.
    Linked { caller: usize, endpoint: MemberId, end: TcpLink, pipe: PipeEnd },
    /// Rank 0 looks whether a reducer is there.
    Greeted { at: usize, address: String },
    /// The test does [something](super::VirtualWorld::later), of this number.
    Done(u64),
}

impl fmt::Debug for Occurrence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Occurrence::Nothing => f.write_str("nothing"),
            Occurrence::Tick(at) => write!(f, "tick {at}"),
            Occurrence::SignOfLife(at) => write!(f, "sign of life {at}"),
            Occurrence::Look(at) => write!(f, "look {at}"),
            Occurrence::Said { from, to, message } => write!(f, "{from} to {to}: {message:?}"),
            Occurrence::Parted { at, from } => write!(f, "{from} parted from {at}"),
            Occurrence::Called { caller, other, .. } => write!(f, "{caller} calls {other}"),
            Occurrence::Linked { caller, endpoint, .. } => write!(f, "{caller} linked to {endpoint}"),
            Occurrence::Greeted { at, address } => write!(f, "{at} greets {address}"),
            Occurrence::Done(number) => write!(f, "done {number}"),
        }
    }
}

impl Occurrence {
    /// Which process it happens to.
    pub(super) fn to(&self) -> Option<usize> {
        match self {
            Occurrence::Tick(at) | Occurrence::SignOfLife(at) | Occurrence::Look(at) => Some(*at),
            Occurrence::Said { to, .. } => Some(*to),
            Occurrence::Parted { at, .. } | Occurrence::Greeted { at, .. } => Some(*at),
            Occurrence::Linked { caller, .. } | Occurrence::Called { caller, .. } => Some(*caller),
            Occurrence::Nothing | Occurrence::Done(_) => None,
        }
    }
}
