//! The choice by predicted times, if constants of the machines are known.
//!
//! Every candidate has a [price](super::price()); the lowest one is chosen, and the first of equal ones. Prices are
//! whole numbers that are the same on all machines, so all ranks with the same constants choose alike. If messages are
//! coded, or links that are no ports are known, candidates are simulated instead, as in comparisons for people.
//!
//! Sizes are rounded down to classes, four from each power of two to the next, so that calls of many sizes cost few
//! choices.

pub use super::candidates::{candidates, machine};
use super::{
    Choice, Request,
    choose::choose,
    price::{self, PriceBasis, Priced},
    size::ByteCount,
};
use crate::{
    algorithm::{Algorithm, Layout, Unsupported, cost::Cost},
    codec::Codec,
    collective::Collective,
    element::{DType, ReduceOp},
    prepare::{Call, Sizing, TooManySegments},
    simulate::{
        Calibration, MessageCount, Picoseconds, Prediction, Stalled, Untimed, Workload, estimate,
        message_count,
    },
    verify::{Verified, VerifyError, verify},
};
use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::cmp::Reverse;

/// The most messages of a simulation for a choice.
const MOST_MESSAGES: u64 = 8_000;
/// The most messages that a simulation of a candidate has to go through, one by one, to be compared: more take many seconds.
const MOST_IN_COMPARISON: u64 = 500_000;
/// Of a hundred parts of the table's choice's price, what another one may cost where rates are guessed.
const WORTH_PERCENT: u128 = 90;

/// A way that could be taken.
#[derive(Debug)]
pub struct Candidate {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Its schedule, proved.
    pub verified: Verified,
    /// The result of the simulation.
    pub outcome: Prediction,
}

/// Why a way has no predicted time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unpriced {
    /// The algorithm has no schedule for the request.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// No operation is as long as the request.
    #[error(transparent)]
    TooManySegments(#[from] TooManySegments),
    /// It needs a link that the workers do not have, or ports and links are too slow for any use.
    #[error("{algorithm} has no predicted time, because {untimed}")]
    Unusable {
        /// The algorithm's name.
        algorithm: String,
        /// Why.
        untimed: Untimed,
    },
    /// Its schedule is too large to prove, and so no job can run it.
    #[error("{algorithm} is not compared: {error}")]
    TooLarge {
        /// The algorithm's name.
        algorithm: String,
        /// The part that is too large.
        error: VerifyError,
    },
    /// So many ranks do different things that its simulation would take many seconds.
    #[error("{algorithm} is not compared, because {messages} messages would have to be simulated one by one")]
    TooManyMessages {
        /// The algorithm's name.
        algorithm: String,
        /// How many at least.
        messages: u64,
    },
    /// Its simulation stands still, which is a fault of this library.
    #[error("{algorithm} has no predicted time, because {stalled}; this is a bug, please report it")]
    Stalled {
        /// The algorithm's name.
        algorithm: String,
        /// The state of each member.
        stalled: Stalled,
    },
}

impl Candidate {
    /// The cost of its schedule, in chunks.
    pub fn cost(&self) -> Cost {
        self.verified.cost()
    }
}

/// The smallest size of the class of `bytes`. All sizes from there to the next class are simulated as this one.
pub fn class_of(bytes: u64) -> u64 {
    match bytes.checked_ilog2() {
        None | Some(0 | 1) => bytes,
        Some(power) => {
            let quarter = 1 << (power - 2);
            bytes / quarter * quarter
        }
    }
}

/// How a call of a request's size looks to executors.
pub(super) fn call(request: &Request<'_>, bytes: u64) -> Call {
    let parts = request.collective.given(request.group.size()).map_or(1, |_| u64::from(request.group.size()));
    // Types count by the widths of elements and partial sums alone.
    let (dtype, op) = match request.widening {
        2 => (DType::Bf16, ReduceOp::Sum),
        _ => (DType::F32, ReduceOp::Sum),
    };
    let count = bytes.div_ceil(dtype.bytes() as u64 * parts);
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    Call { codec: request.codec, ..Call::new(request.collective, dtype, op, count) }
}

fn workload<'a>(request: &Request<'_>, verified: &'a Verified, sizing: Sizing) -> Workload<'a> {
    let call = call(request, request.bytes);
    Workload::of_one(verified, call, sizing)
}

/// How many messages the choice for a size goes through, at most.
pub fn planned_messages(request: &Request<'_>, known: &Calibration, sizing: Sizing) -> u64 {
    let messages = |candidate: &Candidate| {
        let machine = machine(request, known, candidate.verified.schedule().reducers());
        let work = workload(request, &candidate.verified, sizing);
        // Half of an estimate's part comes twice. What is too long has not been gone through.
        message_count(MOST_MESSAGES, &work, &machine).map_or(0, |MessageCount { whole, least }| {
            whole.min(least.max(MOST_MESSAGES + MOST_MESSAGES / 2))
        })
    };
    leading(request, known, sizing).iter().map(messages).sum()
}

/// Makes, proves and simulates an algorithm for a request.
///
/// # Errors
/// [`Unpriced`] if it has no schedule for the request, which might be too long, or its simulation never ends.
pub fn priced(
    request: &Request<'_>,
    algorithm: &Algorithm,
    known: &Calibration,
    sizing: Sizing,
) -> Result<Candidate, Unpriced> {
    priced_within(MessageBudget { usual: MOST_MESSAGES, most: u64::MAX }, request, algorithm, known, sizing)
}

/// Simulates a schedule of `algorithm` that is proved for a request, as [`priced`] does, for callers that ask about
/// many sizes. At most `most_messages` messages are simulated one by one.
///
/// # Errors
/// [`Unpriced`] if the request is too long, its simulation never ends, or it has more messages.
pub fn predicted(
    most_messages: u64,
    request: &Request<'_>,
    algorithm: &Algorithm,
    verified: &Verified,
    basis: PriceBasis<'_>,
) -> Result<Prediction, Unpriced> {
    let budget = MessageBudget { usual: MOST_MESSAGES, most: most_messages };
    predicted_within(budget, request, algorithm, verified, basis)
}

/// How many messages a simulation goes through.
#[derive(Clone, Copy)]
struct MessageBudget {
    /// At most, if an estimate makes do with so many.
    usual: u64,
    /// In any case: of more there is no estimate.
    most: u64,
}

fn priced_within(
    budget: MessageBudget,
    request: &Request<'_>,
    algorithm: &Algorithm,
    known: &Calibration,
    sizing: Sizing,
) -> Result<Candidate, Unpriced> {
    let Request { collective, group, hosts, links, .. } = *request;
    let reducers = if algorithm.needs_reducers() { request.reducers } else { 0 };
    let schedule = algorithm.schedule(collective, group, &Layout { reducers, hosts, links })?;
    let verified = match verify(schedule, collective, group) {
        Ok(verified) => verified,
        Err(error @ VerifyError::TooLarge { .. }) => {
            return Err(Unpriced::TooLarge { algorithm: algorithm.to_string(), error });
        }
        Err(error) => unreachable!("algorithms make schedules that are right: {error}"),
    };
    let outcome = predicted_within(budget, request, algorithm, &verified, PriceBasis { known, sizing })?;
    Ok(Candidate { algorithm: algorithm.clone(), verified, outcome })
}

fn predicted_within(
    budget: MessageBudget,
    request: &Request<'_>,
    algorithm: &Algorithm,
    verified: &Verified,
    PriceBasis { known, sizing }: PriceBasis<'_>,
) -> Result<Prediction, Unpriced> {
    let machine = machine(request, known, verified.schedule().reducers());
    let work = workload(request, verified, sizing);
    if budget.most < u64::MAX {
        let MessageCount { least: messages, .. } = message_count(budget.usual, &work, &machine)?;
        if messages > budget.most {
            return Err(Unpriced::TooManyMessages { algorithm: algorithm.to_string(), messages });
        }
    }
    estimate(budget.usual, &work, &machine).map_err(|untimed| match untimed {
        Untimed::TooManySegments(too_long) => Unpriced::TooManySegments(too_long),
        Untimed::Stalled(stalled) => Unpriced::Stalled { algorithm: algorithm.to_string(), stalled },
        untimed => Unpriced::Unusable { algorithm: algorithm.to_string(), untimed },
    })
}

/// The candidates of a request by predicted time, of which only those that may be the first are simulated thoroughly. The others
/// have times that are right but for ranks that drift apart, which takes longer. A way that never ends is none: a job takes another.
fn leading(request: &Request<'_>, known: &Calibration, sizing: Sizing) -> Vec<Candidate> {
    let roughly = |(place, algorithm): (usize, &Algorithm)| {
        let budget = MessageBudget { usual: 0, most: u64::MAX };
        Some((place, priced_within(budget, request, algorithm, known, sizing).ok()?))
    };
    // The last comes first: the least time, and of those that take as long the first candidate.
    let order = |(place, candidate): &(usize, Candidate)| Reverse((candidate.outcome.total(), *place));
    let mut waiting: Vec<_> = candidates(request).iter().enumerate().filter_map(roughly).collect();
    waiting.sort_by_key(order);
    let (mut done, mut least) = (Vec::with_capacity(waiting.len()), u64::MAX);
    while let Some((place, next)) = waiting.pop_if(|(_, next)| next.outcome.total() <= least) {
        let reducers = next.verified.schedule().reducers();
        let work = workload(request, &next.verified, sizing);
        let Ok(outcome) = estimate(MOST_MESSAGES, &work, &machine(request, known, reducers)) else {
            continue;
        };
        least = least.min(outcome.total());
        done.push((place, Candidate { outcome, ..next }));
    }
    done.extend(waiting);
    done.sort_by_key(order);
    done.into_iter().rev().map(|(_, candidate)| candidate).collect()
}

/// The candidates of a request.
#[derive(Debug)]
pub struct Comparison {
    /// The candidates that can do it, by predicted time.
    pub by_time: Vec<Candidate>,
    /// Why others have no predicted time.
    pub left_out: Vec<Unpriced>,
}

/// All candidates of a request, by predicted time.
///
/// # Errors
/// [`Unpriced::Stalled`] for the first one whose simulation never ends.
pub fn compared(request: &Request<'_>, known: &Calibration, sizing: Sizing) -> Result<Comparison, Unpriced> {
    let (mut by_time, mut left_out) = (Vec::new(), Vec::new());
    let budget = MessageBudget { usual: MOST_MESSAGES, most: MOST_IN_COMPARISON };
    for algorithm in candidates(request) {
        match priced_within(budget, request, &algorithm, known, sizing) {
            Ok(candidate) => by_time.push(candidate),
            Err(stalled @ Unpriced::Stalled { .. }) => return Err(stalled),
            Err(why) => left_out.push(why),
        }
    }
    by_time.sort_by_key(|candidate| candidate.outcome.total());
    Ok(Comparison { by_time, left_out })
}

/// Chooses by [price](super::price()), or by simulated time if nothing has a price.
///
/// # Errors
/// As [`choose`], if no candidate can do it.
pub fn choose_by_time(
    request: &Request<'_>,
    known: &Calibration,
    sizing: Sizing,
) -> Result<Choice, Unsupported> {
    if !is_timed(request) {
        return choose(request);
    }
    let of_class = Request { bytes: class_of(request.bytes), ..*request };
    let prices = price::prices(&of_class, PriceBasis { known, sizing });
    if let Some(best) = prices.first() {
        return Ok(Choice { algorithm: best.algorithm.clone(), why: why(request, &prices) });
    }
    let compared = leading(&of_class, known, sizing);
    let times: Vec<Priced> = compared.iter().map(Priced::of).collect();
    let Some(best) = times.first() else { return choose(request) };
    Ok(Choice { algorithm: best.algorithm.clone(), why: why(request, &times) })
}

/// Chooses if only the latency between hosts is known. Rates are guessed, so an algorithm replaces the table's choice
/// only if it costs at least a tenth less.
///
/// # Errors
/// As [`choose`].
pub fn choose_by_latency(
    request: &Request<'_>,
    latency: Picoseconds,
    sizing: Sizing,
) -> Result<Choice, Unsupported> {
    let choice = choose(request)?;
    if !is_timed(request) {
        return Ok(choice);
    }
    let of_class = Request { bytes: class_of(request.bytes), ..*request };
    let known = Calibration::of_latency(latency);
    let prices = price::prices(&of_class, PriceBasis { known: &known, sizing });
    let own = prices.iter().find(|priced| priced.algorithm == choice.algorithm);
    let (Some(best), Some(own)) = (prices.first(), own) else { return Ok(choice) };
    if u128::from(best.time) * 100 > u128::from(own.time) * WORTH_PERCENT {
        return Ok(choice);
    }
    let why = format!(
        "messages between hosts take {}: {} predicted, {} with {}",
        shown_time(latency),
        shown_time(best.time),
        shown_time(own.time),
        own.algorithm
    );
    Ok(Choice { algorithm: best.algorithm.clone(), why })
}

/// The candidate of the least predicted time, or the forced one; none where it cannot do the call.
pub(super) fn best(request: &Request<'_>, known: &Calibration, sizing: Sizing) -> Option<Candidate> {
    match request.forced.filter(|_| request.codec == Codec::Plain) {
        Some(forced) => priced(request, forced, known, sizing).ok(),
        None => leading(request, known, sizing).into_iter().next(),
    }
}

/// Calls without data, and forced ones, are not timed.
fn is_timed(request: &Request<'_>) -> bool {
    let counts = matches!(
        request.collective,
        Collective::AllReduce | Collective::ReduceScatter | Collective::AllGather
    );
    counts && request.forced.is_none() && request.group.size() > 1
}

impl Priced {
    fn of(candidate: &Candidate) -> Self {
        Self { algorithm: candidate.algorithm.clone(), time: candidate.outcome.total() }
    }
}

fn why(request: &Request<'_>, compared: &[Priced]) -> String {
    let best = &compared[0];
    let next = compared
        .get(1)
        .map_or(String::new(), |next| format!(", {} would take {}", next.algorithm, shown_time(next.time)));
    let class = class_of(request.bytes);
    let of = if class == request.bytes { String::new() } else { format!(" (for {})", ByteCount(class)) };
    format!("least predicted time of {}: {}{next}{of}", compared.len(), shown_time(best.time))
}

/// A time in a unit that people read.
pub(super) fn shown(candidate: &Candidate) -> String {
    shown_time(candidate.outcome.total())
}

pub(super) fn shown_time(time: Picoseconds) -> String {
    let microseconds = time / 1_000_000;
    let thousandths = time / 1_000 % 1_000;
    match microseconds {
        0..1_000 => format!("{microseconds}.{} us", thousandths / 100),
        1_000..1_000_000 => format!("{}.{:02} ms", microseconds / 1_000, microseconds % 1_000 / 10),
        _ => format!("{}.{:02} s", microseconds / 1_000_000, microseconds % 1_000_000 / 10_000),
    }
}
