//! Who moves operations, and how many there may be.

use crate::world::{Transport, World};
use herringbone::{Communicator, Config, ReduceOp, Rendezvous};
use std::time::Duration;

fn by_hand(size: u32) -> Vec<Communicator> {
    let config = Config::new(0, size, Rendezvous::Tcp(String::new())).manual_progress(true);
    herringbone::local_with(config).unwrap()
}

/// One thread can be all ranks of a world.
#[test]
fn one_thread_drives_several_ranks() {
    let ranks = by_hand(3);
    for count in [1, 1000, 300_000] {
        let begin = |comm: &Communicator| comm.all_reduce_async(vec![2_i64; count], ReduceOp::Sum).unwrap();
        let works: Vec<_> = ranks.iter().map(begin).collect();
        while !works.iter().all(|work| work.is_done()) {
            for comm in &ranks {
                comm.progress();
            }
        }
        for work in works {
            assert_eq!(work.wait().unwrap(), vec![6; count]);
        }
    }
    // What the ranks tell each other about the end of an operation comes to an end, too.
    while ranks.iter().any(Communicator::progress) {}
}

/// Without progress nothing moves, and whoever waits for an operation still drives it.
#[test]
fn nothing_drives_but_the_program() {
    let ranks = by_hand(2);
    let mut values = [[1.0_f32; 4]; 2];
    let (first, second) = values.split_at_mut(1);
    let works = ranks.iter().map(|comm| comm.all_reduce_async(vec![1.0_f32; 4], ReduceOp::Sum).unwrap());
    let works: Vec<_> = works.collect();
    std::thread::sleep(Duration::from_millis(50));
    assert!(works.iter().all(|work| !work.is_done()));
    std::thread::scope(|scope| {
        for (comm, values) in ranks.iter().zip([&mut first[0], &mut second[0]]) {
            scope.spawn(|| comm.all_reduce(values, ReduceOp::Sum).unwrap());
        }
    });
    assert_eq!(values, [[2.0; 4]; 2]);
    assert!(works.iter().all(|work| work.is_done()), "operations end in order");
}

/// Operations by the thousand, of which no more can be sent ahead than a link has slots for.
#[test]
fn thousands_of_small_operations_at_once() {
    const OPERATIONS: usize = 3000;
    for transport in [Transport::Shm, Transport::Tcp] {
        World::new(3, transport).run(|comm| {
            if comm.rank() == 1 {
                std::thread::sleep(Duration::from_millis(100));
            }
            let begin = |at| comm.all_reduce_async(vec![at as i64; 1 + at % 5], ReduceOp::Sum).unwrap();
            let works: Vec<_> = (0..OPERATIONS).map(begin).collect();
            for (at, work) in works.into_iter().enumerate().rev() {
                assert_eq!(work.wait().unwrap(), vec![3 * at as i64; 1 + at % 5]);
            }
        });
    }
}
