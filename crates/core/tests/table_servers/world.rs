//! Servers, the connections between them, and what happens to both.

use super::{
    Planted, Rng,
    pushes::{Push, Shard, decode},
    work::{Acknowledged, Answer, Held, Reply, Request, Worker},
};
use herringbone_core::table::{
    Routes,
    replication::{EpochId, NodeOutput, PeerMessage, SentImage, ServerLife, TableNode},
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A process that is a server.
pub(super) struct Server {
    pub(super) node: TableNode,
    pub(super) place: u32,
    pub(super) life: u64,
    /// By places, the slots of the processes that it has connections with.
    pub(super) peers: BTreeMap<u32, usize>,
    pub(super) shards: BTreeMap<u32, Shard>,
    pub(super) held: Vec<Held>,
    /// Of workers' connections, the ranges whose requests were sent elsewhere.
    pub(super) bounced: BTreeSet<(u32, u32)>,
    pub(super) ever_owned: BTreeSet<u32>,
    pub(super) stopped_until: u64,
}

enum Word {
    Message(Vec<u8>),
    End { by_other_side: bool },
}

/// What is on its way from one server to another on their connection.
#[derive(Default)]
struct Wire {
    words: VecDeque<(u64, Word)>,
}

/// An image on its way: its records are there, and it ends at a time.
struct Image {
    at: u64,
    slot: usize,
    image: SentImage,
}

/// Two slots, the lower one first.
type Link = (usize, usize);

fn link_of(one: usize, other: usize) -> Link {
    (one.min(other), one.max(other))
}

pub(super) struct World {
    pub(super) rng: Rng,
    pub(super) planted: Planted,
    pub(super) now: u64,
    pub(super) replicas: u32,
    /// One process for each place, and one that was started by mistake in a place that another one has.
    pub(super) servers: Vec<Option<Server>>,
    lives: u64,
    /// Connections between servers.
    links: BTreeSet<Link>,
    wires: BTreeMap<(usize, usize), Wire>,
    pub(super) cut: BTreeSet<Link>,
    pub(super) workers: Vec<Worker>,
    /// On their way to servers from workers, and back.
    pub(super) requests: BTreeMap<(u32, u32), VecDeque<(u64, Request)>>,
    pub(super) answers: Vec<Reply>,
    /// What was acknowledged, by range.
    pub(super) acknowledged: BTreeMap<u32, BTreeSet<Push>>,
    /// Of each range the highest epoch in which a push was acknowledged, and by whom.
    pub(super) last: BTreeMap<u32, Acknowledged>,
    pub(super) pushing: bool,
    pub(super) problem: Option<String>,
    images: Vec<Image>,
    pub(super) taken_over: u64,
    pub(super) answered: u64,
    /// How many processes were sent away.
    pub(super) sent_away: u64,
    /// Whether nothing is promised any more.
    pub(super) is_void: bool,
    /// All epochs that came to count, and when.
    pub(super) epochs: BTreeMap<EpochId, u64>,
}

impl World {
    pub(super) fn new(seed: u64, planted: Planted) -> Self {
        let mut rng = Rng(seed);
        let servers = 2 + rng.below(4) as u32;
        let replicas = rng.below(3).min(u64::from(servers) - 1) as u32;
        let workers = (0..2 + rng.below(2)).map(|_| {
            let mut routes = Routes::new(servers, true);
            (0..servers).for_each(|server| routes.connected(server));
            Worker { routes, next: 1, unanswered: BTreeMap::new(), acknowledged: 0 }
        });
        let mut world = Self {
            planted,
            now: 0,
            replicas,
            servers: (0..=servers).map(|_| None).collect(),
            lives: 0,
            links: BTreeSet::new(),
            wires: BTreeMap::new(),
            cut: BTreeSet::new(),
            workers: workers.collect(),
            requests: BTreeMap::new(),
            answers: Vec::new(),
            acknowledged: BTreeMap::new(),
            last: BTreeMap::new(),
            pushing: true,
            problem: None,
            images: Vec::new(),
            taken_over: 0,
            answered: 0,
            sent_away: 0,
            is_void: false,
            epochs: BTreeMap::new(),
            rng,
        };
        (0..servers).for_each(|server| world.start(server as usize, server));
        world
    }

    /// How many places there are.
    pub(super) fn count(&self) -> u32 {
        self.servers.len() as u32 - 1
    }

    /// The slot of the process that has no place of its own.
    pub(super) fn second(&self) -> usize {
        self.servers.len() - 1
    }

    /// The slot of the process that is found at the address of a place.
    pub(super) fn at(&self, place: u32) -> usize {
        let second = self.servers[self.second()].as_ref();
        let has_it = second.is_some_and(|second| second.place == place);
        if has_it && self.servers[place as usize].is_none() { self.second() } else { place as usize }
    }

    pub(super) fn start(&mut self, slot: usize, place: u32) {
        // Who is at the address now is somebody else.
        self.disconnect_workers(place);
        self.lives += 1;
        let own = ServerLife { server: place, life: self.lives };
        self.servers[slot] = Some(Server {
            node: TableNode::new(own, self.count(), self.replicas),
            place,
            life: self.lives,
            peers: BTreeMap::new(),
            shards: BTreeMap::new(),
            held: Vec::new(),
            bounced: BTreeSet::new(),
            ever_owned: BTreeSet::new(),
            stopped_until: 0,
        });
    }

    pub(super) fn kill(&mut self, slot: usize) {
        let Some(killed) = self.servers[slot].as_ref() else { return };
        if self.at(killed.place) == slot {
            self.disconnect_workers(killed.place);
        }
        self.servers[slot] = None;
        for other in 0..self.servers.len() {
            let link = link_of(slot, other);
            if self.links.remove(&link) {
                let is_cut = self.cut.contains(&link);
                let is_behind = !self.is_up(other);
                self.wires.remove(&(other, slot));
                let wire = self.wires.entry((slot, other)).or_default();
                // What a dead process has sent may be lost if the cable is cut, and the end of it if the other process does not read:
                // it is in buffers of the dead one's host, which are dropped once the other one sends something.
                if is_cut && self.rng.one_in(2) {
                    wire.words.clear();
                } else if is_behind {
                    wire.words.truncate(self.rng.below(wire.words.len() as u64 + 1) as usize);
                }
                let at = wire.words.back().map_or(self.now, |(at, _)| *at) + 1;
                wire.words.push_back((at, Word::End { by_other_side: true }));
            }
        }
    }

    /// A connection breaks by a failure of the network: one side sees it, and what is on its way is lost.
    pub(super) fn break_link(&mut self, link: Link) {
        if !self.links.remove(&link) {
            return;
        }
        let by_other_side = self.planted == Planted::SilentIsDead;
        for (from, to) in [link, (link.1, link.0)] {
            let wire = self.wires.entry((from, to)).or_default();
            wire.words.clear();
            wire.words.push_back((self.now + 1, Word::End { by_other_side }));
        }
    }

    /// A server ends a connection because there is a better one.
    fn end_link(&mut self, from: usize, to: usize) {
        if self.links.contains(&link_of(from, to)) {
            if self.planted != Planted::NoGoodbye {
                self.put(from, to, &PeerMessage::GiveUp);
            }
            self.links.remove(&link_of(from, to));
            let wire = self.wires.entry((from, to)).or_default();
            let at = wire.words.back().map_or(self.now, |(at, _)| *at) + 1;
            wire.words.push_back((at, Word::End { by_other_side: true }));
        }
    }

    pub(super) fn is_up(&self, slot: usize) -> bool {
        self.servers[slot].as_ref().is_some_and(|server| server.stopped_until <= self.now)
    }

    /// Servers call those at lower places that they have no connection with.
    fn dial(&mut self) {
        for caller in 0..self.servers.len() {
            let Some(place) = self.servers[caller].as_ref().map(|server| server.place) else { continue };
            for lower in 0..place {
                let there = self.at(lower);
                let link = link_of(caller, there);
                let is_quiet = [(caller, there), (there, caller)]
                    .iter()
                    .all(|way| self.wires.get(way).is_none_or(|wire| wire.words.is_empty()));
                let has_one = |server: &Server| server.peers.contains_key(&lower);
                if self.servers[caller].as_ref().is_some_and(has_one)
                    || self.links.contains(&link)
                    || self.cut.contains(&link)
                    || !is_quiet
                {
                    continue;
                }
                if self.is_up(caller) && self.is_up(there) && self.rng.one_in(20) {
                    self.connect(caller, there);
                }
            }
        }
    }

    fn connect(&mut self, caller: usize, there: usize) {
        self.links.insert(link_of(caller, there));
        for (one, other) in [(caller, there), (there, caller)] {
            let (now, it) = (self.now, self.servers[other].as_ref().unwrap());
            let peer = ServerLife { server: it.place, life: it.life };
            let server = self.servers[one].as_mut().unwrap();
            let before = server.peers.get(&peer.server).copied();
            if !server.node.linked(peer, now) {
                self.sent_away += 1;
                self.end_link(one, other);
                return;
            }
            server.peers.insert(peer.server, other);
            before
                .into_iter()
                .filter(|before| *before != other)
                .for_each(|before| self.end_link(one, before));
            self.carry_out(one);
        }
    }

    /// Does what a server says.
    pub(super) fn carry_out(&mut self, slot: usize) {
        loop {
            let Some(server) = self.servers[slot].as_mut() else { return };
            let outputs = server.node.outputs();
            if outputs.is_empty() {
                return;
            }
            for output in outputs {
                self.obey(slot, output);
            }
        }
    }

    fn send(&mut self, slot: usize, to: u32, message: &PeerMessage) {
        let now = self.now;
        if self.planted == Planted::SilentIsDead && *message == PeerMessage::GiveUp {
            return;
        }
        if let PeerMessage::Propose { bases, epoch } = message
            && bases.is_empty()
        {
            // With a process that was started by mistake, those that are left believe that all are new. Nothing could tell them.
            let second = self.servers[self.second()].as_ref();
            self.is_void |= second.is_some_and(|it| epoch.members.get(&it.place) == Some(&it.life));
            // All are new: what was is lost, and nobody has promised otherwise.
            if !self.is_void && self.servers.iter().flatten().any(|other| other.node.settled().is_some()) {
                self.problem = Some(format!("{now}: server {slot} begins anew, and others have not"));
            }
            self.acknowledged.clear();
            self.last.clear();
        }
        if let Some(to) = self.servers[slot].as_ref().and_then(|server| server.peers.get(&to)) {
            self.put(slot, *to, message);
        }
    }

    fn put(&mut self, from: usize, to: usize, message: &PeerMessage) {
        if self.links.contains(&link_of(from, to)) {
            let delay = 1 + self.rng.below(6);
            let wire = self.wires.entry((from, to)).or_default();
            let at = wire.words.back().map_or(0, |(at, _)| *at).max(self.now + delay);
            // What goes over the wire is what is read from it.
            wire.words.push_back((at, Word::Message(message.encode())));
        }
    }

    fn obey(&mut self, slot: usize, output: NodeOutput) {
        let now = self.now;
        let Some(server) = self.servers[slot].as_mut() else { return };
        match output {
            NodeOutput::Send { to, message } => self.send(slot, to, &message),
            NodeOutput::Own { range } => {
                let (place, shard) = (server.place, server.shards.entry(range).or_default());
                let has: BTreeSet<Push> = shard.pushes.iter().copied().collect();
                if has.len() != shard.pushes.len() {
                    self.problem = Some(format!("range {range}: a push counts twice"));
                }
                let lost =
                    self.acknowledged.entry(range).or_default().iter().find(|push| !has.contains(push));
                if let Some(push) = lost {
                    self.problem = Some(format!("{now}: server {slot} owns range {range} without {push:?}"));
                }
                if place != range {
                    self.taken_over += 1;
                }
                server.ever_owned.insert(range);
            }
            NodeOutput::Disown { range } => {
                let (gone, kept) =
                    std::mem::take(&mut server.held).into_iter().partition(|held| held.range == range);
                let gone: Vec<Held> = gone;
                server.held = kept;
                for Held { worker, number, .. } in gone {
                    server.bounced.insert((worker, range));
                    let answer = Answer::Elsewhere(None);
                    self.answers.push(Reply { at: now + 2, slot, worker, number, range, answer });
                }
            }
            NodeOutput::Entered => {
                let id = epoch_of(server);
                self.epochs.entry(id).or_insert(now);
            }
            NodeOutput::LeftBehind | NodeOutput::EndImage { .. } => {}
            NodeOutput::Forget { range } | NodeOutput::BeginImage { range } => {
                drop(server.shards.remove(&range))
            }
            NodeOutput::Load { range, record } => server.shards.entry(range).or_default().load(&record),
            NodeOutput::Execute { range, operation } => {
                server.shards.entry(range).or_default().execute(decode(&operation));
            }
            NodeOutput::Settled { range, sequence } => self.tell(slot, range, sequence),
            NodeOutput::SendImage(image) => {
                let range = image.range;
                let record = server.shards.entry(range).or_default().encode();
                if server.node.send_image(image, record, false) {
                    let at = now + self.rng.below(120);
                    self.images.push(Image { at, slot, image });
                }
            }
        }
    }

    fn deliver(&mut self) {
        let ways: Vec<(usize, usize)> = self.wires.keys().copied().collect();
        for (from, to) in ways {
            let link = link_of(from, to);
            while !self.cut.contains(&link) && (self.servers[to].is_none() || self.is_up(to)) {
                let Some(wire) = self.wires.get_mut(&(from, to)) else { break };
                if wire.words.front().is_none_or(|(at, _)| *at > self.now) {
                    break;
                }
                let Some((_, word)) = wire.words.pop_front() else { break };
                let now = self.now;
                let Some(server) = self.servers[to].as_mut() else { continue };
                let Some((&place, _)) = server.peers.iter().find(|(_, slot)| **slot == from) else {
                    continue;
                };
                match word {
                    Word::Message(bytes) => {
                        server.node.receive(place, PeerMessage::decode(&bytes).unwrap(), now)
                    }
                    Word::End { by_other_side } => {
                        server.peers.remove(&place);
                        if let Some(life) = server.node.life_of(place) {
                            server.node.unlinked(ServerLife { server: place, life }, by_other_side, now);
                        }
                    }
                }
                self.carry_out(to);
            }
        }
    }

    fn end_images(&mut self) {
        let now = self.now;
        let due: Vec<Image> = self.images.extract_if(.., |image| image.at <= now).collect();
        for Image { slot, image, .. } in due {
            if let Some(server) = self.servers[slot].as_mut() {
                server.node.send_image(image, Vec::new(), true);
                self.carry_out(slot);
            }
        }
    }

    /// Something goes wrong.
    pub(super) fn trouble(&mut self) {
        let count = u64::from(self.count());
        let place = self.rng.below(count) as u32;
        let slot = place as usize;
        let other = (slot + 1 + self.rng.below(count - 1) as usize) % count as usize;
        let link = link_of(slot, other);
        match self.rng.below(9) {
            0 => self.kill(slot),
            1 if self.servers[slot].is_none() => self.start(slot, place),
            2 => drop(self.cut.insert(link)),
            3 => self.cut.clear(),
            4 => self.break_link(link),
            5 => {
                let until = self.now + self.rng.below(9_000);
                if let Some(server) = self.servers[slot].as_mut() {
                    server.stopped_until = until;
                }
            }
            6 => {
                for other in (0..count as usize).filter(|other| *other != slot) {
                    self.cut.insert(link_of(slot, other));
                }
            }
            // Of two servers, each would take the other one for replaced, if both places had two processes in turn.
            7 if count > 2 => match self.servers[self.second()] {
                Some(_) => self.kill(self.second()),
                None => self.start(self.second(), place),
            },
            _ => {
                let worker = self.rng.below(self.workers.len() as u64) as u32;
                self.disconnect(worker, place);
            }
        }
    }

    pub(super) fn step(&mut self) {
        self.now += 5;
        self.deliver();
        self.end_images();
        self.dial();
        self.work();
        self.answer_workers();
        for slot in 0..self.servers.len() {
            if self.is_up(slot) {
                let now = self.now;
                self.servers[slot].as_mut().unwrap().node.tick(now);
                self.carry_out(slot);
            }
        }
        // Who waits too long for words gives a connection up, one side before the other.
        if self.rng.one_in(400) {
            let old: Vec<Link> = self.cut.intersection(&self.links).copied().collect();
            if let Some(link) = old.first() {
                self.break_link(*link);
            }
        }
    }

    /// All that can be mended is.
    pub(super) fn heal(&mut self) {
        self.cut.clear();
        self.kill(self.second());
        for place in 0..self.count() {
            match &mut self.servers[place as usize] {
                Some(server) => server.stopped_until = 0,
                None => self.start(place as usize, place),
            }
        }
    }
}

/// Which epoch a server is in, for messages.
pub(super) fn epoch_of(server: &Server) -> EpochId {
    server.node.settled().map(|settled| settled.epoch.id).unwrap_or_default()
}
