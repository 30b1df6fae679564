//! A user's settings for the choice of algorithms.

use super::{
    Choice, PlanRules, Request,
    choose::{FORCED, choose},
    files, predicted,
};
use crate::{
    algorithm::{Algorithm, ParseAlgorithmError, Unsupported},
    collective::Collective,
    prepare::Sizing,
    session::{Parameters, PlanText, TREE_BOUND},
    simulate::{Calibration, Picoseconds},
};
use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};

/// A user's settings for the choice of algorithms. The first that matches a call wins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Guidance {
    /// Which algorithm for which sizes (`HERRINGBONE_PLAN`).
    pub rules: PlanRules,
    /// The algorithm for all all-reduces that no rule is for (`HERRINGBONE_ALGORITHM`).
    pub forced: Option<Algorithm>,
    /// Constants of the machines, by which times are predicted (`HERRINGBONE_CALIBRATION`); without them sizes decide.
    pub calibration: Option<Calibration>,
    /// How long a message takes from one host to another, if it was measured while the group formed. It is used if
    /// there is no calibration.
    pub latency: Option<Picoseconds>,
    /// Up to how many elements one tree carries the whole buffer (`HERRINGBONE_TREE_ARRAY_BOUND`), if not [`TREE_BOUND`].
    pub tree_bound: Option<u64>,
}

impl Guidance {
    /// The guidance in rank 0's parameters. This rank proves the schedules of files itself, and computes its own
    /// digests. If they differ from rank 0's, the ranks' first call of such a schedule reports it to all of them.
    ///
    /// # Errors
    /// The name of a setting whose value this build cannot read, and why.
    pub fn of(parameters: &Parameters) -> Result<Self, (&'static str, String)> {
        let Parameters { algorithm, plan, calibration, tree_bound, .. } = parameters;
        let forced = algorithm.as_deref().map(str::parse).transpose();
        let rules = rules_of(plan).map_err(|problem| ("HERRINGBONE_PLAN", problem))?;
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
            rules,
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

    /// Whether times decide, by a calibration or by a latency that was measured while the group formed.
    pub fn is_timed(&self) -> bool {
        self.calibration.is_some() || self.latency.is_some()
    }

    /// The constants that predict times: the calibration's, the constants of the measured latency, or the built-in
    /// ones.
    pub fn constants(&self) -> Calibration {
        let of_latency = || self.latency.map(Calibration::of_latency);
        self.calibration.or_else(of_latency).unwrap_or_default()
    }

    /// The algorithm that a call of `count` elements has to take, if the settings name one.
    pub fn for_call(&self, collective: Collective, count: usize, bytes: u64) -> Option<Algorithm> {
        let forced = self.forced.as_ref().filter(|_| collective == Collective::AllReduce);
        let said = self.rules.algorithm(collective, bytes).or(forced)?;
        Some(said.plain().for_elements(count, self.tree_bound.unwrap_or(TREE_BOUND)))
    }

    /// Chooses for a request, whose `forced` comes from [`for_call`](Self::for_call). Times are predicted for calls
    /// that are cut by `sizing`.
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
                true => Choice { why: String::from("a rule of the plan"), ..choice },
                false => choice,
            }),
        }
    }
}

/// The rules of a plan, and the schedules of the files that they name.
fn rules_of(plan: &PlanText) -> Result<PlanRules, String> {
    if plan.rules.is_empty() {
        return Ok(PlanRules::default());
    }
    let rules = PlanRules::parse(&plan.rules.join(",")).map_err(|error| error.to_string())?;
    let mut texts = plan.files.iter();
    rules.with_files(|file| {
        let path = file.path();
        let missing = || format!("{path}: rank 0 has sent no schedule; install one release everywhere");
        let text = texts.next().ok_or_else(missing)?;
        files::proved(file, &text.text).map_err(|problem| format!("{path}: {problem}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::FileText;

    const SWAP: &str = "schedule workers=2 reducers=0 cut=even:1
        rank 0
          slots plain
          send u0 -> 1
          recv c0 s0 <- 1
          finish c0 u0 = u0 s0+
        rank 1
          slots plain
          send u0 -> 0
          recv c0 s0 <- 0
          finish c0 u0 = u0 s0+";

    fn parameters(files: &[&str]) -> Parameters {
        let files = files.iter().map(|text| FileText { text: (*text).into(), digest: 0 }).collect();
        let plan = PlanText { rules: ["all_reduce:1K-inf:file=a".into()].into(), files };
        Parameters { plan, ..Parameters::default() }
    }

    #[test]
    fn each_rank_proves_the_schedules_that_rank_0_has_read() {
        let guidance = Guidance::of(&parameters(&[SWAP])).unwrap();
        assert_eq!(guidance.for_call(Collective::AllReduce, 0, 1023), None);
        let taken = guidance.for_call(Collective::AllReduce, 0, 1024).unwrap();
        let Algorithm::File(file) = taken else { panic!("{taken}") };
        assert!(file.known().is_some() && file.digest() != Some(0), "its own digest");
        let other = SWAP.replace("u0 s0+", "s0 u0+");
        let other = Guidance::of(&parameters(&[&other])).unwrap();
        assert_ne!(other.rules, guidance.rules, "another schedule has another digest");
        for (files, said) in [
            (&[][..], "a: rank 0 has sent no schedule"),
            (&[""], "a: line 1"),
            (&[&SWAP.replace("finish c0 u0 = u0 s0+", "copy u0 = s0")], "a: it is no all_reduce"),
        ] {
            let (setting, problem) = Guidance::of(&parameters(files)).unwrap_err();
            assert!(setting == "HERRINGBONE_PLAN" && problem.contains(said), "{problem}");
        }
    }
}
