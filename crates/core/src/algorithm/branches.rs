//! Schedules along trees: a chunk of the buffer goes over each, up it is summed, down it is sent.

use crate::group::Group;
use crate::schedule::{Chunk, Cut, Form, Origin, Place, ProgramBuilder, Rank, Schedule, Source};
use alloc::{vec, vec::Vec};

/// Which ways a chunk goes along its tree.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ways {
    pub(super) up: bool,
    pub(super) down: bool,
}

/// The schedule of trees, given by the place of each rank in each of them, and by the tree of each chunk.
pub(super) fn over(
    group: &Group,
    places: Vec<Vec<Branch>>,
    of_chunk: Vec<usize>,
    is_canonical: bool,
    ways: Ways,
) -> Schedule {
    let keys = group.keys().to_vec();
    let chunks = of_chunk.len() as u32;
    Schedule::generated(group.size(), 0, Cut::Even { chunks }, move |rank| {
        let mut program = ProgramBuilder::new();
        let branches = || (0..).zip(&of_chunk).map(|(chunk, tree)| (chunk, &places[*tree][rank as usize]));
        if ways.up {
            let keys = is_canonical.then_some(&keys[..]);
            branches().for_each(|(chunk, branch)| branch.sum(&mut program, chunk, rank, keys));
        }
        if ways.down {
            branches().for_each(|(chunk, branch)| branch.send_down(&mut program, chunk));
        }
        program.build()
    })
}

/// A rank's place in a tree.
#[derive(Clone, Debug)]
pub(super) struct Branch {
    pub(super) parent: Option<Rank>,
    /// Those first that start the longest way; whether others are below them.
    pub(super) children: Vec<(Rank, bool)>,
}

impl Branch {
    /// The place of each rank in a tree that is given by each one's parent; the root has none.
    pub(super) fn of_parents(parents: &[Option<Rank>]) -> Vec<Self> {
        let depths = below(parents);
        let place = |rank: Rank| {
            let is_child = |child: &Rank| parents[*child as usize] == Some(rank);
            let mut children: Vec<Rank> = (0..parents.len() as Rank).filter(is_child).collect();
            children.sort_by_key(|child| core::cmp::Reverse(depths[*child as usize]));
            let children = children.iter().map(|child| (*child, depths[*child as usize] > 0)).collect();
            Self { parent: parents[rank as usize], children }
        };
        (0..parents.len() as Rank).map(place).collect()
    }

    /// Adds up what the children send and passes it on, in the shape of the canonical tree of these keys, or in the order of the
    /// children.
    fn sum(&self, program: &mut ProgramBuilder, chunk: Chunk, rank: Rank, keys: Option<&[u32]>) {
        let input = Place::User(chunk);
        if self.children.is_empty()
            && let Some(parent) = self.parent
        {
            program.send(input, [parent]);
            return;
        }
        let into = if self.parent.is_some() { program.slot(Form::Acc) } else { input };
        let finish = self.parent.is_none();
        let mut sources = vec![(rank, Origin::At(input))];
        sources.extend(self.children.iter().rev().map(|(child, is_sum)| {
            let form = if *is_sum { Form::Acc } else { Form::Plain };
            (*child, Origin::Head { lane: *child, form })
        }));
        match keys {
            Some(keys) => {
                sources.iter_mut().for_each(|(from, _)| *from = keys[*from as usize]);
                sources.sort_by_key(|(key, _)| *key);
                program.fold(chunk, &sources, into, finish);
            }
            None => {
                let in_turn = |(at, (_, from)): (usize, &(Rank, Origin))| Source {
                    from: *from,
                    merges: u8::from(at > 0),
                };
                program.fold_shaped(chunk, sources.iter().enumerate().map(in_turn), into, finish);
            }
        }
        if let Some(parent) = self.parent {
            program.send(into, [parent]);
        }
    }

    fn send_down(&self, program: &mut ProgramBuilder, chunk: Chunk) {
        if let Some(parent) = self.parent {
            program.recv(parent, chunk, Place::User(chunk));
        }
        program.send(Place::User(chunk), self.children.iter().map(|(child, _)| *child));
    }
}

/// For each rank how long the longest way below it is.
fn below(parents: &[Option<Rank>]) -> Vec<u32> {
    let mut depths = vec![0; parents.len()];
    for rank in 0..parents.len() {
        let (mut at, mut depth) = (rank, 0);
        while let Some(parent) = parents[at] {
            (at, depth) = (parent as usize, depth + 1);
            depths[at] = depths[at].max(depth);
        }
    }
    depths
}
