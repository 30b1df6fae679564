//! Two binary trees, each for half of the buffer. A rank that is inside one is a leaf of the other, so all send and
//! receive about the same amount (Sanders, Speck and Traeff, 2009; NCCL's trees since 2.4). Sums grow in the order of
//! the trees, so the bits depend on the schedule (canonical for two ranks only).

use super::branches::{Branch, Ways, over};
use crate::group::{Group, Rank};
use crate::schedule::Schedule;
use alloc::{vec, vec::Vec};

pub(super) fn all_reduce(group: &Group) -> Schedule {
    let size = group.size();
    let first = |rank: Rank| parent(rank, size);
    // The other tree: the ranks one further round, or, where that would leave inner ranks inside, in reverse.
    let other = |rank: Rank| match size % 2 {
        1 => parent((rank + size - 1) % size, size).map(|parent| (parent + 1) % size),
        _ => parent(size - 1 - rank, size).map(|parent| size - 1 - parent),
    };
    let trees = [(0..size).map(first).collect::<Vec<_>>(), (0..size).map(other).collect()];
    let places = trees.iter().map(|parents| Branch::of_parents(parents)).collect();
    over(group, places, vec![0, 1], false, Ways { up: true, down: true })
}

/// The parent of a rank in the tree in which a rank's height is the number of zeros at the end of its number: rank 0 is the root,
/// and odd ranks are leaves.
fn parent(rank: Rank, size: u32) -> Option<Rank> {
    let lowest = if rank == 0 { return None } else { 1 << rank.trailing_zeros() };
    let above = (rank ^ lowest) | lowest << 1;
    Some(if above < size { above } else { rank ^ lowest })
}
