//! Collectives that only move parts: what they cost, and in which order their messages leave.

use herringbone_core::algorithm::cost::Messages;
use herringbone_core::algorithm::{Algorithm, Layout};
use herringbone_core::collective::Collective;
use herringbone_core::group::Group;
use herringbone_core::schedule::{Program, Rank, Schedule, Step};
use herringbone_core::verify::{Order, verify};
use std::collections::BTreeSet;

fn schedule(collective: Collective, size: u32) -> Schedule {
    Algorithm::OneShot.schedule(collective, &Group::of_size(size), &Layout::default()).unwrap()
}

/// The first receiver of a program's send.
fn first_receiver(program: &Program, send: usize) -> Rank {
    let receivers = program.steps().iter().filter_map(|step| match *step {
        Step::Send { to, .. } => program.lanes(to).first(),
        _ => None,
    });
    *receivers.into_iter().nth(send).unwrap()
}

/// Whatever the fold keys are, since nothing is folded.
#[test]
fn parts_are_proved_for_any_root() {
    for size in 1..=64 {
        for root in [0, size / 3, size - 1] {
            for collective in
                [Collective::Gather { root }, Collective::Scatter { root }, Collective::AllToAll]
            {
                let proved = verify(schedule(collective, size), collective, &Group::of_size(size)).unwrap();
                assert_eq!(proved.order(), Order::Fixed, "{collective} of {size}");
            }
        }
    }
}

/// Each part goes once: to the root, from it, or to every other rank. No two ranks of an all_to_all begin with one receiver.
#[test]
fn parts_go_once_and_straight_to_where_they_belong() {
    for size in 2..=64 {
        let cost = |collective| {
            let verified = verify(schedule(collective, size), collective, &Group::of_size(size)).unwrap();
            assert!(verified.serial(), "{collective} of {size}");
            verified.cost()
        };
        let gathered = cost(Collective::Gather { root: 1 });
        assert_eq!((gathered.chunks, gathered.rounds), (size, 1));
        assert_eq!((gathered.worker.sent.count(), gathered.worker.received.count()), (1, size - 1));
        let scattered = cost(Collective::Scatter { root: 1 });
        assert_eq!((scattered.worker.sent.count(), scattered.worker.received.count()), (size - 1, 1));
        let exchanged = cost(Collective::AllToAll);
        assert_eq!((exchanged.chunks, exchanged.rounds), (size, 1));
        assert_eq!(exchanged.worker.sent, Messages { plain: size - 1, acc: 0, coded: 0 });
        assert_eq!(exchanged.worker.received, Messages { plain: size - 1, acc: 0, coded: 0 });
        let exchange = schedule(Collective::AllToAll, size);
        for step in 0..size as usize - 1 {
            let receiver = |rank| first_receiver(&exchange.program(rank), step);
            let receivers: BTreeSet<Rank> = (0..size).map(receiver).collect();
            assert_eq!(receivers.len() as u32, size, "step {step} of {size}");
        }
    }
}

#[test]
fn other_algorithms_say_which_one_moves_parts() {
    for collective in [Collective::Gather { root: 0 }, Collective::Scatter { root: 0 }, Collective::AllToAll]
    {
        let refused = Algorithm::Tree.schedule(collective, &Group::of_size(4), &Layout::default());
        assert!(refused.unwrap_err().to_string().ends_with("use one_shot"), "{collective}");
    }
}
