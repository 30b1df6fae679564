//! A rank that does not call: the others are told whom they waited for, and go on once it comes.

use crate::world::{Over, check_sums, settle, sum, world};
use herringbone::{Communicator, ErrorKind};
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(1);

fn late_rank(comm: &Communicator, count: usize) {
    let late = comm.size() - 1;
    check_sums(comm);
    if comm.rank() == late {
        std::thread::sleep(2 * TIMEOUT);
    } else {
        comm.set_timeout(TIMEOUT);
    }
    let began = Instant::now();
    let error = settle(comm, sum(comm, count), |kind| matches!(kind, ErrorKind::Timeout { .. }));
    assert!(began.elapsed() < 10 * TIMEOUT);
    let text = error.to_string();
    assert!(text.contains(&format!("waiting for rank {late}")), "{text}");
    comm.set_timeout(Duration::from_secs(20));
    check_sums(comm);
}

#[test]
fn a_late_rank_is_named_and_may_come_back() {
    std::thread::scope(|scope| {
        for over in Over::ALL {
            scope.spawn(move || world(3, over, |comm| late_rank(comm, 3)));
        }
    });
}

#[test]
fn a_rank_that_is_late_for_a_large_message_is_named() {
    std::thread::scope(|scope| {
        for over in Over::ALL {
            scope.spawn(move || world(2, over, |comm| late_rank(comm, 100_000)));
        }
    });
}
