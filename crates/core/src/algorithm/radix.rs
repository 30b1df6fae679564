//! Reduce-scatter, then all-gather, stage by stage over levels of the canonical tree: any number of ranks, any keys.
//!
//! In a stage the parts of a node become one: the owners of a chunk in the parts send their partial sums to its owner
//! in the node, who folds them all at once. The all-gather runs the stages backwards, or others that end in the same
//! owners. A single stage is the sharded all-reduce (Herring, Fairring), factors of two are halving and doubling in the
//! order that keeps the shape.

use super::Unsupported;
use super::owners::{Level, Node, Stage, Walk, digits, levels};
use super::partial::Partial;
use super::shares::{Owners, Shares};
use crate::group::Group;
use crate::schedule::{Chunk, Cut, Form, Place, Program, ProgramBuilder, Rank, Schedule, Symmetry};
use alloc::{boxed::Box, vec::Vec};
use core::{cmp::Reverse, ops::Range};

/// The factors, if all are powers of two above 1.
pub(super) fn checked(factors: &[u32]) -> Result<&[u32], Unsupported> {
    match factors.iter().find(|factor| **factor < 2 || !factor.is_power_of_two()) {
        Some(factor) => Err(Unsupported::Factor { factor: *factor }),
        None => Ok(factors),
    }
}

pub(super) fn all_reduce(
    group: &Group,
    shares: Option<&Shares>,
    scatter: &[u32],
    gather: &[u32],
) -> Schedule {
    both_halves(group, shares, all_levels(group, scatter), all_levels(group, gather))
}

/// Both halves, each through its own levels, of chunks that ranks own by shares, or as much as each other.
pub(super) fn both_halves(
    group: &Group,
    shares: Option<&Shares>,
    scatter: Vec<Level>,
    gather: Vec<Level>,
) -> Schedule {
    let (cut, top) = owned(group.size(), shares);
    through(group, cut, top, Some(scatter), Some(gather))
}

/// How the buffer is cut, and who owns which chunk in the end.
pub(super) fn owned(workers: u32, shares: Option<&Shares>) -> (Cut, Node) {
    match shares {
        Some(shares) => (Owners::of(shares).cut(1, false), Node::by_shares(shares)),
        None => (Cut::Even { chunks: workers }, Node::in_turn(0..workers, workers)),
    }
}

pub(super) fn reduce_scatter(group: &Group, factors: &[u32]) -> Schedule {
    half(group, Some(all_levels(group, factors)), None)
}

pub(super) fn all_gather(group: &Group, factors: &[u32]) -> Schedule {
    half(group, None, Some(all_levels(group, factors)))
}

/// One half of the parts that callers own.
pub(super) fn half(group: &Group, scatter: Option<Vec<Level>>, gather: Option<Vec<Level>>) -> Schedule {
    let workers = group.size();
    through(group, Cut::Given { parts: workers }, Node::in_turn(0..workers, workers), scatter, gather)
}

/// The levels of a radix with these factors.
pub(super) fn all_levels(group: &Group, factors: &[u32]) -> Vec<Level> {
    levels(group.keys(), lone_ranks(0..group.size()), factors)
}

/// One half or both, each through its own levels, from lone ranks to `top`, which has all. What is scattered is added up in the
/// nodes of its levels, which are nodes of the canonical tree; those of the other half may be any runs of ranks.
fn through(
    group: &Group,
    cut: Cut,
    top: Node,
    scatter: Option<Vec<Level>>,
    gather: Option<Vec<Level>>,
) -> Schedule {
    let (chunks, keys) = (cut.chunks(), group.keys().to_vec());
    let symmetry = symmetry(&keys, &cut, [&scatter, &gather]);
    let halves = BothHalves { keys, chunks, top, scatter, gather, symmetry };
    match halves.symmetry.clone() {
        Some(symmetry) => Schedule::alike(symmetry, false, cut, move |rank| halves.clone().writer()(rank)),
        None => Schedule::written(group.size(), 0, cut, move || halves.clone().writer()),
    }
}

/// How ranks are alike, if each owns a chunk and all nodes of a level are alike, the same in both halves.
fn symmetry(keys: &[u32], cut: &Cut, halves: [&Option<Vec<Level>>; 2]) -> Option<Symmetry> {
    let mut levels = halves.into_iter().flatten();
    let (first, second) = (levels.next()?, levels.next());
    let is_even = !matches!(cut, Cut::Weighted { .. }) && second.is_none_or(|second| second == first);
    let radices = digits(keys, first).filter(|_| is_even && cut.chunks() as usize == keys.len())?;
    Some(Symmetry::new(radices, true))
}

/// Everything that all ranks' programs follow from.
#[derive(Clone)]
struct BothHalves {
    keys: Vec<u32>,
    chunks: u32,
    top: Node,
    scatter: Option<Vec<Level>>,
    gather: Option<Vec<Level>>,
    symmetry: Option<Symmetry>,
}

impl BothHalves {
    /// Writes ranks' programs.
    fn writer(self) -> Box<dyn FnMut(Rank) -> Program> {
        let Self { keys, chunks, top, scatter, gather, symmetry } = self;
        let walk = |levels| Walk::new(levels, top.clone());
        let (mut scatter, mut gather) = (scatter.map(walk), gather.map(walk));
        Box::new(move |rank| {
            let half = |walk: &mut Walk| Halves {
                keys: &keys,
                rank,
                chunks,
                stages: walk.to(rank),
                symmetry: symmetry.as_ref(),
            };
            let mut program = ProgramBuilder::new();
            if let Some(walk) = &mut scatter {
                half(walk).reduce_scatter(&mut program);
            }
            if let Some(walk) = &mut gather {
                half(walk).all_gather(&mut program);
            }
            program.build()
        })
    }
}

/// The lowest level: every rank for itself.
pub(super) fn lone_ranks(ranks: Range<Rank>) -> Level {
    ranks.map(|rank| rank..rank + 1).collect()
}

/// Both halves of one rank's program.
pub(super) struct Halves<'a> {
    pub(super) keys: &'a [u32],
    pub(super) rank: Rank,
    pub(super) chunks: u32,
    pub(super) stages: Vec<Stage>,
    /// How all ranks are alike, if they are.
    pub(super) symmetry: Option<&'a Symmetry>,
}

impl Halves<'_> {
    /// Folds every chunk upwards, and returns where this rank's partial sum of each chunk came to lie. The fold over
    /// all ranks, if the stages go that far, is the result.
    pub(super) fn reduce_scatter(&self, program: &mut ProgramBuilder) -> Vec<Place> {
        let mut held: Vec<Place> = (0..self.chunks).map(Place::User).collect();
        for stage in &self.stages {
            let mut sends: Vec<(Rank, Chunk)> =
                self.owned(stage.part()).map(|chunk| (stage.whole.owner(chunk), chunk)).collect();
            sends.retain(|(to, _)| *to != self.rank);
            sends.sort_by_key(|(to, chunk)| (self.turns_to(*to), self.turn_of(*chunk, stage)));
            for (to, chunk) in sends {
                program.send(held[chunk as usize], [to]);
            }

            let finish = stage.whole.ranks.len() == self.keys.len();
            for chunk in self.in_turn(stage) {
                let held = &mut held[chunk as usize];
                let partials = stage.parts.iter().map(|part| Partial::of(part, chunk, self.keys));
                let sources: Vec<_> = partials.map(|partial| partial.origin(self.rank, *held)).collect();
                if finish {
                    *held = Place::User(chunk);
                } else if let Place::User(_) = held {
                    *held = program.slot(Form::Acc);
                }
                program.fold(chunk, &sources, *held, finish);
            }
        }
        held
    }

    /// Sends every finished chunk downwards, from its owner to all ranks.
    pub(super) fn all_gather(&self, program: &mut ProgramBuilder) {
        for stage in self.stages.iter().rev() {
            for chunk in self.in_turn(stage) {
                let mut to: Vec<Rank> = stage.parts.iter().map(|part| part.owner(chunk)).collect();
                to.retain(|to| *to != self.rank);
                to.sort_by_key(|to| self.turns_to(*to));
                program.send(Place::User(chunk), to);
            }

            let mut receives: Vec<(Rank, Chunk)> =
                self.owned(stage.part()).map(|chunk| (stage.whole.owner(chunk), chunk)).collect();
            receives.retain(|(from, _)| *from != self.rank);
            receives
                .sort_by_key(|(from, chunk)| (Reverse(self.turns_to(*from)), self.turn_of(*chunk, stage)));
            for (from, chunk) in receives {
                program.recv(from, chunk, Place::User(chunk));
            }
        }
    }

    /// The chunks that this rank owns in a stage's node, in their turns.
    fn in_turn(&self, stage: &Stage) -> Vec<Chunk> {
        let mut chunks: Vec<Chunk> = self.owned(&stage.whole).collect();
        chunks.sort_by_key(|chunk| self.turn_of(*chunk, stage));
        chunks
    }

    /// When a chunk's turn is among those of one lane in a stage: on both ends the same. Where all ranks are alike, each node starts
    /// with the chunks of its own number, so that no two nodes start with the same ones.
    fn turn_of(&self, chunk: Chunk, stage: &Stage) -> u32 {
        let from_node =
            |symmetry: &Symmetry| symmetry.shifted(chunk, symmetry.opposite(stage.whole.ranks.start));
        self.symmetry.map_or(chunk, from_node)
    }

    /// The chunks that this rank owns in a node, ascending.
    pub(super) fn owned(&self, node: &Node) -> impl Iterator<Item = Chunk> {
        (0..self.chunks).filter(|chunk| node.owner(*chunk) == self.rank)
    }

    /// When a rank's turn is: each rank starts with its successor, so that no two start with the same one.
    fn turns_to(&self, other: Rank) -> u32 {
        other.checked_sub(self.rank).unwrap_or_else(|| other + self.keys.len() as u32 - self.rank)
    }
}
