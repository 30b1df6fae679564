//! All-reduces with coded messages: the interpreter's bits with every codec, over any transport, with 0 to 4 reducers.

use crate::world::{Reducers, Transport, World};
use herringbone::{
    Collective, Compression, DType, ErrorKind, ReduceOp, Region, Request, Residual,
    core::{
        algorithm::{Algorithm, Layout},
        codec::{BLOCK, Codec},
        group::Group,
        interpret::{Coding, interpret_coded},
        verify::verify,
    },
};

/// How often a tensor is reduced: what is left of it shows from the second time on.
const STEPS: usize = 3;

/// Fewer elements than a block, and several blocks with a part of one.
const COUNTS: [usize; 4] = [0, 5, 1000, 5 * BLOCK + 77];

fn codec(name: &str) -> Codec {
    name.parse().expect(name)
}

/// A rank's gradient.
fn gradient(rank: u32, step: usize, count: usize) -> Vec<f32> {
    let mut state = 0x2545_f491_u32 ^ (rank + 1).wrapping_mul(0x9e37_79b9) ^ (step as u32 + 1) << 9;
    let number = |_| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state as f32 / u32::MAX as f32 - 0.5) * 2f32.powi((state >> 8) as i32 % 6 - 2)
    };
    (0..count).map(number).collect()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// What all ranks have after each step, and what is left of each rank's tensor at the end.
#[derive(Debug, PartialEq)]
struct Trained {
    results: Vec<Vec<u8>>,
    left: Vec<Vec<u8>>,
}

/// As the interpreter has it, with the schedule that takes no reducers.
fn expected(ranks: u32, count: usize, codec: Codec, op: ReduceOp) -> Trained {
    let group = Group::of_size(ranks);
    let schedule = Algorithm::radix(vec![]).coded();
    let schedule = schedule.schedule(Collective::AllReduce, &group, &Layout::default()).unwrap();
    let verified = verify(schedule, Collective::AllReduce, &group).unwrap();
    let mut left = vec![vec![0.0; count]; ranks as usize];
    let results = (0..STEPS).map(|step| {
        let inputs: Vec<_> = (0..ranks).map(|rank| bytes(&gradient(rank, step, count))).collect();
        let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
        let coding = Coding { codec, steps: step as u64 };
        let outputs = interpret_coded(&verified, op, count, coding, &inputs, &mut left).unwrap();
        assert!(outputs.iter().all(|output| *output == outputs[0]), "all ranks have the same");
        outputs[0].clone()
    });
    let results = results.collect();
    Trained { results, left: left.iter().map(|left| bytes(left)).collect() }
}

/// As a world has it, with what each rank ends with; half of the ranks keep their inputs.
fn trained(world: &World, count: usize, codec: Codec, op: ReduceOp) -> Vec<Trained> {
    world.run(|comm| {
        let compression = Compression::of(codec).tensor("weight");
        let step = |step| {
            let mut buffer = gradient(comm.rank(), step, count);
            if (comm.rank() as usize + step).is_multiple_of(2) {
                comm.all_reduce_compressed(&mut buffer, op, compression.clone()).unwrap();
                return bytes(&buffer);
            }
            let (input, output) = (Region::own(buffer.clone()), Region::own(vec![0.0f32; count]));
            let regions = (input.region().clone(), output.region().clone());
            let request = Request::new(Collective::AllReduce, DType::F32, count, regions.0, regions.1);
            comm.execute(request.op(op).compression(compression.clone())).unwrap();
            assert_eq!(bytes(&input.take()), bytes(&buffer), "the input stays");
            bytes(&output.take())
        };
        let results = (0..STEPS).map(step).collect();
        let left = comm.residuals().saved().iter().map(|Residual { left, .. }| bytes(left)).collect();
        Trained { results, left }
    })
}

fn check(world: &World) {
    for (turn, codec) in Codec::EXAMPLES.into_iter().enumerate() {
        for count in COUNTS {
            let op = [ReduceOp::Sum, ReduceOp::Average][(turn + count) % 2];
            let expected = expected(world.size, count, codec, op);
            for (rank, trained) in trained(world, count, codec, op).into_iter().enumerate() {
                let how = format!("{codec}, {count}, rank {rank} of {world:?}");
                assert!(trained.results == expected.results, "results: {how}");
                assert!(trained.left == [expected.left[rank].clone()], "what is left: {how}");
            }
        }
    }
}

#[test]
fn the_interpreters_bits_over_shared_memory() {
    for (ranks, transport) in [(1, Transport::Local), (2, Transport::Local), (3, Transport::Shm)] {
        check(&World::new(ranks, transport));
    }
}

#[test]
fn the_interpreters_bits_over_tcp() {
    for ranks in [2, 5] {
        check(&World::new(ranks, Transport::Tcp).segment_bytes(4096));
    }
}

/// The fold-order contract: with 0 to 4 reducers, all codecs.
#[test]
fn the_same_bits_with_any_number_of_reducers() {
    let servers = Reducers::start(4);
    for (ranks, count) in [(1, 1), (2, 4), (3, 1), (3, 2), (4, 3), (4, 4)] {
        let transport = [Transport::Shm, Transport::Tcp][count % 2];
        check(&World::new(ranks, transport).reducers(servers.first(count)).segment_bytes(4096));
    }
}

/// Whoever folds how much: what is left of a tensor lies by its elements, so that it is the same.
#[test]
fn the_same_bits_and_what_is_left_by_shares() {
    let servers = Reducers::start(3);
    check(&World::new(3, Transport::Shm).forced("weighted(radix,16,0,5)"));
    check(&World::new(4, Transport::Tcp).forced("weighted(radix,1,16,0,9)").segment_bytes(4096));
    let served = World::new(3, Transport::Tcp).reducers(servers.first(3)).segment_bytes(4096);
    check(&served.forced("weighted(reduction_server,3,0,16)"));
}

/// Operations on one tensor that are under way at once each go on with what the one before has left.
#[test]
fn operations_on_a_tensor_wait_for_each_other() {
    let servers = Reducers::start(2);
    let (count, codec) = (3 * BLOCK + 5, codec("int8"));
    let expected = expected(3, count, codec, ReduceOp::Sum);
    for (transport, reducers) in [(Transport::Local, 0), (Transport::Tcp, 2)] {
        let world = World::new(3, transport).reducers(servers.first(reducers)).segment_bytes(4096);
        let trained = world.run(|comm| {
            let begun = (0..STEPS).map(|step| {
                let buffer = Region::own(gradient(comm.rank(), step, count));
                let region = buffer.region().clone();
                let request = Request::new(Collective::AllReduce, DType::F32, count, region.clone(), region);
                let compression = Compression::of(codec).tensor("weight");
                (comm.submit(request.compression(compression)).unwrap(), buffer)
            });
            let begun: Vec<_> = begun.collect();
            let ended = begun.into_iter().map(|(pending, buffer)| {
                pending.wait().unwrap();
                bytes(&buffer.take())
            });
            (ended.collect::<Vec<_>>(), bytes(&comm.residuals().saved()[0].left))
        });
        for (rank, (results, left)) in trained.into_iter().enumerate() {
            assert!(results == expected.results, "results: rank {rank} of {world:?}");
            assert!(left == expected.left[rank], "what is left: rank {rank} of {world:?}");
        }
    }
}

/// A NaN or an infinity on one rank shows on all: where it is with casts, in its whole block with quantisers. Nothing else changes.
#[test]
fn what_is_not_finite_shows_on_all_ranks() {
    let (count, odd) = (3 * BLOCK, BLOCK + 7);
    for codec in Codec::EXAMPLES {
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            World::new(2, Transport::Local).run(|comm| {
                let compression = Compression::of(codec).tensor("weight");
                let mut buffer = gradient(comm.rank(), 0, count);
                buffer[odd] = if comm.rank() == 1 { value } else { 1.0 };
                comm.all_reduce_compressed(&mut buffer, ReduceOp::Sum, compression).unwrap();
                let is_odd = |value: &f32| !value.is_finite();
                let counted = buffer.iter().filter(|value| is_odd(value)).count();
                let passes = matches!(codec, Codec::Bf16 | Codec::Fp16 | Codec::TopK { .. } | Codec::Exact);
                assert!(is_odd(&buffer[odd]), "{codec} {value}");
                assert_eq!(counted, if passes { 1 } else { BLOCK }, "{codec} {value}");
                assert!(buffer[BLOCK..2 * BLOCK].iter().any(is_odd), "{codec} {value}");
                assert!(
                    comm.residuals().saved()[0].left.iter().all(|left| left.is_finite()),
                    "{codec} {value}"
                );
            });
        }
    }
}

/// Without a name nothing is kept, and yet each operation draws other elements.
#[test]
fn what_is_drawn_without_a_name_is_drawn_anew() {
    World::new(3, Transport::Local).run(|comm| {
        let mut drawn = vec![0u32; 2 * BLOCK];
        for _ in 0..8 {
            let mut ones = vec![1f32; drawn.len()];
            let compression = Compression::of(codec("randomk:0.1"));
            comm.all_reduce_compressed(&mut ones, ReduceOp::Sum, compression).unwrap();
            drawn.iter_mut().zip(&ones).for_each(|(times, sum)| *times += u32::from(*sum != 0.0));
        }
        let elements = drawn.iter().filter(|times| **times > 0).count();
        // One in ten each time, and some of them again.
        assert!((4 * BLOCK / 5..2 * BLOCK).contains(&elements), "{elements}");
        assert!(comm.residuals().saved().is_empty());
    });
}

#[test]
fn what_is_left_of_a_tensor_can_be_dropped() {
    World::new(1, Transport::Local).run(|comm| {
        let compression = || Compression::of(codec("twobit:0.5")).tensor("weight");
        comm.all_reduce_compressed(&mut [0.25; 3], ReduceOp::Sum, compression()).unwrap();
        assert_eq!(comm.residuals().saved()[0].left, [0.25; 3]);
        comm.residuals().forget("weight");
        assert_eq!(comm.residuals().saved(), []);
        comm.all_reduce_compressed(&mut [0.25; 2], ReduceOp::Sum, compression()).unwrap();
        comm.all_reduce_compressed(&mut [0.125; 3], ReduceOp::Sum, compression()).unwrap();
        assert_eq!(comm.residuals().saved()[0].left, [0.125; 3], "another length starts without, too");
    });
}

/// A resumed training equals one that was not interrupted.
#[test]
fn what_is_left_is_saved_and_restored() {
    let compression = || Compression::of(codec("topk:0.25")).tensor("weight");
    let steps = |from, to| {
        move |comm: &herringbone::Communicator, saved: Vec<Residual>| {
            comm.residuals().restore(saved);
            let mut last = Vec::new();
            for step in from..to {
                last = gradient(comm.rank(), step, 1000);
                comm.all_reduce_compressed(&mut last, ReduceOp::Sum, compression()).unwrap();
            }
            (bytes(&last), comm.residuals().saved())
        }
    };
    let world = World::new(2, Transport::Local);
    let through = world.run(|comm| steps(0, 6)(comm, Vec::new()));
    let half = world.run(|comm| steps(0, 3)(comm, Vec::new()));
    let resumed = world.run(|comm| steps(3, 6)(comm, half[comm.rank() as usize].1.clone()));
    assert_eq!(through, resumed);
    assert_ne!(through, world.run(|comm| steps(3, 6)(comm, Vec::new())), "without it is another training");
    assert_eq!(half[0].1[0].steps, 3);
}

#[test]
fn ranks_that_disagree_on_a_codec_are_told() {
    for names in [["int8", "bf16"], ["topk:0.1", "topk:0.2"], ["none", "int8"]] {
        World::new(2, Transport::Local).run(|comm| {
            let compression = Compression::of(codec(names[comm.rank() as usize]));
            let error = comm.all_reduce_compressed(&mut [1.0; 9000], ReduceOp::Sum, compression).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Mismatch { .. }), "{error}");
            assert!(error.to_string().contains("compress"), "{error}");
        });
    }
}

#[test]
fn what_codecs_are_not_for_is_refused() {
    World::new(2, Transport::Local).run(|comm| {
        let region = Region::zeroed(64);
        let ask = |collective, dtype, count, op| {
            let request = Request::new(collective, dtype, count, region.clone(), region.clone());
            comm.execute(request.op(op).compression(Compression::of(Codec::Int8))).unwrap_err().to_string()
        };
        let all = Collective::AllReduce;
        assert!(ask(all, DType::F64, 8, ReduceOp::Sum).contains("codecs are for f32"));
        assert!(ask(all, DType::F32, 16, ReduceOp::Max).contains("for sums and averages"));
        let broadcast = Collective::Broadcast { root: 0 };
        assert!(ask(broadcast, DType::F32, 16, ReduceOp::Sum).contains("only all_reduce"));
    });
}

/// Payload bytes over sockets: what is promised of each codec, for what goes up; results are as short where their codec is.
#[test]
fn messages_are_as_short_as_promised() {
    let servers = Reducers::start(1);
    let count = 64 * BLOCK;
    let cases =
        [("bf16", 0.501), ("int8", 0.27), ("onebit:0", 0.04), ("twobit:0.5", 0.07), ("topk:0.01", 0.025)];
    for (name, most) in cases {
        World::new(4, Transport::Tcp).reducers(servers.first(1)).run(|comm| {
            let mut buffer = gradient(comm.rank(), 0, count);
            comm.all_reduce_compressed(&mut buffer, ReduceOp::Sum, Compression::of(codec(name))).unwrap();
            let moved = comm.stats().reducers_tcp;
            let ratio = |bytes: u64| bytes as f64 / (4 * count) as f64;
            assert!(ratio(moved.sent) <= most, "{name}: sent {}", ratio(moved.sent));
            assert!(ratio(moved.received) <= 0.51, "{name}: received {}", ratio(moved.received));
        });
    }
}
