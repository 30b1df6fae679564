//! One operation on one layout, drawn by a seed, and whether it ends.

use herringbone_core::{
    algorithm::{Algorithm, Layout},
    codec::Codec,
    collective::Collective,
    element::{DType, ReduceOp},
    execution::Rules,
    group::{FoldOrder, Group},
    prepare::{Call, Sizing},
    simulate::{Costs, Port, Prediction, RandomOrder, Rig, Untimed, Workload, simulate},
    topology::LinkMatrix,
    verify::{Verified, verify},
};
use std::{
    fmt,
    panic::{self, AssertUnwindSafe},
};

/// What runs an operation: the simulator, or another machine that is to be checked in its place.
pub(crate) type Executor = fn(&Workload<'_>, &Rig) -> Result<Prediction, Untimed>;

/// The simulator, whose members follow the executor's rules.
pub(crate) const SIMULATOR: Executor = |work, rig| simulate(work, rig, &mut |_| ());

/// Algorithms with parameters of their own, and with coded messages.
const OTHERS: [&str; 14] = [
    "radix(2,2,2)",
    "radix(4,2)",
    "radix(;4,2)",
    "radix(16;2,2,2)",
    "hierarchical(radix,doubling)",
    "hierarchical(radix,one_shot)",
    "hierarchical(radix,reduction_server)",
    "trees(single)",
    "trees(mxnet,single)",
    "trees(best,single)",
    "coded(radix)",
    "coded(reduction_server)",
    "mixed(1,1)",
    "chain",
];

/// The most ranks, and the most ranks of a host.
const MOST_RANKS: u32 = 16;
const MOST_ON_HOST: u32 = 8;
/// Trees are annealed for long where ranks are many.
const MOST_PLANNED: u32 = 8;

/// All algorithms.
pub(crate) fn algorithms() -> Vec<Algorithm> {
    let mut found = Algorithm::all().to_vec();
    for other in OTHERS.iter().filter_map(|name| name.parse().ok()) {
        if !found.contains(&other) {
            found.push(other);
        }
    }
    found
}

/// The hosts of ranks: as many on each, and two layouts in which hosts differ for each number of ranks.
pub(crate) fn layouts(seed: u64) -> Vec<Vec<u32>> {
    let mut chance = Chance::new(seed);
    let mut found = Vec::new();
    for ranks in 1..=MOST_RANKS {
        let alike = (1..=MOST_ON_HOST.min(ranks)).map(|each| (0..ranks).map(|rank| rank / each).collect());
        found.extend(alike);
        found.extend((0..2).map(|_| uneven(ranks, &mut chance)));
    }
    found
}

/// Hosts of any number of consecutive ranks.
fn uneven(ranks: u32, chance: &mut Chance) -> Vec<u32> {
    let (mut hosts, mut host) = (Vec::new(), 0);
    while (hosts.len() as u32) < ranks {
        let left = ranks - hosts.len() as u32;
        let on_host = 1 + chance.below(u64::from(left.min(MOST_ON_HOST))) as u32;
        hosts.extend((0..on_host).map(|_| host));
        host += 1;
    }
    hosts
}

/// An operation on machines, all of it drawn by a seed but for the algorithm and the hosts.
#[derive(Debug)]
pub(crate) struct Cell {
    pub(crate) name: String,
    pub(crate) seed: u64,
    pub(crate) hosts: Vec<u32>,
    pub(crate) verified: Verified,
    pub(crate) call: Call,
    pub(crate) sizing: Sizing,
    /// How many operations there are, and how many run at once.
    pub(crate) operations: (u32, u32),
    pub(crate) rig: Rig,
}

impl Cell {
    /// None where the algorithm has no schedule for the hosts.
    pub(crate) fn drawn(algorithm: &Algorithm, hosts: &[u32], seed: u64) -> Option<Self> {
        let ranks = hosts.len() as u32;
        let is_planned = matches!(algorithm, Algorithm::Trees { mode: Some(_), .. });
        if is_planned && ranks > MOST_PLANNED {
            return None;
        }
        let chance = &mut Chance::new(seed);
        let order = if chance.one_in(3) { FoldOrder::Hosts } else { FoldOrder::Ranks };
        let group = order.group(hosts, &[]);
        let links = chance.one_in(2).then(|| weights(ranks, chance));
        let reducers = if algorithm.needs_reducers() { 1 + chance.below(4) as u32 } else { 0 };
        let layout = Layout { reducers, hosts, links: links.as_ref() };
        let (collective, verified) = proved(algorithm, &group, &layout, chance)?;
        let is_coded = matches!(algorithm, Algorithm::Coded { .. });
        let call = call(collective, ranks, is_coded, chance);
        let distinct = Sizing::distinct(hosts);
        let sizing = Sizing {
            hosts: distinct,
            shared: distinct == 1,
            segment_bytes: chance.of(&[0, 0, 64 << 10, 300_000, 1 << 20]),
            most_staged: chance.of(&[3_670_016, 7_340_032, Workload::STAGED]),
        };
        let operations = (chance.of(&[1, 1, 2, 5]), chance.of(&[1, 2, Workload::AT_ONCE]));
        let rig = rig(hosts, distinct, reducers, chance);
        Some(Self {
            name: algorithm.to_string(),
            seed,
            hosts: hosts.to_vec(),
            verified,
            call,
            sizing,
            operations,
            rig,
        })
    }

    /// Runs it to its end.
    ///
    /// # Errors
    /// Which ranks stand where, or how the machine panicked.
    pub(crate) fn run(&self, machine: Executor) -> Result<(), String> {
        let work = Workload {
            verified: &self.verified,
            call: self.call,
            sizing: self.sizing,
            operations: self.operations.0,
            at_once: self.operations.1,
            parts: None,
            segments: 0,
        };
        match panic::catch_unwind(AssertUnwindSafe(|| machine(&work, &self.rig))) {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(untimed)) => Err(format!("{self}: {untimed}")),
            Err(_) => Err(format!("{self}: a panic, see above")),
        }
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, seed, hosts, call, sizing, operations, .. } = self;
        let Call { collective, dtype, op, count, codec } = call;
        write!(
            to,
            "seed {seed}: {name}, {collective} of {count} {dtype}, {op}, codec {codec}, on hosts {hosts:?}, {} reducers, \
             segments of {} B preferred, {} B of staging memory, {operations:?} operations",
            self.verified.schedule().reducers(),
            sizing.segment_bytes,
            sizing.most_staged,
        )
    }
}

/// A collective by chance that the algorithm has, an all-reduce half of the time, with its schedule.
fn proved(
    algorithm: &Algorithm,
    group: &Group,
    layout: &Layout<'_>,
    chance: &mut Chance,
) -> Option<(Collective, Verified)> {
    let root = chance.below(u64::from(group.size())) as u32;
    let is_other = |each: &Collective| !matches!(each, Collective::AllReduce | Collective::Barrier);
    let others: Vec<Collective> = Collective::all(root).into_iter().filter(is_other).collect();
    let first = if chance.one_in(2) { chance.of(&others) } else { Collective::AllReduce };
    let schedule = |collective| Some((collective, algorithm.schedule(collective, group, layout).ok()?));
    let (collective, schedule) =
        [first, Collective::AllReduce].into_iter().chain(others).find_map(schedule)?;
    let verified = verify(schedule, collective, group);
    Some((collective, verified.unwrap_or_else(|error| panic!("{algorithm}, {collective}: {error}"))))
}

fn call(collective: Collective, ranks: u32, is_coded: bool, chance: &mut Chance) -> Call {
    let kinds = [
        (DType::F32, ReduceOp::Sum),
        (DType::Bf16, ReduceOp::Sum),
        (DType::F64, ReduceOp::Max),
        (DType::I8, ReduceOp::Average),
        (DType::U8, ReduceOp::Sum),
    ];
    let (dtype, op) = if is_coded { kinds[0] } else { chance.of(&kinds) };
    let bytes = match chance.below(8) {
        0 => chance.below(8) as usize,
        1 | 2 => chance.below(100_000) as usize,
        3..=5 => chance.below(4 << 20) as usize,
        _ => chance.below(28 << 20) as usize,
    };
    let parts = collective.given(ranks).map_or(1, |_| ranks as usize);
    let call = Call::new(collective, dtype, op, bytes / dtype.bytes() / parts);
    let codecs = ["int8", "onebit", "topk", "exact"].map(|name| name.parse::<Codec>());
    let codecs: Vec<Codec> = codecs.into_iter().filter_map(Result::ok).collect();
    Call { codec: if is_coded { chance.of(&codecs) } else { Codec::Plain }, ..call }
}

/// Hosts of any speed, with ranks that are slow.
fn rig(hosts: &[u32], distinct: u32, reducers: u32, chance: &mut Chance) -> Rig {
    let members = hosts.iter().copied().chain(distinct..distinct + reducers).collect();
    let costs = if chance.one_in(4) { Costs::FREE } else { Costs::DEFAULT };
    let mut rig = Rig::with_ports(members, 0, chance.of(&[0, 50_000_000, 2_000_000_000]), costs);
    let rates = [0, 1_250_000_000, 125_000_000, 12_500_000];
    rig.ports.iter_mut().for_each(|port| *port = Port { out: chance.of(&rates), into: chance.of(&rates) });
    rig.slowness = rig.hosts.iter().map(|_| chance.of(&[1000, 1000, 1000, 2000, 20_000])).collect();
    rig.random_order =
        (!chance.one_in(8)).then(|| RandomOrder { seed: chance.next(), rules: Rules::DEFAULT });
    rig
}

/// Links of several speeds between all ranks.
fn weights(ranks: u32, chance: &mut Chance) -> LinkMatrix {
    let size = ranks as usize;
    let mut rows = vec![vec![0.0; size]; size];
    for (one, other) in (0..size).flat_map(|one| (0..one).map(move |other| (one, other))) {
        let weight = chance.of(&[0.5, 1.0, 2.0, 3.0]);
        (rows[one][other], rows[other][one]) = (weight, weight);
    }
    LinkMatrix::of_weights(&rows).expect("a matrix of weights")
}

/// Numbers that a seed fixes: SplitMix64 (Steele, Lea, Flood, 2014).
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is above 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }

    fn of<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize].clone()
    }
}
