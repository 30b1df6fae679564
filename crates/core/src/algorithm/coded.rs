//! Coded forms: every input is encoded where it is, folded as it is decoded, and comes back coded, too.
//!
//! A rank encodes its own share like all others, so that bits do not depend on who folds what. Whoever folds a chunk takes for
//! its own result what the others will decode, so that all have the same.

use super::owners::Node;
use crate::group::{Group, Rank};
use crate::schedule::{Chunk, Cut, Form, Origin, Place, ProgramBuilder, Schedule};
use alloc::vec::Vec;

/// Each rank folds one chunk: the coded form of `radix` with a single stage.
pub(super) fn sharded(group: &Group) -> Schedule {
    let (workers, keys) = (group.size(), group.keys().to_vec());
    Schedule::generated(workers, 0, Cut::Blocks { chunks: workers }, move |rank| {
        let mut program = ProgramBuilder::new();
        // Each starts with its successor, so that no two start with the same one.
        let others = || (1..workers).map(move |step| (rank + step) % workers);
        for owner in others() {
            let coded = encoded(&mut program, owner);
            program.send(coded, [owner]);
        }
        let own = encoded(&mut program, rank);
        let origin = |from: Rank| match from == rank {
            true => Origin::At(own),
            false => Origin::Head { lane: from, form: Form::Coded },
        };
        let sources: Vec<_> = (0..workers).map(|from| (keys[from as usize], origin(from))).collect();
        let coded = folded(&mut program, rank, &sources);
        program.send(coded, others());
        program.decode(rank, Origin::At(coded), Place::User(rank));
        for owner in others().collect::<Vec<_>>().into_iter().rev() {
            decoded(&mut program, owner, owner);
        }
        program.build()
    })
}

/// Each reducer folds one chunk: the coded form of `reduction_server`.
pub(super) fn served(group: &Group, reducers: u32) -> Schedule {
    let (workers, keys) = (group.size(), group.keys().to_vec());
    let nodes: Vec<Node> = (0..workers).map(|rank| Node::in_turn(rank..rank + 1, reducers)).collect();
    Schedule::generated(workers, reducers, Cut::Blocks { chunks: reducers }, move |rank| {
        let mut program = ProgramBuilder::new();
        if let Some(chunk) = rank.checked_sub(workers) {
            let head = |node: &Node| Origin::Head { lane: node.owner(chunk), form: Form::Coded };
            let sources: Vec<_> =
                nodes.iter().map(|node| (keys[node.ranks.start as usize], head(node))).collect();
            let coded = folded(&mut program, chunk, &sources);
            let (before, after) = nodes.split_at(chunk as usize % nodes.len());
            program.send(coded, after.iter().chain(before).map(|node| node.owner(chunk)));
        } else {
            let chunks = || (0..reducers).map(move |step| (rank + step) % reducers);
            for chunk in chunks() {
                let coded = encoded(&mut program, chunk);
                program.send(coded, [workers + chunk]);
            }
            for chunk in chunks() {
                decoded(&mut program, chunk, workers + chunk);
            }
        }
        program.build()
    })
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
