//! Simulations of the proposal's measurements.

use super::{
    super::fitted,
    inputs::TreesInputs,
    machine::MEMORY,
    sums::{F32, KeyStore, PushPullWay, TreesSums},
};
use crate::{
    failure::Failure,
    training::{self, TrainedStep, WorkerChoice},
};
use herringbone::core::{
    simulate::{Picoseconds, SECOND, duration},
    training::{Bucket, TrainingStep},
};

/// ResNet-50's speed-up over NCCL, from which the cost of a message is found.
pub(super) const FITTED_TO: f64 = 1.33;
/// The picoseconds in whose multiples it is found.
const TICK: Picoseconds = SECOND / 100_000_000;
/// The most that it can be, in ticks: 0.1 ms.
const MOST_TICKS: u64 = 10_000;
/// Push-pulls before a wait.
pub(super) const CALLS: u32 = 150;
/// A key that is small in the proposal has at most this many elements.
const MEDIUM: u64 = 2_000_000;
/// A key that is large in the proposal has more.
const LARGE: u64 = 10_000_000;
/// Elements of keys.
const ELEMENTS: [u64; 16] = [
    1_000,
    3_000,
    10_000,
    30_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    3_000_000,
    5_000_000,
    7_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
];

/// Elements from which on many trees carry the keys of VGG-16.
const BOUNDS: [u64; 12] = [
    10_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    3_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    200_000_000,
];

/// A row of Table 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct SeedModel {
    pub(super) title: &'static str,
    /// As simulate-training calls it.
    pub(super) model: &'static str,
    pub(super) over_server: f64,
    pub(super) over_nccl: f64,
    /// Why ours differ, with these inputs.
    pub(super) why_server: fn(&TreesInputs) -> String,
    pub(super) why_nccl: fn(&TreesInputs) -> String,
}

impl SeedModel {
    /// Whether it is the row that the constant is found from.
    pub(super) fn is_baseline(&self) -> bool {
        self.model == TABLE[0].model
    }
}

static TABLE: [SeedModel; 4] = [
    SeedModel {
        title: "ResNet-50",
        model: "resnet50",
        over_server: 1.19,
        over_nccl: FITTED_TO,
        why_server: shared,
        why_nccl: |inputs| {
            let found = "The cost of a message is fitted to this number.";
            if inputs.message_us.is_none() { found } else { "The cost of a message is an input." }.to_owned()
        },
    },
    SeedModel {
        title: "VGG-16",
        model: "vgg16",
        over_server: 5.89,
        over_nccl: 1.06,
        why_server: shared,
        why_nccl: ring,
    },
    SeedModel {
        title: "Inception-v3",
        model: "inception-v3",
        over_server: 1.15,
        over_nccl: 1.34,
        why_server: shared,
        why_nccl: |_| {
            "Nearly all of its 292 keys are small, so it shows the cost of messages best.".to_owned()
        },
    },
    SeedModel {
        title: "AlexNet",
        model: "alexnet",
        over_server: 6.60,
        over_nccl: 1.42,
        why_server: |_| {
            "As with VGG-16. Its rate of images/s also comes from large batches: small ones compute longer, whatever sums them."
                .to_owned()
        },
        why_nccl: |inputs| {
            format!(
                "One key has most of the floats, and a whole key is pushed before any of it is pulled. So trees leave each direction of a link idle half of \
                 the time, but NCCL's ring keeps its links busy. {}",
                ring(inputs)
            )
        },
    },
];

/// Why a server is slower here.
pub(super) fn shared(inputs: &TreesInputs) -> String {
    format!(
        "A server has no NVLink to three of seven GPUs, and each pair of GPUs shares {} GB/s of PCIe here. The article has 10 GB/s and does not tell \
         who shares them.",
        inputs.pcie
    )
}

/// What NCCL's time rests on.
fn ring(inputs: &TreesInputs) -> String {
    let here = match inputs.ring_links {
        2 => "NCCL has one ring here, over pairs of GPUs with two NVLinks. With rings over all NVLinks (--trees-ring-links 6) NCCL is faster for large \
              keys, and the speed-up smaller"
            .to_owned(),
        links => format!("NCCL's ring is as fast as {links} NVLinks here (--trees-ring-links)"),
    };
    format!("{here}; the article does not tell which it used.")
}

/// A model's step by each store.
#[derive(Clone, Debug)]
pub(super) struct ModelSteps {
    pub(super) seed: &'static SeedModel,
    pub(super) trees: Picoseconds,
    pub(super) server: Picoseconds,
    pub(super) nccl: Picoseconds,
    pub(super) keys: PushedKeys,
}

impl ModelSteps {
    /// How many times as fast as with the parameter server.
    pub(super) fn over_server(&self) -> f64 {
        self.server as f64 / self.trees as f64
    }

    /// What two copies of all keys in a GPU's memory take, as a fraction of the step with trees.
    pub(super) fn copied(&self) -> f64 {
        duration(2 * self.keys.bytes, MEMORY / 2) as f64 / self.trees as f64
    }

    /// How many times as fast as with NCCL.
    pub(super) fn over_nccl(&self) -> f64 {
        self.nccl as f64 / self.trees as f64
    }

    /// Whether the text counts the model among those with many small keys.
    pub(super) fn keys_are_small(&self) -> bool {
        ["resnet50", "inception-v3"].contains(&self.seed.model)
    }

    /// Whether the parameter server is faster than NCCL, in words.
    pub(super) fn server_beside_nccl(&self) -> &'static str {
        if self.server < self.nccl { "faster" } else { "slower" }
    }
}

/// What a model pushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PushedKeys {
    pub(super) count: usize,
    /// The elements of the largest.
    pub(super) largest: u64,
    /// How many have more elements than [`MEDIUM`].
    pub(super) beyond: usize,
    /// How many have more elements than [`LARGE`].
    pub(super) above: usize,
    /// The bytes of all.
    pub(super) bytes: u64,
}

/// One push-pull.
#[derive(Clone, Debug)]
pub(super) struct SizePoint {
    pub(super) elements: u64,
    /// By each of [`PushPullWay::ALL`].
    pub(super) times: [Picoseconds; 4],
}

impl SizePoint {
    pub(super) fn nccl_is_fastest(&self) -> bool {
        let [single, many, server, nccl] = self.times;
        nccl < single.min(many).min(server)
    }
}

/// [`CALLS`] push-pulls at once.
#[derive(Clone, Debug)]
pub(super) struct ManyPoint {
    pub(super) elements: u64,
    /// By each of [`PushPullWay::ALL`].
    pub(super) times: [Picoseconds; 4],
}

/// VGG-16's step with trees.
#[derive(Clone, Copy, Debug)]
pub(super) struct BoundPoint {
    /// The elements above which many trees carry a key.
    pub(super) bound: u64,
    pub(super) time: Picoseconds,
}

/// All that is simulated.
#[derive(Clone, Debug)]
pub(super) struct TreesResults {
    /// What a message costs its sender.
    pub(super) message: Picoseconds,
    /// Whether that was found from ResNet-50.
    pub(super) is_fitted: bool,
    pub(super) steps: Vec<ModelSteps>,
    pub(super) sizes: Vec<SizePoint>,
    pub(super) many: Vec<ManyPoint>,
    /// By the bound, ascending.
    pub(super) bounds: Vec<BoundPoint>,
    /// The longest chain of messages of one tree, up and down.
    pub(super) rounds: u32,
}

impl TreesResults {
    /// # Errors
    /// If inputs leave nothing to simulate.
    pub(super) fn of(inputs: &TreesInputs) -> Result<Self, Failure> {
        let message = match inputs.message_us {
            Some(said) => (said * 1e6) as Picoseconds,
            None => message(inputs)?,
        };
        let mut sums = TreesSums::new(inputs, message)?;
        let steps = TABLE.iter().map(|seed| steps(inputs, &mut sums, seed)).collect::<Result<_, _>>()?;
        let sizes = ELEMENTS.iter().map(|elements| size(&mut sums, *elements)).collect::<Result<_, _>>()?;
        let many = ELEMENTS.iter().map(|elements| many(&mut sums, *elements)).collect::<Result<_, _>>()?;
        let (step, keys) = trained(inputs, TABLE[1].model)?;
        let bounds = BOUNDS.iter().map(|bound| {
            let time = sums.step(KeyStore::Trees { bound: *bound }, &step, &keys)?.total;
            Ok(BoundPoint { bound: *bound, time })
        });
        let bounds = bounds.collect::<Result<_, Failure>>()?;
        let is_fitted = inputs.message_us.is_none();
        Ok(Self {
            message,
            is_fitted,
            steps,
            sizes,
            many,
            bounds,
            rounds: sums.rounds(PushPullWay::SingleTree),
        })
    }

    /// The largest bound of those whose step is within 1 % of the best.
    pub(super) fn best_bound(&self) -> BoundPoint {
        let best = self.bounds.iter().map(|point| point.time).min().unwrap_or(0);
        let is_best = |point: &&BoundPoint| point.time as f64 <= 1.01 * best as f64;
        *self.bounds.iter().rfind(is_best).expect("the best one is among them")
    }
}

/// The elements from which on many trees are faster than one at all sizes.
pub(super) fn first_of_many<'a>(
    points: impl DoubleEndedIterator<Item = (u64, &'a [Picoseconds; 4])>,
) -> Option<u64> {
    let faster = points.rev().take_while(|(_, [single, many, ..])| many < single);
    faster.last().map(|(elements, _)| elements)
}

/// A model's step on one GPU, with a key for each parameter.
fn trained(inputs: &TreesInputs, model: &str) -> Result<(TrainingStep, Vec<Bucket>), Failure> {
    let choice = WorkerChoice { rate: None, batch: Some(inputs.batch), cap: Some(1) };
    let refused = |problem| Failure::Usage { problem, hint: "see herringbone figures --help" };
    let TrainedStep { step, buckets, .. } =
        TrainedStep::of(&training::find_model(model)?, choice).map_err(refused)?;
    let faster = |time: Picoseconds| (time as f64 / inputs.speed) as Picoseconds;
    let TrainingStep { forward, backward, after, cores } = step;
    let step =
        TrainingStep { forward: faster(forward), backward: faster(backward), after: faster(after), cores };
    let keys = buckets.into_iter().map(|key| Bucket { ready: faster(key.ready), ..key }).collect();
    Ok((step, keys))
}

fn steps(
    inputs: &TreesInputs,
    sums: &mut TreesSums,
    seed: &'static SeedModel,
) -> Result<ModelSteps, Failure> {
    let (step, keys) = trained(inputs, seed.model)?;
    let mut total = |store| Ok::<_, Failure>(sums.step(store, &step, &keys)?.total);
    let (trees, server, nccl) =
        (total(KeyStore::Trees { bound: inputs.bound() })?, total(KeyStore::Server)?, total(KeyStore::Nccl)?);
    let elements = || keys.iter().map(|key| key.bytes / F32);
    let keys = PushedKeys {
        count: keys.len(),
        largest: elements().max().unwrap_or(0),
        beyond: elements().filter(|elements| *elements > MEDIUM).count(),
        above: elements().filter(|elements| *elements > LARGE).count(),
        bytes: keys.iter().map(|key| key.bytes).sum(),
    };
    Ok(ModelSteps { seed, trees, server, nccl, keys })
}

fn size(sums: &mut TreesSums, elements: u64) -> Result<SizePoint, Failure> {
    let mut times = [0; 4];
    for (time, way) in times.iter_mut().zip(PushPullWay::ALL) {
        *time = sums.cost(way, elements * F32)?.time;
    }
    Ok(SizePoint { elements, times })
}

fn many(sums: &mut TreesSums, elements: u64) -> Result<ManyPoint, Failure> {
    const STORES: [KeyStore; 4] =
        [KeyStore::Trees { bound: u64::MAX }, KeyStore::Trees { bound: 0 }, KeyStore::Server, KeyStore::Nccl];
    let mut times = [0; 4];
    for (time, store) in times.iter_mut().zip(STORES) {
        *time = sums.together(store, elements, CALLS)?;
    }
    Ok(ManyPoint { elements, times })
}

/// What a message has to cost for the speed-up of ResNet-50 over NCCL, to 10 ns.
fn message(inputs: &TreesInputs) -> Result<Picoseconds, Failure> {
    let (step, keys) = trained(inputs, TABLE[0].model)?;
    let reaches = |ticks| {
        let mut sums = TreesSums::new(inputs, ticks * TICK)?;
        let trees = sums.step(KeyStore::Trees { bound: inputs.bound() }, &step, &keys)?;
        let nccl = sums.step(KeyStore::Nccl, &step, &keys)?;
        Ok(nccl.total as f64 / trees.total as f64 >= FITTED_TO)
    };
    Ok(fitted::least(MOST_TICKS, reaches)? * TICK)
}
