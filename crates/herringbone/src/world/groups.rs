//! The groups of a world, and what their ranks are to call.

use super::{
    VirtualWorld, calls::Task, event::WorldEvent, group, machine::QueuedCall, member_at, transitions,
};
use crate::{
    core::{
        group::Rank,
        session::{control::Message, membership::MemberId},
    },
    engine::group::{Group, number_of},
    transport::tcp::virtual_link::Rng,
};
use std::{rc::Rc, time::Duration};

/// How soon a process that is stopped makes its group after all.
const MADE_LATER: Duration = Duration::from_millis(10);

/// Adds a group of some of the ranks, which each of them makes at its own time.
pub(super) fn add(world: &mut VirtualWorld, ranks: Vec<Rank>, rng: &mut Rng) {
    let members: Vec<MemberId> = ranks.iter().map(|rank| member_at(*rank as usize)).collect();
    let number = number_of(&format!("group {}", world.groups.len()), &members);
    world.groups.push((number, ranks.clone()));
    for rank in ranks {
        let delay = Duration::from_micros(rng.below(40_000));
        world.later(delay, move |world| make(world, number, rank));
    }
}

fn make(world: &mut VirtualWorld, number: u32, rank: Rank) {
    let Some((_, ranks)) = world.groups.iter().find(|(other, _)| *other == number).cloned() else { return };
    let made = group(&world.setup, &world.roster, number, &ranks, rank);
    let Some(machine) = &mut world.machines[rank as usize] else { return };
    if machine.is_hung {
        return world.later(MADE_LATER, move |world| make(world, number, rank));
    }
    make_known(world, made, rank);
}

/// What a communicator does.
fn make_known(world: &mut VirtualWorld, made: Group, rank: Rank) {
    let (now, number, ranks) = (world.clock.now(), made.settings.id, made.settings.ranks.clone());
    let machine = world.machine(rank as usize);
    machine.engine.at(now).add_group(made);
    if ranks[0] == rank
        && let Some(watch) = &mut machine.watch
    {
        let info = Message::GroupInfo { group: number, generation: 0, members: ranks };
        transitions::to_hub(watch, &info);
        watch.tell_hub(info);
    }
    world.settle(rank as usize);
}

/// A rank makes its next group of these ranks. Returns the group's number.
#[cfg(test)]
pub(super) fn make_next(world: &mut VirtualWorld, ranks: &[Rank], rank: Rank) -> u32 {
    let members: Vec<MemberId> = ranks.iter().map(|rank| member_at(*rank as usize)).collect();
    let ordinal = world.machine(rank as usize).engine.name_next(number_of("groups", &members));
    let number = number_of(&format!("group {}", ordinal.at), &members);
    let Group { settings, .. } = group(&world.setup, &world.roster, number, ranks, rank);
    let member = crate::core::session::fence::Member::new(number, rank, ranks.to_vec()).named(Some(ordinal));
    make_known(world, Group::new(settings, member), rank);
    number
}

/// Adds a group in which all workers agree. Returns its number.
#[cfg(test)]
pub(super) fn add_agreement(world: &mut VirtualWorld) -> u32 {
    let ranks: Vec<Rank> = (0..world.setup.workers).collect();
    let members: Vec<MemberId> = ranks.iter().map(|rank| member_at(*rank as usize)).collect();
    let (number, now) = (number_of("agreement", &members), world.clock.now());
    for rank in &ranks {
        let made = group(&world.setup, &world.roster, number, &ranks, *rank);
        let made = Group::of(made.settings.agreeing(), made.state);
        world.machine(*rank as usize).engine.at(now).add_group(made);
        world.settle(*rank as usize);
    }
    number
}

/// Makes the groups that carry messages between two ranks of the group of all, as a communicator does before the first message.
#[cfg(test)]
pub(super) fn open_channel(world: &mut VirtualWorld, pair: [Rank; 2]) {
    use crate::engine::{
        group::{Service, Settings},
        messages::Channel,
    };
    use crate::execute::issue::WORLD_GROUP;
    let members = pair.map(|rank| member_at(rank as usize));
    for (me, peer) in [(pair[0], pair[1]), (pair[1], pair[0])] {
        let make = |world: &mut VirtualWorld,
                    what: &str,
                    carries: fn(Rank, Rank) -> Service,
                    from: Rank,
                    to: Rank| {
            let number = number_of(&format!("{what} from {from} to {to}"), &members);
            let Group { settings, state, .. } = group(&world.setup, &world.roster, number, &pair, me);
            let serves = Some(carries(from, to));
            make_known(world, Group::of(Settings { serves, ..settings }, state), me);
            number
        };
        let channel = Channel {
            records_to: make(world, "records", Service::Records, me, peer),
            records_from: make(world, "records", Service::Records, peer, me),
            to: make(world, "messages", Service::Messages, me, peer),
            from: make(world, "messages", Service::Messages, peer, me),
        };
        world.machine(me as usize).engine.messages.add_channel(WORLD_GROUP, me, peer, channel);
    }
}

/// Adds up to two groups of some of the ranks.
pub(super) fn add_some(world: &mut VirtualWorld, rng: &mut Rng) {
    for _ in 0..rng.below(3) {
        let mut ranks: Vec<Rank> = (0..world.setup.workers).filter(|_| !rng.one_in(3)).collect();
        if ranks.len() < 2 {
            ranks = vec![0, world.setup.workers - 1];
        }
        add(world, ranks, rng);
    }
}

/// Has ranks make so many calls, each in one of their groups and up to so many at a time. In some worlds some are urgent.
/// Some groups are closed after their last one.
pub(super) fn fill(
    world: &mut VirtualWorld,
    calls: u64,
    window: usize,
    rng: &mut Rng,
    mut task: impl FnMut(u32, &mut Rng) -> Rc<Task>,
) {
    let groups = world.groups.clone();
    let mut queued: Vec<(usize, QueuedCall)> = Vec::new();
    let mixes = rng.one_in(2);
    for _ in 0..calls {
        let which = if rng.one_in(2) { 0 } else { rng.below(groups.len() as u64) as usize };
        let (group, ranks) = &groups[which];
        let task = task(ranks.len() as u32, rng);
        let priority = i32::from(mixes && rng.one_in(3));
        queued.push((which, QueuedCall { group: *group, priority, ..QueuedCall::new(task, None) }));
    }
    let mut open: Vec<usize> = (0..groups.len()).collect();
    for which in 1..groups.len() {
        let last = queued.iter_mut().rev().find(|(other, _)| *other == which);
        for (_, last) in last.into_iter().filter(|_| rng.one_in(2)) {
            last.closes = vec![(last.group, false)];
            open.retain(|other| *other != which);
        }
    }
    for (which, queued) in queued {
        for rank in &groups[which].1 {
            world.machine(*rank as usize).program.push_back(queued.clone());
        }
    }
    // By dice of its own: what ranks call does not depend on what they close.
    let rng = &mut Rng(world.seed ^ 0x000c_105e);
    if rng.one_in(2) {
        close(world, open.into_iter().map(|which| groups[which].clone()).collect(), 3, rng);
    }
    // Urgent calls overtake those that wait: there have to be some.
    let window = if mixes { window + 8 } else { window };
    world.workers().for_each(|(_, worker)| worker.window = window);
}

/// Has ranks close all groups at their end, and not before.
pub(super) fn close_all(world: &mut VirtualWorld, rng: &mut Rng) {
    for (_, worker) in world.workers() {
        worker.program.iter_mut().for_each(|queued| queued.closes.clear());
    }
    close(world, world.groups.clone(), 0, rng);
}

/// Has ranks close these groups after their last calls, each in an order of its own: one in so many at once, others when all
/// calls have ended.
fn close(world: &mut VirtualWorld, groups: Vec<(u32, Vec<Rank>)>, at_once: u64, rng: &mut Rng) {
    for (rank, worker) in world.workers() {
        let mut own: Vec<u32> =
            groups.iter().filter(|(_, ranks)| ranks.contains(&rank)).map(|(group, _)| *group).collect();
        let Some(last) = worker.program.back_mut() else { continue };
        while !own.is_empty() {
            let group = own.swap_remove(rng.below(own.len() as u64) as usize);
            last.closes.push((group, at_once == 0 || !rng.one_in(at_once)));
        }
    }
}

/// Each rank begins with its calls at some time.
pub(super) fn begin(world: &mut VirtualWorld, most: Duration, rng: &mut Rng) {
    for rank in 0..world.setup.workers as usize {
        let delay = Duration::from_nanos(rng.below(most.as_nanos() as u64));
        world.after(delay, WorldEvent::Look(rank));
    }
}
