//! One rank folds for all: every other sends it what it has and gets the result back. For ranks of one host and tiny
//! messages, where what counts is how much all of them do together, and how often each has to wait.

use super::partial::Partial;
use crate::group::{Group, Rank};
use crate::schedule::{Cut, Place, ProgramBuilder, Schedule};
use alloc::vec::Vec;

/// The rank in the middle.
const CENTRE: Rank = 0;

pub(super) fn all_reduce(group: &Group) -> Schedule {
    let keys = group.keys().to_vec();
    Schedule::generated(group.size(), 0, Cut::Even { chunks: 1 }, move |rank| {
        let mut program = ProgramBuilder::new();
        let input = Place::User(0);
        if rank == CENTRE {
            let partials = Partial::inputs(&keys);
            let sources: Vec<_> = partials.iter().map(|partial| partial.origin(rank, input)).collect();
            program.fold(0, &sources, input, true).send(input, 1..keys.len() as Rank);
        } else {
            program.send(input, [CENTRE]).recv(CENTRE, 0, input);
        }
        program.build()
    })
}
