//! Fairring: a training of 1.37 B parameters and three microbenchmarks, against NCCL.

mod claims;
mod inputs;
mod machines;
mod results;

pub(super) use inputs::FairringInputs;

use super::figure::{AxisWords, Chart, Curve, Figure, FittedConstant, Mark, Quantity};
use crate::{chart::Scale, failure::Failure};
use herringbone::core::simulate::{Picoseconds, SECOND};
use results::{Both, FairringPoint, FairringResults};

/// The figure.
///
/// # Errors
/// If inputs leave nothing to simulate.
pub(super) fn figure(inputs: &FairringInputs) -> Result<Figure, Failure> {
    let results = FairringResults::of(inputs)?;
    Ok(Figure {
        name: "fairring",
        title: "Fairring against NCCL",
        source: "\"Fairring (FAIR + Herring): a faster all-reduce\", README of facebookresearch/fairring, 2021",
        about: "Fairring is radix(GPUs, machines) with concurrent slices; NCCL is the faster of ring and double_tree, one operation at a time. \
                A step is that of simulate-training for transformer-1.37b, and efficiency is relative to NCCL on 8 GPUs. Messages of the engine have at most 1 MiB."
            .to_owned(),
        inputs: inputs.listed(),
        fitted: results.is_fitted.then(|| FittedConstant {
            constant: "the cost of a message between machines for a GPU at either end".to_owned(),
            value: Quantity::of(1e6 * seconds(results.message), "us"),
            to: claims::fitted_to(&results),
        }),
        claims: claims::claims(inputs, &results)?,
        charts: charts(inputs, &results),
    })
}

fn charts(inputs: &FairringInputs, results: &FairringResults) -> Vec<Chart> {
    let gpus = AxisWords { words: "GPUs", scale: Scale::Factors, unit: "" };
    let time = AxisWords { words: "time", scale: Scale::Even, unit: "s" };
    let efficiency = |name: &str, of: fn(Both<f64>) -> f64| {
        Curve::of(
            name,
            inputs.all_gpus().iter().map(|gpus| (f64::from(*gpus), 100.0 * of(results.efficiency(*gpus)))),
        )
    };
    let both = |points: &[FairringPoint]| {
        let curve = |name: &str, of: fn(Both<Picoseconds>) -> Picoseconds| {
            Curve::of(name, points.iter().map(|point| (f64::from(point.at), seconds(of(point.time)))))
        };
        vec![curve("NCCL", |time| time.nccl), curve("Fairring", |time| time.fairring)]
    };
    let mark = |gpus: f64, percent: f64, words: &str| Mark { at: (gpus, percent), words: words.to_owned() };
    let mut scaling = both(&results.scaling);
    let mut grown = both(&results.grown);
    for (curve, name) in grown.iter_mut().zip(["NCCL, growing buckets", "Fairring, growing buckets"]) {
        name.clone_into(&mut curve.name);
        per_byte(curve, inputs, results);
    }
    scaling.extend(grown);
    vec![
        Chart {
            title: "A training of 1.37 B parameters".to_owned(),
            across: gpus,
            up: AxisWords {
                words: "words/s of a GPU, % of one of 8 GPUs with NCCL",
                scale: Scale::Even,
                unit: "",
            },
            curves: vec![efficiency("NCCL", |both| both.nccl), efficiency("Fairring", |both| both.fairring)],
            marks: vec![
                mark(16.0, 68.0, "NCCL, 68 %"),
                mark(32.0, 90.0, "Fairring, 90 %"),
                mark(64.0, 72.0, "Fairring, 72 %"),
            ],
        },
        Chart {
            title: format!("One tensor on {} machines", results::BENCHED),
            across: AxisWords { words: "MiB", scale: Scale::Factors, unit: "" },
            up: time,
            curves: both(&results.sizes),
            marks: Vec::new(),
        },
        Chart {
            title: format!(
                "{} buckets of {} MiB on {} machines",
                inputs.buckets,
                inputs.slice_mib,
                results::BENCHED
            ),
            across: AxisWords { words: "slices in flight", scale: Scale::Factors, unit: "" },
            up: time,
            curves: both(&results.in_flight),
            marks: Vec::new(),
        },
        Chart {
            title: format!(
                "{} buckets of {} MiB; growing ones per {} MiB",
                inputs.buckets, inputs.slice_mib, inputs.slice_mib
            ),
            across: gpus,
            up: time,
            curves: scaling,
            marks: Vec::new(),
        },
    ]
}

/// Divides times of growing buckets by their growth, to compare them with times of constant buckets.
fn per_byte(curve: &mut Curve, inputs: &FairringInputs, results: &FairringResults) {
    for (point, grown) in curve.points.iter_mut().zip(&results.grown) {
        point.at.1 /= f64::from(results::times_grown(grown.at / inputs.gpus));
    }
}

fn seconds(time: Picoseconds) -> f64 {
    time as f64 / SECOND as f64
}

#[cfg(test)]
mod tests;
