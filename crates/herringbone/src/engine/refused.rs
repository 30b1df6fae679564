//! Why an operation was not issued.

use crate::Error;

/// Why an operation was not issued.
#[derive(Debug)]
pub(crate) enum Refused {
    /// A fence is under way.
    Frozen,
    Failed(Error),
    /// It took its number, and has failed: on other ranks the operation of that number did.
    Counted(Error),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Refused::Failed(error)
    }
}
