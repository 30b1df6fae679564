//! Texts, plans of fusion, the cache, and stalls.

use super::{Rng, call, in_group, request};
use crate::{
    codec::Codec,
    element::{DType, ReduceOp},
    group::Rank,
    named::{
        Coordinator, Lookup, NamedAnswer, NamedCall, NamedKind, NamedRequest, NamedResponse, ResponseCache,
        Stall, StallSettings, encode_requests, fuse,
    },
};
use core::time::Duration;

const NEVER: StallSettings = StallSettings { warning: Duration::ZERO, shutdown: Duration::ZERO };

fn coordinator(ranks: u32) -> Coordinator {
    Coordinator::new(ranks, NEVER)
}

fn join() -> NamedRequest {
    request("", call(NamedKind::Join, &[]))
}

fn receive(coordinator: &mut Coordinator, rank: Rank, requests: &[NamedRequest]) {
    coordinator.receive(rank, &encode_requests(requests), Duration::ZERO).unwrap();
}

/// What two ranks are told that ask for these.
fn error_of(one: NamedCall, two: NamedCall) -> String {
    let mut both = coordinator(2);
    for (rank, call) in [(1, two), (0, one)] {
        receive(&mut both, rank, &[request("t", call)]);
    }
    match both.answer().as_slice() {
        [NamedAnswer::Fail { name, text }] if name == "t" => text.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn ranks_that_do_not_agree_are_told_horovods_words() {
    use NamedKind::{AllGather, AllReduce, Broadcast};
    let reduce = || call(AllReduce, &[2, 3]);
    let cases = [
        (
            reduce(),
            NamedCall { dtype: DType::F64, ..reduce() },
            "Mismatched data types: One rank had type float32, but another rank had type float64.",
        ),
        (
            reduce(),
            call(AllGather, &[2, 3]),
            "Mismatched operations: One rank did an ALLREDUCE, but another rank did an ALLGATHER.",
        ),
        (
            reduce(),
            call(AllReduce, &[6]),
            "Mismatched ALLREDUCE tensor shapes: One rank sent a tensor of shape [2, 3], but another rank sent a tensor of \
             shape [6].",
        ),
        (
            reduce(),
            NamedCall { prescale: 0.5, ..reduce() },
            "Mismatched prescale and/or postscale factors: One rank sent factors (1, 1), but another rank sent factors (0.5, \
             1).",
        ),
        (
            reduce(),
            NamedCall { op: ReduceOp::Average, ..reduce() },
            "Mismatched reduction operation: One rank sent reduction op SUM, but another rank sent reduction op AVERAGE.",
        ),
        (
            reduce(),
            NamedCall { codec: Codec::Int8, ..reduce() },
            "Mismatched compression: One rank sent codec none, but another rank sent codec int8.",
        ),
        (
            call(AllGather, &[2, 3]),
            call(AllGather, &[2]),
            "Mismatched ALLGATHER tensor shapes: One rank sent a tensor of rank 2, but another rank sent a tensor of rank 1.",
        ),
        (
            call(AllGather, &[2, 3]),
            call(AllGather, &[5, 4]),
            "Mismatched ALLGATHER tensor shapes: One rank sent a tensor with dimension 1 equal to 3, but another rank sent a \
             tensor with dimension 1 equal to 4.",
        ),
        (
            call(AllGather, &[]),
            call(AllGather, &[]),
            "Process-set rank zero tried to ALLGATHER a rank-zero tensor.",
        ),
        (
            call(Broadcast, &[2]),
            NamedCall { root: 1, ..call(Broadcast, &[2]) },
            "Mismatched BROADCAST root ranks: One rank specified root rank 0, but another rank specified root rank 1.",
        ),
    ];
    for (one, two, expected) in cases {
        assert_eq!(error_of(one, two), expected);
    }
}

#[test]
fn a_rank_that_has_joined_takes_part_in_sums_only() {
    let mut three = coordinator(3);
    receive(&mut three, 2, &[join()]);
    for rank in 0..2 {
        let gather = request("g", call(NamedKind::AllGather, &[1]));
        receive(&mut three, rank, &[request("r", call(NamedKind::AllReduce, &[1])), gather]);
    }
    let answers = three.answer();
    assert!(matches!(&answers[0], NamedAnswer::Run(response) if response.name == "r"), "{answers:?}");
    let text = "Allgather is not supported with Join at this time.";
    assert_eq!(answers[1], NamedAnswer::Fail { name: "g".into(), text: text.into() });
    receive(&mut three, 0, &[join()]);
    assert_eq!(three.answer(), []);
    receive(&mut three, 1, &[join()]);
    assert_eq!(three.answer(), [NamedAnswer::Joined { last: 1 }]);
    assert_eq!(three.answer(), []);
}

#[test]
fn tensors_of_a_group_are_answered_together() {
    let mut two = coordinator(2);
    let of = |name: &str| in_group("g", 2, request(name, call(NamedKind::AllReduce, &[1])));
    receive(&mut two, 0, &[of("a"), of("b")]);
    receive(&mut two, 1, &[of("b")]);
    assert_eq!(two.answer(), []);
    receive(&mut two, 1, &[of("a")]);
    let names: Vec<String> = two
        .answer()
        .into_iter()
        .map(|answer| match answer {
            NamedAnswer::Run(response) => response.name,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(names, ["b", "a"]);
}

fn response(name: &str, call: NamedCall) -> NamedResponse {
    NamedResponse { name: name.into(), call, sizes: Vec::new(), group: None, priority: 0 }
}

/// The names of each batch.
fn plan(responses: &[NamedResponse], threshold: u64, across_groups: bool) -> Vec<String> {
    let batches = fuse(responses.to_vec(), threshold, across_groups);
    batches.iter().map(|batch| batch.iter().map(|response| response.name.as_str()).collect()).collect()
}

#[test]
fn what_is_alike_is_fused_up_to_the_threshold() {
    let of = |name, elements| response(name, call(NamedKind::AllReduce, &[elements]));
    let double = |name| response(name, NamedCall { dtype: DType::F64, ..call(NamedKind::AllReduce, &[1]) });
    let halved = |name| response(name, NamedCall { prescale: 0.5, ..call(NamedKind::AllReduce, &[1]) });
    assert_eq!(plan(&[of("a", 1), of("b", 1), of("c", 1)], 8, true), ["ab", "c"]);
    // It looks past other types, but not further than the threshold.
    assert_eq!(plan(&[of("a", 1), double("x"), of("b", 1), double("y")], 100, true), ["ab", "xy"]);
    assert_eq!(plan(&[of("a", 1), double("x"), of("b", 1)], 11, true), ["a", "x", "b"]);
    assert_eq!(plan(&[of("a", 1), halved("h"), of("b", 1)], 100, true), ["ab", "h"]);
    assert_eq!(plan(&[of("a", 100), of("b", 100)], 4, true), ["a", "b"]);
    let gather = |name, sizes: &[u64]| {
        let response = response(name, call(NamedKind::AllGather, &[1, 2]));
        NamedResponse { sizes: sizes.to_vec(), ..response }
    };
    assert_eq!(plan(&[gather("g", &[1, 3]), gather("h", &[2, 0])], 48, true), ["gh"]);
    assert_eq!(plan(&[gather("g", &[1, 3]), gather("h", &[2, 0])], 47, true), ["g", "h"]);
    let coded = |name| response(name, NamedCall { codec: Codec::Int8, ..call(NamedKind::AllReduce, &[1]) });
    assert_eq!(plan(&[of("a", 1), coded("x"), of("b", 1), coded("y")], 100, true), ["ab", "x", "y"]);
    let adasum = |name| response(name, call(NamedKind::Adasum, &[1]));
    assert_eq!(plan(&[adasum("a"), adasum("b")], 100, true), ["a", "b"]);
    let grouped = |name, group: &str| NamedResponse { group: Some(group.into()), ..of(name, 1) };
    let groups = [grouped("a", "1"), grouped("b", "2"), grouped("c", "1")];
    assert_eq!(plan(&groups, 100, true), ["abc"]);
    assert_eq!(plan(&groups, 100, false), ["ac", "b"]);
}

/// Nothing is lost, and of what cannot be told apart the first goes first.
#[test]
fn plans_of_fusion_keep_all_and_the_order_of_what_is_alike() {
    let mut rng = Rng(5);
    for _ in 0..500 {
        let make = |number: usize, rng: &mut Rng| {
            let dtype = [DType::F32, DType::F64, DType::I32][rng.below(3)];
            let call = NamedCall { dtype, ..call(NamedKind::AllReduce, &[rng.below(20) as u64]) };
            response(&format!("{number:02}"), call)
        };
        let count = rng.below(20);
        let responses: Vec<NamedResponse> = (0..count).map(|number| make(number, &mut rng)).collect();
        let threshold = rng.below(200) as u64;
        let batches = fuse(responses.clone(), threshold, true);
        let mut all: Vec<&str> = batches.iter().flatten().map(|response| response.name.as_str()).collect();
        for dtype in [DType::F32, DType::F64, DType::I32] {
            let is_of = |response: &&NamedResponse| response.call.dtype == dtype;
            let planned: Vec<&NamedResponse> = batches.iter().flatten().filter(is_of).collect();
            assert_eq!(planned, responses.iter().filter(is_of).collect::<Vec<_>>());
        }
        all.sort_unstable();
        assert_eq!(all.len(), count);
        assert!(all.is_sorted());
        for batch in batches.iter().filter(|batch| batch.len() > 1) {
            assert!(batch.iter().map(NamedResponse::bytes).sum::<u64>() <= threshold);
        }
    }
}

#[test]
fn the_cache_gives_up_what_was_not_used_for_the_longest_time() {
    let mut cache = ResponseCache::new(2);
    let of = |name| call(NamedKind::AllReduce, &[if name == "a" { 1 } else { 2 }]);
    let look = |cache: &ResponseCache, name: &'static str| cache.look(&request(name, of(name)));
    for name in ["a", "b"] {
        cache.put(&response(name, of(name)), None);
    }
    assert_eq!((look(&cache, "a"), look(&cache, "b")), (Lookup::Hit(0), Lookup::Hit(1)));
    cache.take(0);
    cache.put(&response("c", of("c")), None);
    assert_eq!(
        (look(&cache, "a"), look(&cache, "b"), look(&cache, "c")),
        (Lookup::Hit(0), Lookup::Miss, Lookup::Hit(1))
    );
    assert_eq!(cache.look(&request("a", call(NamedKind::AllReduce, &[5]))), Lookup::Invalid(0));
    cache.evict(0);
    assert_eq!(look(&cache, "a"), Lookup::Miss);
    cache.put(&response("barrier", call(NamedKind::Barrier, &[])), None);
    assert_eq!(cache.look(&request("barrier", call(NamedKind::Barrier, &[]))), Lookup::Miss);
    let mut off = ResponseCache::new(0);
    off.put(&response("a", of("a")), None);
    assert_eq!((look(&off, "a"), off.places()), (Lookup::Miss, 0));
}

#[test]
fn stalled_tensors_are_listed_by_missing_rank() {
    let stall = StallSettings { warning: Duration::from_secs(60), shutdown: Duration::from_secs(100) };
    let mut three = Coordinator::new(3, stall);
    let list = encode_requests(&[request("x", call(NamedKind::AllReduce, &[1]))]);
    three.receive(1, &list, Duration::from_secs(1)).unwrap();
    assert_eq!(three.look(Duration::from_secs(61)), None);
    let Stall { text, shuts_down } = three.look(Duration::from_secs(62)).unwrap();
    let start = "One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting \
         for remainder of ranks for more than 60 seconds. This may indicate";
    assert!(text.starts_with(start) && text.ends_with("Missing ranks:\n0: [x]\n2: [x]\n"), "{text}");
    assert!(!shuts_down);
    assert_eq!(three.look(Duration::from_secs(110)), None, "it is said once in that time");
    let Stall { text, shuts_down } = three.look(Duration::from_secs(130)).unwrap();
    let end = "0!: [x]\n2!: [x]\nOne or more rank (marked by \"!\") is stalled for longer than 100 seconds. Will shutdown.";
    assert!(text.ends_with(end) && shuts_down, "{text}");
}
