//! Recursive doubling along the canonical tree: every rank of a node holds the node's partial sum, and in each round
//! the two sides of a merge swap theirs. As many rounds as the tree is deep, for any number of ranks.
//!
//! If one side is larger, each rank of the smaller side sends to several. Unless the number of ranks is a power of two,
//! other implementations fold the surplus ranks in first and serve them last (Thakur, Rabenseifner and Gropp, 2005).
//! This algorithm takes fewer rounds, and it keeps the canonical shape.

use super::owners::{digits, form};
use super::partial::{Partial, finish, merges_above};
use super::radix::all_levels;
use crate::group::Group;
use crate::schedule::{Chunk, Cut, Form, Place, ProgramBuilder, Rank, Schedule, Symmetry};
use alloc::{vec, vec::Vec};

/// Where every merge has sides of the same size, all ranks do the same.
pub(super) fn all_reduce(group: &Group) -> Schedule {
    let (size, cut) = (group.size(), Cut::Even { chunks: 1 });
    let twos = vec![2; group.key_bits() as usize];
    let digits = digits(group.keys(), &all_levels(group, &twos))
        .filter(|digits| digits.iter().all(|radix| *radix == 2));
    let partials = Partial::inputs(group.keys());
    let program = move |rank| {
        let mut program = ProgramBuilder::new();
        all_reduce_chunk(&mut program, rank, &partials, 0, Place::User(0));
        program.build()
    };
    match digits {
        Some(digits) => Schedule::alike(Symmetry::new(digits, false), false, cut, program),
        None => Schedule::generated(size, 0, cut, program),
    }
}

/// All-reduces one chunk among the holders of `partials`; the result goes to the user's buffer. This rank's is in
/// `held`.
pub(super) fn all_reduce_chunk(
    program: &mut ProgramBuilder,
    rank: Rank,
    partials: &[Partial],
    chunk: Chunk,
    mut held: Place,
) {
    let keys: Vec<u32> = partials.iter().map(|partial| partial.key).collect();
    let own = partials.iter().position(|partial| partial.holder == rank).expect("a holder");
    let rounds = merges_above(own, &keys);
    // Two slots, so that a fold never overwrites what the same round sends.
    let slots: Vec<Place> = rounds.iter().skip(1).take(2).map(|_| program.slot(Form::Acc)).collect();
    for (round, merge) in rounds.iter().enumerate() {
        let (index, ours, theirs) = (own - merge.mine.start, merge.mine.len(), merge.other.len());
        program.send(held, merge.other.clone().skip(index).step_by(ours).map(|at| partials[at].holder));

        let mut partner = partials[merge.other.start + index % theirs];
        if theirs > 1 {
            partner.form = form(theirs);
        }
        let mut sources = [partials[own].origin(rank, held), partner.origin(rank, held)];
        sources.sort_by_key(|(key, _)| *key);
        if round + 1 == rounds.len() {
            finish(program, chunk, &sources, held);
        } else {
            held = slots[round % 2];
            program.fold(chunk, &sources, held, false);
        }
    }
}
