//! Which trees are wanted.

use crate::choice::choices;
use alloc::{vec, vec::Vec};

choices! {
    "a mode of trees":
    /// Which trees.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum TreeMode {
        /// As MXNet's planner makes them.
        Mxnet => "mxnet",
        /// Few rounds, and no link that carries more than it must.
        #[default]
        Best => "best",
        /// As much at once as the links carry, in however many rounds.
        Throughput => "throughput",
    }
}

/// Which trees are wanted.
#[derive(Clone, Debug, PartialEq)]
pub struct TreeRequest {
    /// Which kind.
    pub mode: TreeMode,
    /// The roots; empty means each rank in order.
    pub roots: Vec<usize>,
    /// MXNet's factor of a link's weight for each tree that uses it.
    pub penalty: f32,
    /// The seed of Kernighan and Lin's shuffles. Without one they are used for more than 8 ranks only, with seed 1.
    pub seed: Option<u64>,
    /// Whether a tree carries a broadcast or a reduce, which use one direction of its links, and not an all-reduce, which uses both
    /// at once. Only [`TreeMode::Throughput`] heeds it.
    pub is_one_way: bool,
}

impl TreeRequest {
    /// One tree for each rank, with MXNet's penalty.
    pub fn of(mode: TreeMode) -> Self {
        Self { mode, roots: vec![], penalty: 0.7, seed: None, is_one_way: false }
    }
}
