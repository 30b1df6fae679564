//! Operations that wait for memory: for staging memory, and never for a younger one; for a buffer that an older one has.

use crate::world::{Transport, World};
use herringbone::{Collective, Communicator, DType, Pending, Region, Request};
use std::{thread::sleep, time::Duration};

const MEBI: usize = 1 << 20;

fn sum(comm: &Communicator, buffer: &Region, priority: i32) -> Pending {
    let (input, output, count) = (buffer.clone(), buffer.clone(), buffer.len() / 4);
    let request = Request::new(Collective::AllReduce, DType::I32, count, input, output);
    comm.submit(request.priority(priority).timeout(Duration::from_secs(20))).unwrap()
}

/// Three sums, of which two at a time find memory: rank 0 waits for the first before it calls the others, rank 1 calls all
/// at once, so that memory is free for the third there when the second, of the group `other`, waits for more.
fn in_turn(comm: &Communicator, other: &Communicator, buffers: &[Region; 3], priority: i32) {
    comm.barrier().unwrap();
    other.barrier().unwrap();
    let is_late = comm.rank() == 0;
    if is_late {
        sleep(Duration::from_millis(200));
    }
    let first = sum(comm, &buffers[0], 0);
    if is_late {
        first.wait().unwrap();
    }
    let second = sum(other, &buffers[1], priority);
    if is_late {
        sleep(Duration::from_millis(100));
    }
    let third = sum(comm, &buffers[2], 0);
    [first, second, third].iter().for_each(|pending| pending.wait().unwrap());
    for buffer in buffers {
        let bytes = buffer.access().unwrap().span().to_vec();
        assert!(bytes.chunks(4).all(|bytes| bytes == 2i32.to_ne_bytes()));
    }
}

fn private(bytes: usize) -> Region {
    Region::own(vec![1i32; bytes / 4]).region().clone()
}

/// Operations of two segments of up to 1 MiB, all of them in flight, in 3.5 MiB for all.
fn world() -> World {
    World::new(2, Transport::Shm).staging_bytes(4 * MEBI).segment_bytes(MEBI).forced("radix")
}

#[test]
fn an_ordinary_operation_takes_no_memory_that_an_urgent_one_waits_for() {
    world().run(|comm| in_turn(comm, comm, &[7, 8, 7].map(|quarters| private(quarters * MEBI / 4)), 1));
}

#[test]
fn an_operation_takes_no_memory_that_one_of_another_group_waits_for() {
    world().run(|comm| {
        let other = comm.subgroup("other", &[0, 1]).unwrap();
        in_turn(comm, &other, &[7, 8, 7].map(|quarters| private(quarters * MEBI / 4)), 0);
    });
}

/// Each all-reduce of a buffer takes what the last one left there, on every rank, though rank 0 has a buffer for each.
#[test]
fn operations_on_one_buffer_run_in_order() {
    for (transport, ranks) in [(Transport::Shm, 2), (Transport::Shm, 3), (Transport::Tcp, 3)] {
        for count in [5, 300_000] {
            World::new(ranks, transport).run(|comm| {
                let shared = private(4 * count);
                let buffers: Vec<Region> = match comm.rank() {
                    0 => [1, 3, 9].map(|each| Region::own(vec![each; count]).region().clone()).into(),
                    _ => vec![shared; 3],
                };
                let pending: Vec<Pending> = buffers.iter().map(|buffer| sum(comm, buffer, 0)).collect();
                pending.iter().for_each(|pending| pending.wait().unwrap());
                let size = comm.size() as i32;
                let (mut others, mut expected) = (1, 0);
                for own in [1, 3, 9] {
                    expected = own + (size - 1) * others;
                    others = expected;
                }
                let bytes = buffers[2].access().unwrap().span().to_vec();
                assert!(bytes.chunks(4).all(|bytes| bytes == expected.to_ne_bytes()));
            });
        }
    }
}

/// Two ranks first wait for more than there is memory for, and only then send as much: each needs what comes later there.
#[test]
fn messages_both_ways_never_wait_for_each_other() {
    for transport in [Transport::Shm, Transport::Tcp] {
        World::new(2, transport).staging_bytes(8 * MEBI).run(|comm| {
            let directions = ["0 to 1", "1 to 0"].map(|name| comm.subgroup(name, &[0, 1]).unwrap());
            let message = |from: u32| {
                let buffer = Region::own(vec![comm.rank() as u8; 4 * MEBI + 3]).region().clone();
                let (collective, count) = (Collective::Broadcast { root: from }, buffer.len());
                let request = Request::new(collective, DType::U8, count, buffer.clone(), buffer.clone())
                    .timeout(Duration::from_secs(20));
                (directions[from as usize].submit(request).unwrap(), buffer, from)
            };
            let other = 1 - comm.rank();
            let all: Vec<_> =
                [other, comm.rank()].into_iter().flat_map(|from| (0..12).map(move |_| from)).collect();
            let all: Vec<_> = all.into_iter().map(message).collect();
            for (pending, buffer, from) in all {
                pending.wait().unwrap();
                assert!(buffer.access().unwrap().span().to_vec().iter().all(|byte| *byte == from as u8));
            }
        });
    }
}
