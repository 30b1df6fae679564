//! Every mutant of a small schedule that differs in one step is refused, or computes the same bits.
//!
//! A mutant that is proved must keep the level of the schedule that it comes from: one that folds in another shape
//! than the canonical tree is not `fixed` any more, and is not asked for the same bits.

mod alike;
mod draft;
mod unchecked;

use draft::Draft;
use herringbone_core::{
    algorithm::{Algorithm, Layout},
    codec::BLOCK,
    collective::Collective,
    element::{DType, ReduceOp},
    group::Group,
    interpret::{Coding, interpret, interpret_coded},
    schedule::{Rank, Schedule},
    shards::ShardRuns,
    verify::{Order, Verified, verify},
};
use proptest::prelude::*;
use std::{collections::BTreeMap, fmt};
use unchecked::run_unchecked;

/// One number of every magnitude after another: any change of shape shows in some sum.
fn values(rank: Rank, count: usize) -> Vec<f32> {
    let mut state = 0x2545_f491_u32 ^ (rank + 1).wrapping_mul(0x9e37_79b9);
    let number = |_| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        let magnitude = 2f32.powi((state >> 8) as i32 % 24 - 12);
        (state as f32 / u32::MAX as f32 - 0.4) * magnitude
    };
    (0..count).map(number).collect()
}

/// 0, 1, an odd count that fills two cache lines and a bit, and one with something in every chunk.
const COUNTS: [usize; 4] = [0, 1, 37, 201];

fn inputs(collective: Collective, group: &Group, count: usize) -> Vec<Vec<f32>> {
    (0..group.size()).map(|rank| values(rank, collective.elements_of(group, rank, count))).collect()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// By count, by worker: what a schedule computes.
type Outputs = Vec<Vec<Vec<u8>>>;

/// What a schedule with coded messages computes, and what is left of what each worker has encoded. Those of one rank are
/// a multiple of a block and something, so that chunks differ.
fn coded_outputs(proved: &Verified, op: ReduceOp) -> Outputs {
    let workers = proved.workers();
    let codecs = ["int8", "topk:0.25"].map(|name| Coding { codec: name.parse().unwrap(), steps: 3 });
    let cases = codecs.into_iter().flat_map(|coding| [37, 2 * BLOCK + 5].map(|count| (coding, count)));
    let run = |(coding, count): (Coding, usize)| {
        let inputs: Vec<Vec<u8>> = (0..workers).map(|rank| bytes(&values(rank, count))).collect();
        let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
        let mut left: Vec<Vec<f32>> = (0..workers).map(|rank| values(rank + 9, count)).collect();
        let mut all = interpret_coded(proved, op, count, coding, &inputs, &mut left).unwrap();
        all.extend(left.iter().map(|left| bytes(left)));
        all
    };
    cases.map(run).collect()
}

/// The level of a schedule, and what it computes; `None` if it is not proved.
fn outputs(schedule: Schedule, collective: Collective, group: &Group) -> Option<(Order, Outputs)> {
    let proved = verify(schedule, collective, group).ok()?;
    if proved.cut().is_coded() {
        return Some((proved.order(), coded_outputs(&proved, ReduceOp::Sum)));
    }
    let run = |count: &usize| {
        let inputs = inputs(collective, group, *count);
        let inputs: Vec<Vec<u8>> = inputs.iter().map(|input| bytes(input)).collect();
        let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
        interpret(&proved, DType::F32, ReduceOp::Sum, *count, &inputs).unwrap()
    };
    Some((proved.order(), COUNTS.iter().map(run).collect()))
}

/// What an all-reduce computes if nobody checks it; `None` if it never ends, or breaks.
fn unchecked_outputs(draft: &Draft, group: &Group) -> Option<Outputs> {
    let run = |count: &usize| {
        let outputs = run_unchecked(draft, *count, &inputs(Collective::AllReduce, group, *count))?;
        Some(outputs.iter().map(|output| bytes(output)).collect())
    };
    COUNTS.iter().map(run).collect()
}

/// The changes that make another order of the same sources.
const REORDERING: [&str; 5] = ["swap sources", "swap origins", "swap merges", "merges", "swap with the next"];

/// How the mutants of many schedules fared.
#[derive(Default)]
struct Tally {
    refused: usize,
    other_order: usize,
    same_bits: usize,
    /// Of all-reduces, the refused that would have given other bits if nobody had checked.
    wrong_unchecked: usize,
    kinds: BTreeMap<&'static str, usize>,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { refused, other_order, same_bits, wrong_unchecked, kinds } = self;
        write!(f, "{refused} refused ({wrong_unchecked} would silently give other bits), ")?;
        write!(f, "{other_order} of order `schedule`, {same_bits} with the same bits: {kinds:?}")
    }
}

impl Tally {
    fn add(&mut self, name: &str, schedule: &Schedule, collective: Collective, group: &Group) {
        let draft = Draft::of(schedule, group.most_inputs());
        assert_eq!(draft.schedule(), *schedule);
        let (order, bits) = outputs(draft.schedule(), collective, group).expect("the original is proved");
        let is_coded = schedule.cut().is_coded();
        let control = collective == Collective::AllReduce && !is_coded;
        assert!(!control || unchecked_outputs(&draft, group).as_ref() == Some(&bits), "{name}");
        for (kind, mutant) in draft.mutants() {
            *self.kinds.entry(kind).or_default() += 1;
            match outputs(mutant.schedule(), collective, group) {
                None => {
                    self.refused += 1;
                    let wrong =
                        || unchecked_outputs(&mutant, group).is_some_and(|unchecked| unchecked != bits);
                    self.wrong_unchecked += usize::from(control && wrong());
                }
                Some((Order::Schedule, _)) if order == Order::Fixed => self.other_order += 1,
                // What folds in an order of its own may fold in another one, of the same inputs once each.
                Some((_, other))
                    if order == Order::Schedule && REORDERING.contains(&kind) && other != bits =>
                {
                    self.other_order += 1;
                }
                Some((_, same)) => {
                    assert!(
                        same == bits,
                        "{name} {collective}: {kind} gives other bits\n{}",
                        mutant.schedule()
                    );
                    self.same_bits += 1;
                }
            }
        }
    }
}

fn tally(names: &[&str], collectives: &[Collective]) -> Tally {
    let mut tally = Tally::default();
    for (name, collective) in names.iter().flat_map(|name| collectives.iter().map(move |c| (name, *c))) {
        let algorithm: Algorithm = name.parse().unwrap();
        let mut schedules = 0;
        // Hosts of three are pieces, which only matters to who follows hosts.
        let sizes: &[u32] = if name.starts_with("hier") { &[2, 3] } else { &[2] };
        // Shares of many chunks take long to check, and three workers have all its kinds of steps.
        let most = if *name == "mixed" { 3 } else { 5 };
        let worlds = (2..=most).flat_map(|workers| [(workers, 1), (workers, 2)]);
        for ((workers, reducers), each) in
            worlds.flat_map(|world| sizes.iter().map(move |each| (world, each)))
        {
            let hosts: Vec<u32> = (0..workers).map(|rank| rank / each).collect();
            let (group, layout) = (Group::of_size(workers), Layout { reducers, hosts: &hosts, links: None });
            let Ok(schedule) = algorithm.schedule(collective, &group, &layout) else { continue };
            if schedule.reducers() == reducers || reducers == 1 {
                tally.add(name, &schedule, collective, &group);
                schedules += 1;
            }
        }
        assert!(schedules > 0, "{name} {collective}");
    }
    println!("{names:?}: {tally}");
    tally
}

const CANONICAL: [&str; 9] = [
    "radix",
    "radix(2,2,2)",
    "radix(4;2,2)",
    "doubling",
    "one_shot",
    "star",
    "tree",
    "reduction_server",
    "mixed",
];
const HIERARCHICAL: [&str; 3] =
    ["hierarchical", "hierarchical(radix,doubling)", "hierarchical(radix,reduction_server)"];
/// Their own order is all that they have to keep.
const OWN_ORDER: [&str; 3] = ["ring", "chain", "double_tree"];
const TREES: [&str; 4] = ["trees", "trees(mxnet)", "trees(best)", "trees(throughput)"];

#[test]
fn every_algorithm_is_tried() {
    let names = [&CANONICAL[..], &HIERARCHICAL, &OWN_ORDER, &TREES].concat();
    let tried: Vec<Algorithm> = names.iter().map(|name| name.parse().unwrap()).collect();
    let left_out: Vec<String> =
        Algorithm::all().iter().filter(|each| !tried.contains(each)).map(ToString::to_string).collect();
    assert_eq!(left_out, [""; 0]);
}

#[test]
fn all_reduce() {
    let tally = tally(&CANONICAL, &[Collective::AllReduce]);
    assert!(tally.refused > 10_000 && tally.other_order > 50 && tally.same_bits > 200, "{tally}");
    assert!(tally.wrong_unchecked > 1000, "{tally}");
    assert_eq!(tally.kinds.len(), 20, "{tally}");
}

#[test]
fn hierarchical() {
    let tally = tally(&HIERARCHICAL, &[Collective::AllReduce]);
    assert!(tally.refused > 10_000 && tally.same_bits > 50 && tally.wrong_unchecked > 300, "{tally}");
}

/// Chunks of other lengths, and owners without any.
#[test]
fn by_shares() {
    let names = [
        "weighted(radix,16,5,0)",
        "weighted(radix,16,5,0,3,0)",
        "weighted(radix(2,2),16,5,0,3)",
        "weighted(reduction_server,16,3)",
        "weighted(mixed,16,4,0,7,2)",
        "weighted(hierarchical,16,4,0,7)",
        "coded(weighted(radix,16,5,0))",
    ];
    let tally = tally(&names, &[Collective::AllReduce]);
    assert!(tally.refused > 5000 && tally.same_bits > 50 && tally.wrong_unchecked > 200, "{tally}");
}

/// What skips a decoding, encodes twice or leaves one input as it is is refused.
#[test]
fn coded() {
    let tally = tally(&["coded(radix)", "coded(reduction_server)"], &[Collective::AllReduce]);
    assert!(tally.refused > 5000 && tally.same_bits > 50, "{tally}");
    assert!(tally.kinds.contains_key("code"), "{tally}");
}

/// Members that have several inputs, as their shards are several nodes of the canonical tree.
#[test]
fn several_inputs() {
    let mut tally = Tally::default();
    let (two, three) = (&[3, 5][..], &[3, 3, 2][..]);
    for (lengths, reducers, names) in [
        (two, 1, &["radix", "one_shot", "star", "reduction_server", "mixed"][..]),
        (three, 2, &["radix", "reduction_server"]),
    ] {
        let group = ShardRuns::of_lengths(lengths).unwrap().group();
        for name in names {
            let algorithm: Algorithm = name.parse().unwrap();
            let layout = Layout { reducers, hosts: &[], links: None };
            let schedule = algorithm.schedule(Collective::AllReduce, &group, &layout).unwrap();
            tally.add(name, &schedule, Collective::AllReduce, &group);
        }
    }
    println!("{tally}");
    assert!(tally.refused > 3000 && tally.other_order > 40 && tally.same_bits > 40, "{tally}");
    assert!(tally.wrong_unchecked > 200, "{tally}");
}

#[test]
fn own_order() {
    let tally = tally(&OWN_ORDER, &[Collective::AllReduce]);
    assert!(tally.refused > 3000 && tally.same_bits > 50 && tally.wrong_unchecked > 300, "{tally}");
}

#[test]
fn trees() {
    let tally = tally(&TREES, &[Collective::AllReduce]);
    assert!(tally.refused > 3000 && tally.same_bits > 50 && tally.wrong_unchecked > 300, "{tally}");
}

#[test]
fn to_and_from_a_root() {
    let roots = [Collective::Reduce { root: 1 }, Collective::Broadcast { root: 1 }];
    let tally = tally(&[&["tree", "chain"][..], &TREES].concat(), &roots);
    assert!(tally.refused > 500 && tally.same_bits > 0, "{tally}");
}

#[test]
fn parts_that_only_move() {
    let moves = [Collective::Gather { root: 1 }, Collective::Scatter { root: 1 }, Collective::AllToAll];
    let tally = tally(&["one_shot"], &moves);
    assert!(tally.refused > 200, "{tally}");
}

#[test]
fn halves() {
    let tally = tally(&["radix", "radix(2,2,2)"], &[Collective::ReduceScatter, Collective::AllGather]);
    assert!(tally.refused > 5000 && tally.same_bits > 100, "{tally}");
}

proptest! {
    /// However much is changed, a proof ends; and what it still finds fixed has the same bits.
    #[test]
    fn several_changes_at_once(
        which in 0..7usize,
        workers in 2..5u32,
        changes in proptest::collection::vec(any::<proptest::sample::Index>(), 2..6),
    ) {
        let name = ["radix", "radix(2,2)", "doubling", "one_shot", "star", "tree", "reduction_server"][which];
        let algorithm: Algorithm = name.parse().unwrap();
        let (group, layout) = (Group::of_size(workers), Layout { reducers: 2, hosts: &[], links: None });
        let schedule = algorithm.schedule(Collective::AllReduce, &group, &layout).unwrap();
        let mut draft = Draft::of(&schedule, 1);
        let bits = outputs(schedule, Collective::AllReduce, &group);
        for change in changes {
            let mut mutants = draft.mutants();
            if !mutants.is_empty() {
                draft = mutants.swap_remove(change.index(mutants.len())).1;
            }
        }
        let mutant = outputs(draft.schedule(), Collective::AllReduce, &group);
        if matches!(mutant, Some((Order::Fixed, _))) {
            prop_assert!(mutant == bits, "{}", draft.schedule());
        }
    }
}
