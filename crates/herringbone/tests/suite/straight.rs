//! Small operations of a thread that waits for them, which run straight through: undisturbed, and with everything that
//! can come in between.

use crate::world::{Transport, World};
use herringbone::{Communicator, ReduceOp};
use std::{
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

/// Elements of messages that fit a ring's cell, a cell's slot, and neither.
const COUNTS: [usize; 6] = [1, 7, 21, 256, 1000, 3000];

/// One all-reduce whose sum tells which operation it was.
fn sum(comm: &Communicator, operation: usize) {
    let count = COUNTS[operation % COUNTS.len()];
    let mut values = vec![operation as i64 + i64::from(comm.rank()); count];
    comm.all_reduce(&mut values, ReduceOp::Sum).unwrap();
    let ranks = i64::from(comm.size());
    assert_eq!(
        values,
        vec![ranks * operation as i64 + ranks * (ranks - 1) / 2; count],
        "operation {operation}"
    );
}

#[test]
fn every_size_and_number_of_ranks() {
    for ranks in [1, 2, 3, 5, 8, 13] {
        World::new(ranks, Transport::Local).run(|comm| (0..100).for_each(|operation| sum(comm, operation)));
    }
}

/// Another thread takes the engine again and again, and makes ordinary operations of what runs straight.
#[test]
fn whoever_needs_the_engine_interrupts() {
    World::new(4, Transport::Local).run(|comm| {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let _counts = comm.stats();
                    comm.progress();
                }
            });
            (0..150).for_each(|operation| sum(comm, operation));
            over.store(true, Ordering::Relaxed);
        });
    });
}

/// Ranks that wait for a late one yield, and make an ordinary operation of their run if it is very late.
#[test]
fn ranks_wait_until_a_late_one_sends() {
    for (ranks, transport) in [(2, Transport::Shm), (5, Transport::Local), (9, Transport::Local)] {
        World::new(ranks, transport).run(|comm| {
            for operation in 0..24 {
                if operation % ranks as usize == comm.rank() as usize {
                    thread::sleep(Duration::from_millis([0, 1, 5, 15][operation % 4]));
                }
                sum(comm, operation);
            }
        });
    }
}

/// Ranks that are ahead leave their messages with one that is late, which has not even begun then.
#[test]
fn messages_come_before_their_operation() {
    World::new(3, Transport::Shm).run(|comm| {
        for round in 0..20_u32 {
            let late = round % comm.size() == comm.rank();
            let works: Vec<_> = (0..if late { 0 } else { 5 })
                .map(|_| comm.all_reduce_async(vec![1_u8; 40], ReduceOp::Sum).unwrap())
                .collect();
            if late {
                thread::sleep(Duration::from_millis(2));
                for _ in 0..5 {
                    let mut values = [1_u8; 40];
                    comm.all_reduce(&mut values, ReduceOp::Sum).unwrap();
                    assert_eq!(values, [3; 40]);
                }
            }
            works.into_iter().for_each(|work| assert_eq!(work.wait().unwrap(), [3; 40]));
        }
    });
}

/// A root that only sends has to be told that its messages were read, though nobody has anything else to tell it.
#[test]
fn one_rank_only_sends() {
    for bytes in [8, 4000] {
        World::new(4, Transport::Local).run(|comm| {
            for round in 0..500_u32 {
                let mut values = vec![if comm.rank() == 1 { round as u8 } else { 0 }; bytes];
                comm.broadcast(&mut values, 1).unwrap();
                assert_eq!(values, vec![round as u8; bytes]);
            }
        });
    }
}

/// What a rank has sent arrives although it does not call again.
#[test]
fn a_rank_sends_and_turns_to_something_else() {
    for bytes in [8, 4000] {
        let together = Barrier::new(4);
        World::new(4, Transport::Local).run(|comm| {
            if comm.rank() != 1 {
                thread::sleep(Duration::from_millis(100));
            }
            for round in 0..40_u32 {
                let mut values = vec![if comm.rank() == 1 { round as u8 } else { 0 }; bytes];
                comm.broadcast(&mut values, 1).unwrap();
                assert_eq!(values, vec![round as u8; bytes]);
            }
            together.wait();
        });
    }
}

/// One group's messages lie with a rank that is late in it, on the links that the other group's operations need too.
#[test]
fn another_group_crowds_the_link() {
    for ranks in [2, 3] {
        World::new(ranks, Transport::Local).run(|comm| {
            let crowd = comm.subgroup("crowd", &(0..ranks).collect::<Vec<_>>()).unwrap();
            let issue = || -> Vec<_> {
                let one = || crowd.all_reduce_async(vec![1_i32; 10], ReduceOp::Sum).unwrap();
                (0..200).map(|_| one()).collect()
            };
            let mut works = if comm.rank() == 0 { issue() } else { Vec::new() };
            (0..300).for_each(|operation| sum(comm, operation));
            if comm.rank() > 0 {
                works = issue();
            }
            works.into_iter().for_each(|work| assert_eq!(work.wait().unwrap(), [ranks as i32; 10]));
        });
    }
}

/// A rank leaves when the others may still have to read its last messages, and they go on in a group of their own.
#[test]
fn one_leaves_and_the_others_go_on() {
    World::new(4, Transport::Local).run(|comm| {
        let rest = (comm.rank() < 3).then(|| comm.subgroup("rest", &[0, 1, 2]).unwrap());
        (0..40).for_each(|operation| sum(comm, operation));
        if let Some(rest) = rest {
            (0..100).for_each(|operation| sum(&rest, operation));
        }
    });
}

/// Operations that leave memory behind for others to read, subgroups, and small ones in between.
#[test]
fn large_ones_and_other_groups_in_between() {
    World::new(4, Transport::Local).run(|comm| {
        let half: Vec<u32> = (0..4).filter(|rank| rank % 2 == comm.rank() % 2).collect();
        let half = comm.subgroup("half", &half).unwrap();
        for round in 0..30 {
            sum(comm, round);
            let mut large = vec![1.0_f32; 200_000];
            let work = comm.all_reduce_async(large.clone(), ReduceOp::Sum).unwrap();
            sum(&half, round);
            assert_eq!(work.wait().unwrap(), vec![4.0; 200_000]);
            comm.all_reduce(&mut large, ReduceOp::Sum).unwrap();
            sum(&half, round);
            comm.barrier().unwrap();
        }
    });
}
