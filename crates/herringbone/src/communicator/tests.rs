//! What a defect of the engine does to a group.

use crate::{ErrorKind, core::element::ReduceOp, local};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Barrier,
    time::{Duration, Instant},
};

/// Long before any timeout, every rank is told which rank's engine panicked, in operations under way and in later ones.
#[test]
fn a_panic_in_an_engine_ends_the_group_on_all_ranks() {
    let (began, ranks, all) = (Instant::now(), local(3).unwrap(), Barrier::new(3));
    std::thread::scope(|scope| {
        for comm in ranks {
            let all = &all;
            scope.spawn(move || {
                if comm.rank() == 1 {
                    std::thread::sleep(Duration::from_millis(50));
                    let defect =
                        AssertUnwindSafe(|| comm.fabric.node.with(|_| panic!("a defect, for a test")));
                    assert!(catch_unwind(defect).is_err());
                }
                for _ in 0..2 {
                    let error = comm.all_reduce(&mut [1.0_f32; 1000], ReduceOp::Sum).unwrap_err();
                    let ErrorKind::Protocol { from, .. } = error.kind() else { panic!("{error}") };
                    assert_eq!(from, "rank 1", "{error}");
                }
                // Else one that leaves at once could be what the others hear of first.
                all.wait();
            });
        }
    });
    assert!(began.elapsed() < Duration::from_secs(5));
}
