//! All-reduces by shares: proved for any group and any shares, with the bits of even ones, and cheap for who owns little.

mod random;

use herringbone_core::{
    algorithm::{Algorithm, Layout, Shares, Unsupported},
    codec::{BLOCK, Codec},
    collective::Collective,
    element::{DType, ReduceOp},
    group::Group,
    interpret::{Coding, interpret, interpret_coded},
    plan::{Request, busiest_link, choose},
    schedule::{Cut, Schedule, Step},
    shards::ShardRuns,
    verify::{Order, Verified, verify},
};
use random::Rng;

const ALL_REDUCE: Collective = Collective::AllReduce;

/// How many share vectors bits are compared for.
const VECTORS: u64 = 200;

fn named(name: &str) -> Algorithm {
    name.parse().expect(name)
}

fn proved(algorithm: &Algorithm, group: &Group, layout: &Layout<'_>) -> Verified {
    let context = || format!("{algorithm}, keys {:?}, {layout:?}", group.keys());
    let schedule = algorithm.schedule(ALL_REDUCE, group, layout);
    let schedule = schedule.unwrap_or_else(|error| panic!("{}: {error}", context()));
    verify(schedule, ALL_REDUCE, group).unwrap_or_else(|error| panic!("{}: {error}", context()))
}

/// Shares of so many owners, a third of them 0, and not all alike if there are several.
fn shares(rng: &mut Rng, owners: u32) -> Shares {
    loop {
        let share = |rng: &mut Rng| if rng.one_in(3) { 0 } else { 1 + rng.below(16) as u8 };
        let parts: Vec<u8> = (0..owners).map(|_| share(rng)).collect();
        match Shares::new(parts) {
            Ok(shares) if owners == 1 || !shares.is_even() => return shares,
            _ => {}
        }
    }
}

/// Ranks by host, where hosts have so many.
fn hosts(workers: u32, each: u32) -> Vec<u32> {
    (0..workers).map(|rank| rank / each).collect()
}

#[test]
fn every_group_is_proved_with_any_shares() {
    let mut rng = Rng(57);
    for workers in 1..=64 {
        let group = Group::of_size(workers);
        let radices = ["radix", "radix(2)", "radix(2,2,2,2,2,2)", "radix(4,4,4)", "radix(2,4;8)"].map(named);
        let coded = [named("radix")].map(|plain| plain.weighted(shares(&mut rng, workers)).coded());
        let by_workers = radices.map(|plain| plain.weighted(shares(&mut rng, workers)));
        for algorithm in by_workers.into_iter().chain(coded) {
            let verified = proved(&algorithm, &group, &Layout::default());
            assert_eq!(verified.order(), Order::Fixed, "{algorithm} of {workers}");
        }
        for reducers in [1, 3, 8] {
            let layout = Layout { reducers, ..Layout::default() };
            let served = named("reduction_server").weighted(shares(&mut rng, reducers));
            let mixed = named("mixed").weighted(shares(&mut rng, workers + reducers));
            for algorithm in [served.clone(), served.coded(), mixed] {
                let verified = proved(&algorithm, &group, &layout);
                assert_eq!(verified.order(), Order::Fixed, "{algorithm} of {workers}");
                assert!(verified.restartable(), "{algorithm} of {workers} with {reducers}");
                assert_eq!(verified.schedule().reducers(), reducers);
            }
        }
        for each in [2, 3, 4, 8].into_iter().filter(|each| *each < workers) {
            let hosts = hosts(workers, each);
            let layout = Layout { reducers: 3, hosts: &hosts, links: None };
            let across = ["hierarchical", "hierarchical(radix(2,2),radix(2))"].map(named);
            let across = across.map(|plain| plain.weighted(shares(&mut rng, workers)));
            let served = named("hierarchical(radix,reduction_server)").weighted(shares(&mut rng, 3));
            let served = each.is_power_of_two().then_some(served);
            for algorithm in across.into_iter().chain(served) {
                let verified = proved(&algorithm, &group, &layout);
                assert_eq!(verified.order(), Order::Fixed, "{algorithm} of {workers}, hosts of {each}");
                assert!(!algorithm.needs_reducers() || verified.restartable(), "{algorithm} of {workers}");
            }
        }
    }
}

/// Numbers of which sums depend on their order.
fn input(rng: &mut Rng, dtype: DType, count: usize) -> Vec<u8> {
    let float =
        |rng: &mut Rng| (rng.below(1 << 20) as f32 - 524_288.0) * 2f32.powi(rng.below(20) as i32 - 10);
    match dtype {
        DType::F32 => (0..count).flat_map(|_| float(rng).to_le_bytes()).collect(),
        DType::F64 => (0..count).flat_map(|_| (f64::from(float(rng)) / 3.0).to_le_bytes()).collect(),
        DType::Bf16 => (0..count).flat_map(|_| ((float(rng).to_bits() >> 16) as u16).to_le_bytes()).collect(),
        DType::I8 => (0..count).map(|_| rng.below(256) as u8).collect(),
        other => unreachable!("{other} is not tried"),
    }
}

fn as_slices(inputs: &[Vec<u8>]) -> Vec<&[u8]> {
    inputs.iter().map(Vec::as_slice).collect()
}

/// The algorithms that take shares, with how many owners there are of so many workers and reducers.
fn with_owners(workers: u32, reducers: u32) -> [(Algorithm, u32); 7] {
    [
        ("radix", workers),
        ("radix(2,2)", workers),
        ("radix(4;2,2,2)", workers),
        ("hierarchical", workers),
        ("reduction_server", reducers),
        ("mixed", workers + reducers),
        ("hierarchical(radix,reduction_server)", reducers),
    ]
    .map(|(name, owners)| (named(name), owners))
}

/// Whoever folds what, all elements are added up in the canonical order.
#[test]
fn bits_do_not_depend_on_shares() {
    for seed in 0..VECTORS {
        let mut rng = Rng(seed);
        let (workers, reducers) = (3 + rng.below(6) as u32, 1 + rng.below(3) as u32);
        let (group, hosts) = (Group::of_size(workers), hosts(workers, 2));
        let layout = Layout { reducers, hosts: &hosts, links: None };
        let count = [0, 1, 15, 333, 1 + rng.below(4000) as usize][seed as usize % 5];
        for (dtype, op) in [
            (DType::F32, ReduceOp::Sum),
            (DType::Bf16, ReduceOp::Sum),
            (DType::I8, ReduceOp::Average),
            (DType::F64, ReduceOp::Average),
        ] {
            let inputs: Vec<Vec<u8>> = (0..workers).map(|_| input(&mut rng, dtype, count)).collect();
            let run =
                |verified: &Verified| interpret(verified, dtype, op, count, &as_slices(&inputs)).unwrap();
            let expected = run(&proved(&named("radix"), &group, &layout));
            for (plain, owners) in with_owners(workers, reducers) {
                let algorithm = plain.weighted(shares(&mut rng, owners));
                let found = run(&proved(&algorithm, &group, &layout));
                assert!(found == expected, "{algorithm}, {count} {dtype} of {workers}, seed {seed}");
            }
        }
    }
}

/// Nor do those of coded messages, and what is left of what a rank has encoded lies where it lay.
#[test]
fn coded_bits_and_what_is_left_do_not_depend_on_shares() {
    for seed in 0..VECTORS {
        let mut rng = Rng(seed ^ 0xc0de);
        let (workers, reducers) = (2 + rng.below(3) as u32, 1 + rng.below(3) as u32);
        let (group, layout) = (Group::of_size(workers), Layout { reducers, ..Layout::default() });
        let count =
            [0, 1, 1001, BLOCK, 2 * BLOCK + 1 + rng.below(3 * BLOCK as u64) as usize][seed as usize % 5];
        let inputs: Vec<Vec<u8>> = (0..workers).map(|_| input(&mut rng, DType::F32, count)).collect();
        let before: Vec<Vec<f32>> = (0..workers).map(|_| vec![rng.below(9) as f32; count]).collect();
        let plain = proved(&named("coded(radix)"), &group, &layout);
        let by_shares = [("radix", workers), ("reduction_server", reducers)].map(|(name, owners)| {
            let algorithm = named(name).weighted(shares(&mut rng, owners)).coded();
            (proved(&algorithm, &group, &layout), algorithm)
        });
        for codec in Codec::EXAMPLES {
            let run = |verified: &Verified| {
                let (coding, mut left) = (Coding { codec, steps: seed }, before.clone());
                let inputs = as_slices(&inputs);
                let outputs =
                    interpret_coded(verified, ReduceOp::Sum, count, coding, &inputs, &mut left).unwrap();
                let left: Vec<Vec<u32>> =
                    left.iter().map(|left| left.iter().map(|left| left.to_bits()).collect()).collect();
                (outputs, left)
            };
            let expected = run(&plain);
            for (verified, algorithm) in &by_shares {
                assert!(run(verified) == expected, "{algorithm}, {codec}, {count} of {workers}, seed {seed}");
            }
        }
    }
}

/// Members with several inputs, whose shards are several nodes of the canonical tree.
#[test]
fn members_with_several_inputs_fold_by_shares() {
    let mut rng = Rng(3);
    for lengths in [&[3, 5][..], &[3, 3, 2], &[1, 7, 5, 6]] {
        let group = ShardRuns::of_lengths(lengths).unwrap().group();
        assert!(group.has_several());
        let layout = Layout { reducers: 2, ..Layout::default() };
        let count = 700;
        let inputs: Vec<Vec<u8>> = (0..group.size())
            .map(|rank| input(&mut rng, DType::F32, count * group.inputs_of(rank).len()))
            .collect();
        let run = |algorithm: &Algorithm| {
            let verified = proved(algorithm, &group, &layout);
            assert_eq!(verified.order(), Order::Fixed, "{algorithm}");
            interpret(&verified, DType::F32, ReduceOp::Sum, count, &as_slices(&inputs)).unwrap()
        };
        let expected = run(&named("radix"));
        for (name, owners) in [("radix", group.size()), ("reduction_server", 2), ("mixed", group.size() + 2)]
        {
            let algorithm = named(name).weighted(shares(&mut rng, owners));
            assert!(run(&algorithm) == expected, "{algorithm}");
        }
        let staged = named("radix(2,2)").weighted(shares(&mut rng, group.size()));
        let refused = staged.schedule(ALL_REDUCE, &group, &layout).unwrap_err();
        assert!(matches!(refused, Unsupported::SeveralInputs { .. }), "{refused}");
    }
}

/// An owner without a share has no chunk: it only sends, and receives results.
#[test]
fn who_has_no_share_folds_nothing() {
    let schedule = |text: &str, reducers| {
        let (group, layout) = (Group::of_size(4), Layout { reducers, ..Layout::default() });
        proved(&named(text), &group, &layout)
    };
    let folds = |verified: &Verified, rank| {
        verified.program(rank).steps().iter().filter(|step| matches!(step, Step::Fold { .. })).count()
    };
    for text in ["weighted(radix,16x3,0)", "coded(weighted(radix,16x3,0))"] {
        let verified = schedule(text, 0);
        assert_eq!(verified.cut().chunks(), 3, "{text}");
        assert_eq!([0, 1, 2, 3].map(|rank| folds(&verified, rank)), [1, 1, 1, 0], "{text}");
        let heard = |rank| {
            let program = verified.program(rank);
            program
                .steps()
                .iter()
                .flat_map(|step| program.received(step).collect::<Vec<_>>())
                .collect::<Vec<_>>()
        };
        assert!((0..3).all(|rank| heard(rank).iter().filter(|from| **from == 3).count() == 1), "{text}");
    }
    // Rank 3 forwards nothing either, where a rank of its half owns something.
    let staged = schedule("weighted(radix(2,2),16x3,0)", 0);
    assert_eq!(
        [0, 1, 2, 3].map(|rank| folds(&staged, rank)).map(|folds| folds > 0),
        [true, true, true, false]
    );
    for text in ["weighted(reduction_server,16,0,16)", "weighted(mixed,16x5,0,8)"] {
        let verified = schedule(text, 3);
        assert_eq!(verified.program(5).steps(), [], "{text}: reducer 1 has nothing to do");
        assert!(!verified.program(6).steps().is_empty());
    }
}

/// The busiest link carries as much as shares say: with 4 workers, behind each port 2 K but for what its rank owns, and that three
/// times.
#[test]
fn links_carry_what_shares_say() {
    let (group, hosts) = (Group::of_size(4), [0, 1, 2, 3]);
    let layout = Layout { reducers: 0, hosts: &hosts, links: None };
    for (text, units, of) in [("16x3,0", 16 * 3 + 32, 48), ("16x3,1", 16 * 3 + 33, 49), ("16x4", 2 * 3, 4)] {
        let schedule =
            named(&format!("weighted(radix,{text})")).schedule(ALL_REDUCE, &group, &layout).unwrap();
        assert_eq!((busiest_link(&schedule, &hosts, 1), schedule.cut().units()), (units, of), "{text}");
        let cost = verify(schedule, ALL_REDUCE, &group).unwrap().cost();
        assert_eq!((cost.worker.sent.count(), cost.chunks), (units as u32, of), "{text}");
        assert_eq!(cost.worker.messages, if text == "16x3,0" { 5 } else { 6 }, "{text}");
    }
    // What rank 3 moves alone.
    let lone = [9, 9, 9, 0];
    let schedule = named("weighted(radix,16x3,1)").schedule(ALL_REDUCE, &group, &layout).unwrap();
    assert_eq!(busiest_link(&schedule, &lone, 1), 48 + 3, "K but for its share, and its share three times");
}

#[test]
fn even_shares_are_the_other_algorithm() {
    let (group, hosts) = (Group::of_size(6), hosts(6, 2));
    let layout = Layout { reducers: 3, hosts: &hosts, links: None };
    for (plain, owners) in with_owners(6, 3) {
        let shares = Shares::new(vec![7; owners as usize]).unwrap();
        let even = plain.clone().weighted(shares).schedule(ALL_REDUCE, &group, &layout).unwrap();
        let plain = if plain == named("mixed") { named("mixed(1,1)") } else { plain };
        let plain = plain.schedule(ALL_REDUCE, &group, &layout).unwrap();
        // By shares each chunk is a message, and belongs to the rank of its number.
        if plain.side_by_side() {
            let [one, other] =
                [even, plain].map(|schedule| verify(schedule, ALL_REDUCE, &group).unwrap().cost().worker);
            assert_eq!((one.sent, one.received, one.partners), (other.sent, other.received, other.partners));
        } else {
            assert_eq!(even, plain);
        }
    }
    let coded = named("coded(weighted(radix,5x6))").schedule(ALL_REDUCE, &group, &layout).unwrap();
    assert_eq!(coded, named("coded(radix)").schedule(ALL_REDUCE, &group, &layout).unwrap());
}

#[test]
fn what_has_no_owners_or_others_is_refused() {
    let (group, hosts) = (Group::of_size(4), hosts(4, 2));
    let layout = Layout { reducers: 2, hosts: &hosts, links: None };
    let refused = |text: &str, collective| {
        named(text).schedule(collective, &group, &layout).expect_err(text).to_string()
    };
    for plain in ["ring", "tree", "doubling", "mixed(2,1)", "trees", "hierarchical(radix,doubling)"] {
        let error = refused(&format!("weighted({plain},16x3,1)"), ALL_REDUCE);
        assert!(error.starts_with(&format!("{plain} has no shares: weighted takes radix")), "{error}");
    }
    let error = refused("weighted(radix,16,1)", ALL_REDUCE);
    assert_eq!(error, "radix of 4 workers needs as many shares and has 2: give each its share, 0 to 16");
    let error = refused("coded(weighted(reduction_server,16x3,1))", ALL_REDUCE);
    assert!(error.starts_with("reduction_server of 2 reducers needs as many shares and has 4"), "{error}");
    let error = refused("weighted(mixed,16x4)", ALL_REDUCE);
    assert!(error.starts_with("mixed of 6 workers and reducers needs as many shares and has 4"), "{error}");
    let error = refused("weighted(radix,16x3,1)", Collective::ReduceScatter);
    assert_eq!(error, "weighted(radix,16x3,1) has no reduce_scatter: use radix");
    let error = refused("coded(weighted(radix(2,2),16x3,1))", ALL_REDUCE);
    assert!(error.starts_with("weighted(radix(2,2),16x3,1) has no coded form"), "{error}");
    assert!(refused("weighted(radix(3),16x3,1)", ALL_REDUCE).contains("radix factor 3"));
    let none = Layout { reducers: 0, ..layout };
    let error = named("weighted(reduction_server,16,1)").schedule(ALL_REDUCE, &group, &none).unwrap_err();
    assert_eq!(error, Unsupported::NoReducers);
}

/// A forced algorithm has its shares with a codec, too, if there is a coded form with the same owners.
#[test]
fn codecs_keep_forced_shares() {
    let (group, hosts) = (Group::of_size(4), [0, 1, 2, 3]);
    let chosen = |forced: &str, reducers| {
        let forced = named(forced);
        let request = Request::of_elements(ALL_REDUCE, DType::F32, ReduceOp::Sum, 1 << 20, &group);
        let codec = "int8".parse().unwrap();
        let request = Request { forced: Some(&forced), hosts: &hosts, reducers, codec, ..request };
        choose(&request).unwrap().algorithm.to_string()
    };
    assert_eq!(chosen("weighted(radix,16x3,1)", 0), "coded(weighted(radix,16x3,1))");
    assert_eq!(chosen("weighted(radix(2,2),16x3,1)", 0), "coded(weighted(radix,16x3,1))");
    assert_eq!(chosen("weighted(reduction_server,16,1)", 2), "coded(weighted(reduction_server,16,1))");
    assert_eq!(chosen("weighted(mixed,16x5,1)", 2), "coded(reduction_server)", "its owners are others");
}

/// A group of some ranks, or one that has lost members, has fewer owners than there are shares: then the choice is as if none were
/// forced, and says so. More owners are a mistake.
#[test]
fn groups_with_fewer_owners_than_shares_do_without() {
    let chosen = |forced: &str, workers: u32, reducers, codec: &str| {
        let (forced, group) = (named(forced), Group::of_size(workers));
        let hosts: Vec<u32> = (0..workers).collect();
        let request = Request::of_elements(ALL_REDUCE, DType::F32, ReduceOp::Sum, 1 << 20, &group);
        let codec = codec.parse().unwrap();
        let request = Request { forced: Some(&forced), hosts: &hosts, reducers, codec, ..request };
        choose(&request).map(|choice| (choice.algorithm.to_string(), choice.why))
    };
    let (algorithm, why) = chosen("weighted(radix,16x3,1)", 3, 0, "none").unwrap();
    assert_eq!(algorithm, "radix");
    let not =
        "not the forced weighted(radix,16x3,1), because radix of 3 workers needs as many shares and has 4";
    assert!(why.contains(not), "{why}");
    let (algorithm, why) = chosen("weighted(reduction_server,16,1,1)", 4, 2, "none").unwrap();
    assert!(!algorithm.contains("weighted") && why.contains("of 2 reducers needs as many shares"), "{why}");
    assert!(matches!(chosen("weighted(radix,16,1)", 3, 0, "none"), Err(Unsupported::Shares { .. })));
    let coded = |forced, workers, reducers| chosen(forced, workers, reducers, "int8").unwrap().0;
    assert_eq!(coded("weighted(radix,16x3,1)", 3, 0), "coded(radix)");
    assert_eq!(coded("weighted(reduction_server,16,1,1)", 4, 2), "coded(reduction_server)");
}

/// Texts of schedules say how they are cut.
#[test]
fn texts_round_trip() {
    let mut rng = Rng(9);
    for workers in 2..9 {
        let group = Group::of_size(workers);
        for plain in ["radix", "radix(2,2)"] {
            let algorithm = named(plain).weighted(shares(&mut rng, workers));
            let schedule = algorithm.schedule(ALL_REDUCE, &group, &Layout::default()).unwrap();
            assert!(matches!(schedule.cut(), Cut::Weighted { blocks: false, .. }));
            assert_eq!(schedule.to_string().parse::<Schedule>().unwrap(), schedule, "{algorithm}");
        }
    }
}
