//! Bytes and steps, counted in schedules.

use super::super::{
    figure::{ArticleClaim, AxisWords, Chart, Curve, How, Quantity},
    simulated::ProvenOperation,
};
use super::inputs::VertexInputs;
use crate::{chart::Scale, failure::Failure};
use herringbone::core::schedule::{Chunk, Origin, Step};

/// Workers of the chart.
const WORKERS: [u32; 7] = [2, 4, 8, 16, 32, 64, 128];

/// The claims about bytes and steps, and steps over workers.
pub(super) fn counted(inputs: &VertexInputs) -> Result<(Vec<ArticleClaim>, Chart), Failure> {
    let (workers, reducers) = (inputs.vertex_diagram_workers, inputs.vertex_diagram_reducers);
    let mut claims = bytes(workers, reducers, inputs.workers())?;
    claims.push(sum_of_worker_1(workers)?);
    claims.extend(steps(workers, reducers)?);
    let curve = |name: &str, algorithm: &str| {
        let rounds = |workers: u32| {
            Ok((
                f64::from(workers),
                f64::from(ProvenOperation::all_reduce(algorithm, workers, reducers)?.cost().rounds),
            ))
        };
        let points = WORKERS.into_iter().map(rounds).collect::<Result<Vec<_>, Failure>>()?;
        Ok::<_, Failure>(Curve::of(name, points))
    };
    let chart = Chart {
        title: "Steps of an all-reduce by workers".to_owned(),
        across: AxisWords { words: "workers", scale: Scale::Factors, unit: "" },
        up: AxisWords { words: "steps", scale: Scale::Factors, unit: "" },
        curves: vec![
            curve("ring", "ring")?,
            curve("tree", "tree")?,
            curve("reduction server", "reduction_server")?,
        ],
        marks: Vec::new(),
    };
    Ok((claims, chart))
}

fn bytes(workers: u32, reducers: u32, many: u32) -> Result<Vec<ArticleClaim>, Failure> {
    let ring = ProvenOperation::all_reduce("ring", workers, 0)?.cost();
    let server = ProvenOperation::all_reduce("reduction_server", workers, reducers)?.cost();
    let ring_of_many = ProvenOperation::all_reduce("ring", many, 0)?.cost();
    let buffers = |value: f64| Quantity::of(value, "K");
    let n = f64::from(workers);
    let (of_worker, of_reducer) =
        (server.worker.sent.buffers(server.chunks, 1), server.reducer.sent.buffers(server.chunks, 1));
    let ratio = of_worker / ring_of_many.worker.sent.buffers(ring_of_many.chunks, 1);
    let tree = ProvenOperation::all_reduce("tree", many, 0)?.cost();
    let of_tree = tree.messages as f64 / f64::from(tree.chunks) / f64::from(many);
    let part = "The fraction is N/(2(N-1)), which approaches a half only for many workers.";
    Ok(vec![
        ArticleClaim::new(
            format!("Ring of {workers} workers: each sends 2(N-1) blocks"),
            Quantity::of(2.0 * (n - 1.0), "blocks"),
            Quantity::of(f64::from(ring.worker.sent.count()), "blocks"),
            How::Formula,
        ),
        ArticleClaim::new(
            format!("Ring of {workers} workers: each sends 2(N-1)/N K bytes"),
            buffers(2.0 * (n - 1.0) / n),
            buffers(ring.worker.sent.buffers(ring.chunks, 1)),
            How::Formula,
        ),
        ArticleClaim::new(
            format!("{workers} workers and {reducers} reducers: each worker sends and receives K bytes"),
            buffers(1.0),
            buffers(of_worker),
            How::Formula,
        ),
        ArticleClaim::new(
            format!("{workers} workers and {reducers} reducers: so does each other node, a reducer"),
            buffers(1.0),
            buffers(of_reducer),
            How::Formula,
        )
        .if_it_differs("A reducer sends and receives N/M K, because it folds one of M blocks for N workers. That is K only if M = N."),
        ArticleClaim::new(
            format!("That is almost half the data of a ring, here of {many} workers"),
            Quantity::of(0.5, "of the ring's"),
            Quantity::of(ratio, "of the ring's"),
            How::Formula,
        )
        .if_it_differs(part),
        ArticleClaim::new(
            format!("And of a tree, here of {many} workers"),
            Quantity::of(0.5, "of the tree's"),
            Quantity::of(of_worker / of_tree, "of the tree's"),
            How::Formula,
        )
        .because(format!("Relative to the average rank of a tree; leaves send K, and the root of a binomial tree up to log2(N) K. {part}")),
    ])
}

/// The sum with which worker 1 begins the all-gather.
fn sum_of_worker_1(workers: u32) -> Result<ArticleClaim, Failure> {
    let ring = ProvenOperation::all_reduce("ring", workers, 0)?;
    let folds = |rank: u32, wanted: Option<Chunk>| {
        let program = ring.verified.schedule().program(rank);
        program.steps().iter().find_map(|step| match *step {
            Step::Fold { chunk, from, finish, .. } if wanted.map_or(finish, |wanted| wanted == chunk) => {
                let mut lanes = program.sources(from).iter().filter_map(|source| match source.from {
                    Origin::Head { lane, .. } => Some(lane),
                    Origin::At(_) => None,
                });
                Some((chunk, lanes.next_back()?))
            }
            _ => None,
        })
    };
    let (mut terms, mut rank, mut chunk) = (vec![1], 1, None);
    while let Some((of, from)) = folds(rank, chunk) {
        (rank, chunk) = (from, Some(of));
        terms.push(from);
    }
    let letter = char::from(b'a' + chunk.unwrap_or_default() as u8);
    let ours = terms.iter().map(|term| format!("{letter}{term}")).collect::<Vec<_>>().join("+");
    Ok(ArticleClaim::new(
        "Worker 1 begins the all-gather with the block c1+c0+c3+c4",
        Quantity::words("c1+c0+c3+c4"),
        Quantity::words(ours),
        How::Formula,
    )
    .if_it_differs("An error in the article: four workers are 0 to 3, so worker 4 does not exist."))
}

fn steps(workers: u32, reducers: u32) -> Result<Vec<ArticleClaim>, Failure> {
    let rounds = |algorithm: &str, workers: u32| {
        Ok::<_, Failure>(f64::from(ProvenOperation::all_reduce(algorithm, workers, reducers)?.cost().rounds))
    };
    let steps = |value: f64| Quantity::of(value, "steps");
    let times = |value: f64| Quantity::of(value, "times");
    let n = f64::from(workers);
    let many = 64;
    Ok(vec![
        ArticleClaim::new(
            format!("Ring of {workers} workers: N-1 exchanges to reduce, and N-1 to gather"),
            steps(2.0 * (n - 1.0)),
            steps(rounds("ring", workers)?),
            How::Formula,
        ),
        ArticleClaim::new(
            format!("{workers} workers and {reducers} reducers: blocks go to reducers, and sums come back"),
            steps(2.0),
            steps(rounds("reduction_server", workers)?),
            How::Formula,
        ),
        ArticleClaim::new(
            "The ring's latency is linear in workers: 128 instead of 64 double it",
            times(2.0),
            times(rounds("ring", 2 * many)? / rounds("ring", many)?),
            How::Formula,
        ),
        ArticleClaim::new(
            "A tree's latency is logarithmic: 64 workers instead of 8, the square, double it",
            times(2.0),
            times(rounds("tree", many)? / rounds("tree", 8)?),
            How::Formula,
        ),
        ArticleClaim::new(
            "The reduction server's latency does not depend on workers: 128 instead of 64 keep it",
            times(1.0),
            times(rounds("reduction_server", 2 * many)? / rounds("reduction_server", many)?),
            How::Formula,
        ),
    ])
}
