//! Ports and links, each of which carries one message after the other.

use super::{
    event::Transfer,
    machine::{Picoseconds, Rig, duration},
    outcome::{Resource, Used},
};
use alloc::collections::BTreeMap;

/// The bytes of a frame without its payload.
pub(super) const HEADER: u64 = 64;

/// A port or link.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    rate: u64,
    free: Picoseconds,
    busy: Picoseconds,
    bytes: u64,
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

    /// The ways of a message: of its sender's host, and of its receiver's; none inside a host.
    pub(super) fn ways(&self, message: &Transfer) -> [Option<Resource>; 2] {
        let hosts = &self.machine.hosts;
        let (from, to) = (hosts[message.from as usize], hosts[message.rank as usize]);
        if from == to {
            return [None, None];
        }
        match &self.machine.links {
            Some((size, _)) if (message.from as usize) < *size && (message.rank as usize) < *size => {
                [Some(Resource::Link { from: message.from, to: message.rank }), None]
            }
            // Where one rank stands for all, what it sends is what comes into its host.
            _ if self.sharers > 0 => [Some(Resource::Out(from)), Some(Resource::Into(from))],
            _ => [Some(Resource::Out(from)), Some(Resource::Into(to))],
        }
    }

    pub(super) fn rate(&mut self, place: Resource) -> u64 {
        self.line(place).rate
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
                Resource::Thread(_) => 0,
            };
            Line { rate, ..Line::default() }
        })
    }

    /// Has a line carry a message from `ready` on; returns from when until when.
    pub(super) fn carry(
        &mut self,
        place: Resource,
        message: &Transfer,
        ready: Picoseconds,
    ) -> (Picoseconds, Picoseconds) {
        let line = self.line(place);
        let time = duration(message.bytes + HEADER, line.rate);
        let start = ready.max(line.free);
        line.free = start + time;
        line.busy += time;
        line.bytes += message.bytes;
        (start, start + time)
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
