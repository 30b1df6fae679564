//! All members, what is under way between them, and the clock.

use super::{
    Work,
    event::{Agenda, Content, Event, Message},
    machine::{Cores, Machine, Picoseconds, duration},
    member::{Member, Notice, Unit, Unsent},
    mirror::Mirror,
    outcome::{Outcome, Place, Span, Used, What},
};
use crate::{
    prepare::{Kind, Loc, Operand, Prepared},
    schedule::Form,
};
use alloc::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    vec,
    vec::Vec,
};

/// The bytes of a frame without its payload.
const HEADER: u64 = 64;

/// A member's thread.
#[derive(Clone, Debug, Default)]
struct Thread {
    /// Messages that it has not looked at.
    inbox: VecDeque<u32>,
    /// Until when it is busy.
    until: Picoseconds,
    /// Whether its next turn is noted.
    goes_on: bool,
    /// The first operation that is not complete, and the first that is not issued.
    operations: (u32, u32),
    /// When the last operation was complete.
    finished: Picoseconds,
}

/// A port or link.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    rate: u64,
    free: Picoseconds,
    busy: Picoseconds,
    bytes: u64,
}

pub(super) struct World<'a> {
    work: &'a Work<'a>,
    machine: &'a Machine,
    mirror: Option<Mirror>,
    /// By operation, then by rank.
    members: Vec<Member>,
    threads: Vec<Thread>,
    /// Per computer: until when each core is busy.
    cores: Vec<Vec<Picoseconds>>,
    lines: BTreeMap<Place, Line>,
    under_way: Vec<Message>,
    spare: Vec<u32>,
    agenda: Agenda,
    used: (Vec<(Picoseconds, u64)>, u64),
    /// The time of the event that is dealt with.
    now: Picoseconds,
}

impl<'a> World<'a> {
    pub(super) fn new(
        work: &'a Work<'a>,
        machine: &'a Machine,
        prepared: Vec<Arc<Prepared>>,
        mirror: Option<Mirror>,
    ) -> Self {
        let ranks = prepared.len();
        let member = |(rank, prepared): (u32, &Arc<Prepared>)| Member::new(prepared.clone(), rank);
        let members = (0..work.operations).flat_map(|_| (0..).zip(&prepared).map(member)).collect();
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
            lines: BTreeMap::new(),
            under_way: Vec::new(),
            spare: Vec::new(),
            agenda: Agenda::default(),
            used: (vec![(0, 0); ranks], 0),
            now: 0,
        }
    }

    pub(super) fn run(mut self, watch: &mut dyn FnMut(Span)) -> Outcome {
        for rank in 0..self.threads.len() as u32 {
            self.threads[rank as usize].until = self.cost_of_member(rank, self.machine.costs.call);
            self.issue(rank, self.threads[rank as usize].until);
        }
        while let Some((now, event)) = self.agenda.next() {
            self.now = now;
            match event {
                Event::Turn { member } => self.turn(member, watch),
                Event::Leaves { message } => self.leaves(message, watch),
                Event::Reaches { message } => self.reaches(message, watch),
                Event::Left { message } => self.left(message),
                Event::Arrives { message } => self.arrives(message),
            }
        }
        self.outcome()
    }

    fn outcome(self) -> Outcome {
        let workers = self.work.verified.schedule().workers() as usize;
        let ranks = self.threads.len();
        let times = self.threads.iter().map(|thread| thread.finished);
        let finished = match self.mirror {
            Some(_) => vec![self.threads[0].finished; workers],
            None => times.take(workers).collect(),
        };
        let shared = self.mirror.as_ref().map_or(1, |_| self.machine.on_host_of(0) as u64);
        let threads = (0..).zip(&self.used.0);
        let threads = threads.map(|(rank, (busy, bytes))| Used {
            place: Place::Thread(rank),
            busy: *busy,
            bytes: *bytes,
        });
        let lines = self.lines.iter();
        let lines =
            lines.map(|(place, line)| Used { place: *place, busy: line.busy, bytes: line.bytes * shared });
        let staged = self.members.iter().take(ranks).map(|member| {
            let prepared = &member.prepared;
            prepared.staging_bytes(prepared.ahead(false)) as u64
        });
        Outcome {
            used: threads.chain(lines).collect(),
            messages: self.used.1 * if self.mirror.is_some() { workers as u64 } else { 1 },
            by_symmetry: self.mirror.is_some(),
            staged: staged.max().unwrap_or(0),
            finished,
        }
    }

    fn at(&self, operation: u32, rank: u32) -> usize {
        operation as usize * self.threads.len() + rank as usize
    }

    fn cost_of_member(&self, rank: u32, cost: Picoseconds) -> Picoseconds {
        self.machine.slowed(rank, cost)
    }

    /// Issues operations as long as there is room for them.
    fn issue(&mut self, rank: u32, at: Picoseconds) {
        loop {
            let (complete, issued) = self.threads[rank as usize].operations;
            if issued == self.work.operations || issued >= complete + self.work.at_once {
                break;
            }
            self.threads[rank as usize].operations.1 += 1;
            let member = self.at(issued, rank);
            let notices = self.members[member].start();
            self.tell(issued, rank, notices, at);
            self.conclude(issued, rank, at);
        }
        self.go_on(rank, at);
    }

    /// Notes the next turn of a thread that has something to do and has none noted.
    fn go_on(&mut self, rank: u32, at: Picoseconds) {
        let (complete, issued) = self.threads[rank as usize].operations;
        let thread = &self.threads[rank as usize];
        let has_steps = (complete..issued).any(|operation| self.members[self.at(operation, rank)].has_work());
        if !thread.goes_on && (has_steps || !thread.inbox.is_empty()) {
            let at = at.max(thread.until);
            self.threads[rank as usize].goes_on = true;
            self.agenda.note(at, Event::Turn { member: rank });
        }
    }

    /// A thread does one thing: the next step that can run, or else it looks at the next message.
    fn turn(&mut self, rank: u32, watch: &mut dyn FnMut(Span)) {
        self.threads[rank as usize].goes_on = false;
        let (complete, issued) = self.threads[rank as usize].operations;
        let next = (complete..issued).find_map(|operation| {
            Some((operation, self.members[operation as usize * self.threads.len() + rank as usize].next()?))
        });
        match next {
            Some((operation, Unit::Step { segment, instr })) => {
                self.step(operation, rank, segment, instr, watch)
            }
            Some((operation, Unit::Message(unsent))) => self.send(operation, rank, unsent, watch),
            None => {
                if let Some(message) = self.threads[rank as usize].inbox.pop_front() {
                    self.look(message, watch);
                }
            }
        }
        let until = self.threads[rank as usize].until;
        self.go_on(rank, until);
    }

    /// Keeps a rank's thread busy for what costs `cost`, on a core that is free; returns from when until when.
    fn spend(&mut self, rank: u32, cost: Picoseconds) -> (Picoseconds, Picoseconds) {
        let cost = self.cost_of_member(rank, cost);
        let ready = self.now.max(self.threads[rank as usize].until);
        let computer = match self.machine.cores {
            Cores::Enough => None,
            Cores::OfHost(_) => Some(self.machine.hosts[rank as usize] as usize),
            Cores::InAll(_) => Some(0),
        };
        let core = computer.and_then(|computer| self.cores[computer].iter_mut().min());
        let start = core.as_ref().map_or(ready, |free| ready.max(**free));
        let end = start + cost;
        if let Some(core) = core {
            *core = end;
        }
        self.threads[rank as usize].until = end;
        self.used.0[rank as usize].0 += cost;
        (start, end)
    }

    fn step(&mut self, operation: u32, rank: u32, segment: u32, instr: u32, watch: &mut dyn FnMut(Span)) {
        let member = self.at(operation, rank);
        let prepared = self.members[member].prepared.clone();
        let (what, bytes, cost) = self.price(member, &prepared, segment, instr);
        let (start, end) = self.spend(rank, cost);
        if let Some(what) = what.filter(|_| cost > 0) {
            let place = Place::Thread(rank);
            watch(Span { operation, segment, place, what, start, end, bytes });
        }
        let notices = self.members[member].step(segment, instr);
        self.tell(operation, rank, notices, end);
        self.conclude(operation, rank, end);
    }

    /// What a step costs, without the messages of a send.
    fn price(
        &self,
        member: usize,
        prepared: &Prepared,
        segment: u32,
        instr: u32,
    ) -> (Option<What>, u64, Picoseconds) {
        let costs = &self.machine.costs;
        let chunk_of = |loc: Loc| match loc {
            Loc::Input(chunk) | Loc::Output(chunk) | Loc::Staged { chunk, .. } => chunk,
        };
        let bytes = |chunk, form: Form| prepared.bytes(chunk, segment, form) as u64;
        match &prepared.instrs[instr as usize].kind {
            Kind::Send(send) => {
                let chunk = chunk_of(send.from);
                let bytes = bytes(chunk, send.form);
                let copies = send.copy.is_some() && !send.folded;
                (Some(What::Copy(chunk)), bytes, if copies { costs.copy.of(bytes) } else { 0 })
            }
            Kind::Recv { head, into } => {
                let form = prepared.heads[*head as usize].form;
                let (chunk, placed) = (chunk_of(*into), self.members[member].is_placed(segment, *head));
                let bytes = bytes(chunk, form);
                (Some(What::Copy(chunk)), bytes, if placed { 0 } else { costs.copy.of(bytes) })
            }
            Kind::Copy { from, form, .. } => {
                let chunk = chunk_of(*from);
                let bytes = bytes(chunk, *form);
                (Some(What::Copy(chunk)), bytes, costs.copy.of(bytes))
            }
            Kind::Fold(fold) => {
                let operands = &prepared.operands[fold.operands.start as usize..fold.operands.end as usize];
                let chunk = chunk_of(fold.into);
                let form = |operand: &Operand| match operand {
                    Operand::At { form, .. } => *form,
                    Operand::Head { head, .. } => prepared.heads[*head as usize].form,
                };
                let bytes = operands.iter().map(|operand| bytes(chunk, form(operand))).sum();
                (Some(What::Fold(chunk)), bytes, costs.fold.of(bytes))
            }
        }
    }

    /// Hands a message over to its connection.
    fn send(&mut self, operation: u32, rank: u32, unsent: Unsent, watch: &mut dyn FnMut(Span)) {
        let member = self.at(operation, rank);
        let prepared = self.members[member].prepared.clone();
        let lane = prepared.lanes[unsent.lane as usize];
        let peer = &prepared.peers[lane.peer as usize];
        let send = prepared.send(unsent.instr);
        let (Loc::Input(chunk) | Loc::Output(chunk) | Loc::Staged { chunk, .. }) = send.from;
        let bytes = prepared.bytes(chunk, unsent.segment, send.form) as u64;
        let toll = if peer.shared { self.machine.costs.here } else { self.machine.costs.send };
        let (start, end) = self.spend(rank, toll.of(bytes));
        self.used.0[rank as usize].1 += bytes;
        self.used.1 += 1;
        let (to, head) = match &self.mirror {
            Some(mirror) => (rank, mirror.heads[unsent.lane as usize]),
            None => (peer.rank, self.head_at(operation, peer.rank, rank, lane.index)),
        };
        let what = What::Message { from: rank, to: peer.rank };
        watch(Span {
            operation,
            segment: unsent.segment,
            place: Place::Thread(rank),
            what,
            start,
            end,
            bytes,
        });
        let content = Content::Data { unsent, head };
        self.post(Message { operation, from: rank, to, rank: peer.rank, bytes, content }, end);
    }

    /// The head of `to` at which message `index` of `from` is taken.
    fn head_at(&self, operation: u32, to: u32, from: u32, index: u16) -> u32 {
        let prepared = &self.members[self.at(operation, to)].prepared;
        let peer = prepared.peer(from).expect("schedules are proved: who receives knows its sender");
        prepared.peers[peer].heads[usize::from(index)]
    }

    fn tell(&mut self, operation: u32, rank: u32, notices: Vec<Notice>, at: Picoseconds) {
        let prepared = self.members[self.at(operation, rank)].prepared.clone();
        for notice in notices {
            let (Notice::Grant { peer, .. } | Notice::Stable { peer }) = notice;
            let to = prepared.peers[peer as usize].rank;
            let (receiver, place) = match &self.mirror {
                Some(mirror) => (rank, mirror.peers[peer as usize]),
                None => {
                    let there = &self.members[self.at(operation, to)].prepared;
                    (to, there.peer(rank).expect("a partner has me for its partner") as u32)
                }
            };
            let content = match notice {
                Notice::Grant { segments, .. } => Content::Grant { peer: place, segments },
                Notice::Stable { .. } => Content::Stable { peer: place },
            };
            self.post(Message { operation, from: rank, to: receiver, rank: to, bytes: 0, content }, at);
        }
    }

    fn post(&mut self, message: Message, at: Picoseconds) {
        let index = match self.spare.pop() {
            Some(index) => {
                self.under_way[index as usize] = message;
                index
            }
            None => {
                self.under_way.push(message);
                self.under_way.len() as u32 - 1
            }
        };
        self.agenda.note(at, Event::Leaves { message: index });
    }

    /// The ways of a message: of its sender's host, and of its receiver's; none inside a host.
    fn ways(&self, message: &Message) -> [Option<Place>; 2] {
        let hosts = &self.machine.hosts;
        let (from, to) = (hosts[message.from as usize], hosts[message.rank as usize]);
        if from == to {
            return [None, None];
        }
        match &self.machine.links {
            Some((size, _)) if (message.from as usize) < *size && (message.rank as usize) < *size => {
                [Some(Place::Link { from: message.from, to: message.rank }), None]
            }
            // Where one rank stands for all, what it sends is what comes into its host.
            _ if self.mirror.is_some() => [Some(Place::Out(from)), Some(Place::Into(from))],
            _ => [Some(Place::Out(from)), Some(Place::Into(to))],
        }
    }

    fn line(&mut self, place: Place) -> &mut Line {
        let machine = self.machine;
        let shared = if self.mirror.is_some() { machine.on_host_of(0) as u64 } else { 1 };
        self.lines.entry(place).or_insert_with(|| {
            let rate = match place {
                Place::Out(host) => machine.payload_rate(host, machine.ports[host as usize].out) / shared,
                Place::Into(host) => machine.payload_rate(host, machine.ports[host as usize].into) / shared,
                Place::Link { from, to } => machine.links.as_ref().map_or(0, |(size, rates)| {
                    let rate = rates[from as usize * size + to as usize];
                    // Over a link that is not there nothing ever comes; a byte a second is as good as never.
                    machine.payload_rate(machine.hosts[from as usize], rate).max(1)
                }),
                Place::Thread(_) => 0,
            };
            Line { rate, ..Line::default() }
        })
    }

    /// Has a line carry a message from `ready` on; returns from when until when.
    fn carry(&mut self, place: Place, message: &Message, ready: Picoseconds) -> (Picoseconds, Picoseconds) {
        let line = self.line(place);
        let time = duration(message.bytes + HEADER, line.rate);
        let start = ready.max(line.free);
        line.free = start + time;
        line.busy += time;
        line.bytes += message.bytes;
        (start, start + time)
    }

    fn leaves(&mut self, index: u32, watch: &mut dyn FnMut(Span)) {
        let message = self.under_way[index as usize];
        let (first, _) = (self.ways(&message)[0], ());
        let (start, end) = match first {
            Some(place) => self.carry(place, &message, self.now),
            None => (self.now, self.now),
        };
        self.show(first, &message, (start, end), watch);
        let is_data = matches!(message.content, Content::Data { .. });
        if is_data {
            // The connection takes the last bytes before they leave.
            let rate = first.map_or(0, |place| self.line(place).rate);
            let buffered = duration(self.machine.costs.buffered, rate);
            self.agenda.note(self.now.max(end.saturating_sub(buffered)), Event::Left { message: index });
        }
        match first {
            Some(_) => self.agenda.note(start + self.machine.latency, Event::Reaches { message: index }),
            None => self.agenda.note(end, Event::Arrives { message: index }),
        }
    }

    fn reaches(&mut self, index: u32, watch: &mut dyn FnMut(Span)) {
        let message = self.under_way[index as usize];
        let [first, second] = self.ways(&message);
        let rate = first.map_or(0, |place| self.line(place).rate);
        // It comes in as it goes out, at the lower of the two rates.
        let comes = self.now + duration(message.bytes + HEADER, rate);
        let arrives = match second {
            Some(place) => {
                let span = self.carry(place, &message, self.now);
                self.show(second, &message, span, watch);
                span.1.max(comes)
            }
            None => comes,
        };
        self.agenda.note(arrives, Event::Arrives { message: index });
    }

    fn show(
        &self,
        place: Option<Place>,
        message: &Message,
        (start, end): (Picoseconds, Picoseconds),
        watch: &mut dyn FnMut(Span),
    ) {
        if let (Some(place), Content::Data { unsent, .. }) = (place, message.content) {
            let what = What::Message { from: message.from, to: message.rank };
            let (operation, bytes) = (message.operation, message.bytes);
            watch(Span { operation, segment: unsent.segment, place, what, start, end, bytes });
        }
    }

    /// The sender learns that a message has left.
    fn left(&mut self, index: u32) {
        let Message { operation, from, content, .. } = self.under_way[index as usize];
        let Content::Data { unsent, .. } = content else { return };
        let member = self.at(operation, from);
        let notices = self.members[member].has_left(unsent);
        let at = self.now.max(self.threads[from as usize].until);
        self.tell(operation, from, notices, at);
        self.conclude(operation, from, at);
        self.go_on(from, self.now);
    }

    /// A message waits for its receiver's thread, and wakes it if it sleeps.
    fn arrives(&mut self, index: u32) {
        let to = self.under_way[index as usize].to;
        let thread = &mut self.threads[to as usize];
        thread.inbox.push_back(index);
        let sleeps = !thread.goes_on && thread.until <= self.now;
        let wake = if sleeps { self.machine.costs.wake } else { 0 };
        let at = self.now + self.cost_of_member(to, wake);
        self.go_on(to, at);
    }

    /// A thread looks at a message.
    fn look(&mut self, index: u32, watch: &mut dyn FnMut(Span)) {
        let message = self.under_way[index as usize];
        let Message { operation, from, to, rank, bytes, content } = message;
        self.spare.push(index);
        let costs = &self.machine.costs;
        let is_here = self.ways(&message)[0].is_none();
        let toll = if is_here { costs.here } else { costs.receive };
        let cost = match content {
            Content::Data { .. } => toll.of(bytes),
            // Word of grants comes along with other frames, more often than not.
            _ => costs.here.each,
        };
        let (start, end) = self.spend(to, cost);
        let member = self.at(operation, to);
        let notices = match content {
            Content::Data { unsent, head } => {
                self.used.0[to as usize].1 += bytes;
                let (place, what) = (Place::Thread(to), What::Message { from, to: rank });
                watch(Span { operation, segment: unsent.segment, place, what, start, end, bytes });
                self.members[member].arrive(unsent.segment, head);
                Vec::new()
            }
            Content::Grant { peer, segments } => self.members[member].hear(peer, Some(segments)),
            Content::Stable { peer } => self.members[member].hear(peer, None),
        };
        self.tell(operation, to, notices, end);
        self.conclude(operation, to, end);
    }

    /// Counts operations that are complete here, in order, and issues the next ones.
    fn conclude(&mut self, _operation: u32, rank: u32, at: Picoseconds) {
        let mut any = false;
        loop {
            let (complete, issued) = self.threads[rank as usize].operations;
            if complete == issued || !self.members[self.at(complete, rank)].is_complete() {
                break;
            }
            self.threads[rank as usize].operations.0 += 1;
            self.threads[rank as usize].finished = at;
            any = true;
        }
        if any {
            self.issue(rank, at);
        }
    }
}
