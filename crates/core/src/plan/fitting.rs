//! Constants of machines from times that were measured on them.
//!
//! The method is a coordinate descent. It makes one constant after the other larger or smaller, in ever finer steps,
//! and keeps each change that brings the predictions nearer to the times. It uses whole numbers only.

use super::{Request, predicted};
use crate::{
    algorithm::{Algorithm, Layout, Unsupported},
    prepare::Sizing,
    simulate::{CALIBRATION_NUMBERS, Calibration, Picoseconds, Workload, estimate},
    verify::{Verified, verify},
};
use alloc::vec::Vec;

/// The most messages of a simulation while constants are fitted.
const MOST_MESSAGES: u64 = 100_000;
/// By how many thousandths a constant changes, round by round.
const STEPS: [u64; 9] = [600, 400, 300, 200, 150, 100, 70, 50, 30];
/// How many steps a constant goes in a round at most.
const STRIDES: u32 = 10;
/// A constant stays within so many times what it was before.
const FARTHEST: u64 = 20;
/// How many times as much a prediction counts as a constant that is as far from what was known.
const WEIGHT: u64 = 200;

/// A call that was timed.
#[derive(Clone, Debug)]
pub struct TimedCall<'a> {
    /// The request of the call.
    pub request: Request<'a>,
    /// The algorithm that it took.
    pub algorithm: Algorithm,
    /// The time of a call.
    pub measured: Picoseconds,
}

/// Constants, and how near they come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fitted {
    /// The constants.
    pub calibration: Calibration,
    /// The predicted time of each call.
    pub predicted: Vec<Picoseconds>,
}

/// Constants that are tried, the nearer ones first in order.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Fit {
    /// How far predictions and constants are from what is known.
    distance: u64,
    numbers: [u64; CALIBRATION_NUMBERS],
}

/// A call with its schedule.
struct Proved<'a, 'b> {
    timed: &'b TimedCall<'a>,
    verified: Verified,
    reducers: u32,
}

/// Fits constants to times, beginning with `start`; `shown` hears of each round, of [`FIT_ROUNDS`].
///
/// With `knows_ports` the rates of ports stay as they are, and how much of them is payload is fitted in their place.
///
/// # Errors
/// [`Unsupported`] if an algorithm cannot do a request.
pub fn fit(
    timed: &[TimedCall<'_>],
    sizing: Sizing,
    start: Calibration,
    knows_ports: bool,
    mut shown: impl FnMut(),
) -> Result<Fitted, Unsupported> {
    let proved: Vec<Proved<'_, '_>> = timed.iter().map(proved).collect::<Result<_, _>>()?;
    let cost = |numbers: &[u64; CALIBRATION_NUMBERS], most: u64| {
        let known = Calibration::of_numbers(numbers);
        let mut sum = 0;
        for call in &proved {
            sum += distance(call.predicted(&known, sizing), call.timed.measured);
            if sum >= most {
                break;
            }
        }
        sum + deviation(numbers, &start.numbers())
    };
    let starts = starts(start.numbers());
    let mut best = Fit { distance: u64::MAX, numbers: start.numbers() };
    for (at, first) in starts.into_iter().enumerate() {
        // One that is far behind after half of the rounds will not be the best.
        let mut fit = Fit { distance: cost(&first, u64::MAX), numbers: first };
        for (round, step) in STEPS.into_iter().enumerate() {
            if at == 0 || round < STEPS.len() / 2 || fit.distance < 2 * best.distance {
                descend(&mut fit, &first, step, knows_ports, &cost);
            }
            shown();
        }
        best = best.min(fit);
    }
    let calibration = Calibration::of_numbers(&best.numbers);
    let predicted = proved.iter().map(|call| call.predicted(&calibration, sizing)).collect();
    Ok(Fitted { calibration, predicted })
}

/// How often [`fit`] reports progress.
pub const FIT_ROUNDS: usize = STARTS * STEPS.len();

/// From how many constants [`fit`] sets out: a descent ends where no single step helps, which may be far from the best.
const STARTS: usize = 3;

/// Where descents begin: as known, with slow bytes, and with slow messages.
fn starts(known: [u64; CALIBRATION_NUMBERS]) -> [[u64; CALIBRATION_NUMBERS]; STARTS] {
    let [mut slow_bytes, mut slow_messages] = [known; 2];
    for (times, at) in Calibration::TOLLS_OF_LINKS {
        slow_bytes[at] = if times { known[at] } else { known[at] / 4 };
        slow_messages[at] = if times { known[at].saturating_mul(4) } else { known[at] };
    }
    [known, slow_bytes, slow_messages]
}

/// A round: each constant goes as many steps as bring the predictions nearer.
fn descend(
    best: &mut Fit,
    first: &[u64; CALIBRATION_NUMBERS],
    step: u64,
    knows_ports: bool,
    cost: &impl Fn(&[u64; CALIBRATION_NUMBERS], u64) -> u64,
) {
    for name in Calibration::fitted(knows_ports) {
        for up in [true, false] {
            let before = best.distance;
            for _ in 0..STRIDES {
                let mut numbers = best.numbers;
                for at in name.iter().copied() {
                    let (least, most) = Calibration::plausible(at, first[at], FARTHEST);
                    numbers[at] = changed(numbers[at], Calibration::step(at, step), up).clamp(least, most);
                }
                let distance = cost(&numbers, best.distance);
                if distance >= best.distance {
                    break;
                }
                *best = Fit { distance, numbers };
            }
            if best.distance < before {
                break;
            }
        }
    }
}

fn proved<'a, 'b>(timed: &'b TimedCall<'a>) -> Result<Proved<'a, 'b>, Unsupported> {
    let Request { collective, group, hosts, links, .. } = timed.request;
    let reducers = if timed.algorithm.needs_reducers() { timed.request.reducers } else { 0 };
    let schedule = timed.algorithm.schedule(collective, group, &Layout { reducers, hosts, links })?;
    let verified = verify(schedule, collective, group).expect("algorithms make schedules that are right");
    Ok(Proved { timed, verified, reducers })
}

impl Proved<'_, '_> {
    fn predicted(&self, known: &Calibration, sizing: Sizing) -> Picoseconds {
        let request = &self.timed.request;
        let machine = predicted::machine(request, known, self.reducers);
        let call = predicted::call(request, request.bytes);
        let work = Workload::of_one(&self.verified, call, sizing);
        // Constants by which a call would never end are as far off as any can be.
        estimate(MOST_MESSAGES, &work, &machine).map_or(Picoseconds::MAX, |outcome| outcome.total())
    }
}

/// How much a prediction counts: the thousandths that it is off, of the larger of the two. Not their square, because a single
/// call that something else held up must not bend all constants.
fn distance(predicted: Picoseconds, measured: Picoseconds) -> u64 {
    WEIGHT * excess(predicted.max(1), measured.max(1))
}

/// How far constants are from what was known, so that those which the times do not tell stay as they are.
fn deviation(numbers: &[u64; CALIBRATION_NUMBERS], known: &[u64; CALIBRATION_NUMBERS]) -> u64 {
    let changed = numbers.iter().zip(known).filter(|(_, known)| **known > 0);
    changed.map(|(number, known)| excess((*number).max(1), *known)).sum()
}

/// By how many thousandths the larger exceeds the smaller.
fn excess(one: u64, other: u64) -> u64 {
    let per_mille = u128::from(one.max(other)) * 1000 / u128::from(one.min(other));
    u64::try_from(per_mille - 1000).unwrap_or(u64::MAX).min(1_000_000)
}

/// A constant that is a step larger or smaller.
fn changed(number: u64, step: u64, up: bool) -> u64 {
    let whole = u128::from(number);
    let other =
        if up { whole * u128::from(1000 + step) / 1000 } else { whole * 1000 / u128::from(1000 + step) };
    u64::try_from(other).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{codec::Codec, collective::Collective, group::Group};

    /// Times that some constants predict lead back to constants that predict other times as well.
    #[test]
    fn fitted_constants_predict_what_they_have_not_seen() {
        let mut truth = Calibration { port: 62_500_000, latency: 200_000_000, ..Calibration::DEFAULT };
        (truth.costs.send.each, truth.costs.receive.each, truth.costs.wake) =
            (30_000_000, 40_000_000, 90_000_000);
        let group = Group::of_size(4);
        let hosts = [0, 1, 2, 3];
        let sizing = Sizing { hosts: 4, shared: false, segment_bytes: 0, most_staged: Workload::STAGED };
        let request = |bytes| Request {
            collective: Collective::AllReduce,
            bytes,
            widening: 1,
            group: &group,
            reducers: 0,
            hosts: &hosts,
            forced: None,
            codec: Codec::Plain,
            links: None,
            ports: None,
        };
        let measured = |algorithm: &str, bytes, known: &Calibration| {
            let algorithm: Algorithm = algorithm.parse().unwrap();
            let timed = TimedCall { request: request(bytes), algorithm, measured: 0 };
            let measured = super::proved(&timed).unwrap().predicted(known, sizing);
            TimedCall { measured, ..timed }
        };
        let seen = [("radix", 4 << 10), ("radix", 1 << 20), ("doubling", 256 << 10), ("ring", 8 << 20)];
        let timed = seen.map(|(algorithm, bytes)| measured(algorithm, bytes, &truth));
        let mut rounds = 0;
        let fitted = fit(&timed, sizing, Calibration::DEFAULT, false, || rounds += 1).unwrap();
        assert_eq!(rounds, FIT_ROUNDS);
        for (algorithm, bytes) in
            [("radix", 3 << 20), ("ring", 1 << 20), ("doubling", 2 << 20), ("radix(2,2)", 64 << 10)]
        {
            let [before, now, wanted] = [&Calibration::DEFAULT, &fitted.calibration, &truth]
                .map(|known| measured(algorithm, bytes, known).measured as f64);
            assert!((0.9..1.1).contains(&(now / wanted)), "{algorithm} {bytes}: {now} for {wanted}");
            assert!(!(0.7..1.4).contains(&(before / wanted)), "{algorithm} {bytes}: known before");
        }
    }
}
