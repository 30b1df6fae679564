//! Groups that end while others of their ranks still use them, and what is left of them.

use crate::world::{Reducers, Transport, World};
use herringbone::{Collective, Communicator, DType, ErrorKind, Pending, ReduceOp, Region, Request};
use std::{sync::mpsc, thread, time::Duration};

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
            End::Close => group.close().unwrap(),
            End::Abort => group.abort(),
            End::Drop => {}
        }
    }
}

/// Whether a call failed because this rank has aborted its group, or another one has.
fn was_aborted(error: &herringbone::Error) -> bool {
    *error.kind() == ErrorKind::Closed || error.to_string().contains("it aborted the group")
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
                let work = group.all_reduce_async(vec![1_i64; COUNT], ReduceOp::Sum);
                group.abort();
                match work.and_then(|work| work.wait()) {
                    Ok(values) => assert_eq!(values, vec![i64::from(comm.size()); COUNT]),
                    Err(error) => assert!(was_aborted(&error), "{error}"),
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
            group.close().unwrap();
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

/// Operations of every kind: all that ranks exchange in one, and what each then holds.
fn issue_one_of_each(comm: &Communicator, count: usize) -> Vec<(Pending, Region, Vec<i64>)> {
    let (size, rank) = (comm.size(), i64::from(comm.rank()));
    let (all, sum) = (0..i64::from(size), (0..i64::from(size)).sum::<i64>());
    let whole = || all.clone().flat_map(|rank| vec![rank; count]).collect::<Vec<_>>();
    let root = size - 1;
    let of_root = |rooted: Vec<i64>, others: Vec<i64>| if comm.rank() == root { rooted } else { others };
    let cases = [
        (Collective::AllReduce, vec![rank; count], vec![sum; count]),
        (Collective::Broadcast { root }, vec![rank; count], vec![i64::from(root); count]),
        (Collective::Reduce { root }, vec![rank; count], of_root(vec![sum; count], vec![-1; count])),
        (Collective::AllGather, vec![rank; count], whole()),
        (Collective::Gather { root }, vec![rank; count], of_root(whole(), vec![])),
        (Collective::Scatter { root }, of_root(whole(), vec![]), vec![rank; count]),
        (Collective::AllToAll, vec![rank; count * size as usize], whole()),
        (Collective::ReduceScatter, vec![1; count * size as usize], vec![i64::from(size); count]),
    ];
    let issue = |(collective, input, expected): (Collective, Vec<i64>, Vec<i64>)| {
        let (input, output) =
            (Region::own(input).region().clone(), Region::own(vec![-1_i64; expected.len()]));
        let output = output.region().clone();
        let request = Request::new(collective, DType::I64, count, input, output.clone());
        (comm.submit(request).unwrap(), output, expected)
    };
    cases.into_iter().map(issue).collect()
}

fn check(issued: Vec<(Pending, Region, Vec<i64>)>) {
    for (pending, output, expected) in issued {
        pending.wait().unwrap();
        let bytes: Vec<u8> = expected.iter().flat_map(|value| value.to_ne_bytes()).collect();
        assert_eq!(output.access().map(|access| access.span().to_vec()), Some(bytes));
    }
}

/// A rank may leave as soon as it has issued what the others do, be it that it leaves first or last.
#[test]
fn what_all_ranks_have_issued_ends_though_they_leave() {
    let servers = Reducers::start(2);
    let mut worlds: Vec<World> = [Transport::Local, Transport::Shm, Transport::Tcp]
        .into_iter()
        .flat_map(|transport| [2, 3, 4].map(|size| World::new(size, transport)))
        .collect();
    worlds.push(World::new(3, Transport::Tcp).reducers(servers.first(2)).forced("reduction_server"));
    for (world, count) in worlds.iter().flat_map(|world| [10, 150_000].map(|count| (world, count))) {
        for leaver in 0..=world.size {
            world.run(|comm| {
                let issued: Vec<_> = (0..2).flat_map(|_| issue_one_of_each(comm, count)).collect();
                // In the last round all ranks leave at once.
                if leaver == comm.rank() || leaver == world.size {
                    comm.close().unwrap();
                }
                check(issued);
            });
        }
    }
}

/// The others may call it long after the root has left, if it needed nothing of them.
#[test]
fn a_broadcast_outlives_its_root() {
    let sizes = [10, 20_000, 150_000];
    for (transport, count) in
        [Transport::Shm, Transport::Tcp].into_iter().flat_map(|at| sizes.map(|count| (at, count)))
    {
        World::new(3, transport).run(|comm| {
            comm.barrier().unwrap();
            if comm.rank() > 0 {
                thread::sleep(Duration::from_millis(500));
            }
            let mut values = vec![i64::from(comm.rank()) + 7; count];
            comm.broadcast(&mut values, 0).unwrap();
            assert_eq!(values, vec![7; count]);
        });
    }
}

/// Of an operation that another rank never issues, the rank that leaves learns that it has closed the communicator, or that
/// others have left without it.
#[test]
fn what_cannot_end_says_who_has_left() {
    for world in [World::new(2, Transport::Local), World::new(3, Transport::Tcp)] {
        world.run(|comm| {
            let extra =
                (comm.rank() == 1).then(|| comm.all_reduce_async(vec![1_i64; COUNT], ReduceOp::Sum).unwrap());
            comm.close().unwrap();
            if let Some(work) = extra {
                let error = work.wait().unwrap_err();
                assert_eq!(error.rank(), Some(1), "{error}");
                match error.kind() {
                    ErrorKind::Closed => {}
                    ErrorKind::PeerLost { ranks, reason } => {
                        assert!(!ranks.contains(&1) && reason.starts_with("left without"), "{error}");
                    }
                    _ => panic!("{error}"),
                }
                assert!(error.operation().is_some_and(|call| call.starts_with("all_reduce of 200000 i64")));
            }
            for refused in [comm.barrier(), comm.subgroup("late", &[comm.rank()]).map(drop)] {
                assert_eq!(refused.unwrap_err().kind(), &ErrorKind::Closed);
            }
        });
    }
}

/// The others stay and issue nothing, so the rank that leaves gives up by itself.
#[test]
fn a_rank_that_leaves_waits_only_as_long_as_anything_moves() {
    let (tell, ready) = mpsc::channel();
    let ready = std::sync::Mutex::new(ready);
    World::new(2, Transport::Shm).run(|comm| {
        if comm.rank() == 1 {
            let work = comm.all_reduce_async(vec![1_i64; COUNT], ReduceOp::Sum).unwrap();
            comm.close().unwrap();
            assert_eq!(work.wait().unwrap_err().kind(), &ErrorKind::Closed);
            tell.send(()).unwrap();
        } else {
            ready.lock().unwrap().recv_timeout(Duration::from_secs(60)).unwrap();
        }
    });
}

/// The ranks that leave because of it are not to blame.
#[test]
fn the_rank_that_left_first_is_named() {
    for world in
        [World::new(4, Transport::Shm), World::new(4, Transport::Tcp), World::new(5, Transport::Local)]
    {
        for _ in 0..5 {
            world.run(|comm| {
                let leave = |comm: &Communicator| {
                    let error = comm.all_reduce(&mut [1_i64; 100], ReduceOp::Sum).unwrap_err();
                    let ErrorKind::PeerLost { ranks, .. } = error.kind() else { panic!("{error}") };
                    assert_eq!(ranks, &[1], "{error}");
                    let said = error.to_string();
                    let reasons = [
                        "it left: it called close(), or its program ended",
                        "left without all_reduce of 100",
                    ];
                    assert!(reasons.iter().any(|reason| said.contains(reason)), "{error}");
                };
                comm.barrier().unwrap();
                if comm.rank() != 1 {
                    leave(comm);
                }
            });
        }
    }
}
