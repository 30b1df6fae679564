//! Sums on the cores of workers that compute.

use super::bucket::BucketCost;
use crate::simulate::Picoseconds;

/// The cores of a computer on which workers compute and sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComputingCores {
    /// How many there are; 0 means 1.
    pub all: u32,
    /// Threads that compute on them, of all workers together.
    pub threads: u32,
}

impl ComputingCores {
    /// How many of them have nothing to compute.
    pub fn idle(self) -> u32 {
        self.all.max(1).saturating_sub(self.threads)
    }
}

/// The time of sums: slower than the clock as long as workers compute, since sums have only the cores that are idle then.
#[derive(Clone, Copy, Debug)]
pub(super) struct SumClock {
    /// Until when workers compute.
    computed: Picoseconds,
    /// What of `computed` sums have.
    within: Picoseconds,
}

impl SumClock {
    /// Of a step whose sums have these costs. The sum that needs most cores sets the pace of all.
    pub(super) fn of(computed: Picoseconds, cores: Option<ComputingCores>, costs: &[BucketCost]) -> Self {
        let Some(cores) = cores else { return Self { computed, within: computed } };
        let had = |cost: &BucketCost| {
            let has = u128::from(cores.idle()) * u128::from(cost.time);
            let part = (u128::from(computed) * has).checked_div(u128::from(cost.cores));
            part.map_or(computed, |part| part.min(computed.into()) as Picoseconds)
        };
        Self { computed, within: costs.iter().map(had).min().unwrap_or(computed) }
    }

    /// What time it is for sums.
    pub(super) fn of_sums(self, clock: Picoseconds) -> Picoseconds {
        match clock.checked_sub(self.computed) {
            Some(later) => self.within.saturating_add(later),
            None => scaled(clock, self.within, self.computed),
        }
    }

    /// What time it is, if it is so late for sums: the earliest.
    pub(super) fn of_all(self, sums: Picoseconds) -> Picoseconds {
        match sums.checked_sub(self.within) {
            Some(later) if later > 0 || self.within == 0 => self.computed.saturating_add(later),
            _ => scaled(sums, self.computed, self.within),
        }
    }
}

fn scaled(time: Picoseconds, by: Picoseconds, of: Picoseconds) -> Picoseconds {
    (u128::from(time) * u128::from(by)).div_ceil(u128::from(of)) as Picoseconds
}
