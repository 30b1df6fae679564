//! Models on the command line: published ones, or a user's profile.

use super::profile::{self, MOST_BYTES, Profile};
use crate::failure::Failure;
use herringbone::{nearest_name, read_user_file};

/// A published model, and how fast a worker trains it by default.
pub(crate) struct KnownModel {
    pub(crate) name: &'static str,
    text: &'static str,
    /// Samples of a worker's step.
    pub(crate) batch: u32,
    pub(crate) speed: Speed,
}

/// How fast a worker is by default, and who says so.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Speed {
    /// Images per second: one P100, synthetic data, in TensorFlow's benchmarks of May 2017 (the DGX-1's table).
    Images(f64),
    /// Multiply-adds per second, which nobody has measured.
    Assumed(f64),
}

impl Speed {
    /// Multiply-adds per second, from the multiply-adds of a sample's forward pass; a backward pass has twice as many.
    pub(crate) fn rate(self, multiply_adds: u64) -> f64 {
        match self {
            Self::Images(each_second) => 3.0 * multiply_adds as f64 * each_second,
            Self::Assumed(rate) => rate,
        }
    }

    /// Where the rate comes from.
    pub(crate) fn source(self) -> String {
        match self {
            Self::Images(each_second) => {
                format!("{each_second} images/s of one P100, TensorFlow's benchmarks, 2017")
            }
            Self::Assumed(_) => "assumed: 40 % of a V100's peak with 16-bit floats".to_owned(),
        }
    }
}

/// 40 % of 125 TFLOP/s, which are 62.5e12 multiply-adds per second.
const ASSUMED: Speed = Speed::Assumed(25e12);

/// A profile that comes with the command.
macro_rules! known {
    ($name:literal, $batch:literal, $speed:expr) => {
        KnownModel {
            name: $name,
            text: include_str!(concat!("../../models/", $name, ".json")),
            batch: $batch,
            speed: $speed,
        }
    };
}

/// All that come with the command.
pub(crate) const KNOWN: [KnownModel; 6] = [
    known!("alexnet", 512, Speed::Images(2987.0)),
    known!("vgg16", 64, Speed::Images(154.0)),
    known!("resnet50", 64, Speed::Images(219.0)),
    known!("inception-v3", 64, Speed::Images(142.0)),
    known!("bert-large", 32, ASSUMED),
    known!("transformer-1.37b", 1, ASSUMED),
];

/// What `--model` names.
pub(crate) struct NamedModel {
    pub(crate) profile: Profile,
    pub(crate) known: Option<&'static KnownModel>,
}

/// A published model by its name, or the profile in a file.
///
/// # Errors
/// If there is neither, or the file is no profile.
pub(crate) fn find(name: &str) -> Result<NamedModel, Failure> {
    const HINT: &str = "docs/reference/model-profile.md shows the format, and python -m herringbone.profile writes such files";
    if let Some(known) = KNOWN.iter().find(|known| known.name == name) {
        let profile = profile::parse(known.text);
        let profile = profile.map_err(|problem| Failure::Usage { problem, hint: HINT })?;
        return Ok(NamedModel { profile, known: Some(known) });
    }
    let refused = |error: String| Failure::Usage { problem: format!("{name}: {error}"), hint: HINT };
    let data = match read_user_file(name, MOST_BYTES) {
        Ok(data) => data,
        Err(error) if name.contains(['/', '.']) => return Err(refused(error.to_string())),
        Err(_) => {
            let names = KNOWN.map(|known| known.name);
            let near = nearest_name(name, names).map(|near| format!("; did you mean {near}?"));
            return Err(Failure::Usage {
                problem: format!(
                    "{name} is neither a model nor a file{}; models are {}",
                    near.unwrap_or_default(),
                    names.join(", ")
                ),
                hint: "pass one of them, or the file of a profile",
            });
        }
    };
    let text = String::from_utf8(data).map_err(|_| refused("it is not UTF-8 text".to_owned()))?;
    Ok(NamedModel { profile: profile::parse(&text).map_err(refused)?, known: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_model_that_comes_with_the_command_is_read_by_its_name() {
        for known in &KNOWN {
            let found = find(known.name).unwrap();
            let adds: u64 = found.profile.layers.iter().map(|layer| layer.multiply_adds).sum();
            assert!(known.speed.rate(adds) > 1e12, "{}", known.name);
        }
    }

    #[test]
    fn a_name_that_is_nearly_right_is_answered_with_the_nearest() {
        let said = find("vgg-16").err().unwrap().to_string();
        assert!(said.contains("did you mean vgg16?") && said.contains("resnet50"), "{said}");
        let said = find("/nowhere/profile.json").err().unwrap().to_string();
        assert!(said.starts_with("/nowhere/profile.json: "), "{said}");
    }
}
