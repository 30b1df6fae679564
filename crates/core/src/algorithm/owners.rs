//! Who owns which chunk of a node's partial sum, level by level.
//!
//! A level is a cut of the ranks into nodes of the canonical tree. In each node every chunk has an owner; a rank that
//! owns a chunk in a node owns it in the nodes below, and the ranks of a node own as many chunks as each other, give
//! or take one where the tree is irregular.

use crate::group::Rank;
use crate::schedule::{Chunk, Form};
use alloc::{vec, vec::Vec};
use core::ops::Range;

/// The nodes of one level, in rank order.
pub(super) type Level = Vec<Range<Rank>>;

/// The levels from `nodes` up to their common ancestor, `factors` apart: powers of two, the lowest level first. The
/// last factor reaches to the top. Levels that merge nothing are left out.
pub(super) fn levels(keys: &[u32], nodes: Level, factors: &[u32]) -> Vec<Level> {
    let last = |node: &Range<Rank>| keys[node.end as usize - 1];
    let first = |node: &Range<Rank>| keys[node.start as usize];
    let merging_bits = nodes.windows(2).map(|pair| (last(&pair[0]) ^ first(&pair[1])).ilog2());
    let (Some(lowest), Some(highest)) = (merging_bits.clone().min(), merging_bits.max()) else {
        return vec![nodes];
    };
    let whole = nodes[0].start..nodes[nodes.len() - 1].end;
    let mut levels = vec![nodes];
    let mut bit = lowest;
    for factor in factors.split_last().map_or(&[][..], |(_, others)| others) {
        bit += factor.ilog2();
        if bit > highest {
            break;
        }
        let below = &levels[levels.len() - 1];
        let together = below.chunk_by(|a, b| first(a) >> bit == first(b) >> bit);
        let level: Level = together.map(|nodes| nodes[0].start..nodes[nodes.len() - 1].end).collect();
        if level.len() < below.len() {
            levels.push(level);
        }
    }
    levels.push(vec![whole]);
    levels
}

/// The owners of all chunks in one node.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) ranks: Range<Rank>,
    /// By chunk; left out for a node of one rank.
    owners: Vec<Rank>,
}

impl Node {
    /// A node whose ranks own the chunks in turn.
    pub(super) fn in_turn(ranks: Range<Rank>, chunks: u32) -> Self {
        let owners = (0..chunks).map(|chunk| ranks.start + chunk % ranks.len() as u32).collect();
        Self { ranks, owners }
    }

    /// The node of `ranks` below this one: owners that are in it stay, and its ranks share the other chunks, those
    /// that own least first.
    pub(super) fn below(&self, ranks: Range<Rank>) -> Self {
        if ranks.len() == 1 {
            return Self { ranks, owners: Vec::new() };
        }
        let mut kept = vec![0u32; ranks.len()];
        for owner in self.owners.iter().filter(|owner| ranks.contains(owner)) {
            kept[(owner - ranks.start) as usize] += 1;
        }
        let kept = |rank: &Rank| kept[(rank - ranks.start) as usize];
        let mut turns = (0..).flat_map(|turn| ranks.clone().filter(move |rank| kept(rank) <= turn));
        let mut owner = |above: &Rank| match ranks.contains(above) {
            true => *above,
            false => turns.next().expect("turns never end"),
        };
        let owners = self.owners.iter().map(&mut owner).collect();
        Self { ranks: ranks.clone(), owners }
    }

    /// Who owns a chunk.
    pub(super) fn owner(&self, chunk: Chunk) -> Rank {
        if self.ranks.len() == 1 { self.ranks.start } else { self.owners[chunk as usize] }
    }

    /// The form of the node's partial sums.
    pub(super) fn form(&self) -> Form {
        form(self.ranks.len())
    }
}

/// The form of the partial sum of this many inputs.
pub(super) fn form(inputs: usize) -> Form {
    if inputs == 1 { Form::Plain } else { Form::Acc }
}

/// One step from level to level, as one rank sees it: a node with this rank, and the parts that it is made of.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) whole: Node,
    pub(super) parts: Vec<Node>,
    /// Which of the parts has this rank.
    own: usize,
}

impl Stage {
    /// The part that has this rank.
    pub(super) fn part(&self) -> &Node {
        &self.parts[self.own]
    }
}

/// A rank's stages between `levels` from `top` down, the lowest first, and its node of the lowest level. Stages in
/// which its node does not grow are left out.
pub(super) fn stages(levels: &[Level], top: Node, rank: Rank) -> (Vec<Stage>, Node) {
    let mut stages = Vec::new();
    let mut node = top;
    for level in levels.iter().rev() {
        let inside = level.iter().filter(|part| node.ranks.contains(&part.start));
        let parts: Vec<Node> = inside.map(|part| node.below(part.clone())).collect();
        if parts.len() > 1 {
            let own =
                parts.iter().position(|part| part.ranks.contains(&rank)).expect("levels cover all ranks");
            let part = parts[own].clone();
            stages.push(Stage { whole: core::mem::replace(&mut node, part), parts, own });
        }
    }
    stages.reverse();
    (stages, node)
}
