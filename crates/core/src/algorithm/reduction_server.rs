//! Reducers, which have no data, fold: worker r sends chunk c to reducer c, and reducer c sends the result to all.
//!
//! A worker moves the buffer once each way, where algorithms among workers move it almost twice (Herring, SC 2020; BytePS,
//! OSDI 2020).

use super::partial::Partial;
use crate::group::Group;
use crate::schedule::{Cut, Form, Place, Program, ProgramBuilder, Rank, Schedule};
use alloc::vec::Vec;

pub(super) fn all_reduce(group: &Group, reducers: u32) -> Schedule {
    let keys = group.keys().to_vec();
    let workers = group.size();
    Schedule::generated(workers, reducers, Cut::Even { chunks: reducers }, move |rank| {
        match rank.checked_sub(workers) {
            None => worker(workers, reducers, rank),
            Some(chunk) => reducer(&keys, rank, chunk),
        }
    })
}

/// Workers start with different reducers, so that no reducer has all of them at once.
fn worker(workers: u32, reducers: u32, rank: Rank) -> Program {
    let mut program = ProgramBuilder::new();
    let chunks = (0..reducers).map(|turn| (rank + turn) % reducers);
    for chunk in chunks.clone() {
        program.send(Place::User(chunk), [workers + chunk]);
    }
    for chunk in chunks {
        program.recv(workers + chunk, chunk, Place::User(chunk));
    }
    program.build()
}

fn reducer(keys: &[u32], rank: Rank, chunk: u32) -> Program {
    let workers = keys.len() as u32;
    let mut program = ProgramBuilder::new();
    let result = program.slot(Form::Plain);
    let inputs: Vec<_> = Partial::inputs(keys).iter().map(|input| input.origin(rank, result)).collect();
    program.fold(chunk, &inputs, result, true);
    program.send(result, (0..workers).map(|turn| (chunk + turn) % workers));
    program.build()
}
