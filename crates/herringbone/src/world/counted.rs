//! Several groups of the same ranks, which have no names: where a call to make one fails on some ranks, the counts of all come together;
//! and where ranks call them in other orders, they are told so.

use super::{Setup, VirtualWorld, calls::Task, groups::make_next, machine::QueuedCall};
use crate::{Error, ErrorKind, core::group::Rank, transport::tcp::virtual_link::Rng};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(2);
const COUNT: usize = 5000;

/// These ranks make their next group of `all`, and those of them that call sum in it, until all have ended. Returns its number at
/// each rank, and how each call has ended.
fn attempt(world: &mut VirtualWorld, all: &[Rank], making: &[Rank]) -> (Vec<u32>, Vec<Result<(), Error>>) {
    let numbers: Vec<u32> = making.iter().map(|rank| make_next(world, all, *rank)).collect();
    let task = Task::sum(COUNT, all.len() as u32, &mut world.rng);
    for (rank, number) in making.iter().zip(&numbers) {
        world.call([*rank], &QueuedCall { group: *number, ..QueuedCall::new(task.clone(), Some(TIMEOUT)) });
    }
    let limit = world.now() + 4 * TIMEOUT;
    assert!(world.run_to_the_end(limit), "seed {}: it hangs", world.seed);
    let ended = |rank: &Rank| world.machines[*rank as usize].as_ref()?.ends().last()?.clone();
    let ended = making.iter().map(|rank| ended(rank).expect("it has called")).collect();
    assert_eq!(world.problems(), [""; 0], "seed {}", world.seed);
    (numbers, ended)
}

/// All make the next group together, which works.
#[track_caller]
fn meet(world: &mut VirtualWorld, all: &[Rank]) {
    let (numbers, ended) = attempt(world, all, all);
    assert!(numbers.iter().all(|number| *number == numbers[0]), "seed {}: {numbers:?}", world.seed);
    assert!(ended.iter().all(Result::is_ok), "seed {}: {ended:?}", world.seed);
}

/// Asserts that a call was told that these ranks have not made its group.
#[track_caller]
fn unmade(ended: &Result<(), Error>, ranks: &str) {
    let Err(error) = ended else { panic!("it has succeeded") };
    let expected = format!("{ranks} to make the group, which is over: make it again on all of its ranks");
    assert!(matches!(error.kind(), ErrorKind::Timeout { missing, .. } if *missing == [expected]), "{error}");
}

/// Whether the rank that fails is the hub or another one, and however many there are.
#[test]
fn ranks_meet_again_after_a_call_to_make_a_group_has_failed_on_one() {
    for (all, failing) in [(vec![0, 1], 1), (vec![0, 1], 0), (vec![0, 1, 2], 0), (vec![1, 2], 2)] {
        let mut world = VirtualWorld::new(Setup::of(3, 0), 1);
        meet(&mut world, &all);
        let others: Vec<Rank> = all.iter().copied().filter(|rank| *rank != failing).collect();
        for _ in 0..3 {
            let (numbers, ended) = attempt(&mut world, &all, &others);
            ended.iter().for_each(|ended| unmade(ended, &format!("rank {failing}")));
            // The group is over, also for later calls.
            let began = world.now();
            let task = Task::sum(COUNT, all.len() as u32, &mut world.rng);
            world
                .call([others[0]], &QueuedCall { group: numbers[0], ..QueuedCall::new(task, Some(TIMEOUT)) });
            unmade(
                &world.machine(others[0] as usize).ends().pop().unwrap().unwrap(),
                &format!("rank {failing}"),
            );
            assert_eq!(world.now(), began, "at once");
        }
        (0..2).for_each(|_| meet(&mut world, &all));
    }
}

/// Ranks that have made many groups without a call in them, as one that came anew would find them.
#[test]
fn a_rank_that_has_made_none_comes_to_those_that_have_made_many() {
    let (mut world, all) = (VirtualWorld::new(Setup::of(3, 0), 1), [0, 1, 2]);
    for rank in [0, 1] {
        (0..7).for_each(|_| {
            make_next(&mut world, &all, rank);
        });
    }
    let (numbers, ended) = attempt(&mut world, &all, &all);
    assert!(numbers[0] == numbers[1] && numbers[0] != numbers[2], "{numbers:?}");
    ended[..2].iter().for_each(|ended| unmade(ended, "rank 2"));
    (0..2).for_each(|_| meet(&mut world, &all));
}

/// A group that all have made stays as it is while another one of the same ranks is given up, and so does one with other ranks.
#[test]
fn groups_that_all_have_made_go_on() {
    let (mut world, all) = (VirtualWorld::new(Setup::of(3, 1), 1), [0, 1, 2]);
    let made = [0, 1, 2].map(|rank| make_next(&mut world, &all, rank));
    let pair = [0, 1].map(|rank| make_next(&mut world, &[0, 1], rank));
    let (_, ended) = attempt(&mut world, &all, &[0, 2]);
    ended.iter().for_each(|ended| unmade(ended, "rank 1"));
    for (group, ranks) in [(made[0], &all[..]), (pair[0], &all[..2])] {
        let task = Task::sum(COUNT, ranks.len() as u32, &mut world.rng);
        world.call(ranks.to_vec(), &QueuedCall { group, ..QueuedCall::new(task, Some(TIMEOUT)) });
        let limit = world.now() + TIMEOUT;
        assert!(world.run_to_the_end(limit));
        for rank in ranks {
            assert!(matches!(world.machine(*rank as usize).ends().last(), Some(Some(Ok(())))), "rank {rank}");
        }
    }
    meet(&mut world, &all);
}

/// A message that nobody takes is all that a rank has waited for: the group is over if a rank has not made it, and goes on if all
/// have.
#[test]
fn counts_come_together_after_a_late_message() {
    for asking in [0, 1] {
        let (mut world, all) = (VirtualWorld::new(Setup::of(3, 0), 1), [0, 1, 2]);
        meet(&mut world, &all);
        for has_made in [all.to_vec(), vec![asking, 2]] {
            let made: Vec<u32> = has_made.iter().map(|rank| make_next(&mut world, &all, *rank)).collect();
            (0..2).for_each(|_| {
                world.machine(asking as usize).engine.message_is_late(made[0]);
                world.run_for(Duration::from_millis(100));
            });
            let task = Task::sum(COUNT, 3, &mut world.rng);
            for rank in &has_made {
                world.call(
                    [*rank],
                    &QueuedCall { group: made[0], ..QueuedCall::new(task.clone(), Some(TIMEOUT)) },
                );
            }
            let limit = world.now() + TIMEOUT;
            assert!(world.run_to_the_end(limit), "at once");
            for rank in &has_made {
                let ended = world.machine(*rank as usize).ends().pop().unwrap().unwrap();
                match has_made.len() {
                    3 => assert!(ended.is_ok(), "{ended:?}"),
                    _ => unmade(&ended, &format!("rank {}", 1 - asking)),
                }
            }
        }
        meet(&mut world, &all);
    }
}

/// Whichever ranks fail to make groups, and however often: after each time in which one has called and waited, all can meet.
#[test]
fn counts_come_together_whoever_fails() {
    for seed in 0..40 {
        let mut rng = Rng(seed);
        let workers = 2 + rng.below(4) as u32;
        let mut world = VirtualWorld::new(Setup::of(workers, rng.below(2) as u32), seed);
        let all: Vec<Rank> = (0..workers).collect();
        for _ in 0..6 {
            let making: Vec<Rank> = all.iter().copied().filter(|_| !rng.one_in(3)).collect();
            match making.len() {
                0 => {}
                some if some == all.len() => meet(&mut world, &all),
                _ => drop(attempt(&mut world, &all, &making)),
            }
        }
        meet(&mut world, &all);
    }
}

/// Each of two ranks waits in another group, and both are in both: one line on each names both groups and both calls, and so does
/// the error. The third rank has called neither.
#[test]
fn ranks_that_call_two_groups_in_other_orders_are_told_both() {
    // What is said goes to standard error, so the test's second process calls, and this one reads.
    const ALONE: &str = "COUNTED_TEST_ALONE";
    let first = "all_reduce of 3 f32, sum (operation 0) of group \"the first one\"";
    let second = "all_reduce of 4 f32, sum (operation 0) of group \"the second one\"";
    if std::env::var(ALONE).is_ok() {
        return call_two_groups(first, second);
    }
    let mut again = std::process::Command::new(std::env::current_exe().unwrap());
    let name = "world::counted::ranks_that_call_two_groups_in_other_orders_are_told_both";
    let output = again.args(["--exact", name, "--nocapture"]).env(ALONE, "1").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    let line = |(me, called), (other, its)| {
        format!(
            "WARN herringbone rank {me}] rank {other} has not called {called}, in which others have waited for 3 s: rank {other} \
             waits in {its}; {REMEDY}"
        )
    };
    // A line begins with the time.
    let lines = said.lines().filter(|line| line.contains(" herringbone rank"));
    let mut said: Vec<&str> = lines.filter_map(|line| Some(line.split_once(' ')?.1)).collect();
    said.sort();
    assert_eq!(said, [line((0, first), (1, second)), line((1, second), (0, first))]);
}

const REMEDY: &str = "make all ranks make their groups, and call them, in the same order";

fn call_two_groups(first: &str, second: &str) {
    let (mut world, all, timeout) = (VirtualWorld::new(Setup::of(3, 0), 1), [0, 1], Duration::from_secs(5));
    meet(&mut world, &[0, 1, 2]);
    let made = [0, 1].map(|rank| [0, 1].map(|_| make_next(&mut world, &all, rank)));
    assert_eq!(made[0], made[1]);
    for (rank, count) in [(0, 3), (1, 4)] {
        let name = format!("the {} one", ["first", "second"][rank as usize]);
        for member in 0..3 {
            let engine = &mut world.machine(member).engine;
            engine.runtime.out.observer.name_group(made[0][rank as usize], &name);
        }
        let task = Task::sum(count, 2, &mut world.rng);
        world.call(
            [rank],
            &QueuedCall { group: made[0][rank as usize], ..QueuedCall::new(task, Some(timeout)) },
        );
    }
    let limit = world.now() + 2 * timeout;
    assert!(world.run_to_the_end(limit));
    // Each rank's next call is the one that the other has waited for.
    for rank in [0, 1] {
        let task = Task::sum(3, 2, &mut world.rng);
        world.call(
            [rank],
            &QueuedCall { group: made[0][1 - rank as usize], ..QueuedCall::new(task, Some(timeout)) },
        );
    }
    let limit = world.now() + timeout;
    assert!(world.run_to_the_end(limit));
    let cases = [(0, 0, 1, second, "first"), (1, 0, 0, first, "second")];
    let later = [(0, 1, 0, first, "second"), (1, 1, 1, second, "first")];
    for (rank, at, other, its, own) in cases.into_iter().chain(later) {
        let ends = world.machine(rank).ends().split_off(1);
        let Some(Some(Err(error))) = ends.get(at) else { panic!("{ends:?}") };
        let expected = format!(
            "rank {other} to make this call of group \"the {own} one\": rank {other} waits in {its}; {REMEDY}"
        );
        assert!(
            matches!(error.kind(), ErrorKind::Timeout { missing, .. } if *missing == [expected]),
            "{error}"
        );
    }
}
