//! `herringbone roofline`: what binds an operation, and how near it comes to that.

use super::{
    options::Question,
    pictured, run as runs, traces,
    words::{named, seconds},
};
use crate::{failure::Failure, outcome::Outcome, progress::LateBar, table};
use comfy_table::CellAlignment;
use herringbone::{
    Collective,
    core::simulate::{Bound, Picoseconds, Roof, RoofCounter, binding},
};
use indicatif::HumanBytes;
use serde_json::{Value, json};
use std::{io::Write, path::PathBuf};

/// Say what binds an operation: links, messages, copies, folds, or the thread that does the last three
///
/// For each of these roofs you see the place that needs most time for it, how long it would need if it did nothing else, which
/// part of the whole time that is, and the rates that it attains and could attain. The operation is described as for
/// `herringbone simulate`; or --trace reads a file that `herringbone simulate --trace` or a running job's timeline has written.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RooflineOptions {
    #[command(flatten)]
    question: Question,
    /// Read what was done from a trace in place of a simulation; of a running job's timeline, --gbps is the port's rate
    #[arg(long, value_name = "FILE", conflicts_with_all = ["algorithm", "schedule", "operations", "topology", "slow", "reducers"])]
    trace: Option<PathBuf>,
    /// Draw the roofs and the operation below them into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// One JSON object instead of the table
    #[arg(long)]
    json: bool,
}

/// An operation and the roofs above it.
#[derive(Debug)]
pub(super) struct Roofline {
    /// What was done, in words.
    pub(super) title: String,
    pub(super) total: Picoseconds,
    /// What was called, with how many bytes in all, and among how many ranks.
    pub(super) called: (Collective, u64, u32),
    pub(super) bounds: Vec<Bound<String>>,
}

pub(crate) fn run(options: &RooflineOptions, out: &mut dyn Write) -> Result<Outcome, Failure> {
    let roofline = match &options.trace {
        Some(path) => traces::read(path, options.question.constants()?.port)?,
        None => simulated(&options.question)?,
    };
    if let Some(path) = &options.svg {
        let picture = pictured::picture(&roofline).ok_or_else(|| Failure::Usage {
            problem: "no byte goes over a link, and the picture shows bytes/s of links".into(),
            hint: "leave --svg out, or spread the ranks over hosts with --per-host",
        })?;
        super::write_to(path, &picture)?;
    }
    match options.json {
        true => writeln!(out, "{}", roofline.object())?,
        false => write!(out, "{}", roofline.text())?,
    }
    Ok(Outcome::Passed)
}

fn simulated(question: &Question) -> Result<Roofline, Failure> {
    let progress = LateBar::without_end("making, proving and simulating the schedule");
    let described = question.described()?;
    let mut counter = RoofCounter::new();
    let outcome = runs::shown(question, &described, &mut |span| {
        counter.add(span.place, Roof::of(&span), span.bytes, span.end - span.start);
    })?;
    drop(progress);
    let schedule = described.verified.schedule();
    let workers = schedule.workers();
    let sharers = match outcome.by_symmetry {
        // One rank's messages stand for those of all ranks behind its port.
        true => described.per_host.max(1),
        false => 1,
    };
    let bounds = counter.bounds().into_iter().map(|Bound { roof, place, bytes, alone }| {
        let times = if roof == Roof::Link { u64::from(sharers) } else { 1 };
        Bound { roof, place: named(place, workers), bytes: bytes * times, alone }
    });
    let operations = u64::from(question.call.operations);
    Ok(Roofline {
        title: format!(
            "{}: {} of {} {}, ranks {workers}, reducers {}",
            described.name,
            described.call.collective,
            HumanBytes(described.bytes()),
            described.call.dtype,
            schedule.reducers()
        ),
        total: outcome.total(),
        called: (described.call.collective, described.bytes().saturating_mul(operations), workers),
        bounds: bounds.collect(),
    })
}

/// GB/s.
fn rate(bytes: u64, time: Picoseconds) -> f64 {
    bytes as f64 / 1e9 / seconds(time).max(f64::MIN_POSITIVE)
}

const COLUMNS: [&str; 7] = ["roof", "place", "bytes", "alone", "of the time", "attained", "at most"];

impl Roofline {
    pub(super) fn bound(&self, roof: Roof) -> Option<&Bound<String>> {
        self.bounds.iter().find(|bound| bound.roof == roof)
    }

    /// Bytes that a thread folds and copies for each byte on the busiest link.
    pub(super) fn intensity(&self) -> Option<f64> {
        let bytes = |roof| self.bound(roof).map_or(0, |bound| bound.bytes) as f64;
        let link = self.bound(Roof::Link).filter(|link| link.bytes > 0)?;
        Some((bytes(Roof::Fold) + bytes(Roof::Copy)) / link.bytes as f64)
    }

    /// GB/s of the algorithm and of the bus.
    fn bandwidth(&self) -> (f64, f64) {
        let (collective, bytes, ranks) = self.called;
        let algorithm = rate(bytes, self.total);
        (algorithm, algorithm * collective.bus_share(ranks))
    }

    fn part(&self, bound: &Bound<String>) -> f64 {
        bound.alone as f64 / self.total.max(1) as f64
    }

    fn text(&self) -> String {
        let mut table = table::new(&COLUMNS);
        for bound in &self.bounds {
            table.add_row([
                bound.roof.name().to_owned(),
                bound.place.clone(),
                HumanBytes(bound.bytes).to_string(),
                format!("{:.3} ms", 1e3 * seconds(bound.alone)),
                format!("{:.1} %", 100.0 * self.part(bound)),
                format!("{:.3} GB/s", rate(bound.bytes, self.total)),
                format!("{:.3} GB/s", rate(bound.bytes, bound.alone)),
            ]);
        }
        table::align(&mut table, &COLUMNS, &COLUMNS[2..], CellAlignment::Right);
        let (algorithm, bus) = self.bandwidth();
        let mut lines = vec![
            format!("# {}, {:.3} ms", self.title, 1e3 * seconds(self.total)),
            table::fitted(table),
            format!("bandwidth  {bus:.3} GB/s of the bus, {algorithm:.3} GB/s of the algorithm, as nccl-tests define them"),
        ];
        if let Some(intensity) = self.intensity() {
            lines.push(format!("intensity  {intensity:.2} bytes folded and copied for each byte on the link"));
        }
        lines.push(match binding(&self.bounds) {
            Some(bound) => format!(
                "binds      {}: {} is busy for {:.1} % of the time; the rest is latency and waiting",
                bound.roof.name(),
                bound.place,
                100.0 * self.part(bound)
            ),
            None => "binds      nothing takes time".to_owned(),
        });
        lines.join("\n") + "\n"
    }

    fn object(&self) -> Value {
        let (collective, bytes, ranks) = self.called;
        let (algorithm, bus) = self.bandwidth();
        let roofs = self.bounds.iter().map(|bound| {
            json!({
                "roof": bound.roof.name(),
                "place": bound.place,
                "bytes": bound.bytes,
                "alone_s": seconds(bound.alone),
                "part": self.part(bound),
                "attained_gb_per_s": rate(bound.bytes, self.total),
                "most_gb_per_s": rate(bound.bytes, bound.alone),
            })
        });
        json!({
            "what": self.title,
            "collective": collective.name(),
            "bytes": bytes,
            "ranks": ranks,
            "seconds": seconds(self.total),
            "algbw": algorithm,
            "busbw": bus,
            "intensity": self.intensity(),
            "roofs": roofs.collect::<Vec<_>>(),
            "binds": binding(&self.bounds).map(|bound| bound.roof.name()),
        })
    }
}
