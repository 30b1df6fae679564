//! The inputs of the figure `fairring`.

use super::super::figure::FigureInput;
use crate::{
    failure::Failure,
    numbers::{above_zero, decimal, whole},
    training::{self, TrainedStep, WorkerChoice},
};

/// The GPUs whose speed with NCCL is an efficiency of 1. The GPUs of a machine divide it.
pub(super) const FEWEST: u32 = 8;

/// Fairring's staging buffers.
#[derive(Clone, Copy, Debug)]
pub(super) struct SliceStaging {
    /// The bytes of one, and so of a slice.
    pub(super) slice: u64,
    /// How many there are.
    pub(super) in_flight: u32,
}

/// The machines and the job of Fairring's article.
#[derive(Clone, Debug, PartialEq, clap::Args)]
#[command(next_help_heading = "Inputs of the figure fairring")]
pub(crate) struct FairringInputs {
    /// GPUs per machine: 1, 2, 4 or 8
    #[arg(id = "fairring-gpus", long = "fairring-gpus", default_value_t = 8, value_name = "D", value_parser = per_machine)]
    pub(super) gpus: u32,
    /// Most GPUs: 64, 128, 256 or 512
    #[arg(id = "fairring-most-gpus", long = "fairring-most-gpus", default_value_t = 256, value_name = "N", value_parser = most_gpus)]
    pub(super) most_gpus: u32,
    /// Gbit/s of all InfiniBand cards of a machine
    #[arg(id = "fairring-gbps", long = "fairring-gbps", default_value_t = 400.0, value_name = "G", value_parser = above_zero(1e5))]
    pub(super) gbps: f64,
    /// GB/s from each GPU to the others of its machine
    #[arg(id = "fairring-nvlink", long = "fairring-nvlink", default_value_t = 150.0, value_name = "GB/S", value_parser = above_zero(1e4))]
    pub(super) nvlink: f64,
    /// Microseconds per message at either end, between machines [default: fitted]
    #[arg(id = "fairring-message-us", long = "fairring-message-us", value_name = "US", value_parser = decimal(0.0..=1e4))]
    pub(super) message_us: Option<f64>,
    /// Multiply-adds per second of a GPU
    #[arg(id = "fairring-rate", long = "fairring-rate", default_value_t = 25e12, value_name = "R", value_parser = above_zero(1e18))]
    pub(super) rate: f64,
    /// Sequences of 2,048 tokens per GPU and step
    #[arg(id = "fairring-batch", long = "fairring-batch", default_value_t = 1, value_name = "B", value_parser = whole(1..=1000))]
    pub(super) batch: u32,
    /// MiB per slice and per bucket
    #[arg(id = "fairring-slice-mib", long = "fairring-slice-mib", default_value_t = 25, value_name = "MIB", value_parser = whole(1..=1024))]
    pub(super) slice_mib: u32,
    /// MiB of staging memory, for slices in flight
    #[arg(id = "fairring-staging-mib", long = "fairring-staging-mib", default_value_t = 50, value_name = "MIB", value_parser = whole(1..=65_536))]
    pub(super) staging_mib: u32,
    /// Buckets of the microbenchmarks
    #[arg(id = "fairring-buckets", long = "fairring-buckets", default_value_t = 64, value_name = "N", value_parser = whole(1..=4096))]
    pub(super) buckets: u32,
}

impl FairringInputs {
    /// Numbers of GPUs, whole machines all of them.
    pub(super) fn all_gpus(&self) -> Vec<u32> {
        std::iter::successors(Some(FEWEST), |gpus| Some(2 * gpus))
            .take_while(|gpus| *gpus <= self.most_gpus)
            .collect()
    }

    /// The model of 1.37 B parameters, on one GPU.
    pub(super) fn trained(&self) -> Result<TrainedStep, Failure> {
        let choice = WorkerChoice { rate: Some(self.rate), batch: Some(self.batch), cap: None };
        let refused = |problem| Failure::Usage { problem, hint: "see herringbone figures --help" };
        TrainedStep::of(&training::find_model("transformer-1.37b")?, choice).map_err(refused)
    }

    /// All that are used, in the order of the options.
    pub(crate) fn listed(&self) -> Vec<FigureInput> {
        let mut listed = vec![
            FigureInput::of("--fairring-gpus", self.gpus),
            FigureInput::of("--fairring-most-gpus", self.most_gpus),
            FigureInput::of("--fairring-gbps", self.gbps),
            FigureInput::of("--fairring-nvlink", self.nvlink),
        ];
        listed.extend(self.message_us.map(|said| FigureInput::of("--fairring-message-us", said)));
        listed.extend([
            FigureInput::of("--fairring-rate", self.rate),
            FigureInput::of("--fairring-batch", self.batch),
            FigureInput::of("--fairring-slice-mib", self.slice_mib),
            FigureInput::of("--fairring-staging-mib", self.staging_mib),
            FigureInput::of("--fairring-buckets", self.buckets),
        ]);
        listed
    }

    /// The staging buffers of a training.
    pub(super) fn staging(&self) -> SliceStaging {
        SliceStaging { slice: self.slice(), in_flight: (self.staging_mib / self.slice_mib).max(1) }
    }

    /// The bytes of a slice.
    pub(super) fn slice(&self) -> u64 {
        u64::from(self.slice_mib) << 20
    }
}

/// A number of GPUs that divides 8, so that the article's numbers of GPUs are whole machines.
fn per_machine(text: &str) -> Result<u32, String> {
    let found = text.parse().ok().filter(|gpus| [1, 2, 4, 8].contains(gpus));
    found.ok_or_else(|| "write 1, 2, 4 or 8".to_owned())
}

/// A number of GPUs up to which the article's comparisons at 32 and 64 GPUs are part of the figure.
fn most_gpus(text: &str) -> Result<u32, String> {
    let found = text.parse().ok().filter(|gpus| [64, 128, 256, 512].contains(gpus));
    found.ok_or_else(|| "write 64, 128, 256 or 512".to_owned())
}
