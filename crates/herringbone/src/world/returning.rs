//! Reducers that come, come back, and end in order: they are used from some call on, no call fails, and no result is wrong.

use super::{
    Setup, VirtualWorld,
    exact::verdict,
    groups,
    machine::QueuedCall,
    reducers::{sum, summing},
};
use crate::{completion::Completion, execute::issue::WORLD_GROUP};
use std::{sync::Arc, time::Duration};

const SEEDS: u64 = 60;
const LIMIT: Duration = Duration::from_secs(120);

/// How many reducers the next call of each worker uses at most.
fn reducers_in_use(world: &mut VirtualWorld) -> Vec<u32> {
    let of = |engine: &crate::engine::Engine| {
        engine.runtime.groups.get(engine.current(WORLD_GROUP)).map_or(0, |group| group.settings.reducers())
    };
    world.workers().map(|(_, worker)| of(&worker.engine)).collect()
}

/// All workers sum something, and then do nothing for a while.
fn sum_and_wait(world: &mut VirtualWorld, wait: Duration) {
    let workers = world.setup.workers;
    let queued = QueuedCall::new(sum(30_000, workers, &mut world.rng), None);
    world.call(0..workers, &queued);
    verdict(world).unwrap();
    world.run_for(wait);
}

/// What the reducers of a job have received.
fn received(world: &VirtualWorld, reducer: usize) -> u64 {
    let machine = world.machines[reducer].as_ref();
    machine.map_or(0, |machine| machine.engine.counted().workers_tcp.received)
}

#[test]
fn a_reducer_that_is_started_again_is_used_again() {
    let mut world = VirtualWorld::new(Setup::of(3, 2), 1);
    sum_and_wait(&mut world, Duration::ZERO);
    for round in 0..6 {
        let reducer = 3 + round % 2;
        world.kill(reducer);
        sum_and_wait(&mut world, Duration::from_secs(5));
        assert_eq!(reducers_in_use(&mut world), [1; 3]);
        world.restart(reducer);
        sum_and_wait(&mut world, Duration::from_secs(70));
        assert_eq!(reducers_in_use(&mut world), [2; 3], "round {round}");
        sum_and_wait(&mut world, Duration::ZERO);
        assert!(received(&world, reducer) > 30_000, "it is needed");
    }
    // Twelve changes have left no groups behind but the first and the last.
    for (_, worker) in world.workers() {
        assert!(worker.engine.runtime.groups.count() <= 8, "{}", worker.engine.runtime.groups.count());
    }
}

/// A reducer that stood still is taken for lost, and is used again once it goes on.
#[test]
fn a_reducer_that_goes_on_is_used_again() {
    let mut world = VirtualWorld::new(Setup::of(3, 1), 1);
    sum_and_wait(&mut world, Duration::ZERO);
    world.hang(3);
    sum_and_wait(&mut world, Duration::from_secs(5));
    assert_eq!(reducers_in_use(&mut world), [0; 3]);
    world.resume(3);
    sum_and_wait(&mut world, Duration::from_secs(5));
    assert_eq!(reducers_in_use(&mut world), [1; 3]);
    let before = received(&world, 3);
    sum_and_wait(&mut world, Duration::ZERO);
    assert!(received(&world, 3) > before + 30_000);
}

/// A reducer that is told to end is needed no more at once, though nobody calls anything.
#[test]
fn a_reducer_that_drains_is_needed_no_more() {
    let mut world = VirtualWorld::new(Setup::of(3, 2), 1);
    sum_and_wait(&mut world, Duration::ZERO);
    assert!(world.machine(4).engine.has_groups());
    world.drain(4);
    // A real one answers no call from now on.
    world.run_for(Duration::from_millis(300));
    assert_eq!(reducers_in_use(&mut world), [1; 3]);
    assert!(!world.machine(4).engine.has_groups());
    world.kill(4);
    sum_and_wait(&mut world, Duration::ZERO);
}

/// Ranks that have nothing to agree about sleep until another one calls: in the group that they watch, whatever reducers do.
#[test]
fn a_rank_that_watches_an_agreement_is_woken_while_reducers_come_and_go() {
    let mut world = VirtualWorld::new(Setup::of(3, 2), 1);
    let number = groups::add_agreement(&mut world);
    for round in 0..4 {
        sum_and_wait(&mut world, Duration::from_secs(70));
        let there = if round == 2 { 1 } else { 2 };
        assert_eq!(reducers_in_use(&mut world), [there; 3], "round {round}: another group uses them");
        let awaited = Arc::new(Completion::default());
        world.machine(1).engine.watch(number, awaited.clone());
        match round {
            0 => {}
            1 => world.kill(3),
            2 => world.restart(3),
            _ => world.drain(4),
        }
        if round != 2 {
            world.run_for(Duration::from_millis(1));
        }
        let queued = QueuedCall { group: number, ..QueuedCall::new(sum(8, 3, &mut world.rng), None) };
        world.call([0, 2], &queued);
        world.run_for(Duration::from_secs(1));
        assert!(awaited.is_done(), "round {round}: ranks 0 and 2 wait for rank 1, which sleeps");
        world.call([1], &queued);
        verdict(&mut world).unwrap();
    }
}

/// Reducers end, are stopped, or are told to end, and come back, at any moment.
fn come_and_go(world: &mut VirtualWorld) {
    let (workers, reducers) = (world.setup.workers as usize, u64::from(world.setup.reducers));
    for _ in 0..1 + world.rng.below(6) {
        let reducer = workers + world.rng.below(reducers) as usize;
        let (what, there) = (world.rng.below(3), Duration::from_micros(world.rng.below(3_000_000)));
        let away = Duration::from_micros(world.rng.below(8_000_000));
        world.later(there, move |world| {
            let runs = world.machines[reducer].as_ref().is_some_and(|machine| !machine.is_hung);
            match what {
                0 if runs => world.kill(reducer),
                1 if runs => world.hang(reducer),
                _ if runs => world.drain(reducer),
                _ => {}
            }
            world.later(away, move |world| match &world.machines[reducer] {
                Some(machine) if machine.is_hung => world.resume(reducer),
                Some(_) if what == 2 => {
                    world.kill(reducer);
                    world.restart(reducer);
                }
                Some(_) => {}
                None => world.restart(reducer),
            });
        });
    }
}

fn changing(seed: u64) -> Result<VirtualWorld, String> {
    let mut world = summing(seed, LIMIT);
    // Calls in the group of all ranks follow.
    for (_, worker) in world.workers() {
        worker.program.iter_mut().for_each(|queued| queued.closes.retain(|(group, _)| *group != WORLD_GROUP));
    }
    come_and_go(&mut world);
    verdict(&mut world)?;
    // All come back in the end, and everybody agrees on that.
    for _ in 0..4 {
        world.run_for(Duration::from_secs(20));
        let all: Vec<usize> = (world.setup.workers as usize..world.machines.len()).collect();
        for reducer in all {
            if world.machines[reducer].is_none() {
                world.restart(reducer);
            } else if world.machine(reducer).is_hung {
                world.resume(reducer);
            }
        }
        let (workers, rng) = (world.setup.workers, &mut world.rng);
        let queued = QueuedCall::new(sum(30_000, workers, rng), None);
        world.call(0..workers, &queued);
        verdict(&mut world)?;
    }
    let (used, reducers) = (reducers_in_use(&mut world), world.setup.reducers);
    match used.iter().all(|used| *used == reducers) {
        true => Ok(world),
        false => Err(format!("seed {seed}: {used:?} of {reducers} reducers are used")),
    }
}

#[test]
fn reducers_come_and_go_and_no_call_fails() {
    let failures: Vec<String> = (0..SEEDS).filter_map(|seed| changing(seed).err()).collect();
    assert_eq!(failures, [""; 0]);
}

#[test]
fn the_same_seed_gives_the_same_changes() {
    for seed in 0..10 {
        let [one, other] = [(); 2].map(|()| changing(seed).unwrap().trace);
        assert_eq!(one, other, "seed {seed}");
    }
}
