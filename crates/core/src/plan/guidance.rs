//! What a user says of the choice of algorithms.

use super::{
    Choice, PlanRules, Request,
    choose::{FORCED, choose},
    predicted,
};
use crate::{
    algorithm::{Algorithm, ParseAlgorithmError, Unsupported},
    collective::Collective,
    prepare::Sizing,
    session::{Parameters, TREE_BOUND},
    simulate::{Calibration, Picoseconds},
};
use alloc::{
    string::{String, ToString},
    vec::Vec,
};

/// What a user says of the choice of algorithms; the first that speaks of a call counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Guidance {
    /// Which algorithm for which sizes (`HERRINGBONE_PLAN`).
    pub rules: PlanRules,
    /// The algorithm for all all-reduces that no rule is for (`HERRINGBONE_ALGORITHM`).
    pub forced: Option<Algorithm>,
    /// Constants of the machines, by which times are predicted (`HERRINGBONE_CALIBRATION`); without them sizes decide.
    pub calibration: Option<Calibration>,
    /// How long a message takes from a host to another, as far as it was measured while the group formed; it counts where there is no
    /// calibration.
    pub latency: Option<Picoseconds>,
    /// Up to how many elements one tree carries the whole buffer (`HERRINGBONE_TREE_ARRAY_BOUND`), if not [`TREE_BOUND`].
    pub tree_bound: Option<u64>,
}

impl Guidance {
    /// What rank 0's parameters say.
    ///
    /// # Errors
    /// The name of a setting whose value this build cannot read, and why.
    pub fn of(parameters: &Parameters) -> Result<Self, (&'static str, String)> {
        let Parameters { algorithm, plan, calibration, tree_bound, .. } = parameters;
        let forced = algorithm.as_deref().map(str::parse).transpose();
        let rules =
            if plan.is_empty() { Ok(PlanRules::default()) } else { PlanRules::parse(&plan.join(",")) };
        let calibration = match calibration.as_slice() {
            [] => Ok(None),
            numbers => match numbers.try_into() {
                Ok(numbers) => Ok(Some(Calibration::of_numbers(numbers))),
                Err(_) => Err((
                    "HERRINGBONE_CALIBRATION",
                    "another number of constants than this build has".to_string(),
                )),
            },
        };
        Ok(Self {
            rules: rules.map_err(|error| ("HERRINGBONE_PLAN", error.to_string()))?,
            forced: forced
                .map_err(|error: ParseAlgorithmError| ("HERRINGBONE_ALGORITHM", error.to_string()))?,
            calibration: calibration?,
            latency: None,
            tree_bound: Some(*tree_bound),
        })
    }

    /// Its calibration's numbers, none if there is none.
    pub fn numbers(&self) -> Vec<u64> {
        self.calibration.map_or_else(Vec::new, |known| known.numbers().to_vec())
    }

    /// Whether times decide, by a calibration or by what was measured while the group formed.
    pub fn is_timed(&self) -> bool {
        self.calibration.is_some() || self.latency.is_some()
    }

    /// The constants by which times are predicted: the calibration's, those of the latency that was measured, or the built-in ones.
    pub fn constants(&self) -> Calibration {
        let of_latency = || self.latency.map(Calibration::of_latency);
        self.calibration.or_else(of_latency).unwrap_or_default()
    }

    /// The algorithm that a call of `count` elements has to take, if one is said.
    pub fn for_call(&self, collective: Collective, count: usize, bytes: u64) -> Option<Algorithm> {
        let forced = self.forced.as_ref().filter(|_| collective == Collective::AllReduce);
        let said = self.rules.algorithm(collective, bytes).or(forced)?;
        Some(said.plain().for_elements(count, self.tree_bound.unwrap_or(TREE_BOUND)))
    }

    /// Chooses for a request, in which `forced` is what [`for_call`](Self::for_call) says; times are predicted for calls that are
    /// cut by `sizing`.
    ///
    /// # Errors
    /// As [`choose`].
    pub fn choose(&self, request: &Request<'_>, sizing: Sizing) -> Result<Choice, Unsupported> {
        let is_ruled = request.forced.is_some()
            && self.rules.algorithm(request.collective, request.bytes) == request.forced;
        match (&self.calibration, self.latency) {
            (Some(known), _) if request.forced.is_none() => predicted::choose_by_time(request, known, sizing),
            (None, Some(latency)) if request.forced.is_none() => {
                predicted::choose_by_latency(request, latency, sizing)
            }
            _ => choose(request).map(|choice| match choice.why == FORCED && is_ruled {
                true => Choice { why: String::from("the plan says so"), ..choice },
                false => choice,
            }),
        }
    }
}
