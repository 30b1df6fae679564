//! Ports and links. Data that leaves a host is shared among its connections, burst by burst, as TCP and the kernel do
//! it. Incoming data is served in its order of arrival.

use super::{
    event::{Burst, Transfer},
    machine::{Picoseconds, Rig, duration},
    outcome::{Resource, Used},
};
use crate::group::Rank;
use alloc::{
    collections::{BTreeMap, VecDeque},
    vec::Vec,
};

/// The bytes of a frame without its payload.
pub(crate) const HEADER_BYTES: u64 = 64;
/// What the kernel hands to a link at once, in bytes.
const BURST: u64 = 64 << 10;
/// How many ports, links and uplinks a message passes at most.
const WAYS: usize = 4;

/// A port or link.
#[derive(Clone, Debug, Default)]
struct Line {
    rate: u64,
    /// When all that has gone through would have gone at the rate.
    free: Picoseconds,
    /// How much before that it may go: what its bucket holds.
    saved: Picoseconds,
    busy: Picoseconds,
    bytes: u64,
    /// The connections that have something to send, the next one first.
    flows: VecDeque<Flow>,
    /// Whether a burst is under way.
    sends: bool,
}

/// What waits on one connection.
#[derive(Clone, Debug)]
struct Flow {
    to: Rank,
    messages: VecDeque<Waiting>,
}

/// A message, or the rest of one.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    message: u32,
    /// Bytes that have not left, and those of them that are payload.
    rest: u64,
    payload: u64,
    /// Whether its sender knows that it is on its way.
    is_taken: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Lines<'a> {
    machine: &'a Rig,
    /// How many members share a port of which one stands for all; 0 where none does.
    sharers: u64,
    lines: BTreeMap<Resource, Line>,
}

impl<'a> Lines<'a> {
    pub(super) fn new(machine: &'a Rig, is_mirrored: bool) -> Self {
        let sharers = if is_mirrored { machine.on_host_of(0) as u64 } else { 0 };
        Self { machine, sharers, lines: BTreeMap::new() }
    }

    /// The ways of a message, in its order: of its sender's host, of the uplinks of both sites if these are two, and of its receiver's host;
    /// none inside a host.
    pub(super) fn ways(&self, message: &Transfer) -> [Option<Resource>; WAYS] {
        let hosts = &self.machine.hosts;
        let (from, to) = (hosts[message.from as usize], hosts[message.rank as usize]);
        if from == to {
            return [None; WAYS];
        }
        let [first, last] = self.ends(message, from, to);
        let uplinks = match &self.machine.sites {
            Some(sites) if sites.of_host(from) != sites.of_host(to) => {
                [sites.of_host(from).map(Resource::SiteOut), sites.of_host(to).map(Resource::SiteInto)]
            }
            _ => [None; 2],
        };
        [first, uplinks[0], uplinks[1], last]
    }

    /// The ways of a message between two hosts that are at its sender and at its receiver.
    fn ends(&self, message: &Transfer, from: u32, to: u32) -> [Option<Resource>; 2] {
        let (sender, receiver) = (message.from as usize, message.rank as usize);
        let linked = self.machine.links.as_ref().filter(|(size, _)| sender < *size && receiver < *size);
        let is_missing = linked.is_some_and(|(size, rates)| rates[sender * size + receiver] == 0);
        match (&self.machine.switches, linked) {
            (Some(switches), Some(_)) if is_missing => {
                let switch = |worker: usize| switches.of_rank.get(worker).map(|switch| *switch as u32);
                [switch(sender).map(Resource::SwitchOut), switch(receiver).map(Resource::SwitchInto)]
            }
            // Word of grants has another way back, where a link goes one way.
            (_, Some(_)) if !is_missing || message.bytes > 0 => {
                [Some(Resource::Link { from: message.from, to: message.rank }), None]
            }
            // Where one rank stands for all, what it sends is what comes into its host.
            _ if self.sharers > 0 => [Some(Resource::Out(from)), Some(Resource::Into(from))],
            _ => [Some(Resource::Out(from)), Some(Resource::Into(to))],
        }
    }

    fn line(&mut self, place: Resource) -> &mut Line {
        let (machine, sharers) = (self.machine, self.sharers.max(1));
        self.lines.entry(place).or_insert_with(|| {
            let rate = match place {
                Resource::Out(host) => machine.payload_rate(host, machine.ports[host as usize].out) / sharers,
                Resource::Into(host) => {
                    machine.payload_rate(host, machine.ports[host as usize].into) / sharers
                }
                Resource::Link { from, to } => machine.links.as_ref().map_or(0, |(size, rates)| {
                    let rate = rates[from as usize * size + to as usize];
                    // Over a link that is not there nothing ever comes; a byte a second is as good as never.
                    machine.payload_rate(machine.hosts[from as usize], rate).max(1)
                }),
                Resource::SwitchOut(switch) => machine
                    .switches
                    .as_ref()
                    .map_or(0, |known| machine.switch_rate(known.out[switch as usize])),
                Resource::SwitchInto(switch) => machine
                    .switches
                    .as_ref()
                    .map_or(0, |known| machine.switch_rate(known.into[switch as usize])),
                Resource::SiteOut(site) => machine.uplink(site, |uplink| uplink.out),
                Resource::SiteInto(site) => machine.uplink(site, |uplink| uplink.into),
                Resource::Thread(_) => 0,
            };
            let saved = duration(machine.costs.bucket / sharers, rate);
            Line { rate, saved, ..Line::default() }
        })
    }

    /// A message waits for a port or link that it leaves by. Returns whether nothing was under way there.
    pub(super) fn enter(&mut self, place: Resource, index: u32, message: &Transfer) -> bool {
        let line = self.line(place);
        let (rest, payload) = (message.bytes + HEADER_BYTES, message.bytes);
        let waiting = Waiting { message: index, rest, payload, is_taken: false };
        match line.flows.iter_mut().find(|flow| flow.to == message.rank) {
            Some(flow) => flow.messages.push_back(waiting),
            None => line.flows.push_back(Flow { to: message.rank, messages: [waiting].into() }),
        }
        !line.sends
    }

    /// The next burst that leaves: connections take turns.
    pub(super) fn next(&mut self, place: Resource, now: Picoseconds) -> Option<Burst> {
        let line = self.line(place);
        line.sends = false;
        let flow = line.flows.front_mut()?;
        let waiting = flow.messages.front_mut()?;
        let bytes = waiting.rest.min(BURST);
        let payload = waiting.payload.min(bytes);
        (waiting.rest, waiting.payload) = (waiting.rest - bytes, waiting.payload - payload);
        let (message, is_last) = (waiting.message, waiting.rest == 0);
        line.sends = true;
        let time = line.pass(bytes, payload, now) - now;
        Some(Burst { message, bytes, payload, time, is_last })
    }

    /// A burst has left: the next connection's turn comes. Returns the messages that the connection has taken now, which are
    /// those whose last byte is among the next `buffered`.
    pub(super) fn has_left(&mut self, place: Resource, buffered: u64) -> Vec<u32> {
        let line = self.line(place);
        let Some(mut flow) = line.flows.pop_front() else { return Vec::new() };
        let over = flow.messages.front().filter(|first| first.rest == 0).copied();
        if over.is_some() {
            flow.messages.pop_front();
        }
        let mut taken: Vec<u32> =
            over.iter().filter(|over| !over.is_taken).map(|over| over.message).collect();
        taken.extend(flow.taken(buffered));
        if !flow.messages.is_empty() {
            line.flows.push_back(flow);
        }
        taken
    }

    /// The messages to a rank that their connection takes at once.
    pub(super) fn taken(&mut self, place: Resource, to: Rank, buffered: u64) -> Vec<u32> {
        let flow = self.line(place).flows.iter_mut().find(|flow| flow.to == to);
        flow.map_or_else(Vec::new, |flow| flow.taken(buffered))
    }

    /// Has a burst come in at a host's port, after what came before; returns from when until when.
    pub(super) fn arrive(
        &mut self,
        place: Resource,
        burst: Burst,
        ready: Picoseconds,
    ) -> (Picoseconds, Picoseconds) {
        let line = self.line(place);
        let start = line.free.saturating_sub(line.saved).max(ready);
        (start, line.pass(burst.bytes, burst.payload, ready))
    }

    /// How much each was used.
    pub(super) fn used(&self) -> impl Iterator<Item = Used> {
        let sharers = self.sharers.max(1);
        let used = move |(place, line): (&Resource, &Line)| Used {
            place: *place,
            busy: line.busy,
            bytes: line.bytes * sharers,
        };
        self.lines.iter().map(used)
    }
}

impl Line {
    /// Lets bytes through that are there from `ready`, after those before them; returns when they are through.
    fn pass(&mut self, bytes: u64, payload: u64, ready: Picoseconds) -> Picoseconds {
        let time = duration(bytes, self.rate);
        self.free = self.free.max(ready).saturating_add(time);
        self.busy = self.busy.saturating_add(time);
        self.bytes += payload;
        self.free.saturating_sub(self.saved).max(ready)
    }
}

impl Flow {
    /// Those that have become part of the first `buffered` bytes, and were none before.
    fn taken(&mut self, buffered: u64) -> Vec<u32> {
        let mut ahead = 0;
        let mut taken = Vec::new();
        for waiting in &mut self.messages {
            ahead += waiting.rest;
            if ahead > buffered {
                break;
            }
            if !core::mem::replace(&mut waiting.is_taken, true) {
                taken.push(waiting.message);
            }
        }
        taken
    }
}
