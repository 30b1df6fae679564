//! The result of a simulation.

use super::machine::Picoseconds;
use crate::{execution::Violation, group::Rank, prepare::TooManySegments, schedule::Chunk};
use alloc::vec::Vec;
use core::fmt;

/// A thing that can be busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// A member's thread.
    Thread(Rank),
    /// A host's port, outwards.
    Out(u32),
    /// A host's port, inwards.
    Into(u32),
    /// A direct link.
    Link {
        /// From this worker.
        from: Rank,
        /// To this one.
        to: Rank,
    },
    /// A switch, from its workers.
    SwitchOut(u32),
    /// A switch, to its workers.
    SwitchInto(u32),
    /// A site's uplink, outwards.
    SiteOut(u32),
    /// A site's uplink, inwards.
    SiteInto(u32),
}

/// A kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkItem {
    /// A message: a thread that hands it over or takes it, a port that carries it.
    Message {
        /// The sender.
        from: Rank,
        /// The receiver.
        to: Rank,
    },
    /// A fold of a chunk.
    Fold(Chunk),
    /// Moving a chunk in memory.
    Copy(Chunk),
    /// Encoding a chunk, or decoding it. Decoding as part of a fold belongs to the fold.
    Code(Chunk),
}

/// A time for which something was busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusySpan {
    /// Which of the operations.
    pub operation: u32,
    /// Which segment.
    pub segment: u32,
    /// The busy thing.
    pub place: Resource,
    /// Its work.
    pub what: WorkItem,
    /// From when.
    pub start: Picoseconds,
    /// Until when.
    pub end: Picoseconds,
    /// How many bytes.
    pub bytes: u64,
}

/// How much something was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// The used thing.
    pub place: Resource,
    /// For how long it was busy.
    pub busy: Picoseconds,
    /// Payload in bytes: carried by a port or link, sent and received by a thread.
    pub bytes: u64,
}

/// The result of a simulation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prediction {
    /// When the call of the last operation returns, for each worker.
    pub finished: Vec<Picoseconds>,
    /// The use of each place. If one rank stands for all, these are its places.
    pub used: Vec<Used>,
    /// How many messages with data were sent.
    pub messages: u64,
    /// Whether one rank stood for all.
    pub by_symmetry: bool,
    /// The staging memory of the member that needs most, in bytes.
    pub staged: u64,
}

/// Why operations have no time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Untimed {
    /// They are too long to be cut, on whatever machines.
    #[error(transparent)]
    TooManySegments(#[from] TooManySegments),
    /// They never end.
    #[error(transparent)]
    Stalled(#[from] Stalled),
    /// They need a link that is not there.
    #[error("rank {from} sends to rank {to}, and there is no link from one to the other")]
    NoLink {
        /// The sender.
        from: Rank,
        /// The receiver.
        to: Rank,
    },
    /// Their ranks are too many to be simulated each by itself.
    #[error("{ranks} ranks, simulated each by itself, take about {} MiB of memory, and {} MiB are the most", bytes >> 20, most_bytes >> 20)]
    TooManyRanks {
        /// How many members there are.
        ranks: u32,
        /// About how much memory all of them take.
        bytes: u64,
        /// The limit.
        most_bytes: u64,
    },
    /// They take longer than times are counted.
    #[error("they take more than 200 days")]
    TooSlow,
}

/// A simulation that stands still: nothing is under way any more, and operations have not ended; or a member got a
/// message that it must not get. Operations of proved schedules never do that, so the rules of
/// [`execution`](crate::execution) are wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stalled {
    /// The members that have not ended their first open operation.
    pub members: Vec<StalledMember>,
    /// The forbidden message.
    pub fault: Option<Fault>,
}

/// A message that a member must not get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Whose rank; reducers follow the workers.
    pub rank: Rank,
    /// In which of the operations.
    pub operation: u32,
    /// The violation.
    pub violation: Violation,
}

/// A member that waits forever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StalledMember {
    /// Its rank; reducers follow the workers.
    pub rank: Rank,
    /// Which of the operations.
    pub operation: u32,
    /// How many segments it has begun.
    pub begun: u32,
    /// How many of them it is done with.
    pub finished: u32,
    /// How many there are.
    pub segments: u32,
}

/// The most members that are told one by one.
const LISTED: usize = 8;

impl fmt::Display for Stalled {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(Fault { rank, operation, violation }) = &self.fault {
            return write!(to, "rank {rank} got {violation} (operation {operation})");
        }
        let many = if self.members.len() == 1 { "rank" } else { "ranks" };
        write!(to, "it never ends on {many} ")?;
        for (at, member) in self.members.iter().take(LISTED).enumerate() {
            let StalledMember { rank, operation, begun, finished, segments } = member;
            let comma = if at == 0 { "" } else { ", " };
            write!(
                to,
                "{comma}{rank} (operation {operation}: of {segments} segments {begun} begun, {finished} done)"
            )?;
        }
        match self.members.len().checked_sub(LISTED) {
            None | Some(0) => Ok(()),
            Some(more) => write!(to, " and {more} more"),
        }
    }
}

impl core::error::Error for Stalled {}

impl Prediction {
    /// The time of the operations if others follow: until the last worker's call returns, and no less than the busiest
    /// port or link needs. Only a link that lets more through at once than its rate can need more, and then the next
    /// operation waits for it.
    pub fn total(&self) -> Picoseconds {
        let returned = self.finished.iter().copied().max().unwrap_or(0);
        self.links().map(|used| used.busy).fold(returned, Picoseconds::max)
    }

    fn links(&self) -> impl Iterator<Item = &Used> {
        self.used.iter().filter(|used| !matches!(used.place, Resource::Thread(_)))
    }

    /// The thing that was busy longest: it limits the whole, if it was busy nearly all the time.
    pub fn busiest(&self) -> Option<Used> {
        self.used.iter().copied().max_by_key(|used| used.busy)
    }

    /// The most payload that a port or link carried, in bytes.
    pub fn busiest_link_bytes(&self) -> u64 {
        self.links().map(|used| used.bytes).max().unwrap_or(0)
    }
}
