//! The results that a rank keeps.

use super::{
    ReplayPoint, ReplaySettings,
    models::{Kept, KeptResult},
    standing::ResultRun,
};
use crate::group::Rank;
use alloc::{collections::BTreeMap, vec::Vec};

/// The results of this version's calls, and of the next version's if this rank is behind. What it has not called yet is here, too.
#[derive(Clone, Debug)]
pub(super) struct KeptResults<M> {
    kept: BTreeMap<ReplayPoint, KeptResult<M>>,
    /// Of so many calls one is kept by this rank for good.
    round: u64,
    /// Which one of them.
    mine: u64,
    keeps_until_all_passed: bool,
    /// Of the calls before this one those are dropped that this rank does not keep for good.
    looked_at: ReplayPoint,
    bytes: u64,
}

impl<M> KeptResults<M> {
    pub(super) fn new(rank: Rank, size: u32, settings: &ReplaySettings) -> Self {
        let round = u64::from((size / settings.global_replica.max(1)).max(1));
        Self {
            kept: BTreeMap::new(),
            round,
            mine: u64::from(rank) % round,
            keeps_until_all_passed: settings.rules.keeps_results_until_all_passed,
            looked_at: ReplayPoint { version: 0, call: 0 },
            bytes: 0,
        }
    }

    pub(super) fn get(&self, point: ReplayPoint) -> Option<&KeptResult<M>> {
        self.kept.get(&point)
    }

    pub(super) fn insert(&mut self, point: ReplayPoint, result: KeptResult<M>) {
        self.bytes += result.kept.bytes;
        let before = self.kept.insert(point, result);
        self.bytes -= before.map_or(0, |before| before.kept.bytes);
    }

    /// This rank has the result of a call. If it proves that `all` ranks have come to the call, no live rank needs those before it.
    pub(super) fn passed(&mut self, point: ReplayPoint, all: bool) {
        if self.round == 1 || self.keeps_until_all_passed && !all {
            return;
        }
        let first = self.looked_at.max(ReplayPoint { call: 0, ..point });
        let others = (first.call..point.call).filter(|call| call % self.round != self.mine);
        for call in others {
            let dropped = self.kept.remove(&ReplayPoint { call, ..point });
            self.bytes -= dropped.map_or(0, |dropped| dropped.kept.bytes);
        }
        self.looked_at = point;
    }

    /// A version is over: its results are part of the model.
    pub(super) fn drop_before(&mut self, version: u32) {
        self.kept = self.kept.split_off(&ReplayPoint { version, call: 0 });
        self.bytes = self.kept.values().map(|result| result.kept.bytes).sum();
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What others are told of them: calls of one kind that follow each other, and whose results are of one size, make a run.
    pub(super) fn runs(&self) -> Vec<ResultRun> {
        let mut runs: Vec<ResultRun> = Vec::new();
        for (point, KeptResult { kind, kept: Kept { bytes, .. } }) in &self.kept {
            match runs.last_mut() {
                Some(run) if run.next() == *point && (run.bytes, run.kind) == (*bytes, *kind) => {
                    run.count += 1
                }
                _ => runs.push(ResultRun { first: *point, count: 1, kind: *kind, bytes: *bytes }),
            }
        }
        runs
    }
}
