//! A broadcast or a reduce through all ranks: each except the root passes on, or folds, one chunk for all others. So
//! the root sends or receives the buffer once, and no rank's port carries more. A tree's root has the buffer once for
//! each child.
//!
//! This is the first half of `radix` in a single stage and the second half of another one, without the root as an
//! owner. In van de Geijn's broadcast (1994) one half follows the other; here segments overlap them.

use super::partial::Inputs;
use crate::group::{Group, Rank};
use crate::schedule::{Chunk, Cut, Form, Place, ProgramBuilder, Schedule};

pub(super) fn broadcast(group: &Group, root: Rank) -> Schedule {
    let ranks = Ranks { size: group.size(), root };
    Schedule::generated(ranks.size, 0, ranks.cut(), move |rank| {
        let mut program = ProgramBuilder::new();
        let Some(own) = ranks.chunk(rank) else {
            for chunk in 0..ranks.chunks() {
                program.send(Place::User(chunk), [ranks.owner(chunk)]);
            }
            return program.build();
        };
        program.recv(root, own, Place::User(own)).send(Place::User(own), ranks.owners_after(own));
        for owner in ranks.owners_before(own) {
            let chunk = ranks.chunk(owner).unwrap_or(own);
            program.recv(owner, chunk, Place::User(chunk));
        }
        program.build()
    })
}

pub(super) fn reduce(group: &Group, root: Rank) -> Schedule {
    let ranks = Ranks { size: group.size(), root };
    let inputs = Inputs { group: group.clone(), chunks: ranks.chunks() };
    Schedule::generated(ranks.size, 0, ranks.cut(), move |rank| {
        let mut program = ProgramBuilder::new();
        let Some(own) = ranks.chunk(rank) else {
            for chunk in 0..ranks.chunks() {
                program.send(Place::User(chunk), [ranks.owner(chunk)]);
            }
            for chunk in 0..ranks.chunks() {
                program.recv(ranks.owner(chunk), chunk, Place::User(chunk));
            }
            return program.build();
        };
        for owner in ranks.owners_after(own) {
            program.send(Place::User(ranks.chunk(owner).unwrap_or(own)), [owner]);
        }
        let result = program.slot(Form::Plain);
        program.fold(own, &inputs.sources(rank, own), result, true).send(result, [root]);
        program.build()
    })
}

/// All ranks but the root own a chunk each.
#[derive(Clone, Copy, Debug)]
struct Ranks {
    size: u32,
    root: Rank,
}

impl Ranks {
    fn chunks(self) -> u32 {
        (self.size - 1).max(1)
    }

    fn cut(self) -> Cut {
        Cut::Even { chunks: self.chunks() }
    }

    fn owner(self, chunk: Chunk) -> Rank {
        (self.root + 1 + chunk) % self.size
    }

    /// The chunk that a rank owns; the root owns none.
    fn chunk(self, rank: Rank) -> Option<Chunk> {
        ((rank + self.size - self.root) % self.size).checked_sub(1)
    }

    /// The other owners, from the next one on: no two ranks begin with the same one.
    fn owners_after(self, own: Chunk) -> impl Iterator<Item = Rank> {
        (1..self.chunks()).map(move |distance| self.owner((own + distance) % self.chunks()))
    }

    /// The other owners, in the order in which they come to send to this one.
    fn owners_before(self, own: Chunk) -> impl Iterator<Item = Rank> {
        let chunks = self.chunks();
        (1..chunks).map(move |distance| self.owner((own + chunks - distance) % chunks))
    }
}
