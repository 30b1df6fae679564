//! Anything may happen to a world: no call hangs, no result is wrong, and errors are of the kinds that there are for it.

use super::{
    VirtualWorld, aborts,
    exact::{WELL, any_world},
    partitions::Partition,
    reducers,
};
use crate::{
    Error, ErrorKind,
    transport::tcp::virtual_link::{PipeEnd, Rng},
};
use std::time::Duration;

/// How long a call may take in a world of trouble.
const TIMEOUT: Duration = Duration::from_secs(5);
/// When all calls of a world are over: ten at most, each of which may run into its timeout and wait for a decision.
const LIMIT: Duration = Duration::from_secs(200);

/// Something goes wrong.
fn trouble(world: &mut VirtualWorld) {
    let (workers, machines) = (u64::from(world.setup.workers), world.machines.len() as u64);
    let (any, worker, other) =
        (world.rng.below(machines), world.rng.below(workers), world.rng.below(machines));
    let (any, worker, other) = (any as usize, worker as usize, other as usize);
    let most = world.rng.pick(&[50, 9000]);
    let delay = Duration::from_millis(world.rng.below(most));
    let runs = |world: &VirtualWorld, at: usize| {
        world.machines[at].as_ref().is_some_and(|machine| !machine.is_hung && machine.exit.leaving.is_none())
    };
    let byte = world.rng.below(10_000) as usize;
    match (world.rng.below(9), world.link(worker, other)) {
        (0, _) if runs(world, any) => world.kill(any),
        (1, _) if runs(world, any) => world.hang(any),
        (2, _) if runs(world, any) => {
            world.hang(any);
            let resume = move |world: &mut VirtualWorld| world.resume(any);
            world.later(delay, resume);
        }
        (3, _) if runs(world, worker) => world.leave(worker),
        (4, Some(pipe)) => pipe.link.cut(),
        (5, Some(PipeEnd { link, side })) => link.flip(side, byte, 1),
        (6, Some(PipeEnd { link, side })) => link.stall(side, delay),
        (7, _) if any != worker => {
            let partition = world.rng.pick(&Partition::ALL);
            world.part(any, worker, partition, delay);
        }
        (8, _) => divide(world, delay),
        _ => {}
    }
}

/// No machine of one half reaches one of the other half.
fn divide(world: &mut VirtualWorld, time: Duration) {
    let halves: Vec<bool> = world.machines.iter().map(|_| world.rng.one_in(2)).collect();
    for one in 0..halves.len() {
        for other in (one + 1..halves.len()).filter(|other| halves[one] != halves[*other]) {
            world.part(one, other, Partition::Full, time);
        }
    }
}

/// How a call has ended, if that is a way in which it may end. `closed`: in a group that was closed after it.
fn named(end: &Result<(), Error>, closed: bool) -> Option<&'static str> {
    Some(match end.as_ref().map_err(|error| error.kind()) {
        Ok(()) => WELL,
        Err(ErrorKind::PeerLost { .. }) => "a rank is lost",
        Err(ErrorKind::Timeout { .. }) => "late",
        Err(ErrorKind::Corrupt { .. } | ErrorKind::LinkLost { .. }) => "a link broke",
        // A rank is missed in a group that was closed after its last call.
        Err(ErrorKind::Closed) if closed => "its group was closed",
        Err(_) => return None,
    })
}

/// A world in which anything went wrong, after it has run, and how its calls have ended, or what is wrong with it.
pub(super) fn troubled(seed: u64) -> Result<(VirtualWorld, Vec<&'static str>), String> {
    after_trouble(any_world(seed, TIMEOUT))
}

/// The same where reducers are harmed besides.
pub(super) fn harmed_and_troubled(seed: u64) -> Result<(VirtualWorld, Vec<&'static str>), String> {
    let mut world = reducers::summing(seed, TIMEOUT);
    reducers::harm(&mut world);
    after_trouble(world)
}

fn after_trouble(mut world: VirtualWorld) -> Result<(VirtualWorld, Vec<&'static str>), String> {
    let seed = world.seed;
    let mut rng = Rng(!seed);
    if rng.one_in(3) {
        aborts::mix_in(&mut world, &mut rng);
    }
    for _ in 0..1 + world.rng.below(4) {
        let delay = Duration::from_micros(world.rng.below(50_000));
        world.later(delay, trouble);
    }
    let done = world.run_to_the_end(LIMIT);
    let (mut seen, problems) = (Vec::new(), world.problems());
    for (rank, worker) in world.workers().filter(|(_, worker)| !worker.is_hung) {
        if !done && !worker.is_done() {
            return Err(format!("seed {seed}: a call of rank {rank} hangs: {:?}", worker.ends()));
        }
        for called in &worker.called {
            let Some((_, end)) = &called.ended else { continue };
            let closed = !worker.engine.takes_calls(called.group);
            match named(end, closed) {
                Some(name) => seen.push(name),
                None => return Err(format!("seed {seed}: rank {rank} was told: {end:?}")),
            }
        }
    }
    if problems.is_empty() { Ok((world, seen)) } else { Err(format!("seed {seed}: {problems:?}")) }
}
