//! The ways to simulate: event by event, one rank for all, or a part that stands for the whole.

use super::{
    machine::Rig,
    mirror::{self, Mirror},
    outcome::{BusySpan, Prediction, Used},
    workload::Workload,
    world::Simulator,
};
use crate::prepare::Prepared;
use alloc::{sync::Arc, vec::Vec};

/// The most messages that are simulated one by one where one rank can stand for all.
const MOST_MESSAGES: u64 = 500_000;
/// How many times as many where one rank stands for all only loosely.
const DRIFTING: u64 = 20;

/// Simulates `work` on `machine` and shows what takes time to `watch`.
///
/// # Panics
/// If the machine has fewer hosts' entries than the schedule has members.
pub fn simulate(work: &Workload<'_>, machine: &Rig, watch: &mut dyn FnMut(BusySpan)) -> Prediction {
    simulate_up_to(MOST_MESSAGES, work, machine, watch)
}

/// [`simulate`], with the most messages that are simulated one by one where one rank can stand for all.
///
/// # Panics
/// As [`simulate`].
pub fn simulate_up_to(
    most_messages: u64,
    work: &Workload<'_>,
    machine: &Rig,
    watch: &mut dyn FnMut(BusySpan),
) -> Prediction {
    let ranks = work.verified.schedule().ranks();
    assert!(machine.hosts.len() >= ranks as usize, "each member has a host");
    let first = work.prepared(0, machine);
    let messages = first.lanes.len() as u64 * u64::from(first.segments) * u64::from(work.operations);
    let messages = messages.saturating_mul(u64::from(ranks));
    let is_large = |mirror: &Mirror| {
        let most = if mirror.drifts { most_messages.saturating_mul(DRIFTING) } else { most_messages };
        messages > most
    };
    if let Some(mirror) = mirror::of(work, machine, &first).filter(is_large) {
        return Simulator::new(work, machine, alloc::vec![Arc::new(first)], Some(mirror)).run(watch);
    }
    let others = (1..ranks).map(|rank| Arc::new(work.prepared(rank, machine)));
    let prepared: Vec<Arc<Prepared>> = core::iter::once(Arc::new(first)).chain(others).collect();
    Simulator::new(work, machine, prepared, None).run(watch)
}

/// [`simulate`] where a time is all that is wanted, and soon: where there would be more than `most_messages`, it simulates two
/// numbers of segments and goes on as between them. Segments follow each other at one pace.
///
/// # Panics
/// As [`simulate`].
pub fn estimate(most_messages: u64, work: &Workload<'_>, machine: &Rig) -> Prediction {
    let run = |segments| {
        let work = Workload { segments, ..*work };
        simulate_up_to(most_messages, &work, machine, &mut |_| ())
    };
    let first = work.prepared(0, machine);
    let stands = mirror::of(work, machine, &first).is_some_and(|mirror| !mirror.drifts);
    let ranks = if stands { 1 } else { u64::from(work.verified.schedule().ranks()) };
    let in_segment = (first.lanes.len() as u64).max(1) * ranks * u64::from(work.operations);
    let affordable = u32::try_from(most_messages / in_segment).unwrap_or(u32::MAX);
    // Enough that the window is full before the second half.
    let more = affordable.max(2 * first.depth.min(8));
    if more >= first.segments {
        return run(0);
    }
    let (half, whole) = (run(more / 2), run(more));
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
    Prediction { finished, used: used.collect(), messages: later(half.messages, whole.messages), ..whole }
}
