//! Reducers end, hang or are slow: what the ranks are told, and that they go on.

use super::*;
use crate::{
    core::shards::ShardRuns,
    transport::tcp::virtual_link::Rng,
    world::{groups, partitions::Partition},
};
use std::sync::Arc;

/// The ranks disagree about an operation that a lost reducer has left: its repair group's calls differ, and the error names the
/// programs' calls.
#[test]
fn a_disagreement_about_what_a_reducer_left_names_the_calls_of_programs() {
    let mut world = begun(3, 1, 6);
    sum(&mut world, [0, 1], 1000, None);
    sum(&mut world, [2], 1001, None);
    world.kill(3);
    assert!(world.run_to_the_end(ms(9000)));
    for rank in 0..3 {
        let (_, kind) = error_of(&mut world, rank);
        let ErrorKind::Mismatch { sequence: 3, calls } = &kind else { panic!("rank {rank}: {kind:?}") };
        let called = |count: u32| format!("all_reduce of {count} f32, sum (operation 3)");
        assert_eq!(calls[..], [(vec![2], called(1001)), (vec![0, 1], called(1000))]);
    }
    works(&mut world);
}

/// Asserts that all calls end well within a second of this time, although reducer 0 is lost, and that later ones use the other.
#[track_caller]
fn goes_on_without_a_reducer(world: &mut VirtualWorld, lost_at: Duration) {
    assert!(world.run_to_the_end(lost_at + ms(1000)), "the group hangs");
    works(world);
    let sent = |world: &mut VirtualWorld| world.machine(0).engine.counted().reducers_tcp.sent;
    let before = sent(world);
    sum(world, 0..3, LARGE, None);
    assert!(world.run_to_the_end(world.now() + ms(1000)));
    assert!(sent(world) > before, "the other reducer is not used");
    works(world);
}

/// Twin of `deaths::a_killed_reducer_costs_no_call`.
#[test]
fn a_killed_reducer_costs_no_call() {
    let mut world = begun(3, 2, 6);
    sum(&mut world, 0..3, LARGE, None);
    world.kill(3);
    goes_on_without_a_reducer(&mut world, ms(1050));
}

/// What it leaves is finished by a group that a rank makes of the one before: in the tree of the shards, and divided by them.
#[test]
fn a_killed_reducer_costs_no_sum_of_shards_its_tree() {
    kill_a_reducer_of(&ShardRuns::of_lengths(&[4, 2, 1]).unwrap());
}

/// So it is where ranks give several partial sums, of which the parts that are left lie apart.
#[test]
fn a_killed_reducer_costs_no_sum_of_several_nodes_its_tree() {
    let runs = ShardRuns::even(8, 3).unwrap();
    assert!(runs.group().has_several());
    kill_a_reducer_of(&runs);
}

fn kill_a_reducer_of(runs: &ShardRuns) {
    let shards = Some(Arc::new(runs.group()));
    for seed in 0..3 {
        let mut world = begun_as(Setup { shards: shards.clone(), ..Setup::of(3, 2) }, seed);
        sum(&mut world, 0..3, LARGE, None);
        world.kill(3);
        goes_on_without_a_reducer(&mut world, ms(1050));
    }
}

/// The last handle of a group may go while its operations run: they end well all the same.
#[test]
fn what_runs_in_a_closed_group_outlives_a_reducer() {
    for (seed, count) in [(21, 3), (22, LARGE)] {
        let mut world = begun(3, 2, seed);
        let mut rng = Rng(seed);
        groups::add(&mut world, vec![0, 1, 2], &mut rng);
        world.run_for(ms(50));
        let (task, group) = (Task::sum(count, 3, &mut rng), world.groups[1].0);
        world.call(0..3, &QueuedCall { group, closes: vec![(group, false)], ..QueuedCall::new(task, None) });
        world.kill(3);
        assert!(world.run_to_the_end(ms(5000)), "the group hangs");
        for (rank, worker) in world.workers() {
            let end = worker.ends().pop().flatten();
            assert!(matches!(end, Some(Ok(()))), "rank {rank}, {count} numbers: {end:?}");
        }
        works(&mut world);
    }
}

/// Rank 0 decides for groups that it is not in, too. If it is stopped within a recovery of one, calls of that group fail.
#[test]
fn a_group_that_stands_still_fails_with_the_hub() {
    let mut world = begun(3, 2, 23);
    let mut rng = Rng(23);
    groups::add(&mut world, vec![1, 2], &mut rng);
    world.run_for(ms(50));
    let group = world.groups[1].0;
    let queued = QueuedCall { group, ..QueuedCall::new(Task::sum(LARGE, 2, &mut rng), None) };
    world.call(1..3, &queued);
    world.kill(3);
    let stands_still = |world: &mut VirtualWorld| {
        let of = |rank: usize| {
            world.machines[rank].as_ref().and_then(|machine| machine.engine.runtime.groups.get(group))
        };
        [1, 2].into_iter().all(|rank| of(rank).is_some_and(|group| group.state.is_undecided()))
    };
    assert!(world.run_until(ms(2000), stands_still), "there is no recovery");
    world.hang(0);
    world.call(1..3, &queued);
    assert!(world.run_to_the_end(ms(20_000)), "a call hangs");
    (1..3).for_each(|rank| assert!(matches!(error_of(&mut world, rank).1, ErrorKind::PeerLost { .. })));
}

/// It has no rank to say so by: its workers see their connections end.
#[test]
fn a_reducer_whose_engine_panicked_costs_no_call() {
    let mut world = begun(3, 2, 20);
    sum(&mut world, 0..3, LARGE, None);
    let now = world.clock.now();
    world.machine(3).engine.at(now).break_down();
    goes_on_without_a_reducer(&mut world, ms(1050));
}

/// Twin of `deaths::a_stopped_reducer_costs_no_call`: silence counts while it is waited for.
#[test]
fn a_stopped_reducer_costs_no_call() {
    let mut world = begun(3, 2, 7);
    world.hang(3);
    sum(&mut world, 0..3, LARGE, None);
    goes_on_without_a_reducer(&mut world, ms(4300));
}

/// A worker gives up its link to a reducer that stands still. The end of that link may come to the reducer only when the others use
/// it again already, in a group that this worker has not introduced yet: the group goes on.
#[test]
fn a_link_that_was_given_up_ends_no_group_that_came_after_it() {
    for seed in 0..5 {
        let mut world = begun(3, 1, seed);
        world.hang(3);
        world.part(1, 3, Partition::OneWay, ms(11_000));
        sum(&mut world, 0..3, LARGE, None);
        assert!(world.run_to_the_end(ms(6000)));
        world.resume(3);
        world.run_for(ms(11_500) - world.now());
        let received = |world: &VirtualWorld| {
            let reducer = world.machines[3].as_ref();
            reducer.map_or(0, |reducer| reducer.engine.counted().workers_tcp.received)
        };
        let before = received(&world);
        sum(&mut world, 0..3, LARGE, None);
        assert!(world.run_to_the_end(ms(14_000)), "seed {seed}: the group hangs");
        works(&mut world);
        assert!(received(&world) > before + 3 * LARGE as u64, "seed {seed}: the reducer is not used");
        // Those of which all workers have taken leave are gone.
        let groups = world.machine(3).engine.runtime.groups.count();
        assert!(groups <= 2, "seed {seed}: {groups} groups");
    }
}

/// Twin of `timeouts::reducers_that_wait_for_long_are_not_lost`.
#[test]
fn reducers_that_wait_for_long_are_not_lost() {
    let mut world = begun(3, 1, 8);
    let task = Task::sum(LARGE, 3, &mut world.rng);
    let queued = QueuedCall::new(task, None);
    world.call([0, 2], &queued);
    world.run_for(ms(8000));
    world.call([1], &queued);
    works(&mut world);
}
