//! How long a schedule takes: its programs, compiled and cut as executors run them, on machines of which links and costs are
//! known.
//!
//! [`simulate`] goes from event to event: a rank's thread does one thing at a time, each for what its [`Costs`] say; a message
//! goes through its sender's port, then through its receiver's, each of which carries one after the other; windows, grants and
//! turns are the executor's. Nothing is random, and times are whole picoseconds, so all machines come to the same ones.
//!
//! What it leaves out: packets that are lost, and how TCP shares a port among connections. A port carries message by message;
//! over several messages that comes to the same.
//!
//! Where all ranks do the same, one stands for all: what it sends comes back to it as the message that the rank at its place
//! would have sent. That takes 4,096 ranks in the time of one; [`Outcome::by_symmetry`] says where it was done.

mod calibration;
mod event;
mod machine;
mod member;
mod mirror;
mod outcome;
mod world;

pub use calibration::{CALIBRATION_NUMBERS, Calibration, CalibrationError};
pub use machine::{Cores, Costs, Machine, Picoseconds, Port, SECOND, Toll, duration};
pub use outcome::{Outcome, Place, Span, Used, What};

use crate::{
    prepare::{Call, Prepared, Sizing, prepare},
    verify::Verified,
};
use alloc::{sync::Arc, vec::Vec};
use world::World;

/// The most messages that are simulated one by one where one rank can stand for all.
const MOST_MESSAGES: u64 = 500_000;

/// What is to be simulated.
#[derive(Clone, Copy, Debug)]
pub struct Work<'a> {
    /// The schedule.
    pub verified: &'a Verified,
    /// The call; of the schedule's collective.
    pub call: Call,
    /// How it is cut.
    pub sizing: Sizing,
    /// How many such operations are called at once.
    pub operations: u32,
    /// How many of them run at once at most, as there is staging memory for.
    pub at_once: u32,
    /// Only so many segments, if there are more; 0: all.
    pub segments: u32,
}

impl Work<'_> {
    /// The staging memory that an operation gets in the default configuration, in bytes.
    pub const STAGED: usize = 7 << 20;
    /// How many operations run at once in the default configuration.
    pub const AT_ONCE: u32 = 4;

    /// How calls are cut on these machines by default, `segment_bytes` being the user's wish.
    pub fn sizing(machine: &Machine, verified: &Verified, segment_bytes: usize) -> Sizing {
        let workers = verified.schedule().workers();
        let hosts = machine.workers_hosts(workers);
        Sizing { hosts, shared: hosts == 1, segment_bytes, most_staged: Self::STAGED }
    }

    fn prepared(&self, rank: u32, machine: &Machine) -> Prepared {
        let program = self.verified.schedule().program(rank);
        let shared = |other| machine.is_shared(rank, other);
        let mut prepared = prepare(self.verified, &program, rank, (self.call, None), self.sizing, shared);
        if self.segments > 0 && self.segments < prepared.segments {
            prepared.segments = self.segments;
            for peer in &mut prepared.peers {
                (peer.gives, peer.takes) = (self.segments, self.segments);
            }
        }
        prepared
    }
}

/// Simulates `work` on `machine` and shows what takes time to `watch`.
///
/// # Panics
/// If the machine has fewer hosts' entries than the schedule has members.
pub fn simulate(work: &Work<'_>, machine: &Machine, watch: &mut dyn FnMut(Span)) -> Outcome {
    simulate_up_to(MOST_MESSAGES, work, machine, watch)
}

/// [`simulate`], with the most messages that are simulated one by one where one rank can stand for all.
///
/// # Panics
/// As [`simulate`].
pub fn simulate_up_to(
    most_messages: u64,
    work: &Work<'_>,
    machine: &Machine,
    watch: &mut dyn FnMut(Span),
) -> Outcome {
    let ranks = work.verified.schedule().ranks();
    assert!(machine.hosts.len() >= ranks as usize, "each member has a host");
    let first = work.prepared(0, machine);
    let messages = first.lanes.len() as u64 * u64::from(first.segments) * u64::from(work.operations);
    let is_large = messages * u64::from(ranks) > most_messages;
    if is_large && let Some(mirror) = mirror::of(work, machine, &first) {
        return World::new(work, machine, alloc::vec![Arc::new(first)], Some(mirror)).run(watch);
    }
    let others = (1..ranks).map(|rank| Arc::new(work.prepared(rank, machine)));
    let prepared: Vec<Arc<Prepared>> = core::iter::once(Arc::new(first)).chain(others).collect();
    World::new(work, machine, prepared, None).run(watch)
}

/// [`simulate`] where a time is all that is wanted, and soon: where there would be more than `most_messages`, and no rank stands for
/// all, it simulates two numbers of segments and goes on as between them. Segments follow each other at one pace.
///
/// # Panics
/// As [`simulate`].
pub fn estimate(most_messages: u64, work: &Work<'_>, machine: &Machine) -> Outcome {
    let run = |segments| {
        let work = Work { segments, ..*work };
        simulate_up_to(most_messages, &work, machine, &mut |_| ())
    };
    let first = work.prepared(0, machine);
    let ranks = u64::from(work.verified.schedule().ranks());
    let in_segment = (first.lanes.len() as u64).max(1) * ranks * u64::from(work.operations);
    let affordable = u32::try_from(most_messages / in_segment).unwrap_or(u32::MAX);
    // Enough that the window is full before the second half.
    let more = affordable.max(2 * first.depth.min(8));
    if more >= first.segments || mirror::of(work, machine, &first).is_some() {
        return run(0);
    }
    let (half, whole) = (run(more / 2), run(more));
    let (steps, left) = (u64::from(more - more / 2), u64::from(first.segments - more));
    let later = |half: u64, whole: u64| whole + whole.saturating_sub(half) * left / steps;
    let finished =
        half.finished.iter().zip(&whole.finished).map(|(half, whole)| later(*half, *whole)).collect();
    let used = half.used.iter().zip(&whole.used).map(|(half, whole)| Used {
        busy: later(half.busy, whole.busy),
        bytes: later(half.bytes, whole.bytes),
        ..*whole
    });
    Outcome { finished, used: used.collect(), messages: later(half.messages, whole.messages), ..whole }
}
