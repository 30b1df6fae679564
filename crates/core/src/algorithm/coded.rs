//! Coded forms: every input is encoded where it is, folded as it is decoded, and comes back coded, too.
//!
//! A rank encodes its own share like all others, so the bits do not depend on which rank folds which chunk. The rank
//! that folds a chunk uses the decoded result that the others get, so all have the same bits.

use super::owners::Node;
use super::shares::Owners;
use crate::group::{Group, Rank};
use crate::schedule::{Chunk, Form, Origin, Place, ProgramBuilder, Schedule, Symmetry};
use alloc::{vec, vec::Vec};

/// Each owner folds one chunk: the coded form of `radix` with a single stage.
pub(super) fn sharded(group: &Group, owners: Owners) -> Schedule {
    let (workers, keys) = (group.size(), group.keys().to_vec());
    let (cut, are_alike) = (owners.cut(1, true), owners.are_alike());
    let program = move |rank| {
        let mut program = ProgramBuilder::new();
        // Each starts with its successor, so that no two start with the same one.
        let others = || (1..workers).map(move |step| (rank + step) % workers);
        let chunks: Vec<(Rank, Chunk)> =
            others().filter_map(|owner| Some((owner, owners.chunk(owner)?))).collect();
        for (owner, chunk) in &chunks {
            let coded = encoded(&mut program, *chunk);
            program.send(coded, [*owner]);
        }
        if let Some(chunk) = owners.chunk(rank) {
            let own = encoded(&mut program, chunk);
            let origin = |from: Rank| match from == rank {
                true => Origin::At(own),
                false => Origin::Head { lane: from, form: Form::Coded },
            };
            let sources: Vec<_> = (0..workers).map(|from| (keys[from as usize], origin(from))).collect();
            let coded = folded(&mut program, chunk, &sources);
            program.send(coded, others());
            program.decode(chunk, Origin::At(coded), Place::User(chunk));
        }
        for (owner, chunk) in chunks.into_iter().rev() {
            decoded(&mut program, chunk, owner);
        }
        program.build()
    };
    match are_alike {
        true => Schedule::alike(Symmetry::new(vec![workers], true), false, cut, program),
        false => Schedule::generated(workers, 0, cut, program),
    }
}

/// Each reducer that owns a chunk folds it: the coded form of `reduction_server`.
pub(super) fn served(group: &Group, reducers: u32, owners: Owners) -> Schedule {
    let (workers, keys) = (group.size(), group.keys().to_vec());
    let nodes: Vec<Node> = (0..workers).map(|rank| Node::in_turn(rank..rank + 1, owners.len())).collect();
    let (cut, are_alike) = (owners.cut(1, true), owners.are_alike() && reducers == workers);
    let program = move |rank: Rank| {
        let mut program = ProgramBuilder::new();
        if let Some(reducer) = rank.checked_sub(workers) {
            let Some(chunk) = owners.chunk(reducer) else { return program.build() };
            let head = |node: &Node| Origin::Head { lane: node.owner(chunk), form: Form::Coded };
            let sources: Vec<_> =
                nodes.iter().map(|node| (keys[node.ranks.start as usize], head(node))).collect();
            let coded = folded(&mut program, chunk, &sources);
            let (before, after) = nodes.split_at(chunk as usize % nodes.len());
            program.send(coded, after.iter().chain(before).map(|node| node.owner(chunk)));
        } else {
            let chunks = || (0..owners.len()).map(|step| (rank + step) % owners.len());
            for chunk in chunks() {
                let coded = encoded(&mut program, chunk);
                program.send(coded, [workers + owners.place(chunk)]);
            }
            for chunk in chunks() {
                decoded(&mut program, chunk, workers + owners.place(chunk));
            }
        }
        program.build()
    };
    match are_alike {
        true => Schedule::alike(Symmetry::new(vec![workers], true), true, cut, program),
        false => Schedule::generated(workers, reducers, cut, program),
    }
}

/// Encodes this rank's input at a chunk. Returns where that is.
fn encoded(program: &mut ProgramBuilder, chunk: Chunk) -> Place {
    let coded = program.slot(Form::Coded);
    program.encode(Place::User(chunk), coded);
    coded
}

/// Folds a chunk, and encodes the result. Returns where that is.
fn folded(program: &mut ProgramBuilder, chunk: Chunk, sources: &[(u32, Origin)]) -> Place {
    let (result, coded) = (program.slot(Form::Plain), program.slot(Form::CodedResult));
    program.fold(chunk, sources, result, true).encode(result, coded);
    coded
}

/// Takes the result at a chunk from whoever has folded it.
fn decoded(program: &mut ProgramBuilder, chunk: Chunk, lane: Rank) {
    program.decode(chunk, Origin::Head { lane, form: Form::CodedResult }, Place::User(chunk));
}
