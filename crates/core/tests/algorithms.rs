//! Every algorithm: proved, canonical, as cheap as its table says, and staggered.

use herringbone_core::algorithm::cost::{Cost, Messages};
use herringbone_core::algorithm::{Algorithm, Layout, Unsupported};
use herringbone_core::collective::Collective;
use herringbone_core::group::Group;
use herringbone_core::schedule::{Origin, Place, Program, Rank, Step};
use herringbone_core::verify::{Order, Verified, verify};
use std::collections::BTreeSet;

const ALL_REDUCE: Collective = Collective::AllReduce;

fn named(name: &str) -> Algorithm {
    name.parse().expect(name)
}

fn without_hosts(reducers: u32) -> Layout<'static> {
    Layout { reducers, hosts: &[], links: None }
}

fn proved(algorithm: &str, collective: Collective, group: &Group, layout: &Layout<'_>) -> Verified {
    let context = || format!("{algorithm}, {collective}, keys {:?}, {layout:?}", group.keys());
    let schedule = named(algorithm).schedule(collective, group, layout);
    let schedule = schedule.unwrap_or_else(|error| panic!("{}: {error}", context()));
    verify(schedule, collective, group).unwrap_or_else(|error| panic!("{}: {error}", context()))
}

fn all_reduce(algorithm: &str, size: u32) -> Verified {
    proved(algorithm, ALL_REDUCE, &Group::of_size(size), &without_hosts(0))
}

fn cost(algorithm: &str, size: u32) -> Cost {
    all_reduce(algorithm, size).cost()
}

/// Groups whose keys leave gaps, as after losses, and groups whose keys name hosts.
fn irregular_groups() -> Vec<Group> {
    let mut groups: Vec<Vec<u32>> = vec![
        vec![5],
        vec![0, u32::MAX],
        vec![0, 1, 2, 0x8000_0000],
        vec![3, 9, 11, 12, 40],
        vec![8, 16, 24, 32, 40, 48],
        (0..12).flat_map(|host| (0..1 + host % 5).map(move |local| host << 3 | local)).collect(),
    ];
    let mut state = 1u32;
    for size in [3, 6, 13, 27] {
        let mut keys = BTreeSet::new();
        while keys.len() < size {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            keys.insert(state >> 26);
        }
        groups.push(keys.into_iter().collect());
    }
    groups.into_iter().map(|keys| Group::with_keys(keys).unwrap()).collect()
}

fn all_groups() -> impl Iterator<Item = Group> {
    (1..=64).map(Group::of_size).chain(irregular_groups())
}

#[test]
fn every_algorithm_is_proved_and_canonical_for_any_group() {
    let radices = ["radix", "radix(2)", "radix(2,2,2,2,2,2)", "radix(4,4,4)", "radix(8,8)", "radix(2,16)"];
    let halves = ["radix(64;2,2,2,2,2,2)", "radix(2,4;8)", "radix(4,2;2,8)"];
    for group in all_groups() {
        let canonical = |algorithm: &str, collective| {
            let verified = proved(algorithm, collective, &group, &without_hosts(0));
            assert_eq!(verified.order(), Order::Fixed, "{algorithm}, {collective}, keys {:?}", group.keys());
        };
        for collective in [ALL_REDUCE, Collective::ReduceScatter, Collective::AllGather] {
            radices.iter().chain(&halves).for_each(|radix| canonical(radix, collective));
        }
        for collective in [ALL_REDUCE, Collective::Barrier] {
            canonical("doubling", collective);
            canonical("one_shot", collective);
            canonical("star", collective);
        }
        canonical("one_shot", Collective::AllGather);
        canonical("tree", ALL_REDUCE);
        for root in [0, group.size() / 3, group.size() / 2, group.size() - 1] {
            canonical("tree", Collective::Reduce { root });
            canonical("tree", Collective::Broadcast { root });
            canonical("radix", Collective::Reduce { root });
            canonical("radix", Collective::Broadcast { root });
        }
        for algorithm in ["ring", "chain", "double_tree"] {
            proved(algorithm, ALL_REDUCE, &group, &without_hosts(0));
        }
        for root in [0, group.size() / 2, group.size() - 1] {
            proved("chain", Collective::Reduce { root }, &group, &without_hosts(0));
            proved("chain", Collective::Broadcast { root }, &group, &without_hosts(0));
        }
    }
    assert_eq!(all_reduce("ring", 2).order(), Order::Fixed);
    assert_eq!(all_reduce("ring", 3).order(), Order::Schedule);
}

#[test]
fn every_root_is_reached_along_a_chain_and_through_all_ranks() {
    for size in 1..=64 {
        let group = Group::of_size(size);
        for root in 0..size {
            for collective in [Collective::Reduce { root }, Collective::Broadcast { root }] {
                let spread = proved("radix", collective, &group, &without_hosts(0));
                assert_eq!(spread.order(), Order::Fixed, "{collective} of {size}");
                let busiest = f64::from(spread.cost().busiest()) / f64::from(spread.cost().chunks);
                assert!(busiest <= 1.0, "{collective} of {size}: {busiest}");
                proved("chain", collective, &group, &without_hosts(0));
            }
        }
    }
}

#[test]
fn reducers_fold_for_any_group_and_operations_can_start_again() {
    for group in all_groups() {
        for reducers in [1, 2, 3, 7, 16] {
            for algorithm in ["reduction_server", "mixed", "mixed(2,3)", "mixed(1,0)"] {
                let verified = proved(algorithm, ALL_REDUCE, &group, &without_hosts(reducers));
                assert_eq!((verified.workers(), verified.reducers()), (group.size(), reducers));
                assert_eq!(verified.order(), Order::Fixed);
                assert!(verified.restartable(), "{algorithm} of {} with {reducers}", group.size());
            }
        }
    }
}

/// Ranks by host, for hosts with these many ranks.
fn hosts_of(sizes: &[u32]) -> Vec<u32> {
    (0..).zip(sizes).flat_map(|(host, size)| (0..*size).map(move |_| host)).collect()
}

/// Keys that make any host a whole node.
fn group_by_host(sizes: &[u32]) -> Group {
    let bits = sizes.iter().map(|size| size.next_power_of_two().ilog2()).max().unwrap();
    let keys = (0u32..).zip(sizes).flat_map(|(host, size)| (0..*size).map(move |local| host << bits | local));
    Group::with_keys(keys.collect()).unwrap()
}

const COMPOSITIONS: [&str; 6] = [
    "hierarchical",
    "hierarchical(radix,doubling)",
    "hierarchical(radix,one_shot)",
    "hierarchical(radix(2,2),radix(2))",
    "hierarchical(radix(2,2),doubling)",
    "hierarchical(radix,radix(2,2,2))",
];

const SERVED: &str = "hierarchical(radix,reduction_server)";

#[test]
fn hierarchies_are_proved_and_canonical_where_hosts_are_whole_nodes() {
    let by_rank: [&[u32]; 8] =
        [&[2, 2], &[4, 4, 4], &[8, 8], &[4, 4, 3], &[2, 2, 1], &[8, 1], &[4; 9], &[2, 2, 4, 8, 1]];
    let by_key: [&[u32]; 6] = [&[3, 5, 8, 1], &[1, 2], &[3, 3, 3], &[6; 5], &[1, 1, 7], &[5, 4, 3, 2, 1]];
    let groups = by_rank.map(|sizes| (sizes, Group::of_size(sizes.iter().sum())));
    let keyed = by_key.map(|sizes| (sizes, group_by_host(sizes)));
    for (sizes, group) in groups.into_iter().chain(keyed) {
        let hosts = hosts_of(sizes);
        for algorithm in COMPOSITIONS {
            let verified =
                proved(algorithm, ALL_REDUCE, &group, &Layout { reducers: 0, hosts: &hosts, links: None });
            assert_eq!(verified.order(), Order::Fixed, "{algorithm}, hosts of {sizes:?}");
        }
        for reducers in [1, 2, 3, 5] {
            let verified =
                proved(SERVED, ALL_REDUCE, &group, &Layout { reducers, hosts: &hosts, links: None });
            assert_eq!(
                (verified.order(), verified.restartable()),
                (Order::Fixed, true),
                "hosts of {sizes:?}"
            );
            reducers_hear_from_all_and_hosts_send_once(&verified, &hosts);
        }
    }
}

/// Radix goes across hosts of consecutive ranks, however many: one partial sum for each node of the canonical tree that a host
/// has, and one result for each host.
#[test]
fn hosts_in_pieces_are_proved_and_canonical() {
    let even = (3..=7).flat_map(|each: u32| (2..=64 / each).map(move |hosts| vec![each; hosts as usize]));
    let others = [&[1, 2][..], &[2, 1, 3], &[3, 5, 8, 1], &[12; 3], &[1, 1, 7, 1], &[31, 33], &[5; 15]];
    for sizes in even.chain(others.map(<[u32]>::to_vec)) {
        let (hosts, group) = (hosts_of(&sizes), Group::of_size(sizes.iter().sum()));
        let layout = Layout { reducers: 0, hosts: &hosts, links: None };
        for algorithm in [COMPOSITIONS[0], COMPOSITIONS[3], COMPOSITIONS[5]] {
            for collective in [ALL_REDUCE, Collective::ReduceScatter, Collective::AllGather] {
                let verified = proved(algorithm, collective, &group, &layout);
                assert_eq!(verified.order(), Order::Fixed, "{algorithm}, {collective}, hosts of {sizes:?}");
            }
        }
        let gathered = proved("hierarchical", Collective::AllGather, &group, &layout);
        assert_eq!(across(&gathered, &hosts), (sizes.len() - 1) * hosts.len(), "hosts of {sizes:?}");
    }
}

/// Each reducer serves every worker, so that it knows when all hold their results; each host sends one partial sum of each
/// chunk to them and gets each result once.
fn reducers_hear_from_all_and_hosts_send_once(verified: &Verified, hosts: &[u32]) {
    let workers = verified.workers();
    let last = hosts.iter().max().unwrap();
    let mut to_reducers = vec![0; *last as usize + 1];
    for rank in 0..workers {
        let program = verified.program(rank);
        let served = sends(&program).flat_map(|(_, to)| to.to_vec()).filter(|to| *to >= workers);
        let served: Vec<Rank> = served.collect();
        assert!((workers..verified.ranks()).all(|reducer| served.contains(&reducer)), "{rank}: {served:?}");
        to_reducers[hosts[rank as usize] as usize] += served.len() as u32;
    }
    let chunks = verified.cut().chunks();
    assert!(to_reducers.iter().all(|sent| *sent == chunks), "{to_reducers:?} of {chunks}");
    for reducer in workers..verified.ranks() {
        let results: usize = sends(&verified.program(reducer)).map(|(_, to)| to.len()).sum();
        assert_eq!(results as u32, (last + 1) * chunks / verified.reducers());
    }
}

/// With radix across hosts, the slow links carry each host's sum once up and once down, but for the owner's.
#[test]
fn hierarchies_send_one_partial_sum_per_host_across_hosts() {
    for sizes in [&[2, 2][..], &[4, 4, 4, 4], &[8, 8], &[3, 5, 8, 1]] {
        let (group, hosts) = (group_by_host(sizes), hosts_of(sizes));
        let verified =
            proved("hierarchical", ALL_REDUCE, &group, &Layout { reducers: 0, hosts: &hosts, links: None });
        let chunks = verified.cut().chunks() as usize;
        assert_eq!(across(&verified, &hosts), 2 * (sizes.len() - 1) * chunks, "hosts of {sizes:?}");
    }
}

/// How many messages go from host to host.
fn across(verified: &Verified, hosts: &[u32]) -> usize {
    let from = |rank: Rank| {
        let program = verified.program(rank);
        let away = |to: &Rank| hosts[*to as usize] != hosts[rank as usize];
        sends(&program).flat_map(|(_, to)| to.to_vec()).filter(away).count()
    };
    (0..verified.workers()).map(from).sum()
}

fn sends(program: &Program) -> impl Iterator<Item = (Place, &[Rank])> {
    program.steps().iter().filter_map(|step| match *step {
        Step::Send { from, to } => Some((from, program.lanes(to))),
        _ => None,
    })
}

fn ceil_log2(size: u32) -> u32 {
    size.next_power_of_two().ilog2()
}

#[test]
fn bytes_rounds_and_partners_are_those_of_the_table() {
    for size in 2..=64 {
        let ring = cost("ring", size);
        assert_eq!((ring.chunks, ring.rounds), (size, 2 * (size - 1)));
        assert_eq!(ring.worker.sent.count(), 2 * (size - 1));
        assert_eq!(ring.worker.received.count(), 2 * (size - 1));
        assert_eq!(ring.worker.partners, 2.min(size - 1));

        let sharded = cost("sharded", size);
        assert_eq!((sharded.chunks, sharded.rounds), (size, 2));
        assert_eq!(sharded.worker.sent, Messages { plain: 2 * (size - 1), acc: 0, coded: 0 });
        assert_eq!(sharded.worker.received, Messages { plain: 2 * (size - 1), acc: 0, coded: 0 });
        assert_eq!(sharded.worker.partners, size - 1);

        let doubling = cost("doubling", size);
        assert_eq!((doubling.chunks, doubling.rounds), (1, ceil_log2(size)));
        assert!(doubling.worker.received.count() <= ceil_log2(size));
        if size.is_power_of_two() {
            assert_eq!(doubling.worker.sent.count(), ceil_log2(size));
        }

        let one_shot = cost("one_shot", size);
        assert_eq!((one_shot.chunks, one_shot.rounds), (1, 1));
        assert_eq!(one_shot.worker.sent, Messages { plain: size - 1, acc: 0, coded: 0 });
        assert_eq!(one_shot.worker.received, Messages { plain: size - 1, acc: 0, coded: 0 });

        let star = cost("star", size);
        assert_eq!((star.chunks, star.rounds), (1, 2));
        assert_eq!(star.worker.sent, Messages { plain: size - 1, acc: 0, coded: 0 });
        assert_eq!(star.worker.received, Messages { plain: size - 1, acc: 0, coded: 0 });

        let chain = cost("chain", size);
        assert_eq!((chain.chunks, chain.rounds), (1, 2 * (size - 1)));
        assert_eq!(chain.worker.sent.count(), 2.min(size - 1));

        let double = cost("double_tree", size);
        assert!(double.chunks == 2 && double.rounds <= 2 * (size.ilog2() + 1), "{size}: {double:?}");
        assert!(double.worker.sent.count() <= 4 && double.worker.received.count() <= 4, "{size}: {double:?}");

        let tree = cost("tree", size);
        assert_eq!((tree.chunks, tree.rounds), (1, 2 * size.ilog2()));
        assert!(tree.worker.partners <= ceil_log2(size));
    }
}

#[test]
fn the_halves_of_radix_are_half_of_it() {
    for size in [2, 5, 8, 24] {
        for (collective, plain) in [(Collective::ReduceScatter, size - 1), (Collective::AllGather, size - 1)]
        {
            let cost = proved("radix", collective, &Group::of_size(size), &without_hosts(0)).cost();
            assert_eq!((cost.chunks, cost.rounds), (size, 1));
            assert_eq!(cost.worker.sent, Messages { plain, acc: 0, coded: 0 });
            assert_eq!(cost.worker.received, Messages { plain, acc: 0, coded: 0 });
        }
    }
}

/// A tree edge carries the buffer once, whatever the root; the root needs no extra hop.
#[test]
fn trees_reduce_and_broadcast_in_the_depth_of_the_canonical_tree() {
    for size in 2..=33 {
        for root in 0..size {
            for collective in [Collective::Reduce { root }, Collective::Broadcast { root }] {
                let verified = proved("tree", collective, &Group::of_size(size), &without_hosts(0));
                let messages: usize = (0..size)
                    .map(|rank| sends(&verified.program(rank)).map(|(_, to)| to.len()).sum::<usize>())
                    .sum();
                assert_eq!(messages as u32, size - 1);
                assert!(verified.cost().rounds <= ceil_log2(size), "{collective} of {size}");
            }
        }
    }
}

#[test]
fn reducers_carry_their_share_and_workers_the_buffer_once() {
    for size in [1, 2, 3, 8, 17] {
        for reducers in [1, 2, 5] {
            let group = Group::of_size(size);
            let cost = proved("reduction_server", ALL_REDUCE, &group, &without_hosts(reducers)).cost();
            assert_eq!((cost.chunks, cost.rounds), (reducers, 2));
            let (worker, reducer) = (cost.worker, cost.reducer);
            assert_eq!(
                (worker.sent.count(), worker.received.count(), worker.partners),
                (reducers, reducers, reducers)
            );
            assert_eq!(
                (reducer.sent.count(), reducer.received.count(), reducer.partners),
                (size, size, size)
            );
        }
    }
}

/// BytePS's optimum, within what whole chunks allow: 2 n (n-1) / (n^2 + k n - 2 k) of the buffer each way.
#[test]
fn mixed_shares_are_near_the_optimum() {
    for size in [3u32, 4, 8, 16] {
        for reducers in 1..size {
            let verified = proved("mixed", ALL_REDUCE, &Group::of_size(size), &without_hosts(reducers));
            let Cost { chunks, worker, reducer, .. } = verified.cost();
            let (n, k) = (f64::from(size), f64::from(reducers));
            let optimum = 2.0 * n * (n - 1.0) / (n * n + k * n - 2.0 * k);
            let busiest = f64::from(worker.sent.count().max(reducer.sent.count())) / f64::from(chunks);
            assert!(
                busiest <= 1.15 * optimum,
                "{size} workers, {reducers} reducers: {busiest} for {optimum}"
            );
        }
    }
}

#[test]
fn radix_talks_to_few_and_moves_no_more() {
    let cost = |name| cost(name, 64);
    assert_eq!(cost("radix(8,8)").worker.partners, 14);
    assert_eq!(cost("radix(4,4,4)").worker.partners, 9);
    assert_eq!(cost("radix(2,2,2,2,2,2)").worker.partners, 6);
    assert_eq!(cost("radix(2,2,2,2,2,2)").rounds, 12);
    for radix in ["radix(8,8)", "radix(4,4,4)", "radix(2,2,2,2,2,2)", "radix(2,32)"] {
        assert_eq!(cost(radix).worker.sent.count(), 2 * 63, "{radix}");
        assert_eq!(cost(radix).worker.received.count(), 2 * 63, "{radix}");
    }
    // 16-bit floats pay for partial sums that travel: first factors of 8 little, of 2 most.
    let widened = |name| cost(name).worker.sent.buffers(64, 2) / cost(name).worker.sent.buffers(64, 1);
    assert!((1.05..1.07).contains(&widened("radix(8,8)")), "{}", widened("radix(8,8)"));
    assert!((1.24..1.26).contains(&widened("radix(2,2,2,2,2,2)")), "{}", widened("radix(2,2,2,2,2,2)"));
}

/// Off powers of two the shares stay even: nobody moves more than one and a half times the optimum.
#[test]
fn radix_shares_the_work_of_irregular_groups() {
    for size in 2..=64 {
        for radix in ["radix(2,2,2,2,2,2)", "radix(4,4,4)", "radix(8,8)"] {
            let Cost { worker, .. } = cost(radix, size);
            let busiest = worker.sent.count().max(worker.received.count());
            assert!(busiest <= 3 * (size - 1), "{radix} of {size}: {busiest} chunks");
        }
    }
}

#[test]
fn factors_beyond_the_tree_are_ignored_and_the_last_reaches_to_its_top() {
    for (spelled, same) in [
        ("radix(64)", "radix"),
        ("radix(2)", "radix"),
        ("radix(2,2)", "radix(2,4)"),
        ("radix(4,2,8,8)", "radix(4,2)"),
    ] {
        let schedule =
            |name| named(name).schedule(ALL_REDUCE, &Group::of_size(8), &without_hosts(0)).unwrap();
        assert!(schedule(spelled) == schedule(same), "{spelled} is {same}");
    }
    let spread = Group::with_keys(vec![0, 8, 16, 24]).unwrap();
    let schedule =
        |group: &Group| named("radix(2,2)").schedule(ALL_REDUCE, group, &without_hosts(0)).unwrap();
    assert!(schedule(&spread) == schedule(&Group::of_size(4)), "bits in which no keys differ make no stages");
}

/// In step k of a phase in which all send to all, no two ranks send to the same one.
#[test]
fn ranks_start_with_different_partners() {
    for algorithm in ["radix", "one_shot"] {
        for size in [2, 3, 8, 13] {
            let verified = all_reduce(algorithm, size);
            let orders: Vec<Vec<Rank>> = (0..size)
                .map(|rank| sends(&verified.program(rank)).flat_map(|(_, to)| to.to_vec()).collect())
                .collect();
            for step in 0..orders[0].len() {
                let receivers: BTreeSet<Rank> = orders.iter().map(|order| order[step]).collect();
                assert_eq!(receivers.len(), size as usize, "{algorithm}, {size} ranks, step {step}");
            }
        }
    }
    let served = proved("reduction_server", ALL_REDUCE, &Group::of_size(4), &without_hosts(4));
    let firsts: BTreeSet<Rank> =
        (0..8).map(|rank| sends(&served.program(rank)).next().unwrap().1[0]).collect();
    assert_eq!(firsts.len(), 8);
}

/// The finished chunk of a shard leaves in a single send, which shared memory writes once.
#[test]
fn sharded_folds_once_and_sends_its_result_once() {
    let program = all_reduce("sharded", 6).program(4).into_owned();
    let folds: Vec<_> = program
        .steps()
        .iter()
        .filter_map(|step| match *step {
            Step::Fold { from, into, finish, .. } => Some((program.sources(from), into, finish)),
            _ => None,
        })
        .collect();
    let [(sources, Place::User(4), true)] = folds[..] else { panic!("{folds:?}") };
    assert_eq!(sources.len(), 6);
    assert_eq!(sources.iter().filter(|source| matches!(source.from, Origin::Head { .. })).count(), 5);
    assert!(program.slots().is_empty());
    let results: Vec<_> = sends(&program).filter(|(from, _)| *from == Place::User(4)).collect();
    assert_eq!(results, [(Place::User(4), &[5, 0, 1, 2, 3][..])]);
}

#[test]
fn what_is_impossible_says_why() {
    let ask = |algorithm: &str, collective, size, layout: &Layout<'_>| {
        named(algorithm).schedule(collective, &Group::of_size(size), layout).map(drop)
    };
    let plain = &without_hosts(0);
    for (algorithm, collective, instead) in [
        ("ring", Collective::Barrier, "doubling"),
        ("ring", Collective::ReduceScatter, "radix"),
        ("tree", Collective::AllGather, "radix"),
        ("doubling", Collective::Broadcast { root: 0 }, "tree"),
        ("reduction_server", Collective::Reduce { root: 0 }, "tree"),
    ] {
        let error = ask(algorithm, collective, 4, plain).unwrap_err();
        assert!(matches!(error, Unsupported::Collective { .. }), "{error:?}");
        assert!(error.to_string().ends_with(instead), "{error}");
        ask(instead, collective, 4, plain).unwrap();
    }
    let root = ask("tree", Collective::Reduce { root: 4 }, 4, plain);
    assert_eq!(root, Err(Unsupported::Root { root: 4, size: 4 }));
    assert_eq!(ask("radix(8,6)", ALL_REDUCE, 4, plain), Err(Unsupported::Factor { factor: 6 }));
    assert_eq!(ask("radix(1)", ALL_REDUCE, 4, plain), Err(Unsupported::Factor { factor: 1 }));
    assert_eq!(ask("reduction_server", ALL_REDUCE, 4, plain), Err(Unsupported::NoReducers));

    let hosts =
        |hosts: &[u32]| ask("hierarchical", ALL_REDUCE, 4, &Layout { reducers: 0, hosts, links: None });
    assert_eq!(hosts(&[]), Err(Unsupported::UnknownHosts { known: 0, workers: 4 }));
    assert_eq!(hosts(&[7; 4]), Err(Unsupported::OneHost { workers: 4 }));
    assert_eq!(hosts(&[0, 1, 2, 3]), Err(Unsupported::LoneWorkers { workers: 4 }));
    assert_eq!(hosts(&[0, 1, 1, 2]), Ok(()));
    assert_eq!(hosts(&[0, 0, 1, 0]), Err(Unsupported::SplitHost { rank: 3 }));
    assert_eq!(hosts(&[0, 1, 0, 1]), Err(Unsupported::SplitHost { rank: 2 }));
    let exchanged = ask(
        "hierarchical(radix,doubling)",
        ALL_REDUCE,
        4,
        &Layout { reducers: 0, hosts: &[0, 1, 1, 1], links: None },
    );
    assert_eq!(exchanged, Err(Unsupported::HostInPieces { rank: 1, pieces: 2 }));
    let half = ask(
        "hierarchical(radix,doubling)",
        Collective::AllGather,
        4,
        &Layout { reducers: 0, hosts: &[0, 0, 1, 1], links: None },
    );
    assert_eq!(half, Err(Unsupported::Halves { outer: "doubling".into() }));
    let composed = ask(
        "hierarchical(tree,ring)",
        ALL_REDUCE,
        4,
        &Layout { reducers: 0, hosts: &[0, 0, 1, 1], links: None },
    );
    assert!(matches!(composed, Err(Unsupported::Composition { .. })), "{composed:?}");
    let served = ask(SERVED, ALL_REDUCE, 4, &Layout { reducers: 0, hosts: &[0, 0, 1, 1], links: None });
    assert_eq!(served, Err(Unsupported::NoReducers));
    for halves in ["hierarchical(radix(4;2,2),radix)", "hierarchical(radix,radix(2;4))"] {
        let composed = ask(halves, ALL_REDUCE, 4, &Layout { reducers: 0, hosts: &[0, 0, 1, 1], links: None });
        assert!(matches!(composed, Err(Unsupported::Composition { .. })), "{composed:?}");
    }
}
