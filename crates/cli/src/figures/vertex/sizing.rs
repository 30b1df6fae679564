//! How many reducers are enough: by the article's rule, and by simulation.

use super::super::{
    figure::{ArticleClaim, AxisWords, Chart, Curve, CurvePoint, How, Mark, Quantity},
    simulated::{ProvenOperation, unusable},
};
use super::inputs::VertexInputs;
use crate::{chart::Scale, failure::Failure, layout};
use herringbone::Collective;
use std::collections::BTreeMap;

/// Bytes of the all-reduce by which reducers are counted: a bucket.
const BUCKET: u64 = 25 << 20;
/// Reducers are enough if neither the rule's number nor twice as many would be faster by more than this factor.
const ENOUGH: f64 = 1.02;
/// The most reducers that are tried.
const MOST: u32 = 256;
/// Reducers of the article's example.
const EXAMPLE: u32 = 25;

/// All-reduces of a bucket among all hosts, by reducers, each simulated once.
struct Simulated<'a> {
    inputs: &'a VertexInputs,
    found: BTreeMap<u32, CurvePoint>,
}

impl Simulated<'_> {
    fn seconds(&mut self, reducers: u32) -> Result<f64, Failure> {
        if let Some(point) = self.found.get(&reducers) {
            return Ok(point.at.1);
        }
        let inputs = self.inputs;
        let hosts = layout::hosts(inputs.workers(), inputs.vertex_gpus);
        let operation = ProvenOperation::new(inputs.way(), Collective::AllReduce, hosts, reducers)?;
        let took = operation.took(BUCKET, &inputs.machines(inputs.vertex_gbps))?;
        let point = CurvePoint { at: (f64::from(reducers), took.seconds), is_price: took.is_price };
        self.found.insert(reducers, point);
        Ok(took.seconds)
    }

    /// The fewest reducers that are enough, if `most` are. Prices, unlike simulations, can rise with reducers, so the limit is that of the faster
    /// one of `most` and the rule's.
    fn enough(&mut self, rule: u32, most: u32) -> Result<u32, Failure> {
        let limit = ENOUGH * self.seconds(most)?.min(self.seconds(rule)?);
        let (mut few, mut many) = (0, most);
        while many - few > 1 {
            let middle = few.midpoint(many);
            match self.seconds(middle)? <= limit {
                true => many = middle,
                false => few = middle,
            }
        }
        Ok(many)
    }
}

/// The claims about the number of reducers, and the time of an all-reduce by reducers.
pub(super) fn sizing(inputs: &VertexInputs) -> Result<(Vec<ArticleClaim>, Chart), Failure> {
    let rule = (f64::from(inputs.vertex_hosts) * inputs.vertex_gbps / inputs.vertex_reducer_gbps).ceil();
    if rule > f64::from(MOST) {
        return Err(unusable(format_args!("these hosts need {rule} reducers, but at most {MOST} are tried")));
    }
    let most = (2.0 * rule).min(f64::from(MOST)) as u32;
    let mut simulated = Simulated { inputs, found: BTreeMap::new() };
    let enough = simulated.enough(rule as u32, most)?;
    for part in 1..=8 {
        simulated.seconds((most * part / 8).max(1))?;
    }
    let example = simulated.seconds(EXAMPLE)?;
    let count = |value| Quantity::of(value, "reducers");
    let claims = vec![
        ArticleClaim::new(
            "8 hosts of 100 Gbit/s need at least 25 reducers of 32 Gbit/s",
            count(f64::from(EXAMPLE)),
            count(f64::from(enough)),
            How::Formula,
        )
        .if_it_differs(format!("The rule (the rates of all hosts divided by a reducer's rate) gives {rule} for these inputs.")),
        ArticleClaim::new("The specification of a job has 14 reducers for 8 hosts", count(14.0), count(rule), How::Formula)
            .if_it_differs(
                "Ours follows the article's own rule. 14 reducers of 32 Gbit/s carry 448 Gbit/s, and the article does not state the rate of the \
                 specification's hosts with 4 GPUs.",
            ),
    ];
    let chart = Chart {
        title: format!("An all-reduce of 25 MiB by reducers, hosts of {} Gbit/s", inputs.vertex_gbps),
        across: AxisWords { words: "reducers", scale: Scale::Whole, unit: "" },
        up: AxisWords { words: "time", scale: Scale::Even, unit: "s" },
        curves: vec![Curve {
            name: format!("{} Gbit/s each", inputs.vertex_reducer_gbps),
            points: simulated.found.into_values().collect(),
        }],
        marks: vec![Mark { at: (f64::from(EXAMPLE), example), words: "the article's rule: 25".to_owned() }],
    };
    Ok((claims, chart))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        inputs: VertexInputs,
    }

    /// All-reduces of 128 GPUs have prices in place of simulations from 25 reducers on.
    #[test]
    fn prices_need_as_many_reducers_as_the_rule_says() {
        let line = <Line as clap::Parser>::try_parse_from(["vertex", "--vertex-hosts=16"]).unwrap();
        let (claims, chart) = sizing(&line.inputs).unwrap();
        assert!(chart.curves[0].points.iter().any(|point| point.is_price));
        let enough = claims[0].ours.value.unwrap();
        // Prices of 47 to 50 are nearly the same.
        assert!((47.0..=50.0).contains(&enough), "{enough}");
    }
}
