//! A rank that does not call: the others are told whom they waited for, and go on once it comes.

use crate::world::{Over, check_sums, settle, sum, world};
use herringbone::{Communicator, Error, ErrorKind};
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(1);
/// For a busy machine.
const MARGIN: Duration = Duration::from_secs(9);

/// The last rank comes late for a sum of `count` elements, and the others give up before; what a rank is told.
fn late_rank(comm: &Communicator, count: usize) -> Error {
    check_sums(comm);
    if comm.rank() == comm.size() - 1 {
        std::thread::sleep(2 * TIMEOUT);
    } else {
        comm.set_timeout(TIMEOUT);
    }
    let began = Instant::now();
    let error = settle(comm, sum(comm, count), |kind| matches!(kind, ErrorKind::Timeout { .. }));
    assert!(began.elapsed() < TIMEOUT + MARGIN, "{:?}", began.elapsed());
    comm.set_timeout(Duration::from_secs(20));
    check_sums(comm);
    error
}

fn names_the_late(ranks: u32, over: Over, count: usize) {
    for error in world(ranks, over, |comm| late_rank(comm, count)) {
        let (text, late) = (error.to_string(), ranks - 1);
        let ErrorKind::Timeout { rank, .. } = error.kind() else { panic!("{text}") };
        assert!(*rank < late, "{text}");
        assert!(text.contains(&format!("1 s passed on rank {rank} while waiting for rank {late}")), "{text}");
    }
}

#[test]
fn a_late_rank_is_named_and_may_come_back() {
    std::thread::scope(|scope| {
        for over in Over::ALL {
            scope.spawn(move || names_the_late(3, over, 3));
        }
    });
}

#[test]
fn a_rank_that_is_late_for_a_large_message_is_named() {
    std::thread::scope(|scope| {
        for over in [Over::Shm, Over::Tcp] {
            scope.spawn(move || names_the_late(2, over, 100_000));
        }
    });
}

/// A reducer waits for the late rank as the others do, and is not blamed.
#[test]
fn a_rank_that_is_late_for_a_reducer_fails_the_operation_only() {
    world(3, Over::Reducer, |comm| late_rank(comm, 100_000));
}

/// Reducers that wait for a rank send nothing for long, but for signs of life.
#[test]
fn reducers_that_wait_for_long_are_not_lost() {
    world(3, Over::Reducer, |comm| {
        check_sums(comm);
        if comm.rank() == 1 {
            std::thread::sleep(Duration::from_secs(8));
        }
        sum(comm, 100_000).unwrap();
    });
}
