//! Groups that end while others of their ranks still use them, and what is left of them.

use crate::world::{Transport, World};
use herringbone::{Communicator, ErrorKind, ReduceOp};

/// Of 1.6 MB, so that nine of them fill the staging memory of the worlds here.
const COUNT: usize = 200_000;
const GROUPS: usize = 200;

/// How a rank is done with a group.
#[derive(Clone, Copy, Debug)]
enum End {
    Close,
    Abort,
    Drop,
}

const ENDS: [End; 3] = [End::Close, End::Abort, End::Drop];

impl End {
    fn of(self, group: Communicator) {
        match self {
            End::Close => group.close(),
            End::Abort => group.abort(),
            End::Drop => {}
        }
    }
}

fn worlds() -> [World; 2] {
    [World::new(3, Transport::Shm), World::new(2, Transport::Tcp)].map(|world| world.staging_bytes(16 << 20))
}

fn make(comm: &Communicator, at: usize) -> Communicator {
    let all: Vec<u32> = (0..comm.size()).collect();
    comm.subgroup(&format!("group {at}"), &all).unwrap()
}

fn sum(group: &Communicator, at: usize) {
    let mut values = vec![at as i64; COUNT];
    group.all_reduce(&mut values, ReduceOp::Sum).unwrap();
    assert_eq!(values, vec![at as i64 * i64::from(group.size()); COUNT]);
}

/// Right after an operation the others may not have read all of it; its memory is free once they have.
#[test]
fn groups_that_end_after_an_operation_leave_no_memory_taken() {
    for (world, end) in worlds().iter().flat_map(|world| ENDS.map(|end| (world, end))) {
        world.run(|comm| {
            for at in 0..GROUPS {
                let group = make(comm, at);
                sum(&group, at);
                end.of(group);
            }
        });
    }
}

/// Each rank ends groups in another way than the others, and so many groups later.
#[test]
fn ranks_end_groups_at_different_times_and_in_different_ways() {
    for world in worlds() {
        world.run(|comm| {
            let rank = comm.rank() as usize;
            let mut open = Vec::new();
            for at in 0..GROUPS {
                let group = make(comm, at);
                sum(&group, at);
                open.insert(0, group);
                if let Some(group) = (open.len() > 2 * rank).then(|| open.pop()).flatten() {
                    ENDS[(at + rank) % ENDS.len()].of(group);
                }
            }
        });
    }
}

/// The others may read what a rank has left of an operation that it fails, until they have failed it, too.
#[test]
fn operations_that_are_aborted_leave_no_memory_taken() {
    for world in worlds() {
        world.run(|comm| {
            for at in 0..GROUPS {
                let group = make(comm, at);
                let work = group.all_reduce_async(vec![1_i64; COUNT], ReduceOp::Sum).unwrap();
                group.abort();
                match work.wait() {
                    Ok(values) => assert_eq!(values, vec![i64::from(comm.size()); COUNT]),
                    Err(error) => assert_eq!(error.kind(), &ErrorKind::Closed, "{error}"),
                }
            }
            sum(comm, 1);
        });
    }
}

/// A group that was closed takes no calls, and those before go on to their end.
#[test]
fn operations_of_a_group_that_is_closed_go_on() {
    for world in worlds() {
        world.run(|comm| {
            let group = make(comm, 0);
            let begin = || group.all_reduce_async(vec![1_i64; COUNT], ReduceOp::Sum);
            let works: Vec<_> = (0..4).map(|_| begin().unwrap()).collect();
            group.close();
            let error = begin().err().unwrap();
            assert_eq!(error.kind(), &ErrorKind::Closed);
            assert_eq!((error.rank(), error.operation()), (Some(comm.rank()), Some("all_reduce")));
            for work in works {
                assert_eq!(work.wait().unwrap(), vec![i64::from(comm.size()); COUNT]);
            }
            comm.barrier().unwrap();
        });
    }
}
