//! What makes a group: the same on all its ranks, except for which of them this is.

use crate::{
    config::Transport,
    core::{algorithm::Algorithm, group::Rank, session::Parameters, wire::Fingerprint},
    execute::{program::Sizing, staging},
};
use std::{sync::Arc, time::Duration};

/// What makes a group: the same on all its ranks, except `me`.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) id: u32,
    /// The roster's epoch.
    pub(crate) epoch: u64,
    /// The endpoints of the roster: workers by rank, then reducers.
    pub(crate) roster: Vec<u32>,
    pub(crate) workers: u32,
    /// My position in the roster.
    pub(crate) me: Rank,
    /// The host of each worker.
    pub(crate) hosts: Vec<u32>,
    /// What rank 0 has decided.
    pub(crate) parameters: Arc<Parameters>,
    /// The same number for workers between whom messages go through memory.
    pub(crate) memories: Vec<u32>,
    pub(crate) sizing: Sizing,
    /// The algorithm that is forced; reducers are told which one is taken.
    pub(crate) forced: Option<Algorithm>,
    pub(crate) timeout: Duration,
}

impl Settings {
    /// Those of a group that takes `parameters`, where nothing is forced and no operation has a timeout.
    pub(crate) fn new(
        id: u32,
        epoch: u64,
        (roster, workers, me): (Vec<u32>, u32, Rank),
        hosts: Vec<u32>,
        parameters: Arc<Parameters>,
    ) -> Self {
        let memories = match parameters.transport.as_deref() {
            Some(name) if name == Transport::Tcp.name() => (0..workers).collect(),
            _ => hosts.clone(),
        };
        let sizing = Sizing {
            hosts: Sizing::distinct(&hosts),
            shared: Sizing::distinct(&memories) == 1,
            segment_bytes: parameters.segment as usize,
            most_staged: staging::most_of(parameters.staging as usize),
        };
        let (forced, timeout) = (None, Duration::MAX);
        Self { id, epoch, roster, workers, me, hosts, parameters, memories, sizing, forced, timeout }
    }

    /// The workers, by their numbers in the job.
    pub(crate) fn members(&self) -> &[u32] {
        &self.roster[..self.workers as usize]
    }

    /// How many reducers the roster has.
    pub(crate) fn reducers(&self) -> u32 {
        self.roster.len() as u32 - self.workers
    }

    /// What was called, as errors show it.
    pub(super) fn named(&self, called: Fingerprint) -> Fingerprint {
        called.in_job(self.members())
    }
}
