//! The owners of the chunks of a node's partial sum, level by level.
//!
//! A level is a cut of the ranks into nodes of the canonical tree. In each node every chunk has an owner. A rank that
//! owns a chunk in a node owns it in the nodes below. The ranks of a node own equally many chunks, give or take one if
//! the tree is irregular. With shares, they own amounts in proportion to their shares, as nearly as whole chunks allow.

use super::shares::{Owners, Shares};
use crate::group::{Rank, merges};
use crate::schedule::{Chunk, ChunkRun, Form, Weights};
use alloc::{collections::BinaryHeap, rc::Rc, sync::Arc, vec, vec::Vec};
use core::{cmp::Reverse, ops::Range};

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
    sharing: Sharing,
}

/// How the ranks of a node below share the chunks of which none of them is the owner above.
#[derive(Clone, Debug)]
enum Sharing {
    /// In turn.
    InTurn,
    /// In blocks: each takes its part from where it owns any.
    Blocks,
    /// By what they own more or less than each other.
    Uneven(Arc<Uneven>),
}

/// Shares of ranks, and the weights of the chunks.
#[derive(Debug)]
struct Uneven {
    shares: Shares,
    weights: Weights,
}

impl Node {
    /// A node whose ranks own the chunks in turn.
    pub(super) fn in_turn(ranks: Range<Rank>, chunks: u32) -> Self {
        let owner = |chunk: Chunk| ranks.start + chunk % ranks.len() as u32;
        let owners = if ranks.len() == 1 { Vec::new() } else { (0..chunks).map(owner).collect() };
        Self { ranks, owners, sharing: Sharing::InTurn }
    }

    /// The node of all ranks that each own one chunk, in an order in which those that a rank owns in the nodes of `levels` lie side by
    /// side, as far as these are as large as each other: by the rank's place in its node of the lowest level, then by that node's place
    /// in the next, and so on. With two ranks in each node, the bits of a rank's number are reversed.
    pub(super) fn side_by_side(levels: &[Level]) -> Self {
        let workers = levels.last().and_then(|level| level.last()).map_or(0, |node| node.end);
        // By rank: the place of its node among those that are one in the next level, the lowest level first.
        let mut places = vec![Vec::with_capacity(levels.len()); workers as usize];
        for pair in levels.windows(2) {
            let mut parts = pair[0].iter().peekable();
            for whole in &pair[1] {
                let mut place = 0u32;
                while let Some(part) = parts.next_if(|part| part.start < whole.end) {
                    part.clone().for_each(|rank| places[rank as usize].push(place));
                    place += 1;
                }
            }
        }
        let mut owners: Vec<Rank> = (0..workers).collect();
        owners.sort_by(|a, b| places[*a as usize].cmp(&places[*b as usize]));
        Self { ranks: 0..workers, owners, sharing: Sharing::Blocks }
    }

    /// The node of all ranks, each of which owns one chunk, or none by its share.
    pub(super) fn by_shares(shares: &Shares) -> Self {
        let (ranks, owners) = (0..shares.parts().len() as Rank, Owners::of(shares));
        let sharing = match owners.weights(1) {
            Some(weights) => Sharing::Uneven(Arc::new(Uneven { shares: shares.clone(), weights })),
            None => Sharing::InTurn,
        };
        Self { ranks, owners: owners.places().to_vec(), sharing }
    }

    /// The node of `ranks` below this one: owners that are in it stay, and its ranks share the other chunks, those
    /// that own least first.
    pub(super) fn below(&self, ranks: Range<Rank>) -> Self {
        let sharing = self.sharing.clone();
        if ranks.len() == 1 {
            return Self { ranks, owners: Vec::new(), sharing };
        }
        if let Sharing::Uneven(uneven) = &sharing {
            let owners = uneven.below(&self.owners, &ranks);
            return Self { ranks, owners, sharing };
        }
        let mut kept = vec![0u32; ranks.len()];
        for owner in self.owners.iter().filter(|owner| ranks.contains(owner)) {
            kept[(owner - ranks.start) as usize] += 1;
        }
        let kept = |rank: &Rank| kept[(rank - ranks.start) as usize];
        let turns = (0..).flat_map(|turn| ranks.clone().filter(move |rank| kept(rank) <= turn));
        let others = self.owners.iter().filter(|owner| !ranks.contains(owner)).count();
        let mut takers: Vec<Rank> = turns.take(others).collect();
        if let Sharing::Blocks = sharing {
            takers = self.in_blocks(&ranks, &takers);
        }
        let mut takers = takers.into_iter();
        let mut owner = |above: &Rank| match ranks.contains(above) {
            true => *above,
            false => takers.next().expect("as many as chunks of others"),
        };
        let owners = self.owners.iter().map(&mut owner).collect();
        Self { ranks: ranks.clone(), owners, sharing }
    }

    /// As often each of `takers`, which are of `ranks`, in the order in which they own a chunk of this node.
    fn in_blocks(&self, ranks: &Range<Rank>, takers: &[Rank]) -> Vec<Rank> {
        let (mut first, mut taken) = (vec![usize::MAX; ranks.len()], vec![0; ranks.len()]);
        for (chunk, owner) in self.owners.iter().enumerate().filter(|(_, owner)| ranks.contains(owner)) {
            let first = &mut first[(owner - ranks.start) as usize];
            *first = chunk.min(*first);
        }
        takers.iter().for_each(|rank| taken[(rank - ranks.start) as usize] += 1);
        let mut order: Vec<usize> = (0..ranks.len()).collect();
        order.sort_by_key(|at| first[*at]);
        let block = |at: usize| core::iter::repeat_n(ranks.start + at as Rank, taken[at]);
        order.into_iter().flat_map(block).collect()
    }

    /// Whether the chunks that go from one rank to another lie side by side, as far as that is possible.
    pub(super) fn is_side_by_side(&self) -> bool {
        matches!(self.sharing, Sharing::Blocks)
    }

    /// How many chunks there are; not of a node of one rank, which does not know.
    pub(super) fn chunks(&self) -> u32 {
        self.owners.len() as u32
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

impl Uneven {
    /// The owners in the node of `ranks` below one with these: who is in it stays, and each other chunk goes to the rank that then
    /// owns least for its share. Ranks without a share forward nothing, unless no rank of the node has one.
    fn below(&self, above: &[Rank], ranks: &Range<Rank>) -> Vec<Rank> {
        let share = |rank: Rank| u64::from(self.shares.parts()[rank as usize]);
        let weight = |chunk: usize| u64::from(self.weights.weight(chunk as Chunk));
        let mut owned = vec![0u64; ranks.len()];
        for (chunk, owner) in above.iter().enumerate().filter(|(_, owner)| ranks.contains(owner)) {
            owned[(owner - ranks.start) as usize] += weight(chunk);
        }
        let has_none = ranks.clone().all(|rank| share(rank) == 0);
        let takers = ranks.clone().zip(owned).filter(|(rank, _)| has_none || share(*rank) > 0);
        let mut least: BinaryHeap<_> = takers
            .map(|(rank, owned)| {
                let unit = SHARED / share(rank).max(1);
                Reverse(Taker { load: (owned + u64::from(Shares::WHOLE)) * unit, rank, unit })
            })
            .collect();
        let owner = |(chunk, above): (usize, &Rank)| match ranks.contains(above) {
            true => *above,
            false => {
                let mut first = least.peek_mut().expect("a rank takes what is left");
                let Taker { load, rank, unit } = first.0;
                *first = Reverse(Taker { load: load + weight(chunk) * unit, rank, unit });
                rank
            }
        };
        above.iter().enumerate().map(owner).collect()
    }
}

/// A number of which every share is a divisor.
const SHARED: u64 = 720_720;

/// A rank of a node that takes chunks, the one with the least load first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Taker {
    /// What it owns there, and one more of the longest chunks, by its share: in parts of which every share takes a whole number.
    load: u64,
    rank: Rank,
    /// How much one unit of a chunk's weight adds to that.
    unit: u64,
}

/// The form of the partial sum of this many inputs.
pub(super) fn form(inputs: usize) -> Form {
    if inputs == 1 { Form::Plain } else { Form::Acc }
}

/// One step from level to level, as one rank sees it: a node with this rank, and the parts that it is made of.
#[derive(Clone, Debug)]
pub(super) struct Stage {
    pub(super) whole: Rc<Node>,
    pub(super) parts: Rc<[Rc<Node>]>,
    /// Which of the parts has this rank.
    own: usize,
}

impl Stage {
    /// The part that has this rank.
    pub(super) fn part(&self) -> &Rc<Node> {
        &self.parts[self.own]
    }

    /// The runs of a node's chunks that a rank owns in it, ascending: on both ends of a lane in the same order. All chunks of a run have
    /// one owner in each of the stage's nodes, so that they travel together. It is one chunk unless chunks lie side by side.
    pub(super) fn owned(&self, node: &Node, rank: Rank, chunks: u32) -> Vec<ChunkRun> {
        let together = self.whole.is_side_by_side();
        let all = self.parts.iter().chain([&self.whole]);
        let nodes: Vec<&Node> = all.map(|node| &**node).filter(|node| node.ranks.len() > 1).collect();
        let owners = |chunk| nodes.iter().map(move |node| node.owner(chunk));
        let mut runs: Vec<ChunkRun> = Vec::new();
        for chunk in (0..chunks).filter(|chunk| node.owner(*chunk) == rank) {
            match runs.last_mut() {
                Some(run)
                    if together
                        && run.chunks().end == chunk
                        && run.span < MOST_TOGETHER
                        && owners(run.first).eq(owners(chunk)) =>
                {
                    run.span += 1;
                }
                _ => runs.push(ChunkRun::one(chunk)),
            }
        }
        runs
    }
}

/// The most chunks that travel together: as many as a step counts.
const MOST_TOGETHER: u32 = u16::MAX as u32;

/// The way from a node of all ranks down through the levels to one rank after another. What it finds of a node's parts it keeps
/// as long as ranks are of that node, so to walk to all ranks in their order takes each node but once.
pub(super) struct Walk {
    levels: Vec<Level>,
    top: Rc<Node>,
    /// From the top down.
    way: Vec<Stage>,
}

impl Walk {
    /// Through `levels`, the lowest first, from `top` down.
    pub(super) fn new(levels: Vec<Level>, top: Node) -> Self {
        Self { levels, top: Rc::new(top), way: Vec::new() }
    }

    /// A rank's stages between the levels, the lowest first. Stages in which its node does not grow are left out.
    pub(super) fn to(&mut self, rank: Rank) -> Vec<Stage> {
        let known = self.way.iter().take_while(|stage| stage.whole.ranks.contains(&rank)).count();
        self.way.truncate(known);
        let last = self.way.last_mut().map(|stage| {
            stage.own = place_of(&stage.parts, rank);
            stage.part().clone()
        });
        let mut node = last.unwrap_or_else(|| self.top.clone());
        for level in self.levels.iter().rev() {
            let first = level.partition_point(|part| part.end <= node.ranks.start);
            let inside = level[first..].iter().take_while(|part| part.start < node.ranks.end);
            if inside.clone().nth(1).is_some() {
                let parts: Rc<[Rc<Node>]> = inside.map(|part| Rc::new(node.below(part.clone()))).collect();
                let own = place_of(&parts, rank);
                let whole = core::mem::replace(&mut node, parts[own].clone());
                self.way.push(Stage { whole, parts, own });
            }
        }
        self.way.iter().rev().cloned().collect()
    }
}

fn place_of(parts: &[Rc<Node>], rank: Rank) -> usize {
    parts.iter().position(|part| part.ranks.contains(&rank)).expect("levels cover all ranks")
}

/// The radices of ranks as numbers whose digits, the lowest first, are the places of nodes in those a level above: if all nodes
/// of a level have as many parts, of the same shape in the canonical tree.
pub(super) fn digits(keys: &[u32], levels: &[Level]) -> Option<Vec<u32>> {
    let mut radices = Vec::new();
    for pair in levels.windows(2) {
        let [below, above] = pair else { continue };
        let size = below.first()?.len();
        if below.iter().any(|node| node.len() != size) || below.len() % above.len() > 0 {
            return None;
        }
        let parts = below.len() / above.len();
        let shape = |parts: &[Range<Rank>]| {
            merges(&parts.iter().map(|part| keys[part.start as usize]).collect::<Vec<u32>>())
        };
        let mut shapes = below.chunks(parts).map(shape);
        let first = shapes.next()?;
        if above.iter().any(|node| node.len() != parts * size) || shapes.any(|other| other != first) {
            return None;
        }
        radices.push(parts as u32);
    }
    Some(radices)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn below(shares: &str, ranks: Range<Rank>) -> Vec<Rank> {
        Node::by_shares(&shares.parse().unwrap()).below(ranks).owners
    }

    #[test]
    fn a_rank_forwards_by_its_share() {
        // Of the chunks of ranks 0 and 1, rank 2 takes both rather than rank 3, which owns little.
        assert_eq!(below("16,16,16,3", 2..4), [2, 2, 2, 3]);
        assert_eq!(below("16,16,16,0", 2..4), [2, 2, 2]);
        assert_eq!(below("16,15,0,0", 2..4), [2, 3], "somebody has to");
        assert_eq!(below("16,8,16,16", 2..4), [2, 3, 2, 3]);
    }

    /// Shares that are nearly even lead to the owners that even ones have.
    #[test]
    fn even_shares_own_in_turn() {
        for ranks in [4, 6, 8, 13] {
            let even = Node::in_turn(0..ranks, ranks);
            let uneven = Uneven {
                shares: Shares::new(vec![16; ranks as usize]).unwrap(),
                weights: Weights::new((0..ranks).map(|_| 16)).unwrap(),
            };
            for part in [0..ranks / 2, ranks / 2..ranks, 1..ranks] {
                assert_eq!(
                    uneven.below(&even.owners, &part),
                    even.below(part.clone()).owners,
                    "{part:?} of {ranks}"
                );
            }
        }
    }
}
