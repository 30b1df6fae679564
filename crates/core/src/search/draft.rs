//! A draft of an all-reduce: for each chunk the holders of its partial sums, and the tree along which the result is
//! sent.

use super::network::Interconnect;
use crate::group::Rank;
use alloc::{vec, vec::Vec};
use core::ops::Range;

/// The canonical tree of a group's sums. Its first nodes are the ranks; each other node comes after its children, the whole last.
#[derive(Clone, Debug)]
pub(super) struct FoldTree {
    /// The children of each node that is no rank.
    pub(super) children: Vec<[usize; 2]>,
    /// The lowest rank below each node.
    pub(super) first: Vec<Rank>,
    /// How many ranks are below each.
    below: Vec<u32>,
    pub(super) ranks: usize,
}

impl FoldTree {
    /// That of these fold keys, two at least.
    pub(super) fn of(keys: &[u32]) -> Self {
        let ranks = keys.len();
        let (first, below) = ((0..ranks as Rank).collect(), vec![1; ranks]);
        let mut tree = Self { children: Vec::new(), first, below, ranks };
        tree.add(keys, 0);
        tree
    }

    /// Adds the node over some keys, the first of which is that of rank `from`. Returns its number.
    fn add(&mut self, keys: &[u32], from: usize) -> usize {
        let [first, .., last] = keys else { return from };
        let bit = (first ^ last).ilog2();
        let split = keys.partition_point(|key| key >> bit & 1 == 0);
        let children = [self.add(&keys[..split], from), self.add(&keys[split..], from + split)];
        self.children.push(children);
        self.first.push(from as Rank);
        self.below.push(keys.len() as u32);
        self.first.len() - 1
    }

    /// The ranks below a node.
    pub(super) fn ranks_of(&self, node: usize) -> Range<Rank> {
        self.first[node]..self.first[node] + self.below[node]
    }

    /// How many nodes there are.
    pub(super) fn nodes(&self) -> usize {
        self.first.len()
    }

    /// The node over all ranks.
    pub(super) fn root(&self) -> usize {
        self.nodes() - 1
    }

    /// The children of a node; `None` of a rank.
    pub(super) fn below(&self, node: usize) -> Option<[usize; 2]> {
        node.checked_sub(self.ranks).map(|at| self.children[at])
    }
}

/// How one chunk is summed and sent out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChunkDraft {
    /// The rank that holds the partial sum of each node of the tree. A rank holds its own input.
    pub(super) holders: Vec<Rank>,
    /// From which rank each gets the result; the one that makes it, from itself.
    pub(super) parents: Vec<Rank>,
    /// How long it is, beside the others: 1 to 16.
    pub(super) weight: u8,
}

impl ChunkDraft {
    /// The rank that makes the result.
    pub(super) fn owner(&self) -> Rank {
        self.holders[self.holders.len() - 1]
    }

    /// The owner makes all partial sums, and sends the result to all.
    pub(super) fn direct(tree: &FoldTree, owner: Rank, weight: u8) -> Self {
        let mut holders = tree.first.clone();
        holders[tree.ranks..].fill(owner);
        Self { holders, parents: vec![owner; tree.ranks], weight }
    }

    /// Ranks of a node send to one of them, which `pick` says; the result goes back the same ways.
    pub(super) fn along(
        tree: &FoldTree,
        owner: Rank,
        weight: u8,
        pick: impl Fn(usize, &[Rank]) -> Rank,
    ) -> Self {
        let mut holders: Vec<Rank> = tree.first.clone();
        for node in tree.ranks..tree.nodes() {
            holders[node] = if node == tree.root() { owner } else { pick(node, &holders) };
        }
        let mut draft = Self { holders, parents: vec![owner; tree.ranks], weight };
        draft.send_back(tree);
        draft
    }

    /// Lets the result go from each holder to the holders whose sums it has folded.
    pub(super) fn send_back(&mut self, tree: &FoldTree) {
        let mut reached = vec![false; tree.ranks];
        reached[self.owner() as usize] = true;
        let owner = self.owner();
        self.parents.fill(owner);
        for node in (tree.ranks..tree.nodes()).rev() {
            for child in tree.below(node).into_iter().flatten() {
                let (above, below) = (self.holders[node], self.holders[child]);
                if !reached[below as usize] {
                    reached[below as usize] = true;
                    self.parents[below as usize] = above;
                }
            }
        }
    }

    /// Makes another rank the owner. Ranks between it and the owner before get the result from the other side.
    pub(super) fn give_to(&mut self, owner: Rank) {
        let (mut at, mut from) = (owner, owner);
        loop {
            let before = self.parents[at as usize];
            self.parents[at as usize] = from;
            if before == at {
                break;
            }
            (from, at) = (at, before);
        }
        if let Some(root) = self.holders.last_mut() {
            *root = owner;
        }
    }

    /// Lets a rank get the result from another one, unless that gets it from this one itself.
    pub(super) fn hang(&mut self, rank: Rank, under: Rank) {
        let mut at = under;
        while at != self.parents[at as usize] {
            if at == rank {
                return;
            }
            at = self.parents[at as usize];
        }
        if at != rank {
            self.parents[rank as usize] = under;
        }
    }

    /// Tells which resources it keeps busy, and for how long.
    pub(super) fn loads(&self, tree: &FoldTree, network: &Interconnect, mut busy: impl FnMut(usize, u64)) {
        let units = u64::from(self.weight);
        for node in tree.ranks..tree.nodes() {
            for child in tree.below(node).into_iter().flatten() {
                network.carry(self.holders[child], self.holders[node], units, &mut busy);
            }
        }
        for (rank, parent) in (0..).zip(&self.parents) {
            network.carry(*parent, rank, units, &mut busy);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_follow_the_keys() {
        let tree = FoldTree::of(&[0, 1, 2, 4, 5]);
        assert_eq!((tree.nodes(), tree.root()), (9, 8));
        assert_eq!(tree.children, [[0, 1], [5, 2], [3, 4], [6, 7]]);
        assert_eq!(tree.first[5..], [0, 0, 3, 0]);
    }

    #[test]
    fn results_reach_all_ranks_whatever_moves() {
        let tree = FoldTree::of(&[0, 1, 2, 3, 4]);
        let reaches_all = |draft: &ChunkDraft| {
            (0..5).all(|rank| {
                let mut at: Rank = rank;
                (0..5).for_each(|_| at = draft.parents[at as usize]);
                at == draft.owner()
            })
        };
        let mut draft = ChunkDraft::along(&tree, 3, 8, |node, _| tree.first[node]);
        assert!(reaches_all(&draft), "{draft:?}");
        for (rank, under, owner) in [(0, 4, 1), (1, 2, 2), (2, 1, 2), (4, 4, 0), (0, 3, 4), (3, 0, 3)] {
            draft.hang(rank, under);
            assert!(reaches_all(&draft), "{draft:?}");
            draft.give_to(owner);
            assert!(reaches_all(&draft) && draft.owner() == owner, "{draft:?}");
        }
    }
}
