//! The traffic of training AlexNet: through one server, and with parameters spread over all GPUs.

use super::super::{
    figure::{ArticleClaim, AxisWords, Chart, Curve, How, Mark, Quantity},
    simulated::ProvenOperation,
};
use super::inputs::NotesInputs;
use crate::{chart::Scale, failure::Failure, training::find_model};
use herringbone::core::algorithm::cost::{Cost, Load};

/// GPUs of the curves.
const MOST_GPUS: u32 = 16;
/// Bits of a parameter.
const BITS: f64 = 32.0;

/// Buffers that a node sends and receives in an all-reduce.
fn both_ways(cost: &Cost, load: &Load) -> f64 {
    load.sent.buffers(cost.chunks, 1) + load.received.buffers(cost.chunks, 1)
}

/// The rates, and what a node moves by GPUs.
pub(super) fn rates(inputs: &NotesInputs) -> Result<(Vec<ArticleClaim>, Chart), Failure> {
    let gpus = inputs.notes_alexnet_gpus;
    let served = ProvenOperation::all_reduce("reduction_server", gpus, 1)?.cost();
    let shared = ProvenOperation::all_reduce("sharded", gpus, 0)?.cost();
    let each = inputs.notes_alexnet_parameters / inputs.notes_alexnet_seconds;
    let rate = |buffers: f64| Quantity::of(buffers * each, "M/s");
    let gbits = |buffers: f64| Quantity::of(buffers * each * BITS / 1e3, "Gbit/s");
    let (client, server) = (both_ways(&served, &served.worker), both_ways(&served, &served.reducer));
    let node = both_ways(&shared, &shared.worker);
    let moved = "The inputs differ from the notes: 8 GPUs, 61.5 M parameters, 0.25 s.";
    let is_the_notes =
        (gpus, inputs.notes_alexnet_parameters, inputs.notes_alexnet_seconds) == (8, 61.5, 0.25);
    let slip = match is_the_notes {
        true => "The notes' own product, 4 x 61.5 M / 0.25 s x 7/8, is 861 M/s, or 27.55 Gbit/s.",
        false => moved,
    };
    let formula = |said: &str, seed: Quantity, ours: Quantity| {
        ArticleClaim::new(format!("AlexNet: {said}"), seed, ours, How::Formula)
    };
    let claims = vec![
        formula("it has 61.5 M parameters", Quantity::of(61.5, "M"), Quantity::of(profiled()?, "M")),
        formula("a worker pushes and pulls 492 M parameters/s", Quantity::of(492.0, "M/s"), rate(client))
            .if_it_differs(moved),
        formula("which are 15.7 Gbit/s", Quantity::of(15.7, "Gbit/s"), gbits(client)).if_it_differs(moved),
        formula("one server moves 3,936 M parameters/s", Quantity::of(3936.0, "M/s"), rate(server))
            .if_it_differs(moved),
        formula("which are 125.9 Gbit/s", Quantity::of(125.9, "Gbit/s"), gbits(server)).if_it_differs(moved),
        formula("parameters over 8 GPUs: each moves 840 M/s", Quantity::of(840.0, "M/s"), rate(node))
            .because(slip),
        formula("which are 26 Gbit/s", Quantity::of(26.0, "Gbit/s"), gbits(node)).because(slip),
    ];
    let curve = |name: &str, algorithm: &str, load: fn(&Cost) -> &Load| {
        let moved = |gpus: u32| {
            let cost = ProvenOperation::all_reduce(algorithm, gpus, 1)?.cost();
            Ok((f64::from(gpus), both_ways(&cost, load(&cost)) * each * BITS * 1e6))
        };
        Ok::<_, Failure>(Curve::of(name, (2..=MOST_GPUS).map(moved).collect::<Result<Vec<_>, Failure>>()?))
    };
    let chart = Chart {
        title: "AlexNet: traffic of a node, by GPUs".to_owned(),
        across: AxisWords { words: "GPUs", scale: Scale::Whole, unit: "" },
        up: AxisWords { words: "both ways", scale: Scale::Even, unit: "bit/s" },
        curves: vec![
            curve("one server", "reduction_server", |cost| &cost.reducer)?,
            curve("parameters on all GPUs", "sharded", |cost| &cost.worker)?,
            curve("a worker with one server", "reduction_server", |cost| &cost.worker)?,
        ],
        marks: [(125.9e9, "125.9"), (26e9, "26")]
            .map(|(rate, words)| Mark { at: (8.0, rate), words: format!("the notes: {words} Gbit/s") })
            .to_vec(),
    };
    Ok((claims, chart))
}

/// Millions of parameters of AlexNet's profile.
fn profiled() -> Result<f64, Failure> {
    let model = find_model("alexnet")?;
    let bytes: u64 = model.profile.parameters().map(|parameter| parameter.bytes).sum();
    Ok(bytes as f64 / 4e6)
}
