//! Shards: the logical world of a training, which its workers only carry. So its results do not depend on how many
//! workers there are.
//!
//! A job has a fixed number of **shards**, each with its own samples, random numbers and gradient. Each worker carries
//! a run of consecutive shards. The sum of all gradients follows the [canonical tree](crate::group) over the numbers of
//! the shards. A worker's run covers one or several **nodes** of that tree. The worker folds its own shards below each
//! node, and the workers fold the nodes' partial sums. EasyScale (Li et al., SC 2023) does this for GPUs. Here the
//! order of sums is fixed, so the bits are the bits of a single worker.
//!
//! ```
//! use herringbone_core::shards::ShardRuns;
//!
//! // Eight shards on three workers: each carries one node.
//! let runs = ShardRuns::aligned(8, 3)?;
//! assert_eq!([0, 1, 2].map(|worker| runs.of(worker)), [0..2, 2..4, 4..8]);
//! let group = runs.group();
//! assert_eq!((group.keys(), group.contributors()), (&[0, 2, 4][..], 8));
//!
//! // Or nearly as many shards as the others, in several nodes: 0 and 1, 2; 3, 4 and 5; 6 and 7.
//! let runs = ShardRuns::even(8, 3)?;
//! assert_eq!([0, 1, 2].map(|worker| runs.of(worker)), [0..3, 3..6, 6..8]);
//! let group = runs.group();
//! assert_eq!((group.keys(), group.inputs_of(0)), (&[0, 2, 3, 4, 6][..], 0..2));
//! # Ok::<(), herringbone_core::shards::ShardsError>(())
//! ```

use crate::group::{Group, Rank, merges};
use alloc::vec::Vec;
use core::ops::Range;

/// The most shards of a job.
pub const MOST_SHARDS: u32 = 1 << 20;

/// The most nodes of the canonical tree that consecutive shards are: two of each size but the largest ones, at most.
pub const MOST_NODES: u32 = 2 * MOST_SHARDS.ilog2();

/// Why shards cannot be carried so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShardsError {
    /// The number of shards is 0 or too large.
    #[error("{shards} shards: a job has from 1 to {MOST_SHARDS}")]
    Number {
        /// How many.
        shards: u32,
    },
    /// The number of workers is 0.
    #[error("a job has at least one worker")]
    NoWorkers,
    /// Workers without shards stand at the end.
    #[error(
        "worker {worker} carries shards and the one before it none: let those without shards be the last ones"
    )]
    IdleBefore {
        /// The first worker with shards after one without.
        worker: Rank,
    },
}

/// The shards of each worker: consecutive ones, in the order of the workers. The last workers can have none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardRuns {
    /// Where the run of each worker ends.
    ends: Vec<u32>,
}

/// A worker's step with the gradient of one of its shards: see [`ShardRuns::folds`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardFold {
    /// The shard.
    pub shard: u32,
    /// How many of the partial sums that are kept become one with it, the newest first.
    pub merges: u8,
    /// Which of the worker's nodes the shard lies in, and whether it is the node's last one: then one partial sum is left, the node's.
    pub node: u32,
    /// See `node`.
    pub ends_node: bool,
}

impl ShardRuns {
    /// Runs that are one node of the canonical tree each, so that each worker sends one partial sum; the longest is as
    /// short as that allows. With 8 shards three workers carry 2, 2 and 4.
    ///
    /// # Errors
    /// [`ShardsError::Number`], [`ShardsError::NoWorkers`].
    pub fn aligned(shards: u32, workers: u32) -> Result<Self, ShardsError> {
        let mut lengths = alloc::vec![shards];
        while lengths.len() < workers as usize {
            // The first of the longest ones: half of it is a node, too.
            let longest =
                (0..lengths.len()).rev().max_by_key(|at| lengths[*at]).filter(|at| lengths[*at] > 1);
            let Some(at) = longest else { break };
            let first = lengths[at].next_power_of_two() / 2;
            lengths.insert(at + 1, lengths[at] - first);
            lengths[at] = first;
        }
        lengths.resize(workers as usize, 0);
        Self::of_lengths(&lengths)
    }

    /// Runs whose lengths differ by one at most, the longer ones first: a worker sends a partial sum for each node that
    /// its run is made of. With 8 shards three workers carry 3, 3 and 2.
    ///
    /// # Errors
    /// [`ShardsError::Number`], [`ShardsError::NoWorkers`].
    pub fn even(shards: u32, workers: u32) -> Result<Self, ShardsError> {
        let (each, longer) = (shards / workers.max(1), shards % workers.max(1));
        let lengths: Vec<u32> = (0..workers).map(|worker| each + u32::from(worker < longer)).collect();
        Self::of_lengths(&lengths)
    }

    /// Runs of these lengths, one for each worker.
    ///
    /// # Errors
    /// [`ShardsError::Number`], [`ShardsError::NoWorkers`], [`ShardsError::IdleBefore`].
    pub fn of_lengths(lengths: &[u32]) -> Result<Self, ShardsError> {
        if lengths.is_empty() {
            return Err(ShardsError::NoWorkers);
        }
        if let Some(at) = lengths.windows(2).position(|pair| pair[0] == 0 && pair[1] > 0) {
            return Err(ShardsError::IdleBefore { worker: at as Rank + 1 });
        }
        let shards = lengths.iter().fold(0, |sum: u32, length| sum.saturating_add(*length));
        if shards == 0 || shards > MOST_SHARDS {
            return Err(ShardsError::Number { shards });
        }
        let ends = lengths.iter().scan(0, |end, length| {
            *end += length;
            Some(*end)
        });
        Ok(Self { ends: ends.collect() })
    }

    /// How many shards the job has.
    pub fn shards(&self) -> u32 {
        self.ends[self.ends.len() - 1]
    }

    /// How many workers there are.
    pub fn workers(&self) -> u32 {
        self.ends.len() as u32
    }

    /// The shards that a worker carries.
    ///
    /// # Panics
    /// If there is no such worker.
    pub fn of(&self, worker: Rank) -> Range<u32> {
        let before = worker.checked_sub(1).map_or(0, |before| self.ends[before as usize]);
        before..self.ends[worker as usize]
    }

    /// The largest nodes of the canonical tree that a worker's shards make up: with [aligned](Self::aligned) runs one,
    /// or none; for n shards at most about 2 log2(n).
    ///
    /// # Panics
    /// If there is no such worker.
    pub fn nodes(&self, worker: Rank) -> Vec<Range<u32>> {
        let (shards, Range { mut start, end }) = (self.shards(), self.of(worker));
        let mut nodes = Vec::new();
        while start < end {
            // A node has a power of two of shards from a multiple of it on, or those of them that there are.
            let most = start.trailing_zeros().min(MOST_SHARDS.ilog2());
            let mut ends = (0..=most).rev().map(|bits| shards.min(start + (1 << bits)));
            let node = start..ends.find(|node| *node <= end).expect("one shard is a node");
            start = node.end;
            nodes.push(node);
        }
        nodes
    }

    /// A worker's steps with the gradients of its shards, in their order. It keeps at most log2 of the longest node,
    /// rounded up, partial sums in addition to the gradient. If one side of a node is missing, the other side takes its
    /// place alone.
    ///
    /// # Panics
    /// If there is no such worker.
    pub fn folds(&self, worker: Rank) -> Vec<ShardFold> {
        let mut folds = Vec::new();
        for (node, shards) in (0..).zip(self.nodes(worker)) {
            let keys: Vec<u32> = shards.clone().collect();
            let of_shard = |(shard, merges): (u32, u8)| ShardFold {
                shard,
                merges,
                node,
                ends_node: shard + 1 == shards.end,
            };
            folds.extend(keys.iter().copied().zip(merges(&keys)).map(of_shard));
        }
        folds
    }

    /// The group in which the workers fold their nodes' partial sums. Each sum is an input whose fold key is the node's
    /// first shard, and averages divide by the number of shards. Workers without shards have one input with a key
    /// behind all, and give -0.0, which changes no sum.
    pub fn group(&self) -> Group {
        let behind = self.shards().next_power_of_two();
        let (mut keys, mut inputs) =
            (Vec::with_capacity(self.ends.len()), Vec::with_capacity(self.ends.len()));
        for worker in 0..self.workers() {
            let before = keys.len();
            keys.extend(self.nodes(worker).iter().map(|node| node.start));
            if keys.len() == before {
                keys.push(behind + worker);
            }
            inputs.push((keys.len() - before) as u32);
        }
        let group = Group::with_keys(keys).and_then(|group| group.with_inputs(&inputs));
        let group = group.and_then(|group| group.with_contributors(self.shards()));
        group.expect("first shards ascend, and there is one")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::nodes_of;

    fn lengths(shards: u32, workers: u32) -> Vec<u32> {
        let runs = ShardRuns::aligned(shards, workers).unwrap();
        (0..workers).map(|worker| runs.of(worker).len() as u32).collect()
    }

    #[test]
    fn aligned_runs_are_one_node_each_and_as_even_as_nodes_are() {
        assert_eq!(lengths(8, 1), [8]);
        assert_eq!(lengths(8, 3), [2, 2, 4]);
        assert_eq!(lengths(8, 5), [1, 1, 2, 2, 2]);
        assert_eq!(lengths(16, 5), [2, 2, 4, 4, 4]);
        assert_eq!(lengths(6, 4), [1, 1, 2, 2]);
        assert_eq!(lengths(3, 5), [1, 1, 1, 0, 0]);
        for shards in 1..=40 {
            for workers in 1..=shards + 3 {
                let runs = ShardRuns::aligned(shards, workers).unwrap();
                assert_eq!((runs.shards(), runs.workers()), (shards, workers));
                let group = runs.group();
                assert_eq!((group.size(), group.contributors()), (workers, shards));
                // No cut into nodes has a shorter longest run: one with so many nodes would have to halve it.
                let longest = *lengths(shards, workers).iter().max().unwrap();
                let needed = |most: u32| {
                    let mut count = 0;
                    let mut left = alloc::vec![shards];
                    while let Some(node) = left.pop() {
                        match node <= most {
                            true => count += 1,
                            false => {
                                let first = node.next_power_of_two() / 2;
                                left.extend([first, node - first]);
                            }
                        }
                    }
                    count
                };
                assert!(longest == 1 || needed(longest - 1) > workers, "{shards} {workers}");
            }
        }
    }

    #[test]
    fn folds_say_what_is_merged_when() {
        let runs = ShardRuns::of_lengths(&[3, 5]).unwrap();
        let said = |worker| {
            let fold = |fold: &ShardFold| (fold.shard, fold.merges, fold.node, fold.ends_node);
            runs.folds(worker).iter().map(fold).collect::<Vec<_>>()
        };
        assert_eq!(said(0), [(0, 0, 0, false), (1, 1, 0, true), (2, 0, 1, true)]);
        let second = [(3, 0, 0, true), (4, 0, 1, false), (5, 1, 1, false), (6, 0, 1, false), (7, 2, 1, true)];
        assert_eq!(said(1), second);
    }

    #[test]
    fn nodes_are_those_of_the_tree_and_few() {
        for shards in 1..=20 {
            let keys: Vec<u32> = (0..shards).collect();
            for (start, end) in (0..shards).flat_map(|start| (start..=shards).map(move |end| (start, end))) {
                let lengths = [start, end - start, shards - end];
                let Ok(runs) = ShardRuns::of_lengths(&lengths) else { continue };
                assert_eq!(runs.nodes(1), nodes_of(&keys, start..end), "{start}..{end} of {shards}");
            }
        }
        let runs = ShardRuns::of_lengths(&[1, MOST_SHARDS - 2, 1]).unwrap();
        assert_eq!(runs.nodes(1).len() as u32, MOST_NODES - 2);
    }

    #[test]
    fn even_runs_differ_by_one_at_most() {
        for shards in 1..=40 {
            for workers in 1..=shards + 3 {
                let runs = ShardRuns::even(shards, workers).unwrap();
                assert_eq!((runs.shards(), runs.workers()), (shards, workers));
                let lengths: Vec<u32> = (0..workers).map(|worker| runs.of(worker).len() as u32).collect();
                assert!(lengths.is_sorted_by(|a, b| a >= b) && lengths[0] - lengths[lengths.len() - 1] <= 1);
                let group = runs.group();
                assert_eq!((group.size(), group.contributors()), (workers, shards));
                assert!(group.inputs() >= workers, "{shards} {workers}");
            }
        }
        let group = ShardRuns::even(3, 5).unwrap().group();
        assert_eq!((group.keys(), group.has_several()), (&[0, 1, 2, 7, 8][..], false));
        assert_eq!(ShardRuns::even(3, 0), Err(ShardsError::NoWorkers));
        assert_eq!(ShardRuns::even(0, 3), Err(ShardsError::Number { shards: 0 }));
    }

    #[test]
    fn what_cannot_be_carried_is_refused() {
        assert_eq!(ShardRuns::aligned(0, 2), Err(ShardsError::Number { shards: 0 }));
        assert_eq!(
            ShardRuns::aligned(MOST_SHARDS + 1, 2),
            Err(ShardsError::Number { shards: MOST_SHARDS + 1 })
        );
        assert_eq!(ShardRuns::aligned(3, 0), Err(ShardsError::NoWorkers));
        assert_eq!(ShardRuns::of_lengths(&[1, 0, 2]), Err(ShardsError::IdleBefore { worker: 2 }));
        assert_eq!(ShardRuns::of_lengths(&[u32::MAX, 2]), Err(ShardsError::Number { shards: u32::MAX }));
    }
}
