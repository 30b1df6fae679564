//! Events in the order of time; of simultaneous events, the one that was known first.

use super::machine::Picoseconds;
use super::member::Notice;
use super::outcome::Resource;
use crate::execution::SegmentMessage;
use alloc::collections::BinaryHeap;
use core::cmp::Reverse;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransferContent {
    /// Data for a head of its receiver.
    Data { sent: SegmentMessage, head: u32 },
    /// Word of a rank, by its position among the receiver's peers.
    Signal(Notice),
}

/// A message under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transfer {
    pub(super) operation: u32,
    /// Members, which are one and the same where one stands for all.
    pub(super) from: u32,
    pub(super) to: u32,
    /// The rank that it goes to, which decides its way.
    pub(super) rank: u32,
    pub(super) bytes: u64,
    pub(super) content: TransferContent,
}

/// A part of a message that leaves at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Burst {
    pub(super) message: u32,
    /// With headers.
    pub(super) bytes: u64,
    pub(super) payload: u64,
    /// How long it takes to leave.
    pub(super) time: Picoseconds,
    pub(super) is_last: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RigEvent {
    /// A member's thread goes on.
    Turn { member: u32 },
    /// A message enters its sender's port.
    Leaves { message: u32 },
    /// A message has left, and its sender knows.
    Left { message: u32 },
    /// A burst has left its sender's port.
    Served { place: Resource },
    /// A burst begins to come to the port or uplink with this number on its way.
    Reaches { burst: Burst, way: u8 },
    /// A message is there.
    Arrives { message: u32 },
}

/// What is to happen.
#[derive(Debug, Default)]
pub(super) struct EventQueue {
    events: BinaryHeap<Reverse<(Picoseconds, u64, RigEvent)>>,
    noted: u64,
}

impl EventQueue {
    pub(super) fn note(&mut self, at: Picoseconds, event: RigEvent) {
        self.noted += 1;
        self.events.push(Reverse((at, self.noted, event)));
    }

    pub(super) fn next(&mut self) -> Option<(Picoseconds, RigEvent)> {
        self.events.pop().map(|Reverse((at, _, event))| (at, event))
    }
}
