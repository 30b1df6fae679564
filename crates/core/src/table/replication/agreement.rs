//! Which servers the next epoch has: one is lost, and the others are looked for; or one comes. It is proposed, promised, and in
//! force once all have promised it.

use super::{
    epoch::{Epoch, EpochId, HeldRange, ServerLife, SettledEpoch, Tenure, lay_out},
    message::{Candidacy, PeerMessage},
    search::{Search, is_proposal_of},
    state::{HeldLog, NodeOutput, NodePhase, TableNode},
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

/// For so many milliseconds a decider waits until all that have come to it hear each other: servers call each other ten times a
/// second. Then it goes on with those that do.
const JOINING: u64 = 1_000;

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
        self.phase = NodePhase::Electing(Box::new(Search {
            election,
            comers: BTreeMap::new(),
            since: self.time.now,
            at: None,
        }));
    }

    /// The epochs that count or may count.
    pub(super) fn bases(&self) -> impl Iterator<Item = &Epoch> {
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
        // One that had given this one up may have gone on with others before it ended.
        let is_replaced = |process: &&ServerLife| {
            let is_other = self.peers.get(&process.server).is_some_and(|peer| peer.life != process.life);
            is_other && !self.known.given_up_by.contains(process)
        };
        Candidacy {
            settled: self.settled.clone(),
            possible: self.possible.clone(),
            highest: self.highest,
            dead: of_bases.intersection(&self.known.dead).copied().collect(),
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
        let (now, candidacy) = (self.time.now, self.candidacy());
        let expected: BTreeMap<u32, bool> = (0..self.servers)
            .filter_map(|server| self.expected(server))
            .map(|process| (process.server, self.is_well(process)))
            .collect();
        let is_well = |server: &u32| expected.get(server) == Some(&true);
        let settled = candidacy.settled.as_ref().map(|settled| settled.epoch.id).unwrap_or_default();
        let own = self.own.server;
        let NodePhase::Electing(search) = &mut self.phase else { return };
        let Search { election, comers, at, .. } = &mut **search;
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
        let here: Vec<ServerLife> = left.iter().filter_map(|server| self.expected(*server)).collect();
        let members = self.joined(&here);
        let NodePhase::Electing(search) = &self.phase else { return };
        if members.len() < here.len() && self.time.now < search.since + JOINING {
            return;
        }
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

    /// The most of these processes that all hear each other, with this one: an epoch of others would be over as soon as it counts.
    fn joined(&self, processes: &[ServerLife]) -> BTreeMap<u32, u64> {
        let joined_with = |first: ServerLife| {
            let mut joined = Vec::from([self.own]);
            for process in [first].iter().chain(processes) {
                if !joined.contains(process) && joined.iter().all(|other| self.are_joined(*process, *other)) {
                    joined.push(*process);
                }
            }
            joined
        };
        let sets = processes.iter().map(|first| joined_with(*first));
        // Of equal ones the first.
        let most = sets.rev().max_by_key(Vec::len).unwrap_or_default();
        most.into_iter().map(|process| (process.server, process.life)).collect()
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

    /// All servers are new: the first of them proposes the first epoch.
    pub(super) fn begin_together(&mut self) {
        let is_new = |server: u32| {
            self.peers.get(&server).is_some_and(|peer| {
                let process = ServerLife { server, life: peer.life };
                peer.is_known && peer.epoch.is_none() && !peer.is_unsure && self.is_well(process)
            })
        };
        if self.own.server == 0 && (1..self.servers).all(is_new) {
            let lives =
                self.peers.iter().map(|(server, peer)| ServerLife { server: *server, life: peer.life });
            let members = self.joined(&lives.chain([self.own]).collect::<Vec<_>>());
            if members.len() == self.servers as usize {
                self.propose(members, false);
            }
        }
    }

    /// The decider lets others in, and gives ranges back to those that are to have them.
    pub(super) fn improve(&mut self) {
        let Some(SettledEpoch { epoch, tenures }) = &self.settled else { return };
        if epoch.decider() != Some(self.own.server) {
            return;
        }
        let new = self.peers.iter().filter(|(server, peer)| {
            let process = ServerLife { server: **server, life: peer.life };
            let is_outside = peer.is_known && peer.epoch.is_none() && !peer.is_unsure;
            is_outside && !epoch.members.contains_key(server) && self.is_well(process)
        });
        let mut next: Vec<ServerLife> = epoch.processes().collect();
        for process in new.map(|(server, peer)| ServerLife { server: *server, life: peer.life }) {
            if next.iter().all(|other| self.are_joined(process, *other)) {
                next.push(process);
            }
        }
        if next.len() > epoch.members.len() || self.can_improve(epoch, tenures) {
            let members = next.into_iter().map(|process| (process.server, process.life)).collect();
            self.propose(members, true);
        }
    }

    /// Whether all copies are whole, and others are to have them.
    fn can_improve(&self, epoch: &Epoch, tenures: &[Tenure]) -> bool {
        let mut held: BTreeMap<u32, Vec<HeldRange>> = BTreeMap::new();
        let whole_of = |server: u32| match self.peers.get(&server) {
            _ if server == self.own.server => Some(self.held()),
            Some(peer) if peer.epoch.as_ref().is_some_and(|theirs| theirs.id == epoch.id) => {
                let held_range =
                    |range: &u32| HeldRange { range: *range, epoch: epoch.id, sequence: 0, is_settled: true };
                Some(peer.whole.iter().map(held_range).collect())
            }
            _ => None,
        };
        for server in epoch.members.keys() {
            let Some(whole) = whole_of(*server) else { return false };
            let alike = |held: HeldRange| HeldRange { sequence: 0, is_settled: true, ..held };
            held.insert(*server, whole.into_iter().map(alike).collect());
        }
        let has = |server: u32, range: u32| {
            held[&server].iter().any(|held| held.range == range && held.epoch == epoch.id)
        };
        let is_loading =
            |(range, tenure): (u32, &Tenure)| tenure.copies.iter().any(|copy| !has(copy.server, range));
        if (0..).zip(tenures).any(is_loading) {
            return false;
        }
        let servers = |tenure: &Tenure| tenure.copies.iter().map(|copy| copy.server).collect::<Vec<u32>>();
        let wanted = lay_out(epoch.id, self.servers, self.replicas, tenures, &held);
        wanted.iter().zip(tenures).any(|(wanted, tenure)| {
            wanted.owner.is_some() && (wanted.owner != tenure.owner || servers(wanted) != servers(tenure))
        })
    }

    /// What this server holds whole.
    pub(super) fn held(&self) -> Vec<HeldRange> {
        let whole = self.ranges.iter().filter(|(_, held)| held.is_whole);
        let held = |(range, held): (&u32, &HeldLog)| HeldRange {
            range: *range,
            epoch: held.epoch,
            sequence: held.log.sequence(),
            is_settled: held.log.stable() == held.log.sequence(),
        };
        whole.map(held).collect()
    }

    /// Of a server among new ones: all ranges, which are empty.
    fn held_at_first(&mut self) -> Vec<HeldRange> {
        let forgotten: Vec<u32> = self.ranges.keys().copied().collect();
        self.ranges.clear();
        self.outputs.extend(forgotten.into_iter().map(|range| NodeOutput::Forget { range }));
        let empty = |range| HeldRange { range, epoch: EpochId::default(), sequence: 0, is_settled: true };
        (0..self.servers).map(empty).collect()
    }

    /// Proposes the next epoch. Where nobody is lost, what waits for copies of its ranges is told first.
    pub(super) fn propose(&mut self, members: BTreeMap<u32, u64>, settles_first: bool) {
        let id = EpochId { counter: self.highest.counter + 1, decider: self.own.server };
        let epoch = Epoch { id, members };
        self.give_up_others(&epoch);
        let settled = self.settled.iter().map(|settled| settled.epoch.id);
        let bases: Vec<EpochId> = settled.chain(self.possible.iter().map(|epoch| epoch.id)).collect();
        for server in epoch.members.keys().copied().filter(|server| *server != self.own.server) {
            let proposal = PeerMessage::Propose { epoch: epoch.clone(), bases: bases.clone() };
            self.outputs.push(NodeOutput::Send { to: server, message: proposal });
        }
        self.highest = id;
        self.possible.push(epoch.clone());
        let mut promises = BTreeMap::new();
        if bases.is_empty() {
            promises.insert(self.own.server, self.held_at_first());
        }
        self.phase = NodePhase::Proposing { epoch, settles_first, promises };
        self.count_promises();
    }

    /// Says to those that are not in the next epoch that this server may go on without them.
    fn give_up_others(&mut self, next: &Epoch) {
        let bases = self.settled.iter().map(|settled| &settled.epoch).chain(&self.possible);
        let others: BTreeSet<ServerLife> =
            bases.flat_map(Epoch::processes).filter(|process| !next.has(*process)).collect();
        for process in others {
            if self.peers.get(&process.server).is_some_and(|peer| peer.life == process.life) {
                self.send(process.server, PeerMessage::GiveUp);
            }
        }
    }

    /// Whether no operation of its ranges waits for copies.
    fn is_settled(&self) -> bool {
        let is_settled =
            |range: &u32| self.ranges.get(range).is_none_or(|held| held.log.stable() == held.log.sequence());
        self.owned().iter().all(is_settled)
    }

    pub(super) fn proposed(&mut self, from: u32, epoch: Epoch, bases: &[EpochId]) {
        let Some(life) = self.life_of(from) else { return };
        // What it has proposed before it has given up.
        self.possible.retain(|epoch| !is_proposal_of(epoch, ServerLife { server: from, life }));
        let own_bases = self.settled.iter().map(|settled| settled.epoch.id);
        let are_known =
            own_bases.chain(self.possible.iter().map(|epoch| epoch.id)).all(|id| bases.contains(&id));
        let expects_it = match &self.phase {
            NodePhase::Outside => true,
            NodePhase::Active => {
                let settled = self.settled.as_ref().map(|settled| &settled.epoch);
                settled.is_some_and(|settled| settled.decider() == Some(from))
            }
            NodePhase::Electing(search) => search.is_at(from),
            NodePhase::Proposing { .. } | NodePhase::Promised { .. } => false,
        };
        let is_new = epoch.id > self.highest && epoch.id.decider == from;
        if !(are_known && expects_it && is_new && epoch.has(self.own)) {
            let (id, highest) = (epoch.id, self.highest);
            return self.send(from, PeerMessage::Refuse { id, highest });
        }
        self.give_up_others(&epoch);
        let id = epoch.id;
        self.highest = id;
        self.possible.push(epoch);
        let settles_first = matches!(self.phase, NodePhase::Active);
        self.phase = NodePhase::Promised { id, decider: from, is_said: false };
        if bases.is_empty() {
            let held = self.held_at_first();
            self.say(from, id, held);
        } else if !settles_first || self.is_settled() {
            let held = self.held();
            self.say(from, id, held);
        }
    }

    fn say(&mut self, decider: u32, id: EpochId, held: Vec<HeldRange>) {
        self.phase = NodePhase::Promised { id, decider, is_said: true };
        self.send(decider, PeerMessage::Promise { id, held });
    }

    /// A promise that waits until its ranges are settled.
    pub(super) fn say_promise(&mut self) {
        if let NodePhase::Promised { id, decider, .. } = self.phase
            && self.is_settled()
        {
            let held = self.held();
            self.say(decider, id, held);
        }
    }

    pub(super) fn promised(&mut self, from: u32, id: EpochId, held: Vec<HeldRange>) {
        if let NodePhase::Proposing { epoch, promises, .. } = &mut self.phase
            && epoch.id == id
            && epoch.members.contains_key(&from)
        {
            promises.insert(from, held);
        }
    }

    pub(super) fn refused(&mut self, id: EpochId, highest: EpochId) {
        self.highest = self.highest.max(highest);
        if matches!(&self.phase, NodePhase::Proposing { epoch, .. } if epoch.id == id) {
            self.search();
        }
    }

    /// The decider has its own promise, too, and the epoch is in force once it has all.
    pub(super) fn count_promises(&mut self) {
        let (is_settled, held, own) = (self.is_settled(), self.held(), self.own.server);
        let NodePhase::Proposing { epoch, settles_first, promises } = &mut self.phase else { return };
        if !promises.contains_key(&own) && (!*settles_first || is_settled) {
            promises.insert(own, held);
        }
        if promises.len() < epoch.members.len() {
            return;
        }
        let (epoch, promises) = (epoch.clone(), core::mem::take(promises));
        let before = self.settled.as_ref().map_or(&[][..], |settled| &settled.tenures);
        let tenures = lay_out(epoch.id, self.servers, self.replicas, before, &promises);
        let settled = SettledEpoch { epoch, tenures };
        for server in settled.epoch.members.keys().copied().filter(|server| *server != own) {
            self.outputs.push(NodeOutput::Send { to: server, message: PeerMessage::Commit(settled.clone()) });
        }
        self.enter(settled);
    }

    pub(super) fn committed(&mut self, settled: SettledEpoch) {
        let is_promised = self.possible.last().is_some_and(|last| last.id == settled.epoch.id);
        let waits = matches!(self.phase, NodePhase::Promised { .. } | NodePhase::Electing(_));
        if is_promised
            && waits
            && settled.epoch.has(self.own)
            && settled.tenures.len() == self.servers as usize
        {
            self.enter(settled);
        }
    }

    /// An epoch counts.
    fn enter(&mut self, settled: SettledEpoch) {
        let owned = self.owned();
        self.possible.clear();
        self.phase = NodePhase::Active;
        self.forgive(&settled.epoch);
        self.known.dead.retain(|process| settled.epoch.has(*process));
        self.settled = Some(settled.clone());
        self.outputs.push(NodeOutput::Entered);
        for (range, tenure) in (0..).zip(&settled.tenures) {
            self.take_place(range, tenure, &settled, owned.contains(&range));
        }
        self.tell_standing();
    }
}
