//! Reduce-scatter, then all-gather, stage by stage over levels of the canonical tree: any number of ranks, any keys.
//!
//! In a stage the parts of a node become one. The owners of a chunk in the parts send their partial sums to its owner
//! in the node, which folds them all at once. The all-gather runs the stages backwards, or other stages that end in the
//! same owners. A single stage is the sharded all-reduce (Herring, Fairring), factors of two are halving and doubling
//! in the order that keeps the shape.

use super::Unsupported;
use super::owners::{Level, Node, Stage, Walk, digits, levels};
use super::partial::Partial;
use super::shares::{Owners, Shares};
use crate::group::Group;
use crate::schedule::{Chunk, ChunkRun, Cut, Form, Place, Program, ProgramBuilder, Rank, Schedule, Symmetry};
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
    let (cut, top) = owned(group.keys(), shares, [&scatter, &gather]);
    let together = top.is_side_by_side();
    let schedule = through(group, cut, top, Some(scatter), Some(gather));
    if together { schedule.with_chunks_side_by_side() } else { schedule }
}

/// Of so few ranks whose nodes are not alike chunks do not lie side by side: there are few messages in any case, and owners in turn leave
/// less to the ports of hosts that have several ranks.
const FEW_RANKS: u32 = 64;

/// How the buffer is cut, and who owns which chunk in the end. Of several stages, the chunks that go from one rank to another in a
/// stage lie side by side, so that they are one message, if all ranks own as much as each other, and their nodes are alike or ranks many.
pub(super) fn owned(keys: &[u32], shares: Option<&Shares>, halves: [&[Level]; 2]) -> (Cut, Node) {
    let workers = keys.len() as u32;
    let fits =
        |levels: &&[Level]| levels.len() > 2 && (workers > FEW_RANKS || digits(keys, levels).is_some());
    let several = halves.into_iter().find(fits);
    match (shares, several) {
        (Some(shares), _) => (Owners::of(shares).cut(1, false), Node::by_shares(shares)),
        (None, Some(levels)) => (Cut::Even { chunks: workers }, Node::side_by_side(levels)),
        (None, None) => (Cut::Even { chunks: workers }, Node::in_turn(0..workers, workers)),
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
    let symmetry = symmetry(&keys, &cut, &top, [&scatter, &gather]);
    let halves = BothHalves { keys, chunks, top, scatter, gather, symmetry };
    match halves.symmetry.clone() {
        Some(symmetry) => Schedule::alike(symmetry, false, cut, move |rank| halves.clone().writer()(rank)),
        None => Schedule::written(group.size(), 0, cut, move || halves.clone().writer()),
    }
}

/// How ranks are alike, if each owns a chunk and all nodes of a level are alike, the same in both halves.
fn symmetry(keys: &[u32], cut: &Cut, top: &Node, halves: [&Option<Vec<Level>>; 2]) -> Option<Symmetry> {
    let mut levels = halves.into_iter().flatten();
    let (first, second) = (levels.next()?, levels.next());
    let is_even = !matches!(cut, Cut::Weighted { .. }) && second.is_none_or(|second| second == first);
    let radices = digits(keys, first).filter(|_| is_even && cut.chunks() as usize == keys.len())?;
    Some(match top.is_side_by_side() {
        true => Symmetry::of_chunks_side_by_side(radices),
        false => Symmetry::new(radices, true),
    })
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
            let runs = self.runs(stage, stage.part()).into_iter();
            let mut sends: Vec<(Rank, ChunkRun)> =
                runs.map(|run| (stage.whole.owner(run.first), run)).collect();
            sends.retain(|(to, _)| *to != self.rank);
            sends.sort_by_key(|(to, run)| (self.turns_to(*to), self.turn_of(*run, stage)));
            for (to, run) in sends {
                program.send(held[run.first as usize], [to]).span(run.span);
            }

            let finish = stage.whole.ranks.len() == self.keys.len();
            for run in self.in_turn(stage) {
                let partials = stage.parts.iter().map(|part| Partial::of(part, run.first, self.keys));
                let before = held[run.first as usize];
                let sources: Vec<_> = partials.map(|partial| partial.origin(self.rank, before)).collect();
                for chunk in run.chunks() {
                    let held = &mut held[chunk as usize];
                    if finish {
                        *held = Place::User(chunk);
                    } else if let Place::User(_) = held {
                        *held = program.slot(Form::Acc);
                    }
                }
                program.fold(run.first, &sources, held[run.first as usize], finish).span(run.span);
            }
        }
        held
    }

    /// Sends every finished chunk downwards, from its owner to all ranks.
    pub(super) fn all_gather(&self, program: &mut ProgramBuilder) {
        for stage in self.stages.iter().rev() {
            for run in self.in_turn(stage) {
                let mut to: Vec<Rank> = stage.parts.iter().map(|part| part.owner(run.first)).collect();
                to.retain(|to| *to != self.rank);
                // Owners ascend as their parts do, so turns begin in the middle.
                debug_assert!(to.is_sorted());
                let next = to.partition_point(|to| *to < self.rank);
                to.rotate_left(next);
                if !to.is_empty() {
                    program.send(Place::User(run.first), to).span(run.span);
                }
            }

            let runs = self.runs(stage, stage.part()).into_iter();
            let mut receives: Vec<(Rank, ChunkRun)> =
                runs.map(|run| (stage.whole.owner(run.first), run)).collect();
            receives.retain(|(from, _)| *from != self.rank);
            receives.sort_by_key(|(from, run)| (Reverse(self.turns_to(*from)), self.turn_of(*run, stage)));
            for (from, run) in receives {
                program.recv(from, run.first, Place::User(run.first)).span(run.span);
            }
        }
    }

    /// The chunks that this rank owns in a node of a stage, those together that travel together.
    fn runs(&self, stage: &Stage, node: &Node) -> Vec<ChunkRun> {
        stage.owned(node, self.rank, self.chunks)
    }

    /// The chunks that this rank owns in a stage's node, in their turns.
    fn in_turn(&self, stage: &Stage) -> Vec<ChunkRun> {
        let mut runs = self.runs(stage, &stage.whole);
        runs.sort_by_key(|run| self.turn_of(*run, stage));
        runs
    }

    /// When the turn of chunks is among those of one lane in a stage: on both ends the same. Where all ranks are alike, each node starts
    /// with the chunks of its own number, so that no two nodes start with the same ones.
    fn turn_of(&self, run: ChunkRun, stage: &Stage) -> u32 {
        let from_node =
            |symmetry: &Symmetry| symmetry.chunk(run.first, symmetry.opposite(stage.whole.ranks.start));
        self.symmetry.map_or(run.first, from_node)
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
