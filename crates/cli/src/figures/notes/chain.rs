//! A chain of nodes that passes data on, whole or in pieces.

use super::super::{
    figure::{ArticleClaim, AxisWords, Chart, Curve, How, Quantity},
    simulated::{ProvenOperation, SimulatedCalls, ports_alone},
};
use super::inputs::NotesInputs;
use crate::{chart::Scale, failure::Failure, layout};
use herringbone::{Collective, core::simulate::SECOND};

/// Bytes of a piece in simulations: the least segment of a chain.
const PIECE: usize = 32 << 10;
/// Pieces of the curve.
const PIECES: [u32; 10] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];

/// The formulas, whole and split, and time by pieces.
pub(super) fn pieces(inputs: &NotesInputs) -> Result<(Vec<ArticleClaim>, Chart), Failure> {
    let hosts = layout::hosts(inputs.notes_chain, 1);
    let chain = ProvenOperation::new("chain", Collective::Broadcast { root: 0 }, hosts, 0)?;
    let alone = inputs.bytes() as f64 / (inputs.notes_gb_per_s * 1e9);
    // Only ports cost time, so pieces of another length on ports that carry all of them in the same time take as long.
    let seconds = |pieces: u32| {
        let bytes = PIECE as u64 * u64::from(pieces);
        let calls = SimulatedCalls { bytes, operations: 1, at_once: 1, segment_bytes: PIECE };
        Ok::<_, Failure>(
            chain.calls(&calls, &ports_alone(bytes as f64 / alone))?.total() as f64 / SECOND as f64,
        )
    };
    let k = f64::from(inputs.notes_chain);
    let formula = |pieces: f64| alone * (pieces + k - 2.0) / pieces;
    let time = |value| Quantity::of(value, "s");
    let (nodes, split) = (inputs.notes_chain, inputs.notes_pieces);
    let claims = vec![
        ArticleClaim::new(
            format!("A chain of K = {nodes} nodes passes N bytes on at B in (K-1) N/B"),
            time((k - 1.0) * alone),
            time(seconds(1)?),
            How::Formula,
        ),
        ArticleClaim::new(
            format!("Split into S = {split} pieces, it takes N (S+K-2)/(S B)"),
            time(formula(f64::from(split))),
            time(seconds(split)?),
            How::Formula,
        ),
        ArticleClaim::new(
            "That comes to N/B if S is much larger than K",
            time(alone),
            time(seconds(1000)?),
            How::Formula,
        )
        .if_it_differs("Ours is simulated with 1,000 pieces, which are too few for this many nodes."),
    ];
    let simulated = PIECES.iter().map(|pieces| Ok((f64::from(*pieces), seconds(*pieces)?)));
    let chart = Chart {
        title: format!("A chain of {nodes} nodes by pieces"),
        across: AxisWords { words: "pieces", scale: Scale::Factors, unit: "" },
        up: AxisWords { words: "time", scale: Scale::Even, unit: "s" },
        curves: vec![
            Curve::of("simulated", simulated.collect::<Result<Vec<_>, Failure>>()?),
            Curve::of(
                "the notes' formula",
                PIECES.map(|pieces| (f64::from(pieces), formula(f64::from(pieces)))),
            ),
        ],
        marks: Vec::new(),
    };
    Ok((claims, chart))
}

#[cfg(test)]
mod tests {
    use crate::figures::tests::figures;

    #[test]
    fn a_simulated_chain_takes_what_the_formula_says() {
        let args = ["--only=notes", "--notes-gpus=2", "--notes-parameters=250"];
        for (nodes, pieces, seconds) in [("7", "13", 18.0 / 13.0), ("2", "1", 1.0), ("16", "100", 1.14)] {
            let asked = [&args[..], &["--notes-chain", nodes, "--notes-pieces", pieces]].concat();
            let figure = figures(&asked).remove(0);
            let split = figure.claims.iter().find(|claim| claim.said.starts_with("Split into")).unwrap();
            assert!((split.seed.value.unwrap() - seconds).abs() < 1e-9 && split.agrees(), "{split:?}");
        }
    }
}
