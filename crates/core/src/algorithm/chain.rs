//! A chain: the sum goes from rank to rank to the last one, or from the root through all others, segment after segment.
//!
//! With S segments and K ranks a broadcast of N bytes at B bytes/s takes N (S + K - 2) / (S B). It would take (K - 1) N
//! / B if each rank waited for the whole buffer (the deep-learning-systems notes). Sums grow in the order of the chain,
//! so the bits depend on the schedule (canonical for two ranks only).

use super::branches::{Branch, Ways, over};
use crate::group::{Group, Rank};
use crate::schedule::Schedule;
use alloc::{vec, vec::Vec};

/// Towards `root`, from it, or both: the rank after it is next to it, that before it at the far end.
pub(super) fn chain(group: &Group, root: Rank, ways: Ways) -> Schedule {
    let size = group.size();
    let before = |rank: Rank| (rank != root).then_some((rank + size - 1) % size);
    let parents: Vec<Option<Rank>> = (0..size).map(before).collect();
    over(group, vec![Branch::of_parents(&parents)], vec![0], false, ways)
}
