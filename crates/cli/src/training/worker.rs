//! The activity of a worker in a step, and its buckets, from a profile.

use super::{
    models::NamedModel,
    profile::{DTYPES, ModelParameter, Profile, ProfileTiming},
};
use herringbone::{
    DType,
    core::{
        simulate::{Picoseconds, SECOND},
        training::{Bucket, BucketLimits, ComputingCores, Gradient, TrainingStep, buckets},
    },
};

/// What options say of a worker.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WorkerChoice {
    /// Multiply-adds per second.
    pub(crate) rate: Option<f64>,
    /// Samples of a step.
    pub(crate) batch: Option<u32>,
    /// Bytes from which on a bucket is full.
    pub(crate) cap: Option<u64>,
}

/// A worker's step.
#[derive(Clone, Debug)]
pub(crate) struct TrainedStep {
    pub(crate) step: TrainingStep,
    pub(crate) buckets: Vec<Bucket>,
    /// What it rests on, in words.
    pub(crate) basis: String,
}

/// Steps that take longer are refused: picoseconds have an end.
const MOST_SECONDS: f64 = 1e6;

impl TrainedStep {
    /// # Errors
    /// If an option does nothing for this profile, one is missing, nobody waits for the end of such a step, or it computes nothing.
    pub(crate) fn of(model: &NamedModel, choice: WorkerChoice) -> Result<Self, String> {
        let profile = &model.profile;
        let (step, ready, basis) = match profile.timing {
            ProfileTiming::Seconds(measured) => {
                if choice.rate.is_some() || choice.batch.is_some() {
                    return Err(format!(
                        "{} was measured in seconds, so --rate and --batch have no effect",
                        profile.name
                    ));
                }
                let step = TrainingStep {
                    forward: picoseconds(measured.forward)?,
                    backward: picoseconds(measured.backward)?,
                    after: picoseconds(measured.after)?,
                    cores: measured.alone_on,
                };
                let ready =
                    profile.parameters().map(|parameter| parameter.ready.unwrap_or(measured.backward));
                let basis = match measured.alone_on {
                    Some(ComputingCores { all, threads }) => format!(
                        "seconds measured without sums, on {all} cores, with {threads} threads per worker"
                    ),
                    None => "measured seconds".to_owned(),
                };
                (step, ready.collect(), basis)
            }
            ProfileTiming::Operations => by_operations(model, choice)?,
        };
        if step.computing() == 0 {
            return Err(format!(
                "{} computes nothing in a step, so it has no efficiency: add the times or the operations of layers to the profile",
                profile.name
            ));
        }
        let gradients = gradients(profile, &ready)?;
        let buckets = match (&profile.buckets, choice.cap) {
            (Some(measured), None) => {
                let of = |places: &Vec<usize>| Bucket::of(places.iter().map(|place| gradients[*place]));
                measured.iter().filter_map(of).collect()
            }
            (_, cap) => {
                let limits = cap.map_or(BucketLimits::DEFAULT, BucketLimits::capped);
                let trainable = profile.parameters().zip(&gradients);
                let trainable: Vec<Gradient> =
                    trainable.filter(|(parameter, _)| parameter.trainable).map(|(_, of)| *of).collect();
                buckets(&trainable, limits)
            }
        };
        Ok(Self { step, buckets, basis })
    }

    /// All gradients that are summed.
    pub(crate) fn bytes(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.bytes).fold(0, u64::saturating_add)
    }
}

/// The step, when each parameter's gradient is there in seconds of the backward pass, and what that rests on.
fn by_operations(
    model: &NamedModel,
    choice: WorkerChoice,
) -> Result<(TrainingStep, Vec<f64>, String), String> {
    let profile = &model.profile;
    let all: u64 = profile.layers.iter().map(|layer| layer.multiply_adds).fold(0, u64::saturating_add);
    let (rate, source) = match (choice.rate, model.known) {
        (Some(rate), _) => (rate, "--rate".to_owned()),
        (None, Some(known)) => (known.speed.rate(all), known.speed.source()),
        (None, None) => {
            return Err(format!("{} has operations and no seconds: pass --rate", profile.name));
        }
    };
    let batch = choice.batch.or(model.known.map(|known| known.batch)).unwrap_or(1);
    let seconds = |multiply_adds: f64| f64::from(batch) * multiply_adds / rate;
    let (forward, backward) = (seconds(all as f64), seconds(2.0 * all as f64));
    let (mut ready, mut done) = (Vec::new(), 0.0);
    for layer in profile.layers.iter().rev() {
        done += layer.multiply_adds as f64;
        ready.extend(layer.parameters.iter().map(|_| seconds(2.0 * done).min(backward)));
    }
    ready.reverse();
    let step = TrainingStep {
        forward: picoseconds(forward)?,
        backward: picoseconds(backward)?,
        after: 0,
        cores: None,
    };
    let basis = format!("{batch} samples per step, {:.3}e12 multiply-adds/s ({source})", rate / 1e12);
    Ok((step, ready, basis))
}

fn gradients(profile: &Profile, ready: &[f64]) -> Result<Vec<Gradient>, String> {
    let one = |(parameter, ready): (&ModelParameter, &f64)| {
        let ready = picoseconds(*ready)?;
        Ok(Gradient { kind: kind(parameter.dtype), bytes: parameter.bytes, ready })
    };
    profile.parameters().zip(ready).map(one).collect()
}

/// A number for torch's name of a type.
fn kind(dtype: &str) -> u32 {
    DTYPES.iter().position(|(name, _)| *name == dtype).unwrap_or(0) as u32
}

/// What gradients of such a number are summed as. For types that are not summed as such only the length matters.
pub(crate) fn summed_as(kind: u32) -> DType {
    match DTYPES[kind as usize].0 {
        "float16" => DType::F16,
        "bfloat16" => DType::Bf16,
        "float64" => DType::F64,
        _ => DType::F32,
    }
}

fn picoseconds(seconds: f64) -> Result<Picoseconds, String> {
    match seconds <= MOST_SECONDS {
        true => Ok((seconds * SECOND as f64).round() as Picoseconds),
        false => Err(format!(
            "a part of the step takes {seconds:.0} seconds, but at most {MOST_SECONDS} are allowed"
        )),
    }
}
