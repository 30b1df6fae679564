//! What a running operation counts, in memory that goes from one operation to the next.

use crate::core::session::{lane::Window, membership::MemberId};
use std::collections::VecDeque;

/// Where a message that has arrived lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrived {
    No,
    /// In its place in my staging memory.
    Staged,
    /// At an offset of the sender's segment.
    At(usize),
    /// There too, in the user's buffer: where its chunk's result may be put.
    Direct(usize),
    /// It is a result, and is where it belongs in the user's buffer.
    Placed,
}

/// What one other rank has told of an operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    pub(super) endpoint: MemberId,
    /// What it has granted.
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

/// A message to one rank that could not go when its instruction ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unsent {
    pub(super) segment: u32,
    pub(super) instr: u32,
    pub(super) lane: u32,
}

/// What an operation counts, in memory that goes from one operation to the next.
#[derive(Debug, Default)]
pub(crate) struct Room {
    /// Per rank that messages are exchanged with.
    pub(super) flows: Vec<Flow>,
    /// Per stage and instruction: what it still waits for, and what is left to do of a send.
    pub(super) waits: Vec<u16>,
    pub(super) deliveries: Vec<Delivery>,
    /// Per stage and head: where the message is.
    pub(super) heads: Vec<Arrived>,
    /// Per stage and chunk, if reducers take part: whether the result is in its place.
    pub(super) results: Vec<bool>,
    /// Per stage: how many instructions are left.
    pub(super) left: Vec<u32>,
    /// Segments and instructions that can run.
    pub(super) ready: VecDeque<(u32, u32)>,
    /// What waits for a slot, or to be granted one.
    pub(super) blocked: Vec<Unsent>,
}

impl Room {
    /// Empty, with the memory it has.
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
