//! Sums of shards have the bits of a single rank, whoever carries them.

use crate::world::{Reducers, Transport, World};
use herringbone::{
    Collective, Communicator, ErrorKind, Plain, ReduceOp, Region, Request,
    core::{
        element::{DType, Element},
        shards::ShardRuns,
    },
    shards::ShardGroup,
};

const SHARDS: u32 = 8;
const COUNT: usize = 3000;

/// What a shard gives: numbers of all magnitudes. Every seventh one gives nothing.
fn gradient<T: Element + Plain>(shard: u32) -> Option<Vec<T>> {
    let mut state = u64::from(shard) + 1;
    let mut bytes = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11).to_le_bytes()
    };
    let element = |_| T::load(&bytes()[..T::DTYPE.bytes()]);
    (shard % 7 != 3).then(|| (0..COUNT).map(element).collect())
}

/// How shards are dealt to ranks.
type Deal = fn(u32) -> ShardRuns;

fn aligned(ranks: u32) -> ShardRuns {
    ShardRuns::aligned(SHARDS, ranks).unwrap()
}

/// Ranks whose shards are several nodes of the canonical tree, for most numbers of ranks.
fn even(ranks: u32) -> ShardRuns {
    ShardRuns::even(2 * SHARDS, ranks).unwrap()
}

fn total<T: Element + Plain>(comm: &Communicator, deal: Deal, op: ReduceOp) -> Vec<T> {
    let group = ShardGroup::new(comm, deal(comm.size())).unwrap();
    let gradients: Vec<Option<Vec<T>>> = group.mine().map(gradient).collect();
    group.all_reduce(COUNT, gradients, op).unwrap().unwrap()
}

fn check<T: Element + Plain>(world: &World, deal: Deal) {
    for op in [ReduceOp::Sum, ReduceOp::Average] {
        let alone = World::new(1, Transport::Local).run(|comm| bits(&total::<T>(comm, deal, op)));
        for on_rank in world.run(|comm| bits(&total::<T>(comm, deal, op))) {
            assert!(on_rank == alone[0], "{} {op} in {world:?}", T::DTYPE);
        }
    }
}

fn bits<T: Element>(elements: &[T]) -> Vec<u8> {
    let mut bytes = vec![0; elements.len() * T::DTYPE.bytes()];
    for (element, bytes) in elements.iter().zip(bytes.chunks_mut(T::DTYPE.bytes())) {
        element.store(bytes);
    }
    bytes
}

#[test]
fn bits_are_those_of_one_rank() {
    for size in [2, 3, 4, 5, 8, 10] {
        let world = World::new(size, Transport::Local);
        check::<f32>(&world, aligned);
        check::<half::bf16>(&world, aligned);
    }
    for transport in [Transport::Shm, Transport::Tcp] {
        check::<f64>(&World::new(3, transport), aligned);
        check::<i32>(&World::new(5, transport), aligned);
    }
    let reducers = Reducers::start(3);
    for count in 1..=3 {
        let world = World::new(3, Transport::Tcp).reducers(reducers.first(count)).forced("reduction_server");
        check::<f32>(&world, aligned);
        check::<half::f16>(&world, aligned);
    }
}

#[test]
fn even_runs_have_these_bits() {
    for size in 2..=10 {
        let world = World::new(size, Transport::Local);
        check::<f32>(&world, even);
        check::<half::bf16>(&world, even);
    }
    for algorithm in ["radix", "one_shot", "star"] {
        check::<f32>(&World::new(3, Transport::Local).forced(algorithm), even);
        check::<f32>(&World::new(3, Transport::Tcp).forced(algorithm), even);
    }
    check::<f64>(&World::new(3, Transport::Shm), even);
    check::<i32>(&World::new(5, Transport::Shm), even);
    let reducers = Reducers::start(3);
    for (count, algorithm) in [(1, "reduction_server"), (2, "mixed"), (3, "reduction_server")] {
        let world = World::new(3, Transport::Tcp).reducers(reducers.first(count)).forced(algorithm);
        check::<f32>(&world, even);
        check::<half::f16>(&world, even);
    }
}

/// The sum of large partial sums, whose messages go in segments, with the total in the place of the first one or apart.
fn large(comm: &Communicator, in_place: bool) -> Vec<u8> {
    const LARGE: usize = 300_000;
    let group = ShardGroup::new(comm, even(comm.size())).unwrap();
    let input = Region::zeroed(group.partials() * LARGE * 4);
    let partial = |node: usize| input.part(node * LARGE * 4..(node + 1) * LARGE * 4);
    let mut sum = group.sum(DType::F32, ReduceOp::Sum, (0..group.partials()).map(partial).collect()).unwrap();
    for shard in group.mine() {
        let gradient: Vec<f32> = (0..LARGE).map(|at| (at as f32 + 0.1) / (shard + 3) as f32).collect();
        sum.push(Some(Region::own(gradient).region().clone())).unwrap();
    }
    sum.check_complete().unwrap();
    let before = input.access().unwrap().span().to_vec();
    let total = if in_place { partial(0) } else { Region::zeroed(LARGE * 4) };
    let request = Request::new(Collective::AllReduce, DType::F32, LARGE, input.clone(), total.clone());
    group.sums().execute(request.op(ReduceOp::Average)).unwrap();
    let after = input.access().unwrap().span().to_vec();
    assert!(after[total.len()..] == before[total.len()..] && (in_place || after == before));
    total.access().unwrap().span().to_vec()
}

#[test]
fn the_total_may_take_the_place_of_the_first_partial_sum() {
    let alone = World::new(1, Transport::Local).run(|comm| large(comm, false));
    let reducers = Reducers::start(2);
    for in_place in [false, true] {
        let served = World::new(3, Transport::Tcp).reducers(reducers.first(2)).forced("reduction_server");
        for world in [World::new(3, Transport::Local), World::new(3, Transport::Tcp), served] {
            for on_rank in world.run(|comm| large(comm, in_place)) {
                assert!(on_rank == alone[0], "{world:?}, in place: {in_place}");
            }
        }
    }
}

#[test]
fn ranks_that_cut_otherwise_are_named() {
    World::new(3, Transport::Local).run(|comm| {
        let cut = if comm.rank() == 0 { ShardRuns::even(8, 3) } else { ShardRuns::aligned(8, 3) };
        let group = ShardGroup::new(comm, cut.unwrap()).unwrap();
        let given = vec![Some(vec![1.0_f32]); group.mine().len()];
        let error = group.all_reduce(1, given, ReduceOp::Sum).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Mismatch { .. }), "{error}");
        assert!(
            error.to_string().contains("fold keys 5") && error.to_string().contains("fold keys 3"),
            "{error}"
        );
    });
    World::new(3, Transport::Local).forced("doubling").run(|comm| {
        let group = ShardGroup::new(comm, ShardRuns::even(8, 3).unwrap()).unwrap();
        let given = vec![Some(vec![1.0_f32]); group.mine().len()];
        let error = group.all_reduce(1, given, ReduceOp::Sum).unwrap_err().to_string();
        assert!(
            error.contains("doubling folds one input of each member") && error.contains("Use radix"),
            "{error}"
        );
        let one = Region::zeroed(4);
        let request = Request::new(Collective::AllReduce, DType::F32, 1, one.clone(), one);
        if group.partials() == 2 {
            let error = group.sums().execute(request).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::BufferSize { expected: 8, actual: 4, .. }), "{error}");
        }
    });
}

#[test]
fn nothing_from_all_shards_is_nothing() {
    World::new(3, Transport::Local).run(|comm| {
        let group = ShardGroup::new(comm, ShardRuns::aligned(2, 3).unwrap()).unwrap();
        let nothing = vec![None; group.mine().len()];
        assert_eq!(group.all_reduce::<f32>(5, nothing, ReduceOp::Sum).unwrap(), None);
        // The sign of a lone zero stays.
        let given: Vec<Option<Vec<f32>>> =
            group.mine().map(|shard| (shard == 1).then(|| vec![-0.0])).collect();
        let sum = group.all_reduce(1, given, ReduceOp::Sum).unwrap().unwrap();
        assert_eq!(sum[0].to_bits(), (-0.0_f32).to_bits());
    });
}

#[test]
fn ranks_with_other_shards_are_named() {
    World::new(2, Transport::Local).run(|comm| {
        let shards = if comm.rank() == 0 { 8 } else { 16 };
        let group = ShardGroup::new(comm, ShardRuns::aligned(shards, 2).unwrap()).unwrap();
        let given = vec![Some(vec![1.0_f32]); group.mine().len()];
        let error = group.all_reduce(1, given, ReduceOp::Sum).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Mismatch { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("shards 8") && text.contains("shards 16"), "{text}");
    });
}

#[test]
fn what_would_depend_on_the_ranks_is_refused() {
    World::new(2, Transport::Local).forced("ring").run(|comm| {
        let group = ShardGroup::new(comm, ShardRuns::aligned(2, 2).unwrap()).unwrap();
        let error = group.all_reduce(1, vec![Some(vec![1.0_f32])], ReduceOp::Max).unwrap_err();
        assert!(error.to_string().contains("plain all_reduces with sum or average"), "{error}");
        let error = group.sums().barrier().unwrap_err();
        assert!(error.to_string().contains("barrier"), "{error}");
    });
    World::new(4, Transport::Local).forced("ring").run(|comm| {
        let group = ShardGroup::new(comm, ShardRuns::aligned(4, 4).unwrap()).unwrap();
        let error = group.all_reduce(1, vec![Some(vec![1.0_f32])], ReduceOp::Sum).unwrap_err();
        assert!(error.to_string().contains("ring of shards: it has an order of its own"), "{error}");
    });
    World::new(2, Transport::Local).run(|comm| {
        let runs = ShardRuns::aligned(8, 3).unwrap();
        assert!(ShardGroup::new(comm, runs).unwrap_err().to_string().contains("3 runs for 2 ranks"));
        let group = ShardGroup::new(comm, ShardRuns::aligned(4, 2).unwrap()).unwrap();
        let mut sum = group.sum(DType::F32, ReduceOp::Sum, vec![Region::zeroed(4)]).unwrap();
        sum.push(None).unwrap();
        let error = sum.check_complete().unwrap_err();
        assert!(error.to_string().contains("1 gradients of this rank's 2 shards"), "{error}");
        let two = vec![1.0_f32; 2];
        let error = group.all_reduce(1, vec![Some(two), None], ReduceOp::Sum).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::BufferSize { expected: 4, actual: 8, .. }), "{error}");
    });
}
