//! The canonical tree of sums with holders that the links favour.
//!
//! The group's canonical tree determines which partial sums meet. Any rank of a node can hold its sum, so the link
//! between two holders is free to choose. This module compares all choices without an extra hop. It finds the ones
//! whose slowest link is fastest, and among these the one with the most weight.

use super::tree::{FoundBy, SpanningTree};
use crate::topology::LinkMatrix;
use alloc::{vec, vec::Vec};
use core::ops::Range;

/// What a choice is worth: the least weight of a link, then the sum of all.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
struct TreeScore {
    slowest: f32,
    weight: f32,
}

impl TreeScore {
    fn and(self, other: Self) -> Self {
        Self { slowest: self.slowest.min(other.slowest), weight: self.weight + other.weight }
    }
}

/// A node of the canonical tree.
struct Split {
    low: Range<usize>,
    high: Range<usize>,
    /// By rank: what the node is worth with the rank as its holder, and the holder of the other side.
    held: Vec<(TreeScore, usize)>,
}

/// The tree towards a root, in the shape of the canonical tree of these fold keys; `None` if each choice of holders has
/// a link of weight 0. `discount` is the factor of a link's weight, for links that other trees use.
pub fn canonical(
    links: &LinkMatrix,
    keys: &[u32],
    root: usize,
    discount: &dyn Fn(usize, usize) -> f32,
) -> Option<SpanningTree> {
    let mut splits = vec![];
    solve(links, keys, 0..keys.len(), discount, &mut splits);
    let mut edges = vec![];
    if let Some(top) = splits.last()
        && top.held[root].0.slowest <= 0.0
    {
        return None;
    }
    collect(&splits, 0..keys.len(), root, &mut edges);
    // Parents stand before their children.
    Some(SpanningTree::new(root, edges, FoundBy::Canonical))
}

/// The score of each holder of a node; nodes are listed after those below them.
fn solve(
    links: &LinkMatrix,
    keys: &[u32],
    node: Range<usize>,
    discount: &dyn Fn(usize, usize) -> f32,
    splits: &mut Vec<Split>,
) -> Vec<TreeScore> {
    let none = TreeScore { slowest: -1.0, weight: 0.0 };
    let mut scores = vec![none; keys.len()];
    if node.len() == 1 {
        scores[node.start] = TreeScore { slowest: f32::INFINITY, weight: 0.0 };
        return scores;
    }
    let bit = (keys[node.start] ^ keys[node.end - 1]).ilog2();
    let split = node.start + keys[node.clone()].partition_point(|key| key >> bit & 1 == 0);
    let (low, high) = (node.start..split, split..node.end);
    let lows = solve(links, keys, low.clone(), discount, splits);
    let highs = solve(links, keys, high.clone(), discount, splits);
    let mut held = vec![(none, 0); keys.len()];
    for (mine, others, own, theirs) in [(&low, &high, &lows, &highs), (&high, &low, &highs, &lows)] {
        for holder in mine.clone() {
            for other in others.clone() {
                let weight = links.both_ways(holder, other) * discount(holder, other);
                let link = TreeScore { slowest: weight, weight };
                let found = link.and(own[holder]).and(theirs[other]);
                if found > held[holder].0 {
                    held[holder] = (found, other);
                }
            }
        }
    }
    held.iter().zip(&mut scores).for_each(|((found, _), score)| *score = *found);
    splits.push(Split { low, high, held });
    scores
}

fn collect(splits: &[Split], node: Range<usize>, holder: usize, edges: &mut Vec<[usize; 2]>) {
    let is_node = |split: &&Split| split.low.start == node.start && split.high.end == node.end;
    let Some(split) = splits.iter().find(is_node) else { return };
    let other = split.held[holder].1;
    edges.push([holder, other]);
    let (mine, others) = match split.low.contains(&holder) {
        true => (split.low.clone(), split.high.clone()),
        false => (split.high.clone(), split.low.clone()),
    };
    collect(splits, mine, holder, edges);
    collect(splits, others, other, edges);
}
