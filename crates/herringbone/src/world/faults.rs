//! What ranks are told, and exactly when, when processes end, hang, leave or disagree, and links break: twins of the tests in
//! `tests/faults`, which need seconds there.

mod links;
mod messages;
mod reducers;

use super::{Setup, VirtualWorld, calls::Task, event::WorldEvent, machine::QueuedCall};
use crate::{
    Collective, DType, ErrorKind, ReduceOp,
    clock::Moment,
    core::prepare::Call,
    core::session::{
        Cause,
        control::{Death, Decision, Message},
        recovery::{Calls, Resume},
        stragglers::Late,
        survivors::{ShrinkOutcome, Shrunk},
        watch::{Effect, GroupEvent, RankPatience, Watch},
    },
    fabric::control::LAST_OUT,
};
use std::{cell::RefCell, rc::Rc, time::Duration};

const LARGE: usize = 100_000;

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// Sizes of a single message, of several, and of several segments.
const COUNTS: [usize; 3] = [3, 5000, LARGE];

/// A world in which the first sums have made all links, 1.05 s after it began, which is between two ticks.
fn begun(workers: u32, reducers: u32, seed: u64) -> VirtualWorld {
    begun_as(Setup::of(workers, reducers), seed)
}

fn begun_as(setup: Setup, seed: u64) -> VirtualWorld {
    let mut world = VirtualWorld::new(setup, seed);
    works(&mut world);
    world.run_for(ms(1050) - world.now());
    world
}

/// Has ranks sum so many numbers.
fn sum(
    world: &mut VirtualWorld,
    ranks: impl IntoIterator<Item = u32>,
    count: usize,
    timeout: Option<Duration>,
) {
    // Averages of shards show by what they divide.
    let op = if world.setup.shards.is_some() { ReduceOp::Average } else { ReduceOp::Sum };
    let call = Call::new(Collective::AllReduce, DType::F32, op, count);
    let task = Task::of_group(call, &world.setup.fold(), &mut world.rng);
    world.call(ranks, &QueuedCall::new(task, timeout));
}

/// How a rank's last call failed, and when.
#[track_caller]
fn error_of(world: &mut VirtualWorld, rank: u32) -> (Duration, ErrorKind) {
    let seed = world.seed;
    let called = world.machine(rank as usize).called.last().expect("it has called");
    match &called.ended {
        Some((at, Err(error))) => (at.since(Moment::default()), error.kind().clone()),
        Some((_, Ok(()))) => panic!("seed {seed}: rank {rank}'s call has succeeded"),
        None => panic!("seed {seed}: rank {rank}'s call has not ended"),
    }
}

/// Asserts that a rank's last call failed at this time, to the millisecond, because these ranks are lost.
#[track_caller]
fn lost(world: &mut VirtualWorld, rank: u32, at: Duration, expected: &[u32]) {
    let (failed_at, kind) = error_of(world, rank);
    assert!(matches!(&kind, ErrorKind::PeerLost { ranks, .. } if ranks == expected), "rank {rank}: {kind:?}");
    assert_eq!(failed_at.as_millis(), at.as_millis(), "rank {rank}");
}

/// Asserts that the group works: the next sums of all that run are right.
#[track_caller]
fn works(world: &mut VirtualWorld) {
    let limit = world.now() + ms(5000);
    for count in COUNTS {
        let ranks: Vec<u32> = world.workers().map(|(rank, _)| rank).collect();
        sum(world, ranks, count, None);
    }
    assert!(world.run_to_the_end(limit), "seed {}: the group hangs", world.seed);
    for (rank, worker) in world.workers() {
        let ends = worker.ends();
        assert!(
            ends[ends.len() - 3..].iter().all(|end| matches!(end, Some(Ok(())))),
            "rank {rank}: {ends:?}"
        );
    }
    assert_eq!(world.problems(), [""; 0], "seed {}", world.seed);
}

/// Twin of `deaths::a_killed_rank_is_named`.
#[test]
fn a_killed_rank_is_named_at_once() {
    for (seed, reducers) in [(0, 0), (1, 2)] {
        let mut world = begun(4, reducers, seed);
        sum(&mut world, 0..4, LARGE, None);
        world.kill(3);
        assert!(world.run_to_the_end(ms(5000)));
        (0..3).for_each(|rank| lost(&mut world, rank, ms(1050), &[3]));
        sum(&mut world, 0..3, 3, None);
        let now = world.now();
        (0..3).for_each(|rank| lost(&mut world, rank, now, &[3]));
    }
}

/// Twin of `deaths::a_killed_rank_0_is_named`: with it the hub is gone.
#[test]
fn a_killed_rank_0_is_named_at_once() {
    let mut world = begun(4, 0, 2);
    sum(&mut world, 0..4, LARGE, None);
    world.kill(0);
    assert!(world.run_to_the_end(ms(5000)));
    (1..3).for_each(|rank| lost(&mut world, rank, ms(1050), &[0]));
    // It exchanges nothing with rank 0 itself, and nobody is left to say that others have given up.
    lost(&mut world, 3, ms(1400), &[0]);
}

/// What a rank says is not trusted: one that tells of the end of a rank that there is not, or of a reducer's, is itself lost.
#[test]
fn a_rank_that_tells_of_the_end_of_no_rank_is_named() {
    for (named, reducers) in [(u32::MAX, 0), (4, 0), (4, 1)] {
        let death = Death::Exited;
        for message in [Message::Dead { rank: named, death }, Message::Leave { rank: named }] {
            let mut world = begun(4, reducers, 3);
            sum(&mut world, [0, 1, 3], LARGE, None);
            world.after(Duration::ZERO, WorldEvent::Said { from: 2, to: 0, message });
            world.run_for(ms(100));
            let ends = [0, 1, 3].map(|rank| error_of(&mut world, rank).1);
            let names_it =
                |kind: &ErrorKind| matches!(kind, ErrorKind::PeerLost { ranks, .. } if ranks == &[2]);
            assert!(ends.iter().all(names_it), "{ends:?}");
            // Where the hub's decision comes first it says less.
            assert!(format!("{ends:?}").contains("broke the protocol"), "{ends:?}");
        }
    }
}

/// The rank that rank 0 told takes rank 0 for lost.
#[test]
fn a_hub_that_tells_of_the_end_of_no_rank_is_named() {
    let mut world = begun(4, 0, 4);
    let message = Message::Leave { rank: u32::MAX };
    world.after(Duration::ZERO, WorldEvent::Said { from: 0, to: 3, message });
    world.run_for(ms(100));
    sum(&mut world, [3], LARGE, None);
    let (_, kind) = error_of(&mut world, 3);
    assert!(matches!(&kind, ErrorKind::PeerLost { ranks, .. } if ranks == &[0]), "{kind:?}");
}

/// What only the hub says, as another rank could.
fn forged() -> [Message; 7] {
    let cause = || Cause::LinkLost { from: 0, to: 1 };
    let resume = Resume {
        group: 0,
        calls: Calls { next: 3, ..Calls::default() },
        lost: Vec::new(),
        gained: Vec::new(),
        operations: Vec::new(),
    };
    let shrunk =
        Shrunk { group: 0, outcome: ShrinkOutcome::TooFew { left: vec![0, 2], least: 3 }, completed: 3 };
    [
        Message::Recover { group: 0 },
        Message::Resume(resume),
        Message::Fence { group: 0, generation: 0, cause: cause(), ordinal: None },
        Message::Decide(Decision { group: 0, generation: 0, next: 9, cause: cause() }),
        Message::Late(Late { group: 0, sequence: 3, ranks: vec![1] }),
        Message::Shrunk(shrunk),
        Message::Members(VirtualWorld::new(Setup::of(4, 0), 0).roster.as_ref().clone()),
    ]
}

/// The group neither stands still nor ends because another rank says what only the hub does: that rank is lost.
#[test]
fn a_rank_that_decides_in_place_of_the_hub_is_named() {
    for message in forged() {
        let mut world = begun(4, 1, 3);
        sum(&mut world, [0, 1, 3], LARGE, None);
        let what = format!("{message:?}");
        world.after(Duration::ZERO, WorldEvent::Said { from: 2, to: 0, message });
        world.run_for(ms(100));
        for rank in [0, 1, 3] {
            let (_, kind) = error_of(&mut world, rank);
            assert!(matches!(&kind, ErrorKind::PeerLost { ranks, .. } if ranks == &[2]), "{what}: {kind:?}");
        }
    }
}

/// Where a rank is connected to others than the hub, these say nothing in its place either.
#[test]
fn ranks_take_from_others_nothing_that_the_hub_says() {
    let world = VirtualWorld::new(Setup::of(4, 0), 0);
    let waits = begun(2, 0, 0).machine(1).engine.runtime.groups.get(0).unwrap().state.waiting(2, 0).unwrap();
    for message in forged().into_iter().chain([waits, Message::Forget { group: 0 }]) {
        let patience = RankPatience { silence: world.setup.patience, linger: LAST_OUT };
        let mut watch = Watch::new(1, world.roster.clone(), [0, 2], patience, Duration::ZERO);
        let what = format!("{message:?}");
        watch.message(2, message.clone());
        let mut effects = std::iter::from_fn(|| watch.next_effect());
        let takes = |effect: Effect| matches!(effect, Effect::Groups(GroupEvent::FromHub(_)));
        assert!(!effects.any(takes), "{what}");
    }
}

/// A call that waits for its group to go on obeys its timeout, and takes its number when the group does: the ranks' next calls
/// meet.
#[test]
fn a_call_obeys_its_timeout_while_its_group_stands_still() {
    for recovers in [true, false] {
        let mut world = begun(3, 1, 5);
        // For too short to be given up: a recovery, or a fence, waits for it.
        world.hang(2);
        if recovers {
            world.kill(3);
        } else {
            sum(&mut world, [0], 3, None);
            sum(&mut world, [1], 4, None);
            world.machine(0).window = 2;
        }
        world.run_for(ms(100));
        let group = &world.machine(0).engine.runtime.groups.get(0).unwrap();
        assert!(group.state.is_undecided(), "the test needs a group that stands still");
        sum(&mut world, [0], 5, Some(ms(1000)));
        world.run_for(ms(2000));
        let (at, kind) = error_of(&mut world, 0);
        assert!(matches!(kind, ErrorKind::Timeout { rank: 0, .. }), "{kind:?}");
        // It is looked at when a thread tries again, or ten times a second.
        assert!((2150..=2250).contains(&at.as_millis()), "{at:?}");
        world.resume(2);
        if !recovers {
            sum(&mut world, [2], 3, None);
        }
        sum(&mut world, [1, 2], 5, None);
        assert!(world.run_to_the_end(ms(9000)), "recovers: {recovers}");
        for rank in [1, 2] {
            let (_, kind) = error_of(&mut world, rank);
            assert!(matches!(kind, ErrorKind::Timeout { rank: 0, .. }), "rank {rank}: {kind:?}");
        }
        works(&mut world);
    }
}

/// Ranks, and whom they were told to be late.
type LateReports = Vec<(usize, Vec<u32>)>;

/// Whom ranks are told to be late, where rank 1 makes so many calls five seconds after the others.
fn late_reports(mut world: VirtualWorld, calls: usize) -> LateReports {
    let reports: Rc<RefCell<LateReports>> = Rc::default();
    let heard = reports.clone();
    world.network.filter = Some(Box::new(move |to, message| {
        if let Message::Late(late) = message {
            heard.borrow_mut().push((to, late.ranks.clone()));
        }
        true
    }));
    world.workers().for_each(|(_, worker)| worker.window = calls);
    (0..calls).for_each(|_| sum(&mut world, [0, 2, 3], 3, None));
    world.run_for(ms(5000));
    (0..calls).for_each(|_| sum(&mut world, [1], 3, None));
    let limit = world.now() + ms(9000);
    assert!(world.run_to_the_end(limit));
    world.network.filter = None;
    reports.take()
}

/// Ranks that have called are not said to be late, though their links are yet to be made or they have many calls under way; and
/// ranks are told once.
#[test]
fn only_the_late_rank_is_named_and_once() {
    let expected: LateReports = (1..4).map(|to| (to, vec![1])).collect();
    for (calls, reducers) in [(1, 0), (300, 0), (30, 1)] {
        let first = VirtualWorld::new(Setup::of(4, reducers), 8);
        assert_eq!(late_reports(first, calls), expected, "{calls} calls are the first");
        assert_eq!(late_reports(begun(4, reducers, 8), calls), expected, "{calls} calls, with links");
    }
}

/// Twin of `deaths::a_stopped_rank_is_named`: it was last heard at the heartbeat of 1.0 s, and is dead 6 s later.
#[test]
fn a_stopped_rank_is_named_after_six_seconds() {
    for reducers in [0, 2] {
        let mut world = begun(3, reducers, 3);
        world.hang(1);
        sum(&mut world, [0, 2], LARGE, None);
        assert!(world.run_to_the_end(ms(20_000)));
        [0, 2].into_iter().for_each(|rank| lost(&mut world, rank, ms(7100), &[1]));
    }
}

/// A rank that was stopped for less is not lost, and ends its calls.
#[test]
fn a_rank_that_was_stopped_for_five_seconds_goes_on() {
    let mut world = begun(3, 0, 4);
    world.hang(1);
    sum(&mut world, 0..3, LARGE, None);
    world.run_for(ms(5000));
    assert!(!world.machine(0).is_done());
    world.resume(1);
    works(&mut world);
}

/// Ranks that are to be patient give up nobody sooner, and warn later.
#[test]
fn a_rank_is_given_up_after_the_patience_that_is_set() {
    for patience in [6, 30] {
        let setup = Setup { patience: Duration::from_secs(patience), ..Setup::of(3, 0) };
        let mut world = VirtualWorld::new(setup, 1);
        works(&mut world);
        world.hang(2);
        world.run_for(Duration::from_secs(patience) - ms(1200));
        world.resume(2);
        works(&mut world);
        world.hang(2);
        let (began, limit) = (world.now(), Duration::from_secs(100));
        sum(&mut world, 0..2, 3, None);
        assert!(world.run_until(limit, |world| world.workers().take(2).all(|(_, worker)| worker.is_done())));
        let (at, error) = error_of(&mut world, 0);
        assert!(matches!(&error, ErrorKind::PeerLost { ranks, .. } if ranks == &[2]), "{error:?}");
        let waited = at - began;
        assert!(
            (patience * 1000 - 1100..=patience * 1000 + 200).contains(&(waited.as_millis() as u64)),
            "{waited:?}"
        );
    }
}

/// A machine whose processes get little time of its processors: a rank gets none for longer than others wait, but rank 0 gets
/// so little itself that it cannot know.
#[test]
fn a_starved_rank_0_gives_others_the_time_that_it_lacks_itself() {
    let mut world = begun(3, 0, 1);
    world.hang(2);
    for _ in 0..6 {
        (0..2).for_each(|rank| world.hang(rank));
        world.run_for(ms(1500));
        (0..2).for_each(|rank| world.resume(rank));
        world.run_for(ms(200));
    }
    world.resume(2);
    works(&mut world);
}

/// Twin of `deaths::a_job_that_stood_still_as_a_whole_goes_on`.
#[test]
fn a_job_that_stood_still_as_a_whole_goes_on() {
    let mut world = begun(3, 2, 5);
    sum(&mut world, 0..3, LARGE, None);
    (0..5).for_each(|at| world.hang(at));
    world.run_for(ms(8000));
    (0..5).for_each(|at| world.resume(at));
    world.run_for(ms(8000));
    works(&mut world);
}

/// Twin of `timeouts::a_late_rank_is_named_and_may_come_back`.
#[test]
fn a_late_rank_is_named_after_the_timeout_and_may_come_back() {
    for (reducers, count) in [(0, 3), (0, LARGE), (1, 3), (1, LARGE)] {
        let mut world = begun(3, reducers, 9);
        let queued = QueuedCall::new(Task::sum(count, 3, &mut world.rng), Some(ms(1000)));
        world.call(0..2, &queued);
        world.run_for(ms(2000));
        world.call([2], &queued);
        assert!(world.run_to_the_end(ms(10_000)));
        for (rank, at) in [(0, 2100), (1, 2100), (2, 3050)] {
            let (failed_at, kind) = error_of(&mut world, rank);
            let ErrorKind::Timeout { missing, after, .. } = &kind else { panic!("rank {rank}: {kind:?}") };
            assert_eq!((*after, &missing[..]), (ms(1000), &["rank 2".to_owned()][..]), "rank {rank}");
            assert_eq!(failed_at.as_millis(), at, "rank {rank}, {reducers} reducers, {count} numbers");
        }
        works(&mut world);
    }
}

/// Nobody decides while the hub is stopped: two seconds after its timeout an operation fails by itself.
#[test]
fn without_a_decision_an_operation_fails_two_seconds_after_its_timeout() {
    let mut world = begun(3, 0, 10);
    world.hang(0);
    sum(&mut world, 1..3, LARGE, Some(ms(1000)));
    assert!(world.run_to_the_end(ms(6000)));
    for rank in 1..3 {
        let (at, kind) = error_of(&mut world, rank);
        assert!(matches!(kind, ErrorKind::Timeout { .. }), "{kind:?}");
        assert_eq!(at.as_millis(), 4100, "rank {rank}");
    }
}

/// Twin of `deaths::a_rank_that_leaves_early_is_named`: others have 300 ms to name a better cause. Where there was no link to
/// it, one could still be on its way for a second.
#[test]
fn a_rank_that_leaves_early_is_named_after_its_grace() {
    for (reducers, at) in [(0, 1400), (1, 2100)] {
        let mut world = begun(3, reducers, 11);
        world.leave(2);
        sum(&mut world, 0..2, LARGE, None);
        assert!(world.run_to_the_end(ms(10_000)));
        (0..2).for_each(|rank| lost(&mut world, rank, ms(at), &[2]));
    }
}

/// Twin of `endings::a_broadcast_outlives_its_root`: what the root sent came early, and is used though its grace is over.
#[test]
fn a_broadcast_outlives_its_root() {
    for (seed, later) in [(40, 100), (41, 500), (42, 5000)] {
        let mut world = begun(3, 0, seed);
        let broadcast = Collective::Broadcast { root: 2 };
        let call = Call::new(broadcast, DType::U8, ReduceOp::Sum, 80);
        let task = Task::new(call, 3, &mut world.rng);
        world.call([2], &QueuedCall::new(task.clone(), None));
        assert!(world.run_to_the_end(ms(2000)), "the root waits for others");
        world.leave(2);
        world.run_for(ms(later));
        world.call(0..2, &QueuedCall::new(task, None));
        assert!(world.run_to_the_end(ms(10_000)));
        for rank in 0..2 {
            let end = world.machine(rank).ends().pop().flatten();
            assert!(matches!(end, Some(Ok(()))), "rank {rank}, {later} ms later: {end:?}");
        }
        assert_eq!(world.problems(), [""; 0], "seed {seed}");
    }
}

/// Twin of `deaths::ranks_that_leave_after_their_last_operation_harm_nobody`: all leave, rank 0 last.
#[test]
fn ranks_that_leave_after_their_last_operation_harm_nobody() {
    for seed in 0..20 {
        let mut world = VirtualWorld::new(Setup::of(4, (seed % 3) as u32), seed);
        sum(&mut world, 0..4, LARGE, None);
        let mut left = [false; 4];
        let ended = world.run_until(ms(5000), |world| {
            for (rank, left) in left.iter_mut().enumerate() {
                let Some(worker) = world.machines[rank].as_mut().filter(|worker| worker.is_done()) else {
                    continue;
                };
                if !std::mem::replace(left, true) {
                    assert!(matches!(worker.ends()[..], [Some(Ok(()))]), "seed {seed}: {:?}", worker.ends());
                    world.leave(rank);
                }
            }
            world.workers().count() == 0
        });
        assert!(ended, "seed {seed}: not all have left");
    }
}
