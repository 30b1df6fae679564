//! The results of a simulated training.

use herringbone::core::{codec::Codec, simulate::Picoseconds};

/// The time of a step by one way, with this many workers.
#[derive(Clone, Debug)]
pub(super) struct StepRow {
    /// The way's name.
    pub(super) algorithm: String,
    /// What a job chooses for each bucket, where the way is its choice.
    pub(super) chosen: Vec<String>,
    pub(super) codec: Codec,
    pub(super) workers: u32,
    pub(super) reducers: u32,
    /// The sums one after the other, with nothing else running.
    pub(super) communication: Picoseconds,
    pub(super) exposed: Picoseconds,
    pub(super) step: Picoseconds,
    /// Some of its sums were counted, and not simulated.
    pub(super) has_prices: bool,
}

impl StepRow {
    /// The way's name, with the algorithms that a job chooses.
    pub(super) fn title(&self) -> String {
        let mut chosen: Vec<&str> = self.chosen.iter().map(String::as_str).collect();
        chosen.sort_unstable();
        chosen.dedup();
        match chosen[..] {
            [] => self.algorithm.clone(),
            _ => format!("{}: {}", self.algorithm, chosen.join(", ")),
        }
    }
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
