//! The notes on deep-learning systems: the ring of five, trees and chains, AlexNet, and memory against operations in flight.

use super::{
    figure::{AxisWords, Chart, Claim, Curve, Figure, FigureInput, How, Mark, Quantity},
    simulated::{Operation, ports_alone},
};
use crate::{
    chart::Scale,
    failure::Failure,
    numbers::{above_zero, whole},
};

/// Inputs of the figure `notes`.
#[derive(Clone, Debug, PartialEq, clap::Args)]
#[command(next_help_heading = "Inputs of the figure notes")]
pub(super) struct NotesInputs {
    /// GPUs of the example of a tree, and the most that its curves go to
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = whole(2..=64))]
    notes_gpus: u32,
    /// Millions of parameters of that example, of 4 bytes each
    #[arg(long, default_value_t = 300.0, value_name = "M", value_parser = above_zero(1e5))]
    notes_parameters: f64,
    /// GB/s of each link of that example
    #[arg(long, default_value_t = 1.0, value_name = "B", value_parser = above_zero(1e4))]
    notes_gb_per_s: f64,
}

impl NotesInputs {
    fn listed(&self) -> Vec<FigureInput> {
        vec![
            FigureInput::of("--notes-gpus", self.notes_gpus),
            FigureInput::of("--notes-parameters", self.notes_parameters),
            FigureInput::of("--notes-gb-per-s", self.notes_gb_per_s),
        ]
    }
}

/// The figure.
///
/// # Errors
/// If inputs leave nothing to simulate.
pub(super) fn figure(inputs: &NotesInputs) -> Result<Figure, Failure> {
    let (claims, chart) = tree_example(inputs)?;
    Ok(Figure {
        name: "notes",
        title: "Notes on deep-learning systems: rings, trees, chains and AlexNet",
        source: "\"Deep learning systems\", notes of a course",
        about: "Bytes and rounds are counted in schedules that are proved. Times are simulated on machines where only ports cost time."
            .to_owned(),
        inputs: inputs.listed(),
        fitted: None,
        claims,
        charts: vec![chart],
    })
}

/// The example of a tree: every GPU sends its whole gradient to one of them.
fn tree_example(inputs: &NotesInputs) -> Result<(Vec<Claim>, Chart), Failure> {
    let bytes = (inputs.notes_parameters * 4e6) as u64;
    let machines = ports_alone(inputs.notes_gb_per_s * 1e9);
    let curve = |name: &str, algorithm: &str| -> Result<Curve, Failure> {
        let seconds = |gpus: u32| {
            let took = Operation::all_reduce(algorithm, gpus, 0)?.took(bytes, &machines)?;
            Ok((f64::from(gpus), took.seconds))
        };
        Ok(Curve::of(name, (2..=inputs.notes_gpus).map(seconds).collect::<Result<Vec<_>, Failure>>()?))
    };
    let curves =
        vec![curve("star: all send to one", "star")?, curve("tree", "tree")?, curve("ring", "ring")?];
    let at = |curve: &Curve, place: usize| curve.points[place].at.1;
    let last = inputs.notes_gpus as usize - 2;
    let said = |gpus: u32| format!("300 M parameters of 4 bytes over 1 GB/s delay {gpus} GPUs by so much");
    let why = "No tree: all others send to one GPU in turn, which takes (N-1) times 1.2 s. A tree that is pipelined takes less.";
    let claim = |gpus, seed, place| {
        Claim::new(
            said(gpus),
            Quantity::of(seed, "s"),
            Quantity::of(at(&curves[0], place), "s"),
            How::Formula,
        )
        .because(why)
    };
    let claims = vec![claim(2, 1.2, 0), claim(10, 10.8, last)];
    let chart = Chart {
        title: "Summing gradients by GPUs".to_owned(),
        across: AxisWords { words: "GPUs", scale: Scale::Whole, unit: "" },
        up: AxisWords { words: "time", scale: Scale::Even, unit: "s" },
        curves,
        marks: [(2.0, 1.2), (10.0, 10.8)]
            .map(|at| Mark { at, words: format!("the notes: {} s", at.1) })
            .to_vec(),
    };
    Ok((claims, chart))
}
