//! Buffers that all ranks of a host map: the same bits as from private ones, in every mixture.

use crate::world::{Transport, World};
use herringbone::{Communicator, ReduceOp};

/// Sizes of one message, of several, of several segments, of more than are in flight, and odd ones.
const COUNTS: [usize; 7] = [1, 21, 1000, 16_384, 131_071, 700_001, 1_500_013];

fn inputs(rank: u32, count: usize) -> impl Iterator<Item = f32> {
    (0..count).map(move |at| (at as f32 * 0.37 + rank as f32 * 1.7).sin() * 1e3)
}

/// The bits of a sum of private buffers.
fn private(comm: &Communicator, count: usize) -> Vec<u32> {
    let mut values: Vec<f32> = inputs(comm.rank(), count).collect();
    comm.all_reduce(&mut values, ReduceOp::Sum).unwrap();
    values.iter().map(|value| value.to_bits()).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Forms worlds in which `is_mapped` says whose buffers are mapped, and compares the sums.
fn compare(transport: Transport, algorithm: Option<&str>, is_mapped: impl Fn(u32) -> bool + Sync) {
    for ranks in [2, 3, 4, 5, 8] {
        let world = World::new(ranks, transport);
        let world = algorithm.map_or(world.clone(), |name| world.forced(name));
        world.run(|comm| {
            for count in COUNTS {
                let expected = private(comm, count);
                for round in 0..3 {
                    let mut mapped = comm.allocate::<f32>(count).unwrap();
                    assert!(mapped.iter().all(|value| *value == 0.0), "zero at first, also when used before");
                    let mut own = vec![0.0; count];
                    let values = if is_mapped(comm.rank()) { &mut mapped[..] } else { &mut own[..] };
                    values.iter_mut().zip(inputs(comm.rank(), count)).for_each(|(to, from)| *to = from);
                    comm.all_reduce(values, ReduceOp::Sum).unwrap();
                    assert!(
                        bits(values) == expected,
                        "{algorithm:?}: {count} of {ranks} ranks, round {round}"
                    );
                }
            }
        });
    }
}

#[test]
fn mapped_buffers_give_the_same_bits() {
    for transport in [Transport::Local, Transport::Shm, Transport::Tcp] {
        compare(transport, None, |_| true);
    }
}

#[test]
fn mapped_and_private_buffers_meet() {
    compare(Transport::Shm, None, |rank| rank % 2 == 0);
    compare(Transport::Local, None, |rank| rank == 1);
}

#[test]
fn every_algorithm_takes_mapped_buffers() {
    for algorithm in ["radix", "radix(2,2)", "ring", "tree", "doubling", "one_shot", "star"] {
        compare(Transport::Shm, Some(algorithm), |rank| rank != 1);
    }
}

/// A rank whose buffer is mapped has more segments in flight, but not where memory is short.
#[test]
fn little_staging_memory_is_enough_for_mapped_buffers() {
    for segment_bytes in [0, 1 << 20] {
        World::new(4, Transport::Shm).staging_bytes(4 << 20).segment_bytes(segment_bytes).run(|comm| {
            let count = 3_000_017;
            let mut values = comm.allocate::<f32>(count).unwrap();
            values.iter_mut().zip(inputs(comm.rank(), count)).for_each(|(to, from)| *to = from);
            comm.all_reduce(&mut values, ReduceOp::Sum).unwrap();
            assert_eq!(bits(&values), private(comm, count));
        });
    }
}

/// Parts of a mapped buffer are mapped too, and operations on several of them may be under way at once.
#[test]
fn parts_of_a_mapped_buffer_are_reduced_by_themselves() {
    World::new(3, Transport::Shm).run(|comm| {
        let mut whole = comm.allocate::<i64>(300_000).unwrap();
        whole.fill(i64::from(comm.rank()) + 1);
        comm.all_reduce(&mut whole[77..200_011], ReduceOp::Sum).unwrap();
        let own = i64::from(comm.rank()) + 1;
        assert!(whole[..77].iter().chain(&whole[200_011..]).all(|value| *value == own));
        assert!(whole[77..200_011].iter().all(|value| *value == 6));
    });
}

/// Other collectives take mapped memory like any other, as input, as output, and as both.
#[test]
fn other_collectives_take_mapped_buffers() {
    World::new(4, Transport::Shm).run(|comm| {
        let mut input = comm.allocate::<i32>(40_000).unwrap();
        let mut output = comm.allocate::<i32>(40_000).unwrap();
        let own = comm.rank() as i32 + 1;
        input.fill(own);
        comm.all_reduce_into(&input, &mut output, ReduceOp::Sum).unwrap();
        assert!(input.iter().all(|value| *value == own) && output.iter().all(|value| *value == 10));
        comm.reduce_scatter(&input, &mut output[..10_000], ReduceOp::Max).unwrap();
        assert!(output[..10_000].iter().all(|value| *value == 4));
        comm.all_gather(&input[..10_000], &mut output).unwrap();
        assert!(output.chunks(10_000).zip(1..).all(|(part, from)| part.iter().all(|value| *value == from)));
        comm.broadcast(&mut input, 2).unwrap();
        assert!(input.iter().all(|value| *value == 3));
    });
}

#[test]
fn a_mapped_buffer_outlives_its_communicator_and_too_much_is_refused() {
    let kept = World::new(2, Transport::Shm).run(|comm| {
        let error = comm.allocate::<u64>(1 << 50).unwrap_err().to_string();
        assert!(error.contains("mapped") && error.contains(&format!("rank {}", comm.rank())), "{error}");
        let mut buffer = comm.allocate::<u8>(5).unwrap();
        buffer.copy_from_slice(b"bytes");
        buffer
    });
    assert!(kept.iter().all(|buffer| &buffer[..] == b"bytes"));
}
