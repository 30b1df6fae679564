//! Why a program cannot continue from the same call.

use super::{ReplayPoint, item::ReplayItem};
use crate::group::Rank;

/// Why a program cannot continue from the same call. All ranks get the same reason, except for variants that name a
/// rank.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// The processes that had something have all ended.
    #[error(
        "no rank has {item} any more, which rank {needed_by} needs to continue. Too many processes ended at once: start the job again, and let more ranks keep copies (global_replica, local_replica)"
    )]
    Lost {
        /// The item.
        item: ReplayItem,
        /// The rank that needs it.
        needed_by: Rank,
    },
    /// A rank is in a version that the others have left.
    #[error(
        "rank {rank} is at version {version} and others are at version {newest}: make all ranks call checkpoint() equally often"
    )]
    Apart {
        /// Which rank.
        rank: Rank,
        /// Its version.
        version: u32,
        /// The others'.
        newest: u32,
    },
    /// Ranks end a version after different numbers of calls.
    #[error(
        "rank {rank} ends version {version} after {calls} calls, and rank {other} makes {others_calls}: make the same calls on all ranks, even when they replay"
    )]
    UnlikeEnds {
        /// The version.
        version: u32,
        /// A rank.
        rank: Rank,
        /// How many calls it has made in that version.
        calls: u64,
        /// Another rank.
        other: Rank,
        /// How many that one has made.
        others_calls: u64,
    },
    /// Ranks have different options.
    #[error("{option} is {first} on rank 0 and {value} on rank {rank}: give all ranks the same options")]
    UnlikeOptions {
        /// Which option.
        option: &'static str,
        /// Rank 0's value.
        first: u32,
        /// Another rank.
        rank: Rank,
        /// That one's value.
        value: u32,
    },
    /// Ranks have made different calls before they loaded a checkpoint.
    #[error(
        "before load_checkpoint, rank {rank} made other calls than rank {other}. Make the same calls in the same order on all ranks, each all-reduce or all-gather from the same line of the program"
    )]
    UnlikeBootstraps {
        /// A rank.
        rank: Rank,
        /// Another one.
        other: Rank,
    },
    /// Some ranks have a local model and others have none.
    #[error(
        "rank {with} calls checkpoint() with a local model and rank {without} without: give all ranks one, or none"
    )]
    UnlikeLocals {
        /// A rank that has one.
        with: Rank,
        /// A rank that has none.
        without: Rank,
    },
    /// A call that is replayed has a result of another size than when it was made first.
    #[error(
        "rank {rank} replays {call} with {called} bytes, and the result that the others have of it is {kept} bytes: a program that replays has to make the same calls"
    )]
    UnlikeSizes {
        /// The rank that replays.
        rank: Rank,
        /// Which call.
        call: ReplayCallName,
        /// How many bytes its result has now.
        called: u64,
        /// How many it had.
        kept: u64,
    },
    /// A call that is replayed is another one than when it was made first.
    #[error(
        "rank {rank} replays {call} as another collective, or of another type or operation, than the others have made: a program that replays has to make the same calls"
    )]
    UnlikeCalls {
        /// The rank that replays.
        rank: Rank,
        /// Which call.
        call: ReplayCallName,
    },
    /// A rank that replays makes a call which the others have not made there.
    #[error(
        "rank {rank} replays {call}, which the others have not made: a program that replays has to make the same calls"
    )]
    Extra {
        /// The rank that replays.
        rank: Rank,
        /// Which call.
        call: ReplayCallName,
    },
    /// A rank ends a version, and the others have made another call in it.
    #[error(
        "rank {rank} ends its version before {call}, which the others have made: a program that replays has to make the same calls"
    )]
    Missing {
        /// The rank that replays.
        rank: Rank,
        /// Which call.
        call: ReplayCallName,
    },
    /// A checkpoint is to be loaded in the middle of a version.
    #[error(
        "rank {rank} loads a checkpoint after {calls} calls of version {version}: call load_checkpoint() once, before them"
    )]
    LateLoad {
        /// Which rank.
        rank: Rank,
        /// Its version.
        version: u32,
        /// How many calls it has made in it.
        calls: u64,
    },
    /// A process has taken a lost one's place, and has not loaded the checkpoint.
    #[error(
        "rank {rank} calls checkpoint() and has not loaded version {version}, which the others have: call load_checkpoint() first"
    )]
    NotLoaded {
        /// Which rank.
        rank: Rank,
        /// The version.
        version: u32,
    },
    /// Other ranks ask for an item that this rank does not have, or give one that no rank asked for.
    #[error(
        "rank {rank} is asked for {item}, which it does not have: run one release on all ranks, and if they do, report it as a bug"
    )]
    NotHeld {
        /// Which rank.
        rank: Rank,
        /// The item.
        item: ReplayItem,
    },
}

/// A call, as errors name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayCallName {
    /// A call of a version.
    At(ReplayPoint),
    /// A call before a checkpoint was loaded, with the number of earlier calls at its place.
    Bootstrap(u32),
}

impl core::fmt::Display for ReplayCallName {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::At(ReplayPoint { version, call }) => write!(f, "call {call} of version {version}"),
            Self::Bootstrap(nth) => write!(f, "call {nth} at its place before load_checkpoint"),
        }
    }
}
