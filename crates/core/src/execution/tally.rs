//! The counters of an execution, in memory that passes from one operation to the next.

use crate::session::{lane::Window, membership::MemberId};
use alloc::{collections::VecDeque, vec::Vec};

/// A step of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentStep {
    /// The segment.
    pub segment: u32,
    /// Its position among [`Prepared::steps`](crate::prepare::Prepared::steps).
    pub step: u32,
}

/// A message to one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentMessage {
    /// The send, and its segment.
    pub ready: SegmentStep,
    /// The receiver: a position among [`Prepared::lanes`](crate::prepare::Prepared::lanes).
    pub lane: u32,
}

/// The place of a message that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrived {
    /// It has not arrived.
    No,
    /// In its place in this rank's staging memory.
    Staged,
    /// At an offset of the sender's segment.
    At(usize),
    /// There too, in the user's buffer: its chunk's result can be put there.
    Direct(usize),
    /// It is a result, and is where it belongs in the user's buffer.
    Placed,
}

/// What is between this rank and one other.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerFlow {
    /// Which member that is.
    pub(super) member: MemberId,
    /// What the other has granted.
    pub(super) window: Window,
    /// Whether it, a reducer, has said that all workers hold the result; true of others.
    pub(super) stable: bool,
    /// Whether this rank has allowed it to send.
    pub(super) invited: bool,
}

/// A send under way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Delivery {
    /// How many of its messages are not handed over.
    pub(super) left: u16,
    /// The checksum of what they all carry, once one of them has needed it.
    pub(super) checksum: Option<u32>,
}

/// Memory for the counters of an [`Execution`](super::Execution).
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Per rank that messages are exchanged with.
    pub(super) flows: Vec<PeerFlow>,
    /// Per stage and step: what it still waits for, and what is left to do of a send.
    pub(super) waits: Vec<u16>,
    pub(super) deliveries: Vec<Delivery>,
    /// Per stage and head: where the message is.
    pub(super) heads: Vec<Arrived>,
    /// Per stage and chunk, if reducers take part: whether the result is in its place.
    pub(super) results: Vec<bool>,
    /// Per stage: how many steps are left.
    pub(super) left: Vec<u32>,
    pub(super) ready: VecDeque<SegmentStep>,
    /// What waits for a slot, or to be granted one.
    pub(super) blocked: Vec<SegmentMessage>,
}

impl Tally {
    /// Empty, with the memory it has.
    #[inline]
    pub(super) fn emptied(mut self) -> Self {
        self.flows.clear();
        self.waits.clear();
        self.results.clear();
        self.deliveries.clear();
        self.heads.clear();
        self.left.clear();
        self.ready.clear();
        self.blocked.clear();
        self
    }
}
