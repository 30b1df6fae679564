//! Simulated times: against bounds and formulas, one rank's against all ranks', and choices by them.

use herringbone_core::{
    algorithm::{Algorithm, Layout},
    collective::{Collective, UnevenParts},
    element::{DType, ReduceOp},
    group::Group,
    plan::{Request, predicted},
    prepare::{Call, Sizing},
    schedule::Cut,
    simulate::{
        Calibration, Costs, Prediction, Resource, Rig, SECOND, Workload, estimate, simulate, simulate_up_to,
    },
    topology::LinkMatrix,
    verify::{Verified, verify},
};

const MBIT_500: u64 = 62_500_000;
const MIB: usize = 1 << 20;

fn proved(algorithm: &str, workers: u32, reducers: u32, hosts: &[u32]) -> Verified {
    let (algorithm, group): (Algorithm, _) = (algorithm.parse().unwrap(), Group::of_size(workers));
    let layout = Layout { reducers, hosts, links: None };
    let schedule = algorithm.schedule(Collective::AllReduce, &group, &layout).unwrap();
    verify(schedule, Collective::AllReduce, &group).unwrap()
}

fn all_reduce(bytes: usize) -> Call {
    Call::new(Collective::AllReduce, DType::F32, ReduceOp::Sum, bytes / 4)
}

fn work<'a>(verified: &'a Verified, machine: &Rig, bytes: usize) -> Workload<'a> {
    let sizing = Workload::sizing(machine, verified, 0);
    Workload {
        verified,
        call: all_reduce(bytes),
        sizing,
        operations: 1,
        at_once: Workload::AT_ONCE,
        parts: None,
        segments: 0,
    }
}

fn run(verified: &Verified, machine: &Rig, bytes: usize) -> Prediction {
    simulate(&work(verified, machine, bytes), machine, &mut |_| ()).unwrap()
}

fn machine(members: u32, rate: u64, costs: Costs) -> Rig {
    Rig::with_ports((0..members).collect(), rate, 50_000_000, costs)
}

fn seconds(outcome: &Prediction) -> f64 {
    outcome.total() as f64 / SECOND as f64
}

/// How long the busiest port sends or receives, in buffers, of `n` workers with `k` reducers.
type Formula = fn(n: f64, k: f64) -> f64;

/// A group that a formula holds for: workers, workers of a host, and reducers.
type Grouped = (u32, u32, u32);

/// An algorithm, its collectives and groups, the formula, and how many times it at the most a simulation takes.
type Timed = (&'static str, &'static [Collective], &'static [Grouped], Formula, f64);

const ANY: &[Grouped] = &[(2, 1, 0), (3, 1, 0), (4, 1, 0), (6, 1, 0), (8, 1, 0), (13, 1, 0)];
const POWERS: &[Grouped] = &[(2, 1, 0), (4, 1, 0), (8, 1, 0), (16, 1, 0)];
const EIGHT: &[Grouped] = &[(8, 1, 0)];

const BOTH_WAYS: Formula = |n, _| 2.0 * (n - 1.0) / n;
const ONE_WAY: Formula = |n, _| (n - 1.0) / n;
const TO_EACH: Formula = |n, _| n - 1.0;
const LOG2: Formula = |n, _| n.log2();

/// What has a closed formula; filling pipelines makes it longer. There are none for planned trees, whose load is that of the
/// links that they are given; for trees and stages among numbers of ranks that are no power of two, whose ranks have shares
/// that differ; for codecs, whose bytes depend on the data; for a barrier, which has no bytes. A chain that broadcasts has a
/// test of its own.
const FORMULAS: &[Timed] = &[
    ("radix", &[Collective::AllReduce], ANY, BOTH_WAYS, 1.05),
    ("ring", &[Collective::AllReduce], ANY, BOTH_WAYS, 1.05),
    ("radix(2,2,2)", &[Collective::AllReduce], EIGHT, BOTH_WAYS, 1.05),
    ("radix(4,2)", &[Collective::AllReduce], EIGHT, BOTH_WAYS, 1.05),
    ("radix", &[Collective::ReduceScatter, Collective::AllGather], ANY, ONE_WAY, 1.05),
    ("one_shot", PARTS, ANY, ONE_WAY, 1.05),
    ("one_shot", &[Collective::AllReduce], ANY, TO_EACH, 1.05),
    ("star", &[Collective::AllReduce], ANY, TO_EACH, 1.05),
    ("doubling", &[Collective::AllReduce], POWERS, LOG2, 1.05),
    ("radix", ROOTED, ANY, |_, _| 1.0, 1.1),
    ("tree", WHOLE, POWERS, LOG2, 1.1),
    ("chain", &[Collective::AllReduce], &[(3, 1, 0), (5, 1, 0), (8, 1, 0)], |_, _| 2.0, 1.05),
    ("double_tree", &[Collective::AllReduce], &[(5, 1, 0), (8, 1, 0), (13, 1, 0)], |_, _| 2.0, 1.05),
    ("reduction_server", &[Collective::AllReduce], SERVED, |n, k| (n / k).max(1.0), 1.05),
    ("mixed", &[Collective::AllReduce], MIXED, |n, k| 2.0 * n * (n - 1.0) / (n * n + k * n - 2.0 * k), 1.15),
    ("hierarchical", &[Collective::AllReduce], &[(4, 2, 0), (8, 2, 0), (16, 4, 0)], BOTH_WAYS, 1.05),
    (
        "hierarchical(radix,reduction_server)",
        &[Collective::AllReduce],
        &[(4, 2, 2), (8, 2, 4), (8, 4, 2)],
        |_, _| 1.0,
        1.05,
    ),
];
const WHOLE: &[Collective] =
    &[Collective::AllReduce, Collective::Broadcast { root: 1 }, Collective::Reduce { root: 1 }];
const ROOTED: &[Collective] = &[Collective::Broadcast { root: 1 }, Collective::Reduce { root: 1 }];
const PARTS: &[Collective] = &[
    Collective::AllGather,
    Collective::AllToAll,
    Collective::Gather { root: 1 },
    Collective::Scatter { root: 1 },
];
const SERVED: &[Grouped] = &[(2, 1, 2), (3, 1, 3), (4, 1, 2), (6, 1, 2), (8, 1, 8)];
const MIXED: &[Grouped] = &[(4, 1, 1), (4, 1, 2), (8, 1, 3), (16, 1, 4)];

/// The notes' formulas for what a worker's port carries. Several ranks of a host share its port, and what they exchange takes
/// no time.
#[test]
fn free_threads_leave_the_formulas_of_links() {
    let groups = FORMULAS.iter().flat_map(|(name, collectives, groups, formula, most)| {
        let each =
            collectives.iter().flat_map(|collective| groups.iter().map(move |group| (collective, group)));
        each.map(move |(collective, group)| (name, *collective, *group, formula, most))
    });
    let mut wrong = Vec::new();
    for (name, collective, (n, per_host, k), formula, most) in groups {
        let hosts: Vec<u32> = (0..n).map(|rank| rank / per_host).collect();
        let (algorithm, group): (Algorithm, _) = (name.parse().unwrap(), Group::of_size(n));
        let layout = Layout { reducers: k, hosts: &hosts, links: None };
        let verified =
            verify(algorithm.schedule(collective, &group, &layout).unwrap(), collective, &group).unwrap();
        let hosts = hosts.into_iter().chain((0..k).map(|reducer| n + reducer)).collect();
        let machine = Rig::with_ports(hosts, MBIT_500, 50_000_000, Costs::FREE);
        for bytes in [24 * MIB, 64 * MIB] {
            let count = match verified.schedule().cut() {
                Cut::Given { .. } => bytes / 4 / n as usize,
                _ => bytes / 4,
            };
            let call = Call { collective, count, ..all_reduce(0) };
            let work = Workload { call, ..work(&verified, &machine, bytes) };
            let took = seconds(&simulate(&work, &machine, &mut |_| ()).unwrap());
            let buffers = formula(f64::from(n / per_host), f64::from(k));
            let ratio = took / (buffers * bytes as f64 / MBIT_500 as f64);
            if !(0.999..*most).contains(&ratio) {
                wrong.push(format!(
                    "{name} {collective} of {n}, {per_host} a host, {k} reducers, {bytes} B: {ratio}"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Ranks have parts of any lengths, empty ones too: each port takes as long as its bytes do, and the last one's time is the whole.
#[test]
fn parts_that_differ_take_what_their_bytes_take_on_the_busiest_port() {
    let lengths = [3 * MIB, 0, 11 * MIB, 700_001, 5];
    let one_by_one = |from: u32, to: u32| lengths[(from as usize + 2 * to as usize) % lengths.len()];
    let of_sender = |from: u32, _: u32| lengths[from as usize];
    let of_receiver = |_: u32, to: u32| lengths[to as usize];
    let root = 2;
    type Moved<'a> = &'a dyn Fn(u32, u32) -> usize;
    let cases: [(Collective, Moved<'_>); 4] = [
        (Collective::Gather { root }, &of_sender),
        (Collective::Scatter { root }, &of_receiver),
        (Collective::AllGather, &of_sender),
        (Collective::AllToAll, &one_by_one),
    ];
    for (collective, moved) in cases {
        let workers = lengths.len() as u32;
        let elements = |bytes: usize| bytes / 4;
        let goes = |from: u32, to: u32| match collective {
            Collective::Gather { root } if to != root => 0,
            Collective::Scatter { root } if from != root => 0,
            _ if from == to => 0,
            _ => 4 * elements(moved(from, to)) as u64,
        };
        let ports = (0..workers).flat_map(|rank| {
            [
                (0..workers).map(|to| goes(rank, to)).sum::<u64>(),
                (0..workers).map(|from| goes(from, rank)).sum(),
            ]
        });
        let most = ports.max().unwrap();
        let parts = UnevenParts::of_all(collective, workers, |from, to| elements(moved(from, to))).unwrap();
        let schedule = Algorithm::all().iter().find_map(|algorithm| {
            let (group, layout) = (Group::of_size(workers), Layout::default());
            let schedule = algorithm.schedule(collective, &group, &layout).ok()?;
            let schedule = verify(schedule, collective, &group).unwrap();
            matches!(schedule.schedule().cut(), Cut::Given { .. }).then_some(schedule)
        });
        let verified = schedule.unwrap();
        let machine = machine(workers, MBIT_500, Costs::FREE);
        let call = Call { collective, count: Call::UNEVEN, ..all_reduce(0) };
        let work = Workload { call, parts: Some(&parts), ..work(&verified, &machine, 0) };
        let outcome = simulate(&work, &machine, &mut |_| ()).unwrap();
        assert_eq!(outcome.busiest_link_bytes(), most, "{collective}");
        let ratio = seconds(&outcome) / (most as f64 / MBIT_500 as f64);
        assert!((1.0..1.1).contains(&ratio), "{collective}: {ratio}");
    }
}

/// The notes' N (S + K - 2) / (S B) of a pipelined chain, S being the number of segments that the engine cuts.
#[test]
fn a_chain_takes_what_the_notes_say() {
    let bytes = 32 * MIB;
    for size in [2u32, 3, 5, 8] {
        let (algorithm, group): (Algorithm, _) = ("chain".parse().unwrap(), Group::of_size(size));
        let collective = Collective::Broadcast { root: 0 };
        let schedule = algorithm.schedule(collective, &group, &Layout::default()).unwrap();
        let verified = verify(schedule, collective, &group).unwrap();
        let machine = machine(size, MBIT_500, Costs::FREE);
        let call = Call { collective, ..all_reduce(bytes) };
        let work = Workload { call, ..work(&verified, &machine, bytes) };
        let mut segments = 0;
        let outcome =
            simulate(&work, &machine, &mut |span| segments = segments.max(span.segment + 1)).unwrap();
        let (s, k) = (f64::from(segments), f64::from(size));
        let formula = bytes as f64 * (s + k - 2.0) / (s * MBIT_500 as f64);
        let ratio = seconds(&outcome) / formula;
        assert!((0.98..1.05).contains(&ratio), "{size} ranks, {segments} segments: {ratio}");
    }
}

#[test]
fn bytes_on_links_are_those_of_the_programs() {
    let verified = proved("radix", 4, 0, &[]);
    let outcome = run(&verified, &machine(4, MBIT_500, Costs::DEFAULT), 8 * MIB);
    let ports: Vec<_> =
        outcome.used.iter().filter(|used| !matches!(used.place, Resource::Thread(_))).collect();
    assert_eq!(ports.len(), 8);
    assert!(ports.iter().all(|used| used.bytes == 12 * MIB as u64), "{ports:?}");
    assert_eq!(outcome.busiest_link_bytes(), 12 * MIB as u64);
}

/// Where a rank sends to several at once, messages of several ranks meet before a port, which one rank cannot show: then it is
/// too fast. In a ring they never meet.
#[test]
fn one_rank_stands_for_all_but_for_what_waits_before_ports() {
    for (algorithm, n, per_host, bytes, within) in [
        ("radix", 8, 1, MIB, 0.13),
        ("radix", 64, 1, MIB, 0.33),
        ("radix", 200, 1, 4 * MIB, 0.23),
        ("radix", 32, 4, MIB, 0.03),
        ("ring", 64, 1, MIB, 0.001),
        ("radix(8,8,4)", 256, 1, 4 * MIB, 0.06),
        ("radix(4,8)", 32, 4, 4 * MIB, 0.13),
        ("radix(8,8)", 64, 1, 4 * MIB, 0.06),
    ] {
        let hosts: Vec<u32> = (0..n).map(|rank| rank / per_host).collect();
        let verified = proved(algorithm, n, 0, &hosts);
        for rate in [125_000_000, 12_500_000_000] {
            let machine = Rig::with_ports(hosts.clone(), rate, 50_000_000, Costs::DEFAULT);
            let work = work(&verified, &machine, bytes);
            let [one, all] =
                [0, u64::MAX].map(|most| simulate_up_to(most, &work, &machine, &mut |_| ()).unwrap());
            let off = seconds(&one) / seconds(&all) - 1.0;
            assert!(one.by_symmetry && !all.by_symmetry, "{algorithm} of {n}");
            assert!((-within..=0.001).contains(&off), "{algorithm} of {n} at {rate}: {off}");
            assert_eq!(one.messages, all.messages, "{algorithm} of {n}");
            let bytes = one.busiest_link_bytes() as f64 / all.busiest_link_bytes() as f64;
            assert!((0.98..1.02).contains(&bytes), "{algorithm} of {n}: {bytes}");
        }
    }
}

/// Pairs in many stages drift apart by a quarter: they are simulated one by one for longer.
#[test]
fn one_rank_does_not_stand_for_pairs_in_many_stages() {
    for (algorithm, is_close) in [("doubling", false), ("radix(2,2,2,2,2,2)", false), ("radix(4,4,4)", true)]
    {
        let verified = proved(algorithm, 64, 0, &[]);
        let machine = machine(64, MBIT_500, Costs::DEFAULT);
        let outcome = simulate_up_to(2000, &work(&verified, &machine, MIB), &machine, &mut |_| ()).unwrap();
        assert_eq!(outcome.by_symmetry, is_close, "{algorithm}: {} messages", outcome.messages);
    }
}

#[test]
fn ranks_that_differ_are_simulated_one_by_one() {
    let machine = Rig { slowness: vec![1000, 2000], ..machine(8, MBIT_500, Costs::DEFAULT) };
    let verified = proved("radix", 8, 0, &[]);
    assert!(!simulate_up_to(0, &work(&verified, &machine, MIB), &machine, &mut |_| ()).unwrap().by_symmetry);
    let verified = proved("tree", 8, 0, &[]);
    let machine = crate::machine(8, MBIT_500, Costs::DEFAULT);
    assert!(!simulate_up_to(0, &work(&verified, &machine, MIB), &machine, &mut |_| ()).unwrap().by_symmetry);
}

#[test]
fn an_estimate_is_near_the_whole() {
    for (algorithm, workers, reducers) in [("reduction_server", 16, 4), ("tree", 16, 0), ("radix", 6, 0)] {
        let verified = proved(algorithm, workers, reducers, &[]);
        for rate in [MBIT_500, 12_500_000_000] {
            let machine = machine(workers + reducers, rate, Costs::DEFAULT);
            let work = work(&verified, &machine, 25 * MIB);
            let ratio = seconds(&estimate(1000, &work, &machine).unwrap())
                / seconds(&run(&verified, &machine, 25 * MIB));
            assert!((0.97..1.03).contains(&ratio), "{algorithm} at {rate}: {ratio}");
        }
    }
}

#[test]
fn a_slow_member_and_background_load_cost_their_share() {
    let verified = proved("radix", 4, 0, &[]);
    let fast = machine(4, MBIT_500, Costs::FREE);
    let alone = seconds(&run(&verified, &fast, 25 * MIB));
    let slow = Rig { slowness: vec![1000, 1000, 2000], ..fast.clone() };
    let loaded = Rig { background_per_mille: 200, ..fast };
    for (machine, times) in [(slow, 2.0), (loaded, 1.25)] {
        let ratio = seconds(&run(&verified, &machine, 25 * MIB)) / alone;
        assert!((times * 0.97..times * 1.03).contains(&ratio), "{ratio} instead of {times}");
    }
}

#[test]
fn several_operations_fill_what_one_leaves_idle() {
    let verified = proved("doubling", 8, 0, &[]);
    let machine = machine(8, 1_250_000_000, Costs::DEFAULT);
    let one = work(&verified, &machine, 64 << 10);
    let four = Workload { operations: 4, ..one };
    let [one, four] = [one, four].map(|work| seconds(&simulate(&work, &machine, &mut |_| ()).unwrap()));
    assert!(four < 3.0 * one && four > one, "{one} {four}");
}

#[test]
fn links_that_are_slow_take_their_time_and_absent_ones_for_ever() {
    let weights = vec![vec![0.0, 1.0, 0.5], vec![1.0, 0.0, 1.0], vec![0.5, 1.0, 0.0]];
    let links = LinkMatrix::of_weights(&weights).unwrap();
    let machine = Rig::with_links(&links, 0, Costs::FREE);
    let verified = proved("radix", 3, 0, &[]);
    let outcome = run(&verified, &machine, 30_000_000);
    // A third of the buffer each time: what goes over the slow link comes twice, at 0.5 GB/s.
    let ratio = seconds(&outcome) / (2.0 * 10e6 / 0.5e9);
    assert!((1.0..1.2).contains(&ratio), "{ratio}");
}

/// What the choice is made of: hosts of so many ranks, reducers, a port's bytes/s.
fn choice(n: u32, per_host: u32, reducers: u32, port: u64, bytes: usize) -> String {
    let hosts: Vec<u32> = (0..n).map(|rank| rank / per_host).collect();
    let group = Group::of_size(n);
    let known = Calibration { port, reducer_port: port, ..Calibration::DEFAULT };
    let request = Request::of_elements(Collective::AllReduce, DType::F32, ReduceOp::Sum, bytes / 4, &group);
    let request = Request { reducers, hosts: &hosts, ..request };
    let sizing = Sizing {
        hosts: n / per_host,
        shared: n == per_host,
        segment_bytes: 0,
        most_staged: Workload::STAGED,
    };
    predicted::choose_by_time(&request, &known, sizing).unwrap().algorithm.to_string()
}

#[test]
fn the_least_predicted_time_is_chosen() {
    assert_eq!(choice(4, 1, 0, MBIT_500, 4), "one_shot");
    assert_eq!(choice(64, 1, 0, MBIT_500, 4), "doubling");
    assert_eq!(choice(4, 1, 4, MBIT_500, 25 * MIB), "reduction_server");
    let by_hosts = choice(64, 8, 0, 1_250_000_000, 8 * MIB);
    assert!(by_hosts.starts_with("radix(8,"), "a host's workers first: {by_hosts}");
    assert_eq!(choice(4, 1, 1, MBIT_500, 25 * MIB), "mixed", "one reducer is a bottleneck");
}

#[test]
fn sizes_of_a_class_are_one() {
    let classes: Vec<u64> = [0, 1, 3, 4, 7, 1000, 1023, 1024, 1279, 1280].map(predicted::class_of).to_vec();
    assert_eq!(classes, [0, 1, 3, 4, 7, 896, 896, 1024, 1024, 1280]);
}

/// An idle link lets a bucket through at once, so a small message takes no time; calls in a row take what the link carries.
#[test]
fn a_bucket_hides_the_links_of_a_single_call_and_not_the_rate_of_many() {
    let verified = proved("tree", 4, 0, &[]);
    let [steady, bucket] = [0, 64 << 10].map(|bucket| machine(4, MBIT_500, Costs { bucket, ..Costs::FREE }));
    // Twice up and twice down the tree, and no time on links but their latency.
    let [slow, fast] = [&steady, &bucket].map(|machine| run(&verified, machine, 4 << 10));
    let returned = |outcome: &Prediction| outcome.finished.iter().copied().max().unwrap();
    assert_eq!(returned(&fast), 4 * bucket.latency);
    assert!(returned(&slow) > 2 * returned(&fast), "{} and {}", returned(&slow), returned(&fast));
    // A call after the other: the busiest port carries two buffers for each.
    let carried = 2.0 * f64::from(64 << 10) / MBIT_500 as f64;
    let in_a_row = run(&verified, &bucket, 64 << 10);
    let ratio = seconds(&in_a_row) / carried;
    assert!((1.0..1.2).contains(&ratio), "{ratio}");
    // A large buffer is through when its bytes are, less one bucket.
    let [steady, bucket] = [&steady, &bucket].map(|machine| run(&verified, machine, 8 * MIB));
    let ratio = seconds(&bucket) / seconds(&steady);
    assert!((0.95..1.0).contains(&ratio), "{ratio}");
}

/// Where links are known that are no ports, candidates have no price. A choice simulates only those thoroughly that may be the first, and
/// takes the one that comes first among all.
#[test]
fn what_is_chosen_is_the_first_of_all_candidates() {
    for (n, gigabytes) in [(4, 0.0625), (16, 1.25), (32, 1.25)] {
        for bytes in [4, 48 << 10, MIB, 4 * MIB] {
            let (group, links) = (Group::of_size(n), LinkMatrix::uniform(n as usize, gigabytes));
            let request =
                Request::of_elements(Collective::AllReduce, DType::F32, ReduceOp::Sum, bytes / 4, &group);
            let request = Request { links: Some(&links), ..request };
            let (known, sizing) = (
                Calibration::DEFAULT,
                Sizing { hosts: n, shared: false, segment_bytes: 0, most_staged: Workload::STAGED },
            );
            let chosen = predicted::choose_by_time(&request, &known, sizing).unwrap();
            let all = predicted::compared(&request, &known, sizing).unwrap().by_time;
            let first = all[0].outcome.total();
            let of_chosen = all.iter().find(|candidate| candidate.algorithm == chosen.algorithm).unwrap();
            let off = of_chosen.outcome.total() as f64 / first as f64;
            assert!(off < 1.01, "{n} ranks, {bytes} B: {} of {off}", chosen.algorithm);
        }
    }
}
