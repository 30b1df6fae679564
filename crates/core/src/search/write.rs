//! From a draft to the schedule: all events in one order that every rank keeps, so nothing waits in a circle.

use super::{
    draft::{ChunkDraft, FoldTree},
    network::Interconnect,
};
use crate::{
    group::Rank,
    schedule::{Chunk, Cut, Form, Origin, Place, Program, ProgramBuilder, Schedule, Weights},
};
use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};

/// A partial sum, or the result, on its way to a rank: where its sender has it is known once it is written.
#[derive(Clone, Copy, Debug)]
struct Arrival {
    node: usize,
    from: Rank,
}

/// What becomes of one chunk at one rank.
#[derive(Debug)]
enum Event {
    /// A rank sends a partial sum on that it does not fold.
    Relay { node: usize, from: Rank, to: Rank },
    /// A rank folds what it has and what others send.
    Fold { node: usize, at: Rank, own: Vec<usize>, arrivals: Vec<Arrival> },
    /// A rank gets the result, to keep or to send on.
    Result { from: Rank, to: Rank, keeps: bool },
}

/// An event and when it can be, at the earliest: after so many messages one after the other.
struct Timed {
    level: u32,
    chunk: Chunk,
    event: Event,
}

/// The schedule of a draft.
pub(super) fn schedule(
    tree: &FoldTree,
    network: &Interconnect,
    keys: &[u32],
    chunks: &[ChunkDraft],
) -> Schedule {
    let mut events = Vec::new();
    for (chunk, draft) in (0..).zip(chunks) {
        let mut chunk = ChunkEvents { tree, network, draft, chunk, events: &mut events };
        let done = chunk.fold(tree.root());
        chunk.send_out(done);
    }
    // Chunks take turns, from another one on at each level, so that no rank is the first for all.
    let count = chunks.len() as u32;
    events.sort_by_key(|timed| (timed.level, (timed.chunk + timed.level) % count, timed.chunk));
    let mut writer = Writer {
        keys,
        tree,
        programs: (0..tree.ranks).map(|_| ProgramBuilder::new()).collect(),
        held: BTreeMap::new(),
    };
    events.iter().for_each(|timed| writer.write(timed.chunk, &timed.event));
    let programs: Vec<Program> = writer.programs.into_iter().map(ProgramBuilder::build).collect();
    let weights = Weights::new(chunks.iter().map(|draft| draft.weight));
    let cut = match weights {
        Some(weights) if chunks.iter().any(|draft| draft.weight != chunks[0].weight) => {
            Cut::Weighted { weights, blocks: false }
        }
        _ => Cut::Even { chunks: count },
    };
    Schedule::listed(tree.ranks as u32, cut, programs)
}

struct ChunkEvents<'a> {
    tree: &'a FoldTree,
    network: &'a Interconnect,
    draft: &'a ChunkDraft,
    chunk: Chunk,
    events: &'a mut Vec<Timed>,
}

impl ChunkEvents<'_> {
    fn add(&mut self, level: u32, event: Event) {
        self.events.push(Timed { level, chunk: self.chunk, event });
    }

    /// Lets the holder of a node make its sum, with those of all nodes below that it holds, too, in one fold. Returns the level after it.
    fn fold(&mut self, node: usize) -> u32 {
        let at = self.draft.holders[node];
        let (mut own, mut arrivals, mut level) = (Vec::new(), Vec::new(), 0);
        let mut open: Vec<usize> = self.tree.below(node).into_iter().flatten().rev().collect();
        while let Some(next) = open.pop() {
            let from = self.draft.holders[next];
            match self.tree.below(next) {
                Some(below) if from == at => open.extend(below.into_iter().rev()),
                None if from == at => own.push(next),
                below => {
                    let mut ready = if below.is_some() { self.fold(next) } else { 0 };
                    let mut last = from;
                    for hop in self.network.way(from, at) {
                        if hop != at {
                            self.add(ready, Event::Relay { node: next, from: last, to: hop });
                            last = hop;
                        }
                        ready += 1;
                    }
                    level = level.max(ready);
                    arrivals.push(Arrival { node: next, from: last });
                }
            }
        }
        self.add(level, Event::Fold { node, at, own, arrivals });
        level + 1
    }

    /// Lets all ranks get the result, which the owner has from this level on.
    fn send_out(&mut self, done: u32) {
        let mut levels: Vec<Option<u32>> = alloc::vec![None; self.tree.ranks];
        levels[self.draft.owner() as usize] = Some(done);
        for rank in 0..self.tree.ranks as Rank {
            // From the nearest rank that has it, down to this one.
            let mut missing = Vec::new();
            let mut at = rank;
            while levels[at as usize].is_none() {
                missing.push(at);
                at = self.draft.parents[at as usize];
            }
            while let Some(to) = missing.pop() {
                let from = self.draft.parents[to as usize];
                let mut level = levels[from as usize].unwrap_or(done);
                let mut last = from;
                for hop in self.network.way(from, to) {
                    self.add(level, Event::Result { from: last, to: hop, keeps: hop == to });
                    (last, level) = (hop, level + 1);
                }
                levels[to as usize] = Some(level);
            }
        }
    }
}

/// A partial sum of a chunk, or the result, at a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Held {
    chunk: Chunk,
    rank: Rank,
    node: usize,
}

struct Writer<'a> {
    keys: &'a [u32],
    tree: &'a FoldTree,
    programs: Vec<ProgramBuilder>,
    /// Where ranks have what is not their input.
    held: BTreeMap<Held, Place>,
}

impl Writer<'_> {
    /// What the result is called beside the nodes of the tree.
    fn result(&self) -> usize {
        self.tree.nodes()
    }

    fn place(&self, chunk: Chunk, rank: Rank, node: usize) -> Place {
        self.held.get(&Held { chunk, rank, node }).copied().unwrap_or(Place::User(chunk))
    }

    fn form(&self, node: usize) -> Form {
        if node < self.tree.ranks || node == self.result() { Form::Plain } else { Form::Acc }
    }

    fn program(&mut self, rank: Rank) -> &mut ProgramBuilder {
        &mut self.programs[rank as usize]
    }

    /// One rank sends what it has of a node to another, which takes it into a slot.
    fn relay(&mut self, chunk: Chunk, node: usize, from: Rank, to: Rank) -> Place {
        let (place, form) = (self.place(chunk, from, node), self.form(node));
        self.program(from).send(place, [to]);
        let slot = self.program(to).slot(form);
        self.program(to).recv(from, chunk, slot);
        self.held.insert(Held { chunk, rank: to, node }, slot);
        slot
    }

    fn write(&mut self, chunk: Chunk, event: &Event) {
        match event {
            Event::Relay { node, from, to } => drop(self.relay(chunk, *node, *from, *to)),
            Event::Fold { node, at, own, arrivals } => self.fold(chunk, *node, *at, own, arrivals),
            Event::Result { from, to, keeps: true } => {
                let place = self.place(chunk, *from, self.result());
                self.program(*from).send(place, [*to]);
                self.program(*to).recv(*from, chunk, Place::User(chunk));
                let held = Held { chunk, rank: *to, node: self.result() };
                self.held.insert(held, Place::User(chunk));
            }
            Event::Result { from, to, keeps: false } => drop(self.relay(chunk, self.result(), *from, *to)),
        }
    }

    fn fold(&mut self, chunk: Chunk, node: usize, at: Rank, own: &[usize], arrivals: &[Arrival]) {
        let mut sources: Vec<(u32, Origin)> = Vec::new();
        let key = |writer: &Self, node: usize| writer.keys[writer.tree.first[node] as usize];
        for node in own {
            sources.push((key(self, *node), Origin::At(Place::User(chunk))));
        }
        let mut lanes = BTreeSet::new();
        for Arrival { node, from } in arrivals {
            // A lane holds one message for a fold; others of it wait in slots.
            let is_last = arrivals.iter().rev().find(|other| other.from == *from).map(|other| other.node);
            let origin = match is_last == Some(*node) && lanes.insert(*from) {
                true => {
                    let (place, form) = (self.place(chunk, *from, *node), self.form(*node));
                    self.program(*from).send(place, [at]);
                    Origin::Head { lane: *from, form }
                }
                false => Origin::At(self.relay(chunk, *node, *from, at)),
            };
            sources.push((key(self, *node), origin));
        }
        sources.sort_by_key(|(key, _)| *key);
        let is_result = node == self.tree.root();
        let into = if is_result { Place::User(chunk) } else { self.program(at).slot(Form::Acc) };
        self.program(at).fold(chunk, &sources, into, is_result);
        let node = if is_result { self.result() } else { node };
        self.held.insert(Held { chunk, rank: at, node }, into);
    }
}
