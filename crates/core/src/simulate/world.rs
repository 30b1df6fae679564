//! All members, the messages between them, and the clock.

use super::{
    event::{Burst, EventQueue, RigEvent, Transfer, TransferContent},
    lines::Lines,
    machine::{Cores, Picoseconds, Rig},
    member::{Notice, SimulatedMember, Unit},
    mirror::Mirror,
    outcome::{BusySpan, Fault, Prediction, Resource, Stalled, StalledMember, Used, WorkItem},
    price::Price,
    workload::Workload,
};
use crate::{
    execution::{Rules, SegmentMessage, SegmentProgress, SegmentStep},
    prepare::Prepared,
    session::membership::MemberId,
    topology::random::SplitMix,
};
use alloc::{collections::VecDeque, sync::Arc, vec, vec::Vec};
use core::ops::Range;

/// A member's thread.
#[derive(Clone, Debug, Default)]
struct Thread {
    /// Messages that it has not looked at.
    inbox: VecDeque<u32>,
    /// Until when it is busy.
    until: Picoseconds,
    /// Whether its next turn is noted.
    goes_on: bool,
    /// The first operation that is not complete.
    complete: u32,
    /// The first operation that is not issued.
    issued: u32,
    /// When the last operation was complete.
    finished: Picoseconds,
    /// How long it was busy, and with how many bytes of messages.
    busy: Picoseconds,
    bytes: u64,
}

/// What is under way between members, by numbers that are used again.
#[derive(Debug, Default)]
struct InFlight {
    all: Vec<Transfer>,
    spare: Vec<u32>,
}

impl InFlight {
    fn add(&mut self, message: Transfer) -> u32 {
        let index = self.spare.pop().unwrap_or(self.all.len() as u32);
        match self.all.get_mut(index as usize) {
            Some(place) => *place = message,
            None => self.all.push(message),
        }
        index
    }
}

pub(super) struct Simulator<'a> {
    work: &'a Workload<'a>,
    machine: &'a Rig,
    mirror: Option<Mirror>,
    /// By operation, then by rank.
    members: Vec<SimulatedMember>,
    threads: Vec<Thread>,
    /// Per computer: until when each core is busy.
    cores: Vec<Vec<Picoseconds>>,
    lines: Lines<'a>,
    under_way: InFlight,
    events: EventQueue,
    /// By which threads choose what they do next, if not in the order in which it comes up.
    chance: Option<SplitMix>,
    /// How many messages were sent.
    messages: u64,
    /// The time of the event that is dealt with.
    now: Picoseconds,
}

impl<'a> Simulator<'a> {
    pub(super) fn new(
        work: &'a Workload<'a>,
        machine: &'a Rig,
        prepared: Vec<Arc<Prepared>>,
        mirror: Option<Mirror>,
    ) -> Self {
        let (ranks, is_mirrored) = (prepared.len(), mirror.is_some());
        let mut chance = machine.random_order.map(|random_order| SplitMix::new(random_order.seed));
        let rules = machine.random_order.map_or(Rules::DEFAULT, |random_order| random_order.rules);
        let rules = Rules { is_mirrored, ..rules };
        let all = work.verified.schedule().ranks();
        let ids: Vec<_> = (0..all).map(MemberId::new).collect();
        let mut members = Vec::with_capacity(work.operations as usize * ranks);
        for _ in 0..work.operations {
            for (rank, prepared) in (0..).zip(&prepared) {
                let is_mapped = chance.as_mut().is_some_and(|chance| chance.below(2) == 1);
                members.push(SimulatedMember::new(prepared.clone(), rank, is_mapped, rules, &ids));
            }
        }
        let hosts = machine.ports.len();
        let cores = match machine.cores {
            Cores::Enough => Vec::new(),
            Cores::OfHost(each) => vec![vec![0; each.max(1) as usize]; hosts],
            Cores::InAll(all) => vec![vec![0; all.max(1) as usize]],
        };
        Self {
            work,
            machine,
            mirror,
            members,
            threads: vec![Thread::default(); ranks],
            cores,
            lines: Lines::new(machine, is_mirrored),
            under_way: InFlight::default(),
            events: EventQueue::default(),
            chance,
            messages: 0,
            now: 0,
        }
    }

    pub(super) fn run(mut self, watch: &mut dyn FnMut(BusySpan)) -> Result<Prediction, Stalled> {
        for rank in 0..self.threads.len() as u32 {
            self.threads[rank as usize].until = self.machine.slowed(rank, self.machine.costs.call);
            self.issue(rank, self.threads[rank as usize].until);
        }
        while let Some((now, event)) = self.events.next() {
            self.now = now;
            match event {
                RigEvent::Turn { member } => {
                    if let Err(fault) = self.turn(member, watch) {
                        return Err(Stalled { members: self.stalled(), fault: Some(fault) });
                    }
                }
                RigEvent::Leaves { message } => self.leaves(message, watch),
                RigEvent::Served { place } => self.served(place, watch),
                RigEvent::Reaches { burst, way } => self.reaches(burst, way, watch),
                RigEvent::Left { message } => self.left(message),
                RigEvent::Arrives { message } => self.arrives(message),
            }
        }
        match self.stalled() {
            members if members.is_empty() => Ok(self.outcome()),
            members => Err(Stalled { members, fault: None }),
        }
    }

    /// Where those stand who have not ended all operations.
    fn stalled(&self) -> Vec<StalledMember> {
        let stands = |rank: u32| {
            let operation = (0..self.work.operations)
                .find(|operation| !self.members[self.at(*operation, rank)].is_complete())?;
            let member = &self.members[self.at(operation, rank)];
            let (SegmentProgress { begun, finished, .. }, segments) =
                (member.segment_progress(), member.prepared().segments);
            Some(StalledMember { rank, operation, begun, finished, segments })
        };
        (0..self.threads.len() as u32).filter_map(stands).collect()
    }

    fn outcome(self) -> Prediction {
        let workers = self.work.verified.schedule().workers() as usize;
        let ranks = self.threads.len();
        let times = self.threads.iter().map(|thread| thread.finished);
        let finished = match self.mirror {
            Some(_) => vec![self.threads[0].finished; workers],
            None => times.take(workers).collect(),
        };
        let threads = (0..).zip(&self.threads);
        let threads = threads.map(|(rank, thread)| Used {
            place: Resource::Thread(rank),
            busy: thread.busy,
            bytes: thread.bytes,
        });
        let staged = self.members.iter().take(ranks).map(|member| {
            let prepared = member.prepared();
            prepared.wanted_bytes(false) as u64
        });
        Prediction {
            used: threads.chain(self.lines.used()).collect(),
            messages: self.messages * if self.mirror.is_some() { workers as u64 } else { 1 },
            by_symmetry: self.mirror.is_some(),
            staged: staged.max().unwrap_or(0),
            finished,
        }
    }

    fn at(&self, operation: u32, rank: u32) -> usize {
        operation as usize * self.threads.len() + rank as usize
    }

    /// Issues operations as long as there is room for them.
    fn issue(&mut self, rank: u32, at: Picoseconds) {
        loop {
            let Thread { complete, issued, .. } = self.threads[rank as usize];
            if issued == self.work.operations || issued >= complete + self.work.at_once {
                break;
            }
            self.threads[rank as usize].issued += 1;
            let member = self.at(issued, rank);
            self.members[member].start();
            self.tell(issued, rank, at);
            self.conclude(rank, at);
        }
        self.go_on(rank, at);
    }

    /// Notes the next turn of a thread that has something to do and has none noted.
    fn go_on(&mut self, rank: u32, at: Picoseconds) {
        let Thread { complete, issued, .. } = self.threads[rank as usize];
        let thread = &self.threads[rank as usize];
        let has_steps =
            (complete..issued).any(|operation| self.members[self.at(operation, rank)].ready() > 0);
        if !thread.goes_on && (has_steps || !thread.inbox.is_empty()) {
            let at = at.max(thread.until);
            self.threads[rank as usize].goes_on = true;
            self.events.note(at, RigEvent::Turn { member: rank });
        }
    }

    /// A thread does one thing: the next step that can run, or else it looks at the next message.
    ///
    /// # Errors
    /// As [`look`](Self::look).
    fn turn(&mut self, rank: u32, watch: &mut dyn FnMut(BusySpan)) -> Result<(), Fault> {
        self.threads[rank as usize].goes_on = false;
        let Thread { complete, issued, .. } = self.threads[rank as usize];
        let next = match self.chance.take() {
            Some(mut chance) => {
                let next = self.drawn(rank, complete..issued, &mut chance);
                self.chance = Some(chance);
                next
            }
            None => (complete..issued).find_map(|operation| {
                let member = operation as usize * self.threads.len() + rank as usize;
                Some((operation, self.members[member].next()?))
            }),
        };
        match next {
            Some((operation, Unit::Step(ready))) => self.step(operation, rank, ready, watch),
            Some((operation, Unit::Message(message))) => self.send(operation, rank, message, watch),
            None => {
                if let Some(message) = self.threads[rank as usize].inbox.pop_front() {
                    self.look(message, watch)?;
                }
            }
        }
        let until = self.threads[rank as usize].until;
        self.go_on(rank, until);
        Ok(())
    }

    /// One of the steps of a thread's operations that can run, by chance; none if it looks at a message, which is then the next one
    /// of a sender by chance.
    fn drawn(&mut self, rank: u32, open: Range<u32>, chance: &mut SplitMix) -> Option<(u32, Unit)> {
        let ready = |operation: u32| self.members[self.at(operation, rank)].ready();
        let all: usize = open.clone().map(ready).sum();
        let inbox = &self.threads[rank as usize].inbox;
        if all == 0 || !inbox.is_empty() && chance.below(2) == 0 {
            let sender = |at: usize| self.under_way.all[inbox[at] as usize].from;
            let of_sender = (!inbox.is_empty()).then(|| sender(chance.below(inbox.len())));
            let first = of_sender.and_then(|from| (0..inbox.len()).find(|at| sender(*at) == from));
            let inbox = &mut self.threads[rank as usize].inbox;
            let message = first.and_then(|at| inbox.remove(at));
            message.into_iter().for_each(|message| inbox.push_front(message));
            return None;
        }
        let mut at = chance.below(all);
        for operation in open {
            let member = self.at(operation, rank);
            match self.members[member].ready() {
                ready if at >= ready => at -= ready,
                _ => return Some((operation, self.members[member].take(at)?)),
            }
        }
        None
    }

    /// Keeps a rank's thread busy for what costs `cost`, on a core that is free; returns from when until when.
    fn spend(&mut self, rank: u32, cost: Picoseconds) -> (Picoseconds, Picoseconds) {
        let cost = self.machine.slowed(rank, cost);
        let ready = self.now.max(self.threads[rank as usize].until);
        let computer = match self.machine.cores {
            Cores::Enough => None,
            Cores::OfHost(_) => Some(self.machine.hosts[rank as usize] as usize),
            Cores::InAll(_) => Some(0),
        };
        let core = computer.and_then(|computer| self.cores[computer].iter_mut().min());
        let start = core.as_ref().map_or(ready, |free| ready.max(**free));
        let end = start.saturating_add(cost);
        if let Some(core) = core {
            *core = end;
        }
        let thread = &mut self.threads[rank as usize];
        thread.until = end;
        thread.busy = thread.busy.saturating_add(cost);
        (start, end)
    }

    fn step(&mut self, operation: u32, rank: u32, ready: SegmentStep, watch: &mut dyn FnMut(BusySpan)) {
        let member = self.at(operation, rank);
        let Price { what, bytes, cost } = Price::of(&self.members[member], &self.machine.costs, ready);
        let (start, end) = self.spend(rank, cost);
        if cost > 0 {
            let place = Resource::Thread(rank);
            watch(BusySpan { operation, segment: ready.segment, place, what, start, end, bytes });
        }
        self.members[member].step(ready);
        self.tell(operation, rank, end);
        self.conclude(rank, end);
    }

    /// Hands a message over to its connection.
    fn send(&mut self, operation: u32, rank: u32, sent: SegmentMessage, watch: &mut dyn FnMut(BusySpan)) {
        let member = self.at(operation, rank);
        let prepared = self.members[member].prepared().clone();
        let lane = prepared.lanes[sent.lane as usize];
        let peer = &prepared.peers[lane.peer as usize];
        let send = prepared.send(sent.ready.step);
        let bytes = prepared.expected_bytes(send.from.run(), sent.ready.segment, send.form) as u64;
        let overhead = if peer.shared { self.machine.costs.here } else { self.machine.costs.send };
        let (start, end) = self.spend(rank, overhead.of(bytes));
        self.threads[rank as usize].bytes += bytes;
        self.messages += 1;
        let (to, head) = match &self.mirror {
            Some(mirror) => (rank, mirror.heads[sent.lane as usize]),
            None => (peer.rank, self.head_at(operation, peer.rank, rank, lane.index)),
        };
        let what = WorkItem::Message { from: rank, to: peer.rank };
        watch(BusySpan {
            operation,
            segment: sent.ready.segment,
            place: Resource::Thread(rank),
            what,
            start,
            end,
            bytes,
        });
        let content = TransferContent::Data { sent, head };
        self.post(Transfer { operation, from: rank, to, rank: peer.rank, bytes, content }, end);
    }

    /// The head of `to` at which message `index` of `from` is taken.
    fn head_at(&self, operation: u32, to: u32, from: u32, index: u16) -> u32 {
        let prepared = self.members[self.at(operation, to)].prepared();
        let peer = prepared.peer(from).expect("schedules are proved: who receives knows its sender");
        prepared.peers[peer].heads[usize::from(index)]
    }

    /// Sends what a member has told.
    fn tell(&mut self, operation: u32, rank: u32, at: Picoseconds) {
        let member = self.at(operation, rank);
        let prepared = self.members[member].prepared().clone();
        for Notice { peer, signal } in self.members[member].take_notices() {
            let to = prepared.peers[peer as usize].rank;
            let (receiver, place) = match &self.mirror {
                Some(mirror) => (rank, mirror.peers[peer as usize]),
                None => {
                    let there = self.members[self.at(operation, to)].prepared();
                    (to, there.peer(rank).expect("a partner has me for its partner") as u32)
                }
            };
            let content = TransferContent::Signal(Notice { peer: place, signal });
            self.post(Transfer { operation, from: rank, to: receiver, rank: to, bytes: 0, content }, at);
        }
    }

    fn post(&mut self, message: Transfer, at: Picoseconds) {
        let index = self.under_way.add(message);
        self.events.note(at, RigEvent::Leaves { message: index });
    }

    /// A message goes inside its host at once, or waits for its way out.
    fn leaves(&mut self, index: u32, watch: &mut dyn FnMut(BusySpan)) {
        let message = self.under_way.all[index as usize];
        let Some(place) = self.lines.ways(&message)[0] else {
            self.events.note(self.now, RigEvent::Left { message: index });
            self.events.note(self.now, RigEvent::Arrives { message: index });
            return;
        };
        let is_idle = self.lines.enter(place, index, &message);
        let taken = self.lines.taken(place, message.rank, self.machine.costs.buffered);
        self.note_taken(&taken);
        if is_idle {
            self.serve(place, watch);
        }
    }

    fn note_taken(&mut self, taken: &[u32]) {
        for message in taken {
            self.events.note(self.now, RigEvent::Left { message: *message });
        }
    }

    /// The next burst begins to leave.
    fn serve(&mut self, place: Resource, watch: &mut dyn FnMut(BusySpan)) {
        if let Some(burst) = self.lines.next(place, self.now) {
            let leaves = self.now.saturating_add(burst.time);
            self.show(place, burst, self.now, leaves, watch);
            let reaches = self.now.saturating_add(self.machine.latency);
            self.events.note(reaches, RigEvent::Reaches { burst, way: 1 });
            self.events.note(leaves, RigEvent::Served { place });
        }
    }

    fn served(&mut self, place: Resource, watch: &mut dyn FnMut(BusySpan)) {
        let taken = self.lines.has_left(place, self.machine.costs.buffered);
        self.note_taken(&taken);
        self.serve(place, watch);
    }

    fn reaches(&mut self, burst: Burst, way: u8, watch: &mut dyn FnMut(BusySpan)) {
        let message = self.under_way.all[burst.message as usize];
        let ways = self.lines.ways(&message);
        // It comes in as it goes out, at the lower of the two rates.
        let mut arrives = self.now.saturating_add(burst.time);
        let next = (way..).zip(ways.iter().skip(way.into())).find_map(|(at, place)| Some((at, (*place)?)));
        if let Some((at, place)) = next {
            let (start, end) = self.lines.arrive(place, burst, self.now);
            self.show(place, burst, start, end, watch);
            arrives = arrives.max(end);
            if ways.iter().skip(usize::from(at) + 1).any(Option::is_some) {
                // It goes on as it comes, once it could have begun to.
                let goes_on = arrives.saturating_sub(burst.time).max(start);
                self.events.note(goes_on, RigEvent::Reaches { burst, way: at + 1 });
                return;
            }
        }
        if burst.is_last {
            self.events.note(arrives, RigEvent::Arrives { message: burst.message });
        }
    }

    fn show(
        &self,
        place: Resource,
        burst: Burst,
        start: Picoseconds,
        end: Picoseconds,
        watch: &mut dyn FnMut(BusySpan),
    ) {
        let message = &self.under_way.all[burst.message as usize];
        if let TransferContent::Data { sent, .. } = message.content {
            let what = WorkItem::Message { from: message.from, to: message.rank };
            let (operation, bytes) = (message.operation, burst.payload);
            watch(BusySpan { operation, segment: sent.ready.segment, place, what, start, end, bytes });
        }
    }

    /// The sender learns that a message has left.
    fn left(&mut self, index: u32) {
        let Transfer { operation, from, content, .. } = self.under_way.all[index as usize];
        let TransferContent::Data { sent, .. } = content else { return };
        let member = self.at(operation, from);
        self.members[member].has_left(sent);
        let at = self.now.max(self.threads[from as usize].until);
        self.tell(operation, from, at);
        self.conclude(from, at);
        self.go_on(from, self.now);
    }

    /// A message waits for its receiver's thread, and wakes it if it sleeps. Threads that wait for small messages, or for memory,
    /// keep looking.
    fn arrives(&mut self, index: u32) {
        let Transfer { to, operation, .. } = self.under_way.all[index as usize];
        let prepared = self.members[self.at(operation, to)].prepared();
        let streams = !prepared.eager && !prepared.is_in_memory();
        let thread = &mut self.threads[to as usize];
        thread.inbox.push_back(index);
        let sleeps = !thread.goes_on && thread.until <= self.now;
        let wake = if sleeps && streams { self.machine.costs.wake } else { 0 };
        let at = self.now.saturating_add(self.machine.slowed(to, wake));
        self.go_on(to, at);
    }

    /// A thread looks at a message.
    ///
    /// # Errors
    /// If it may not be sent now.
    fn look(&mut self, index: u32, watch: &mut dyn FnMut(BusySpan)) -> Result<(), Fault> {
        let message = self.under_way.all[index as usize];
        let Transfer { operation, from, to, rank, bytes, content } = message;
        self.under_way.spare.push(index);
        let costs = &self.machine.costs;
        let is_here = self.lines.ways(&message)[0].is_none();
        let overhead = if is_here { costs.here } else { costs.receive };
        let cost = match content {
            TransferContent::Data { .. } => overhead.of(bytes),
            // Word of grants comes along with other frames, more often than not.
            _ => costs.here.each,
        };
        let (start, end) = self.spend(to, cost);
        let member = self.at(operation, to);
        let heard = match content {
            TransferContent::Data { sent, head } => {
                self.threads[to as usize].bytes += bytes;
                let (place, what) = (Resource::Thread(to), WorkItem::Message { from, to: rank });
                let segment = sent.ready.segment;
                watch(BusySpan { operation, segment, place, what, start, end, bytes });
                self.members[member].arrive(segment, head)
            }
            TransferContent::Signal(notice) => self.members[member].receive(notice),
        };
        heard.map_err(|violation| Fault { rank: to, operation, violation })?;
        self.tell(operation, to, end);
        self.conclude(to, end);
        Ok(())
    }

    /// Counts operations that are complete here, in order, and issues the next ones.
    fn conclude(&mut self, rank: u32, at: Picoseconds) {
        let mut any = false;
        loop {
            let Thread { complete, issued, .. } = self.threads[rank as usize];
            if complete == issued || !self.members[self.at(complete, rank)].is_complete() {
                break;
            }
            self.threads[rank as usize].complete += 1;
            self.threads[rank as usize].finished = at;
            any = true;
        }
        if any {
            self.issue(rank, at);
        }
    }
}
