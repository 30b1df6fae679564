//! Steps of a training on machines of a figure, and the one constant that is fitted to a baseline.

use super::simulated::{self, MOST_MESSAGES, Took, unusable};
use crate::{
    failure::Failure,
    training::{SumCosts, SumWay, TrainedStep, WorkerMachines},
};
use herringbone::core::{
    codec::Codec,
    plan::Guidance,
    simulate::{Calibration, SECOND, Workload},
    topology::Wiring,
    training::{StepTimeline, timeline},
};

/// Two steps of a search that are as close as this are one.
const CLOSE: f64 = 1e-5;
/// More steps of a search than this find nothing.
const MOST_STEPS: usize = 40;

/// Workers that train, and how they sum.
pub(super) struct Training<'a> {
    pub(super) worker: &'a TrainedStep,
    pub(super) workers: u32,
    /// As `verify` names it, or `parameter_server`.
    pub(super) way: &'a str,
}

/// Machines with these constants and this many workers per host; reducers have their own hosts.
pub(super) fn machines(constants: Calibration, per_host: u32, reducers: Option<u32>) -> WorkerMachines {
    WorkerMachines {
        constants,
        wiring: Wiring::default(),
        per_host,
        reducers,
        sizing: simulated::sizing,
        most_messages: MOST_MESSAGES,
        guidance: Guidance::default(),
    }
}

impl Training<'_> {
    /// What a step takes; `costs` keeps the sums that were simulated.
    ///
    /// # Errors
    /// If there is no such training.
    pub(super) fn step(&self, costs: &mut SumCosts<'_>) -> Result<Took, Failure> {
        let TrainedStep { step, buckets, .. } = self.worker;
        let way = SumWay::parse(self.way).map_err(unusable)?;
        let found = costs.of(&way, Codec::Plain, self.workers, buckets)?.map_err(unusable)?;
        let mut each = found.buckets.iter().copied();
        let StepTimeline { total, .. } =
            timeline(step, buckets, Workload::AT_ONCE, |_| each.next().unwrap_or_default());
        Ok(Took { seconds: total as f64 / SECOND as f64, is_price: found.has_prices })
    }

    /// The same on machines that are asked once.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub(super) fn step_on(&self, machines: &WorkerMachines) -> Result<Took, Failure> {
        self.step(&mut SumCosts::new(machines))
    }
}

/// The `x` above 0 for which `found` is `target`, by the secant method from a guess; `found` grows nearly in proportion to x.
///
/// # Errors
/// If there is none; `what` names it.
pub(super) fn fitted(
    what: &str,
    target: f64,
    guess: f64,
    mut found: impl FnMut(f64) -> Result<f64, Failure>,
) -> Result<f64, Failure> {
    let (mut last, mut at_last) = (guess, found(guess)?);
    let mut next = guess * target / at_last;
    for _ in 0..MOST_STEPS {
        if (next - last).abs() <= CLOSE * last {
            return Ok(next);
        }
        let at_next = found(next)?;
        let slope = (at_next - at_last) / (next - last);
        (last, at_last) = (next, at_next);
        next = last + (target - at_last) / slope;
        if !(next.is_finite() && next > 0.0) {
            break;
        }
    }
    Err(unusable(format_args!("no {what} reaches the baseline")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fitted_constant_brings_the_baseline_about() {
        let found = |x: f64| Ok(0.2 + 3.0 * x + 0.1 * x.sqrt());
        let x = fitted("x", 2.5, 1.0, found).unwrap();
        assert!((found(x).unwrap() - 2.5).abs() < 1e-4, "{x}");
        let never = fitted("rate", 2.5, 1.0, |_| Ok(3.0)).unwrap_err().to_string();
        assert!(never.contains("no rate reaches the baseline"), "{never}");
    }
}
