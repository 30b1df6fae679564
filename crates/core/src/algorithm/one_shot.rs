//! One round. For few ranks and tiny messages every rank sends all its data to every other and folds for itself. In a
//! collective that only moves data, each part goes straight to its destination.
//!
//! In an all_to_all each rank starts with its successor, so that no two start with the same receiver.

use super::partial::{Inputs, Partial, finish};
use crate::collective::all_to_all;
use crate::group::Group;
use crate::schedule::{Chunk, Cut, Place, ProgramBuilder, Rank, Schedule, Symmetry};
use alloc::{vec, vec::Vec};

pub(super) fn all_reduce(group: &Group) -> Schedule {
    let (size, inputs) = (group.size(), Inputs { group: group.clone(), chunks: 1 });
    let (cut, has_several) = (Cut::Even { chunks: 1 }, group.has_several());
    let program = move |rank| {
        let mut program = ProgramBuilder::new();
        inputs.send(&mut program, rank, 0, &after(rank, size).collect::<Vec<_>>());
        finish(&mut program, 0, &inputs.sources(rank, 0), Place::User(0));
        program.build()
    };
    match has_several {
        true => Schedule::generated(size, 0, cut, program),
        false => Schedule::alike(Symmetry::new(vec![size], false), false, cut, program),
    }
}

pub(super) fn gather(group: &Group, root: Rank) -> Schedule {
    let size = group.size();
    Schedule::generated(size, 0, Cut::Given { parts: size }, move |rank| {
        let mut program = ProgramBuilder::new();
        if rank == root {
            for from in before(root, size) {
                program.recv(from, from, Place::User(from));
            }
        } else {
            program.send(Place::User(rank), [root]);
        }
        program.build()
    })
}

pub(super) fn scatter(group: &Group, root: Rank) -> Schedule {
    let size = group.size();
    Schedule::generated(size, 0, Cut::Given { parts: size }, move |rank| {
        let mut program = ProgramBuilder::new();
        if rank == root {
            for to in after(root, size) {
                program.send(Place::User(to), [to]);
            }
        } else {
            program.recv(root, rank, Place::User(rank));
        }
        program.build()
    })
}

pub(super) fn all_to_all(group: &Group) -> Schedule {
    let size = group.size();
    Schedule::generated(size, 0, Cut::Given { parts: all_to_all::chunks(size) }, move |rank| {
        let mut program = ProgramBuilder::new();
        for to in after(rank, size) {
            program.send(Place::User(all_to_all::chunk(size, rank, to)), [to]);
        }
        for from in before(rank, size) {
            let chunk = all_to_all::chunk(size, from, rank);
            program.recv(from, chunk, Place::User(chunk));
        }
        program.build()
    })
}

/// The other ranks, from the next one on.
fn after(rank: Rank, size: u32) -> impl Iterator<Item = Rank> {
    (rank + 1..size).chain(0..rank)
}

/// The other ranks, from the one before backwards: in the order in which they come to send to this one.
fn before(rank: Rank, size: u32) -> impl Iterator<Item = Rank> {
    (0..rank).rev().chain((rank + 1..size).rev())
}

/// All-reduces one chunk among the holders of `partials`; the result goes to the user's buffer. This rank's is in
/// `held`.
pub(super) fn all_reduce_chunk(
    program: &mut ProgramBuilder,
    rank: Rank,
    partials: &[Partial],
    chunk: Chunk,
    held: Place,
) {
    let own = partials.iter().position(|partial| partial.holder == rank).expect("a holder");
    let (before, after) = (&partials[..own], &partials[own + 1..]);
    program.send(held, after.iter().chain(before).map(|partial| partial.holder));
    let sources: Vec<_> = partials.iter().map(|partial| partial.origin(rank, held)).collect();
    finish(program, chunk, &sources, held);
}
