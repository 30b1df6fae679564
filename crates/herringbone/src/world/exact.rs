//! Sums are exact, to the bit, whatever links are like.

#[cfg(test)]
use super::machine::QueuedCall;
use super::{Setup, VirtualWorld, calls::Task, groups};
#[cfg(test)]
use crate::transport::tcp::virtual_link::PipeEnd;
use crate::{
    core::algorithm::Algorithm,
    transport::tcp::virtual_link::{LinkConditions, Rng},
};
use std::time::Duration;

/// How long a world may run whose links are slow at worst.
pub(super) const LONG: Duration = Duration::from_secs(600);
/// How a call has ended that gave its result.
pub(super) const WELL: &str = "well";

/// A world that nothing was done to, and what it is to do.
pub(super) fn any_world(seed: u64, timeout: Duration) -> VirtualWorld {
    let mut rng = Rng(seed);
    let (workers, reducers) = (2 + rng.below(7) as u32, rng.below(4) as u32);
    let conditions = LinkConditions {
        latency: Duration::from_nanos(rng.below(2_000_000)),
        rate: [None, Some(10 << 20), Some(1 << 30)][rng.below(3) as usize],
        buffer: rng.pick(&[300, 5000, 70_000, 1 << 20]),
        choppy: rng.one_in(2),
    };
    let forced = match rng.below(3) {
        0 if reducers > 0 => Some(Algorithm::ReductionServer),
        1 => Some(Algorithm::radix(vec![2])),
        _ => None,
    };
    let segment_bytes = rng.pick(&[0, 0, 4096, 65_536]);
    let setup = Setup { conditions, forced, segment_bytes, timeout, ..Setup::of(workers, reducers) };
    let mut world = VirtualWorld::new(setup, seed);
    groups::add_some(&mut world, &mut rng);
    let window = 1 + rng.below(6) as usize;
    let most = rng.pick(&[1 << 10, 1 << 16, 1 << 20]).min(60 * conditions.buffer);
    let calls = 1 + rng.below(6);
    groups::fill(&mut world, calls, window, &mut rng, |workers, rng| Task::any(workers, most, rng));
    groups::begin(&mut world, Duration::from_millis(5), &mut rng);
    world
}

/// What is wrong with a world to which nothing was done, after it has run.
pub(super) fn verdict(world: &mut VirtualWorld) -> Result<(), String> {
    let done = world.run_to_the_end(LONG);
    let (seed, problems) = (world.seed, world.problems());
    for (rank, worker) in world.workers() {
        let ends = worker.ends();
        if !done || ends.iter().any(|end| !matches!(end, Some(Ok(())))) {
            return Err(format!("seed {seed}: rank {rank}: not all calls ended well: {ends:?}"));
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(format!("seed {seed}: {problems:?}")) }
}

#[test]
fn results_are_exact_whatever_links_are_like() {
    for seed in 0..300 {
        verdict(&mut any_world(seed, LONG)).unwrap();
    }
}

/// Lost packets delay what follows them, and break nothing.
#[test]
fn results_are_exact_over_links_that_stall() {
    for seed in 0..50 {
        let mut world = any_world(seed, LONG);
        for number in 0..20 {
            let stall = move |world: &mut VirtualWorld| {
                let machines = world.machines.len() as u64;
                let [one, other] = [(); 2].map(|()| world.rng.below(machines) as usize);
                let delay = Duration::from_micros(world.rng.below(300_000));
                world.link(one, other).into_iter().for_each(|PipeEnd { link, side }| link.stall(side, delay));
            };
            world.later(Duration::from_millis(2 * number), stall);
        }
        verdict(&mut world).unwrap();
    }
}

/// Four of these take all memory that is for urgent ones, which is the last. Their results go into the buffers.
#[test]
fn results_come_to_operations_whose_memory_is_the_last() {
    let mut world = VirtualWorld::new(Setup::of(2, 0), 1);
    world.workers().for_each(|(_, worker)| worker.window = 4);
    for _ in 0..4 {
        let task = Task::sum(1 << 16, 2, &mut world.rng);
        world.call(0..2, &QueuedCall { priority: 1, ..QueuedCall::new(task, None) });
    }
    verdict(&mut world).unwrap();
    assert_eq!(world.machine(1).engine.counted().most_staged, 1 << 19);
}

#[test]
fn the_same_seed_is_the_same_world() {
    let trace = |seed| {
        let mut world = any_world(seed, LONG);
        verdict(&mut world).unwrap();
        world.trace
    };
    for seed in 0..20 {
        assert_eq!(trace(seed), trace(seed), "seed {seed}");
    }
    assert_ne!(trace(0), trace(1));
}
