//! The ways to simulate: event by event, one rank for all, or a part that stands for the whole.

use super::{
    machine::{Picoseconds, Rig},
    mirror::{self, Mirror},
    outcome::{BusySpan, Prediction, Untimed, Used},
    workload::Workload,
    world::Simulator,
};
use crate::{
    execution::Execution,
    prepare::{Prepared, TooManySegments},
};
use alloc::{sync::Arc, vec::Vec};

/// The most messages that are simulated one by one where one rank can stand for all.
const MOST_MESSAGES: u64 = 500_000;
/// The most memory of the programs of ranks that are simulated each by itself, in bytes, and of what is counted of them.
const MOST_BYTES: u64 = 4 << 30;
/// As many chunks of all ranks together are too many where one rank can stand for all: each rank's program knows all chunks.
const MOST_CHUNKS: u64 = 1 << 24;
/// How many times as many where one rank stands for all only loosely.
const DRIFTING: u64 = 20;

/// Simulates `work` on `machine` and reports each span of work to `watch`.
///
/// # Errors
/// [`Untimed`] if an operation is too long or never ends.
///
/// # Panics
/// If the machine has fewer hosts' entries than the schedule has members.
pub fn simulate(
    work: &Workload<'_>,
    machine: &Rig,
    watch: &mut dyn FnMut(BusySpan),
) -> Result<Prediction, Untimed> {
    simulate_up_to(MOST_MESSAGES, work, machine, watch)
}

/// [`simulate`], with the most messages that are simulated one by one if one rank can stand for all.
///
/// # Errors
/// As [`simulate`].
///
/// # Panics
/// As [`simulate`].
pub fn simulate_up_to(
    most_messages: u64,
    work: &Workload<'_>,
    machine: &Rig,
    watch: &mut dyn FnMut(BusySpan),
) -> Result<Prediction, Untimed> {
    let ranks = work.verified.schedule().ranks();
    assert!(machine.hosts.len() >= ranks as usize, "each member has a host");
    let first = work.prepared(0, machine)?;
    if let Some(mirror) = representative(most_messages, work, machine, &first) {
        return counted(
            Simulator::new(work, machine, alloc::vec![Arc::new(first)], Some(mirror)).run(watch)?,
        );
    }
    let prepared = all_prepared(work, machine)?;
    check_links(&prepared, machine)?;
    counted(Simulator::new(work, machine, prepared, None).run(watch)?)
}

/// The programs of all ranks.
///
/// # Errors
/// [`Untimed::TooManyRanks`] before they take more memory than there is for them.
fn all_prepared(work: &Workload<'_>, machine: &Rig) -> Result<Vec<Arc<Prepared>>, Untimed> {
    let schedule = work.verified.schedule();
    let (ranks, mut programs) = (schedule.ranks(), schedule.programs());
    let check = |bytes: u64| match bytes > MOST_BYTES {
        true => Err(Untimed::TooManyRanks { ranks, bytes, most_bytes: MOST_BYTES }),
        false => Ok(()),
    };
    // Where one rank does more than all others, the last is one of these.
    let first_and_last = [work.prepared(0, machine)?, work.prepared(ranks - 1, machine)?];
    let least = first_and_last.iter().map(|prepared| bytes_of(work, prepared)).min().unwrap_or(0);
    check(least.saturating_mul(ranks.into()))?;
    let (mut bytes, mut all) = (0u64, Vec::with_capacity(ranks as usize));
    for rank in 0..ranks {
        let prepared = work.prepared_from(&programs(rank), rank, machine)?;
        bytes = bytes.saturating_add(bytes_of(work, &prepared));
        check(bytes)?;
        all.push(Arc::new(prepared));
    }
    Ok(all)
}

/// What a rank takes of a simulation's memory.
fn bytes_of(work: &Workload<'_>, prepared: &Prepared) -> u64 {
    let counted = Execution::counting_bytes(prepared).saturating_mul(work.operations.into());
    prepared.own_bytes().saturating_add(counted)
}

/// Refuses programs that send where the machines have no link.
fn check_links(prepared: &[Arc<Prepared>], machine: &Rig) -> Result<(), Untimed> {
    let lanes = (0..).zip(prepared).flat_map(|(from, prepared)| {
        prepared.lanes.iter().map(move |lane| (from, prepared.peers[lane.peer as usize].rank))
    });
    let mut missing = lanes.filter(|(from, to)| !machine.is_linked(*from, *to));
    missing.next().map_or(Ok(()), |(from, to)| Err(Untimed::NoLink { from, to }))
}

/// Refuses times that have come to their end.
fn counted(simulated: Prediction) -> Result<Prediction, Untimed> {
    if simulated.total() == Picoseconds::MAX { Err(Untimed::TooSlow) } else { Ok(simulated) }
}

/// The mirror of the rank that stands for all, if one can and there are so many messages, or chunks, that it has to.
fn representative(
    most_messages: u64,
    work: &Workload<'_>,
    machine: &Rig,
    first: &Prepared,
) -> Option<Mirror> {
    let ranks = u64::from(work.verified.schedule().ranks());
    let messages = messages_of_rank(work, first).saturating_mul(ranks);
    let is_large = |mirror: &Mirror| {
        let most = if mirror.drifts { most_messages.saturating_mul(DRIFTING) } else { most_messages };
        messages > most || ranks * u64::from(work.verified.schedule().cut().chunks()) > MOST_CHUNKS
    };
    mirror::of(work, machine, first).filter(is_large)
}

/// What a rank sends, as the first one does.
fn messages_of_rank(work: &Workload<'_>, first: &Prepared) -> u64 {
    messages_of_segment(work, first).saturating_mul(u64::from(first.segments))
}

fn messages_of_segment(work: &Workload<'_>, first: &Prepared) -> u64 {
    (first.lanes.len() as u64).max(1).saturating_mul(u64::from(work.operations))
}

/// What all ranks send in a segment.
fn messages_of_all(work: &Workload<'_>) -> u64 {
    work.verified.cost().messages.max(1).saturating_mul(u64::from(work.operations))
}

/// How many messages are simulated one by one. The simulation's own time is in proportion to this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageCount {
    /// The messages of [`simulate`].
    pub whole: u64,
    /// The fewest that [`estimate`] makes do with.
    pub least: u64,
}

/// How many messages a simulation simulates: the messages of all ranks, or of the one that stands for all.
/// `most_messages` is passed to the estimate.
///
/// # Errors
/// [`TooManySegments`] if an operation is that.
pub fn message_count(
    most_messages: u64,
    work: &Workload<'_>,
    machine: &Rig,
) -> Result<MessageCount, TooManySegments> {
    let first = work.prepared(0, machine)?;
    let all = work.verified.schedule().ranks();
    if work.parts.is_some() {
        let of_rank = |rank| Ok(messages_of_rank(work, &work.prepared(rank, machine)?));
        let whole = (0..all).map(of_rank).try_fold(0u64, |sum, more| Ok(sum.saturating_add(more?)))?;
        return Ok(MessageCount { whole, least: whole });
    }
    let whole = match representative(MOST_MESSAGES, work, machine, &first) {
        Some(_) => messages_of_rank(work, &first),
        None => messages_of_all(work).saturating_mul(u64::from(first.segments)),
    };
    let segments = u64::from(least_segments(&first).min(first.segments));
    // One part, and half of it once more.
    let segments = segments.saturating_add(segments / 2);
    let in_segment = estimated_in_segment(most_messages, work, machine, &first);
    Ok(MessageCount { whole, least: in_segment.saturating_mul(segments).min(whole) })
}

/// The messages of a segment that an estimate goes through: one rank's where it stands for all, even loosely where those of all
/// ranks would be far too many.
fn estimated_in_segment(most_messages: u64, work: &Workload<'_>, machine: &Rig, first: &Prepared) -> u64 {
    let alone = messages_of_segment(work, first);
    let all = messages_of_all(work);
    let is_far_too_much = all.saturating_mul(u64::from(least_segments(first))) / DRIFTING > most_messages;
    match mirror::of(work, machine, first) {
        Some(mirror) if !mirror.drifts || is_far_too_much => alone,
        _ => all,
    }
}

/// Enough segments that the window is full before the second half of them.
fn least_segments(first: &Prepared) -> u32 {
    2 * first.depth
}

/// [`simulate`] for callers that want only a time, and soon. If there would be more than `most_messages`, it simulates
/// two numbers of segments and extrapolates from them. Segments are assumed to follow each other at a constant rate.
///
/// # Errors
/// As [`simulate`].
///
/// # Panics
/// As [`simulate`].
pub fn estimate(most_messages: u64, work: &Workload<'_>, machine: &Rig) -> Result<Prediction, Untimed> {
    let run = |segments| {
        let work = Workload { segments, ..*work };
        simulate_up_to(most_messages, &work, machine, &mut |_| ())
    };
    // Parts that differ end at different times, so no part stands for the whole.
    if work.parts.is_some() {
        return run(0);
    }
    let first = work.prepared(0, machine)?;
    let in_segment = estimated_in_segment(most_messages, work, machine, &first);
    let affordable = u32::try_from(most_messages / in_segment).unwrap_or(u32::MAX);
    let more = affordable.max(least_segments(&first));
    if more >= first.segments {
        return run(0);
    }
    let (half, whole) = (run(more / 2)?, run(more)?);
    let (steps, left) = (u64::from(more - more / 2), u64::from(first.segments - more));
    let later = |half: u64, whole: u64| {
        let more = u128::from(whole.saturating_sub(half)) * u128::from(left) / u128::from(steps);
        whole.saturating_add(u64::try_from(more).unwrap_or(u64::MAX))
    };
    let finished =
        half.finished.iter().zip(&whole.finished).map(|(half, whole)| later(*half, *whole)).collect();
    let used = half.used.iter().zip(&whole.used).map(|(half, whole)| Used {
        busy: later(half.busy, whole.busy),
        bytes: later(half.bytes, whole.bytes),
        ..*whole
    });
    let (used, messages) = (used.collect(), later(half.messages, whole.messages));
    counted(Prediction { finished, used, messages, ..whole })
}
