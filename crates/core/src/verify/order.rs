//! The order of sums.

use crate::choice::choices;

choices! {
    "an order of additions":
    /// The order that determines the shape of a schedule's sums.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Order {
        /// The group's canonical tree: every algorithm of this order gives the same bits. Collectives that do not fold
        /// are of this order too.
        Fixed => "fixed",
        /// The schedule: the same schedule gives the same bits, another need not.
        Schedule => "schedule",
    }
}
