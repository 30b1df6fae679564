//! `herringbone simulate`: the predicted time of a schedule on given machines.

mod job;
mod options;
mod parts;
mod picture;
mod pictured;
mod recorded;
mod roofline;
mod roofs;
mod run;
mod traced;
mod traces;
mod words;

pub(crate) use options::{SimulateOptions, Slow};
pub(crate) use parts::PartsOption;
pub(crate) use roofline::{RooflineOptions, of_trace, run as run_roofline};

use crate::{failure::Failure, outcome::Outcome, progress::LateBar};
use herringbone::core::simulate::{Prediction, Used};
use indicatif::HumanBytes;
use options::{Described, Question};
use recorded::Recorded;
use serde_json::{Value, json};
use std::{fs, io::Write, path::Path};
use words::{named, seconds, size};

pub(crate) fn run(options: &SimulateOptions, out: &mut dyn Write) -> Result<Outcome, Failure> {
    if options.shown.constants {
        write!(out, "{}", options.question.constants()?)?;
        return Ok(Outcome::Passed);
    }
    let progress = LateBar::without_end("making, proving and simulating the schedule");
    let described = options.question.described()?;
    let mut recorded = Recorded::default();
    let records = options.shown.trace.is_some() || options.shown.svg.is_some();
    let (simulated, is_estimate) = match records {
        true => (run::shown(&options.question, &described, &mut |span| recorded.add(span))?, false),
        false => run::timed(&options.question, &described)?,
    };
    drop(progress);
    if let Some(path) = &options.shown.trace {
        write_to(path, &traced::trace(&recorded, &described, &options.question.call))?;
    }
    if let Some(path) = &options.shown.svg {
        write_to(path, &picture::picture(&recorded, &described, &simulated))?;
    }
    match options.shown.json {
        true => writeln!(out, "{}", object(&options.question, &described, &simulated, is_estimate))?,
        false => write!(out, "{}", report(&options.question, &described, &simulated, is_estimate))?,
    }
    Ok(Outcome::Passed)
}

fn write_to(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(Failure::system(format!("cannot write {}", path.display())))
}

/// What is busy longest, and for what part of the time.
fn limit(simulated: &Prediction) -> Option<(Used, f64)> {
    let busiest = simulated.busiest()?;
    Some((busiest, seconds(busiest.busy) / seconds(simulated.total()).max(f64::MIN_POSITIVE)))
}

fn report(options: &Question, described: &Described, simulated: &Prediction, is_estimate: bool) -> String {
    let Described { name, verified, call, calibration, per_host, .. } = described;
    let schedule = verified.schedule();
    let workers = schedule.workers();
    let milliseconds = |time| format!("{:.3} ms", 1e3 * seconds(time));
    let links = match &options.machines.topology {
        Some(file) => format!("links of {file}"),
        None => format!("{per_host} on each host, {} Gbit/s", calibration.port as f64 / 125e6),
    };
    let bytes = match &described.parts {
        Some(_) => described.bytes(),
        None => options.call.bytes.0 as u64,
    };
    let mut lines = vec![format!(
        "# {name}: {} of {} {}, ranks {workers}, reducers {}, {links}, {} us",
        call.collective,
        size(bytes, described.parts.is_some()),
        call.dtype,
        schedule.reducers(),
        calibration.latency as f64 / 1e6,
    )];
    let first = simulated.finished.iter().copied().min().unwrap_or(0);
    let each = match options.call.operations {
        1 => String::new(),
        many => format!(", {} for each of {many}", milliseconds(simulated.total() / u64::from(many))),
    };
    lines.push(format!(
        "time      {}{each} (the first rank finishes at {})",
        milliseconds(simulated.total()),
        milliseconds(first)
    ));
    if let Some((used, part)) = limit(simulated) {
        lines.push(format!(
            "limit     {} is busy {:.1} % of the time",
            named(used.place, workers),
            100.0 * part
        ));
    }
    let link = HumanBytes(simulated.busiest_link_bytes());
    lines.push(format!("busiest   {link} of payload on one port or link, in one direction"));
    lines.push(format!("messages  {} in total", simulated.messages));
    lines.push(format!(
        "memory    {} of staging memory per operation on the rank that needs most",
        HumanBytes(simulated.staged)
    ));
    if simulated.by_symmetry {
        lines.push("by symmetry: all ranks do the same, so only one was simulated".into());
    }
    if is_estimate {
        lines.push(format!(
            "estimate: more than {} messages, so a part was simulated and the rest extrapolated; --most-messages 0 simulates all",
            options.most_messages
        ));
    }
    lines.join("\n") + "\n"
}

fn object(options: &Question, described: &Described, simulated: &Prediction, is_estimate: bool) -> Value {
    let Described { name, verified, call, calibration, per_host, .. } = described;
    let schedule = verified.schedule();
    let limit = limit(simulated).map(|(used, part)| {
        json!({ "place": named(used.place, schedule.workers()), "busy_s": seconds(used.busy), "part": part })
    });
    json!({
        "algorithm": name,
        "collective": call.collective.to_string(),
        "dtype": call.dtype.name(),
        "bytes": if described.parts.is_some() { described.bytes() } else { options.call.bytes.0 as u64 },
        "parts": options.call.parts.as_ref().map(PartsOption::rows),
        "ranks": schedule.workers(),
        "per_host": per_host,
        "reducers": schedule.reducers(),
        "operations": options.call.operations,
        "seconds": seconds(simulated.total()),
        "each_rank_s": simulated.finished.iter().copied().map(seconds).collect::<Vec<_>>(),
        "limit": limit,
        "link_bytes": simulated.busiest_link_bytes(),
        "messages": simulated.messages,
        "staged_bytes": simulated.staged,
        "by_symmetry": simulated.by_symmetry,
        "is_estimate": is_estimate,
        "constants": calibration.to_string().lines().filter_map(|line| line.split_once(" = ")).map(|(name, value)| (name.to_owned(), value.parse::<f64>().unwrap_or(0.0).into())).collect::<serde_json::Map<String, Value>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Command, Verb};
    use clap::Parser;
    use herringbone::core::{execution::Rules, simulate::RandomOrder};

    fn simulated_with(args: &[&str]) -> Result<String, Failure> {
        let command = Command::parse_from(["herringbone", "simulate"].iter().chain(args));
        let Verb::Simulate(options) = command.verb else { panic!("simulate is a verb") };
        let mut out = Vec::new();
        run(&options, &mut out)?;
        Ok(String::from_utf8(out).unwrap())
    }

    /// A file of this process, in the folder for such files.
    fn file(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("herringbone-simulate-{}-{name}", std::process::id()))
    }

    fn object_of(args: &[&str]) -> Value {
        serde_json::from_str(&simulated_with(&[args, &["--json"]].concat()).unwrap()).unwrap()
    }

    #[test]
    fn a_doubled_rate_halves_the_time_of_large_buffers() {
        let seconds =
            |gbps| object_of(&["--algorithm", "radix", "--gbps", gbps])["seconds"].as_f64().unwrap();
        let ratio = seconds("0.5") / seconds("1");
        assert!((1.9..2.01).contains(&ratio), "{ratio}");
    }

    const DGX1: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/dgx1.txt");

    #[test]
    fn the_slowest_port_is_no_port_without_a_limit() {
        let seconds = |gbps| object_of(&["--bytes", "64", "--gbps", gbps])["seconds"].as_f64().unwrap();
        assert!(seconds("8e-9") > 1000.0 * seconds("1e-3"));
        assert!(seconds("1e-12") >= seconds("8e-9"));
    }

    #[test]
    fn messages_are_those_of_all_ranks() {
        let star = object_of(&["--algorithm", "star", "--ranks", "1024", "--bytes", "4"]);
        assert_eq!((&star["messages"], &star["is_estimate"]), (&json!(2046), &json!(false)));
    }

    /// The messages of 16,384 ranks, one of them simulated; unequal ranks have too many.
    #[test]
    fn one_of_many_alike_ranks_is_simulated_and_unequal_ones_are_refused() {
        let args = ["--algorithm", "radix(128,128)", "--ranks", "16384", "--bytes", "64K"];
        let simulated = object_of(&args);
        assert_eq!((&simulated["by_symmetry"], &simulated["ranks"]), (&json!(true), &json!(16384)));
        assert_eq!(simulated["messages"].as_u64().unwrap() % 16384, 0);
        assert_eq!(simulated["each_rank_s"].as_array().unwrap().len(), 16384);
        let failure = simulated_with(&[&args[..], &["--slow", "3:2"]].concat()).unwrap_err().to_string();
        assert!(failure.contains("the limit is 2000000") && failure.contains("identical"), "{failure}");
        let failure = refusal(&["--algorithm", "radix(2,4;4,2)", "--ranks", "16384"]);
        assert!(failure.contains("too large to prove") && failure.contains("radix(128,128)"), "{failure}");
    }

    /// Without a limit of messages there is one of memory.
    #[test]
    fn unequal_ranks_that_memory_has_no_room_for_are_refused_before_it_is_taken() {
        let args = ["--algorithm", "radix(128,128)", "--ranks", "16384", "--bytes", "64K", "--slow", "3:2"];
        let failure = simulated_with(&[&args[..], &["--most-messages", "0"]].concat()).unwrap_err();
        let failure = failure.to_string();
        assert!(failure.contains("16384 ranks, simulated each by itself, take about"), "{failure}");
        assert!(failure.contains("4096 MiB are the most"), "{failure}");
    }

    #[test]
    fn a_ring_of_16384_ranks_is_one_rank() {
        let ring = object_of(&["--algorithm", "ring", "--ranks", "16384", "--bytes", "64K"]);
        assert_eq!((&ring["by_symmetry"], &ring["is_estimate"]), (&json!(true), &json!(false)));
        assert_eq!(ring["messages"].as_u64(), Some(16384 * 2 * 16383));
    }

    #[test]
    fn parts_that_differ_are_simulated_as_they_are() {
        let seconds = |args: &[&str]| object_of(args)["seconds"].as_f64().unwrap();
        let of = |collective, parts| seconds(&["--collective", collective, "--parts", parts, "--gbps", "1"]);
        let even = seconds(&["--collective", "gather(0)", "--bytes", "16M", "--ranks", "4", "--gbps", "1"]);
        let same = of("gather(0)", "4M,4M,4M,4M");
        assert!((0.98..1.02).contains(&(same / even)), "{same} {even}");
        let more = of("gather(0)", "0,8M,8M,8M") / same;
        assert!((1.9..2.1).contains(&more), "{more}");
        assert!(of("all_to_all", "0,1M;1M,0") > 0.0 && of("scatter(1)", "1M,0,4M") > 0.0);
        assert!(of("all_gather", "1M,0,4M") > of("all_gather", "1M,0,2M"));
        for (args, said) in [
            (
                &["--collective", "gather(0)", "--parts", "3,4"][..],
                "3 bytes, which is not a whole number of f32",
            ),
            (
                &["--collective", "all_to_all", "--parts", "4,4"],
                "--parts has 1 row, and all_to_all needs 2 rows",
            ),
            (
                &["--collective", "all_to_all", "--parts", "4,4;4"],
                "row 2 of --parts has 1 part, but there are 2 ranks",
            ),
            (
                &["--collective", "gather(0)", "--parts", "4;4"],
                "--parts has 2 rows, and gather(0) needs 1 row",
            ),
            (&["--parts", "4,4;4"], "all_reduce has no parts of different lengths"),
            (&["--collective", "all_gather", "--parts", "4,4", "--algorithm", "ring"], "not by ring"),
        ] {
            let failure = refusal(args);
            assert!(failure.contains(said), "{failure}");
        }
    }

    /// Why there is nothing to simulate.
    fn refusal(args: &[&str]) -> String {
        let args = ["herringbone", "simulate"].iter().chain(args);
        let Verb::Simulate(options) = Command::parse_from(args).verb else { panic!("simulate is a verb") };
        options.question.described().map(|_| ()).unwrap_err().to_string()
    }

    #[test]
    fn whatever_says_how_many_ranks_there_are_has_to_agree() {
        let topology = DGX1;
        let schedule = file("of-4.txt");
        fs::write(&schedule, ring_of_4()).unwrap();
        let listed = schedule.to_str().unwrap();
        let nine = ["4"; 9].join(",");
        for collective in ["all_gather", "gather(0)", "gather(7)", "scatter(0)", "all_to_all"] {
            let few = ["--collective", collective, "--topology", topology, "--parts", "4,4"];
            let failure = refusal(&few);
            assert!(failure.contains("the topology has 8 ranks, but --parts has 2"), "{failure}");
        }
        for (args, said) in [
            (&["--collective", "all_gather", "--topology", topology, "--parts", &nine][..], "--parts has 9"),
            (
                &["--topology", topology, "--schedule", listed],
                "the schedule has 4 ranks, but the topology has 8",
            ),
            (&["--topology", topology, "--ranks", "4"], "--ranks gives 4 ranks, but the topology has 8"),
            (&["--collective", "gather(0)", "--parts", "4,4", "--ranks", "3"], "--parts has 2"),
        ] {
            let failure = refusal(args);
            assert!(failure.contains(said), "{args:?}: {failure}");
        }
        fs::remove_file(&schedule).unwrap();
    }

    #[test]
    fn more_parts_than_can_be_simulated_are_refused_at_once() {
        let many = ["4"; 4097].join(",");
        for (args, said) in [
            (
                &["--collective", "gather(0)", "--parts", &many][..],
                "--parts has 4097 ranks, but at most 4096 are allowed",
            ),
            (&["--collective", "all_gather", "--parts", "16777216G,4"], "at most 64 TiB are allowed"),
            (&["--collective", "gather(0)", "--parts", "32T,32T,4"], "at most 64 TiB are allowed"),
            (
                &["--collective", "all_to_all", "--parts", "0,1E;1E,18446744073709551612"],
                "at most 64 TiB are allowed",
            ),
            (&["--collective", "gather(9)", "--parts", "4,4"], "9"),
        ] {
            let failure = refusal(args);
            assert!(failure.contains(said), "{failure}");
        }
        for (verb, args) in [
            ("simulate", ["--collective", "gather(0)", "--parts", "4T,0"]),
            ("roofline", ["--collective", "all_gather", "--parts", "2000G,4"]),
        ] {
            let mut out = Vec::new();
            let command = Command::parse_from(["herringbone", verb].iter().chain(&args));
            let ran = match command.verb {
                Verb::Roofline(options) => run_roofline(&options, &mut out),
                Verb::Simulate(options) => run(&options, &mut out),
                other => panic!("{other:?}"),
            };
            let failure = ran.map(|_| ()).unwrap_err().to_string();
            assert!(
                failure.contains("messages and copies of parts") && !failure.contains("radix"),
                "{failure}"
            );
        }
    }

    #[test]
    fn what_never_ends_has_no_time_and_names_the_ranks() {
        let args = ["herringbone", "simulate", "--algorithm", "tree", "--ranks", "6", "--per-host", "2"];
        let Verb::Simulate(options) = Command::parse_from(args).verb else { panic!("simulate is a verb") };
        let mut described = options.question.described().unwrap();
        assert!(run::timed(&options.question, &described).is_ok());
        // No window holds this many segments.
        described.machine.random_order =
            Some(RandomOrder { seed: 0, rules: Rules { lot: Some(1000), ..Rules::DEFAULT } });
        let timed = run::timed(&options.question, &described).map(|_| ()).unwrap_err();
        let shown = run::shown(&options.question, &described, &mut |_| ()).map(|_| ()).unwrap_err();
        for failure in [timed, shown] {
            let said = failure.to_string();
            assert!(
                said.starts_with("tree has no time, because it never ends on ranks 0 (operation 0: of "),
                "{said}"
            );
            assert_eq!(failure.code(), crate::failure::RUN);
        }
    }

    #[test]
    fn trees_are_simulated_as_a_job_takes_them() {
        let of =
            |bytes| object_of(&["--algorithm", "trees", "--ranks", "6", "--per-host", "2", "--bytes", bytes]);
        assert_eq!(["25M", "39M"].map(|bytes| of(bytes)["algorithm"].clone()), ["trees(single)", "trees"]);
    }

    fn ring_of_4() -> String {
        let group = herringbone::core::group::Group::of_size(4);
        let ring = herringbone::Algorithm::Ring;
        let schedule = ring.schedule(herringbone::Collective::AllReduce, &group, &Default::default());
        schedule.unwrap().to_string()
    }

    #[test]
    fn a_schedule_of_ones_own_is_simulated_as_the_algorithm_that_it_is_of() {
        let path = file("ring.txt");
        fs::write(&path, ring_of_4()).unwrap();
        let own = object_of(&["--schedule", path.to_str().unwrap()]);
        fs::remove_file(&path).unwrap();
        assert_eq!(own["seconds"], object_of(&["--algorithm", "ring"])["seconds"]);
    }

    #[test]
    fn constants_read_back_and_options_go_before_them() {
        let path = file("constants");
        let constants = simulated_with(&["--constants", "--gbps", "0.5", "--latency-us", "7"]).unwrap();
        assert!(
            constants.contains("port_gbit_per_s = 0.5\n") && constants.contains("latency_us = 7\n"),
            "{constants}"
        );
        fs::write(&path, &constants).unwrap();
        let named = path.to_str().unwrap();
        assert_eq!(simulated_with(&["--calibration", named, "--constants"]).unwrap(), constants);
        fs::write(&path, "wake_us = x").unwrap();
        let failure = simulated_with(&["--calibration", named]).unwrap_err().to_string();
        fs::remove_file(&path).unwrap();
        assert!(failure.contains("line 1: `x` is no number"), "{failure}");
    }

    #[test]
    fn traces_and_pictures_have_every_rank() {
        let [trace, svg] = ["trace.json", "picture.svg"].map(file);
        let args = ["--algorithm", "ring", "--ranks", "3", "--bytes", "1M"];
        let files = ["--trace", trace.to_str().unwrap(), "--svg", svg.to_str().unwrap()];
        simulated_with(&[&args[..], &files].concat()).unwrap();
        let events: Value = serde_json::from_str(&fs::read_to_string(&trace).unwrap()).unwrap();
        let spans = events.as_array().unwrap().iter().filter(|event| event["ph"] == "X");
        // Each of the 4 x 3 messages of a segment is handed over, carried out, carried in and taken.
        assert!(spans.count() >= 4 * 12);
        let picture = fs::read_to_string(&svg).unwrap();
        [trace, svg].iter().try_for_each(fs::remove_file).unwrap();
        for row in ["thread of rank 0", "thread of rank 2", "port of host 1 (outbound)"] {
            assert!(picture.contains(row), "{row}");
        }
    }

    #[test]
    fn sizes_are_bounded_or_estimated() {
        let large = ["--algorithm", "ring", "--ranks", "4", "--bytes", "1T"];
        let report = simulated_with(&large).unwrap();
        assert!(report.contains("estimate: more than 2000000 messages"), "{report}");
        assert_eq!(object_of(&large)["is_estimate"], true);
        assert_eq!(object_of(&["--algorithm", "ring", "--ranks", "4"])["is_estimate"], false);
        for (args, said) in [
            (&["--bytes", "65T"][..], "at most 64 TiB are allowed"),
            (&["--bytes", "1T", "--svg", "x.svg"], "messages would have to be shown one by one"),
            (
                &["--algorithm", "radix", "--ranks", "1024", "--bytes", "1T", "--slow", "3:2"],
                "an estimate needs",
            ),
        ] {
            let failure = simulated_with(args).unwrap_err().to_string();
            assert!(failure.contains(said), "{args:?}: {failure}");
        }
    }

    #[test]
    fn what_cannot_be_simulated_says_what_to_do() {
        for (args, said) in [
            (&["--algorithm", "reduction_server"][..], "needs reducers: pass their number with --reducers"),
            (&["--algorithm", "ring", "--reducers", "2"], "--reducers has no effect on ring"),
            (&["--algorithm", "radix", "--slow", "9:2"], "--slow has member 9, but there are 4 members"),
            (&["--algorithm", "ring", "--topology", DGX1], "rank 3 sends to rank 4, and there is no link"),
            (&["--gbps", "1e-9", "--bytes", "1G"], "more than 200 days"),
            (&["--schedule", "/nowhere/schedule"], "cannot read /nowhere/schedule"),
            (&["--topology", "/nowhere/links"], "cannot read the topology /nowhere/links"),
        ] {
            let failure = simulated_with(args).unwrap_err().to_string();
            assert!(failure.contains(said), "{args:?}: {failure}");
        }
    }
}
