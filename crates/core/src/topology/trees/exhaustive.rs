//! MXNet's search over all balanced trees (`BacktrackGenerateBinaryTree`).
//!
//! A tree is the list of its leaves: 2^d ranks, the root first. On the level of stride 2^i the rank at each position
//! that is a multiple of 2^(i+1) is the parent of the rank one stride further. Equal ranks need no link.

use super::tree::least_rounds;
use crate::topology::MOST_RANKS;
use alloc::{vec, vec::Vec};

/// The levels of a tree over so many ranks.
pub(super) fn depth(size: usize) -> u32 {
    least_rounds(size).max(1)
}

/// The leaves of the tree with the greatest score from this root, the first in lexicographic order of several; of more than 8
/// ranks the first tree at all, if so many steps find one. `None` if there is none, or none was found.
pub(super) fn leaves(weights: &[f32], size: usize, root: usize, steps: u64) -> Option<Vec<usize>> {
    let depth = depth(size);
    let length = 1 << depth;
    let mut state = vec![0; length];
    state[0] = root;
    let mut counts = vec![0; size];
    counts[root] = 1;
    let mut search = Backtracking {
        weights,
        size,
        depth,
        leaves: state.clone(),
        state,
        counts,
        repeats: length - size,
        best: None,
        steps: if depth <= 3 { u64::MAX } else { steps },
    };
    search.descend(1);
    search.best.map(|(_, leaves)| leaves)
}

struct Backtracking<'a> {
    weights: &'a [f32],
    size: usize,
    depth: u32,
    state: Vec<usize>,
    /// A complete state without what it does not need.
    leaves: Vec<usize>,
    /// How often each rank is in the prefix.
    counts: Vec<usize>,
    /// How often ranks may still be repeated: each has to be among the leaves.
    repeats: usize,
    best: Option<(f32, Vec<usize>)>,
    steps: u64,
}

impl Backtracking<'_> {
    /// Tries all ranks at a row. Whether the search is over.
    fn descend(&mut self, row: usize) -> bool {
        if row == self.state.len() {
            return self.finish();
        }
        // A row completes one pair: with the row that its lowest bit is missing from.
        let parent = self.state[row & (row - 1)];
        for rank in 0..self.size {
            let is_linked = rank == parent || self.weights[parent * self.size + rank] != 0.0;
            let repeats = usize::from(self.counts[rank] > 0);
            if !is_linked || repeats > self.repeats {
                continue;
            }
            match self.steps.checked_sub(1) {
                Some(steps) => self.steps = steps,
                None => return true,
            }
            self.state[row] = rank;
            self.counts[rank] += 1;
            self.repeats -= repeats;
            if self.descend(row + 1) {
                return true;
            }
            self.counts[rank] -= 1;
            self.repeats += repeats;
        }
        false
    }

    fn finish(&mut self) -> bool {
        self.leaves.copy_from_slice(&self.state);
        postprocess(&mut self.leaves, self.depth);
        let score = score(self.weights, &self.leaves, self.size, self.depth);
        if self.best.as_ref().is_none_or(|(best, _)| score > *best) {
            self.best = Some((score, self.leaves.clone()));
        }
        self.depth > 3
    }
}

/// Replaces senders that are not needed by their receivers, from the top level down.
pub(super) fn postprocess(leaves: &mut [usize], depth: u32) {
    let count = |leaves: &[usize], stride: usize| {
        let mut counts = [0u32; MOST_RANKS];
        leaves.iter().step_by(stride).for_each(|rank| counts[*rank] += 1);
        counts
    };
    for level in (0..depth).rev() {
        let stride = 1 << level;
        let above = count(leaves, 2 * stride);
        let mut here = count(leaves, stride);
        let mut at = leaves.len() - stride;
        loop {
            let (old, new) = (leaves[at], leaves[at - stride]);
            if (here[old] > 1 || above[old] >= 1) && old != new {
                leaves[at] = new;
                here[old] -= 1;
            }
            match at.checked_sub(2 * stride) {
                Some(next) if next >= stride => at = next,
                _ => break,
            }
        }
    }
}

/// The weight of a tree, less 100 for a link that it uses again, and less 10 for a rank that is used again on one level above
/// the leaves.
fn score(weights: &[f32], leaves: &[usize], size: usize, depth: u32) -> f32 {
    let mut score = 0.0;
    // A bit for each rank.
    let mut links = [0u64; MOST_RANKS];
    for level in 0..depth {
        let stride = 1 << level;
        let mut ranks = 0u64;
        for at in (0..leaves.len() - stride).step_by(2 * stride) {
            let (parent, child) = (leaves[at], leaves[at + stride]);
            if parent == child {
                continue;
            }
            score += weights[parent * size + child];
            if links[parent] >> child & 1 == 1 {
                score -= 100.0;
            }
            links[parent] |= 1 << child;
            links[child] |= 1 << parent;
            for rank in [parent, child] {
                if level > 0 && ranks >> rank & 1 == 1 {
                    score -= 10.0;
                }
                ranks |= 1 << rank;
            }
        }
    }
    score
}

/// The edges of a tree, level by level from the root.
pub(super) fn edges(leaves: &[usize], depth: u32) -> Vec<[usize; 2]> {
    let mut edges = vec![];
    for level in (0..depth).rev() {
        let stride = 1 << level;
        for at in (0..leaves.len() - stride).step_by(2 * stride) {
            if leaves[at] != leaves[at + stride] {
                edges.push([leaves[at], leaves[at + stride]]);
            }
        }
    }
    edges
}
