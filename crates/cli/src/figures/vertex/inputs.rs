//! The inputs of the figure, and the machines and workers that they describe.

use super::super::{
    figure::FigureInput,
    simulated::{ports_alone, unusable},
};
use crate::{
    failure::Failure,
    numbers::{above_zero, whole},
    training::{TrainedStep, WorkerChoice, find_model},
};
use herringbone::core::simulate::Calibration;

/// From a host to another, in picoseconds: 30 us.
const LATENCY: u64 = Calibration::DEFAULT.latency;
/// Bytes/s of 1 Gbit/s.
const GBPS: f64 = 125e6;
/// Inputs of the figure `vertex`.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Inputs of the figure vertex")]
pub(crate) struct VertexInputs {
    /// Hosts with GPUs
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = whole(2..=64))]
    pub(super) vertex_hosts: u32,
    /// GPUs per host, one worker each
    #[arg(long, default_value_t = 8, value_name = "P", value_parser = whole(1..=16))]
    pub(super) vertex_gpus: u32,
    /// Reducers to add
    #[arg(long, default_value_t = 20, value_name = "M", value_parser = whole(1..=256))]
    pub(super) vertex_reducers: u32,
    /// Gbit/s of a host with GPUs, as sold
    #[arg(long, default_value_t = 100.0, value_name = "G", value_parser = above_zero(1e4))]
    pub(super) vertex_gbps: f64,
    /// Gbit/s of a reducer
    #[arg(long, default_value_t = 32.0, value_name = "G", value_parser = above_zero(1e4))]
    pub(super) vertex_reducer_gbps: f64,
    /// A model's name, or the file of a profile
    #[arg(long, default_value = "bert-large", value_name = "MODEL")]
    pub(super) vertex_model: String,
    /// Samples per GPU and step
    #[arg(long, default_value_t = 32, value_name = "B", value_parser = whole(1..=100_000))]
    pub(super) vertex_batch: u32,
    /// Workers in the article's diagrams
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = whole(2..=64))]
    pub(super) vertex_diagram_workers: u32,
    /// Reducers in the article's diagram
    #[arg(long, default_value_t = 5, value_name = "M", value_parser = whole(1..=256))]
    pub(super) vertex_diagram_reducers: u32,
}

impl VertexInputs {
    pub(crate) fn listed(&self) -> Vec<FigureInput> {
        vec![
            FigureInput::of("--vertex-hosts", self.vertex_hosts),
            FigureInput::of("--vertex-gpus", self.vertex_gpus),
            FigureInput::of("--vertex-reducers", self.vertex_reducers),
            FigureInput::of("--vertex-gbps", self.vertex_gbps),
            FigureInput::of("--vertex-reducer-gbps", self.vertex_reducer_gbps),
            FigureInput::of("--vertex-model", &self.vertex_model),
            FigureInput::of("--vertex-batch", self.vertex_batch),
            FigureInput::of("--vertex-diagram-workers", self.vertex_diagram_workers),
            FigureInput::of("--vertex-diagram-reducers", self.vertex_diagram_reducers),
        ]
    }

    pub(super) fn workers(&self) -> u32 {
        self.vertex_hosts * self.vertex_gpus
    }

    /// How reducers are used: GPUs of a host sum first, so that a host sends its sum once.
    pub(super) fn way(&self) -> &'static str {
        if self.vertex_gpus == 1 { "reduction_server" } else { "hierarchical(sharded,reduction_server)" }
    }

    /// Machines whose hosts have ports of this rate in Gbit/s. Besides these, only reducers' ports and the latency between hosts cost time.
    pub(super) fn machines(&self, host_gbps: f64) -> Calibration {
        let reducer_port = ((self.vertex_reducer_gbps * GBPS).round() as u64).max(1);
        Calibration { reducer_port, latency: LATENCY, ..ports_alone(host_gbps * GBPS) }
    }

    pub(super) fn worker(&self, rate: Option<f64>) -> Result<TrainedStep, Failure> {
        let model = find_model(&self.vertex_model)?;
        let choice = WorkerChoice { rate, batch: Some(self.vertex_batch), cap: None };
        TrainedStep::of(&model, choice).map_err(unusable)
    }
}
