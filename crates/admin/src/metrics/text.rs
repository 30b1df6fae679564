//! Figures as text.

use super::series::{Series, SeriesKind};
use crate::events::Histogram;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::fmt::{self, Write};

/// A series with its values.
#[derive(Debug)]
pub(super) struct Family {
    series: &'static Series,
    samples: Vec<Sample>,
}

#[derive(Debug)]
struct Sample {
    labels: Vec<(&'static str, String)>,
    value: SampleValue,
}

#[derive(Debug)]
enum SampleValue {
    Number(f64),
    Histogram(Histogram),
}

impl SampleValue {
    fn encode(&self, kind: SeriesKind, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        match (self, kind) {
            (SampleValue::Histogram(values), _) => {
                encoder.encode_histogram::<NoLabelSet>(values.sum(), values.count(), &values.buckets(), None)
            }
            (SampleValue::Number(value), SeriesKind::Counter) => ConstCounter::new(*value).encode(encoder),
            (SampleValue::Number(value), _) => ConstGauge::new(*value).encode(encoder),
        }
    }
}

impl Family {
    /// For a series, without a value.
    pub(super) fn of(series: &'static Series) -> Self {
        Self { series, samples: Vec::new() }
    }

    /// With a value, for which the labels have these values.
    pub(super) fn with<const N: usize>(mut self, labels: [String; N], value: f64) -> Self {
        self.add(labels, value);
        self
    }

    /// Adds a value, for which the labels have these values.
    pub(super) fn add<const N: usize>(&mut self, labels: [String; N], value: f64) {
        self.push(labels, SampleValue::Number(value));
    }

    /// Adds how values are spread, for which the labels have these values.
    pub(super) fn add_histogram<const N: usize>(&mut self, labels: [String; N], histogram: &Histogram) {
        self.push(labels, SampleValue::Histogram(histogram.clone()));
    }

    fn push<const N: usize>(&mut self, labels: [String; N], value: SampleValue) {
        debug_assert_eq!(self.series.labels.len(), N, "{}", self.series.name);
        let labels = self.series.labels.iter().copied().zip(labels.map(escaped)).collect();
        self.samples.push(Sample { labels, value });
    }
}

/// A label's value as the format has it. Users name jobs and tables, and the encoder does not escape values.
fn escaped(value: String) -> String {
    match value.contains(['\\', '"', '\n']) {
        true => value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"),
        false => value,
    }
}

/// What one scrape has.
#[derive(Debug)]
struct Scrape(Vec<Family>);

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for Family { series, samples } in self.0.iter().filter(|family| !family.samples.is_empty()) {
            let kind = match series.kind {
                SeriesKind::Counter => MetricType::Counter,
                SeriesKind::Gauge => MetricType::Gauge,
                SeriesKind::Histogram => MetricType::Histogram,
            };
            let help = series.help.trim_end_matches('.');
            let mut family = encoder.encode_descriptor(base(series), help, None, kind)?;
            for Sample { labels, value } in samples {
                if labels.is_empty() {
                    // There is one without labels, and it has no braces.
                    value.encode(series.kind, family)?;
                    break;
                }
                value.encode(series.kind, family.encode_family(labels)?)?;
            }
        }
        Ok(())
    }
}

/// The name without what the formats add.
fn base(series: &Series) -> &'static str {
    series.name.strip_suffix("_total").filter(|_| series.kind == SeriesKind::Counter).unwrap_or(series.name)
}

/// In the format of OpenMetrics.
pub(super) fn open(families: Vec<Family>) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Scrape(families)));
    let mut text = String::new();
    // A string takes all.
    let _written = text::encode(&mut text, &registry);
    text
}

/// In Prometheus's own format, in which a counter's family has the name of its samples, and which has no end.
pub(super) fn classic(families: Vec<Family>) -> String {
    let counters: Vec<&str> = families
        .iter()
        .filter(|family| family.series.kind == SeriesKind::Counter)
        .map(|family| base(family.series))
        .collect();
    let mut text = String::new();
    for line in open(families).lines() {
        let mut words = line.splitn(4, ' ');
        let is_about = |name: &str| counters.contains(&name);
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("EOF"), ..) => {}
            (Some("#"), Some(what), Some(name), Some(rest)) if is_about(name) => {
                // A string takes all.
                let _written = writeln!(text, "# {what} {name}_total {rest}");
            }
            _ => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::series;

    #[test]
    fn names_of_others_break_no_line() {
        let family = Family::of(&series::JOB).with(["1", "a\"b\\c\nd", "0"].map(str::to_owned), 1.0);
        let text = open(vec![family]);
        assert!(text.contains("name=\"a\\\"b\\\\c\\nd\",rank=\"0\""), "{text}");
    }
}
