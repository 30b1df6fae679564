//! Ranks that call different operations are told so, all of them, and go on.

use crate::world::{Over, Together, check_sums, settle, world};
use herringbone::{Collective, Communicator, DType, Error, ErrorKind, ReduceOp, Region, Request};
use std::time::Duration;

/// What one rank does; rank 1 does something else than the others.
type Call = fn(&Communicator) -> Result<(), Error>;

fn all_reduce(comm: &Communicator, count: usize) -> Result<(), Error> {
    comm.all_reduce(&mut vec![1.0f32; count], ReduceOp::Sum)
}

/// An all-reduce that is for something else on rank 1.
fn marked(comm: &Communicator, count: usize) -> Result<(), Error> {
    let owned = Region::own(vec![1.0f32; count]);
    let region = owned.region().clone();
    let request = Request::new(Collective::AllReduce, DType::F32, count, region.clone(), region);
    comm.execute(request.mark(if odd(comm) { 8 } else { 7 }))
}

fn odd(comm: &Communicator) -> bool {
    comm.rank() == 1
}

const LARGE: usize = 100_000;

const CALLS: [(&str, Call); 16] = [
    ("count, small", |comm| all_reduce(comm, if odd(comm) { 4 } else { 3 })),
    ("count, small and large", |comm| all_reduce(comm, if odd(comm) { 3 } else { LARGE })),
    ("count, large", |comm| all_reduce(comm, if odd(comm) { LARGE + 1 } else { LARGE })),
    ("dtype, small", |comm| match odd(comm) {
        true => comm.all_reduce(&mut [1i32; 3], ReduceOp::Sum),
        false => all_reduce(comm, 3),
    }),
    ("dtype, large", |comm| match odd(comm) {
        true => comm.all_reduce(&mut vec![1i32; LARGE], ReduceOp::Sum),
        false => all_reduce(comm, LARGE),
    }),
    ("op, small", |comm| {
        comm.all_reduce(&mut [1i32; 3], if odd(comm) { ReduceOp::Max } else { ReduceOp::Sum })
    }),
    ("op, large", |comm| {
        comm.all_reduce(&mut vec![1f32; LARGE], if odd(comm) { ReduceOp::Max } else { ReduceOp::Sum })
    }),
    ("two roots of a broadcast, small", |comm| comm.broadcast(&mut [1u8; 8], u32::from(odd(comm)))),
    ("two roots of a broadcast, large", |comm| comm.broadcast(&mut vec![1f32; LARGE], u32::from(odd(comm)))),
    ("two roots of a reduce", |comm| {
        comm.reduce(&vec![1f32; LARGE], &mut vec![0f32; LARGE], u32::from(odd(comm)), ReduceOp::Sum)
    }),
    ("kind, small", |comm| if odd(comm) { comm.barrier() } else { all_reduce(comm, 3) }),
    ("kind, large", |comm| match odd(comm) {
        true => comm.broadcast(&mut vec![1f32; LARGE], 1),
        false => all_reduce(comm, LARGE),
    }),
    ("mark, small", |comm| marked(comm, 3)),
    ("mark, large", |comm| marked(comm, LARGE)),
    ("a skipped small call", |comm| if odd(comm) { Ok(()) } else { all_reduce(comm, 3) }),
    ("a skipped large call", |comm| if odd(comm) { Ok(()) } else { all_reduce(comm, LARGE) }),
];

fn is_mismatch(kind: &ErrorKind) -> bool {
    matches!(kind, ErrorKind::Mismatch { .. })
}

fn disagree_about_everything(comm: &Communicator, together: &Together) {
    for (what, call) in CALLS {
        together.wait();
        let error = settle(comm, call(comm), is_mismatch);
        let text = error.to_string();
        assert!(text.contains("disagree") && text.contains("rank"), "{what}: {text}");
        let ErrorKind::Mismatch { calls, .. } = error.kind() else { unreachable!("settled with it") };
        assert!(calls.len() >= 2 && calls.iter().any(|(ranks, _)| ranks.contains(&1)), "{what}: {text}");
        check_sums(comm);
    }
}

/// Operations in flight, and their elements. Of hundreds, messages have come that nobody needs any more; what they took at
/// their receivers has to be free again, so it happens several times.
const IN_FLIGHT: [(usize, usize); 6] = [(6, 100), (6, LARGE), (400, 8), (400, 8), (400, 8), (400, 8)];

/// Several operations in flight, one of which is another on rank 1: all that fail say why, the rest are right.
fn disagree_in_flight(comm: &Communicator, together: &Together) {
    for (operations, count) in IN_FLIGHT {
        together.wait();
        let works: Vec<_> = (0..operations)
            .map(|at| {
                let count = count + usize::from(at == operations / 2 && odd(comm));
                comm.all_reduce_async(vec![1.0f32; count], ReduceOp::Sum)
            })
            .collect();
        let mut first = Ok(());
        for work in works {
            match work.and_then(|work| work.wait()) {
                Ok(values) => assert!(values.iter().all(|value| *value == comm.size() as f32)),
                Err(error) => {
                    assert!(is_mismatch(error.kind()), "{error}");
                    first = Err(error);
                }
            }
        }
        settle(comm, first, is_mismatch);
        check_sums(comm);
    }
}

/// The root of a small broadcast is done before anybody disagrees. Ranks that do not ask how their calls ended have the
/// same number of them behind them all the same: a call meets the others' call of its number or fails.
fn go_on_in_step(comm: &Communicator, together: &Together) {
    for late in [None, Some(0), Some(1)] {
        together.wait();
        let _disagreed = comm.broadcast(&mut vec![1u8; if odd(comm) { 5 } else { 4 }], 0);
        if late == Some(comm.rank()) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let right = |number: i32| {
            let mut sum = [10 * number + comm.rank() as i32];
            let result = comm.all_reduce(&mut sum, ReduceOp::Sum);
            match &result {
                Ok(()) => assert_eq!(sum[0], (0..comm.size() as i32).map(|rank| 10 * number + rank).sum()),
                Err(error) => assert!(is_mismatch(error.kind()), "{error}"),
            }
            result.is_ok()
        };
        let ended_well: Vec<bool> = (0..6).map(right).collect();
        assert_eq!(ended_well.last(), Some(&true), "late: {late:?}");
    }
}

fn over(over: Over) {
    for ranks in [2, 4] {
        let together = Together::new(ranks);
        world(ranks, over, |comm| {
            disagree_about_everything(comm, &together);
            disagree_in_flight(comm, &together);
            go_on_in_step(comm, &together);
        });
    }
}

#[test]
fn over_shared_memory() {
    over(Over::Shm);
}

#[test]
fn over_tcp() {
    over(Over::Tcp);
}

#[test]
fn through_a_reducer() {
    over(Over::Reducer);
}

/// Errors number all ranks as the job does, roots as well: here both ranks name the root by its number in the group.
#[test]
fn roots_in_a_subgroup() {
    for over in Over::ALL {
        world(3, over, |comm| {
            if comm.rank() > 0 {
                let pair = comm.subgroup("pair", &[1, 2]).unwrap();
                let result = pair.broadcast(&mut [1u8; 3], pair.rank());
                let text = settle(&pair, result, is_mismatch).to_string();
                for rank in [1, 2] {
                    let called = format!("rank {rank} called broadcast of 3 u8 from rank {rank}");
                    assert!(text.contains(&called), "{text}");
                }
                check_sums(&pair);
            }
            check_sums(comm);
        });
    }
}

/// A disagreement in one group leaves another alone.
#[test]
fn in_a_subgroup() {
    for over in Over::ALL {
        world(3, over, |comm| {
            if comm.rank() < 2 {
                let pair = comm.subgroup("pair", &[0, 1]).unwrap();
                settle(&pair, all_reduce(&pair, 3 + comm.rank() as usize), is_mismatch);
                check_sums(&pair);
            }
            check_sums(comm);
        });
    }
}
