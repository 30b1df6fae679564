//! The state of a server's state machine, and its tasks for the caller.

use super::{
    epoch::{Epoch, EpochId, HeldRange, ServerLife, SettledEpoch},
    log::RangeLog,
    message::PeerMessage,
    search::Search,
};
use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};

/// A table server among others.
///
/// It has no connections, no clock and no tables; its caller has them. The caller reports each event, with the time in
/// milliseconds since any moment, and follows the [outputs](NodeOutput) in their order.
#[derive(Debug)]
pub struct TableNode {
    pub(super) own: ServerLife,
    /// How many servers there are, and ranges.
    pub(super) servers: u32,
    pub(super) replicas: u32,
    /// Those that it has a connection with.
    pub(super) peers: BTreeMap<u32, LinkedPeer>,
    pub(super) known: KnownProcesses,
    /// The last epoch of which it knows that it counts.
    pub(super) settled: Option<SettledEpoch>,
    /// Those after it that it has promised, and that may have come to count.
    pub(super) possible: Vec<Epoch>,
    pub(super) highest: EpochId,
    pub(super) phase: NodePhase,
    pub(super) ranges: BTreeMap<u32, HeldLog>,
    pub(super) outputs: Vec<NodeOutput>,
    pub(super) time: NodeTime,
}

/// What it knows of other processes, whether or not it has a connection with them.
#[derive(Clone, Debug, Default)]
pub(super) struct KnownProcesses {
    /// Those that have certainly ended without having given this one up.
    pub(super) dead: BTreeSet<ServerLife>,
    /// Those without a connection that had given this one up.
    pub(super) given_up_by: BTreeSet<ServerLife>,
    /// Those of which it has told the others that it hears them.
    pub(super) reported: Vec<ServerLife>,
}

/// What time it is, for a server.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NodeTime {
    pub(super) now: u64,
    pub(super) next_beat: u64,
    /// Since when it has been looking all the time: a process that was stopped takes nobody for silent at once.
    pub(super) awake_since: u64,
    /// When it last woke up after so long a time that others may have given it up meanwhile.
    pub(super) slept_until: Option<u64>,
}

/// A server that this one has a connection with.
#[derive(Clone, Debug)]
pub(super) struct LinkedPeer {
    pub(super) life: u64,
    /// When there was a sign of life.
    pub(super) heard: u64,
    /// It may go on without this one.
    pub(super) has_given_up: bool,
    pub(super) epoch: Option<Epoch>,
    pub(super) is_unsure: bool,
    pub(super) whole: Vec<u32>,
    /// The processes that it hears.
    pub(super) hears: Vec<ServerLife>,
    /// Whether it has said where it stands.
    pub(super) is_known: bool,
}

#[derive(Debug)]
pub(super) enum NodePhase {
    /// It is in no epoch, and waits to be let in.
    Outside,
    Active,
    /// One is lost, and it looks for the others.
    Electing(Box<Search>),
    /// It has proposed the next epoch, and waits for those promises.
    Proposing {
        epoch: Epoch,
        settles_first: bool,
        promises: BTreeMap<u32, Vec<HeldRange>>,
    },
    /// It has promised that epoch, and waits for the decider; or will say so once nothing of its ranges waits for copies.
    Promised {
        id: EpochId,
        decider: u32,
        is_said: bool,
    },
}

/// What it has of a range.
#[derive(Clone, Debug, Default)]
pub(super) struct HeldLog {
    pub(super) log: RangeLog,
    /// The last epoch in which it held it whole.
    pub(super) epoch: EpochId,
    /// Whether it is the owner, or its owner waits for it: then it has all that workers were told of.
    pub(super) is_whole: bool,
    /// Whether it has a whole image, and executes what follows.
    pub(super) is_loaded: bool,
}

/// An image that goes to a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentImage {
    /// The range.
    pub range: u32,
    /// The place of the server.
    pub to: u32,
    /// The epoch for which it is.
    pub epoch: EpochId,
}

/// A task for a node's caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeOutput {
    /// Send this.
    Send {
        /// The place of the server.
        to: u32,
        /// The message.
        message: PeerMessage,
    },
    /// This server owns a range from now on: execute its requests.
    Own {
        /// Which.
        range: u32,
    },
    /// It owns a range no more: workers that wait have to ask elsewhere.
    Disown {
        /// Which.
        range: u32,
    },
    /// Forget a range, and all of its tables.
    Forget {
        /// Which.
        range: u32,
    },
    /// Execute an operation of a range. This server has a copy of it.
    Execute {
        /// Which range.
        range: u32,
        /// The operation.
        operation: Vec<u8>,
    },
    /// All copies have `sequence` operations of a range, so their results can be sent.
    Settled {
        /// Which range.
        range: u32,
        /// How many.
        sequence: u64,
    },
    /// Send an image of a range, in pieces, by [`TableNode::send_image`], until that refuses one.
    SendImage(SentImage),
    /// An image of a range comes: forget the range's earlier data.
    BeginImage {
        /// Which range.
        range: u32,
    },
    /// A piece of it.
    Load {
        /// Which range.
        range: u32,
        /// The piece.
        record: Vec<u8>,
    },
    /// It is whole.
    EndImage {
        /// Which range.
        range: u32,
        /// The last piece.
        record: Vec<u8>,
    },
    /// A new epoch is settled, and this server is in it.
    Entered,
    /// Others have continued without this server.
    LeftBehind,
}
