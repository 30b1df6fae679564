//! Memory against operations in flight: concurrent tasks hide latency, and need regions of their own.

use super::super::{
    figure::{ArticleClaim, AxisWords, Chart, Curve, How, Quantity},
    simulated::{ProvenOperation, SimulatedCalls},
};
use super::inputs::NotesInputs;
use crate::{chart::Scale, failure::Failure};
use herringbone::core::{
    schedule::Step,
    simulate::{Calibration, SECOND},
};
use std::collections::BTreeSet;

/// The all-reduces: their number, buffers and ranks.
const OPERATIONS: u32 = 32;
const BYTES: u64 = 256 << 10;
const RANKS: u32 = 8;
/// In flight, of the curves.
const COUNTS: [u32; 5] = [1, 2, 4, 8, 16];
/// The conclusion of the notes: pipelines hide latency, and concurrent tasks need regions that do not overlap.
const SAID: &str = "less time, more memory";

/// The claims about memory, and time and memory by operations in flight.
pub(super) fn in_flight(inputs: &NotesInputs) -> Result<(Vec<ArticleClaim>, Chart), Failure> {
    let ring = ProvenOperation::all_reduce("ring", RANKS, 0)?;
    let measured = |at_once: u32| {
        let calls = SimulatedCalls { bytes: BYTES, operations: OPERATIONS, at_once, segment_bytes: 0 };
        let simulated = ring.calls(&calls, &Calibration::DEFAULT)?;
        // Each operation in flight has staging memory of its own.
        let bytes = simulated.staged as f64 * f64::from(at_once);
        Ok::<_, Failure>((simulated.total() as f64 / SECOND as f64, bytes))
    };
    let (alone, alone_bytes) = measured(1)?;
    let counts = BTreeSet::from_iter(COUNTS.into_iter().chain([inputs.notes_in_flight]));
    let (mut times, mut memory) = (Vec::new(), Vec::new());
    for count in counts {
        let (seconds, bytes) = measured(count)?;
        times.push((f64::from(count), seconds / alone));
        memory.push((f64::from(count), bytes / alone_bytes));
    }
    let asked = |points: &[(f64, f64)]| {
        let found = points.iter().find(|point| point.0 == f64::from(inputs.notes_in_flight));
        found.map_or(1.0, |point| point.1)
    };
    let (time, more) = (asked(&times), asked(&memory));
    let word = |factor: f64, what: &str| format!("{} {what}", if factor < 1.0 { "less" } else { "more" });
    let claims = vec![
        ArticleClaim::new(
            "Pipelines hide latency; concurrent tasks need regions that do not overlap",
            Quantity::words(SAID),
            Quantity::words(format!("{}, {}", word(time, "time"), word(more, "memory"))),
            How::Predicted,
        )
        .because(format!(
            "{OPERATIONS} all-reduces of 256 KiB on {RANKS} ranks, {} in flight, take {time:.2} of the time and {more:.0} times the staging memory \
             of one by one.",
            inputs.notes_in_flight
        )),
        sharing(inputs.notes_ring)?,
    ];
    let chart = Chart {
        title: "All-reduces of 256 KiB by operations in flight".to_owned(),
        across: AxisWords { words: "in flight", scale: Scale::Factors, unit: "" },
        up: AxisWords { words: "relative to one by one", scale: Scale::Factors, unit: "" },
        curves: vec![Curve::of("staging memory", memory), Curve::of("time", times)],
        marks: Vec::new(),
    };
    Ok((claims, chart))
}

/// Sharing memory of values that are no longer needed: the ring's partial sums.
fn sharing(gpus: u32) -> Result<ArticleClaim, Failure> {
    let ring = ProvenOperation::all_reduce("ring", gpus, 0)?;
    let program = ring.verified.schedule().program(0);
    let sums = program.steps().iter().filter(|step| matches!(step, Step::Fold { finish: false, .. })).count();
    let slots = program.slots().len();
    let ours = if slots < sums { "shared" } else { "not shared" };
    Ok(ArticleClaim::new(
        "Sharing reuses memory that is no longer needed",
        Quantity::words("shared"),
        Quantity::words(ours),
        How::Formula,
    )
    .because(format!("A ring of {gpus} makes {sums} partial sums on each rank, in {slots} places.")))
}
