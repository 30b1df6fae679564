//! The items that ranks send each other.

use super::{ReplayPoint, standing::CallSite};
use crate::group::Rank;
use core::fmt;

/// Something that one rank has and another one needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReplayItem {
    /// The result of a call before a checkpoint was loaded.
    Bootstrap(CallSite),
    /// The model that all ranks have.
    Global {
        /// Its version.
        version: u32,
    },
    /// A rank's own model.
    Local {
        /// Its version.
        version: u32,
        /// Whose.
        owner: Rank,
    },
    /// The result of a call.
    Result(ReplayPoint),
}

impl fmt::Display for ReplayItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bootstrap(site) => {
                write!(f, "the result of call {} at its place before load_checkpoint", site.nth)
            }
            Self::Global { version } => write!(f, "the global model of version {version}"),
            Self::Local { version, owner } => write!(f, "the local model of rank {owner}, version {version}"),
            Self::Result(ReplayPoint { version, call }) => {
                write!(f, "the result of call {call} of version {version}")
            }
        }
    }
}

/// One rank sends another one something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayTransfer {
    /// The item.
    pub item: ReplayItem,
    /// The rank that has it.
    pub from: Rank,
    /// The rank that needs it.
    pub to: Rank,
    /// The [kind](super::ReplayCall::Collective) of the call, if the item is a result.
    pub kind: Option<u64>,
    /// How many bytes it has; `None` for a lazy model that has not been turned into bytes.
    pub bytes: Option<u64>,
}
