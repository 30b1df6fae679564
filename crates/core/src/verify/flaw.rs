//! The fault of a term that should be the fold of all inputs.

/// Why a term is not the fold of every input exactly once, with the input's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    Missing(u32),
    Twice(u32),
    /// It was not coded, and others were.
    Uncoded(u32),
}
