//! Every algorithm's schedules are proved, are of the order that the documentation promises, survive their text form,
//! and mean what the collective means.

use herringbone_core::{
    algorithm::{Algorithm, Layout},
    collective::{Collective, Expected, Lengths, UnevenParts, Viewpoint},
    element::{DType, Element, ReduceOp, Reduction, Visitor, dispatch},
    group::Group,
    interpret::{InterpretError, interpret, interpret_uneven},
    schedule::{Cut, Form, Origin, Place, ProgramBuilder, Schedule, Source},
    verify::{Order, Verified, verify},
};
use proptest::prelude::*;

fn collectives(root: u32) -> [Collective; 9] {
    [
        Collective::AllReduce,
        Collective::Reduce { root },
        Collective::Broadcast { root },
        Collective::ReduceScatter,
        Collective::AllGather,
        Collective::Barrier,
        Collective::Gather { root },
        Collective::Scatter { root },
        Collective::AllToAll,
    ]
}

fn prove(name: &str, collective: Collective, group: &Group, layout: &Layout<'_>) -> Option<Verified> {
    let algorithm: Algorithm = name.parse().unwrap();
    let schedule = algorithm.schedule(collective, group, layout).ok()?;
    let text = schedule.to_string();
    let proved = verify(schedule, collective, group);
    let proved =
        proved.unwrap_or_else(|error| panic!("{name} {collective} {}: {error}\n{text}", group.size()));
    if proved.ranks() <= 64 {
        let read = Schedule::parse(&text).unwrap();
        assert_eq!(&read, proved.schedule(), "{name} {collective}\n{text}");
        assert_eq!(read.to_string(), text);
    }
    Some(proved)
}

/// Proves an algorithm at every size up to 64, for all collectives that it serves; how many schedules that is.
fn prove_all(name: &str, reducers: u32, hosts_of: u32) -> usize {
    let mut proved = 0;
    for workers in 1..=64 {
        let group = Group::of_size(workers);
        let hosts: Vec<u32> = (0..workers).map(|rank| rank / hosts_of).collect();
        let layout = Layout { reducers, hosts: &hosts, links: None };
        for collective in collectives(workers * 2 / 3) {
            let Some(schedule) = prove(name, collective, &group, &layout) else { continue };
            let fixed = name != "ring" || workers <= 2;
            assert_eq!(schedule.order() == Order::Fixed, fixed, "{name} {collective} {workers}");
            let served = name.contains("reduction_server");
            assert!(!served || schedule.restartable(), "{name} {workers} {reducers}");
            proved += 1;
        }
    }
    proved
}

#[test]
fn radix_is_canonical() {
    for name in [
        "radix",
        "radix(2,2,2,2,2,2)",
        "radix(4,4,4)",
        "radix(8,8)",
        "radix(2,16)",
        "radix(16,4)",
        "radix(32)",
        "radix(64;2,2,2,2,2,2)",
    ] {
        // A single stage reduces and broadcasts, too.
        let collectives = if name == "radix" { 5 } else { 3 };
        assert_eq!(prove_all(name, 0, 1), collectives * 64, "{name}");
    }
}

#[test]
fn small_message_algorithms_are_canonical() {
    assert_eq!(prove_all("doubling", 0, 1), 2 * 64);
    assert_eq!(prove_all("one_shot", 0, 1), 6 * 64);
    assert_eq!(prove_all("star", 0, 1), 2 * 64);
    assert_eq!(prove_all("tree", 0, 1), 3 * 64);
}

#[test]
fn a_ring_has_its_own_order() {
    assert_eq!(prove_all("ring", 0, 1), 64);
}

#[test]
fn reduction_servers_are_canonical_and_restartable() {
    for reducers in 1..=16 {
        assert_eq!(prove_all("reduction_server", reducers, 1), 64);
    }
}

/// Hosts of a power of two of workers, the last one perhaps with fewer: wherever that is served, it is canonical.
#[test]
fn hierarchies_are_canonical() {
    for name in [
        "hierarchical",
        "hierarchical(radix,doubling)",
        "hierarchical(radix,one_shot)",
        "hierarchical(radix(2,2),radix(2,2))",
    ] {
        for hosts_of in [2, 4, 8] {
            let proved = prove_all(name, 0, hosts_of);
            assert!(proved >= 64 / hosts_of as usize - 1, "{name} {hosts_of}: {proved}");
        }
    }
}

#[test]
fn hosts_that_add_up_before_reducers_do_are_canonical_and_restartable() {
    for (reducers, hosts_of) in [(1, 2), (3, 2), (4, 4), (7, 4), (2, 8), (8, 8)] {
        let proved = prove_all("hierarchical(radix,reduction_server)", reducers, hosts_of);
        assert!(proved >= 64 / hosts_of as usize - 1, "{reducers} {hosts_of}: {proved}");
    }
}

/// Keys need not be ranks: survivors of a larger group keep theirs.
#[test]
fn any_keys_make_a_canonical_tree() {
    let groups = [vec![3, 9, 11, 12, 40], vec![0, u32::MAX], vec![7], (0..23).map(|key| key * key).collect()];
    for keys in groups {
        let group = Group::with_keys(keys).unwrap();
        let layout = Layout { reducers: 3, hosts: &[], links: None };
        for name in ["radix", "radix(2,2)", "doubling", "one_shot", "star", "tree", "reduction_server"] {
            let proved = prove(name, Collective::AllReduce, &group, &layout).expect("serves an all-reduce");
            assert_eq!(proved.order(), Order::Fixed, "{name} {:?}", group.keys());
        }
    }
}

/// The definition of a fold: the canonical tree over the workers' elements, split at the highest bit in which keys
/// differ, then finished.
struct Canonical<'a> {
    keys: &'a [u32],
    elements: &'a [&'a [u8]],
}

impl Visitor for Canonical<'_> {
    type Output = Vec<u8>;

    fn visit<R: Reduction>(self) -> Vec<u8> {
        fn tree<R: Reduction>(keys: &[u32], elements: &[&[u8]]) -> R::Acc {
            let [first, .., last] = keys else { return R::lift(R::Element::load(elements[0])) };
            let bit = (first ^ last).ilog2();
            let split = keys.partition_point(|key| key >> bit & 1 == 0);
            R::merge(
                tree::<R>(&keys[..split], &elements[..split]),
                tree::<R>(&keys[split..], &elements[split..]),
            )
        }
        let (width, own) = (self.elements[0].len(), R::Element::DTYPE.bytes());
        let mut result = vec![0; width];
        // An element may be several of the reduction's.
        for (at, result) in result.chunks_mut(own).enumerate() {
            let parts: Vec<&[u8]> =
                self.elements.iter().map(|element| &element[at * own..(at + 1) * own]).collect();
            R::finish(tree::<R>(self.keys, &parts), self.keys.len() as u32).store(result);
        }
        result
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): any bits, so NaNs, infinities and denormals too.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed;
    let mut word = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb)
    };
    core::iter::repeat_with(|| word().to_le_bytes()).flatten().take(len).collect()
}

fn check_meaning(proved: &Verified, dtype: DType, op: ReduceOp, count: usize, inputs: &[&[u8]]) {
    let outputs = interpret(proved, dtype, op, count, inputs).unwrap();
    let element_bytes = dtype.bytes();
    for (worker, output) in outputs.iter().enumerate() {
        let elements = proved.collective().output_elements(proved.workers(), worker as u32, count);
        assert_eq!(output.len(), elements * element_bytes);
    }
    check_outputs(proved, (dtype, op), |_| Lengths::Even { count, element_bytes }, inputs, &outputs);
}

/// Holds outputs against the post-condition, element by element.
fn check_outputs<'a>(
    proved: &Verified,
    (dtype, op): (DType, ReduceOp),
    sizes: impl Fn(usize) -> Lengths<'a>,
    inputs: &[&[u8]],
    outputs: &[Vec<u8>],
) {
    let (collective, workers, bytes) = (proved.collective(), proved.workers(), dtype.bytes());
    assert_eq!(outputs.len(), workers as usize);
    let at = |worker: usize| Viewpoint { cut: proved.cut(), workers, worker: worker as u32 };
    for (worker, output) in outputs.iter().enumerate() {
        for chunk in 0..proved.cut().chunks() {
            let result = collective.result(workers, worker as u32, chunk);
            if result.is_none() && collective.given(workers).is_some() {
                continue;
            }
            let to = collective.output_range(at(worker), chunk, &sizes(worker));
            let first = to.start;
            let element = |rank: usize, place: usize| {
                let from = collective.input_range(at(rank), chunk, &sizes(rank)).start + place - first;
                &inputs[rank][from * bytes..][..bytes]
            };
            for place in to {
                let expected = match result {
                    None => vec![0; bytes],
                    Some(Expected::Input(rank)) => element(rank as usize, place).to_vec(),
                    Some(Expected::Fold) => {
                        let elements: Vec<&[u8]> =
                            (0..inputs.len()).map(|rank| element(rank, place)).collect();
                        dispatch(dtype, op, Canonical { keys: proved.group().keys(), elements: &elements })
                    }
                };
                let context = format!("{collective} {dtype} {op} worker {worker} chunk {chunk}");
                assert_eq!(output[place * bytes..][..bytes], expected, "{context}");
            }
        }
    }
}

#[test]
fn interpreting_gives_the_definition() {
    for workers in [1, 2, 3, 5, 6, 8] {
        let group = Group::of_size(workers);
        let layout = Layout { reducers: 2, hosts: &[], links: None };
        for collective in collectives(workers - 1) {
            for name in ["radix", "radix(2,2)", "doubling", "one_shot", "star", "tree", "reduction_server"] {
                let Some(proved) = prove(name, collective, &group, &layout) else { continue };
                let pairs = DType::ALL.iter().flat_map(|dtype| ReduceOp::ALL.map(|op| (*dtype, op)));
                for (dtype, op) in pairs.filter(|(dtype, op)| op.takes(*dtype)) {
                    for count in [0, 1, 67] {
                        let len = |rank| collective.input_elements(workers, rank, count) * dtype.bytes();
                        let inputs: Vec<Vec<u8>> =
                            (0..workers).map(|rank| noise(rank.into(), len(rank))).collect();
                        let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
                        check_meaning(&proved, dtype, op, count, &inputs);
                    }
                }
            }
        }
    }
}

/// Every worker's parts of what `count(from, to)` says that one has for another.
fn uneven(collective: Collective, workers: u32, count: impl Fn(u32, u32) -> usize) -> Vec<UnevenParts> {
    let all = || 0..workers;
    let of = |me: u32| {
        let (input, output): (Vec<usize>, Vec<usize>) = match collective {
            Collective::AllToAll => {
                (all().map(|to| count(me, to)).collect(), all().map(|from| count(from, me)).collect())
            }
            Collective::AllGather => (vec![count(me, 0)], all().map(|from| count(from, 0)).collect()),
            Collective::Gather { root } if me == root => {
                (vec![count(me, root)], all().map(|from| count(from, root)).collect())
            }
            Collective::Gather { root } => (vec![count(me, root)], vec![]),
            Collective::Scatter { root } if me == root => {
                (all().map(|to| count(root, to)).collect(), vec![count(root, me)])
            }
            Collective::Scatter { root } => (vec![], vec![count(root, me)]),
            other => panic!("{other} has no uneven parts"),
        };
        UnevenParts::new(collective, workers, me, &input, &output).unwrap()
    };
    all().map(of).collect()
}

#[test]
fn parts_may_differ_and_be_empty() {
    for workers in 1..=64 {
        let (group, root) = (Group::of_size(workers), workers / 2);
        for collective in [
            Collective::AllToAll,
            Collective::AllGather,
            Collective::Gather { root },
            Collective::Scatter { root },
        ] {
            let proved = prove("one_shot", collective, &group, &Layout::default()).unwrap();
            for parts in [
                uneven(collective, workers, |from, to| ((3 * from + 5 * to) % 7) as usize),
                uneven(collective, workers, |from, _| if from == root { 9 } else { 0 }),
                uneven(collective, workers, |_, _| 0),
            ] {
                let inputs: Vec<Vec<u8>> =
                    (0..).zip(&parts).map(|(rank, parts)| noise(rank, 2 * parts.input_elements())).collect();
                let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
                let outputs = interpret_uneven(&proved, DType::F16, &parts, &inputs).unwrap();
                let sizes = |worker: usize| Lengths::Uneven(&parts[worker]);
                check_outputs(&proved, (DType::F16, ReduceOp::Sum), sizes, &inputs, &outputs);
                for (output, parts) in outputs.iter().zip(&parts) {
                    assert_eq!(output.len(), 2 * parts.output_elements());
                }
            }
        }
    }
}

/// While rank 0 waits for its message, all that touches s0 has to wait too.
#[test]
fn interpreting_keeps_conflicting_steps_in_order() {
    let text = "schedule workers=2 reducers=0 cut=even:2
        rank 0
            slots plain
            send u0 -> 1
            recv c0 s0 <- 1
            finish c0 u0 = u0 s0+
            copy s0 = u1
            send s0 -> 1
            recv c1 u1 <- 1
        rank 1
            slots plain plain
            send u0 -> 0
            recv c0 s0 <- 0
            finish c0 u0 = u0 s0+
            recv c1 s1 <- 0
            finish c1 u1 = u1 s1+
            send u1 -> 0";
    let schedule = Schedule::parse(text).unwrap();
    let proved = verify(schedule, Collective::AllReduce, &Group::of_size(2)).unwrap();
    let inputs = [noise(1, 128), noise(2, 128)];
    check_meaning(&proved, DType::I32, ReduceOp::Sum, 32, &[&inputs[0], &inputs[1]]);
}

#[test]
fn inputs_must_fit() {
    let group = Group::of_size(2);
    let prove = |collective| prove("tree", collective, &group, &Layout::default()).unwrap();
    let all_reduce = prove(Collective::AllReduce);
    let run = |count, inputs: &[&[u8]]| {
        interpret(&all_reduce, DType::F32, ReduceOp::Sum, count, inputs).unwrap_err()
    };
    assert_eq!(run(1, &[&[0; 4]]), InterpretError::Inputs { given: 1, workers: 2 });
    assert_eq!(run(1, &[&[0; 4], &[0; 5]]), InterpretError::InputLength { rank: 1, given: 5, needed: 4 });
    assert_eq!(run(usize::MAX / 2, &[&[], &[]]), InterpretError::TooLong { count: usize::MAX / 2 });
    let broadcast = prove(Collective::Broadcast { root: 1 });
    let outputs = interpret(&broadcast, DType::I8, ReduceOp::Sum, 1, &[&[], &[7]]).unwrap();
    assert_eq!(outputs, [[7], [7]]);
}

fn number() -> impl Strategy<Value = u32> {
    prop_oneof![8 => 0..4u32, 1 => Just(u32::MAX), 1 => any::<u32>()]
}

fn place() -> impl Strategy<Value = Place> {
    prop_oneof![number().prop_map(Place::User), number().prop_map(Place::Slot)]
}

fn form() -> impl Strategy<Value = Form> {
    prop_oneof![Just(Form::Plain), Just(Form::Acc)]
}

fn source() -> impl Strategy<Value = Source> {
    let head = (number(), form()).prop_map(|(lane, form)| Origin::Head { lane, form });
    let from = prop_oneof![place().prop_map(Origin::At), head];
    (from, prop_oneof![0..2u8, any::<u8>()]).prop_map(|(from, merges)| Source { from, merges })
}

#[derive(Clone, Debug)]
enum Any {
    Send(Place, Vec<u32>),
    Recv(u32, u32, Place),
    Fold(u32, Vec<Source>, Place, bool),
    Copy(Place, Place),
}

fn step() -> impl Strategy<Value = Any> {
    let few = 0..4usize;
    prop_oneof![
        (place(), proptest::collection::vec(number(), few.clone()))
            .prop_map(|(from, to)| Any::Send(from, to)),
        (number(), number(), place()).prop_map(|(lane, chunk, into)| Any::Recv(lane, chunk, into)),
        (number(), proptest::collection::vec(source(), few), place(), any::<bool>())
            .prop_map(|(chunk, from, into, finish)| Any::Fold(chunk, from, into, finish)),
        (place(), place()).prop_map(|(from, into)| Any::Copy(from, into)),
    ]
}

proptest! {
    /// Whatever the programs are, a proof ends in an answer.
    #[test]
    fn nothing_makes_a_proof_panic(
        programs in proptest::collection::vec(
            (proptest::collection::vec(form(), 0..4), proptest::collection::vec(step(), 0..5)), 1..4),
        workers in 0..4u32,
        members in 1..4u32,
        chunks in 0..3u32,
        given in any::<bool>(),
        collective in 0..9usize,
    ) {
        let workers = workers.min(programs.len() as u32);
        let programs = programs.into_iter().map(|(slots, steps)| {
            let mut program = ProgramBuilder::new();
            for form in slots {
                program.slot(form);
            }
            for step in steps {
                match step {
                    Any::Send(from, to) => program.send(from, to),
                    Any::Recv(lane, chunk, into) => program.recv(lane, chunk, into),
                    Any::Fold(chunk, from, into, finish) => program.fold_shaped(chunk, from, into, finish),
                    Any::Copy(from, into) => program.copy(from, into),
                };
            }
            program.build()
        });
        let cut = if given { Cut::Given { parts: chunks } } else { Cut::Even { chunks } };
        let schedule = Schedule::listed(workers, cut, programs.collect());
        match verify(schedule, collectives(0)[collective], &Group::of_size(members)) {
            Ok(proved) => prop_assert_eq!(proved.workers(), members),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}
