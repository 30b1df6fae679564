//! Workers that push, and what servers answer.

use super::{
    Planted,
    pushes::encode,
    world::{World, epoch_of},
};
use herringbone_core::table::{Routes, replication::EpochId};
use std::collections::BTreeMap;

/// An answer that waits for the copies.
pub(super) struct Held {
    pub(super) range: u32,
    pub(super) sequence: u64,
    pub(super) worker: u32,
    pub(super) number: u64,
}

/// What a worker is answered.
pub(super) enum Answer {
    Done,
    Elsewhere(Option<u32>),
}

pub(super) struct Worker {
    pub(super) routes: Routes,
    pub(super) next: u64,
    pub(super) unanswered: BTreeMap<u64, u32>,
    pub(super) acknowledged: u64,
}

/// A request on its way to a server.
#[derive(Clone, Copy)]
pub(super) struct Request {
    range: u32,
    number: u64,
    is_first: bool,
}

/// An answer on its way to a worker.
pub(super) struct Reply {
    pub(super) at: u64,
    /// Of the server.
    pub(super) slot: usize,
    pub(super) worker: u32,
    pub(super) number: u64,
    pub(super) range: u32,
    pub(super) answer: Answer,
}

/// In which epoch a push was acknowledged, and by which server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Acknowledged {
    epoch: EpochId,
    slot: usize,
}

impl World {
    /// What came of requests is answered.
    pub(super) fn tell(&mut self, slot: usize, range: u32, sequence: u64) {
        let server = self.servers[slot].as_mut().unwrap();
        let is_ready = |held: &mut Held| held.range == range && held.sequence <= sequence;
        let ready: Vec<Held> = server.held.extract_if(.., is_ready).collect();
        let epoch = epoch_of(server);
        for Held { worker, number, .. } in ready {
            let this = Acknowledged { epoch, slot };
            let last = self.last.get(&range).copied().unwrap_or(this);
            let is_behind = epoch < last.epoch;
            // An owner that was left behind may tell what all copies had before they went on.
            let at_owner = self.servers[last.slot].as_ref().and_then(|owner| owner.shards.get(&range));
            let counts = at_owner.is_none_or(|shard| shard.pushes.contains(&(worker, number)));
            if (is_behind && !counts) || (epoch == last.epoch && slot != last.slot) {
                self.problem =
                    Some(format!("{}: range {range} has two owners: {last:?}, then {this:?}", self.now));
            }
            self.last.insert(range, last.max(this));
            self.acknowledged.entry(range).or_default().insert((worker, number));
            self.answered += 1;
            let at = self.now + 1 + self.rng.below(5);
            self.answers.push(Reply { at, slot, worker, number, range, answer: Answer::Done });
        }
    }

    fn request(&mut self, slot: usize, worker: u32, request: Request) {
        let Request { range, number, is_first } = request;
        let (now, planted) = (self.now, self.planted);
        let Some(server) = self.servers[slot].as_mut() else { return };
        if is_first {
            server.bounced.remove(&(worker, range));
        }
        let executes = server.node.executes(range)
            || (planted == Planted::OldOwnerExecutes && server.ever_owned.contains(&range));
        if !executes || server.bounced.contains(&(worker, range)) {
            server.bounced.insert((worker, range));
            let owner = server.node.owner(range);
            let owner = owner.filter(|owner| *owner != server.place && server.node.is_active());
            let answer = Answer::Elsewhere(owner);
            self.answers.push(Reply { at: now + 2, slot, worker, number, range, answer });
            return;
        }
        let shard = server.shards.entry(range).or_default();
        let is_old =
            shard.last.get(&worker).is_some_and(|last| number <= *last) && planted != Planted::CountsTwice;
        let sequence = if is_old {
            server.node.progress(range).unwrap().executed
        } else {
            shard.execute((worker, number));
            server.node.append(range, encode((worker, number)))
        };
        server.held.push(Held { range, sequence, worker, number });
        let settled = server.node.progress(range).map_or(0, |progress| progress.settled);
        if planted == Planted::TellsAtOnce || planted == Planted::OldOwnerExecutes {
            self.tell(slot, range, sequence);
        } else {
            self.tell(slot, range, settled);
        }
        self.carry_out(slot);
    }

    pub(super) fn answer_workers(&mut self) {
        let now = self.now;
        let due: Vec<Reply> = self.answers.extract_if(.., |reply| reply.at <= now).collect();
        for Reply { slot, worker, number, range, answer, .. } in due {
            let Some(place) = self.servers[slot].as_ref().map(|server| server.place) else { continue };
            let of = &mut self.workers[worker as usize];
            match answer {
                Answer::Done => {
                    if of.unanswered.remove(&number).is_some() {
                        of.acknowledged += 1;
                    }
                    of.routes.answered(range, number);
                }
                Answer::Elsewhere(owner) => of.routes.elsewhere(range, place, owner, self.now),
            }
        }
    }

    pub(super) fn work(&mut self) {
        for index in 0..self.workers.len() {
            for place in 0..self.count() {
                if self.is_up(self.at(place)) {
                    self.workers[index].routes.connected(place);
                }
            }
            let mut routed = Vec::new();
            if self.pushing && self.workers[index].unanswered.len() < 8 && self.rng.one_in(4) {
                let range = self.rng.below(u64::from(self.count())) as u32;
                let worker = &mut self.workers[index];
                let number = worker.next;
                worker.next += 1;
                worker.unanswered.insert(number, range);
                routed.extend(worker.routes.send(range, number));
            }
            let now = self.now;
            routed.extend(self.workers[index].routes.due(now));
            for request in routed {
                let range = self.workers[index].unanswered[&request.number];
                let queue = self.requests.entry((index as u32, request.server)).or_default();
                let at = queue.back().map_or(0, |(at, _)| *at).max(now + 1 + self.rng.below(4));
                queue.push_back((at, Request { range, number: request.number, is_first: request.is_first }));
            }
        }
        let ways: Vec<(u32, u32)> = self.requests.keys().copied().collect();
        for (worker, place) in ways {
            while self.is_up(self.at(place))
                && let Some(queue) = self.requests.get_mut(&(worker, place))
                && queue.front().is_some_and(|(at, _)| *at <= self.now)
                && let Some((_, word)) = queue.pop_front()
            {
                self.request(self.at(place), worker, word);
            }
        }
    }

    /// A worker's connection with a place ends.
    pub(super) fn disconnect(&mut self, worker: u32, place: u32) {
        self.requests.remove(&(worker, place));
        self.workers[worker as usize].routes.lost(place, self.now);
        let slot = self.at(place);
        if let Some(server) = self.servers[slot].as_mut() {
            server.bounced.retain(|(of, _)| *of != worker);
            server.held.retain(|held| held.worker != worker);
        }
        self.answers.retain(|reply| (reply.slot, reply.worker) != (slot, worker));
    }

    pub(super) fn disconnect_workers(&mut self, place: u32) {
        (0..self.workers.len() as u32).for_each(|worker| self.disconnect(worker, place));
    }
}
