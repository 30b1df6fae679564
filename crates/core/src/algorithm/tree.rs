//! A binomial tree in the shape of the canonical tree: reduce towards any root, broadcast from any root, or both.
//!
//! A node's partial sum is held by the root if the root is in it, else by the node's lowest rank: so the result needs
//! no extra hop. A rank folds all that its children send in one fold.

use super::owners::form;
use super::partial::{Partial, merges_above};
use crate::group::Group;
use crate::schedule::{Cut, Form, Place, ProgramBuilder, Rank, Schedule};
use alloc::vec::Vec;
use core::ops::Range;

pub(super) fn all_reduce(group: &Group) -> Schedule {
    schedule(group, 0, |program, neighbors| {
        neighbors.reduce(program);
        neighbors.broadcast(program);
    })
}

pub(super) fn reduce(group: &Group, root: Rank) -> Schedule {
    schedule(group, root, |program, neighbors| neighbors.reduce(program))
}

pub(super) fn broadcast(group: &Group, root: Rank) -> Schedule {
    schedule(group, root, |program, neighbors| neighbors.broadcast(program))
}

fn schedule(group: &Group, root: Rank, write: fn(&mut ProgramBuilder, &Neighbors)) -> Schedule {
    let keys = group.keys().to_vec();
    Schedule::generated(group.size(), 0, Cut::Even { chunks: 1 }, move |rank| {
        let mut program = ProgramBuilder::new();
        write(&mut program, &Neighbors::of(rank, root, &keys));
        program.build()
    })
}

/// A rank's neighbours in the tree.
struct Neighbors {
    own: Partial,
    /// Nearest merge first, so the last one heads the largest subtree.
    children: Vec<Partial>,
    /// The root has none.
    parent: Option<Rank>,
}

impl Neighbors {
    fn of(rank: Rank, root: Rank, keys: &[u32]) -> Self {
        let holder = |node: &Range<usize>| {
            if node.contains(&(root as usize)) { root } else { node.start as Rank }
        };
        let own = Partial { key: keys[rank as usize], holder: rank, form: Form::Plain };
        let mut neighbors = Self { own, children: Vec::new(), parent: None };
        for merge in merges_above(rank as usize, keys) {
            let (mine, other) = (&merge.mine, &merge.other);
            if holder(&(mine.start.min(other.start)..mine.end.max(other.end))) != rank {
                neighbors.parent = Some(holder(other));
                break;
            }
            let key = keys[other.start];
            neighbors.children.push(Partial { key, holder: holder(other), form: form(other.len()) });
        }
        neighbors
    }

    fn reduce(&self, program: &mut ProgramBuilder) {
        let input = Place::User(0);
        let mut sources: Vec<_> = self.children.iter().chain([&self.own]).copied().collect();
        sources.sort_by_key(|partial| partial.key);
        let sources: Vec<_> = sources.iter().map(|partial| partial.origin(self.own.holder, input)).collect();
        match self.parent {
            None => program.fold(0, &sources, input, true),
            Some(parent) if self.children.is_empty() => program.send(input, [parent]),
            Some(parent) => {
                let sum = program.slot(Form::Acc);
                program.fold(0, &sources, sum, false).send(sum, [parent])
            }
        };
    }

    fn broadcast(&self, program: &mut ProgramBuilder) {
        if let Some(parent) = self.parent {
            program.recv(parent, 0, Place::User(0));
        }
        program.send(Place::User(0), self.children.iter().rev().map(|child| child.holder));
    }
}
