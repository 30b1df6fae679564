//! What a simulation of a training comes to.

use herringbone::core::{codec::Codec, simulate::Picoseconds};

/// What a step takes by one way, among so many workers.
#[derive(Clone, Debug)]
pub(super) struct StepRow {
    pub(super) algorithm: String,
    pub(super) codec: Codec,
    pub(super) workers: u32,
    pub(super) reducers: u32,
    /// The sums one after the other, without anything beside them.
    pub(super) communication: Picoseconds,
    pub(super) exposed: Picoseconds,
    pub(super) step: Picoseconds,
    /// Some of its sums were counted, and not simulated.
    pub(super) has_prices: bool,
}

/// A way that has no row for some numbers of workers.
#[derive(Clone, Debug)]
pub(super) struct WayLeftOut {
    pub(super) way: String,
    pub(super) workers: Vec<u32>,
    pub(super) why: String,
}

/// All that is shown.
#[derive(Clone, Debug)]
pub(super) struct SimulatedTraining {
    pub(super) rows: Vec<StepRow>,
    pub(super) left_out: Vec<WayLeftOut>,
    /// How many all-reduces were simulated, or counted.
    pub(super) simulations: usize,
}
