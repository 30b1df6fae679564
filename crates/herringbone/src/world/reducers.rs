//! Reducers die, hang, cannot be reached and lose links at any moment, while workers pause and are slow: no call fails, and no
//! result is wrong.

use super::{Setup, VirtualWorld, calls::Task, exact, groups, machine::QueuedCall, partitions::Partition};
use crate::{
    Collective, DType, ReduceOp,
    core::algorithm::{Algorithm, Shares},
    core::prepare::Call,
    transport::tcp::virtual_link::{LinkConditions, PipeEnd, Rng},
};
use std::{ops::Range, rc::Rc, time::Duration};

const TIMEOUT: Duration = Duration::from_secs(120);
/// How long workers may pause, or not reach each other: shorter than it takes to give them up.
const SHORT: u64 = 2_000_000;
/// How often it is looked whether a reducer is needed.
const LOOK: Duration = Duration::from_micros(300);

pub(super) fn sum(count: usize, workers: u32, rng: &mut Rng) -> Rc<Task> {
    let call = Call::new(Collective::AllReduce, DType::I32, ReduceOp::Sum, count);
    let mut task = Task::new(call, workers, rng);
    Rc::get_mut(&mut task).expect("a new task").in_place = rng.one_in(2);
    task
}

/// A world whose workers have met their reducers, which are forced or not.
fn served(seed: u64, timeout: Duration) -> (VirtualWorld, Rng) {
    served_by(seed, timeout, |_, _, rng| Some(Algorithm::ReductionServer).filter(|_| !rng.one_in(3)))
}

/// The same, with an algorithm for the workers and reducers.
fn served_by(
    seed: u64,
    timeout: Duration,
    forced: impl FnOnce(u32, u32, &mut Rng) -> Option<Algorithm>,
) -> (VirtualWorld, Rng) {
    let mut rng = Rng(seed ^ 0x7ed5_ced5);
    let (workers, reducers) = (2 + rng.below(4) as u32, 1 + rng.below(4) as u32);
    let conditions = LinkConditions {
        latency: Duration::from_nanos(rng.below(3_000_000)),
        rate: rng.pick(&[None, Some(20 << 20), Some(1 << 30)]),
        buffer: rng.pick(&[5000, 70_000, 1 << 20]),
        choppy: rng.one_in(2),
    };
    let forced = forced(workers, reducers, &mut rng);
    let segment_bytes = rng.pick(&[0, 4096, 65_536]);
    let setup = Setup { conditions, forced, segment_bytes, timeout, ..Setup::of(workers, reducers) };
    let mut world = VirtualWorld::new(setup, seed);
    // All reducers have been met: one that is forced and never there is an error.
    world.call(0..workers, &QueuedCall::new(sum(30_000, workers, &mut rng), None));
    assert!(world.run_to_the_end(timeout));
    world.network.control_delay = conditions.latency * rng.pick(&[0, 0, 3, 20]);
    (world, rng)
}

/// A world that sums through reducers, several calls at a time, each into its input or beside it.
pub(super) fn summing(seed: u64, timeout: Duration) -> VirtualWorld {
    let (world, rng) = served(seed, timeout);
    begin_sums(world, rng)
}

fn begin_sums(mut world: VirtualWorld, mut rng: Rng) -> VirtualWorld {
    groups::add_some(&mut world, &mut rng);
    let (calls, window) = (2 + rng.below(8), 1 + rng.below(5) as usize);
    groups::fill(&mut world, calls, window, &mut rng, |workers, rng| match rng.one_in(5) {
        true => Task::any(workers, 1 << 14, rng),
        false => {
            let count = rng.pick(&[3, 2000, 10_000, 60_000]);
            if rng.one_in(3) { Task::coded(count, workers, rng) } else { sum(count, workers, rng) }
        }
    });
    groups::begin(&mut world, Duration::from_millis(30), &mut rng);
    world
}

fn micros(rng: &mut Rng, range: Range<u64>) -> Duration {
    Duration::from_micros(range.start + rng.below(range.end - range.start))
}

/// Whether some worker waits for something.
fn is_busy(world: &mut VirtualWorld) -> bool {
    world.workers().any(|(_, worker)| worker.called.iter().any(|called| called.ended.is_none()))
}

/// A reducer comes to harm as soon as something is under way, but not after so many looks.
fn harm_when_needed(world: &mut VirtualWorld, looks: u32) {
    if looks > 0 && !is_busy(world) {
        return world.later(LOOK, move |world| harm_when_needed(world, looks - 1));
    }
    let delay = world.rng.pick(&[1, 1000, 20_000]);
    let delay = micros(&mut world.rng, 0..delay);
    world.later(delay, harm_reducer);
}

/// Something happens to a reducer, or between it and the workers.
fn harm_reducer(world: &mut VirtualWorld) {
    let (workers, reducers) = (world.setup.workers as usize, u64::from(world.setup.reducers));
    let reducer = workers + world.rng.below(reducers) as usize;
    let worker = world.rng.below(workers as u64) as usize;
    let runs = world.machines[reducer].as_ref().is_some_and(|machine| !machine.is_hung);
    let most = world.rng.pick(&[10_000, 1_000_000, 9_000_000]);
    let time = micros(&mut world.rng, 100..most);
    match world.rng.below(7) {
        0 | 1 if runs => world.kill(reducer),
        2 if runs => world.hang(reducer),
        3 if runs => {
            world.hang(reducer);
            world.later(time, move |world| world.resume(reducer));
        }
        4 => {
            let partition = world.rng.pick(&Partition::ALL);
            let (from, to) = if world.rng.one_in(2) { (worker, reducer) } else { (reducer, worker) };
            world.part(from, to, partition, time);
        }
        5 => (0..workers).for_each(|worker| world.part(worker, reducer, Partition::Full, time)),
        _ => world.link(worker, reducer).into_iter().for_each(|pipe| pipe.link.cut()),
    }
}

/// Workers are slow: none is given up for that.
fn slow_down(world: &mut VirtualWorld) {
    let workers = u64::from(world.setup.workers);
    let [one, other] = [(); 2].map(|()| world.rng.below(workers) as usize);
    let time = micros(&mut world.rng, 100..SHORT);
    let runs = world.machines[one].as_ref().is_some_and(|machine| !machine.is_hung);
    match world.rng.below(3) {
        0 if runs => {
            world.hang(one);
            world.later(time, move |world| world.resume(one));
        }
        1 if one != other => {
            let partition = world.rng.pick(&Partition::ALL);
            world.part(one, other, partition, time / 2);
        }
        _ => world.link(one, other).into_iter().for_each(|PipeEnd { link, side }| link.stall(side, time)),
    }
}

/// The same while workers are slow.
pub(super) fn harm(world: &mut VirtualWorld) {
    harm_some(world);
    for _ in 0..world.rng.below(3) {
        let at = micros(&mut world.rng, 0..80_000);
        world.later(at, slow_down);
    }
}

/// One reducer or several come to harm: at once, within one recovery or one after the other.
pub(super) fn harm_some(world: &mut VirtualWorld) {
    let mut at = micros(&mut world.rng, 0..60_000);
    for _ in 0..1 + world.rng.below(4) {
        world.later(at, |world| harm_when_needed(world, 100));
        let most = world.rng.pick(&[1, 3000, 60_000]);
        at += micros(&mut world.rng, 0..most);
    }
}

/// A world whose calls are all on one tensor, so that each goes on with what the one before it has left.
fn feeding_back(seed: u64) -> VirtualWorld {
    let (mut world, mut rng) = served(seed, TIMEOUT);
    let (calls, window) = (3 + rng.below(6), 1 + rng.below(4) as usize);
    let (count, mut last) = (rng.pick(&[5, 3000, 20_000]), None::<Rc<Task>>);
    groups::fill(&mut world, calls, window, &mut rng, |workers, rng| {
        let task = match &last {
            Some(last) => last.next(rng),
            None => Task::coded(count, workers, rng),
        };
        last = Some(task.clone());
        task
    });
    groups::begin(&mut world, Duration::from_millis(30), &mut rng);
    world
}

/// A world whose reducers come to harm, after it has run, or what is wrong with it.
pub(super) fn harmed(seed: u64) -> Result<VirtualWorld, String> {
    after_harm(summing(seed, TIMEOUT))
}

fn after_harm(mut world: VirtualWorld) -> Result<VirtualWorld, String> {
    harm(&mut world);
    // Workers that pause go on.
    world.run_until(exact::LONG, |world| world.workers().all(|(_, worker)| worker.is_done()));
    exact::verdict(&mut world)?;
    Ok(world)
}

/// What is left of a tensor is the same whoever finishes the operations on it, and the next one waits for it.
#[test]
fn what_is_left_outlives_reducers() {
    let recovers = |seed: &u64| after_harm(feeding_back(*seed)).unwrap().has_recovered();
    assert!((0..150).filter(recovers).count() > 30);
}

/// Reducers and workers that fold more or less than each other, some of them nothing.
fn by_shares(workers: u32, reducers: u32, rng: &mut Rng) -> Option<Algorithm> {
    let (plain, owners) = match rng.one_in(3) {
        true => (Algorithm::Mixed { shares: None }, workers + reducers),
        false => (Algorithm::ReductionServer, reducers),
    };
    let mut parts: Vec<u8> = (0..owners).map(|_| rng.pick(&[0, 1, 5, 16])).collect();
    parts[rng.below(u64::from(owners)) as usize] = 16;
    Some(plain.weighted(Shares::new(parts).expect("shares, of which one is the largest")))
}

/// Reducers come to harm that have shares, and such as have none: with fewer of them the choice is free.
#[test]
fn reducers_with_shares_come_to_harm() {
    let recovers = |seed: &u64| {
        let (world, rng) = served_by(*seed, TIMEOUT, by_shares);
        after_harm(begin_sums(world, rng)).unwrap().has_recovered()
    };
    assert!((0..150).filter(recovers).count() > 30);
}

/// Another reducer is lost while ranks finish what the first has left, with urgent calls among it: no call fails.
#[test]
fn another_reducer_is_lost_while_the_first_ones_work_is_redone() {
    fn kill_when_redoing(world: &mut VirtualWorld, reducer: usize) {
        if world.workers().any(|(_, worker)| worker.engine.redoes()) {
            world.kill(reducer);
        } else {
            world.later(LOOK / 10, move |world| kill_when_redoing(world, reducer));
        }
    }
    let mut both = 0;
    for seed in 0..60 {
        let mut world = summing(seed, TIMEOUT);
        let (first, reducers) = (world.setup.workers as usize, world.setup.reducers as usize);
        let delay = micros(&mut world.rng, 0..40_000);
        world.later(delay, move |world| world.kill(first));
        if reducers > 1 {
            world.later(delay, move |world| kill_when_redoing(world, first + 1));
        }
        world.run_to_the_end(exact::LONG);
        exact::verdict(&mut world).unwrap();
        both += usize::from(world.machines[first..].iter().flatten().count() + 2 <= reducers);
    }
    assert!(both > 10, "{both}");
}
