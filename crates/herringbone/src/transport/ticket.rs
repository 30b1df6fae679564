//! The identity of an operation and its steps in a transport.

use crate::core::execution::SegmentStep;

/// What an engine knows an operation by. Keys are in the order in which operations began, and none is used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OpKey {
    /// How many began before it.
    pub(crate) number: u64,
    /// Its place in the engine's table.
    pub(crate) place: u32,
}

/// A step of a segment of an operation: what a transport reports back on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) op: OpKey,
    pub(crate) ready: SegmentStep,
}
