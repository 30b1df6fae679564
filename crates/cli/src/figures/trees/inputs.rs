//! The inputs of the figure `trees`.

use super::super::figure::FigureInput;
use crate::numbers::{above_zero, decimal, whole};

/// The machine and the jobs of MXNet's proposal.
#[derive(Clone, Debug, PartialEq, clap::Args)]
#[command(next_help_heading = "Inputs of the figure trees")]
pub(crate) struct TreesInputs {
    /// GB/s of one NVLink, each way
    #[arg(id = "trees-nvlink", long = "trees-nvlink", default_value_t = 25.0, value_name = "GB/S", value_parser = above_zero(1e4))]
    pub(super) nvlink: f64,
    /// GB/s of PCIe from a pair of GPUs to the others, each way
    #[arg(id = "trees-pcie", long = "trees-pcie", default_value_t = 10.0, value_name = "GB/S", value_parser = above_zero(1e4))]
    pub(super) pcie: f64,
    /// NVLinks per hop of NCCL's ring; 6: rings over all NVLinks
    #[arg(id = "trees-ring-links", long = "trees-ring-links", default_value_t = 2, value_name = "N", value_parser = whole(1..=6))]
    pub(super) ring_links: u32,
    /// Microseconds of a GPU per message [default: fitted]
    #[arg(id = "trees-message-us", long = "trees-message-us", value_name = "US", value_parser = decimal(0.0..=1e4))]
    pub(super) message_us: Option<f64>,
    /// Images per GPU and step
    #[arg(id = "trees-batch", long = "trees-batch", default_value_t = 4, value_name = "B", value_parser = whole(1..=4096))]
    pub(super) batch: u32,
    /// Speed of a GPU relative to a P100
    #[arg(id = "trees-speed", long = "trees-speed", default_value_t = 1.48, value_name = "F", value_parser = above_zero(1e4))]
    pub(super) speed: f64,
    /// Millions of elements above which many trees carry a key
    #[arg(id = "trees-bound", long = "trees-bound", default_value_t = 10.0, value_name = "M", value_parser = decimal(0.0..=1e6))]
    pub(super) bound: f64,
}

impl TreesInputs {
    /// All that are used, in the order of the options.
    pub(crate) fn listed(&self) -> Vec<FigureInput> {
        let mut listed = vec![
            FigureInput::of("--trees-nvlink", self.nvlink),
            FigureInput::of("--trees-pcie", self.pcie),
            FigureInput::of("--trees-ring-links", self.ring_links),
        ];
        listed.extend(self.message_us.map(|said| FigureInput::of("--trees-message-us", said)));
        listed.extend([
            FigureInput::of("--trees-batch", self.batch),
            FigureInput::of("--trees-speed", self.speed),
            FigureInput::of("--trees-bound", self.bound),
        ]);
        listed
    }

    /// The elements above which many trees carry a key.
    pub(super) fn bound(&self) -> u64 {
        (self.bound * 1e6) as u64
    }
}
