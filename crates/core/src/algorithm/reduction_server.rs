//! Reducers, which have no data, fold: the holders of a chunk send it to the chunk's reducer, which sends the result
//! back.
//!
//! A worker moves the buffer once each way. With algorithms that use workers only it moves the buffer almost twice
//! (Herring, SC 2020; BytePS, OSDI 2020). The holders are the workers, or one worker of each host, which has the host's
//! sum.

use super::owners::Node;
use super::partial::Partial;
use super::shares::Owners;
use crate::group::{Group, Rank};
use crate::schedule::{Chunk, Cut, Form, Place, Program, ProgramBuilder, Schedule, Symmetry};
use alloc::{vec, vec::Vec};
use core::ops::Range;

pub(super) fn all_reduce(group: &Group, reducers: u32, owners: Owners) -> Schedule {
    let (workers, keys) = (group.size(), group.keys().to_vec());
    let nodes = (0..workers).map(|rank| Node::in_turn(rank..rank + 1, owners.len())).collect();
    let are_alike = owners.are_alike() && reducers == workers;
    let served = Served { workers, owners, each: 1, nodes };
    let cut = served.cut();
    let program = move |rank: Rank| {
        if let Some(reducer) = rank.checked_sub(workers) {
            return served.reducer(&keys, reducer);
        }
        let held: Vec<Place> = (0..served.chunks()).map(Place::User).collect();
        let mut program = ProgramBuilder::new();
        served.all_reduce_chunks(&mut program, rank, 0..served.chunks(), &held);
        program.build()
    };
    match are_alike {
        true => Schedule::alike(Symmetry::new(vec![workers], true), true, cut, program),
        false => Schedule::generated(workers, reducers, cut, program),
    }
}

/// Who folds what for whom.
pub(super) struct Served {
    pub(super) workers: u32,
    /// The reducers that fold.
    pub(super) owners: Owners,
    /// How many chunks each of them folds: enough for every worker to hold one of them, so that each reducer hears when
    /// all workers have their results.
    pub(super) each: u32,
    /// Nodes of the canonical tree, in rank order; the owner of a chunk holds the node's partial sum.
    pub(super) nodes: Vec<Node>,
}

impl Served {
    pub(super) fn chunks(&self) -> u32 {
        self.owners.len() * self.each
    }

    pub(super) fn cut(&self) -> Cut {
        self.owners.cut(self.each, false)
    }

    /// Sends the chunks that a worker holds to their reducers, and receives their results. Workers start with different
    /// reducers, so that no reducer has all of them at once.
    pub(super) fn all_reduce_chunks(
        &self,
        program: &mut ProgramBuilder,
        rank: Rank,
        chunks: impl Iterator<Item = Chunk>,
        held: &[Place],
    ) {
        let turn = |chunk: &Chunk| {
            let (owner, owners) = (chunk / self.each, self.owners.len());
            ((owner + owners - rank % owners) % owners, *chunk)
        };
        let mut chunks: Vec<Chunk> = chunks.collect();
        chunks.sort_by_key(turn);
        let reducer = |chunk: Chunk| self.workers + self.owners.place(chunk / self.each);
        for chunk in &chunks {
            program.send(held[*chunk as usize], [reducer(*chunk)]);
        }
        for chunk in chunks {
            program.recv(reducer(chunk), chunk, Place::User(chunk));
        }
    }

    /// The program of a reducer, by its place among all; nothing if it folds nothing.
    pub(super) fn reducer(&self, keys: &[u32], reducer: u32) -> Program {
        let mut program = ProgramBuilder::new();
        let owned = |owner: u32| owner * self.each..(owner + 1) * self.each;
        let chunks: Range<Chunk> = self.owners.chunk(reducer).map_or(0..0, owned);
        for chunk in chunks {
            let result = program.slot(Form::Plain);
            let partials = self.nodes.iter().map(|node| Partial::of(node, chunk, keys));
            let sources: Vec<_> =
                partials.map(|partial| partial.origin(self.workers + reducer, result)).collect();
            program.fold(chunk, &sources, result, true);
            let first = chunk as usize % self.nodes.len();
            let (after, before) = (&self.nodes[first..], &self.nodes[..first]);
            program.send(result, after.iter().chain(before).map(|node| node.owner(chunk)));
        }
        program.build()
    }
}
