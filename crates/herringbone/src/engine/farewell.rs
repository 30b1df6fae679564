//! What a rank waits for when it leaves a group.

use crate::{Error, completion::Completion};
use std::sync::Arc;

/// How far a rank has come with leaving a group.
#[derive(Debug, Default)]
pub(crate) enum Farewell {
    /// It has not begun. Nobody will wait: the others are left to compare what this rank has called.
    #[default]
    Unsaid,
    /// Somebody waits until all members have made the same calls, or it is known that they have not.
    Awaited(Arc<Completion>),
    /// The others have been asked.
    Asked(Arc<Completion>),
    /// There is nothing to wait for any more.
    Over,
}

impl Farewell {
    pub(super) fn is_over(&self) -> bool {
        matches!(self, Self::Over)
    }

    /// Whether somebody waits.
    pub(super) fn is_awaited(&self) -> bool {
        matches!(self, Self::Awaited(_) | Self::Asked(_))
    }

    /// The others are to be asked. Returns whether they have not been.
    pub(super) fn asks(&mut self) -> bool {
        if let Self::Awaited(end) = self {
            *self = Self::Asked(end.clone());
            return true;
        }
        matches!(self, Self::Unsaid)
    }

    /// Whether somebody waits for this end.
    pub(super) fn is_awaited_by(&self, end: &Arc<Completion>) -> bool {
        matches!(self, Self::Awaited(own) | Self::Asked(own) if Arc::ptr_eq(own, end))
    }

    /// It is over. Returns the error if nobody waits for it.
    pub(super) fn end(&mut self, result: Result<(), Error>) -> Option<Error> {
        match std::mem::replace(self, Self::Over) {
            Self::Awaited(end) | Self::Asked(end) => {
                end.finish(result);
                None
            }
            Self::Unsaid | Self::Over => result.err(),
        }
    }
}
