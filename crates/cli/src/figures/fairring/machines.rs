//! The machines of Fairring's article, and the costs of sums there.

use super::inputs::{FairringInputs, SliceStaging};
use crate::{
    failure::Failure,
    training::{SumCosts, SumWay, WorkerMachines},
};
use herringbone::core::{
    codec::Codec,
    plan::Guidance,
    prepare::Sizing,
    simulate::{Calibration, Costs, Overhead, Picoseconds, SECOND},
    topology::Wiring,
    training::{Bucket, BucketCost, StepTimeline, TrainingStep, timeline},
};

/// Bytes of an element.
const F32: u64 = 4;
/// Bytes/s that a V100 moves in its memory, by NVIDIA's data sheet.
const MEMORY: u64 = 900_000_000_000;
/// From a card to another through a switch of InfiniBand.
const LATENCY: Picoseconds = 2 * SECOND / 1_000_000;
/// Cut as coarsely as the engine cuts, because a slice of Fairring goes from stage to stage as a whole.
const COARSE: usize = 1 << 30;
/// Staging memory of the engine, which is no limit here.
const STAGED: usize = 1 << 40;
/// More than any simulation of the figure has with whole slices.
const MOST_MESSAGES: u64 = 4_000_000;

/// What sums gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Library {
    /// The faster of a ring of all GPUs and two binary trees, one operation after the other.
    Nccl,
    /// Inside machines, across machines among GPUs of one number, and inside machines again; slices side by side.
    Fairring,
}

/// The machines with this cost of a message between two of them at either end.
pub(super) fn machines(inputs: &FairringInputs, message: Picoseconds) -> WorkerMachines {
    let rate = |gigabytes: f64| (gigabytes * 1e9) as u64;
    // Cards move the bytes of messages themselves.
    let each_message = Overhead { each: message, rate: 0 };
    let costs = Costs {
        send: each_message,
        receive: each_message,
        // The sender and the receiver of a local message both pay for it: together they are as fast as the links.
        here: Overhead { rate: 2 * rate(inputs.nvlink), ..Costs::DEFAULT.here },
        fold: Overhead { rate: MEMORY, ..Costs::DEFAULT.fold },
        copy: Overhead { rate: MEMORY / 2, ..Costs::DEFAULT.copy },
        // Kernels of GPUs do not sleep.
        wake: 0,
        payload_per_mille: 1000,
        ..Costs::DEFAULT
    };
    let port = rate(inputs.gbps / 8.0);
    WorkerMachines {
        constants: Calibration { costs, port, reducer_port: port, latency: LATENCY, shared_cores: 0 },
        wiring: Wiring::default(),
        per_host: inputs.gpus,
        reducers: None,
        sizing: |hosts| {
            let hosts = Sizing::distinct(hosts);
            Ok(Sizing { hosts, shared: hosts == 1, segment_bytes: COARSE, most_staged: STAGED })
        },
        most_messages: MOST_MESSAGES,
        guidance: Guidance::default(),
    }
}

/// What sums cost on these machines, each simulated once.
pub(super) struct FairringSums<'a> {
    gpus: u32,
    /// The number of the gradients' type.
    kind: u32,
    costs: SumCosts<'a>,
}

impl<'a> FairringSums<'a> {
    /// For gradients of type `kind`.
    pub(super) fn new(machines: &'a WorkerMachines, kind: u32) -> Self {
        Self { gpus: machines.per_host, kind, costs: SumCosts::new(machines) }
    }

    /// The cost of a sum with this many bytes and machines.
    ///
    /// # Errors
    /// If a schedule has no form for as many GPUs, or too many messages.
    pub(super) fn cost(
        &mut self,
        library: Library,
        machines: u32,
        bytes: u64,
    ) -> Result<BucketCost, Failure> {
        match library {
            Library::Nccl => {
                let ring = self.cost_by("ring", machines, bytes)?;
                let trees = self.cost_by("double_tree", machines, bytes)?;
                Ok(if trees.time < ring.time { trees } else { ring })
            }
            Library::Fairring => self.cost_by(&rails(self.gpus, machines), machines, bytes),
        }
    }

    fn cost_by(&mut self, name: &str, machines: u32, bytes: u64) -> Result<BucketCost, Failure> {
        let refused = |why: String| Failure::Usage {
            problem: format!("{name} on {machines} machines with {} GPUs: {why}", self.gpus),
            hint: "see herringbone figures --help",
        };
        let way = SumWay::parse(name).map_err(refused)?;
        let workers = machines * self.gpus;
        if workers == 1 {
            return Ok(BucketCost::default());
        }
        let bucket = Bucket { kind: self.kind, bytes: bytes.div_ceil(F32) * F32, ready: 0 };
        let found = self.costs.of(&way, Codec::Plain, workers, &[bucket])?.map_err(refused)?;
        if found.has_prices {
            return Err(refused("there are too many messages to simulate".to_owned()));
        }
        Ok(found.buckets[0])
    }

    /// A step whose buckets are summed by `library` on this many machines.
    ///
    /// # Errors
    /// As [`cost`](Self::cost).
    pub(super) fn step(
        &mut self,
        library: Library,
        machines: u32,
        step: &TrainingStep,
        buckets: &[Bucket],
        staging: SliceStaging,
    ) -> Result<StepTimeline, Failure> {
        let (buckets, in_flight) = match library {
            Library::Nccl => (buckets.to_vec(), 1),
            Library::Fairring => (sliced(buckets, staging.slice), staging.in_flight),
        };
        let costs = buckets.iter().map(|bucket| self.cost(library, machines, bucket.bytes));
        let mut costs = costs.collect::<Result<Vec<_>, _>>()?.into_iter();
        Ok(timeline(step, &buckets, in_flight, |_| costs.next().unwrap_or_default()))
    }

    /// How long `count` buckets of this many bytes take if they are called at once.
    ///
    /// # Errors
    /// As [`cost`](Self::cost).
    pub(super) fn together(
        &mut self,
        library: Library,
        machines: u32,
        bytes: u64,
        count: u32,
        staging: SliceStaging,
    ) -> Result<Picoseconds, Failure> {
        const NOTHING: TrainingStep = TrainingStep { forward: 0, backward: 0, after: 0, cores: None };
        let buckets = vec![Bucket { kind: self.kind, bytes, ready: 0 }; count as usize];
        Ok(self.step(library, machines, &NOTHING, &buckets, staging)?.total)
    }
}

/// The name of Fairring's schedule: inside machines, then rails across them.
pub(super) fn rails(gpus: u32, machines: u32) -> String {
    match (gpus, machines) {
        (1, machines) => format!("radix({machines})"),
        (gpus, 1) => format!("radix({gpus})"),
        (gpus, machines) => format!("radix({gpus},{machines})"),
    }
}

/// The buckets in slices of at most `slice` bytes.
fn sliced(buckets: &[Bucket], slice: u64) -> Vec<Bucket> {
    let mut slices = Vec::new();
    for bucket in buckets {
        let whole = std::iter::repeat_n(slice, (bucket.bytes / slice) as usize);
        let rest = Some(bucket.bytes % slice).filter(|rest| *rest > 0);
        slices.extend(whole.chain(rest).map(|bytes| Bucket { bytes, ..*bucket }));
    }
    slices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_have_all_bytes_and_the_moment_of_their_bucket() {
        let bucket = |bytes, ready| Bucket { kind: 9, bytes, ready };
        assert_eq!(
            sliced(&[bucket(25, 1), bucket(7, 2)], 10),
            [bucket(10, 1), bucket(10, 1), bucket(5, 1), bucket(7, 2)]
        );
        assert_eq!(sliced(&[bucket(20, 1)], 10).len(), 2);
    }
}
