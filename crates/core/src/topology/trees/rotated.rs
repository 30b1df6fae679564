//! If all links are equal, one tree turned round gives the trees of all roots.
//!
//! Turned by r, the edge between a and b becomes the one between a + r and b + r (modulo the ranks). So a distance
//! between ranks that the tree has twice, or half the way round once, is two uses of each link of that distance. The
//! ranks of the tree swap their places until no distance occurs more often: then no set of trees has a smaller load.

use super::broadcast::{Parents, broadcast};
use crate::topology::{LinkMatrix, random::SplitMix};
use alloc::{vec, vec::Vec};

/// How many swaps are tried for each rank.
const SWAPS: usize = 1000;

/// How often the search begins again, with another tree.
const BEGINNINGS: u32 = 8;

/// Trees for all ranks in order that use each link twice, if all links weigh the same and such trees are found.
pub(super) fn trees(links: &LinkMatrix, random: &mut SplitMix) -> Option<Vec<Parents>> {
    let size = links.size();
    if !are_alike(links) {
        return None;
    }
    let tree = (0..BEGINNINGS).find_map(|_| {
        let (tree, _) = broadcast(links, 0, &mut |_, _| random.unit());
        spread(tree, random)
    })?;
    let turned = |by: usize| {
        let mut parents = vec![0; size];
        tree.iter().enumerate().for_each(|(child, parent)| {
            parents[(child + by) % size] = ((usize::from(*parent) + by) % size) as u8;
        });
        parents
    };
    Some((0..size).map(turned).collect())
}

/// Whether all links weigh the same.
pub(super) fn are_alike(links: &LinkMatrix) -> bool {
    let size = links.size();
    let weight = links.weight(0, 1 % size);
    (0..size * size).all(|at| at / size == at % size || links.weights()[at] == weight)
}

/// Swaps ranks other than the root until no distance is there too often.
fn spread(mut parents: Parents, random: &mut SplitMix) -> Option<Parents> {
    let size = parents.len();
    let distance = |a: u8, b: u8| usize::from(a.abs_diff(b)).min(size - usize::from(a.abs_diff(b)));
    let excess = |parents: &Parents| {
        let mut counts = vec![0usize; size];
        let edges = (0u8..).zip(parents).filter(|(child, parent)| child != *parent);
        edges.for_each(|(child, parent)| counts[distance(child, *parent)] += 1);
        let allowed = |distance: usize| if 2 * distance == size { 1 } else { 2 };
        counts.iter().enumerate().map(|(at, count)| count.saturating_sub(allowed(at))).sum::<usize>()
    };
    let mut worst = excess(&parents);
    for _ in 0..SWAPS * size {
        if worst == 0 {
            return Some(parents);
        }
        let (a, b) = (1 + random.below(size - 1), 1 + random.below(size - 1));
        let swapped = swap(&parents, a as u8, b as u8);
        let found = excess(&swapped);
        // A step up now and then leads out of a dead end.
        if found <= worst || found == worst + 1 && random.below(40) == 0 {
            (parents, worst) = (swapped, found);
        }
    }
    None
}

fn swap(parents: &Parents, a: u8, b: u8) -> Parents {
    let other = |rank: u8| {
        if rank == a {
            b
        } else if rank == b {
            a
        } else {
            rank
        }
    };
    let mut swapped = parents.clone();
    (0u8..).zip(parents).for_each(|(child, parent)| swapped[usize::from(other(child))] = other(*parent));
    swapped
}
