//! Handles of running operations.

use crate::{Error, Result, completion::Completion, core::group::Rank, node::Node};
use std::{
    fmt,
    sync::{Arc, mpsc::Sender},
    time::Duration,
};

/// A running operation. Dropping it does not stop the operation; clones are the same operation.
#[derive(Clone)]
#[must_use = "an operation's errors are seen by waiting for it"]
pub struct Pending {
    pub(crate) node: Arc<Node>,
    pub(crate) completion: Arc<Completion>,
    pub(crate) rank: Rank,
    pub(crate) operation: &'static str,
}

impl Pending {
    /// Waits for the operation, driving the engine meanwhile. Every caller gets the same result.
    ///
    /// # Errors
    /// An error of the operation; see [`ErrorKind`](crate::ErrorKind). [`ErrorKind::Forked`](crate::ErrorKind::Forked)
    /// in a forked child, if the operation was not over at the fork.
    pub fn wait(&self) -> Result<()> {
        self.check_usable()?;
        self.node.wait(&self.completion, None);
        self.completion.result().unwrap_or_else(|| Err(Error::new(crate::ErrorKind::Closed)))
    }

    /// Waits for at most `limit`. Returns `None` if the operation is still running then.
    pub fn wait_for(&self, limit: Duration) -> Option<Result<()>> {
        if let Err(error) = self.check_usable() {
            return Some(Err(error));
        }
        self.node.wait(&self.completion, Some(limit));
        self.completion.result()
    }

    /// A forked child has nothing that could end the operation.
    fn check_usable(&self) -> Result<()> {
        match self.node.is_forked() && !self.is_done() {
            true => Err(Error::new(crate::ErrorKind::Forked).about(self.rank, self.operation)),
            false => Ok(()),
        }
    }

    /// Whether the operation is over.
    pub fn is_done(&self) -> bool {
        self.completion.is_done()
    }

    /// The result, once the operation is over.
    pub fn result(&self) -> Option<Result<()>> {
        self.completion.result()
    }

    /// The rank whose message a receive has got, as its group numbers it; `None` while it waits, if it failed, and for all other
    /// operations.
    pub fn source(&self) -> Option<u32> {
        self.completion.source()
    }

    /// Has `token` sent to `listener` when the operation is over; at once if it is already.
    pub fn notify(&self, listener: Sender<u64>, token: u64) {
        self.completion.listen(listener, token);
    }
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("done", &self.is_done()).finish_non_exhaustive()
    }
}
