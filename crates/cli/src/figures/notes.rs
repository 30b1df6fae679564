//! The notes on deep-learning systems: the ring of five, trees and chains, AlexNet, and memory against operations in flight.

mod alexnet;
mod chain;
mod inputs;
mod memory;
mod ring;
mod tree;

pub(super) use inputs::NotesInputs;

use super::figure::Figure;
use crate::failure::Failure;

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
        about: "Bytes and rounds are counted in proven schedules. Times are simulated on machines where only ports cost time, except \
                for memory, where machines have default costs."
            .to_owned(),
        inputs: inputs.listed(),
        fitted: None,
        claims,
        charts,
    })
}
