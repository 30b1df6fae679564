//! What can happen in a world.

use crate::{
    core::session::{control::Message, membership::MemberId},
    transport::tcp::{TcpLink, virtual_link::PipeEnd},
};
use std::{fmt, time::Duration};

/// What happens.
pub(crate) enum WorldEvent {
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

impl fmt::Debug for WorldEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WorldEvent::Nothing => f.write_str("nothing"),
            WorldEvent::Tick(at) => write!(f, "tick {at}"),
            WorldEvent::SignOfLife(at) => write!(f, "sign of life {at}"),
            WorldEvent::Look(at) => write!(f, "look {at}"),
            WorldEvent::Said { from, to, message } => write!(f, "{from} to {to}: {message:?}"),
            WorldEvent::Parted { at, from } => write!(f, "{from} parted from {at}"),
            WorldEvent::Called { caller, other, .. } => write!(f, "{caller} calls {other}"),
            WorldEvent::Linked { caller, endpoint, .. } => write!(f, "{caller} linked to {endpoint}"),
            WorldEvent::Greeted { at, address } => write!(f, "{at} greets {address}"),
            WorldEvent::Done(number) => write!(f, "done {number}"),
        }
    }
}

impl WorldEvent {
    /// Which process it happens to.
    pub(super) fn to(&self) -> Option<usize> {
        match self {
            WorldEvent::Tick(at) | WorldEvent::SignOfLife(at) | WorldEvent::Look(at) => Some(*at),
            WorldEvent::Said { to, .. } => Some(*to),
            WorldEvent::Parted { at, .. } | WorldEvent::Greeted { at, .. } => Some(*at),
            WorldEvent::Linked { caller, .. } | WorldEvent::Called { caller, .. } => Some(*caller),
            WorldEvent::Nothing | WorldEvent::Done(_) => None,
        }
    }
}
