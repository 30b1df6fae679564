//! A server's search for the others.

use super::{
    epoch::{Epoch, ServerLife},
    message::Candidacy,
};
use crate::session::election::Election;
use alloc::collections::BTreeMap;

/// A server's search for the others.
#[derive(Debug)]
pub(super) struct Search {
    pub(super) election: Election,
    /// Those that have come here, and what they bring.
    pub(super) comers: BTreeMap<u32, Candidacy>,
    /// Since when.
    pub(super) since: u64,
    /// Where this one has gone.
    pub(super) at: Option<u32>,
}

impl Search {
    /// Whether this server has come to that one.
    pub(super) fn is_at(&self, server: u32) -> bool {
        self.at == Some(server)
    }
}

/// Whether that process proposed it.
pub(super) fn is_proposal_of(epoch: &Epoch, process: ServerLife) -> bool {
    epoch.id.decider == process.server && epoch.has(process)
}
