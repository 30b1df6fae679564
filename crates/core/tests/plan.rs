//! The choice of algorithms.

use herringbone_core::algorithm::{Algorithm, Layout, Unsupported};
use herringbone_core::codec::Codec;
use herringbone_core::collective::Collective;
use herringbone_core::group::Group;
use herringbone_core::plan::{
    Choice, DOUBLING_BYTES, Guidance, HOST_CHUNK_BYTES, ONE_SHOT_BYTES, ONE_SHOT_BYTES_HERE,
    ONE_SHOT_MESSAGE, ONE_SHOT_RANKS, PAIR_BYTES, PlanRules, REDUCTION_SERVER_BYTES, Request, SHARDED_RANKS,
    STAR_BYTES, choose,
};
use herringbone_core::topology::LinkMatrix;

const ALL_REDUCE: Collective = Collective::AllReduce;

fn request(group: &Group, collective: Collective, bytes: u64, reducers: u32) -> Request<'_> {
    Request {
        collective,
        bytes,
        widening: 1,
        group,
        reducers,
        hosts: &[],
        forced: None,
        codec: Codec::Plain,
        links: None,
        ports: None,
    }
}

fn chosen(size: u32, collective: Collective, bytes: u64, reducers: u32) -> String {
    let group = Group::of_size(size);
    let Choice { algorithm, why } = choose(&request(&group, collective, bytes, reducers)).unwrap();
    assert!(!why.is_empty() && !why.ends_with('.'));
    algorithm.to_string()
}

#[test]
fn all_reduce_goes_by_size() {
    let each = ONE_SHOT_BYTES / u64::from(ONE_SHOT_RANKS);
    for (size, bytes, reducers, name) in [
        (1, 4, 0, "radix"),
        (1, 1 << 30, 2, "radix"),
        (ONE_SHOT_RANKS, each, 2, "one_shot"),
        (ONE_SHOT_RANKS, each + 1, 2, "doubling"),
        (ONE_SHOT_RANKS + 1, 4, 2, "doubling"),
        (2, ONE_SHOT_BYTES / 2, 0, "one_shot"),
        (4, DOUBLING_BYTES, 0, "doubling"),
        (4, DOUBLING_BYTES + 1, 0, "radix(2,2)"),
        (3, DOUBLING_BYTES + 1, 0, "radix"),
        (8, 8 * PAIR_BYTES, 0, "radix(2,2,2)"),
        (8, 8 * PAIR_BYTES - 1, 0, "radix"),
        (6, 6 * PAIR_BYTES, 0, "radix(2,4)"),
        (7, 1 << 30, 0, "radix"),
        (4, REDUCTION_SERVER_BYTES - 1, 1, "radix(2,2)"),
        (4, REDUCTION_SERVER_BYTES, 0, "radix(2,2)"),
        (4, REDUCTION_SERVER_BYTES, 4, "reduction_server"),
        (4, REDUCTION_SERVER_BYTES, 3, "reduction_server"),
        (4, REDUCTION_SERVER_BYTES, 2, "radix(2,2)"),
        (2, 1 << 30, 2, "radix"),
        (4, 10 * (64 << 10) - 1, 2, "radix(2,2)"),
        (4, 10 * (64 << 10), 2, "mixed"),
        (4, 4 << 20, 1, "mixed"),
        (4, 4 << 20, 4, "reduction_server"),
        (8, 1 << 30, 4, "mixed"),
        (8, 1 << 30, 8, "reduction_server"),
        (1000, u64::MAX, 600, "reduction_server"),
        (SHARDED_RANKS, 64 * PAIR_BYTES - 1, 0, "radix"),
        (SHARDED_RANKS + 1, 1 << 30, 0, "radix(8,8,8)"),
        (512, 512 * PAIR_BYTES - 1, 0, "radix(8,8,8)"),
        (512, 512 * PAIR_BYTES, 0, "radix(2,2,2,2,2,2,2,2,2)"),
        (4096, 1 << 20, 0, "radix(8,8,8,8)"),
    ] {
        assert_eq!(
            chosen(size, ALL_REDUCE, bytes, reducers),
            name,
            "{size} ranks, {bytes} B, {reducers} reducers"
        );
    }
}

#[test]
fn small_ones_inside_a_host_go_by_all_that_is_folded() {
    let (ranks, more) = (ONE_SHOT_RANKS, ONE_SHOT_RANKS + 1);
    let of = |size: u32, hosts: &[u32], collective, bytes| {
        let group = Group::of_size(size);
        choose(&Request { hosts, ..request(&group, collective, bytes, 0) }).unwrap().algorithm
    };
    for (size, bytes, name) in [
        (ranks, ONE_SHOT_BYTES_HERE / u64::from(ranks), Algorithm::OneShot),
        (ranks, ONE_SHOT_BYTES_HERE / u64::from(ranks) + 1, Algorithm::radix(vec![])),
        (2, ONE_SHOT_MESSAGE, Algorithm::OneShot),
        (2, ONE_SHOT_MESSAGE + 1, Algorithm::radix(vec![])),
        (more, 4, Algorithm::Star),
        (64, STAR_BYTES / 64, Algorithm::Star),
        (64, STAR_BYTES / 64 + 1, Algorithm::Doubling),
        (64, DOUBLING_BYTES + 1, Algorithm::radix(vec![])),
    ] {
        assert_eq!(of(size, &vec![7; size as usize], ALL_REDUCE, bytes), name, "{size} ranks, {bytes} B");
    }
    assert_eq!(of(more, &vec![7; more as usize], Collective::Barrier, 0), Algorithm::Star);
    let mut hosts = vec![7; more as usize];
    hosts[2] = 8;
    assert_eq!(of(more, &hosts, ALL_REDUCE, 4), Algorithm::Doubling);
    assert_eq!(of(more, &hosts, Collective::Barrier, 0), Algorithm::Doubling);
}

/// Two hosts of four workers and a megabyte.
fn on_two_hosts(collective: Collective, widening: u32, reducers: u32) -> (String, String) {
    let (group, hosts) = (Group::of_size(8), [0, 0, 0, 0, 1, 1, 1, 1]);
    let request = request(&group, collective, 1 << 20, reducers);
    let Choice { algorithm, why } = choose(&Request { hosts: &hosts, widening, ..request }).unwrap();
    (algorithm.to_string(), why)
}

#[test]
fn hosts_add_up_what_they_have_before_it_leaves_them() {
    for collective in [ALL_REDUCE, Collective::ReduceScatter, Collective::AllGather] {
        for widening in [1, 2] {
            let (name, why) = on_two_hosts(collective, widening, 0);
            assert_eq!(name, "radix(4,2)", "{collective}, {widening} times as wide");
            let why_so = match collective {
                Collective::AllGather => "each host receives once for its 4 workers",
                _ => "each host sums its 4 workers first",
            };
            assert!(why.contains(why_so), "{why}");
        }
    }
    let (name, why) = on_two_hosts(ALL_REDUCE, 1, 8);
    assert_eq!(name, "radix(4,2)", "four workers send four times the buffer to reducers");
    assert!(why.starts_with("8 reducers do not pay: 4.00 x the buffer per link, 1.00 x without"));
}

#[test]
fn hosts_add_up_what_they_have_before_reducers_do() {
    let large = HOST_CHUNK_BYTES * 32;
    let of = |each: u32, hosts: u32, reducers: u32, widening: u32, bytes: u64| {
        let (group, hosts) =
            (Group::of_size(hosts * each), (0..hosts * each).map(|rank| rank / each).collect::<Vec<_>>());
        let request = request(&group, ALL_REDUCE, bytes, reducers);
        let Choice { algorithm, why } = choose(&Request { hosts: &hosts, widening, ..request }).unwrap();
        (algorithm.to_string(), why)
    };
    let served = "hierarchical(radix,reduction_server)";
    let (name, why) = of(4, 4, 4, 1, large);
    assert_eq!(name, served);
    assert!(
        why.contains("so 4 reducers pay: 1.00 x the buffer per link instead of 1.50 x")
            && why.ends_with("each host sums its workers first"),
        "{why}"
    );
    for (each, hosts, reducers, widening, name) in [
        (4, 2, 8, 1, "radix(4,2)"),
        (8, 4, 3, 1, served),
        (8, 4, 2, 1, "radix(8,2,2)"),
        (2, 8, 5, 1, served),
        (2, 8, 4, 1, "radix(2,2,2,2)"),
        (2, 4, 4, 2, "hierarchical(radix,reduction_server)"),
        (2, 4, 3, 2, "radix(2,2,2)"),
        (3, 4, 12, 1, "hierarchical(radix,radix)"),
        (3, 4, 12, 8, "reduction_server"),
        (1, 4, 4, 1, "reduction_server"),
        (1, 4, 4, 2, "reduction_server"),
        (8, 1, 4, 1, "radix"),
    ] {
        let (chosen, why) = of(each, hosts, reducers, widening, large);
        assert_eq!(chosen, name, "{hosts} hosts of {each}, {reducers} reducers: {why}");
    }
    assert_eq!(of(2, 4, 4, 1, HOST_CHUNK_BYTES * 8).0, served);
    let (name, why) = of(2, 4, 4, 1, HOST_CHUNK_BYTES * 8 - 1);
    assert_eq!(name, "radix(2,2,2)", "too few pieces");
    assert!(
        why.contains("4 reducers do not pay: 2.00 x the buffer per link, 1.50 x without; from 1 MiB up"),
        "{why}"
    );
}

#[test]
fn partial_sums_are_not_sent_on_where_inputs_are_narrower() {
    let group = Group::of_size(8);
    let of = |collective, widening| {
        choose(&Request { widening, ..request(&group, collective, 1 << 20, 0) })
            .unwrap()
            .algorithm
            .to_string()
    };
    assert_eq!(of(ALL_REDUCE, 2), "radix(8;2,2,2)");
    assert_eq!(of(Collective::ReduceScatter, 2), "radix");
    assert_eq!(of(Collective::AllGather, 2), "radix(2,2,2)");
    assert_eq!(on_two_hosts(Collective::ReduceScatter, 8, 0).0, "radix", "averages of bytes");
}

#[test]
fn other_collectives_have_their_own() {
    for (collective, size, name) in [
        (Collective::Reduce { root: 3 }, 5, "radix"),
        (Collective::Reduce { root: 1 }, 2, "tree"),
        (Collective::Broadcast { root: 0 }, 64, "radix"),
        (Collective::Broadcast { root: 0 }, 500, "tree"),
        (Collective::ReduceScatter, 63, "radix"),
        (Collective::ReduceScatter, 64, "radix(2,2,2,2,2,2)"),
        (Collective::AllGather, 65, "radix(8,8,8)"),
        (Collective::AllGather, 12, "radix(2,2,4)"),
        (Collective::Gather { root: 3 }, 500, "one_shot"),
        (Collective::Scatter { root: 0 }, 5, "one_shot"),
        (Collective::AllToAll, 65, "one_shot"),
        (Collective::Barrier, ONE_SHOT_RANKS, "one_shot"),
        (Collective::Barrier, ONE_SHOT_RANKS + 1, "doubling"),
    ] {
        assert_eq!(chosen(size, collective, 1 << 20, 2), name, "{collective} of {size}");
    }
    let group = Group::of_size(3);
    let error = choose(&request(&group, Collective::Broadcast { root: 3 }, 4, 0)).unwrap_err();
    assert_eq!(error, Unsupported::Root { root: 3, size: 3 });
}

/// What a reduce or a broadcast takes leaves the buffer once to the root's link, where a tree leaves it once for each child.
#[test]
fn roots_send_and_receive_the_buffer_once() {
    let broadcast = Collective::Broadcast { root: 1 };
    let reduce = Collective::Reduce { root: 1 };
    let of = |collective, hosts: u32, each: u32, bytes, widening| {
        let group = Group::of_size(hosts * each);
        let hosts: Vec<u32> = (0..hosts * each).map(|rank| rank / each).collect();
        let request = Request { hosts: &hosts, widening, ..request(&group, collective, bytes, 0) };
        let Choice { algorithm, why } = choose(&request).unwrap();
        (algorithm.to_string(), why)
    };
    for (collective, hosts, each, bytes, name) in [
        (broadcast, 4, 1, 25 << 20, "chain"),
        (broadcast, 4, 1, 1 << 20, "chain"),
        (broadcast, 4, 1, (1 << 20) - 1, "radix"),
        (broadcast, 4, 1, 64 << 10, "radix"),
        (broadcast, 4, 1, (64 << 10) - 1, "tree"),
        (broadcast, 64, 1, 256 << 10, "tree"),
        (broadcast, 64, 1, 512 << 10, "radix"),
        (broadcast, 300, 1, 1 << 30, "chain"),
        (broadcast, 300, 1, 25 << 20, "tree"),
        (broadcast, 2, 1, 1 << 30, "tree"),
        (broadcast, 1, 8, 1 << 30, "tree"),
        (broadcast, 8, 8, 1 << 30, "chain"),
        (broadcast, 8, 8, 1 << 20, "tree"),
        (reduce, 4, 1, 1 << 30, "radix"),
        (reduce, 64, 1, 1 << 30, "radix"),
        (reduce, 300, 1, 1 << 30, "tree"),
        (reduce, 8, 8, 1 << 30, "tree"),
    ] {
        let (chosen, why) = of(collective, hosts, each, bytes, 1);
        assert_eq!(chosen, name, "{collective} of {bytes} B, {hosts} hosts of {each}: {why}");
    }
    let why = of(reduce, 8, 1, 1 << 30, 1).1;
    assert_eq!(why, "1.00 of the buffer over the busiest link, and 3.00 with tree");
    let why = of(reduce, 8, 1, 1 << 30, 2).1;
    assert_eq!(
        why, "1.00 of the buffer over the busiest link, and 5.00 with tree",
        "partial sums are as wide"
    );
}

#[test]
fn a_forced_algorithm_is_taken_or_refused() {
    let group = Group::of_size(4);
    let force = |name: &str, collective, reducers| {
        let forced: Algorithm = name.parse().unwrap();
        choose(&Request { forced: Some(&forced), ..request(&group, collective, 4, reducers) })
    };
    for name in ["ring", "radix(2,2)", "doubling", "one_shot", "star", "tree"] {
        assert_eq!(force(name, ALL_REDUCE, 0).unwrap().algorithm, name.parse().unwrap());
    }
    assert_eq!(force("reduction_server", ALL_REDUCE, 1).unwrap().algorithm, Algorithm::ReductionServer);
    assert_eq!(force("reduction_server", ALL_REDUCE, 0), Err(Unsupported::NoReducers));
    assert_eq!(force("radix(3)", ALL_REDUCE, 0), Err(Unsupported::Factor { factor: 3 }));
    assert!(matches!(force("ring", Collective::Barrier, 0), Err(Unsupported::Collective { .. })));
    let guidance = Guidance { forced: Some(Algorithm::Ring), ..Guidance::default() };
    assert_eq!(guidance.for_call(ALL_REDUCE, 1, 4), Some(Algorithm::Ring));
    assert_eq!(guidance.for_call(Collective::Barrier, 0, 0), None, "it is for all-reduces");
}

#[test]
fn a_rule_counts_more_than_a_forced_algorithm() {
    let rules = PlanRules::parse("all_reduce:0-4K:doubling,broadcast:0-inf:chain").unwrap();
    let guidance = Guidance { rules, forced: Some(Algorithm::Ring), ..Guidance::default() };
    let said =
        |collective, bytes| guidance.for_call(collective, bytes as usize, bytes).map(|said| said.to_string());
    assert_eq!(said(ALL_REDUCE, 4095).as_deref(), Some("doubling"));
    assert_eq!(said(ALL_REDUCE, 4096).as_deref(), Some("ring"));
    assert_eq!(said(Collective::Broadcast { root: 1 }, 9).as_deref(), Some("chain"));
    assert_eq!(said(Collective::AllGather, 9), None);
}

#[test]
fn one_of_the_forced_trees_carries_a_small_buffer() {
    let forced: Algorithm = "trees(best)".parse().unwrap();
    let said = |tree_bound, count| {
        let guidance = Guidance { forced: Some(forced.clone()), tree_bound, ..Guidance::default() };
        guidance.for_call(ALL_REDUCE, count, 4 * count as u64).unwrap().to_string()
    };
    let names = [(None, 10_000_000), (None, 10_000_001), (Some(5), 5), (Some(5), 6)]
        .map(|(bound, count)| said(bound, count));
    assert_eq!(names, ["trees(best,single)", "trees(best)", "trees(best,single)", "trees(best)"]);
}

#[test]
fn hosts_that_allow_no_hierarchy_give_way_and_say_so() {
    let (group, forced) = (Group::of_size(4), Algorithm::hierarchical());
    let on = |hosts| {
        choose(&Request { hosts, forced: Some(&forced), ..request(&group, ALL_REDUCE, 1 << 20, 0) }).unwrap()
    };
    assert_eq!(on(&[0, 0, 1, 1]).algorithm, forced);
    for (hosts, name) in [
        (&[][..], "radix(2,2)"),
        (&[0; 4], "radix"),
        (&[0, 1, 2, 3], "radix(2,2)"),
        (&[0, 0, 1, 0], "weighted(radix,16x2,0,16)"),
    ] {
        let Choice { algorithm, why } = on(hosts);
        assert_eq!(algorithm.to_string(), name);
        assert!(why.contains("not the forced hierarchical(radix,radix), because"), "{why}");
    }
    let composed: Algorithm = "hierarchical(tree,ring)".parse().unwrap();
    let refused = choose(&Request { forced: Some(&composed), ..request(&group, ALL_REDUCE, 1 << 20, 0) });
    assert!(matches!(refused, Err(Unsupported::Composition { .. })), "{refused:?}");
}

/// Where the links are known, a large all-reduce takes canonical trees if they leave less to the slowest link.
#[test]
fn trees_are_taken_where_they_spare_the_slowest_link() {
    // Two fast groups of four, and slow links between them.
    let row = |a: usize| (0..8).map(|b| if a / 4 == b / 4 { 50.0 } else { 1.0 }).collect();
    let slow = LinkMatrix::of_weights(&(0..8).map(row).collect::<Vec<Vec<f32>>>()).unwrap();
    let even = LinkMatrix::uniform(8, 10.0);
    let group = Group::of_size(8);
    let chosen = |links, bytes| choose(&Request { links, ..request(&group, ALL_REDUCE, bytes, 0) }).unwrap();
    assert_eq!(chosen(Some(&slow), 1 << 10), chosen(None, 1 << 10), "small buffers are as always");
    let Choice { algorithm, why } = chosen(Some(&even), 1 << 20);
    assert_eq!(algorithm.to_string(), "radix");
    assert!(
        why.contains("is busy for 25.00 ms/GB, 100.00 ms/GB with trees, 100.00 ms/GB with radix("),
        "{why}"
    );
    let Choice { algorithm, why } = chosen(Some(&slow), 1 << 20);
    assert!(why.contains("the slowest link is busy for "), "{algorithm}: {why}");
    // A cube of two squares with their diagonals, as a DGX-1 has it, and other links that are slow.
    let weight = |a: usize, b: usize| if a / 4 == b / 4 || a % 4 == b % 4 { 2.0 } else { 0.1 };
    let rows: Vec<Vec<f32>> = (0..8).map(|a| (0..8).map(|b| weight(a, b)).collect()).collect();
    let cube = LinkMatrix::of_weights(&rows).unwrap();
    let Choice { algorithm, why } = chosen(Some(&cube), 64 << 10);
    // With links of 0.1 beside those of the cube no half takes all of them at once.
    assert_eq!(algorithm.to_string(), "radix(4,2)");
    let weight = |a: usize, b: usize| weight(a, b).max(0.5);
    let rows: Vec<Vec<f32>> = (0..8).map(|a| (0..8).map(|b| weight(a, b)).collect()).collect();
    let staged = chosen(Some(&LinkMatrix::of_weights(&rows).unwrap()), 1 << 20);
    assert_eq!(staged.algorithm.to_string(), "radix(;4,2)");
    assert!(staged.why.starts_with("the slowest link is busy for 250.00 ms/GB"), "{}", staged.why);
    assert!(
        why.starts_with("the slowest link is busy for 250.00 ms/GB, 500.00 ms/GB with trees, 2500.00"),
        "{why}"
    );
    // Without the link of ranks 0 and 2 neither radix can be.
    let row = |a: usize| (0..4).map(|b| if a + b == 2 && a != b { 0.0 } else { 5.0 }).collect();
    let partly = LinkMatrix::of_weights(&(0..4).map(row).collect::<Vec<Vec<f32>>>()).unwrap();
    let group = Group::of_size(4);
    let choice =
        choose(&Request { links: Some(&partly), ..request(&group, ALL_REDUCE, 1 << 20, 0) }).unwrap();
    assert_eq!(choice.algorithm.to_string(), "trees");
    assert!(choice.why.contains("radix needs a missing link"), "{}", choice.why);
}

#[test]
fn every_choice_has_a_schedule() {
    for size in [1, 2, 3, 8, 9, 64, 65, 200] {
        let group = Group::of_size(size);
        for collective in [
            ALL_REDUCE,
            Collective::Reduce { root: size - 1 },
            Collective::Broadcast { root: 0 },
            Collective::ReduceScatter,
            Collective::AllGather,
            Collective::Gather { root: size - 1 },
            Collective::Scatter { root: 0 },
            Collective::AllToAll,
            Collective::Barrier,
        ] {
            for bytes in [0, 4, 1 << 14, 1 << 16, 1 << 30] {
                for reducers in [0, 2] {
                    let choice = choose(&request(&group, collective, bytes, reducers)).unwrap();
                    let layout = Layout { reducers, hosts: &[], links: None };
                    choice.algorithm.schedule(collective, &group, &layout).unwrap();
                }
            }
        }
    }
}
