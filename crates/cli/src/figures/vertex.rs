//! Google's article on the Reduction Server of Vertex AI: bytes, steps, the rule for reducers, and a training of BERT.

mod counted;
mod inputs;
mod sizing;

pub(super) use inputs::VertexInputs;

use super::{
    figure::{
        ArticleClaim, AxisWords, Chart, Curve, CurvePoint, Figure, FittedConstant, How, Mark, Quantity,
    },
    simulated::Took,
    trained::{Training, fitted, machines},
};
use crate::{
    chart::Scale,
    failure::Failure,
    training::{SumCosts, TrainedStep},
};

/// The article's steps per second without reducers, to which the hosts' rate is fitted, and with them.
const WITHOUT: f64 = 0.4;
const WITH: f64 = 0.7;
/// Reducers of the curves.
const REDUCERS: [u32; 7] = [1, 2, 3, 4, 8, 20, 32];
/// Reducers of the curve of GPUs that send by themselves.
const FEWER_REDUCERS: [u32; 4] = [1, 2, 8, 32];

/// The figure.
///
/// # Errors
/// If inputs leave nothing to simulate, or no rate of hosts brings the article's baseline about.
pub(super) fn figure(inputs: &VertexInputs) -> Result<Figure, Failure> {
    let (mut claims, steps_chart) = counted::counted(inputs)?;
    let (sizing_claims, sizing_chart) = sizing::sizing(inputs)?;
    let trained = BertTraining::of(inputs)?;
    claims.extend(sizing_claims);
    claims.extend(trained.claims(inputs)?);
    Ok(Figure {
        name: "vertex",
        title: "Reduction Server of Vertex AI: steps per second by reducers",
        source: "\"Optimize training performance with Reduction Server on Vertex AI\", Google Cloud, August 2021",
        about: format!(
            "{} hosts with {} GPUs train {} with {} samples per GPU; the article gives neither BERT's size nor the batch. Without reducers \
             all GPUs form a ring; with reducers, the GPUs of a host sum first. Additions and traffic within a host take no time.",
            inputs.vertex_hosts, inputs.vertex_gpus, inputs.vertex_model, inputs.vertex_batch
        ),
        inputs: inputs.listed(),
        fitted: Some(FittedConstant {
            constant: format!("the rate of a host's port, sold as {} Gbit/s,", inputs.vertex_gbps),
            value: Quantity::of(trained.gbps, "Gbit/s"),
            to: format!("training with the ring makes {WITHOUT} steps/s"),
        }),
        claims,
        charts: vec![trained.chart(inputs)?, sizing_chart, steps_chart],
    })
}

/// The training of BERT.
struct BertTraining {
    worker: TrainedStep,
    /// The fitted rate of a host's port.
    gbps: f64,
    ring: f64,
    reduced: f64,
}

fn per_second(took: Took) -> f64 {
    1.0 / took.seconds
}

impl BertTraining {
    fn of(inputs: &VertexInputs) -> Result<Self, Failure> {
        let worker = inputs.worker(None)?;
        let ring = Training { worker: &worker, workers: inputs.workers(), way: "ring" };
        let on =
            |seconds_of_gbit: f64| machines(inputs.machines(1.0 / seconds_of_gbit), inputs.vertex_gpus, None);
        let slowness =
            fitted("rate of hosts", 1.0 / WITHOUT, 0.1, |slowness| Ok(ring.step_on(&on(slowness))?.seconds))?;
        let ring = per_second(ring.step_on(&on(slowness))?);
        let gbps = 1.0 / slowness;
        let reduced = per_second(reduced(inputs, &worker, gbps, inputs.vertex_reducers)?);
        Ok(Self { worker, gbps, ring, reduced })
    }

    fn claims(&self, inputs: &VertexInputs) -> Result<Vec<ArticleClaim>, Failure> {
        let steps = |value| Quantity::of(value, "steps/s");
        let other = slow_workers(inputs)?;
        let less = 100.0 * (1.0 - self.ring / self.reduced);
        let n = f64::from(inputs.workers());
        let why = format!(
            "Sums take nearly all of our step, so it shrinks nearly as much as a host's bytes, from {:.2} K to K. If ports carried {} Gbit/s and GPUs \
             were slow instead, the backward passes would hide the sums: {other:.3} steps/s. The article's number lies in between, and the \
             article does not tell how its steps spend their time.",
            2.0 * (n - 1.0) / n,
            inputs.vertex_gbps
        );
        Ok(vec![
            ArticleClaim::new(
                "BERT without reducers makes around 0.4 steps per second",
                steps(WITHOUT),
                steps(self.ring),
                How::Fitted,
            ),
            ArticleClaim::new(
                "With 20 reducers it makes 0.7 steps per second",
                steps(WITH),
                steps(self.reduced),
                How::Predicted,
            )
            .if_it_differs(why),
            ArticleClaim::new(
                "Training of such models takes 30 to 40 % less time",
                Quantity::words("30 to 40 %"),
                Quantity::of(less, "%"),
                How::Predicted,
            )
            .because(
                "The article's own experiment is outside this range: 0.4 to 0.7 steps/s means 42.9 % less time.",
            ),
        ])
    }

    fn chart(&self, inputs: &VertexInputs) -> Result<Chart, Failure> {
        let ring = CurvePoint { at: (0.0, self.ring), is_price: false };
        let of_reducers = |way: fn(&VertexInputs) -> &'static str, reducers: &[u32]| {
            let one = |reducers: &u32| {
                let training = Training { worker: &self.worker, workers: inputs.workers(), way: way(inputs) };
                let machines = machines(inputs.machines(self.gbps), inputs.vertex_gpus, Some(*reducers));
                let took = training.step_on(&machines)?;
                Ok(CurvePoint { at: (f64::from(*reducers), per_second(took)), is_price: took.is_price })
            };
            reducers.iter().map(one).collect::<Result<Vec<_>, Failure>>()
        };
        let mut points = vec![ring];
        points.extend(of_reducers(VertexInputs::way, &REDUCERS)?);
        let alone = of_reducers(|_| "reduction_server", &FEWER_REDUCERS)?;
        let mark = |reducers: f64, steps: f64| Mark {
            at: (reducers, steps),
            words: format!("the article: {steps}"),
        };
        Ok(Chart {
            title: format!("Steps per second by reducers, hosts of {:.2} Gbit/s (fitted)", self.gbps),
            across: AxisWords { words: "reducers; 0: the ring", scale: Scale::Whole, unit: "" },
            up: AxisWords { words: "steps/s", scale: Scale::Even, unit: "" },
            curves: vec![
                Curve { name: "a host sums first, then reducers".to_owned(), points },
                Curve { name: "each GPU sends to reducers".to_owned(), points: alone },
            ],
            marks: vec![mark(0.0, WITHOUT), mark(20.0, WITH)],
        })
    }
}

/// A step with reducers.
fn reduced(inputs: &VertexInputs, worker: &TrainedStep, gbps: f64, reducers: u32) -> Result<Took, Failure> {
    let training = Training { worker, workers: inputs.workers(), way: inputs.way() };
    training.step_on(&machines(inputs.machines(gbps), inputs.vertex_gpus, Some(reducers)))
}

/// Steps per second with reducers, if ports carry what they are sold for, and the rate of GPUs is fitted in their place.
fn slow_workers(inputs: &VertexInputs) -> Result<f64, Failure> {
    let constants = inputs.machines(inputs.vertex_gbps);
    let machines = machines(constants, inputs.vertex_gpus, Some(inputs.vertex_reducers));
    let mut costs = SumCosts::new(&machines);
    let workers = inputs.workers();
    let mut step = |slowness: f64, way| {
        let worker = inputs.worker(Some(1.0 / slowness))?;
        Ok(Training { worker: &worker, workers, way }.step(&mut costs)?.seconds)
    };
    let slowness = fitted("rate of GPUs", 1.0 / WITHOUT, 1e-12, |slowness| step(slowness, "ring"))?;
    Ok(1.0 / step(slowness, inputs.way())?)
}
