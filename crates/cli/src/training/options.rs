//! The options of a simulated training: a model, workers, ways to sum, machines.

use super::{
    models::{self, NamedModel},
    ways::{CHOSEN, MOST_MESSAGES, PARAMETER_SERVER, SumWay, USUAL, WorkerMachines},
    worker::{TrainedStep, WorkerChoice},
};
use crate::{
    constants::ConstantsOptions,
    failure::Failure,
    layout,
    names::{self, Completed, NameChoice},
    numbers::{above_zero, whole},
    topologies,
};
use herringbone::{
    core::{
        codec::Codec,
        plan::Guidance,
        simulate::Workload,
        topology::{RoundTrips, Wiring},
    },
    settings::Environment,
};
use std::{collections::BTreeSet, path::PathBuf, str::FromStr};

/// Predict the step time of a training on given machines
///
/// A worker computes as its model's profile describes, with its own batch. Gradients go into buckets as in torch's
/// DistributedDataParallel. Each bucket is summed as soon as its last gradient is ready. The time of a sum is
/// simulated as by herringbone simulate.
///
/// The table shows the step time, the time that a worker waits for sums (exposed), and the scaling efficiency. That
/// is the step time of one worker alone, divided by this step time.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SimulateTrainingOptions {
    #[command(flatten)]
    model: ModelOptions,
    /// Numbers of workers: 8, 8..4096 (doubling, both included) or a list [default: the topology's, else 1..64]
    #[arg(long, value_name = "NUMBERS")]
    workers: Option<Workers>,
    /// all, or names as for verify, chosen (the job's choice per bucket) and parameter_server: chosen,ring,radix(8,8)
    #[arg(long, default_value = "all", value_name = "NAMES", value_parser = ways(), hide_possible_values = true)]
    algorithm: NameChoice<SumWay>,
    /// Codecs of the messages, like none,int8; only for sharded and reduction_server
    #[arg(long, default_value = "none", value_name = "CODECS", value_delimiter = ',')]
    codec: Vec<Codec>,
    #[command(flatten)]
    machines: WorkerMachinesOptions,
    #[command(flatten)]
    pub(super) shown: TrainingShownOptions,
}

/// What each worker trains.
#[derive(Clone, Debug, clap::Args)]
struct ModelOptions {
    /// alexnet, vgg16, resnet50, inception-v3, bert-large, transformer-1.37b, or the file of a profile
    #[arg(long, value_name = "MODEL")]
    model: String,
    /// Multiply-adds per second of a worker, for a profile with operations, like 7e12
    #[arg(long, value_name = "R", value_parser = above_zero(1e18))]
    rate: Option<f64>,
    /// Samples per worker and step, for a profile with operations
    #[arg(long, value_name = "B", value_parser = whole(1..=1_000_000))]
    batch: Option<u32>,
    /// MiB that fill a bucket, also the first, as torch's bucket_cap_mb [default: the profile's buckets if measured,
    /// else 1 for the first and 25 for others]
    #[arg(long, value_name = "MIB", value_parser = above_zero(1e6))]
    bucket_mib: Option<f64>,
    /// Most sums in flight at once
    #[arg(long, default_value_t = Workload::AT_ONCE, value_name = "K", value_parser = whole(1..=1024))]
    in_flight: u32,
}

/// The machines.
#[derive(Clone, Debug, clap::Args)]
struct WorkerMachinesOptions {
    /// Reducers, or servers of parameter_server, each on its own host [default: as many as workers]
    #[arg(long, value_name = "M", value_parser = whole(1..=16384))]
    reducers: Option<u32>,
    /// Workers per host, as consecutive ranks
    #[arg(long, default_value_t = 1, value_name = "P", value_parser = whole(1..=MOST_WORKERS))]
    per_host: u32,
    /// File with ports of hosts or links between workers, in a form that topo reads, or FILE#NAME
    #[arg(long, value_name = "FILE", conflicts_with = "gbps")]
    topology: Option<String>,
    #[command(flatten)]
    constants: ConstantsOptions,
}

impl WorkerMachinesOptions {
    /// What a job on these machines chooses by: constants if it knows some, else sizes, and the latency if it is long.
    fn guidance(&self) -> Result<Guidance, Failure> {
        let calibration = self.constants.calibrated()?;
        let environment = Environment::of_process().guidance()?;
        // A job knows its longest round trip, in microseconds.
        let round_trip = self.constants.constants()?.latency / 500_000;
        let trips = RoundTrips::new(&[0, u32::try_from(round_trip).unwrap_or(u32::MAX)], &[0, 1]);
        let latency = trips.nanoseconds(&[0, 1]).map(|time| 1000 * time);
        Ok(Guidance { calibration, latency, ..environment })
    }
}

/// What is shown.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct TrainingShownOptions {
    /// Print one JSON object
    #[arg(long, conflicts_with = "csv")]
    pub(super) json: bool,
    /// Print comma-separated values
    #[arg(long)]
    pub(super) csv: bool,
    /// Draw the scaling efficiency over the number of workers into this file
    #[arg(long, value_name = "FILE")]
    pub(super) svg: Option<PathBuf>,
}

/// The most workers.
const MOST_WORKERS: u32 = 4096;

/// Numbers of workers: `8`, `8..4096`, which doubles, or a list of those.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Workers(BTreeSet<u32>);

impl FromStr for Workers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| whole(1..=MOST_WORKERS)(text).map_err(|error| format!("`{text}`: {error}"));
        let mut all = BTreeSet::new();
        for part in text.split(',') {
            let (first, last) = part.split_once("..").unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if last < first {
                return Err(format!("`{part}` is empty: write {last}..{first}"));
            }
            all.extend(
                std::iter::successors(Some(first), |one| Some(2 * one)).take_while(|one| *one <= last),
            );
        }
        Ok(Self(all))
    }
}

fn ways() -> Completed<NameChoice<SumWay>> {
    let read = |text: &str| NameChoice::read(text, SumWay::parse);
    Completed::new(read, [vec!["all", CHOSEN, PARAMETER_SERVER], names::algorithms()].concat())
}

/// Everything that the simulation needs.
pub(super) struct TrainingQuestion {
    pub(super) model: NamedModel,
    pub(super) worker: TrainedStep,
    /// Ascending.
    pub(super) workers: Vec<u32>,
    pub(super) ways: Vec<SumWay>,
    pub(super) codecs: Vec<Codec>,
    pub(super) in_flight: u32,
    pub(super) machines: WorkerMachines,
}

impl SimulateTrainingOptions {
    pub(super) fn asked(&self) -> Result<TrainingQuestion, Failure> {
        let usage = |problem| Failure::Usage { problem, hint: "see herringbone simulate-training --help" };
        let model = models::find(&self.model.model)?;
        let ModelOptions { rate, batch, bucket_mib, in_flight, .. } = self.model;
        let cap = bucket_mib.map(|mib| (mib * f64::from(1 << 20)).ceil() as u64);
        let worker = TrainedStep::of(&model, WorkerChoice { rate, batch, cap }).map_err(usage)?;
        let ways = match &self.algorithm {
            NameChoice::All => {
                USUAL.map(SumWay::parse).into_iter().collect::<Result<_, _>>().map_err(usage)?
            }
            NameChoice::Named(named) => named.clone(),
        };
        if self.machines.reducers.is_some() && !ways.iter().any(SumWay::has_reducers) {
            return Err(usage("--reducers has no effect on these algorithms".to_owned()));
        }
        let wiring = self.machines.topology.as_deref().map(|file| {
            let topology = topologies::read(file)?;
            topologies::wiring(file, &topology)
        });
        let wiring = wiring.transpose()?.unwrap_or_default();
        let (workers, wiring) = self.workers(wiring)?;
        let machines = WorkerMachines {
            constants: self.machines.constants.constants()?,
            wiring,
            per_host: self.machines.per_host,
            reducers: self.machines.reducers,
            sizing: |hosts| Ok(Environment::of_process().sizing(hosts)?),
            most_messages: MOST_MESSAGES,
            guidance: self.machines.guidance()?,
        };
        let mut codecs = Vec::new();
        for codec in &self.codec {
            if !codecs.contains(codec) {
                codecs.push(*codec);
            }
        }
        Ok(TrainingQuestion { model, worker, workers, ways, codecs, in_flight, machines })
    }

    /// The numbers of workers, and the topology among them, which has one number.
    fn workers(&self, wiring: Wiring) -> Result<(Vec<u32>, Wiring), Failure> {
        let said = self.workers.as_ref().map(|Workers(all)| all.iter().copied().collect::<Vec<u32>>());
        let Some(size) = wiring.size() else {
            let usual = || std::iter::successors(Some(1), |one| Some(2 * one)).take(7).collect();
            return Ok((said.unwrap_or_else(usual), wiring));
        };
        // Ports without links belong to hosts.
        let each = if wiring.links.is_none() { self.machines.per_host } else { 1 };
        let workers = said.unwrap_or_else(|| vec![(size as u32).saturating_mul(each)]);
        let [one] = workers[..] else {
            return Err(Failure::Usage {
                problem: format!(
                    "the topology has {size} nodes, but --workers has {} numbers",
                    workers.len()
                ),
                hint: "leave --workers out",
            });
        };
        if one > MOST_WORKERS {
            return Err(Failure::Usage {
                problem: format!("this makes {one} workers, but at most {MOST_WORKERS} are allowed"),
                hint: "use fewer workers per host",
            });
        }
        let wiring = topologies::among(wiring, &layout::hosts(one, self.machines.per_host.min(one)))?;
        Ok((workers, wiring))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_workers_double() {
        let read =
            |text: &str| text.parse::<Workers>().map(|Workers(all)| all.into_iter().collect::<Vec<_>>());
        assert_eq!(read("8..64"), Ok(vec![8, 16, 32, 64]));
        assert_eq!(read("3..20,1"), Ok(vec![1, 3, 6, 12]));
        assert_eq!(read("4096"), Ok(vec![4096]));
        for text in ["", "0", "8..4", "4097", "x..8", "1.."] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
