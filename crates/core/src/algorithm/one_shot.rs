//! Every rank sends all it has to every other and folds for itself: one round, for few ranks and tiny messages.

use super::partial::{Partial, finish};
use crate::group::Group;
use crate::schedule::{Chunk, Cut, Place, ProgramBuilder, Rank, Schedule};
use alloc::vec::Vec;

pub(super) fn all_reduce(group: &Group) -> Schedule {
    let keys = group.keys().to_vec();
    Schedule::generated(group.size(), 0, Cut::Even { chunks: 1 }, move |rank| {
        let mut program = ProgramBuilder::new();
        exchange(&mut program, rank, &Partial::inputs(&keys), 0, Place::User(0));
        program.build()
    })
}

/// All-reduces one chunk among the holders of `partials`; the result goes to the user's buffer. This rank's is in
/// `held`.
pub(super) fn exchange(
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
