//! How a program that loses a process continues from the same call. The protocol is RABIT's (Chen, Cano, Zhou, "RABIT:
//! A Reliable Allreduce and Broadcast Interface", 2015), without a round of consensus for each call.
//!
//! A program makes the same calls on all ranks, and ends each **version** of its model with a checkpoint. Each rank
//! keeps the results of the calls since the last checkpoint. If a process ends, the others pause in their next call
//! until a new one has its place. It begins at the last checkpoint. The calls that the others have made since return at
//! once, with the results that they keep.
//!
//! ```text
//! Regroup     form the group anew, of all ranks
//! Exchange    all-gather of standings: what each rank has, and how far it is
//! Transfer    all ranks work out the same decision, and send each other what it says
//! Run         the call itself, as if there were no recovery
//! ```
//!
//! The first three steps follow when a group is formed, and only then. Afterwards all ranks are **level**: each can get
//! the results of all calls that any of them has completed. So a call runs on all ranks or on none, and no rank has to
//! ask. If anything fails, it begins again with the first step.
//!
//! A **checkpoint** is an all-gather, in which each rank reports what it has. If they have local models, each hands its
//! own to the next ranks, and a barrier follows. So a rank that is one version ahead proves that all others are in that
//! checkpoint, and have everything that belongs to it. If they learn of it in an exchange, they install it, too.
//!
//! A **lazy** checkpoint keeps the program's own model, which is turned into bytes only if a rank asks for it. The
//! program changes the model after the last call of the next version. So ranks that are in that version's checkpoint
//! cannot give the old one any more. They give the new one instead: it is the same on all ranks, and a rank that begins
//! with it has nothing to replay.
//!
//! **What is kept.** A result that contains all ranks' inputs proves that all have made that call. So earlier results
//! are kept on some ranks only, as RABIT does: the result of call s where `s % round == rank % round`, on about
//! [`global_replica`](ReplaySettings::global_replica) ranks. Later results are kept on all: the root of a broadcast can
//! be several calls ahead.
//!
//! [`ReplayMember`] is one rank's machine, and [`decide`] the decision.

mod bootstrap;
mod checkpoint;
mod decision;
mod error;
mod item;
mod member;
mod models;
mod progress;
mod results;
mod standing;

pub use decision::{ReplayDecision, decide};
pub use error::{ReplayCallName, ReplayError};
pub use item::{ReplayItem, ReplayTransfer};
pub use member::{ReplayCall, ReplayMember, ReplayPart, ReplayPayload, ReplayStep};
pub use models::{Kept, ReplayGlobal};
pub use standing::{
    CallSite, CheckpointOffer, HeldBootstrap, HeldGlobal, HeldLocal, HeldModels, ReplayPosition,
    ReplayStanding, ResultRun,
};

use crate::group::Rank;

/// A call of a program with recovery: its version, and how many calls came before it in that version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReplayPoint {
    /// How many checkpoints came before it.
    pub version: u32,
    /// How many calls of that version came before it.
    pub call: u64,
}

/// How much is kept. The same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplaySettings {
    /// On about how many ranks a result is kept that all have passed: RABIT's `rabit_global_replica`.
    pub global_replica: u32,
    /// On how many other ranks a local model is kept: RABIT's `rabit_local_replica`.
    pub local_replica: u32,
    /// The rules of all ranks; see [`ReplayRules`].
    pub rules: ReplayRules,
}

impl Default for ReplaySettings {
    /// RABIT's numbers.
    fn default() -> Self {
        Self { global_replica: 5, local_replica: 2, rules: ReplayRules::DEFAULT }
    }
}

/// The rules that a rank follows. All ranks follow [`ReplayRules::DEFAULT`]; others are faults to plant, which test the
/// checks for faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayRules {
    /// A checkpoint counts once all ranks have the local models that they keep for others.
    pub checkpoints_in_two_phases: bool,
    /// Results are kept as long as a rank might be behind.
    pub keeps_results_until_all_passed: bool,
    /// A process that has just started is not asked for anything.
    pub asks_holders_only: bool,
    /// A lazy model that might have changed is not given away.
    pub gives_only_unchanged_models: bool,
}

impl ReplayRules {
    /// The rules without a fault.
    pub const DEFAULT: Self = Self {
        checkpoints_in_two_phases: true,
        keeps_results_until_all_passed: true,
        asks_holders_only: true,
        gives_only_unchanged_models: true,
    };
}

/// How far it is from one rank to another on the ring of all, in the shorter direction.
fn distance(from: Rank, to: Rank, size: u32) -> u32 {
    let forward = (to + size - from) % size;
    forward.min(size - forward)
}
