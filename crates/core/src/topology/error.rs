//! Why a text is no topology.

use alloc::string::String;

/// Why a text is no topology, or a topology carries no trees.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// A place in a text.
    #[error("line {line}, column {column}: {found}; expected {expected}")]
    Text {
        /// Counted from 1.
        line: usize,
        /// In characters, counted from 1.
        column: usize,
        /// The text there.
        found: String,
        /// The expected text.
        expected: String,
    },
    /// The links as a whole.
    #[error("{problem}; {change}")]
    Whole {
        /// The problem.
        problem: String,
        /// The remedy.
        change: String,
    },
}

impl TopologyError {
    pub(crate) fn whole(problem: impl Into<String>, change: impl Into<String>) -> Self {
        Self::Whole { problem: problem.into(), change: change.into() }
    }
}
