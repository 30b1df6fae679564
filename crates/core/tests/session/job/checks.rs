//! What is to be true of a job, whatever happened to it.

use super::{
    Phase, World,
    scenario::{Scenario, Trouble},
    worker::{CallEnd, Called, State, Worker},
};
use herringbone_core::{
    group::Rank,
    session::{Cause, group_state::GroupFailure},
    wire::Fingerprint,
};
use std::{collections::BTreeMap, sync::Arc};

/// Whom an error names.
fn named(failure: &GroupFailure) -> Vec<Rank> {
    match failure {
        GroupFailure::Decided(cause) => match &**cause {
            Cause::PeerLost { ranks } | Cause::Left { ranks, .. } => ranks.clone(),
            Cause::Aborted { rank, .. } => vec![*rank],
            _ => Vec::new(),
        },
        GroupFailure::Gone(gone) => gone.ranks.clone(),
        GroupFailure::Closed => Vec::new(),
    }
}

impl World {
    pub(super) fn who_waits(&self) -> String {
        let waits = |worker: &&Worker| !worker.is_done(&self.job);
        let waits = self.workers.iter().filter(waits).map(Worker::waits_in);
        format!("in phase {:?} ranks wait: {}", self.phase, waits.collect::<Vec<_>>().join("; "))
    }

    /// The ranks that make all calls to the end.
    fn staying(&self) -> impl Iterator<Item = &Worker> {
        self.workers.iter().filter(|worker| worker.stays())
    }

    /// The ranks without which the others cannot go on.
    fn gone(&self) -> Vec<Rank> {
        self.workers.iter().filter(|worker| !worker.stays()).map(|worker| worker.rank).collect()
    }

    pub(super) fn check(&self, phase: Phase) -> Result<(), String> {
        self.workers.iter().find_map(|worker| worker.wrong.clone()).map_or(Ok(()), Err)?;
        self.check_harmless()?;
        if phase == Phase::OneMore {
            self.check_one_more()?;
        }
        if phase == Phase::Close || self.job.scenario.closes_at_once {
            self.check_news()?;
        }
        Ok(())
    }

    /// A lost reducer costs no call.
    fn check_harmless(&self) -> Result<(), String> {
        if !self.job.scenario.troubles.iter().all(|(_, trouble)| trouble.is_harmless()) {
            return Ok(());
        }
        let failed =
            |worker: &Worker| worker.calls.iter().any(|called| !matches!(called.end, Some(CallEnd::Well)));
        match self.workers.iter().find(|worker| failed(worker)) {
            Some(worker) => {
                Err(format!("a lost reducer has cost a call of rank {}: {:?}", worker.rank, worker.calls))
            }
            None => Ok(()),
        }
    }

    /// Where nobody is gone, all calls are in step again. Else the error names who is gone.
    fn check_one_more(&self) -> Result<(), String> {
        let gone = self.gone();
        let mut met: Option<(u32, Fingerprint)> = None;
        for Worker { rank, calls, .. } in self.staying() {
            let Some(Called { group, fingerprint, end: Some(end) }) = calls.last() else {
                return Err(format!("rank {rank} has not called once more"));
            };
            match end {
                CallEnd::Well if gone.is_empty() => {
                    let own = (*group, *fingerprint);
                    if *met.get_or_insert(own) != own {
                        return Err(format!("rank {rank} is out of step: {own:?}, {met:?}"));
                    }
                }
                CallEnd::Failed(failure) if !gone.is_empty() => {
                    let named = named(failure);
                    let is_gone = |rank: &Rank| gone.contains(rank) || self.may_seem_gone();
                    if named.is_empty() || !named.iter().all(is_gone) {
                        return Err(format!("{gone:?} are gone, and rank {rank} hears of {failure:?}"));
                    }
                }
                end => return Err(format!("{gone:?} are gone, and rank {rank}'s call has ended: {end:?}")),
            }
        }
        Ok(())
    }

    /// Whether a rank that lives may be taken for lost: without rank 0 a broken link says no more.
    fn may_seem_gone(&self) -> bool {
        let breaks = |(_, trouble): &(u32, Trouble)| matches!(trouble, Trouble::Break { .. });
        self.workers[0].state != State::Runs && self.job.scenario.troubles.iter().any(breaks)
    }

    /// Whatever was decided every rank has learnt, and whoever has called something else than others has.
    fn check_news(&self) -> Result<(), String> {
        if !self.gone().is_empty() {
            return Ok(());
        }
        let learnt = |worker: &Worker| -> Vec<Arc<Cause>> {
            let failed = worker.calls.iter().filter_map(|called| match &called.end {
                Some(CallEnd::Failed(GroupFailure::Decided(cause))) => Some(cause.clone()),
                _ => None,
            });
            failed.chain(worker.news.iter().cloned()).collect()
        };
        let all: Vec<(&Worker, Vec<Arc<Cause>>)> =
            self.workers.iter().map(|worker| (worker, learnt(worker))).collect();
        // Who has left after calls in which it has heard all need not hear that one has failed elsewhere; nor who has waited for long.
        let Scenario { closes_at_once, troubles, .. } = &self.job.scenario;
        let has_paused = troubles.iter().any(|(_, trouble)| matches!(trouble, Trouble::Pause(_)));
        let is_for_all =
            |cause: &&Arc<Cause>| !closes_at_once || !has_paused && matches!(***cause, Cause::Mismatch(_));
        for (_, causes) in &all {
            for cause in causes.iter().filter(is_for_all) {
                let lacks = |(worker, own): &&(&Worker, Vec<Arc<Cause>>)| {
                    !own.contains(cause) && !worker.has_failed_ahead
                };
                if let Some((worker, own)) = all.iter().find(lacks) {
                    return Err(format!("rank {} has not learnt of {cause}, but of {own:?}", worker.rank));
                }
            }
        }
        let mut issued: BTreeMap<(u32, u64), Fingerprint> = BTreeMap::new();
        for called in self.workers.iter().flat_map(|worker| &worker.calls) {
            let key = (called.group, called.fingerprint.sequence);
            let differs = *issued.entry(key).or_insert(called.fingerprint) != called.fingerprint;
            if differs && all.iter().all(|(worker, causes)| causes.is_empty() && !worker.has_failed_ahead) {
                return Err(format!("nobody has learnt that calls differ: {:?}", called.fingerprint));
            }
        }
        Ok(())
    }
}
