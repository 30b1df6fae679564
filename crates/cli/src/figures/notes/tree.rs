//! The example of a tree: every GPU sends its whole gradient to one of them.

use super::super::{
    figure::{ArticleClaim, AxisWords, Chart, Curve, How, Mark, Quantity},
    simulated::{ProvenOperation, ports_alone},
};
use super::inputs::NotesInputs;
use crate::{chart::Scale, failure::Failure};

/// GPUs and seconds of the notes.
const SAID: [(f64, f64); 2] = [(2.0, 1.2), (10.0, 10.8)];

/// The two delays, and times of an all-reduce by GPUs.
pub(super) fn example(inputs: &NotesInputs) -> Result<(Vec<ArticleClaim>, Chart), Failure> {
    let machines = ports_alone(inputs.notes_gb_per_s * 1e9);
    let curve = |name: &str, algorithm: &str| -> Result<Curve, Failure> {
        let seconds = |gpus: u32| {
            let took = ProvenOperation::all_reduce(algorithm, gpus, 0)?.took(inputs.bytes(), &machines)?;
            Ok((f64::from(gpus), took.seconds))
        };
        Ok(Curve::of(name, (2..=inputs.notes_gpus).map(seconds).collect::<Result<Vec<_>, Failure>>()?))
    };
    let curves = vec![
        curve("all send to one, and it answers", "star")?,
        curve("tree", "tree")?,
        curve("ring", "ring")?,
    ];
    let last = |curve: &Curve| curve.points.last().map_or(0.0, |point| point.at.1);
    let remark = format!(
        "This is not a tree: N-1 GPUs send to one in turn, so it takes N-1 times the time of a buffer. With {} GPUs a binomial tree takes {:.2} s, and a \
         ring {:.2} s.",
        inputs.notes_gpus,
        last(&curves[1]),
        last(&curves[2]),
    );
    let ours = [curves[0].points.first().map_or(0.0, |point| point.at.1), last(&curves[0])];
    let claims = SAID.iter().zip(ours).map(|((gpus, seconds), ours)| {
        let said = format!("Tree: 300 M parameters of 4 bytes at 1 GB/s delay {gpus} GPUs by {seconds} s");
        ArticleClaim::new(said, Quantity::of(*seconds, "s"), Quantity::of(ours, "s"), How::Formula)
            .because(&remark)
    });
    let claims = claims.collect();
    let chart = Chart {
        title: format!("An all-reduce of {} M floats by GPUs", inputs.notes_parameters),
        across: AxisWords { words: "GPUs", scale: Scale::Whole, unit: "" },
        up: AxisWords { words: "time", scale: Scale::Even, unit: "s" },
        curves,
        marks: SAID.map(|at| Mark { at, words: format!("the notes: {} s", at.1) }).to_vec(),
    };
    Ok((claims, chart))
}
