//! `herringbone roofline`: the resource that limits an operation, and how near it comes to the limit.

use super::{
    options::Question,
    parts::PartsOption,
    pictured,
    roofs::Roofline,
    run as runs, traces,
    words::{named, seconds, size},
};
use crate::{failure::Failure, outcome::Outcome, progress::LateBar, table};
use herringbone::core::simulate::{Bound, Calibration, Picoseconds, Roof, RoofCounter, binding};
use indicatif::HumanBytes;
use serde_json::{Value, json};
use std::{
    io::Write,
    path::{Path, PathBuf},
};

/// Show which resource limits an operation
///
/// For each kind of resource (roof) it shows the busiest one: the time that its work takes by itself, the fraction of
/// the whole, and the attained and attainable rates. Describe the operation as for `herringbone simulate`, or read
/// one with --trace.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RooflineOptions {
    #[command(flatten)]
    question: Question,
    /// Read a file of `herringbone simulate --trace`, or a job's timeline, where --gbps is the port's rate
    #[arg(long, value_name = "FILE", conflicts_with_all = ["algorithm", "schedule", "operations", "topology", "slow", "reducers"])]
    trace: Option<PathBuf>,
    /// Draw the roofs and the operation into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &RooflineOptions, out: &mut dyn Write) -> Result<Outcome, Failure> {
    let roofline = match &options.trace {
        Some(path) => traces::read(path, options.question.constants()?.port)?,
        None => simulated(&options.question)?,
    };
    if let Some(path) = &options.svg {
        super::write_to(path, &pictured::picture(&roofline)?)?;
    }
    match options.json {
        true => writeln!(out, "{}", roofline.object())?,
        false => write!(out, "{}", roofline.text())?,
    }
    Ok(Outcome::Passed)
}

/// The roofs of a trace, as `--json` prints them; `gbps` is the rate of each host's port in Gbit/s, by default that of the
/// built-in constants.
///
/// # Errors
/// If the file is no trace, or has nothing to show.
pub(crate) fn of_trace(path: &Path, gbps: Option<f64>) -> Result<Value, Failure> {
    let port = gbps.map_or(Calibration::DEFAULT.port, |gbps| (gbps * 125e6).round() as u64);
    Ok(traces::read(path, port)?.object())
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
        // One rank's messages stand for the messages of all ranks behind its port.
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
            size(described.bytes(), described.parts.is_some()),
            described.call.dtype,
            schedule.reducers()
        ),
        total: outcome.total(),
        collective: described.call.collective,
        bytes: described.bytes().saturating_mul(operations),
        ranks: workers,
        parts: question.call.parts.clone(),
        bounds: bounds.collect(),
    })
}

/// GB/s.
fn rate(bytes: u64, time: Picoseconds) -> f64 {
    bytes as f64 / 1e9 / seconds(time).max(f64::MIN_POSITIVE)
}

const COLUMNS: [&str; 7] = ["roof", "place", "bytes", "alone", "of the time", "attained", "at most"];

impl Roofline {
    /// GB/s of the algorithm, and of the bus if parts are even: of others a link has no such share.
    fn bandwidth(&self) -> (f64, Option<f64>) {
        let algorithm = rate(self.bytes, self.total);
        let is_even = self.parts.is_none();
        (algorithm, is_even.then(|| algorithm * self.collective.bus_share(self.ranks)))
    }

    fn part(&self, bound: &Bound<String>) -> f64 {
        bound.alone as f64 / self.total.max(1) as f64
    }

    fn text(&self) -> String {
        let rows = self.bounds.iter().map(|bound| {
            [
                bound.roof.name().to_owned(),
                bound.place.clone(),
                HumanBytes(bound.bytes).to_string(),
                format!("{:.3} ms", 1e3 * seconds(bound.alone)),
                format!("{:.1} %", 100.0 * self.part(bound)),
                format!("{:.3} GB/s", rate(bound.bytes, self.total)),
                format!("{:.3} GB/s", rate(bound.bytes, bound.alone)),
            ]
        });
        let (algorithm, bus) = self.bandwidth();
        let mut lines = vec![
            format!("# {}, {:.3} ms", self.title, 1e3 * seconds(self.total)),
            table::text(&COLUMNS, &COLUMNS[2..], rows),
            match bus {
                Some(bus) => format!(
                    "bandwidth  {bus:.3} GB/s on the bus, {algorithm:.3} GB/s of the algorithm, as defined by nccl-tests"
                ),
                None => format!("bandwidth  {algorithm:.3} GB/s of the algorithm, as defined by nccl-tests"),
            },
        ];
        if let Some(intensity) = self.intensity() {
            lines.push(format!("intensity  {intensity:.2} bytes folded and copied per byte on the link"));
        }
        lines.push(match binding(&self.bounds) {
            Some(bound) => format!(
                "limit      {}: {} is busy {:.1} % of the time; the rest is latency and waiting",
                bound.roof.name(),
                bound.place,
                100.0 * self.part(bound)
            ),
            None => "limit      nothing takes time".to_owned(),
        });
        lines.join("\n") + "\n"
    }

    fn object(&self) -> Value {
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
            "collective": self.collective.name(),
            "bytes": self.bytes,
            "parts": self.parts.as_ref().map(PartsOption::rows),
            "ranks": self.ranks,
            "seconds": seconds(self.total),
            "algbw": algorithm,
            "busbw": bus,
            "intensity": self.intensity(),
            "roofs": roofs.collect::<Vec<_>>(),
            "binds": binding(&self.bounds).map(|bound| bound.roof.name()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Command, Verb};
    use clap::Parser;
    use std::fs;

    fn run_with(args: &[&str]) -> Result<String, Failure> {
        let command = Command::parse_from(["herringbone"].iter().chain(args));
        let mut out = Vec::new();
        match command.verb {
            Verb::Roofline(options) => run(&options, &mut out)?,
            Verb::Simulate(options) => super::super::run(&options, &mut out)?,
            other => panic!("{other:?}"),
        };
        Ok(String::from_utf8(out).unwrap())
    }

    fn object(args: &[&str]) -> Value {
        serde_json::from_str(&run_with(&[&["roofline", "--json"], args].concat()).unwrap()).unwrap()
    }

    fn file(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("herringbone-roofline-{}-{name}", std::process::id()))
    }

    #[test]
    fn a_slow_port_binds_and_a_fast_one_does_not() {
        let slow = object(&["--algorithm", "radix", "--gbps", "1"]);
        assert_eq!(slow["binds"], "link");
        // 993 of 1,000 bytes of a port carry payload, and the first and last messages wait.
        let bus = slow["busbw"].as_f64().unwrap();
        assert!((0.95 * 0.125..0.125).contains(&bus), "{bus}");
        assert_eq!(object(&["--algorithm", "radix", "--gbps", "400"])["binds"], "thread");
        assert_eq!(object(&["--algorithm", "radix", "--per-host", "4"])["intensity"], Value::Null);
    }

    #[test]
    fn a_trace_says_what_its_simulation_did() {
        let path = file("trace.json");
        let name = path.to_str().unwrap();
        let asked = ["--algorithm", "radix", "--ranks", "4", "--per-host", "2", "--bytes", "4M"];
        run_with(&[&["simulate", "--trace", name], &asked[..]].concat()).unwrap();
        let (traced, simulated) = (object(&["--trace", name]), object(&asked));
        fs::remove_file(&path).unwrap();
        for field in ["collective", "bytes", "ranks", "intensity", "binds"] {
            assert_eq!(traced[field], simulated[field], "{field}");
        }
        let ratio = traced["seconds"].as_f64().unwrap() / simulated["seconds"].as_f64().unwrap();
        assert!((0.99..1.01).contains(&ratio), "{ratio}");
    }

    #[test]
    fn parts_that_differ_are_named_and_have_no_bandwidth_of_the_bus() {
        let path = file("parts.json");
        let name = path.to_str().unwrap();
        let asked = ["--collective", "all_to_all", "--parts", "0,1M;2M,0"];
        run_with(&[&["simulate", "--trace", name], &asked[..]].concat()).unwrap();
        for args in [&asked[..], &["--trace", name]] {
            let found = object(args);
            assert_eq!(found["parts"], json!([[0, 1 << 20], [2 << 20, 0]]), "{args:?}");
            assert_eq!((&found["busbw"], &found["bytes"]), (&Value::Null, &json!(2 << 20)), "{args:?}");
            let output = run_with(&[&["roofline"], args].concat()).unwrap();
            assert!(
                output.contains("unequal parts (at most 2.00 MiB on a rank)")
                    && !output.contains("of the bus"),
                "{output}"
            );
        }
        fs::remove_file(&path).unwrap();
        assert!(object(&["--bytes", "4K"])["parts"].is_null());
    }

    /// Two ranks sum a tensor of 4 MB twice: fused for 1 ms, under way for 4, unfused for 1.
    const TIMELINE: &str = r#"[
{"ph":"M","pid":1,"tid":0,"name":"process_name","args":{"name":"layer"}},
{"ph":"B","pid":1,"tid":0,"name":"NEGOTIATE_ALLREDUCE","ts":0},
{"ph":"X","pid":1,"tid":0,"name":"0","ts":0,"dur":0},
{"ph":"X","pid":1,"tid":0,"name":"1","ts":5,"dur":0},
{"ph":"E","pid":1,"tid":0,"ts":10},
{"ph":"B","pid":1,"tid":0,"name":"ALLREDUCE","ts":10},
{"ph":"B","pid":1,"tid":0,"name":"QUEUE","ts":10},
{"ph":"E","pid":1,"tid":0,"ts":100},
{"ph":"B","pid":1,"tid":0,"name":"MEMCPY_IN_FUSION_BUFFER","ts":1000},
{"ph":"E","pid":1,"tid":0,"ts":2000},
{"ph":"B","pid":1,"tid":0,"name":"HERRINGBONE_ALLREDUCE","ts":2000},
{"ph":"E","pid":1,"tid":0,"ts":6000},
{"ph":"B","pid":1,"tid":0,"name":"MEMCPY_OUT_FUSION_BUFFER","ts":6000},
{"ph":"E","pid":1,"tid":0,"ts":7000},
{"ph":"E","pid":1,"tid":0,"ts":7000,"args":{"dtype":"f32","shape":"[1000, 1000]"}},
{"ph":"B","pid":1,"tid":0,"name":"NEGO"#;

    #[test]
    fn a_timeline_says_what_its_all_reduces_attained() {
        let path = file("timeline.json");
        fs::write(&path, TIMELINE).unwrap();
        let read = object(&["--trace", path.to_str().unwrap(), "--gbps", "16"]);
        fs::remove_file(&path).unwrap();
        assert_eq!((&read["bytes"], &read["ranks"]), (&json!(4_000_000), &json!(2)));
        assert!((read["seconds"].as_f64().unwrap() - 0.006).abs() < 1e-9, "{read}");
        assert!((read["busbw"].as_f64().unwrap() - 4e6 / 0.006 / 1e9).abs() < 1e-6, "{read}");
        // 4 MB at 2 GB/s take as long as both copies.
        let alone: Vec<f64> =
            read["roofs"].as_array().unwrap().iter().map(|roof| roof["alone_s"].as_f64().unwrap()).collect();
        assert_eq!(alone, [0.002, 0.002], "{read}");
    }

    #[test]
    fn pictures_have_all_roofs() {
        let path = file("picture.svg");
        for codec in ["none", "int8"] {
            let file = path.to_str().unwrap();
            run_with(&["roofline", "--per-host", "2", "--compression", codec, "--svg", file]).unwrap();
            let picture = fs::read_to_string(&path).unwrap();
            fs::remove_file(&path).unwrap();
            for roof in Roof::ALL {
                // Coded forms encode where others copy.
                let missing = if codec == "int8" { Roof::Copy } else { Roof::Code };
                let is_there = roof != missing;
                assert_eq!(picture.contains(&format!(">{}", roof.name())), is_there, "{codec}: {roof:?}");
            }
            assert!(picture.contains("(binds)") && picture.contains("<circle"));
        }
    }

    #[test]
    fn what_cannot_be_read_says_what_to_do() {
        let path = file("odd.json");
        for (text, said) in [
            ("{}", "is not a list of events: '{' where `[` is expected"),
            ("nothing", "is not a list of events"),
            ("[]", "neither the ports and threads of a simulation nor the finished all-reduces"),
            (r#"[{"ph":"M","name":"herringbone simulate","args":{}}]"#, "field `collective` is not a text"),
        ] {
            fs::write(&path, text).unwrap();
            let failure = run_with(&["roofline", "--trace", path.to_str().unwrap()]).unwrap_err().to_string();
            assert!(failure.contains(said) && failure.contains("simulate --trace FILE"), "{text}: {failure}");
        }
        fs::remove_file(&path).unwrap();
        let failure =
            run_with(&["roofline", "--per-host", "4", "--svg", "/nowhere/x"]).unwrap_err().to_string();
        assert!(failure.contains("no byte goes over a link"), "{failure}");
    }
}
