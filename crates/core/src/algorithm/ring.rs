//! Reduce-scatter round a ring, then all-gather round it: the bandwidth optimum with two neighbours per rank.
//!
//! Sums grow in the order of the ring, so the bits depend on the schedule (canonical for two ranks only).

use crate::schedule::{Cut, Form, Origin, Place, Program, ProgramBuilder, Rank, Schedule, Source, Symmetry};
use alloc::{vec, vec::Vec};

pub(super) fn all_reduce(size: u32) -> Schedule {
    let turns = Symmetry::new(vec![size], true);
    Schedule::alike(turns, false, Cut::Even { chunks: size }, move |rank| program(size, rank))
}

fn program(size: u32, rank: Rank) -> Program {
    let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
    let back = |distance: u32| (rank + size - distance % size) % size;
    let rounds = size - 1;
    let mut program = ProgramBuilder::new();

    // Two slots, so that a round's fold never waits for the send of the same round: all ranks would wait in a circle.
    let slots: Vec<Place> = (1..rounds).take(2).map(|_| program.slot(Form::Acc)).collect();
    let mut held = Place::User(rank);
    let mut form = Form::Plain;
    for round in 0..rounds {
        let chunk = back(round + 1);
        let finish = round + 1 == rounds;
        let into = if finish { Place::User(chunk) } else { slots[round as usize % 2] };
        let sum = Source { from: Origin::Head { lane: before, form }, merges: 0 };
        let own = Source { from: Origin::At(Place::User(chunk)), merges: 1 };
        program.send(held, [next]).fold_shaped(chunk, [sum, own], into, finish);
        (held, form) = (into, Form::Acc);
    }

    for round in 0..rounds {
        let chunk = back(round);
        program.send(Place::User(back(round + rounds)), [next]).recv(before, chunk, Place::User(chunk));
    }
    program.build()
}
