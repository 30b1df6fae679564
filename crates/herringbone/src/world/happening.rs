//! What can happen in a world.

use crate::{
    core::session::control::Message,
    transport::tcp::{TcpLink, virtual_link::VirtualLink},
};
use std::{fmt, time::Duration};

/// What happens.
pub(crate) enum Happening {
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
    Called { caller: usize, other: usize, for_so_long: Duration },
    /// A link that was accepted is there at its caller, too.
    Linked { caller: usize, other: usize, end: TcpLink, pipe: (VirtualLink, usize) },
    /// The test does [something](super::VirtualWorld::later), of this number.
    Done(u64),
}

impl fmt::Debug for Happening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Happening::Nothing => f.write_str("nothing"),
            Happening::Tick(at) => write!(f, "tick {at}"),
            Happening::SignOfLife(at) => write!(f, "sign of life {at}"),
            Happening::Look(at) => write!(f, "look {at}"),
            Happening::Said { from, to, message } => write!(f, "{from} to {to}: {message:?}"),
            Happening::Parted { at, from } => write!(f, "{from} parted from {at}"),
            Happening::Called { caller, other, .. } => write!(f, "{caller} calls {other}"),
            Happening::Linked { caller, other, .. } => write!(f, "{caller} linked to {other}"),
            Happening::Done(number) => write!(f, "done {number}"),
        }
    }
}

impl Happening {
    /// Which process it happens to.
    pub(super) fn to(&self) -> Option<usize> {
        match self {
            Happening::Tick(at) | Happening::SignOfLife(at) | Happening::Look(at) => Some(*at),
            Happening::Said { to, .. } => Some(*to),
            Happening::Parted { at, .. } => Some(*at),
            Happening::Linked { caller, .. } | Happening::Called { caller, .. } => Some(*caller),
            Happening::Nothing | Happening::Done(_) => None,
        }
    }
}
