//! The costs of push-pulls on the machine, from simulations of proven schedules.

use super::{
    inputs::TreesInputs,
    machine::{GPUS, Wires},
};
use crate::{failure::Failure, training::pushed_first};
use herringbone::{
    Algorithm, Collective, DType, ReduceOp,
    core::{
        algorithm::Layout,
        group::Group,
        prepare::{Call, Sizing},
        simulate::{Picoseconds, Prediction, Resource, Rig, Workload, estimate},
        topology::trees::TreeMode,
        training::{Bucket, BucketCost, StepTimeline, TrainingStep, timeline},
        verify::{Verified, verify},
    },
};
use std::collections::BTreeMap;

/// The most messages that are simulated; the rest is extrapolated.
const USUAL_MESSAGES: u64 = 20_000;
/// Cut as coarsely as the engine cuts, because MXNet copies whole keys.
const COARSE: usize = 1 << 30;
/// Staging memory, which is no limit.
const STAGED: usize = 1 << 40;
/// Bytes of an element.
pub(super) const F32: u64 = 4;

/// What sums a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PushPullWay {
    /// One tree of NVLinks, towards GPU 0.
    SingleTree,
    /// A tree towards each GPU, which each carry a part.
    ManyTrees,
    /// The proposal's parameter server: one GPU for each key, which take turns.
    Server,
    /// NCCL's ring.
    Nccl,
}

impl PushPullWay {
    pub(super) const ALL: [Self; 4] = [Self::SingleTree, Self::ManyTrees, Self::Server, Self::Nccl];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::SingleTree => "single tree",
            Self::ManyTrees => "many trees",
            Self::Server => "parameter server",
            Self::Nccl => "NCCL",
        }
    }

    fn algorithm(self) -> Algorithm {
        let trees = |single| Algorithm::Trees { mode: Some(TreeMode::Mxnet), single };
        match self {
            Self::SingleTree => trees(true),
            Self::ManyTrees => trees(false),
            Self::Server => Algorithm::Star,
            Self::Nccl => Algorithm::Ring,
        }
    }
}

/// What sums the keys of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyStore {
    /// The proposal's: one tree for keys of up to this many elements, many for larger ones.
    Trees {
        /// The elements.
        bound: u64,
    },
    /// The parameter server.
    Server,
    /// NCCL.
    Nccl,
}

impl KeyStore {
    /// The way to sum a key of this many elements.
    fn way(self, elements: u64) -> PushPullWay {
        match self {
            Self::Trees { bound } if elements > bound => PushPullWay::ManyTrees,
            Self::Trees { .. } => PushPullWay::SingleTree,
            Self::Server => PushPullWay::Server,
            Self::Nccl => PushPullWay::Nccl,
        }
    }

    /// How many keys it has under way at once: NCCL's operations follow each other in a stream, and MXNet's engine waits for nothing else.
    fn in_flight(self) -> u32 {
        if self == Self::Nccl { 1 } else { u32::MAX }
    }
}

/// A way's schedule, and its links.
struct Proved {
    verified: Verified,
    rig: Rig,
}

/// What keys cost, each length simulated once.
pub(super) struct TreesSums {
    ways: BTreeMap<PushPullWay, Proved>,
    found: BTreeMap<(PushPullWay, u64), BucketCost>,
}

impl TreesSums {
    /// With this cost of a message for its sender.
    ///
    /// # Errors
    /// If there are no trees.
    pub(super) fn new(inputs: &TreesInputs, message: Picoseconds) -> Result<Self, Failure> {
        let (machine, ring) = (Wires::of_machine(inputs), Wires::of_ring(inputs));
        let (machine, ring) = (machine.map_err(refused)?, ring.map_err(refused)?);
        let group = Group::of_size(GPUS);
        let proved = |way: PushPullWay| {
            let wires = if way == PushPullWay::Nccl { &ring } else { &machine };
            let layout = Layout { links: Some(&wires.links), ..Layout::default() };
            let schedule =
                way.algorithm().schedule(Collective::AllReduce, &group, &layout).map_err(refused)?;
            let verified = verify(schedule, Collective::AllReduce, &group).map_err(refused)?;
            Ok((way, Proved { verified, rig: wires.rig(message) }))
        };
        let ways = PushPullWay::ALL.into_iter().map(proved).collect::<Result<_, Failure>>()?;
        Ok(Self { ways, found: BTreeMap::new() })
    }

    /// The longest chain of messages of a way.
    pub(super) fn rounds(&self, way: PushPullWay) -> u32 {
        self.ways[&way].verified.cost().rounds
    }

    /// The cost of a push and a pull of this many bytes.
    ///
    /// # Errors
    /// If they have no time.
    pub(super) fn cost(&mut self, way: PushPullWay, bytes: u64) -> Result<BucketCost, Failure> {
        if let Some(found) = self.found.get(&(way, bytes)) {
            return Ok(*found);
        }
        let Proved { verified, rig } = &self.ways[&way];
        let count = bytes.div_ceil(F32) as usize;
        let call = Call::new(Collective::AllReduce, DType::F32, ReduceOp::Sum, count);
        let sizing = Sizing { hosts: GPUS, shared: false, segment_bytes: COARSE, most_staged: STAGED };
        let work = Workload::of_one(verified, call, sizing);
        let predicted = estimate(USUAL_MESSAGES, &work, rig).map_err(refused)?;
        let cost = cost(way, &predicted, rig);
        self.found.insert((way, bytes), cost);
        Ok(cost)
    }

    /// A step whose keys are summed by `store`.
    ///
    /// # Errors
    /// As [`cost`](Self::cost).
    pub(super) fn step(
        &mut self,
        store: KeyStore,
        step: &TrainingStep,
        keys: &[Bucket],
    ) -> Result<StepTimeline, Failure> {
        let costs = keys.iter().map(|key| self.cost(store.way(key.bytes / F32), key.bytes));
        let mut costs = costs.collect::<Result<Vec<_>, _>>()?.into_iter();
        Ok(timeline(step, keys, store.in_flight(), |_| costs.next().unwrap_or_default()))
    }

    /// How long this many equal keys take if they are pushed and pulled at once.
    ///
    /// # Errors
    /// As [`cost`](Self::cost).
    pub(super) fn together(
        &mut self,
        store: KeyStore,
        elements: u64,
        count: u32,
    ) -> Result<Picoseconds, Failure> {
        const NOTHING: TrainingStep = TrainingStep { forward: 0, backward: 0, after: 0, cores: None };
        let keys = vec![Bucket { kind: 0, bytes: elements * F32, ready: 0 }; count as usize];
        Ok(self.step(store, &NOTHING, &keys)?.total)
    }
}

/// All of a key is pushed before any of it is pulled; a ring does both by its nature. With several keys one is pushed while another is
/// pulled, so shared links are busy one way at a time.
fn cost(way: PushPullWay, predicted: &Prediction, rig: &Rig) -> BucketCost {
    let is_thread = |place: &Resource| matches!(place, Resource::Thread(_));
    let total = predicted.total();
    let busiest = predicted.busiest().map_or(0, |used| used.busy).min(total);
    let links = predicted.used.iter().filter(|used| !is_thread(&used.place)).map(|used| used.busy);
    let two_ways = pushed_first(total, busiest, links.max().unwrap_or(0));
    match way {
        PushPullWay::SingleTree | PushPullWay::ManyTrees => {
            BucketCost { time: two_ways, busy: busiest, cores: 0 }
        }
        PushPullWay::Server => BucketCost { time: two_ways, busy: in_turn(predicted, rig), cores: 0 },
        PushPullWay::Nccl => BucketCost { time: total, busy: busiest, cores: 0 },
    }
}

/// For how long what is busiest is busy with a key on average, if GPUs take turns as the one that adds. The machine looks alike from each
/// of them, so all places of a kind are equally busy in the end.
fn in_turn(predicted: &Prediction, rig: &Rig) -> Picoseconds {
    let rate = |from: u32, to: u32| {
        rig.links.as_ref().map_or(0, |(size, rates)| rates[from as usize * size + to as usize])
    };
    // Kinds of places: threads, links by their rate, ways out of switches, ways into them.
    let kind = |place: Resource| match place {
        Resource::Link { from, to } => (1, rate(from, to)),
        Resource::SwitchOut(_) => (2, 0),
        Resource::SwitchInto(_) => (3, 0),
        _ => (0, 0),
    };
    let count = |kind: (u32, u64)| match kind {
        (1, of_kind) => {
            let rates = rig.links.iter().flat_map(|(_, rates)| rates);
            rates.filter(|rate| **rate == of_kind).count()
        }
        (2 | 3, _) => rig.switches.as_ref().map_or(1, |switches| switches.out.len()),
        _ => GPUS as usize,
    };
    let mut sums = BTreeMap::<(u32, u64), Picoseconds>::new();
    for used in &predicted.used {
        *sums.entry(kind(used.place)).or_default() += used.busy;
    }
    sums.into_iter().map(|(kind, busy)| busy / count(kind).max(1) as u64).max().unwrap_or(0)
}

fn refused(why: impl ToString) -> Failure {
    Failure::Usage { problem: why.to_string(), hint: "see herringbone figures --help" }
}
