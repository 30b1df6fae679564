//! Anything may happen to a world: no call hangs, no result is wrong, and errors are of the kinds that there are for it.

use super::{VirtualWorld, exact::any_world};
use crate::ErrorKind;
use std::{collections::BTreeMap, time::Duration};

/// How long a call may take in a world of trouble.
const TIMEOUT: Duration = Duration::from_secs(5);
/// When all calls of a world are over: six at most, each of which may run into its timeout and wait for a decision.
const LIMIT: Duration = Duration::from_secs(120);

/// Something goes wrong.
fn trouble(world: &mut VirtualWorld) {
    let (workers, machines) = (u64::from(world.setup.workers), world.machines.len() as u64);
    let (any, worker, other) =
        (world.dice.below(machines), world.dice.below(workers), world.dice.below(machines));
    let (any, worker, other) = (any as usize, worker as usize, other as usize);
    let delay = Duration::from_millis(world.dice.below(9000));
    let runs = |world: &VirtualWorld, at: usize| {
        world.machines[at].as_ref().is_some_and(|machine| !machine.is_hung && machine.leaving.is_none())
    };
    let byte = world.dice.below(10_000) as usize;
    match (world.dice.below(7), world.link(worker, other)) {
        (0, _) if runs(world, any) => world.kill(any),
        (1, _) if runs(world, any) => world.hang(any),
        (2, _) if runs(world, any) => {
            world.hang(any);
            let resume = move |world: &mut VirtualWorld| world.resume(any);
            world.later(delay, resume);
        }
        (3, _) if runs(world, worker) => world.leave(worker),
        (4, Some((link, _))) => link.cut(),
        (5, Some((link, side))) => link.flip(side, byte, 1),
        (6, Some((link, side))) => link.stall(side, delay),
        _ => {}
    }
}

/// What is wrong with a world in which so much went wrong. Counts how calls have ended.
fn verdict(seed: u64, troubles: u64, ends_seen: &mut BTreeMap<&str, usize>) -> Result<(), String> {
    let mut world = any_world(seed, TIMEOUT);
    for _ in 0..troubles {
        let delay = Duration::from_micros(world.dice.below(50_000));
        world.later(delay, trouble);
    }
    let done = world.run_to_the_end(LIMIT);
    let problems = world.problems();
    for (rank, worker) in world.workers().filter(|(_, worker)| !worker.is_hung) {
        let ends = worker.ends();
        if !done && !worker.is_done() {
            return Err(format!("seed {seed}: a call of rank {rank} hangs: {ends:?}"));
        }
        for end in ends.into_iter().flatten() {
            let named = match end.as_ref().map_err(|error| error.kind()) {
                Ok(()) => "well",
                Err(ErrorKind::PeerLost { .. }) => "a rank is lost",
                Err(ErrorKind::ReducerLost { .. }) => "a reducer is lost",
                Err(ErrorKind::Timeout { .. }) => "late",
                Err(ErrorKind::Corrupt { .. }) => "a link broke",
                Err(error) => return Err(format!("seed {seed}: rank {rank} was told: {error}")),
            };
            *ends_seen.entry(named).or_default() += 1;
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(format!("seed {seed}: {problems:?}")) }
}

#[test]
fn whatever_goes_wrong_no_call_hangs_and_no_result_is_wrong() {
    let mut ends = BTreeMap::new();
    let failures: Vec<String> =
        (0..400).filter_map(|seed| verdict(seed, 1 + seed % 4, &mut ends).err()).collect();
    assert_eq!(failures, [""; 0]);
    println!("{ends:?}");
    // Calls meet all kinds of trouble, or this would prove nothing.
    assert!(ends.len() == 5 && ends.values().all(|calls| *calls >= 3), "{ends:?}");
}
