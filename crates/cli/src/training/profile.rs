//! Profiles of models, as in docs/reference/model-profile.md. Errors name the place in the file.

use crate::unique_json;
use herringbone::core::training::ComputingCores;
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// A profile's file has at most this many bytes.
pub(crate) const MOST_BYTES: u64 = 16 << 20;
const MOST_PARAMETERS: usize = 100_000;
const MOST_CHARACTERS: usize = 1000;
const MOST_LENGTHS: usize = 16;
const MOST_NUMBER: u64 = 1 << 53;
const FORMAT: &str = "herringbone model profile";

/// Bytes of an element, by torch's name of its type.
pub(crate) const DTYPES: [(&str, u64); 14] = [
    ("bool", 1),
    ("uint8", 1),
    ("int8", 1),
    ("float8_e4m3fn", 1),
    ("float8_e5m2", 1),
    ("int16", 2),
    ("float16", 2),
    ("bfloat16", 2),
    ("int32", 4),
    ("float32", 4),
    ("int64", 8),
    ("float64", 8),
    ("complex64", 8),
    ("complex128", 16),
];
const PARTS: [&str; 10] = [
    "steps",
    "warm_up",
    "passes",
    "step_seconds",
    "accumulation_seconds",
    "forward_seconds",
    "backward_seconds",
    "tail_seconds",
    "optimizer_seconds",
    "other_seconds",
];

/// A model.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Profile {
    pub(crate) name: String,
    pub(crate) timing: ProfileTiming,
    /// In the order of registration.
    pub(crate) layers: Vec<Layer>,
    /// DDP's from the second step on, each as indices of parameters, in the order of their sums; if they were measured.
    pub(crate) buckets: Option<Vec<Vec<usize>>>,
}

/// What a profile says of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ProfileTiming {
    /// Multiply-adds of layers for one sample.
    Operations,
    /// Seconds of a run.
    Seconds(MeasuredStep),
}

/// Seconds of a step's parts, without what a worker waits for sums.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct MeasuredStep {
    /// Passes before the last ones, and the last forward pass.
    pub(crate) forward: f64,
    pub(crate) backward: f64,
    /// The optimizer, and the rest.
    pub(crate) after: f64,
    /// The cores of its computer, and the threads of one rank that computed on them; `None` if gradients were summed in these steps. Then
    /// the seconds include the cores' time for sums.
    pub(crate) alone_on: Option<ComputingCores>,
}

/// A module that owns parameters.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Layer {
    /// For one forward pass of one sample; 0 if seconds were measured.
    pub(crate) multiply_adds: u64,
    pub(crate) parameters: Vec<ModelParameter>,
}

/// A parameter, and its gradient.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ModelParameter {
    /// torch's name of its type.
    pub(crate) dtype: &'static str,
    pub(crate) bytes: u64,
    pub(crate) trainable: bool,
    /// Seconds from the beginning of the backward pass to its gradient, if they were measured and it came.
    pub(crate) ready: Option<f64>,
}

impl Profile {
    /// All parameters; one's index is its place here.
    pub(crate) fn parameters(&self) -> impl Iterator<Item = &ModelParameter> {
        self.layers.iter().flat_map(|layer| &layer.parameters)
    }
}

/// Reads a profile.
///
/// # Errors
/// The place, and what belongs there.
pub(crate) fn parse(text: &str) -> Result<Profile, String> {
    let whole: Value =
        unique_json::parse(text).map_err(|error| format!("this is not valid JSON: {error}"))?;
    if whole["format"] != FORMAT {
        return Err(format!(
            "this is not a profile of a model, which begins with {{\"format\": \"{FORMAT}\""
        ));
    }
    if whole["version"] != 1 {
        return Err(format!("its version is {}, but this program reads version 1", shown(&whole["version"])));
    }
    let common = ["format", "version", "name", "source", "timing", "layers"];
    let is_measured = match whole["timing"].as_str() {
        Some("operations") => false,
        Some("seconds") => true,
        _ => {
            let timing = shown(&whole["timing"]);
            return Err(format!("timing is {timing}, not \"operations\" or \"seconds\""));
        }
    };
    let (needed, optional) = match is_measured {
        true => ([&common[..], &["run", "measured"]].concat(), ["buckets"]),
        false => ([&common[..], &["sample"]].concat(), ["published"]),
    };
    let fields = object("the profile", &whole, &needed, &optional)?;
    text_of("source", &fields["source"])?;
    let layers = layers(&fields["layers"], is_measured)?;
    let timing = match is_measured {
        true => ProfileTiming::Seconds(measured(&fields["measured"], &fields["run"])?),
        false => ProfileTiming::Operations,
    };
    let mut profile = Profile { name: line_of("name", &fields["name"])?, timing, layers, buckets: None };
    profile.buckets = fields.get("buckets").map(|given| buckets(given, &profile)).transpose()?;
    Ok(profile)
}

fn measured(given: &Value, run: &Value) -> Result<MeasuredStep, String> {
    let fields = object("measured", given, &PARTS, &["sums"])?;
    for name in ["steps", "warm_up", "passes"] {
        whole_of(&format!("measured.{name}"), &fields[name])?;
    }
    let of = |name: &str| seconds_of(&format!("measured.{name}"), &fields[name]);
    let (_whole, tail) = (of("step_seconds")?, of("tail_seconds")?);
    let has_sums = fields.get("sums").unwrap_or(&Value::Bool(true));
    let has_sums =
        has_sums.as_bool().ok_or_else(|| format!("measured.sums is {has_sums}, not true or false"))?;
    Ok(MeasuredStep {
        forward: of("accumulation_seconds")? + of("forward_seconds")?,
        backward: of("backward_seconds")?,
        // Where nothing is summed the tail is copies, and waiting for slower ranks, as every step has it.
        after: of("optimizer_seconds")? + of("other_seconds")? + if has_sums { 0.0 } else { tail },
        alone_on: if has_sums { None } else { Some(cores(run)?) },
    })
}

/// The cores of a run's host, and the threads of a rank.
fn cores(run: &Value) -> Result<ComputingCores, String> {
    let of = |name: &str| {
        let place = format!("run.{name}");
        let number = whole_of(&place, &run[name])?;
        u32::try_from(number)
            .ok()
            .filter(|number| *number > 0)
            .ok_or_else(|| format!("{place} is {number}, not a number of them from 1 to {}", u32::MAX))
    };
    Ok(ComputingCores { all: of("cores")?, threads: of("threads")? })
}

fn layers(given: &Value, is_measured: bool) -> Result<Vec<Layer>, String> {
    let rows = list("layers", given, MOST_PARAMETERS)?;
    if rows.is_empty() {
        return Err("layers is empty; a model has at least one layer with parameters".into());
    }
    let (mut layers, mut left) = (Vec::with_capacity(rows.len()), MOST_PARAMETERS);
    for (number, row) in rows.iter().enumerate() {
        let place = format!("layers[{number}]");
        let needed: &[&str] = match is_measured {
            true => &["name", "parameters"],
            false => &["name", "multiply_adds", "parameters"],
        };
        let fields = object(&place, row, needed, &[])?;
        text_of(&format!("{place}.name"), &fields["name"])?;
        let parameters = list(&format!("{place}.parameters"), &fields["parameters"], left)?;
        if parameters.is_empty() {
            return Err(format!("{place} has no parameters; leave such layers out"));
        }
        left -= parameters.len();
        let one =
            |(at, each): (usize, &Value)| parameter(&format!("{place}.parameters[{at}]"), each, is_measured);
        let multiply_adds = match is_measured {
            true => 0,
            false => whole_of(&format!("{place}.multiply_adds"), &fields["multiply_adds"])?,
        };
        let parameters = parameters.iter().enumerate().map(one).collect::<Result<_, _>>()?;
        layers.push(Layer { multiply_adds, parameters });
    }
    Ok(layers)
}

fn parameter(place: &str, given: &Value, is_measured: bool) -> Result<ModelParameter, String> {
    let optional: &[&str] = if is_measured { &["trainable", "ready_seconds"] } else { &["trainable"] };
    let fields = object(place, given, &["name", "shape", "dtype", "bytes"], optional)?;
    text_of(&format!("{place}.name"), &fields["name"])?;
    let trainable = match fields.get("trainable") {
        None => true,
        Some(given) => {
            given.as_bool().ok_or_else(|| format!("{place}.trainable is {given}, not true or false"))?
        }
    };
    if is_measured && trainable != fields.contains_key("ready_seconds") {
        let has = match trainable {
            true => "no ready_seconds; null means that no gradient came",
            false => "ready_seconds, but is not trainable",
        };
        return Err(format!("{place} has {has}"));
    }
    let named = fields["dtype"].as_str().and_then(|name| DTYPES.iter().find(|(dtype, _)| *dtype == name));
    let Some((dtype, width)) = named else {
        let names = DTYPES.map(|(dtype, _)| dtype).join(", ");
        return Err(format!("{place}.dtype is {}; the format has {names}", shown(&fields["dtype"])));
    };
    let mut bytes = u128::from(*width);
    for length in list(&format!("{place}.shape"), &fields["shape"], MOST_LENGTHS)? {
        bytes = bytes.saturating_mul(whole_of(&format!("{place}.shape"), length)?.into());
    }
    let said = whole_of(&format!("{place}.bytes"), &fields["bytes"])?;
    if bytes != u128::from(said) {
        return Err(format!(
            "{place}.bytes is {said}, but {} of {dtype} has {bytes}",
            shown(&fields["shape"])
        ));
    }
    let ready = fields.get("ready_seconds").filter(|given| !given.is_null());
    let ready = ready.map(|given| seconds_of(&format!("{place}.ready_seconds"), given)).transpose()?;
    Ok(ModelParameter { dtype, bytes: said, trainable, ready })
}

/// Those from the second step on.
fn buckets(given: &Value, profile: &Profile) -> Result<Vec<Vec<usize>>, String> {
    let fields = object("buckets", given, &["first_bytes", "cap_bytes", "initial", "rebuilt"], &[])?;
    for name in ["first_bytes", "cap_bytes"] {
        whole_of(&format!("buckets.{name}"), &fields[name])?;
    }
    lists("buckets.initial", &fields["initial"], profile)?;
    lists("buckets.rebuilt", &fields["rebuilt"], profile)
}

fn lists(place: &str, given: &Value, profile: &Profile) -> Result<Vec<Vec<usize>>, String> {
    let parameters: Vec<&ModelParameter> = profile.parameters().collect();
    let mut seen = BTreeSet::new();
    let mut one = |index: &Value| {
        let index = usize::try_from(whole_of(place, index)?).unwrap_or(usize::MAX);
        match parameters.get(index).is_some_and(|parameter| parameter.trainable) && seen.insert(index) {
            true => Ok(index),
            false => Err(format!("{place} has parameter {index}, which is not trainable, or has it twice")),
        }
    };
    let mut found = Vec::new();
    for bucket in list(place, given, parameters.len())? {
        let indices = list(place, bucket, parameters.len())?.iter().map(&mut one);
        let indices = indices.collect::<Result<Vec<usize>, String>>()?;
        let kinds: BTreeSet<_> = indices.iter().map(|index| parameters[*index].dtype).collect();
        if kinds.len() > 1 {
            let kinds = kinds.into_iter().collect::<Vec<_>>().join(" and ");
            return Err(format!("{place} has a bucket of {kinds}; all gradients of a bucket need one dtype"));
        }
        found.push(indices);
    }
    Ok(found)
}

/// Refuses what is no object, lacks a key, or has one that the format does not know.
fn object<'a>(
    place: &str,
    given: &'a Value,
    needed: &[&str],
    optional: &[&str],
) -> Result<&'a Map<String, Value>, String> {
    let Some(fields) = given.as_object() else {
        return Err(format!("{place} is {}, not an object", shown(given)));
    };
    if let Some(missing) = needed.iter().find(|name| !fields.contains_key(**name)) {
        return Err(format!("{place} lacks {missing}"));
    }
    let is_known = |name: &&String| needed.contains(&name.as_str()) || optional.contains(&name.as_str());
    match fields.keys().find(|name| !is_known(name)) {
        Some(unknown) => Err(format!(
            "{place} has the unknown key {unknown:.80}; it can have {}",
            [needed, optional].concat().join(", ")
        )),
        None => Ok(fields),
    }
}

fn list<'a>(place: &str, given: &'a Value, most: usize) -> Result<&'a [Value], String> {
    let found = given.as_array().ok_or_else(|| format!("{place} is {}, not a list", shown(given)))?;
    match found.len() <= most {
        true => Ok(found),
        false => Err(format!("{place} has {} entries, but at most {most} are allowed", found.len())),
    }
}

fn text_of(place: &str, given: &Value) -> Result<String, String> {
    let text = given.as_str().filter(|text| text.chars().count() <= MOST_CHARACTERS);
    text.map(str::to_owned).ok_or_else(|| {
        format!("{place} is {}, not a text of at most {MOST_CHARACTERS} characters", shown(given))
    })
}

/// A text that is printed, so that it has nothing by which terminals are controlled.
fn line_of(place: &str, given: &Value) -> Result<String, String> {
    let text = text_of(place, given)?;
    match text.contains(char::is_control) {
        true => {
            Err(format!("{place} is {}, which has a line break or another control character", shown(given)))
        }
        false => Ok(text),
    }
}

fn whole_of(place: &str, given: &Value) -> Result<u64, String> {
    given
        .as_u64()
        .filter(|number| *number < MOST_NUMBER)
        .ok_or_else(|| format!("{place} is {}, not a whole number from 0 to 2^53", shown(given)))
}

fn seconds_of(place: &str, given: &Value) -> Result<f64, String> {
    given
        .as_f64()
        .filter(|seconds| (0.0..MOST_NUMBER as f64).contains(seconds))
        .ok_or_else(|| format!("{place} is {}, not a number of seconds of 0 or more", shown(given)))
}

/// A value for an error, not longer than a line.
fn shown(given: &Value) -> String {
    match given {
        Value::Object(_) => "an object".to_owned(),
        Value::Array(items) if items.len() > MOST_LENGTHS => "a list".to_owned(),
        other => other.to_string().chars().take(80).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEASURED: &str = include_str!("../../../../testdata/profiles/measured.json");

    #[test]
    fn a_measured_profile_has_its_seconds_and_buckets() {
        let profile = parse(MEASURED).unwrap();
        let ProfileTiming::Seconds(measured) = profile.timing else { panic!("{profile:?}") };
        let with_sums = MeasuredStep { forward: 0.005, backward: 0.0105, after: 0.003, alone_on: None };
        assert_eq!(measured, with_sums);
        assert_eq!(profile.buckets, Some(vec![vec![4, 3], vec![2, 1]]));
        let bytes: Vec<u64> = profile.parameters().map(|parameter| parameter.bytes).collect();
        assert_eq!(bytes, [4, 2_097_152, 4096, 1_048_576, 1024]);
        assert!(!profile.layers[0].parameters[0].trainable);
    }

    /// 3 ms of copies after the last gradient are no waiting.
    #[test]
    fn a_profile_without_sums_has_its_cores_and_all_of_its_tail() {
        let profile = parse(&MEASURED.replace("\"sums\": true", "\"sums\": false")).unwrap();
        let ProfileTiming::Seconds(measured) = profile.timing else { panic!("{profile:?}") };
        assert_eq!(measured.alone_on, Some(ComputingCores { all: 2, threads: 1 }));
        assert!((measured.after - 0.006).abs() < 1e-12, "{measured:?}");
        let sums_left_out = parse(&MEASURED.replace(", \"sums\": true", "")).unwrap();
        assert_eq!(sums_left_out, parse(MEASURED).unwrap());
        let no_cores =
            MEASURED.replace("\"sums\": true", "\"sums\": false").replace("\"cores\": 2", "\"cores\": 0");
        assert!(parse(&no_cores).unwrap_err().contains("run.cores is 0"));
    }

    #[test]
    fn what_is_no_profile_is_refused_by_its_place() {
        for (from, to, said) in [
            ("herringbone model", "another", "not a profile of a model"),
            ("\"version\": 1", "\"version\": 2", "its version is 2, but this program reads version 1"),
            ("\"seconds\"", "\"hours\"", "timing is \"hours\""),
            ("\"tail_seconds\": 0.003", "\"tail\": 0.003", "measured lacks tail_seconds"),
            ("\"backward_seconds\": 0.0105", "\"backward_seconds\": -1", "measured.backward_seconds is -1"),
            ("\"sums\": true", "\"sums\": 1", "measured.sums is 1, not true or false"),
            ("[4, 3], [2, 1]", "[4, 3], [3, 1]", "has parameter 3, which is not trainable, or has"),
            ("[4, 3], [2, 1]", "[4, 0], [2, 1]", "has parameter 0, which is not trainable"),
            ("[1024, 512]", "[1024, 513]", "layers[1].parameters[0].bytes is 2097152, but [1024,513]"),
            (
                "\"bytes\": 4,",
                "\"bytes\": 4, \"size\": 1,",
                "layers[0].parameters[0] has the unknown key size",
            ),
            (", \"ready_seconds\": 0.0021", "", "layers[2].parameters[1] has no ready_seconds"),
            ("\"float32\", \"bytes\": 1024", "\"float31\", \"bytes\": 1024", "dtype is \"float31\"; the"),
            ("\"float32\", \"bytes\": 1024", "\"int32\", \"bytes\": 1024", "a bucket of float32 and int32"),
            ("\"name\": \"out\"", "\"name\": 7", "layers[2].name is 7, not a text"),
            ("\"Classifier\"", "\"\\u001b[2J\"", "name is \"\\u001b[2J\", which has a line break or another"),
            (
                "\"warm_up\"",
                "\"steps\": 1, \"warm_up\"",
                "an object has the key \"steps\" twice; keep one of them",
            ),
            ("\n}", "\n", "this is not valid JSON"),
        ] {
            assert!(MEASURED.contains(from), "{from}");
            let failure = parse(&MEASURED.replacen(from, to, 1)).unwrap_err();
            assert!(failure.contains(said), "{failure}");
        }
    }
}
