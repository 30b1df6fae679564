//! The inputs of the figure.

use super::super::figure::FigureInput;
use crate::numbers::{above_zero, whole};

/// Inputs of the figure `notes`.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Inputs of the figure notes")]
pub(crate) struct NotesInputs {
    /// GPUs of the ring whose first exchange is shown
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = whole(2..=64))]
    pub(super) notes_ring: u32,
    /// GPUs of the tree, and the most in its curves
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = whole(2..=64))]
    pub(super) notes_gpus: u32,
    /// Millions of parameters of 4 bytes in the tree's buffer
    #[arg(long, default_value_t = 300.0, value_name = "M", value_parser = above_zero(1e4))]
    pub(super) notes_parameters: f64,
    /// GB/s of each link of the tree and the chain
    #[arg(long, default_value_t = 1.0, value_name = "B", value_parser = above_zero(1e4))]
    pub(super) notes_gb_per_s: f64,
    /// Nodes of the chain
    #[arg(long, default_value_t = 5, value_name = "K", value_parser = whole(2..=64))]
    pub(super) notes_chain: u32,
    /// Pieces of the chain's data
    #[arg(long, default_value_t = 100, value_name = "S", value_parser = whole(1..=1000))]
    pub(super) notes_pieces: u32,
    /// GPUs that train AlexNet
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = whole(2..=64))]
    pub(super) notes_alexnet_gpus: u32,
    /// Millions of parameters of AlexNet
    #[arg(long, default_value_t = 61.5, value_name = "M", value_parser = above_zero(1e4))]
    pub(super) notes_alexnet_parameters: f64,
    /// Seconds per iteration of AlexNet
    #[arg(long, default_value_t = 0.25, value_name = "S", value_parser = above_zero(1e4))]
    pub(super) notes_alexnet_seconds: f64,
    /// Operations in flight at once
    #[arg(long, default_value_t = 4, value_name = "K", value_parser = whole(2..=32))]
    pub(super) notes_in_flight: u32,
}

impl NotesInputs {
    pub(crate) fn listed(&self) -> Vec<FigureInput> {
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
    pub(super) fn bytes(&self) -> u64 {
        (self.notes_parameters * 4e6) as u64
    }
}
