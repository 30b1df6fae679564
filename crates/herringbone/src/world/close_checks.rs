//! What ranks learn when they close groups whose last calls only sent, and how long they wait for it.

use super::{Setup, VirtualWorld, calls::Task, groups, machine::QueuedCall};
use crate::{
    Collective, DType, Error, ErrorKind, ReduceOp,
    core::{
        prepare::Call,
        session::{control::Message, watch::TICK},
    },
    execute::issue::WORLD_GROUP,
    fabric::CLOSE_TIMEOUT,
    transport::tcp::virtual_link::Rng,
};
use std::{cell::Cell, rc::Rc, time::Duration};

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// A world in which a first call has made all links.
fn begun(workers: u32) -> VirtualWorld {
    let mut world = VirtualWorld::new(Setup::of(workers, 0), 1);
    call(&mut world, 0..workers, Collective::AllReduce);
    world.run_for(ms(200));
    world
}

fn task(world: &mut VirtualWorld, collective: Collective) -> Rc<Task> {
    let call = Call::new(collective, DType::U8, ReduceOp::Max, 5);
    Task::new(call, world.setup.workers, &mut world.rng)
}

fn call(world: &mut VirtualWorld, ranks: impl IntoIterator<Item = u32>, collective: Collective) {
    let task = task(world, collective);
    world.call(ranks, &QueuedCall::new(task, None));
}

/// A rank closes the group of all once its calls have ended.
fn close(world: &mut VirtualWorld, rank: u32) {
    world.machine(rank as usize).exit.close(WORLD_GROUP, true);
    world.settle(rank as usize);
}

fn closes(world: &mut VirtualWorld, rank: u32, collective: Collective) {
    call(world, [rank], collective);
    close(world, rank);
}

fn broadcast(root: u32) -> Collective {
    Collective::Broadcast { root }
}

/// How long a rank took to close the group, and what it learnt.
#[track_caller]
fn closed(world: &mut VirtualWorld, rank: u32) -> (Duration, Result<(), Error>) {
    let closed = world.machine(rank as usize).exit.closed.last().expect("it has closed the group");
    let (at, result) = closed.ended.clone().expect("it has gone on");
    (at.since(closed.began), result)
}

#[track_caller]
fn ended_well(world: &mut VirtualWorld, rank: u32, most: Duration) {
    let (took, result) = closed(world, rank);
    assert!(result.is_ok() && took <= most, "rank {rank}: {took:?}, {result:?}");
}

/// What a rank was told, in its calls or when it closed groups.
fn errors_of(world: &mut VirtualWorld, rank: u32) -> Vec<Error> {
    let machine = world.machine(rank as usize);
    let closed = machine.exit.closed.iter().filter_map(|closed| closed.ended.clone()?.1.err());
    closed.chain(machine.ends().into_iter().flatten().filter_map(Result::err)).collect()
}

/// Whether a rank was told of a mismatch.
fn is_reported(world: &mut VirtualWorld, rank: u32) -> bool {
    errors_of(world, rank).iter().any(|error| matches!(error.kind(), ErrorKind::Mismatch { .. }))
}

/// Counts what is said of questions.
fn count_questions(world: &mut VirtualWorld) -> Rc<Cell<u32>> {
    let said = Rc::new(Cell::new(0));
    let count = said.clone();
    world.network.filter = Some(Box::new(move |_, message| {
        let asks = matches!(message, Message::Confirm(_) | Message::Confirmed(_));
        count.set(count.get() + u32::from(asks));
        true
    }));
    said
}

#[test]
fn after_a_call_that_needs_all_nothing_is_asked() {
    let needs_all = [
        Collective::AllReduce,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::AllToAll,
        Collective::Barrier,
    ];
    for collective in needs_all {
        let mut world = begun(3);
        let said = count_questions(&mut world);
        let count = if collective == Collective::Barrier { 0 } else { 5 };
        let call = Call::new(collective, DType::U8, ReduceOp::Max, count);
        let task = Task::new(call, 3, &mut world.rng);
        for rank in 0..3 {
            world.call([rank], &QueuedCall::new(task.clone(), None));
            close(&mut world, rank);
        }
        assert!(world.run_to_the_end(ms(60_000)));
        assert_eq!(said.get(), 0, "{collective:?}");
        (0..3).for_each(|rank| ended_well(&mut world, rank, Duration::ZERO));
    }
}

#[test]
fn ranks_that_have_called_the_same_are_not_held_up() {
    for collective in [broadcast(1), Collective::Scatter { root: 0 }, Collective::Gather { root: 2 }] {
        let mut world = begun(3);
        let said = count_questions(&mut world);
        let task = task(&mut world, collective);
        for rank in 0..3 {
            world.call([rank], &QueuedCall::new(task.clone(), None));
            close(&mut world, rank);
        }
        assert!(world.run_to_the_end(ms(60_000)));
        (0..3).for_each(|rank| ended_well(&mut world, rank, ms(100)));
        assert!(said.get() > 0, "{collective:?}");
    }
}

/// Whoever closes first, and however late the others come within 2 s.
#[test]
fn all_are_told_of_a_last_mismatch() {
    for (first, late) in [(0, 0), (1, 0), (2, 300), (0, 1500), (1, 1500)] {
        let mut world = begun(3);
        let first = first as u32;
        closes(&mut world, first, broadcast(first));
        world.run_for(ms(late));
        for rank in (0..3).filter(|rank| *rank != first) {
            closes(&mut world, rank, broadcast(rank));
        }
        assert!(world.run_to_the_end(ms(60_000)));
        (0..3)
            .for_each(|rank| assert!(is_reported(&mut world, rank), "rank {rank}, {first} first, {late} ms"));
    }
}

/// Its end is waited for, as that of all groups at the end of a job.
#[test]
fn a_group_that_is_closed_during_its_last_call_asks_after_it() {
    let mut world = begun(2);
    for rank in 0..2 {
        let task = task(&mut world, broadcast(rank));
        let queued = QueuedCall { closes: vec![(WORLD_GROUP, false)], ..QueuedCall::new(task, None) };
        world.machine(rank as usize).window = 2;
        world.call([rank], &queued);
    }
    assert!(world.run_to_the_end(ms(60_000)));
    (0..2).for_each(|rank| assert!(is_reported(&mut world, rank), "rank {rank}"));
}

/// Rank 2 closes the group without the broadcast: first, between the others, or last. Once others have asked it is told itself.
#[test]
fn who_leaves_without_a_last_call_is_named() {
    for (order, root) in [([2, 0, 1], 1), ([0, 2, 1], 0), ([1, 2, 0], 1), ([0, 1, 2], 0), ([1, 0, 2], 1)] {
        let mut world = begun(3);
        for rank in order {
            match rank {
                2 => close(&mut world, 2),
                rank => closes(&mut world, rank, broadcast(root)),
            }
            world.run_for(ms(300));
        }
        assert!(world.run_to_the_end(ms(60_000)));
        for rank in 0..3 {
            let said = errors_of(&mut world, rank);
            let names =
                |error: &Error| matches!(error.kind(), ErrorKind::PeerLost { ranks, .. } if ranks[..] == [2]);
            let must = rank != 2 || order[0] != 2;
            assert_eq!(
                (said.len(), said.iter().all(names)),
                (usize::from(must), true),
                "{order:?}: {said:?}"
            );
        }
    }
}

/// In this way a rank leaves that is not waited for: by the end of its program, or because nobody holds the group any more.
#[test]
fn who_drops_a_group_without_a_last_call_is_named() {
    for leaves in [false, true] {
        let mut world = begun(2);
        closes(&mut world, 0, broadcast(0));
        world.run_for(ms(300));
        let now = world.clock.now();
        world.machine(1).engine.at(now).drop_group(WORLD_GROUP);
        world.settle(1);
        if leaves {
            world.leave(1);
        }
        assert!(world.run_to_the_end(ms(60_000)));
        let (took, said) = (closed(&mut world, 0).0, errors_of(&mut world, 0));
        assert!(said.len() == 1 && took < ms(500), "{took:?}, {said:?}");
        let said = said[0].to_string();
        let expected = "close: rank 1 is lost: left without broadcast of 5 u8 from rank 0 (operation 1), which rank 0 has called";
        assert!(said.contains(expected), "{said}");
    }
}

/// It is known that it never comes, so nobody waits for the timeout of the call.
#[test]
fn who_leaves_without_a_call_that_others_wait_in_is_named() {
    for leaves_first in [true, false] {
        let mut world = begun(3);
        if leaves_first {
            close(&mut world, 2);
            world.run_for(ms(100));
        }
        call(&mut world, 0..2, Collective::AllReduce);
        world.run_for(ms(100));
        if !leaves_first {
            close(&mut world, 2);
        }
        world.run_for(ms(500));
        for rank in 0..2 {
            let said = errors_of(&mut world, rank);
            let names =
                |error: &Error| matches!(error.kind(), ErrorKind::PeerLost { ranks, .. } if ranks[..] == [2]);
            assert!(said.len() == 1 && said.iter().all(names), "{leaves_first}, rank {rank}: {said:?}");
        }
    }
}

/// A root sends over a link that the other rank has to make, which never calls the broadcast.
#[test]
fn a_call_that_only_sends_waits_for_nobody_to_call_it() {
    let mut world = VirtualWorld::new(Setup::of(2, 0), 1);
    groups::add(&mut world, vec![0, 1], &mut Rng(7));
    let other = world.groups[1].0;
    world.run_for(ms(50));
    world.machine(1).window = 2;
    call(&mut world, [1], broadcast(1));
    let task = task(&mut world, Collective::AllReduce);
    world.call(0..2, &QueuedCall { group: other, ..QueuedCall::new(task, None) });
    world.run_for(ms(1500));
    for rank in 0..2 {
        let ends = world.machine(rank).ends();
        assert!(ends.iter().all(|end| matches!(end, Some(Ok(())))), "rank {rank}: {ends:?}");
    }
}

/// A question stays where it was shown: who comes later than anybody waits learns of it all the same.
#[test]
fn who_comes_after_2_s_is_told_and_holds_nobody_up() {
    let mut world = begun(3);
    for rank in [0, 1] {
        closes(&mut world, rank, broadcast(0));
    }
    world.run_for(CLOSE_TIMEOUT + 2 * TICK);
    (0..2).for_each(|rank| ended_well(&mut world, rank, CLOSE_TIMEOUT + TICK));
    closes(&mut world, 2, broadcast(2));
    assert!(world.run_to_the_end(ms(60_000)));
    assert!(is_reported(&mut world, 2));
}

#[test]
fn nobody_waits_for_a_rank_that_dies_or_leaves() {
    type End = fn(&mut VirtualWorld);
    let ends: [End; 2] = [|world| world.kill(2), |world| world.leave(2)];
    for (which, end) in ends.into_iter().enumerate() {
        for before in [true, false] {
            let mut world = begun(3);
            if before {
                end(&mut world);
                world.run_for(ms(5));
            }
            for rank in [0, 1] {
                closes(&mut world, rank, broadcast(0));
            }
            world.run_for(ms(100));
            if !before {
                end(&mut world);
            }
            assert!(world.run_to_the_end(ms(60_000)), "{which}, {before}");
            (0..2).for_each(|rank| ended_well(&mut world, rank, ms(1000)));
        }
    }
}

#[test]
fn nobody_waits_for_a_hub_that_dies() {
    let mut world = begun(3);
    for rank in [1, 2] {
        closes(&mut world, rank, broadcast(1));
    }
    world.run_for(ms(50));
    world.kill(0);
    assert!(world.run_to_the_end(ms(60_000)));
    (1..3).for_each(|rank| ended_well(&mut world, rank, ms(1000)));
}

#[test]
fn after_an_abort_nothing_is_asked() {
    let mut world = begun(2);
    let said = count_questions(&mut world);
    call(&mut world, [0], broadcast(0));
    world.run_for(ms(10));
    let now = world.clock.now();
    world.machine(0).engine.at(now).abort_group(WORLD_GROUP);
    world.settle(0);
    world.run_for(ms(100));
    assert_eq!(said.get(), 0);
}

/// What is dropped leaves word of what it has called, and waits for nothing.
#[test]
fn a_group_that_is_dropped_is_compared_too() {
    let mut world = begun(2);
    call(&mut world, [0], broadcast(0));
    world.run_for(ms(10));
    let now = world.clock.now();
    world.machine(0).engine.at(now).drop_group(WORLD_GROUP);
    world.settle(0);
    world.run_for(ms(10));
    world.leave(0);
    world.run_for(ms(10));
    closes(&mut world, 1, broadcast(1));
    assert!(world.run_to_the_end(ms(60_000)));
    assert!(is_reported(&mut world, 1));
}

/// The order in which ranks close groups does not matter, nor who has made one late.
#[test]
fn groups_are_closed_in_any_order() {
    for late in [0, 1200] {
        let mut world = begun(3);
        let mut rng = Rng(7);
        for _ in 0..2 {
            groups::add(&mut world, vec![0, 1, 2], &mut rng);
        }
        world.run_for(ms(50));
        let (one, two) = (world.groups[1].0, world.groups[2].0);
        for (rank, order) in [(0, [one, two]), (1, [two, one]), (2, [one, two])] {
            if rank == 2 {
                world.run_for(ms(late));
            }
            for group in [one, two] {
                // Only of the second one do ranks disagree.
                let root = if group == two { rank } else { 1 };
                let task = task(&mut world, broadcast(root));
                let mut queued = QueuedCall { group, ..QueuedCall::new(task, None) };
                if group == two {
                    queued.closes = order.map(|group| (group, true)).into();
                }
                world.call([rank], &queued);
            }
        }
        assert!(world.run_to_the_end(ms(60_000)));
        for rank in 0..3 {
            assert!(is_reported(&mut world, rank), "rank {rank}");
            for closed in &world.machine(rank as usize).exit.closed {
                let (_, result) = closed.ended.as_ref().expect("it is over");
                assert!(closed.group == two || result.is_ok(), "rank {rank}: {result:?}");
            }
        }
    }
}
