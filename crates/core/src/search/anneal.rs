//! Moves of a draft, and which of them are kept: threshold accepting (Dueck and Scheuer, 1990), by whole numbers and a seed alone.

use super::{
    draft::{ChunkDraft, FoldTree},
    network::Interconnect,
};
use crate::{group::Rank, schedule::HEAVIEST, topology::random::SplitMix};
use alloc::{vec, vec::Vec};

/// How much worse a draft may become at first, in parts of its score.
const LOOSE: f64 = 0.6;

/// The most chunks of a draft that is cut into finer ones.
const MOST_SPLIT: usize = 32;

/// What does not change while a draft does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ground<'a> {
    pub(super) tree: &'a FoldTree,
    pub(super) network: &'a Interconnect,
}

/// A draft of all chunks, with what it keeps busy.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub(super) chunks: Vec<ChunkDraft>,
    /// By resource, in picoseconds of a 1,024th of the buffer for each unit of weight.
    loads: Vec<u64>,
    weight: u64,
    /// How busy the busiest was at first: what a score of 1 stands for.
    scale: f64,
}

impl Draft {
    pub(super) fn of(ground: Ground<'_>, chunks: Vec<ChunkDraft>) -> Self {
        let mut loads = vec![0; ground.network.resources()];
        for chunk in &chunks {
            chunk.loads(ground.tree, ground.network, |resource, time| loads[resource] += time);
        }
        let weight = chunks.iter().map(|chunk| u64::from(chunk.weight)).sum();
        let busiest = loads.iter().copied().max().unwrap_or(0).max(1);
        Self { scale: busiest as f64 / weight as f64, chunks, loads, weight }
    }

    /// The less, the better: above all the busiest resources count, and a little what all carry.
    fn score(&self) -> f64 {
        let unit = 1.0 / (self.weight as f64 * self.scale);
        let mut score = 0.0;
        for load in &self.loads {
            let part = *load as f64 * unit;
            let (second, fourth) = (part * part, part * part * part * part);
            score += fourth * fourth + 0.01 * second + 0.001 * part;
        }
        score
    }

    /// The same with two chunks for each, if they are not too many.
    pub(super) fn split(&self, ground: Ground<'_>) -> Self {
        if self.chunks.len() > MOST_SPLIT {
            return self.clone();
        }
        Self::of(ground, self.chunks.iter().flat_map(|chunk| [chunk.clone(), chunk.clone()]).collect())
    }

    fn replace(&mut self, ground: Ground<'_>, at: usize, chunk: ChunkDraft) -> ChunkDraft {
        let Self { chunks, loads, weight, .. } = self;
        chunks[at].loads(ground.tree, ground.network, |resource, time| loads[resource] -= time);
        chunk.loads(ground.tree, ground.network, |resource, time| loads[resource] += time);
        *weight = *weight - u64::from(chunks[at].weight) + u64::from(chunk.weight);
        core::mem::replace(&mut chunks[at], chunk)
    }

    /// Tries so many moves, ever fewer of which may make it worse; ends with the best draft that it has seen.
    pub(super) fn improve(&mut self, ground: Ground<'_>, moves: u32, looseness: f64, random: &mut SplitMix) {
        let (mut score, mut best) = (self.score(), self.clone());
        let mut least = score;
        for step in 0..moves {
            let threshold = 1.0 + LOOSE * looseness * f64::from(moves - step) / f64::from(moves);
            let at = random.below(self.chunks.len());
            let moved = self.moved(ground, at, random);
            let before = self.replace(ground, at, moved);
            let next = self.score();
            if next > score * threshold {
                self.replace(ground, at, before);
                continue;
            }
            score = next;
            if score < least {
                least = score;
                best.clone_from(self);
            }
        }
        *self = best;
    }

    /// A chunk, changed in one way.
    fn moved(&self, ground: Ground<'_>, at: usize, random: &mut SplitMix) -> ChunkDraft {
        let Ground { tree, .. } = ground;
        let mut chunk = self.chunks[at].clone();
        let rank = |random: &mut SplitMix| random.below(tree.ranks) as Rank;
        let inner = |random: &mut SplitMix| tree.ranks + random.below(tree.nodes() - tree.ranks);
        match random.below(8) {
            // Another rank holds a partial sum.
            0 | 1 => {
                let (node, holder) = (inner(random), rank(random));
                hold(&mut chunk, tree, node, holder);
            }
            // The rank above, or one below, holds it.
            2 => {
                let node = inner(random);
                let below = tree.below(node).unwrap_or_default();
                let holder = chunk.holders[below[random.below(2)]];
                hold(&mut chunk, tree, node, holder);
            }
            // Another owner, which folds all that the one before has folded.
            3 => {
                let (before, owner) = (chunk.owner(), rank(random));
                chunk.give_to(owner);
                for holder in &mut chunk.holders[tree.ranks..] {
                    *holder = if *holder == before { owner } else { *holder };
                }
            }
            // A rank gets the result from another one.
            4 | 5 => {
                let (from, to) = (rank(random), rank(random));
                if to != chunk.owner() && from != to {
                    chunk.hang(to, from);
                }
            }
            // It is longer or shorter.
            6 => {
                let weight = if random.below(2) == 0 { chunk.weight + 1 } else { chunk.weight - 1 };
                chunk.weight = weight.clamp(1, HEAVIEST);
            }
            // It goes as another one does.
            _ => {
                let other = &self.chunks[random.below(self.chunks.len())];
                chunk.clone_from(&ChunkDraft { weight: chunk.weight, ..other.clone() });
            }
        }
        chunk
    }
}

fn hold(chunk: &mut ChunkDraft, tree: &FoldTree, node: usize, holder: Rank) {
    if node == tree.root() {
        chunk.give_to(holder);
    } else {
        chunk.holders[node] = holder;
    }
}
