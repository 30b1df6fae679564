//! Links that break or carry damage, and ranks that disagree: all are told at once, and go on.

use super::*;
use crate::{transport::tcp::virtual_link::PipeEnd, world::planted::payload_once};

fn barrier(world: &mut VirtualWorld) -> Rc<Task> {
    let call = Call::new(Collective::Barrier, DType::U8, ReduceOp::Sum, 0);
    Task::new(call, world.setup.workers, &mut world.rng)
}

/// Ranks call these, rank 1 the other one; what is small is found out by the first message, and so is what is large.
fn disagree(world: &mut VirtualWorld, usual: &QueuedCall, odd: &QueuedCall) {
    let workers = world.setup.workers;
    world.call((0..workers).filter(|rank| *rank != 1), usual);
    world.call([1], odd);
    assert!(world.run_to_the_end(world.now() + ms(5000)), "seed {}", world.seed);
}

/// Twin of `disagreement::over_tcp` and `through_a_reducer`.
#[test]
fn ranks_that_disagree_are_told_at_once_and_go_on() {
    for (seed, reducers) in [(12, 0), (13, 1)] {
        for (one, other) in [(3, 4), (3, LARGE), (LARGE, LARGE + 1)] {
            let mut world = begun(4, reducers, seed);
            let [usual, odd] =
                [one, other].map(|count| QueuedCall::new(Task::sum(count, 4, &mut world.rng), None));
            disagree(&mut world, &usual, &odd);
            for rank in 0..4 {
                let (at, kind) = error_of(&mut world, rank);
                assert!(matches!(kind, ErrorKind::Mismatch { .. }), "rank {rank}: {kind:?}");
                assert_eq!(at.as_millis(), 1050, "rank {rank}, {one} or {other} numbers");
            }
            works(&mut world);
        }
    }
}

/// Has ranks call barriers until one succeeds after an error. Asserts that each is told that a link broke, at this time if it
/// was in the middle of a call.
#[track_caller]
fn settle(world: &mut VirtualWorld, at: Duration) {
    let (seed, task, limit) = (world.seed, barrier(world), world.now() + ms(5000));
    let mut reported: Vec<bool> = world.machines.iter().map(|_| false).collect();
    let settled = world.run_until(limit, |world| {
        let mut next = Vec::new();
        for (rank, worker) in world.workers().filter(|(_, worker)| worker.is_done()) {
            let (ended, end) = worker.called.last().and_then(|called| called.ended.clone()).expect("a call");
            if let Err(error) = &end {
                assert!(
                    matches!(error.kind(), ErrorKind::Corrupt { .. } | ErrorKind::LinkLost { .. }),
                    "seed {seed}: rank {rank}: {error}"
                );
                assert!(ended.since(Moment::default()) >= at, "seed {seed}: rank {rank}");
                reported[rank as usize] = true;
            }
            if end.is_err() || !reported[rank as usize] {
                next.push(rank);
            }
        }
        let settled = next.is_empty() && world.workers().all(|(_, worker)| worker.is_done());
        world.call(next, &QueuedCall::new(task.clone(), None));
        settled
    });
    assert!(settled && reported.iter().all(|is| *is), "seed {seed}: {reported:?} of the ranks were told");
}

/// A link of rank 0 whose connection breaks, or of which a byte changes on its way, fails what needs it `at` this time, on all
/// ranks, and is made again. Damage is said at the next look at the time. A connection that is only closed waits half a second,
/// because another rank may know why.
fn break_link(seed: u64, at: Duration, fault: impl FnOnce(&mut VirtualWorld)) {
    let mut world = begun(3, 0, seed);
    fault(&mut world);
    sum(&mut world, 0..3, LARGE, None);
    assert!(world.run_to_the_end(ms(10_000)));
    assert_eq!(world.now().as_millis(), at.as_millis(), "seed {seed}");
    settle(&mut world, at);
    works(&mut world);
}

#[test]
fn a_byte_that_changes_on_its_way_is_found_and_the_link_made_again() {
    for seed in 0..20 {
        break_link(seed, ms(1100), |world| {
            let PipeEnd { link, side } = world.link(0, 1).expect("a link");
            let (after, bit) = (world.rng.below(50_000) as usize, world.rng.below(8));
            link.flip(side, after, 1 << bit);
        });
    }
}

/// What is done to a message.
type Damage = fn(&mut Vec<u8>);

/// A coded message that no codec writes is refused, though its checksums are right. All ranks are told whose it was and what is
/// wrong.
#[test]
fn a_coded_message_that_no_codec_writes_closes_its_link_and_names_its_sender() {
    // What a message begins with, after its prefix of 4 bytes: for topk the indices, for int8 the tag.
    let cases: [(&str, Damage, &str); 5] = [
        ("topk:0.01", |coded| coded[4..6].fill(0xff), "an index out of range or out of order"),
        ("int8", |coded| coded[4] = 77, "a code that its codec does not have"),
        ("twobit:0.5", |coded| coded[5] = 0b0100_0000, "a code that its codec does not have"),
        ("fp16", |coded| coded[..4].fill(0xff), "with another length than its prefix"),
        (
            "exact",
            |coded| {
                coded.pop();
                coded[0] = coded[0].wrapping_sub(1);
            },
            "ends within a block",
        ),
    ];
    for (codec, damage, problem) in cases {
        let mut world = begun(3, 0, 43);
        let PipeEnd { link, side } = world.link(1, 0).expect("a link");
        link.tamper(side, payload_once(damage));
        let task = Task::coded_by(codec, 30_000, 3, &mut world.rng);
        world.call(0..3, &QueuedCall::new(task, None));
        assert!(world.run_to_the_end(ms(5000)), "{codec}");
        for rank in 0..3 {
            let (_, kind) = error_of(&mut world, rank);
            let ErrorKind::Protocol { from, problem: said } = &kind else {
                panic!("{codec}, rank {rank}: {kind:?}")
            };
            assert_eq!(from, "rank 1", "{codec}, rank {rank}: {said}");
            assert!(said.contains(problem) && said.contains(codec), "{codec}, rank {rank}: {said}");
        }
    }
}

#[test]
fn a_connection_that_breaks_in_the_middle_is_made_again() {
    for seed in 0..20 {
        break_link(seed, ms(1600), |world| {
            let after = Duration::from_micros(100 + world.rng.below(100));
            let cut = |world: &mut VirtualWorld| world.link(0, 1).expect("a link").link.cut();
            world.later(after, cut);
        });
    }
}
