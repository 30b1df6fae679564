//! One rank folds for all: every other sends its data and gets the result back. It is for ranks of one host and tiny
//! messages. Their time depends on the work of all ranks together, and on how often each has to wait.

use super::partial::Inputs;
use crate::group::{Group, Rank};
use crate::schedule::{Cut, Place, ProgramBuilder, Schedule};

/// The rank in the middle.
const CENTRE: Rank = 0;

pub(super) fn all_reduce(group: &Group) -> Schedule {
    let (size, inputs) = (group.size(), Inputs { group: group.clone(), chunks: 1 });
    Schedule::generated(size, 0, Cut::Even { chunks: 1 }, move |rank| {
        let mut program = ProgramBuilder::new();
        let result = Place::User(0);
        if rank == CENTRE {
            program.fold(0, &inputs.sources(rank, 0), result, true).send(result, 1..size);
        } else {
            inputs.send(&mut program, rank, 0, &[CENTRE]);
            program.recv(CENTRE, 0, result);
        }
        program.build()
    })
}
