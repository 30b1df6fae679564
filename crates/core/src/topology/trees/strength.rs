//! The bound of an all-reduce, whatever its schedule.
//!
//! Cut the ranks into p groups. A sum over all ranks takes p - 1 sends of the buffer between groups, and p - 1 more bring the result
//! to all of them, over the links between groups. And each group has to send the buffer once and to receive it once. So an
//! all-reduce takes at least
//!
//! * 2 (p - 1) buffers by the bandwidth of all links between the groups, for any groups;
//! * one buffer by the bandwidth that leaves a group, for any group.
//!
//! If links are equal in both directions and the buffer can be cut at will, trees that go up and down at once reach the
//! first bound for some groups. A theorem of Nash-Williams and Tutte (1961) gives the number of trees that can be
//! packed into a graph. The groups are found as the strength of a graph is (Cunningham, 1985).

use super::flow::Flow;
use crate::topology::LinkMatrix;
use alloc::{vec, vec::Vec};

/// The least time of an all-reduce of a buffer of one unit: in seconds for 1 GB, if bandwidths are in GB/s. 0 for a
/// single rank, and infinite if some rank cannot reach another.
pub fn all_reduce_bound(links: &LinkMatrix) -> f64 {
    let size = links.size();
    if size < 2 {
        return 0.0;
    }
    // The least bandwidth that leaves any group, with rank 0 in it or not.
    let leaves = |from, to| Flow::between(links).most(from, to);
    let least = (1..size).map(|rank| leaves(0, rank).min(leaves(rank, 0))).fold(f64::INFINITY, f64::min);
    if least <= 0.0 { f64::INFINITY } else { (1.0 / least).max(1.0 / strength(links)) }
}

/// The least bandwidth between p groups by p - 1, over all ways to make groups; of both directions the mean counts.
///
/// From the groups that are known, others are found that are weaker, until there are none: each is below the one before, so that it
/// ends (Dinkelbach, 1967).
fn strength(links: &LinkMatrix) -> f64 {
    let size = links.size();
    let alone: Vec<usize> = (0..size).collect();
    let mut weakest = between(links, &alone) / (size - 1) as f64;
    loop {
        let groups = weakest_groups(links, weakest);
        let mut names = groups.clone();
        names.sort_unstable();
        names.dedup();
        if names.len() < 2 {
            return weakest;
        }
        let found = between(links, &groups) / (names.len() - 1) as f64;
        if found >= weakest * (1.0 - 1e-9) {
            return weakest;
        }
        weakest = found;
    }
}

/// What the links between two ranks carry, as the mean of both directions.
fn mean(links: &LinkMatrix, one: usize, other: usize) -> f64 {
    (links.bandwidth(one, other) + links.bandwidth(other, one)) / 2.0
}

/// The bandwidth between groups; `groups` has the number of each rank's.
fn between(links: &LinkMatrix, groups: &[usize]) -> f64 {
    let pairs = (0..groups.len()).flat_map(|b| (0..b).map(move |a| (a, b)));
    pairs.filter(|(a, b)| groups[*a] != groups[*b]).map(|(a, b)| mean(links, a, b)).sum()
}

/// Groups for which (bandwidth between them) - `price` x (how many) is least; the number of each rank's.
///
/// Half of the bandwidth that leaves a group, less the price, is a submodular function of it. The greedy algorithm gives each rank in
/// turn as much as all groups with it and earlier ranks allow, which a flow finds. Groups that allow no more and share a rank
/// are one (Dilworth's truncation; Frank and Tardos, 1988).
fn weakest_groups(links: &LinkMatrix, price: f64) -> Vec<usize> {
    let size = links.size();
    let mut given = vec![0.0f64; size];
    let mut groups: Vec<usize> = (0..size).collect();
    for rank in 0..size {
        let (sink, nodes) = (rank + 1, rank + 2);
        let mut left = vec![0.0; nodes * nodes];
        let mut earned = 0.0;
        for one in 0..=rank {
            (0..=rank).for_each(|other| left[one * nodes + other] = mean(links, one, other) / 2.0);
            left[one * nodes + sink] =
                (rank + 1..size).map(|later| mean(links, one, later) / 2.0).sum::<f64>();
        }
        for earlier in 0..rank {
            if given[earlier] > 0.0 {
                left[rank * nodes + earlier] += given[earlier];
                earned += given[earlier];
            } else {
                left[earlier * nodes + sink] -= given[earlier];
            }
        }
        let mut flow = Flow::new(nodes, left, price * 1e-12);
        given[rank] = flow.most(rank, sink) - earned - price;
        let joined: Vec<usize> =
            (0..=rank).filter(|one| flow.is_reached(*one)).map(|one| groups[one]).collect();
        groups.iter_mut().filter(|group| joined.contains(group)).for_each(|group| *group = rank);
    }
    groups
}
