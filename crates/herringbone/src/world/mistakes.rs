//! One rank calls something else than the others, also while reducers come to harm, or leaves without their last call: all are told, at
//! the latest when they close the group, and no result is wrong.

use super::{
    VirtualWorld,
    calls::Task,
    exact::{self, WELL},
    exit::ClosedGroup,
    groups,
    machine::Machine,
    reducers,
};
use crate::{
    Collective, DType, Error, ErrorKind, ReduceOp, clock::Moment, core::prepare::Call,
    transport::tcp::virtual_link::Rng,
};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(120);
/// Of another call, at most.
const MOST_BYTES: usize = 1 << 14;

/// How late a rank may come to a group's last call: others wait longer for it when they close the group.
const LATE: Duration = Duration::from_millis(1500);

/// How long it may take after a rank has left until the others have decided about it.
const DECIDED: Duration = Duration::from_millis(1200);

/// How a call or the end of a group has told of the mistake.
const DISAGREE: &str = "ranks disagree";
const LEFT_EARLY: &str = "a rank left without a call";

/// What a rank does wrong.
struct Mistake {
    group: u32,
    /// Those that are to be told.
    ranks: Vec<u32>,
    /// The rank that leaves without the last call.
    leaves: Option<u32>,
}

/// A world in which one rank makes one mistake, after it has run, and how its calls have ended, or what is wrong with it.
pub(super) fn mistaken(seed: u64) -> Result<(VirtualWorld, Vec<&'static str>), String> {
    let mut rng = Rng(seed ^ 0x0dd_ca11);
    let mut world = match rng.one_in(3) {
        true => exact::any_world(seed, TIMEOUT),
        false => reducers::summing(seed, TIMEOUT),
    };
    groups::close_all(&mut world, &mut rng);
    let is_harmed = world.setup.reducers > 0 && !rng.one_in(4);
    if is_harmed {
        reducers::harm_some(&mut world);
    }
    let mistake = match rng.below(3) {
        0 => confuse_last(&mut world, &mut rng),
        1 => leave_out_last(&mut world, &mut rng),
        _ => confuse(&mut world, &mut rng),
    };
    let Some(mistake) = mistake else { return Ok((world, Vec::new())) };
    world.run_for(LATE);
    let done = world.run_to_the_end(exact::LONG);
    let (mut seen, problems) = (Vec::new(), world.problems());
    let left =
        mistake.leaves.and_then(|rank| Some(world.machine(rank as usize).exit.of(mistake.group)?.began));
    for (rank, worker) in world.workers() {
        let problem = |what: &str| format!("seed {seed}: rank {rank} {what}: {:?}", worker.ends());
        if !done {
            return Err(problem("does not come to its end"));
        }
        let calls = worker.called.iter().filter_map(|called| Some((called.group, &called.ended.as_ref()?.1)));
        let closed = worker.exit.closed.iter();
        let closed = closed.filter_map(|closed| Some((closed.group, &closed.ended.as_ref()?.1)));
        // Where a reducer is lost, others may come to their last calls later than a rank waits for them.
        let gave_up = worker.exit.of(mistake.group).is_some_and(ClosedGroup::has_given_up);
        let mut knows = !mistake.ranks.contains(&rank)
            || is_harmed && gave_up
            || left.is_some_and(|left| is_too_early(worker, &mistake, left));
        for (number, end) in calls.chain(closed) {
            let end = named(end, &mistake, number).ok_or_else(|| problem("was told something else"))?;
            knows |= end != WELL;
            seen.push(end);
        }
        if !knows {
            return Err(problem("was not told of the mistake"));
        }
    }
    if problems.is_empty() { Ok((world, seen)) } else { Err(format!("seed {seed}: {problems:?}")) }
}

/// Whether a rank has closed the group, and has given up waiting before it could learn that another one has left without its call.
fn is_too_early(worker: &Machine, mistake: &Mistake, left: Moment) -> bool {
    worker.exit.of(mistake.group).is_some_and(|closed| {
        let ended = closed.ended.as_ref().map(|(at, _)| *at);
        closed.has_given_up() && ended.is_some_and(|ended| ended < left + DECIDED)
    })
}

/// Has a rank call something else in place of one of its calls.
fn confuse(world: &mut VirtualWorld, rng: &mut Rng) -> Option<Mistake> {
    let rank = rng.below(u64::from(world.setup.workers)) as usize;
    let calls = world.machine(rank).program.len() as u64;
    let at = rng.below(calls.max(1)) as usize;
    let queued = world.machine(rank).program.get(at)?.clone();
    let (group, ranks) = world.groups.iter().find(|(number, _)| *number == queued.group)?.clone();
    let other = loop {
        let other = Task::any(ranks.len() as u32, MOST_BYTES, rng);
        if other.call != queued.task.call {
            break other;
        }
    };
    world.machine(rank).program[at].task = other;
    (ranks.len() > 1).then_some(Mistake { group, ranks, leaves: None })
}

/// Has all ranks of a group broadcast from one of them in its last call, but one, which broadcasts itself, and later than the others.
fn confuse_last(world: &mut VirtualWorld, rng: &mut Rng) -> Option<Mistake> {
    let (group, ranks) = world.groups[rng.below(world.groups.len() as u64) as usize].clone();
    let size = ranks.len() as u32;
    let confused = rng.below(u64::from(size)) as u32;
    let mut broadcast = |root| {
        let call = Call::new(Collective::Broadcast { root }, DType::U8, ReduceOp::Sum, 5);
        Task::new(call, size, rng)
    };
    let [own, others] = [confused, (confused + 1) % size].map(&mut broadcast);
    for (place, rank) in (0..).zip(&ranks) {
        let program = &mut world.machine(*rank as usize).program;
        let at = program.iter().rposition(|queued| queued.group == group)?;
        program[at].task = if place == confused { own.clone() } else { others.clone() };
        if place == confused {
            let (rank, rest) = (*rank as usize, program.split_off(at));
            let delay = Duration::from_millis(rng.below(LATE.as_millis() as u64));
            world.later(delay, move |world| {
                world.machine(rank).program.extend(rest);
                world.settle(rank);
            });
        }
    }
    (size > 1).then_some(Mistake { group, ranks, leaves: None })
}

/// Has all ranks of a group broadcast from one of them in its last call, but another one, which makes none and goes on later.
fn leave_out_last(world: &mut VirtualWorld, rng: &mut Rng) -> Option<Mistake> {
    let (group, mut ranks) = world.groups[rng.below(world.groups.len() as u64) as usize].clone();
    let size = ranks.len() as u32;
    let left_out = rng.below(u64::from(size)) as u32;
    // So little goes without the receivers' consent.
    let call = Call::new(Collective::Broadcast { root: (left_out + 1) % size }, DType::U8, ReduceOp::Sum, 5);
    let task = Task::new(call, size, rng);
    for rank in &ranks {
        let program = &mut world.machine(*rank as usize).program;
        let at = program.iter().rposition(|queued| queued.group == group)?;
        program[at].task = task.clone();
    }
    let leaves = ranks.remove(left_out as usize);
    let program = &mut world.machine(leaves as usize).program;
    let at = program.iter().rposition(|queued| queued.group == group)?;
    let mut rest = program.split_off(at);
    let missed = rest.pop_front()?;
    let delay = Duration::from_millis(rng.below(LATE.as_millis() as u64));
    world.later(delay, move |world| {
        let machine = world.machine(leaves as usize);
        // What it closes after the call that it does not make it closes after the one before.
        match machine.program.back_mut() {
            Some(before) => before.closes.extend(missed.closes),
            None => missed.closes.into_iter().for_each(|(group, patient)| machine.exit.close(group, patient)),
        }
        machine.program.extend(rest);
        world.settle(leaves as usize);
    });
    (size > 1).then_some(Mistake { group, ranks, leaves: Some(leaves) })
}

/// How a call of a group has ended, or the group, if that is a way in which it may end.
fn named(end: &Result<(), Error>, mistake: &Mistake, group: u32) -> Option<&'static str> {
    let is_confused = group == mistake.group;
    match end.as_ref().map_err(|error| error.kind()) {
        Ok(()) => Some(WELL),
        Err(ErrorKind::Mismatch { .. }) => (is_confused && mistake.leaves.is_none()).then_some(DISAGREE),
        Err(ErrorKind::PeerLost { ranks, .. }) => (is_confused
            && mistake.leaves.map(|rank| vec![rank]) == Some(ranks.clone()))
        .then_some(LEFT_EARLY),
        Err(_) => None,
    }
}

#[test]
fn all_are_told_of_a_mistake() {
    let ends = |seed| mistaken(seed).map(|(_, ends)| ends).unwrap();
    let count = (0..80).flat_map(ends).filter(|end| *end == DISAGREE).count();
    assert!(count > 200, "{count}");
}

/// A member that does not say what it has called where a reducer is lost is found.
#[test]
fn who_resumes_blindly_is_found() {
    let _planted = super::plants::Plant::planted("resume-blindly").unwrap();
    assert!((0..80).any(|seed| mistaken(seed).is_err()));
}

/// A member that answers without comparing is found.
#[test]
fn who_confirms_blindly_is_found() {
    let _planted = super::plants::Plant::planted("confirm-blindly").unwrap();
    assert!((0..40).any(|seed| mistaken(seed).is_err()));
}
