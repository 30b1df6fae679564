//! A search for the parameters with which the most bytes are run per microsecond.

use core::time::Duration;

/// What is tuned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// How many bytes are fused into one operation at most.
    pub threshold: u64,
    /// The least time from one agreement to the next.
    pub cycle: Duration,
}
