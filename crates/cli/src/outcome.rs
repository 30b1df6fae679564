//! The results of verbs.

/// What a verb that ran to its end found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    Failed,
}

impl Outcome {
    pub(crate) fn passed_if(passed: bool) -> Self {
        if passed { Self::Passed } else { Self::Failed }
    }
}
