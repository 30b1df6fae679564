//! The notes on deep-learning systems: the ring of five, trees and chains, AlexNet, and memory against operations in flight.

mod alexnet;
mod chain;
mod memory;
mod ring;
mod tree;

use super::figure::{Figure, FigureInput};
use crate::{
    failure::Failure,
    numbers::{above_zero, whole},
};

/// Inputs of the figure `notes`.
#[derive(Clone, Debug, PartialEq, clap::Args)]
#[command(next_help_heading = "Inputs of the figure notes")]
pub(super) struct NotesInputs {
    /// GPUs of the ring whose first exchange is shown
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = whole(2..=64))]
    notes_ring: u32,
    /// GPUs of the example of a tree, and the most that its curves go to
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = whole(2..=64))]
    notes_gpus: u32,
    /// Millions of parameters of that example, of 4 bytes each
    #[arg(long, default_value_t = 300.0, value_name = "M", value_parser = above_zero(1e4))]
    notes_parameters: f64,
    /// GB/s of each link of that example, and of the chain
    #[arg(long, default_value_t = 1.0, value_name = "B", value_parser = above_zero(1e4))]
    notes_gb_per_s: f64,
    /// Nodes of the chain
    #[arg(long, default_value_t = 5, value_name = "K", value_parser = whole(2..=64))]
    notes_chain: u32,
    /// Pieces that the chain's data is split into
    #[arg(long, default_value_t = 100, value_name = "S", value_parser = whole(1..=1000))]
    notes_pieces: u32,
    /// GPUs that train AlexNet
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = whole(2..=64))]
    notes_alexnet_gpus: u32,
    /// Millions of AlexNet's parameters
    #[arg(long, default_value_t = 61.5, value_name = "M", value_parser = above_zero(1e4))]
    notes_alexnet_parameters: f64,
    /// Seconds of an iteration of AlexNet
    #[arg(long, default_value_t = 0.25, value_name = "S", value_parser = above_zero(1e4))]
    notes_alexnet_seconds: f64,
    /// Operations in flight at once
    #[arg(long, default_value_t = 4, value_name = "K", value_parser = whole(2..=32))]
    notes_in_flight: u32,
}

impl NotesInputs {
    fn listed(&self) -> Vec<FigureInput> {
        vec![
            FigureInput::of("--notes-ring", self.notes_ring),
            FigureInput::of("--notes-gpus", self.notes_gpus),
            FigureInput::of("--notes-parameters", self.notes_parameters),
            FigureInput::of("--notes-gb-per-s", self.notes_gb_per_s),
            FigureInput::of("--notes-chain", self.notes_chain),
            FigureInput::of("--notes-pieces", self.notes_pieces),
            FigureInput::of("--notes-alexnet-gpus", self.notes_alexnet_gpus),
            FigureInput::of("--notes-alexnet-parameters", self.notes_alexnet_parameters),
            FigureInput::of("--notes-alexnet-seconds", self.notes_alexnet_seconds),
            FigureInput::of("--notes-in-flight", self.notes_in_flight),
        ]
    }

    /// Bytes of the example's gradients, which the chain carries, too.
    fn bytes(&self) -> u64 {
        (self.notes_parameters * 4e6) as u64
    }
}

/// The figure.
///
/// # Errors
/// If inputs leave nothing to simulate.
pub(super) fn figure(inputs: &NotesInputs) -> Result<Figure, Failure> {
    let mut claims = ring::claims(inputs)?;
    let parts =
        [tree::example(inputs)?, chain::pieces(inputs)?, alexnet::rates(inputs)?, memory::in_flight(inputs)?];
    let mut charts = Vec::with_capacity(parts.len());
    for (more, chart) in parts {
        claims.extend(more);
        charts.push(chart);
    }
    Ok(Figure {
        name: "notes",
        title: "Notes on deep-learning systems: rings, trees, chains and AlexNet",
        source: "the notes \"system.md\" on deep-learning systems",
        about: "Bytes and rounds are counted in schedules that are proved. Times are simulated on machines where only ports cost time, but \
                for memory, where machines have default costs."
            .to_owned(),
        inputs: inputs.listed(),
        fitted: None,
        claims,
        charts,
    })
}
