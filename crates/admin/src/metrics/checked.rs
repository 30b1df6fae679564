//! A checker of Prometheus's text format, for tests. It finds the same problems as `promtool check metrics`.

use std::collections::{BTreeMap, BTreeSet};

/// A family of samples, as its first lines describe it.
#[derive(Default)]
struct Described {
    kind: Option<String>,
    has_help: bool,
    is_over: bool,
    samples: Vec<Read>,
}

/// A sample as it is read.
struct Read {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

/// All that is wrong with a text.
pub(crate) fn problems(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    if !text.ends_with('\n') {
        found.push("the last line has no end".to_owned());
    }
    let mut families: BTreeMap<String, Described> = BTreeMap::new();
    let (mut last, mut seen) = (String::new(), BTreeSet::new());
    for line in text.lines() {
        let name = match line.strip_prefix("# ") {
            Some(rest) => {
                let words: Vec<&str> = rest.splitn(3, ' ').collect();
                let [what, name, said] = words[..] else {
                    found.push(format!("neither HELP nor TYPE: {line}"));
                    continue;
                };
                let family = families.entry(name.to_owned()).or_default();
                match what {
                    "HELP" if !family.has_help && !said.is_empty() => family.has_help = true,
                    "TYPE" if family.kind.is_none() && family.samples.is_empty() => {
                        family.kind = Some(said.to_owned());
                    }
                    _ => found.push(format!("not here: {line}")),
                }
                name.to_owned()
            }
            None => {
                let Some(sample) = read(line) else {
                    found.push(format!("no sample: {line}"));
                    continue;
                };
                if !seen.insert((sample.name.clone(), sample.labels.clone())) {
                    found.push(format!("twice: {line}"));
                }
                let parts = ["_bucket", "_sum", "_count"].map(|part| sample.name.strip_suffix(part));
                let is_histogram = |name: &&str| {
                    families.get(*name).is_some_and(|it| it.kind.as_deref() == Some("histogram"))
                };
                let name = parts.into_iter().flatten().find(is_histogram).unwrap_or(&sample.name).to_owned();
                families.entry(name.clone()).or_default().samples.push(sample);
                name
            }
        };
        if name != last {
            if families.get(&name).is_some_and(|family| family.is_over) {
                found.push(format!("{name} is in two places"));
            }
            if let Some(before) = families.get_mut(&last) {
                before.is_over = true;
            }
            last = name;
        }
    }
    found.extend(families.iter().flat_map(|(name, family)| of_family(name, family)));
    found
}

fn of_family(name: &str, family: &Described) -> Vec<String> {
    let mut found = Vec::new();
    if !family.has_help {
        found.push(format!("{name} has no help"));
    }
    let is_total = name.ends_with("_total");
    match family.kind.as_deref() {
        Some("counter") if !is_total => found.push(format!("the counter {name} does not end in _total")),
        Some("gauge" | "histogram") if is_total => found.push(format!("{name} ends in _total and is none")),
        Some("counter" | "gauge" | "histogram") => {}
        kind => found.push(format!("{name} is of type {kind:?}")),
    }
    for unit in ["_ms", "_us", "_milliseconds", "_minutes", "_kb", "_mb", "_megabytes", "_percent"] {
        if name.trim_end_matches("_total").ends_with(unit) {
            found.push(format!("{name} is in no base unit"));
        }
    }
    if family.kind.as_deref() != Some("gauge") {
        let negative = family.samples.iter().filter(|sample| sample.value.is_nan() || sample.value < 0.0);
        found.extend(negative.map(|sample| format!("{} is {}", sample.name, sample.value)));
    }
    if family.kind.as_deref() == Some("histogram") {
        found.extend(of_histogram(name, &family.samples));
    }
    found
}

/// What belongs to one set of labels of a histogram.
#[derive(Default)]
struct Spread {
    /// Bounds, and how many values are up to each.
    buckets: Vec<[f64; 2]>,
    sum: Option<f64>,
    count: Option<f64>,
}

/// Buckets ascend, and the last one has all.
fn of_histogram(name: &str, samples: &[Read]) -> Vec<String> {
    let mut series: BTreeMap<BTreeMap<String, String>, Spread> = BTreeMap::new();
    for sample in samples {
        let mut labels = sample.labels.clone();
        let bound = labels.remove("le");
        let spread = series.entry(labels).or_default();
        match (sample.name.strip_prefix(name), bound) {
            (Some("_bucket"), Some(bound)) => {
                spread.buckets.push([bound.parse().unwrap_or(f64::NAN), sample.value]);
            }
            (Some("_sum"), None) => spread.sum = Some(sample.value),
            (Some("_count"), None) => spread.count = Some(sample.value),
            _ => return vec![format!("{} is no part of a histogram", sample.name)],
        }
    }
    let wrong = series.into_values().filter(|Spread { buckets, sum, count }| {
        let ascends = buckets.windows(2).all(|pair| pair[0][0] < pair[1][0] && pair[0][1] <= pair[1][1]);
        let last = buckets.last().copied();
        let has_all = last.is_some_and(|[bound, all]| bound == f64::INFINITY && Some(all) == *count);
        !ascends || !has_all || sum.is_none()
    });
    wrong.map(|_| format!("the buckets of {name} do not add up")).collect()
}

fn read(line: &str) -> Option<Read> {
    let end = line.find(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_'))?;
    let (name, mut rest) = line.split_at(end);
    if name.is_empty() || name.starts_with(|letter: char| letter.is_ascii_digit()) {
        return None;
    }
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        while !rest.starts_with('}') {
            let (label, after) = rest.split_once("=\"")?;
            let mut is_escaped = false;
            let end = after.find(|letter| {
                let ends = letter == '"' && !is_escaped;
                is_escaped = letter == '\\' && !is_escaped;
                ends
            })?;
            let is_new = labels.insert(label.to_owned(), after[..end].to_owned()).is_none();
            let is_name =
                !label.is_empty() && label.bytes().all(|it| it.is_ascii_alphanumeric() || it == b'_');
            if !is_new || !is_name {
                return None;
            }
            rest = after[end + 1..].strip_prefix(',').unwrap_or(&after[end + 1..]);
        }
        rest = &rest[1..];
    }
    let value = rest.strip_prefix(' ')?;
    let value = if value == "+Inf" { f64::INFINITY } else { value.parse().ok()? };
    Some(Read { name: name.to_owned(), labels, value })
}

const RIGHT: &str = "# HELP a_total How often.\n# TYPE a_total counter\na_total{k=\"v\\\"}\",l=\"\"} 2\na_total{k=\"w\",l=\"\"} 1\n\
                     # HELP b_seconds How long.\n# TYPE b_seconds histogram\nb_seconds_bucket{le=\"0.1\"} 1\nb_seconds_bucket{le=\"+Inf\"} 3\n\
                     b_seconds_sum 7.5\nb_seconds_count 3\n# HELP c How much.\n# TYPE c gauge\nc -1.5\n";

#[test]
fn what_is_right_passes() {
    assert_eq!(problems(RIGHT), Vec::<String>::new());
}

#[test]
fn planted_errors_are_found() {
    let plants = [
        ("# HELP a_total How often.\n", "", "no help"),
        ("# TYPE a_total counter\n", "", "type None"),
        ("# TYPE c gauge", "# TYPE c counter", "does not end in _total"),
        ("# TYPE a_total counter", "# TYPE a_total gauge", "is none"),
        ("k=\"w\"", "k=\"v\\\"}\"", "twice"),
        ("a_total{k=\"w\",l=\"\"} 1\n", "", ""),
        ("a_total{k=\"w\",l=\"\"} 1", "a_total{k=\"w\",k=\"\"} 1", "no sample"),
        ("} 2\n", "} two\n", "no sample"),
        ("} 2\n", "} -2\n", "is -2"),
        ("le=\"0.1\"} 1", "le=\"0.1\"} 4", "do not add up"),
        ("le=\"+Inf\"", "le=\"1\"", "do not add up"),
        ("b_seconds_count 3", "b_seconds_count 4", "do not add up"),
        ("b_seconds_sum 7.5\n", "", "do not add up"),
        ("c -1.5\n", "c -1.5", "no end"),
        ("c -1.5\n", "c -1.5\na_total 7\n", "two places"),
        ("# HELP c How much.\n", "# HELP c How much.\n# HELP c Again.\n", "not here"),
    ];
    for (right, wrong, problem) in plants {
        let text = RIGHT.replacen(right, wrong, 1);
        assert_ne!(text, RIGHT, "{right}");
        let found = problems(&text);
        assert!(problem.is_empty() == found.is_empty(), "{right:?}: {found:?}");
        assert!(found.iter().any(|it| it.contains(problem)) || problem.is_empty(), "{right:?}: {found:?}");
    }
    let renamed = RIGHT.replace("b_seconds", "b_ms");
    assert!(problems(&renamed).iter().any(|it| it.contains("base unit")));
}
