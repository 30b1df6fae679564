//! One server's state machine: its epoch, and its work on the ranges that it has in it.

use super::{
    epoch::{Epoch, EpochId, ServerLife, SettledEpoch, Tenure},
    message::{ImagePart, PeerMessage},
    search::is_proposal_of,
    state::{HeldLog, KnownProcesses, LinkedPeer, NodeOutput, NodePhase, NodeTime, SentImage, TableNode},
};
use alloc::{collections::BTreeMap, vec::Vec};

/// After this time without a sign of life a server is silent.
pub const SILENCE_MILLISECONDS: u64 = 5_000;
/// Between two signs of life.
const BEAT: u64 = 200;
/// The end of a connection proves the end of a process if there was a sign of life within so many milliseconds: a server that
/// was cut off, and gave this one up unheard, was silent for longer. It proves nothing either to one that has just slept for so long
/// that it may have been given up: the words that say so are lost if that process ended before they could be read.
const FRESH: u64 = 1_000;
/// After so many milliseconds without a look a server has slept: others that take it for silent have not heard it for longer.
const SLEEP: u64 = SILENCE_MILLISECONDS / 2;

impl TableNode {
    /// The server `own` of `servers`, with `replicas` copies of each range.
    pub fn new(own: ServerLife, servers: u32, replicas: u32) -> Self {
        Self {
            own,
            servers,
            replicas,
            peers: BTreeMap::new(),
            known: KnownProcesses::default(),
            settled: None,
            possible: Vec::new(),
            highest: EpochId::default(),
            phase: NodePhase::Outside,
            ranges: BTreeMap::new(),
            outputs: Vec::new(),
            time: NodeTime::default(),
        }
    }

    fn pass(&mut self, now: u64) {
        if now > self.time.now + SILENCE_MILLISECONDS / 4 {
            self.time.awake_since = now;
        }
        if now > self.time.now + SLEEP {
            self.time.slept_until = Some(now);
        }
        self.time.now = self.time.now.max(now);
    }

    /// The next tasks.
    pub fn outputs(&mut self) -> Vec<NodeOutput> {
        core::mem::take(&mut self.outputs)
    }

    /// A process has connected. If two processes claim one place, the first one stays while it is well: then this
    /// returns `false`, and the caller ends the new connection. Otherwise the new connection replaces the earlier one,
    /// which the caller ends.
    ///
    /// On a connection that it ends it first sends [`PeerMessage::GiveUp`]: the process at the other end must not take
    /// that for the end of this process.
    pub fn linked(&mut self, peer: ServerLife, now: u64) -> bool {
        self.pass(now);
        let before = self.life_of(peer.server).map(|life| ServerLife { life, ..peer });
        if before.is_some_and(|before| before != peer && self.is_well(before)) {
            return false;
        }
        before.into_iter().for_each(|before| self.unlinked(before, false, now));
        // It lives.
        self.known.dead.remove(&peer);
        let linked = LinkedPeer {
            life: peer.life,
            heard: now,
            // What it said on an earlier connection about going on without this one still counts.
            has_given_up: self.known.given_up_by.contains(&peer),
            epoch: None,
            is_unsure: false,
            whole: Vec::new(),
            hears: Vec::new(),
            is_known: false,
        };
        self.peers.insert(peer.server, linked);
        self.tell_standing();
        self.look();
        true
    }

    /// A connection has ended: by the other side, or by a failure.
    pub fn unlinked(&mut self, peer: ServerLife, by_other_side: bool, now: u64) {
        self.pass(now);
        let Some(known) = self.peers.get(&peer.server).filter(|known| known.life == peer.life) else {
            return;
        };
        let has_slept = self.time.slept_until.is_some_and(|until| now <= until + FRESH);
        if by_other_side && !known.has_given_up && now <= known.heard + FRESH && !has_slept {
            self.known.dead.insert(peer);
        }
        if known.has_given_up && self.bases().any(|epoch| epoch.has(peer)) {
            self.known.given_up_by.insert(peer);
        }
        self.peers.remove(&peer.server);
        self.look_for_the_lost(peer);
        self.look();
    }

    /// Time has passed: call this at least every 50 milliseconds.
    pub fn tick(&mut self, now: u64) {
        self.pass(now);
        if now >= self.time.next_beat {
            self.time.next_beat = now + BEAT;
            self.tell_standing();
        }
        self.look();
    }

    /// A message has come.
    pub fn receive(&mut self, from: u32, message: PeerMessage, now: u64) {
        self.pass(now);
        let Some(peer) = self.peers.get_mut(&from) else { return };
        peer.heard = now;
        match message {
            PeerMessage::Standing { epoch, is_unsure, proposes, whole, hears } => {
                (peer.epoch, peer.is_unsure, peer.is_known) = (epoch, is_unsure, true);
                (peer.whole, peer.hears) = (whole, hears);
                self.compare(from);
                self.drop_void(from, proposes);
            }
            PeerMessage::GiveUp => {
                peer.has_given_up = true;
                let process = ServerLife { server: from, life: peer.life };
                self.look_for_the_lost(process);
            }
            PeerMessage::Call { settled } => self.called(from, settled),
            PeerMessage::Come(candidacy) => self.comes(from, candidacy),
            PeerMessage::Withdraw => self.withdraws(from),
            PeerMessage::Propose { epoch, bases } => self.proposed(from, epoch, &bases),
            PeerMessage::Promise { id, held } => self.promised(from, id, held),
            PeerMessage::Refuse { id, highest } => self.refused(id, highest),
            PeerMessage::Commit(settled) => self.committed(settled),
            PeerMessage::Operate { epoch, range, sequence, stable, operation } => {
                if self.follows(from, epoch, range) {
                    self.operated(from, range, sequence, stable, operation);
                }
            }
            PeerMessage::Executed { epoch, range, sequence } => self.executed(from, epoch, range, sequence),
            PeerMessage::Image { epoch, range, part, record } => {
                if self.follows(from, epoch, range) {
                    self.imaged(from, range, part, record);
                }
            }
        }
        self.look();
    }

    /// Whether a process is there and well.
    pub(super) fn is_well(&self, process: ServerLife) -> bool {
        process == self.own
            || self.peers.get(&process.server).filter(|peer| peer.life == process.life).is_some_and(|peer| {
                self.time.now < peer.heard.max(self.time.awake_since) + SILENCE_MILLISECONDS
            })
    }

    /// The other processes with a connection, and signs of life on it.
    pub fn heard(&self) -> impl Iterator<Item = ServerLife> + '_ {
        let processes =
            self.peers.iter().map(|(server, peer)| ServerLife { server: *server, life: peer.life });
        processes.filter(|process| self.is_well(*process))
    }

    /// Whether two processes hear each other, as far as they have said.
    pub(super) fn are_joined(&self, one: ServerLife, other: ServerLife) -> bool {
        let hears = |one: ServerLife, other: ServerLife| {
            let peer = self.peers.get(&one.server).filter(|peer| peer.life == one.life);
            if one == self.own {
                self.is_well(other)
            } else {
                peer.is_some_and(|peer| peer.hears.contains(&other))
            }
        };
        one == other || (hears(one, other) && hears(other, one))
    }

    /// Looks after what has to be done by itself.
    fn look(&mut self) {
        if !self.heard().eq(self.known.reported.iter().copied()) {
            self.tell_standing();
        }
        let is_lost = |epoch: &Epoch| epoch.processes().any(|process| !self.is_well(process));
        let lacks_one = match &self.phase {
            NodePhase::Outside | NodePhase::Electing(_) => false,
            NodePhase::Active => self.settled.as_ref().is_some_and(|settled| is_lost(&settled.epoch)),
            NodePhase::Proposing { epoch, .. } => is_lost(epoch),
            NodePhase::Promised { decider, .. } => self.possible.last().is_none_or(|epoch| {
                !epoch.processes().any(|process| process.server == *decider && self.is_well(process))
            }),
        };
        if lacks_one {
            self.search();
        }
        match &self.phase {
            NodePhase::Outside => self.begin_together(),
            NodePhase::Active => self.improve(),
            NodePhase::Electing(_) => self.drive(),
            NodePhase::Proposing { .. } => self.count_promises(),
            NodePhase::Promised { is_said: false, .. } => self.say_promise(),
            NodePhase::Promised { .. } => {}
        }
    }

    /// A process of an epoch in which this one is was lost for a moment at least: what it was told may be lost.
    fn look_for_the_lost(&mut self, process: ServerLife) {
        let matters = match &self.phase {
            NodePhase::Outside | NodePhase::Electing(_) => false,
            NodePhase::Active => self.settled.as_ref().is_some_and(|settled| settled.epoch.has(process)),
            NodePhase::Proposing { epoch, .. } => {
                epoch.has(process) || self.settled.as_ref().is_some_and(|settled| settled.epoch.has(process))
            }
            // What waits for copies may have been on its way there.
            NodePhase::Promised { decider, .. } => {
                *decider == process.server
                    || self.settled.as_ref().is_some_and(|settled| settled.epoch.has(process))
            }
        };
        if matters {
            self.search();
        }
    }

    /// A server has said where it stands, which may be ahead of this one, or behind.
    fn compare(&mut self, from: u32) {
        let Some(peer) = self.peers.get(&from) else { return };
        let process = ServerLife { server: from, life: peer.life };
        let theirs = peer.epoch.as_ref().map(|epoch| (epoch.id, epoch.has(self.own)));
        let own = self.settled.as_ref().map(|settled| settled.epoch.id);
        match (theirs, &self.settled) {
            (Some((id, false)), _)
                if Some(id) > own
                    && !matches!(self.phase, NodePhase::Outside)
                    && self.possible.iter().all(|epoch| epoch.id < id) =>
            {
                self.leave_behind();
            }
            (theirs, Some(settled)) if settled.epoch.has(process) && theirs.map(|(id, _)| id) < own => {
                let commit = PeerMessage::Commit(settled.clone());
                self.send(from, commit);
            }
            _ => {}
        }
    }

    /// What a server has proposed and proposes no more, and has not settled, never comes to count.
    fn drop_void(&mut self, from: u32, proposes: Option<EpochId>) {
        let Some(peer) = self.peers.get(&from) else { return };
        let process = ServerLife { server: from, life: peer.life };
        let settled = peer.epoch.as_ref().map(|epoch| epoch.id);
        let before = self.possible.len();
        self.possible.retain(|epoch| {
            !is_proposal_of(epoch, process) || Some(epoch.id) == proposes || Some(epoch.id) <= settled
        });
        if self.possible.len() < before
            && matches!(self.phase, NodePhase::Promised { .. } | NodePhase::Electing(_))
        {
            self.search();
        }
    }

    /// Others have gone on. What it holds may be the last of its ranges, so it stays until it is in an epoch again.
    fn leave_behind(&mut self) {
        for range in self.owned() {
            self.outputs.push(NodeOutput::Disown { range });
        }
        (self.settled, self.possible, self.phase) = (None, Vec::new(), NodePhase::Outside);
        self.outputs.push(NodeOutput::LeftBehind);
        self.tell_standing();
    }

    pub(super) fn tell_standing(&mut self) {
        self.known.reported = self.heard().collect();
        let standing = self.standing();
        let peers: Vec<u32> = self.peers.keys().copied().collect();
        peers.into_iter().for_each(|peer| self.send(peer, standing.clone()));
    }

    fn standing(&self) -> PeerMessage {
        let epoch = self.settled.as_ref().map(|settled| settled.epoch.clone());
        let is_whole = |(_, held): &(&u32, &HeldLog)| {
            held.is_whole && epoch.as_ref().is_some_and(|epoch| epoch.id == held.epoch)
        };
        let whole = self.ranges.iter().filter(is_whole).map(|(range, _)| *range).collect();
        let proposes = match &self.phase {
            NodePhase::Proposing { epoch, .. } => Some(epoch.id),
            _ => None,
        };
        let hears = self.heard().collect();
        PeerMessage::Standing { epoch, is_unsure: !self.possible.is_empty(), proposes, whole, hears }
    }

    pub(super) fn send(&mut self, to: u32, message: PeerMessage) {
        self.outputs.push(NodeOutput::Send { to, message });
    }

    /// Those that share an epoch with this one have not given it up.
    pub(super) fn forgive(&mut self, epoch: &Epoch) {
        for (server, peer) in &mut self.peers {
            if epoch.members.get(server) == Some(&peer.life) {
                peer.has_given_up = false;
            }
        }
        // Of the others no epoch of this one is left that they could go on with.
        self.known.given_up_by.clear();
    }

    /// Whether this server is allowed to execute requests of a range.
    pub fn executes(&self, range: u32) -> bool {
        matches!(self.phase, NodePhase::Active) && self.owner(range) == Some(self.own.server)
    }

    /// The owner of a range, as far as it is known.
    pub fn owner(&self, range: u32) -> Option<u32> {
        self.tenure(range)?.owner
    }

    pub(super) fn tenure(&self, range: u32) -> Option<&Tenure> {
        self.settled.as_ref()?.tenures.get(range as usize)
    }

    /// The last epoch that is settled and that this server is in, for display.
    pub fn settled(&self) -> Option<&SettledEpoch> {
        self.settled.as_ref()
    }

    /// The life of a server with a connection.
    pub fn life_of(&self, server: u32) -> Option<u64> {
        self.peers.get(&server).map(|peer| peer.life)
    }

    /// This server's place.
    pub fn place(&self) -> u32 {
        self.own.server
    }

    /// How many copies each range is to have.
    pub fn replicas(&self) -> u32 {
        self.replicas
    }

    /// The number of servers, and of ranges.
    pub fn servers(&self) -> u32 {
        self.servers
    }

    /// Whether no server of its epoch has a range.
    pub fn is_lost(&self, range: u32) -> bool {
        self.is_active() && self.owner(range).is_none()
    }

    /// Whether it is in an epoch, and no one of it is lost.
    pub fn is_active(&self) -> bool {
        matches!(self.phase, NodePhase::Active)
    }

    /// The pieces of an image in their order, until the last; `false` if it is not wanted any more.
    pub fn send_image(&mut self, image: SentImage, record: Vec<u8>, is_last: bool) -> bool {
        let SentImage { range, to, epoch } = image;
        let is_wanted = self.settled.as_ref().is_some_and(|settled| settled.epoch.id == epoch)
            && self.peers.contains_key(&to);
        if is_wanted {
            let part = if is_last { ImagePart::End } else { ImagePart::Record };
            self.send(to, PeerMessage::Image { epoch, range, part, record });
        }
        is_wanted
    }
}
