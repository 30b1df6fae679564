//! What fixes the order of additions.

use core::fmt;

/// What fixes the shape of a schedule's sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// The group's canonical tree: every algorithm of this order gives the same bits. Collectives that do not fold
    /// are of this order too.
    Fixed,
    /// The schedule: the same schedule gives the same bits, another need not.
    Schedule,
}

impl Order {
    /// `fixed` or `schedule`.
    pub fn name(self) -> &'static str {
        match self {
            Order::Fixed => "fixed",
            Order::Schedule => "schedule",
        }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
