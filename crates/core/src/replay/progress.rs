//! How far a process is.

use super::{
    ReplayPoint,
    models::Models,
    results::KeptResults,
    standing::{CheckpointOffer, ReplayPosition},
};
use alloc::vec::Vec;

/// What a process has once it knows how far the others are.
#[derive(Clone, Debug)]
pub(super) struct ReplayProgress<M> {
    pub(super) version: u32,
    pub(super) calls: u64,
    pub(super) closes_at: Option<u64>,
    pub(super) has_loaded: bool,
    pub(super) results: KeptResults<M>,
    pub(super) current: Models<M>,
    /// While the program is in the next checkpoint.
    pub(super) pending: Option<Models<M>>,
}

impl<M> ReplayProgress<M> {
    /// Version 0, or the one at which a process begins that was started again.
    pub(super) fn begins(version: u32, results: KeptResults<M>) -> Self {
        Self {
            version,
            calls: 0,
            closes_at: None,
            has_loaded: false,
            results,
            current: Models::default(),
            pending: None,
        }
    }

    pub(super) fn point(&self) -> ReplayPoint {
        ReplayPoint { version: self.version, call: self.calls }
    }

    /// The next checkpoint counts.
    pub(super) fn install(&mut self) {
        self.current = self.pending.take().unwrap_or_default();
        self.version += 1;
        self.calls = 0;
        self.closes_at = None;
    }

    pub(super) fn position(&self) -> ReplayPosition {
        ReplayPosition {
            version: self.version,
            calls: self.calls,
            closes_at: self.closes_at,
            has_loaded: self.has_loaded,
            results: self.results.runs(),
            current: self.current.held(),
            pending: self.pending.as_ref().map(Models::held),
        }
    }
}

/// Where a rank is in a checkpoint.
#[derive(Clone, Debug)]
pub(super) enum CheckpointPhase {
    /// Ranks say what they have.
    Offer,
    /// They hand on local models: this is what each rank has said of its own.
    Hand(Vec<CheckpointOffer>),
    /// All have what they keep for others.
    Meet,
    /// It counts.
    Installed,
}
