//! Reducers die, hang and lose links at any moment: no call fails, and no result is wrong.

use super::{Setup, VirtualWorld, calls::Task, exact::verdict, machine::ToCall, occurrence::Occurrence};
use crate::{
    Collective, DType, ReduceOp,
    core::algorithm::Algorithm,
    execute::program::Call,
    planted::{Plant, plant},
    transport::tcp::virtual_link::{Dice, Nature},
};
use std::{rc::Rc, time::Duration};

const SEEDS: u64 = 150;
const TIMEOUT: Duration = Duration::from_secs(120);

pub(super) fn sum(count: usize, workers: u32, dice: &mut Dice) -> Rc<Task> {
    let call = Call { collective: Collective::AllReduce, dtype: DType::I32, op: ReduceOp::Sum, count };
    let mut task = Task::new(call, workers, dice);
    Rc::get_mut(&mut task).expect("a new task").in_place = dice.one_in(2);
    task
}

/// A world that sums integers through reducers, several calls at a time, each into its input or beside it.
pub(super) fn summing(seed: u64) -> VirtualWorld {
    let mut dice = Dice(seed ^ 0x7ed5_ced5);
    let (workers, reducers) = (2 + dice.below(4) as u32, 1 + dice.below(4) as u32);
    let nature = Nature {
        latency: Duration::from_nanos(dice.below(3_000_000)),
        rate: dice.pick(&[None, Some(20 << 20), Some(1 << 30)]),
        buffer: dice.pick(&[5000, 70_000, 1 << 20]),
        choppy: dice.one_in(2),
    };
    let forced = Some(Algorithm::ReductionServer).filter(|_| !dice.one_in(3));
    let segment_bytes = dice.pick(&[0, 4096, 65_536]);
    let setup = Setup { nature, forced, segment_bytes, timeout: TIMEOUT, ..Setup::of(workers, reducers) };
    let mut world = VirtualWorld::new(setup, seed);
    // All reducers have been met: one that is forced and never there is an error.
    let first = ToCall { task: sum(90_000, workers, &mut dice), timeout: None };
    world.call(0..workers, &first);
    assert!(world.run_to_the_end(TIMEOUT));
    let window = 1 + dice.below(5) as usize;
    for _ in 0..2 + dice.below(8) {
        let count = dice.pick(&[3, 2000, 30_000, 90_000]);
        let task = match dice.one_in(5) {
            true => Task::any(workers, 1 << 16, &mut dice),
            false => sum(count, workers, &mut dice),
        };
        let todo = ToCall { task, timeout: None };
        for (_, worker) in world.workers() {
            worker.window = window;
            worker.program.push_back(todo.clone());
        }
    }
    for rank in 0..workers as usize {
        let delay = Duration::from_micros(dice.below(30_000));
        world.after(delay, Occurrence::Look(rank));
    }
    world
}

/// One reducer or several come to harm, each at some moment: several within one recovery, too.
fn harm(world: &mut VirtualWorld) {
    let (workers, reducers) = (world.setup.workers as usize, u64::from(world.setup.reducers));
    for _ in 0..1 + world.dice.below(3) {
        let reducer = workers + world.dice.below(reducers) as usize;
        let worker = world.dice.below(workers as u64) as usize;
        let what = world.dice.below(4);
        let delay = Duration::from_micros(world.dice.below(60_000));
        world.later(delay, move |world| {
            let runs = world.machines[reducer].as_ref().is_some_and(|machine| !machine.is_hung);
            match what {
                0 | 1 if runs => world.kill(reducer),
                2 if runs => world.hang(reducer),
                _ => world.link(worker, reducer).into_iter().for_each(|(link, _)| link.cut()),
            }
        });
    }
}

fn harmed(seed: u64) -> Result<VirtualWorld, String> {
    let mut world = summing(seed);
    harm(&mut world);
    verdict(&mut world)?;
    Ok(world)
}

#[test]
fn a_reducers_death_costs_no_call() {
    let (mut failures, mut redone) = (Vec::new(), 0);
    for seed in 0..SEEDS {
        match harmed(seed) {
            Ok(world) => redone += u64::from(world.has_recovered()),
            Err(failure) => failures.extend(failure.get(..400).or(Some(&failure)).map(str::to_owned)),
        }
    }
    assert_eq!(failures, [""; 0]);
    // Reducers come to harm while they are needed, or this would prove nothing.
    assert!(redone > SEEDS / 3, "{redone}");
}

#[test]
fn the_same_seed_gives_the_same_recovery() {
    for seed in 0..20 {
        let [one, other] = [(); 2].map(|()| harmed(seed).unwrap().trace);
        assert_eq!(one, other, "seed {seed}");
    }
}

/// Each of these errors in the protocol is found, within the seeds that find none without it.
#[test]
fn planted_bugs_are_found() {
    let bugs = [
        Plant::CompleteEarly,
        Plant::NoFence,
        Plant::ReadIntoInput,
        Plant::ForgetHolders,
        Plant::ResumeTwice,
    ];
    for bug in bugs {
        let _planted = plant(bug);
        let found = (0..SEEDS).find_map(|seed| {
            let run = std::panic::catch_unwind(|| harmed(seed).err());
            run.unwrap_or_else(|_| Some(format!("seed {seed}: a panic")))
        });
        let found = found.unwrap_or_else(|| panic!("{bug:?} is not found"));
        println!("{bug:?}: {}", found.get(..200).unwrap_or(&found));
    }
}
