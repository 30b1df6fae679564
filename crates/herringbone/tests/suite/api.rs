//! The typed calls, as programs write them.

use crate::world::{Reducers, Transport, World};
use herringbone::{Communicator, DType, ErrorKind, ReduceOp, Region, Request};
use std::{
    sync::Barrier,
    time::{Duration, Instant},
};

/// How long after its timeout an operation fails even if no decision has come, as `world/faults.rs` proves to the millisecond.
const WITHOUT_DECISION: Duration = Duration::from_secs(2);

fn everywhere(size: u32, body: impl Fn(&Communicator) + Sync) {
    for transport in [Transport::Local, Transport::Shm, Transport::Tcp] {
        World::new(size, transport).run(&body);
    }
}

/// A different number for every rank and element.
fn mine(comm: &Communicator, count: usize) -> Vec<i64> {
    (0..count as i64).map(|at| i64::from(comm.rank()) * 1000 + at).collect()
}

fn sum_of_all(size: u32, count: usize) -> Vec<i64> {
    let ranks: i64 = (0..i64::from(size)).sum();
    (0..count as i64).map(|at| ranks * 1000 + i64::from(size) * at).collect()
}

#[test]
fn all_reduce_into_leaves_the_input() {
    everywhere(3, |comm| {
        let (input, mut output) = (mine(comm, 100), vec![-1; 100]);
        comm.all_reduce_into(&input, &mut output, ReduceOp::Sum).unwrap();
        assert_eq!(output, sum_of_all(3, 100));
        assert_eq!(input, mine(comm, 100));
    });
}

#[test]
fn reduce_writes_only_the_roots_output() {
    everywhere(4, |comm| {
        for root in 0..4 {
            let mut output = vec![-1; 50];
            comm.reduce(&mine(comm, 50), &mut output, root, ReduceOp::Sum).unwrap();
            assert_eq!(output, if comm.rank() == root { sum_of_all(4, 50) } else { vec![-1; 50] });
        }
    });
}

#[test]
fn broadcast_copies_the_root() {
    everywhere(5, |comm| {
        for root in 0..5 {
            let mut values = vec![comm.rank() as u16; 301];
            comm.broadcast(&mut values, root).unwrap();
            assert_eq!(values, vec![root as u16; 301]);
        }
    });
}

#[test]
fn scatter_then_gather_is_an_all_reduce() {
    everywhere(3, |comm| {
        let (mut part, mut whole) = (vec![0; 40], vec![0; 120]);
        comm.reduce_scatter(&mine(comm, 120), &mut part, ReduceOp::Sum).unwrap();
        let own = 40 * comm.rank() as usize;
        assert_eq!(part, sum_of_all(3, 120)[own..own + 40]);
        comm.all_gather(&part, &mut whole).unwrap();
        assert_eq!(whole, sum_of_all(3, 120));
    });
}

/// Nobody passes the barrier before the last has reached it.
#[test]
fn a_barrier_waits_for_all() {
    use std::sync::atomic::{AtomicU32, Ordering};
    for transport in [Transport::Local, Transport::Shm, Transport::Tcp] {
        let arrived = AtomicU32::new(0);
        World::new(4, transport).run(|comm| {
            for round in 1..20 {
                arrived.fetch_add(1, Ordering::SeqCst);
                comm.barrier().unwrap();
                assert!(arrived.load(Ordering::SeqCst) >= 4 * round);
                comm.barrier().unwrap();
            }
        });
    }
}

#[test]
fn many_operations_are_under_way_at_once() {
    everywhere(3, |comm| {
        let lengths: Vec<usize> = (0..40).map(|at| at * at * 7).collect();
        let works: Vec<_> = lengths
            .iter()
            .map(|length| comm.all_reduce_async(mine(comm, *length), ReduceOp::Sum).unwrap())
            .collect();
        for (work, length) in works.into_iter().zip(&lengths).rev() {
            assert_eq!(work.wait().unwrap(), sum_of_all(3, *length));
        }
        assert_eq!(comm.stats().operations.values().sum::<u64>(), 40);
    });
}

/// Waiting is not needed for an operation to end, and a handle that is dropped leaves its operation running.
#[test]
fn operations_end_without_being_waited_for() {
    everywhere(2, |comm| {
        drop(comm.all_reduce_async(mine(comm, 5000), ReduceOp::Sum).unwrap());
        let work = comm.all_reduce_async(mine(comm, 5000), ReduceOp::Max).unwrap();
        while !work.is_done() {
            std::thread::yield_now();
        }
        assert_eq!(work.wait().unwrap()[0], 1000);
    });
}

#[test]
fn groups_may_overlap() {
    everywhere(5, |comm| {
        let groups: [&[u32]; 4] = [&[0, 1, 2], &[1, 3, 4], &[2, 4], &[3]];
        for (at, ranks) in groups.iter().enumerate().filter(|(_, ranks)| ranks.contains(&comm.rank())) {
            let group = comm.subgroup(&format!("group {at}"), ranks).unwrap();
            assert_eq!((group.size() as usize, ranks[group.rank() as usize]), (ranks.len(), comm.rank()));
            for count in [1, 300, 20_000] {
                let mut values = vec![i64::from(comm.rank()); count];
                group.all_reduce(&mut values, ReduceOp::Sum).unwrap();
                assert_eq!(values, vec![ranks.iter().map(|rank| i64::from(*rank)).sum::<i64>(); count]);
            }
            let wrong = group.all_gather(&[1_u8], &mut []).unwrap_err();
            assert_eq!(wrong.rank(), Some(comm.rank()), "ranks have one name in errors");
            let mut first = [comm.rank()];
            group.broadcast(&mut first, group.size() - 1).unwrap();
            assert_eq!(Some(&first[0]), ranks.last());
        }
        let mut all = mine(comm, 10);
        comm.all_reduce(&mut all, ReduceOp::Sum).unwrap();
        assert_eq!(all, sum_of_all(5, 10));
    });
}

/// Neither staging memory nor one of the few groups that a reducer takes part in.
#[test]
fn groups_that_are_dropped_leave_nothing_behind() {
    let servers = Reducers::start(1);
    let worlds = [
        World::new(3, Transport::Shm),
        World::new(2, Transport::Tcp),
        World::new(2, Transport::Tcp).reducers(servers.first(1)).forced("reduction_server"),
    ];
    for world in worlds {
        world.staging_bytes(16 << 20).run(|comm| {
            let all: Vec<u32> = (0..comm.size()).collect();
            for at in 0..300 {
                let group = comm.subgroup(&format!("group {at}"), &all).unwrap();
                let mut values = mine(comm, if at % 10 == 0 { 200_000 } else { 10 });
                group.all_reduce(&mut values, ReduceOp::Sum).unwrap();
                assert_eq!(values, sum_of_all(comm.size(), values.len()));
            }
            let error = comm.subgroup("group 7", &all).unwrap_err();
            assert!(error.to_string().contains("a name of its own"), "{error}");
            assert_eq!(comm.stats().operations.values().sum::<u64>(), 300);
        });
    }
}

/// Whoever waits for a rank that has not made their group yet is told so in time, and all go on together later.
#[test]
fn a_group_that_one_rank_makes_late_is_in_step() {
    let (failed, made) = (Barrier::new(3), Barrier::new(3));
    World::new(3, Transport::Shm).run(|comm| {
        let make = || comm.subgroup("late", &[0, 1, 2]).unwrap();
        let late = |group: &Communicator, expected: &str| {
            let error = group.broadcast(&mut [1_i64; 3], 2).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Timeout { .. }), "{error}");
            assert!(error.to_string().contains(expected), "{error}");
        };
        let group = if comm.rank() == 2 {
            failed.wait();
            make()
        } else {
            let group = make();
            group.set_timeout(Duration::from_millis(200));
            let began = Instant::now();
            late(&group, "waiting for rank 2");
            // It takes a fifth of a second; the rest is margin for a busy machine.
            assert!(began.elapsed() < WITHOUT_DECISION, "{:?}, as if no decision had come", began.elapsed());
            failed.wait();
            group.set_timeout(Duration::from_secs(20));
            group
        };
        if comm.rank() == 2 {
            late(&group, "operation 0");
        }
        made.wait();
        let mut values = mine(comm, 1000);
        group.all_reduce(&mut values, ReduceOp::Sum).unwrap();
        assert_eq!(values, sum_of_all(3, 1000));
    });
}

/// A rank that is late issues as many operations as the others had when theirs failed, so all go on with the same one.
#[test]
fn who_issues_several_late_is_in_step_with_those_who_waited() {
    let failed = Barrier::new(2);
    World::new(2, Transport::Shm).run(|comm| {
        if comm.rank() == 1 {
            failed.wait();
        } else {
            comm.set_timeout(Duration::from_millis(200));
        }
        let begin = |at| comm.all_reduce_async(vec![at as i64; 2000], ReduceOp::Sum).unwrap();
        let works: Vec<_> = (0..3).map(begin).collect();
        for work in works {
            let error = work.wait().unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Timeout { .. }), "{error}");
        }
        if comm.rank() == 0 {
            failed.wait();
            comm.set_timeout(Duration::from_secs(20));
        }
        for at in 0..3 {
            let mut values = vec![at; 100];
            comm.all_reduce(&mut values, ReduceOp::Sum).unwrap();
            assert_eq!(values, vec![2 * at; 100]);
        }
    });
}

#[test]
fn groups_that_cannot_be_are_refused() {
    everywhere(2, |comm| {
        let refused = |name: &str, ranks: &[u32]| {
            let error = comm.subgroup(name, ranks).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Config { .. }), "{error}");
            error.to_string()
        };
        assert!(refused("beyond", &[0, 1, 2]).contains("2 is no rank"));
        assert!(refused("unsorted", &[1, 0]).contains("1 stands before 0"));
        refused("twice", &[0, 0]);
        refused("none", &[]);
        refused("others", &[1 - comm.rank()]);
        let _held = comm.subgroup("name", &[0, 1]).unwrap();
        refused("name", &[0, 1]);
    });
}

/// What is wrong on its face is refused at once, and the ranks stay in step.
#[test]
fn wrong_sizes_and_roots_are_refused() {
    everywhere(2, |comm| {
        let size = |result: herringbone::Result<()>, expected: usize, actual: usize| {
            let error = result.unwrap_err();
            let ErrorKind::BufferSize { expected: e, actual: a, .. } = error.kind() else {
                panic!("{error}")
            };
            assert_eq!((*e, *a, error.rank()), (expected, actual, Some(comm.rank())));
        };
        size(comm.all_reduce_into(&[1_f32; 3], &mut [0.0; 4], ReduceOp::Sum), 12, 16);
        size(comm.reduce(&[1_u8; 3], &mut [], 0, ReduceOp::Sum), 3, 0);
        size(comm.reduce_scatter(&[1_i64; 3], &mut [0; 2], ReduceOp::Sum), 32, 24);
        size(comm.all_gather(&[1_u16; 3], &mut [0; 5]), 12, 10);
        let root = comm.broadcast(&mut [0_u8; 3], 2).unwrap_err();
        assert!(matches!(root.kind(), ErrorKind::Unsupported { .. }), "{root}");
        assert!(root.to_string().contains("root 2"), "{root}");
        let (input, output) = (Region::zeroed(8), Region::zeroed(7));
        let (collective, dtype, op) = (herringbone::Collective::AllReduce, DType::F64, ReduceOp::Sum);
        let request = Request::new(collective, dtype, 1, input, output).op(op);
        size(comm.execute(request), 8, 7);
        let mut values = mine(comm, 10);
        comm.all_reduce(&mut values, ReduceOp::Sum).unwrap();
        assert_eq!(values, sum_of_all(2, 10));
    });
}

/// K bytes by `radix`: each of N ranks sends and receives 2 (N - 1) / N K.
#[test]
fn radix_moves_as_many_bytes_as_it_must() {
    for (size, transport) in [(2, Transport::Shm), (4, Transport::Tcp), (8, Transport::Shm)] {
        World::new(size, transport).forced("radix").run(|comm| {
            let mut values = vec![1_f32; 64 * 1024];
            comm.all_reduce(&mut values, ReduceOp::Sum).unwrap();
            let stats = comm.stats();
            let (used, unused) = match transport {
                Transport::Tcp => (stats.workers_tcp, stats.workers_shm),
                Transport::Shm | Transport::Local => (stats.workers_shm, stats.workers_tcp),
            };
            let bytes = 2 * (u64::from(size) - 1) * 256 * 1024 / u64::from(size);
            assert_eq!((used.sent, used.received), (bytes, bytes));
            assert_eq!((unused.sent, unused.received, stats.reducers_tcp.sent), (0, 0, 0));
        });
    }
}

/// K bytes by `reduction_server`: each rank sends K and receives K, and ranks send one another nothing.
#[test]
fn reducers_move_every_buffer_once_each_way() {
    let servers = Reducers::start(3);
    for count in 1..=3 {
        let world = World::new(4, Transport::Shm).forced("reduction_server").reducers(servers.first(count));
        world.run(|comm| {
            let mut values = vec![1_f32; 50_001];
            comm.all_reduce(&mut values, ReduceOp::Average).unwrap();
            assert_eq!(values, vec![1.0; 50_001]);
            let stats = comm.stats();
            assert_eq!((stats.reducers_tcp.sent, stats.reducers_tcp.received), (200_004, 200_004));
            assert_eq!((stats.workers_shm.sent, stats.workers_tcp.sent), (0, 0));
            let named = ("all_reduce", "reduction_server".to_owned());
            assert_eq!(stats.operations.into_iter().collect::<Vec<_>>(), [(named, 1)]);
        });
    }
}

/// Who gives reducers to one host's ranks is told that they have nothing to do there, unless they are forced.
#[test]
fn reducers_that_have_no_use_are_told_of() {
    let servers = Reducers::start(2);
    let world = World::new(2, Transport::Shm).reducers(servers.first(2));
    for text in world.run(Communicator::describe) {
        assert!(text.contains("2 reducers (") && text.contains(") that one host does not need"), "{text}");
    }
    for text in world.forced("reduction_server").run(Communicator::describe) {
        assert!(text.contains("2 reducers (") && text.contains("reduction_server forced"), "{text}");
    }
}
