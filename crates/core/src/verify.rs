//! Proving that a schedule is a collective, without data.
//!
//! [`verify`] runs all programs at once on **terms** instead of numbers. It proves, for every buffer size:
//!
//! * **No deadlock, however the buffer is cut into segments.** A segment is an instance of the whole schedule on a
//!   slice of every chunk. The run joins each send with each of its receives into one event, as if no lane could hold
//!   anything. It keeps a rank's program order only between steps that conflict, or that share a lane and a direction.
//!   If it completes, those dependencies have no cycle. Then an executor completes too, if it runs every segment of
//!   every step as soon as the dependencies allow, whatever number of messages (at least one) its lanes hold. Each
//!   receiver of a send has its own lane in this run: an executor must not delay one receiver's part of a send for
//!   another's. A fold can take several messages of one lane; then that lane has to hold as many. (Proving the programs
//!   in serial order instead would prove nothing about segments; see the tests.)
//! * **The right result**: the result of [`Collective::result`], with each input exactly once, finished exactly once
//!   and last. If the collective promises a result to several workers, they hold the same term, hence the same bits.
//! * **Nothing undefined**: no place is read before it is written, no message is left over, no form is mistaken.
//! * **An end for reducers**: each hears of all that send to it when they are done, because it sends something to each of them.
//!   It exchanges messages with workers only.
//!
//! The proof is a type: everything that runs a schedule takes a [`Verified`] one.

mod conflicts;
mod error;
mod flaw;
mod graph;
mod lists;
mod lower;
mod matching;
mod ops;
mod orbits;
mod order;
mod proven;
mod rounds;
mod run;
mod served;
mod shifts;
mod symbols;
mod symmetric;
pub(crate) mod terms;

pub use error::{ResultFault, StepFault, Stuck, VerifyError};
pub use order::Order;
pub use proven::Proof;

use crate::{algorithm::cost::Cost, collective::Collective, group::Group, schedule::Schedule};
use core::ops::Deref;
use graph::Graph;
use lower::Lowering;
use matching::match_messages;
use proven::Proven;
use symbols::{Results, Symbols};
use terms::Terms;

/// A schedule that [`verify`] proved: the only kind that anything runs. Dereferences to the [`Schedule`].
#[derive(Debug)]
pub struct Verified {
    schedule: Schedule,
    collective: Collective,
    group: Group,
    proven: Proven,
    proof: Proof,
}

impl Verified {
    /// The schedule.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// The collective of the schedule.
    pub fn collective(&self) -> Collective {
        self.collective
    }

    /// Its group, as the [collective has it](Collective::group).
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// The order of its sums.
    pub fn order(&self) -> Order {
        self.proven.order
    }

    /// How it was proven; nothing else depends on that.
    pub fn proof(&self) -> Proof {
        self.proof
    }

    /// Whether every rank can also run its steps strictly in program order, uncut, with lanes that hold one message
    /// each. A send, to all its receivers at once, then waits until each of them has taken the message before.
    ///
    /// The proof of the joined graph does not imply this, nor the other way round.
    pub fn serial(&self) -> bool {
        self.proven.serial
    }

    /// Whether the workers can start again at any time from the data that they hold, after a reducer is lost. An input
    /// is overwritten only by the result, and a worker's sent slots keep their data.
    ///
    /// The proof is by a conservative rule. No worker writes a chunk of its user's buffer twice, so its only write
    /// is the result. And no worker writes a slot that an earlier step of its program sends.
    pub fn restartable(&self) -> bool {
        self.proven.restartable
    }

    /// Its cost.
    pub fn cost(&self) -> Cost {
        self.proven.cost
    }
}

impl Deref for Verified {
    type Target = Schedule;

    fn deref(&self) -> &Schedule {
        &self.schedule
    }
}

/// Proves that `schedule` is `collective` over `group`; the [module](self) explains the meaning.
///
/// Takes time and memory in proportion to the number of steps, messages and sources of all ranks together, and asks the
/// schedule for each rank's program once. If [all ranks are alike](Schedule::symmetry), both are in proportion to one
/// rank's.
///
/// ```
/// use herringbone_core::{collective::Collective, group::Group, schedule::Schedule, verify::{Order, verify}};
///
/// let swap = Schedule::parse(
///     "schedule workers=2 reducers=0 cut=even:1
///      rank 0
///        slots plain
///        send u0 -> 1
///        recv c0 s0 <- 1
///        finish c0 u0 = u0 s0+
///      rank 1
///        slots plain
///        send u0 -> 0
///        recv c0 s0 <- 0
///        finish c0 u0 = u0 s0+",
/// )?;
/// let proved = verify(swap, Collective::AllReduce, &Group::of_size(2))?;
/// assert_eq!(proved.order(), Order::Fixed);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The first error that is found. If there are several, another one might be the first in another version.
pub fn verify(schedule: Schedule, collective: Collective, group: &Group) -> Result<Verified, VerifyError> {
    let group = &*collective.group(group).ok_or(VerifyError::OneInputEach { collective })?;
    check_fit(&schedule, collective, group)?;
    let (proven, proof) = match symmetric::proven(&schedule, collective, group) {
        Some(proven) => (proven, Proof::Symmetry),
        None => (each_rank(&schedule, collective, group)?, Proof::EachRank),
    };
    Ok(Verified { schedule, collective, group: group.clone(), proven, proof })
}

/// [`verify`], rank by rank even if one could stand for all, for comparison with proofs by symmetry.
///
/// # Errors
/// As [`verify`].
pub fn verify_each_rank(
    schedule: Schedule,
    collective: Collective,
    group: &Group,
) -> Result<Verified, VerifyError> {
    let group = &*collective.group(group).ok_or(VerifyError::OneInputEach { collective })?;
    check_fit(&schedule, collective, group)?;
    let proven = each_rank(&schedule, collective, group)?;
    Ok(Verified { schedule, collective, group: group.clone(), proven, proof: Proof::EachRank })
}

fn each_rank(schedule: &Schedule, collective: Collective, group: &Group) -> Result<Proven, VerifyError> {
    let lowering = Lowering::new(schedule, schedule.workers(), collective, group)?;
    let (mut graph, count) = lowering.of(schedule, 0..schedule.ranks(), 1)?;
    match_messages(&mut graph)?;
    let results = run_on_symbols(&graph, collective, group)?;
    served::confirmed(&graph)?;
    if schedule.side_by_side() && results.order != Order::Fixed {
        let why = "the order of its sums is the schedule's own";
        return Err(VerifyError::SideBySide { collective, why });
    }
    Ok(Proven::of(&graph, &count, &results))
}

/// Runs all steps on symbols, over lanes that hold nothing.
fn run_on_symbols(graph: &Graph, collective: Collective, group: &Group) -> Result<Results, VerifyError> {
    let mut symbols = Symbols::new(graph, collective, group, Terms::new(group.inputs()), None);
    let step = |node| symbols.step(node).map_err(|fault| graph.fault(node, fault));
    run::joined(graph, step)?;
    symbols.results()
}

fn check_fit(schedule: &Schedule, collective: Collective, group: &Group) -> Result<(), VerifyError> {
    let workers = schedule.workers();
    if workers != group.size() {
        return Err(VerifyError::Members { schedule: workers, group: group.size() });
    }
    if collective.root().is_some_and(|root| root >= workers) {
        return Err(VerifyError::Root { collective, workers });
    }
    if !collective.accepts(schedule.cut(), workers) {
        return Err(VerifyError::Cut { collective, cut: schedule.cut().clone(), workers });
    }
    if schedule.side_by_side() {
        let faults = [
            (collective != Collective::AllReduce, "only an all_reduce can choose where its chunks lie"),
            (schedule.cut().is_coded(), "they are coded each by itself"),
            (schedule.reducers() > 0, "reducers that are lost leave whole chunks to others"),
        ];
        if let Some((_, why)) = faults.into_iter().find(|(is_so, _)| *is_so) {
            return Err(VerifyError::SideBySide { collective, why });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
