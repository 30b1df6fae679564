//! One rank calls something else than the others, also while reducers come to harm: all are told, at the latest when they close the
//! group, and no result is wrong.

use super::{
    VirtualWorld,
    calls::Task,
    exact::{self, WELL},
    groups, reducers,
};
use crate::{
    Collective, DType, Error, ErrorKind, ReduceOp, core::prepare::Call, transport::tcp::virtual_link::Dice,
};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(120);
/// Of another call, at most.
const MOST_BYTES: usize = 1 << 14;

/// How late a rank may come to a group's last call: others wait longer for it when they close the group.
const LATE: Duration = Duration::from_millis(1500);

/// How a call or the end of a group has told of the mistake.
const TOLD: &str = "ranks disagree";

/// A world in which one rank makes one mistake, after it has run, and how its calls have ended, or what is wrong with it.
pub(super) fn mistaken(seed: u64) -> Result<(VirtualWorld, Vec<&'static str>), String> {
    let mut dice = Dice(seed ^ 0x0dd_ca11);
    let mut world = match dice.one_in(3) {
        true => exact::any_world(seed, TIMEOUT),
        false => reducers::summing(seed, TIMEOUT),
    };
    groups::close_all(&mut world, &mut dice);
    let is_harmed = world.setup.reducers > 0 && !dice.one_in(4);
    if is_harmed {
        reducers::harm_some(&mut world);
    }
    let is_last = dice.one_in(2);
    let confused = if is_last { confuse_last(&mut world, &mut dice) } else { confuse(&mut world, &mut dice) };
    let Some((group, ranks)) = confused else { return Ok((world, Vec::new())) };
    world.run_for(LATE);
    let done = world.run_to_the_end(exact::LONG);
    let (mut seen, problems) = (Vec::new(), world.problems());
    for (rank, worker) in world.workers() {
        let told = |what: &str| format!("seed {seed}: rank {rank} {what}: {:?}", worker.ends());
        if !done {
            return Err(told("does not come to its end"));
        }
        let calls = worker.called.iter().filter_map(|called| Some((called.group, &called.ended.as_ref()?.1)));
        let closed = worker.exit.closed.iter();
        let closed = closed.filter_map(|closed| Some((closed.group, &closed.ended.as_ref()?.1)));
        // Where a reducer is lost, others may come to their last calls later than a rank waits for them.
        let gave_up = worker.exit.closed.iter().any(|closed| closed.group == group && closed.has_given_up());
        let mut knows = !ranks.contains(&rank) || is_harmed && gave_up;
        for (number, end) in calls.chain(closed) {
            let end = named(end, number == group).ok_or_else(|| told("was told something else"))?;
            knows |= end == TOLD;
            seen.push(end);
        }
        if !knows {
            return Err(told("was not told of the mistake"));
        }
    }
    if problems.is_empty() { Ok((world, seen)) } else { Err(format!("seed {seed}: {problems:?}")) }
}

/// Has a rank call something else in place of one of its calls. Returns the group of it, and its ranks.
fn confuse(world: &mut VirtualWorld, dice: &mut Dice) -> Option<(u32, Vec<u32>)> {
    let rank = dice.below(u64::from(world.setup.workers)) as usize;
    let calls = world.machine(rank).program.len() as u64;
    let at = dice.below(calls.max(1)) as usize;
    let todo = world.machine(rank).program.get(at)?.clone();
    let (group, ranks) = world.groups.iter().find(|(number, _)| *number == todo.group)?.clone();
    let other = loop {
        let other = Task::any(ranks.len() as u32, MOST_BYTES, dice);
        if other.call != todo.task.call {
            break other;
        }
    };
    world.machine(rank).program[at].task = other;
    (ranks.len() > 1).then_some((group, ranks))
}

/// Has all ranks of a group broadcast from one of them in its last call, but one, which broadcasts itself, and later than the others.
fn confuse_last(world: &mut VirtualWorld, dice: &mut Dice) -> Option<(u32, Vec<u32>)> {
    let (group, ranks) = world.groups[dice.below(world.groups.len() as u64) as usize].clone();
    let size = ranks.len() as u32;
    let confused = dice.below(u64::from(size)) as u32;
    let mut broadcast = |root| {
        let call = Call::new(Collective::Broadcast { root }, DType::U8, ReduceOp::Sum, 5);
        Task::new(call, size, dice)
    };
    let [own, others] = [confused, (confused + 1) % size].map(&mut broadcast);
    for (place, rank) in (0..).zip(&ranks) {
        let program = &mut world.machine(*rank as usize).program;
        let at = program.iter().rposition(|todo| todo.group == group)?;
        program[at].task = if place == confused { own.clone() } else { others.clone() };
        if place == confused {
            let (rank, rest) = (*rank as usize, program.split_off(at));
            let delay = Duration::from_millis(dice.below(LATE.as_millis() as u64));
            world.later(delay, move |world| {
                world.machine(rank).program.extend(rest);
                world.settle(rank);
            });
        }
    }
    (size > 1).then_some((group, ranks))
}

/// How a call has ended, or a group, if that is a way in which it may end.
fn named(end: &Result<(), Error>, is_confused: bool) -> Option<&'static str> {
    match end.as_ref().map_err(|error| error.kind()) {
        Ok(()) => Some(WELL),
        Err(ErrorKind::Mismatch { .. }) => is_confused.then_some(TOLD),
        Err(_) => None,
    }
}

#[test]
fn all_are_told_of_a_mistake() {
    let ends = |seed| mistaken(seed).map(|(_, ends)| ends).unwrap();
    let told = (0..80).flat_map(ends).filter(|end| *end == TOLD).count();
    assert!(told > 200, "{told}");
}

/// A member that does not say what it has called where a reducer is lost is found.
#[test]
fn who_resumes_blindly_is_found() {
    let _planted = crate::planted::plant(crate::planted::Plant::ResumeBlindly);
    assert!((0..80).any(|seed| mistaken(seed).is_err()));
}

/// A member that answers without comparing is found.
#[test]
fn who_confirms_blindly_is_found() {
    let _planted = crate::planted::plant(crate::planted::Plant::ConfirmBlindly);
    assert!((0..40).any(|seed| mistaken(seed).is_err()));
}
