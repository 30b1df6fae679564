//! MXNet's proposal of trees that follow the links of a machine: its Table 1, and when many trees are better than one.

mod inputs;
mod machine;
mod results;
mod sums;

pub(super) use inputs::TreesInputs;

use super::figure::{ArticleClaim, AxisWords, Chart, Curve, Figure, FittedConstant, How, Quantity};
use crate::{
    chart::{Scale, si},
    failure::Failure,
};
use herringbone::core::simulate::{Picoseconds, SECOND};
use results::{CALLS, FITTED_TO, ModelSteps, PushedKeys, SeedModel, TreesResults, first_of_many};
use sums::PushPullWay;

/// Elements of a key that is large.
const MILLION: u64 = 1_000_000;

/// The figure.
///
/// # Errors
/// If inputs leave nothing to simulate.
pub(super) fn figure(inputs: &TreesInputs) -> Result<Figure, Failure> {
    let results = TreesResults::of(inputs)?;
    let mut claims = table(&results, inputs);
    claims.extend(server_or_nccl(&results, inputs));
    claims.extend(crossings(&results));
    claims.extend([alone(&results), many_calls(&results), rounds(&results), copies(&results)]);
    claims.extend(keys(&results));
    Ok(Figure {
        name: "trees",
        title: "Trees that follow the links of a machine",
        source: "\"Single machine All Reduce Topology-aware Communication\", a design proposal of Apache MXNet, 2018",
        about: "Keys are pushed and pulled on the 8 GPUs of a p3.16xlarge. The ways are our trees in MXNet's mode, a server on a GPU that \
                depends on the key, and a ring. A step is that of simulate-training with a key for each parameter."
            .to_owned(),
        inputs: inputs.listed(),
        fitted: results.is_fitted.then(|| fitted(&results)),
        claims,
        charts: charts(&results),
    })
}

fn fitted(results: &TreesResults) -> FittedConstant {
    let found = results.steps[0].over_nccl();
    let to = match (found / FITTED_TO - 1.0).abs() < 0.01 {
        true => format!("ResNet-50 is {FITTED_TO} times as fast with trees as with NCCL"),
        false => format!(
            "ResNet-50 is {found:.2} times as fast with trees as with NCCL, the nearest to {FITTED_TO} at any cost"
        ),
    };
    FittedConstant {
        constant: "the cost of a message for the GPU that sends it".to_owned(),
        value: Quantity::of(1e6 * seconds(results.message), "us"),
        to,
    }
}

/// Table 1.
fn table(results: &TreesResults, inputs: &TreesInputs) -> Vec<ArticleClaim> {
    let mut claims = Vec::new();
    for steps in &results.steps {
        let SeedModel { title, over_server, over_nccl, why_server, why_nccl, .. } = *steps.seed;
        let said = |other: &str| format!("Table 1, {title}: speed-up over {other} at small batches");
        let ours = |times: f64| Quantity::of((100.0 * times).round() / 100.0, "");
        let took = |other: &str, time| {
            format!(
                "Ours takes {} with trees and {} with {other}.",
                si(seconds(steps.trees), "s"),
                si(seconds(time), "s")
            )
        };
        claims.push(
            ArticleClaim::new(
                said("the parameter server"),
                Quantity::of(over_server, ""),
                ours(steps.over_server()),
                How::Predicted,
            )
            .if_it_differs(format!(
                "{} {}",
                took("the server", steps.server),
                why_server(inputs)
            )),
        );
        let is_fitted = results.is_fitted && steps.seed.is_baseline();
        let how = if is_fitted { How::Fitted } else { How::Predicted };
        claims.push(
            ArticleClaim::new(said("NCCL"), Quantity::of(over_nccl, ""), ours(steps.over_nccl()), how)
                .because(format!("{} {}", took("NCCL", steps.nccl), why_nccl(inputs))),
        );
    }
    claims
}

/// Which of the two is faster from end to end: the server with many small keys, NCCL with few large ones.
fn server_or_nccl(results: &TreesResults, inputs: &TreesInputs) -> Vec<ArticleClaim> {
    let claim = |steps: &ModelSteps| {
        let (keys, said) = match steps.keys_are_small() {
            true => ("many small keys", "faster"),
            false => ("few keys", "slower"),
        };
        ArticleClaim::new(
            format!("{}, of {keys}: the parameter server is {said} than NCCL", steps.seed.title),
            Quantity::words(said),
            Quantity::words(steps.server_beside_nccl()),
            How::Predicted,
        )
        .if_it_differs(format!(
            "Ours takes {} with the server and {} with NCCL. {}",
            si(seconds(steps.server), "s"),
            si(seconds(steps.nccl), "s"),
            results::shared(inputs)
        ))
    };
    results.steps.iter().map(claim).collect()
}

/// The size from which many trees are faster.
fn crossings(results: &TreesResults) -> [ArticleClaim; 3] {
    const SAID: &str = "beyond 1 M to 10 M floats many trees do better than one";
    let range = "from 1 M to 10 M floats upwards";
    let claim = |of: &str, from: Option<u64>, why: &str| {
        let ours = match from {
            Some(from) if (MILLION..=10 * MILLION).contains(&from) => range.to_owned(),
            Some(from) => format!("from {} upwards", millions(from)),
            None => "at no size".to_owned(),
        };
        ArticleClaim::new(
            format!("{of}: {SAID}"),
            Quantity::words(range),
            Quantity::words(ours),
            How::Predicted,
        )
        .because(why)
    };
    let bound = results.best_bound().bound;
    let one = first_of_many(results.sizes.iter().map(|point| (point.elements, &point.times)));
    let many = first_of_many(results.many.iter().map(|point| (point.elements, &point.times)));
    let price = match results.is_fitted {
        true => "is cheap here, because its cost is fitted to ResNet-50".to_owned(),
        false => format!("costs {} here", si(seconds(results.message), "s")),
    };
    let cheap = format!(
        "Many trees have eight times the messages of one, and a message {price}. In MXNet's engine each copy and each sum is an operation."
    );
    [
        claim(
            "VGG-16 with 4 images (Figure 7a)",
            Some(bound),
            &format!(
                "The largest bound whose step is within 1 % of the best is {}. Smaller ones are as good.",
                millions(bound)
            ),
        ),
        claim("One push-pull (7b)", one, &cheap),
        claim(&format!("{CALLS} push-pulls (7c)"), many, &cheap),
    ]
}

/// One push-pull.
fn alone(results: &TreesResults) -> ArticleClaim {
    let fastest: Vec<bool> = results.sizes.iter().map(results::SizePoint::nccl_is_fastest).collect();
    let first = fastest.iter().rposition(|is_fastest| !is_fastest).map_or(0, |at| at + 1);
    let ours = match results.sizes.get(first) {
        Some(_) if first == 0 => "the fastest".to_owned(),
        Some(point) => format!("the fastest from {} upwards", millions(point.elements)),
        None => "not the fastest".to_owned(),
    };
    ArticleClaim::new("NCCL is clearly the best for one push-pull alone", Quantity::words("the fastest"), Quantity::words(ours), How::Predicted)
        .because(
            "Here each of NCCL's hops costs a message, and a ring of 8 GPUs has 14. In a kernel that runs on all GPUs a hop is cheaper than a copy.",
        )
}

/// Many push-pulls.
fn many_calls(results: &TreesResults) -> ArticleClaim {
    let is_slower = |[_, _, server, nccl]: &[Picoseconds; 4]| nccl > server;
    let last = results.many.iter().take_while(|point| is_slower(&point.times)).last();
    let (ours, found) = match last {
        Some(point) => ("slower for small messages", format!("up to {}", millions(point.elements))),
        None => ("faster", "at no size".to_owned()),
    };
    ArticleClaim::new(
        format!(
            "In a sequence of {CALLS} push-pulls NCCL is slower than the parameter server for small messages"
        ),
        Quantity::words("slower for small messages"),
        Quantity::words(ours),
        How::Predicted,
    )
    .because(format!(
        "Ours is slower {found}. NCCL's operations run one by one, and the parameter server's run together."
    ))
}

/// The steps of a tree.
fn rounds(results: &TreesResults) -> ArticleClaim {
    ArticleClaim::new(
        "A reduce over one tree of 8 GPUs takes 3 steps",
        Quantity::of(3.0, "steps"),
        Quantity::of(f64::from(results.rounds) / 2.0, "steps"),
        How::Formula,
    )
    .if_it_differs(
        "This is half the longest chain of messages in the schedule, which reduces and broadcasts.",
    )
}

/// Copies into temporary buffers.
fn copies(results: &TreesResults) -> ArticleClaim {
    let parts = || results.steps.iter().map(|steps| 100.0 * steps.copied());
    let (least, most) = (parts().fold(f64::MAX, f64::min), parts().fold(0.0, f64::max));
    ArticleClaim::new(
        "An extra write in the reduce and one in the broadcast take less than 1 % of the runtime",
        Quantity::words("less than 1 %"),
        Quantity::words(if most < 1.0 { "less than 1 %".to_owned() } else { format!("{least:.1} to {most:.1} %") }),
        How::Formula,
    )
    .because("These are two copies of all keys at half of a V100's 900 GB/s, relative to the short steps of Table 1. Other work can hide them.")
}

/// What models push.
fn keys(results: &TreesResults) -> Vec<ArticleClaim> {
    let said = |is_small: bool| match is_small {
        true => "needs over 157 push-pulls on keys that do not exceed 2 M floats",
        false => "needs fewer than 32 push-pulls on keys that exceed 10 M floats",
    };
    let claim = |steps: &ModelSteps| {
        let PushedKeys { count, largest, beyond, above, .. } = steps.keys;
        let is_small = steps.keys_are_small();
        let seed = if is_small { "over 157, at most 2 M" } else { "fewer than 32, above 10 M" };
        let ours = match is_small {
            true => format!("{count}, at most {}", millions(largest)),
            false => format!("{count}, {above} of them above 10 M"),
        };
        let counted = match is_small {
            true => format!("Counted in the published model's profile, with a key for each parameter; {beyond} exceed 2 M."),
            false => {
                "Counted in the profile: only the largest layers exceed 10 M. The article reads as if all layers did.".to_owned()
            }
        };
        let slip = match steps.seed.model {
            "inception-v3" => " The sentence has Inception-48, but Table 1 has Inception-v3.",
            "vgg16" => " 32 are not fewer than 32.",
            _ => "",
        };
        let why = counted + slip;
        ArticleClaim::new(
            format!("{} {}", steps.seed.title, said(is_small)),
            Quantity::words(seed),
            Quantity::words(ours),
            How::Formula,
        )
        .because(why)
    };
    results.steps.iter().map(claim).collect()
}

fn charts(results: &TreesResults) -> Vec<Chart> {
    let across = AxisWords { words: "float32 elements of a key", scale: Scale::Factors, unit: "" };
    let up = AxisWords { words: "time", scale: Scale::Factors, unit: "s" };
    let curves = |points: &[(u64, [Picoseconds; 4])]| {
        let curve = |(place, way): (usize, &PushPullWay)| {
            Curve::of(
                way.name(),
                points.iter().map(|(elements, times)| (*elements as f64, seconds(times[place]))),
            )
        };
        PushPullWay::ALL.iter().enumerate().map(curve).collect()
    };
    let one: Vec<_> = results.sizes.iter().map(|point| (point.elements, point.times)).collect();
    let many: Vec<_> = results.many.iter().map(|point| (point.elements, point.times)).collect();
    let bounds = results.bounds.iter().map(|point| (point.bound as f64, seconds(point.time)));
    vec![
        Chart { title: "One push-pull".to_owned(), across, up, curves: curves(&one), marks: Vec::new() },
        Chart {
            title: format!("{CALLS} push-pulls in a sequence"),
            across,
            up,
            curves: curves(&many),
            marks: Vec::new(),
        },
        Chart {
            title: "A step of VGG-16 by the bound between one tree and many".to_owned(),
            across: AxisWords { words: "float32 elements above which many trees carry a key", ..across },
            up: AxisWords { scale: Scale::Even, ..up },
            curves: vec![Curve::of("trees", bounds)],
            marks: Vec::new(),
        },
    ]
}

fn seconds(time: Picoseconds) -> f64 {
    time as f64 / SECOND as f64
}

/// A number of elements in millions, as the text has them.
fn millions(elements: u64) -> String {
    format!("{} M floats", si(elements as f64 / 1e6, ""))
}

#[cfg(test)]
mod tests;
