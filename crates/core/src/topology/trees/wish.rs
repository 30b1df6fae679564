//! Which trees are wanted.

use alloc::{vec, vec::Vec};
use core::str::FromStr;

/// Which trees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TreeMode {
    /// As MXNet's planner makes them.
    Mxnet,
    /// Few rounds, and no link that carries more than it must.
    #[default]
    Best,
    /// As much at once as the links carry, in however many rounds.
    Throughput,
}

impl TreeMode {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Mxnet, Self::Best, Self::Throughput];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mxnet => "mxnet",
            Self::Best => "best",
            Self::Throughput => "throughput",
        }
    }
}

/// A name that is no mode's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a mode of trees: use mxnet, best or throughput")]
pub struct ParseTreeModeError;

impl FromStr for TreeMode {
    type Err = ParseTreeModeError;

    fn from_str(text: &str) -> Result<Self, ParseTreeModeError> {
        Self::ALL.into_iter().find(|mode| mode.name() == text).ok_or(ParseTreeModeError)
    }
}

/// Which trees are wanted.
#[derive(Clone, Debug, PartialEq)]
pub struct TreeWish {
    /// Which kind.
    pub mode: TreeMode,
    /// The roots; empty means each rank in order.
    pub roots: Vec<usize>,
    /// By what MXNet multiplies the weight of a link for each tree that uses it.
    pub penalty: f32,
    /// The seed of Kernighan and Lin's shuffles. Without one they are used for more than 8 ranks only, with seed 1.
    pub seed: Option<u64>,
}

impl TreeWish {
    /// One tree for each rank, with MXNet's penalty.
    pub fn of(mode: TreeMode) -> Self {
        Self { mode, roots: vec![], penalty: 0.7, seed: None }
    }
}
