//! One is lost: looking for the others, and who of them go on.

use super::{
    epoch::{Epoch, EpochId, ServerLife, SettledEpoch},
    message::{Candidacy, PeerMessage},
    node::{NodePhase, TableNode},
};
use crate::session::{
    election::Election,
    survivors::{Shrink, ShrinkOutcome},
};
use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};

/// A server's search for the others.
#[derive(Debug)]
pub(super) struct Search {
    election: Election,
    /// Those that have come here, and what they bring.
    comers: BTreeMap<u32, Candidacy>,
    /// Where this one has gone.
    at: Option<u32>,
}

/// What all that have met know together.
struct Met {
    /// The last epoch of which one knows that it counts.
    settled: Option<SettledEpoch>,
    /// The epochs of which the next one needs a majority.
    bases: Vec<Epoch>,
    highest: EpochId,
    dead: BTreeSet<ServerLife>,
    replaced: BTreeSet<ServerLife>,
}

impl TableNode {
    /// Begins to look for the others.
    pub(super) fn search(&mut self) {
        let own = self.own;
        // What this server proposed, and has not settled, never comes to count.
        self.possible.retain(|epoch| !is_proposal_of(epoch, own));
        if self.bases().next().is_none() {
            self.phase = NodePhase::Outside;
            return;
        }
        // Places that are in no epoch count as ended.
        let is_in = |server: &u32| self.bases().any(|epoch| epoch.members.contains_key(server));
        let absent = (0..self.servers).filter(|server| !is_in(server)).map(|server| (server, true)).collect();
        let election = Election::new(self.own.server, self.shrink(), &absent);
        self.phase = NodePhase::Electing(Box::new(Search { election, comers: BTreeMap::new(), at: None }));
    }

    /// The epochs that count or may count.
    fn bases(&self) -> impl Iterator<Item = &Epoch> {
        self.settled.iter().map(|settled| &settled.epoch).chain(&self.possible)
    }

    /// An election among all places.
    fn shrink(&self) -> Shrink {
        Shrink { group: 0, members: (0..self.servers).collect(), least: 1, dead: Vec::new(), completed: 0 }
    }

    /// The last process that its epochs know in a place.
    fn expected(&self, server: u32) -> Option<ServerLife> {
        let life = self.bases().filter_map(|epoch| epoch.members.get(&server)).last()?;
        Some(ServerLife { server, life: *life })
    }

    fn candidacy(&self) -> Candidacy {
        let of_bases: BTreeSet<ServerLife> = self.bases().flat_map(Epoch::processes).collect();
        let is_replaced = |process: &&ServerLife| {
            self.peers.get(&process.server).is_some_and(|peer| peer.life != process.life)
        };
        Candidacy {
            settled: self.settled.clone(),
            possible: self.possible.clone(),
            highest: self.highest,
            dead: of_bases.intersection(&self.dead).copied().collect(),
            replaced: of_bases.iter().filter(is_replaced).copied().collect(),
        }
    }

    /// A server looks for others, and this one is to do so, too.
    pub(super) fn called(&mut self, from: u32, settled: EpochId) {
        let joins = matches!(self.phase, NodePhase::Active | NodePhase::Promised { .. });
        let Some(process) = self.expected(from).filter(|process| self.is_well(*process)) else { return };
        match &self.settled {
            Some(own) if own.epoch.id > settled && own.epoch.has(process) => {
                let commit = PeerMessage::Commit(own.clone());
                self.send(from, commit);
            }
            _ if joins => self.search(),
            _ => {}
        }
    }

    /// A server comes here, for it sees no lower one.
    pub(super) fn comes(&mut self, from: u32, candidacy: Candidacy) {
        let settled = candidacy.settled.as_ref().map(|settled| settled.epoch.id).unwrap_or_default();
        match &self.phase {
            NodePhase::Electing(_) => {}
            // It does not promise what this one proposes.
            NodePhase::Proposing { promises, .. } if !promises.contains_key(&from) => self.search(),
            _ => self.called(from, settled),
        }
        let request = self.shrink();
        let NodePhase::Electing(search) = &mut self.phase else { return };
        if search.election.comes(from, &request) {
            search.comers.insert(from, candidacy);
        }
    }

    pub(super) fn withdraws(&mut self, from: u32) {
        if let NodePhase::Electing(search) = &mut self.phase {
            search.election.withdraws(from);
            search.comers.remove(&from);
        }
    }

    /// Calls others, and decides if all are here.
    pub(super) fn drive(&mut self) {
        let (now, candidacy) = (self.now, self.candidacy());
        let expected: BTreeMap<u32, bool> = (0..self.servers)
            .filter_map(|server| self.expected(server))
            .map(|process| (process.server, self.is_well(process)))
            .collect();
        let is_well = |server: &u32| expected.get(server) == Some(&true);
        let settled = candidacy.settled.as_ref().map(|settled| settled.epoch.id).unwrap_or_default();
        let own = self.own.server;
        let NodePhase::Electing(search) = &mut self.phase else { return };
        let Search { election, comers, at } = &mut **search;
        let gone = candidacy.dead.iter().chain(&candidacy.replaced).map(|process| (process.server, true));
        election.learn(&gone.collect());
        for server in comers.keys().copied().filter(|server| !is_well(server)).collect::<Vec<_>>() {
            election.withdraws(server);
            comers.remove(&server);
        }
        for server in expected.keys().copied().filter(is_well) {
            if election.is_silent(server) {
                election.lives(server, now);
            }
        }
        let mut messages = Vec::new();
        for server in election.to_call(now) {
            if !is_well(&server) {
                election.failed(server, now);
                continue;
            }
            election.lives(server, now);
            let message = if server > own {
                PeerMessage::Call { settled }
            } else {
                let before = at.replace(server).filter(|before| *before != server);
                messages.extend(before.map(|before| (before, PeerMessage::Withdraw)));
                PeerMessage::Come(candidacy.clone())
            };
            messages.push((server, message));
        }
        let outcome = election.outcome();
        for (to, message) in messages {
            self.send(to, message);
        }
        if let Some(ShrinkOutcome::Continue(left)) = outcome {
            self.decide(&left);
        }
    }

    /// All that may live are here.
    fn decide(&mut self, left: &[u32]) {
        let Some(met) = self.met() else { return };
        let Met { settled, bases, highest, dead, replaced } = met;
        let members: BTreeMap<u32, u64> =
            left.iter().filter_map(|server| self.expected(*server)).map(|it| (it.server, it.life)).collect();
        // Who has not heard of the epoch that counts, and is not in it, has been left behind.
        let strangers: BTreeMap<u32, bool> = left
            .iter()
            .filter(|server| settled.as_ref().is_some_and(|it| !it.epoch.members.contains_key(*server)))
            .filter(|server| !bases.iter().any(|base| base.members.contains_key(*server)))
            .map(|server| (*server, true))
            .collect();
        if !strangers.is_empty() {
            if let NodePhase::Electing(search) = &mut self.phase {
                search.election.learn(&strangers);
            }
            return;
        }
        let has_majority = |base: &Epoch| {
            let (mut here, mut silent, mut others) = (0, 0, 0);
            for process in base.processes().filter(|process| !dead.contains(process)) {
                if members.get(&process.server) == Some(&process.life) {
                    here += 1;
                } else if replaced.contains(&process) {
                    others += 1;
                } else {
                    silent += 1;
                }
            }
            // Those that ended may have been in an epoch with the silent ones, if together they were more than those here.
            here > silent && here >= silent + others
        };
        if bases.iter().all(has_majority) {
            self.settled = settled;
            self.possible = bases.iter().filter(|base| Some(base.id) > self.settled_id()).cloned().collect();
            self.highest = self.highest.max(highest);
            self.propose(members, false);
        }
    }

    pub(super) fn settled_id(&self) -> Option<EpochId> {
        self.settled.as_ref().map(|settled| settled.epoch.id)
    }

    /// What is known to all that are here; `None` if this server has been left behind.
    fn met(&mut self) -> Option<Met> {
        let own = self.candidacy();
        let NodePhase::Electing(search) = &self.phase else { return None };
        let all: Vec<&Candidacy> = search.comers.values().chain([&own]).collect();
        let settled = all.iter().filter_map(|it| it.settled.as_ref()).max_by_key(|it| it.epoch.id).cloned();
        let least = settled.as_ref().map(|settled| settled.epoch.id);
        let mut bases: BTreeMap<EpochId, Epoch> = BTreeMap::new();
        for epoch in settled.iter().map(|it| &it.epoch).chain(all.iter().flat_map(|it| &it.possible)) {
            if Some(epoch.id) >= least && (Some(epoch.id) == least || !is_proposal_of(epoch, self.own)) {
                bases.insert(epoch.id, epoch.clone());
            }
        }
        let bases: Vec<Epoch> = bases.into_values().collect();
        let highest = all.iter().map(|it| it.highest).max().unwrap_or_default();
        let dead = all.iter().flat_map(|it| it.dead.iter().copied()).collect();
        let replaced = all.iter().flat_map(|it| it.replaced.iter().copied()).collect();
        let met = Met { settled, bases, highest, dead, replaced };
        met.bases.iter().any(|base| base.has(self.own)).then_some(met)
    }
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
