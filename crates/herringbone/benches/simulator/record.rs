//! What came of it: in words, as JSON, and as a page of `record`.

use crate::{
    options::{Job, Options},
    soak::Soaked,
};
use herringbone::simulator::SeedFailure;
use serde_json::{Value, json};
use std::{fmt::Write, process::Command};

/// The planted errors, each with the failure that showed it.
pub(crate) type Planted = [(&'static str, Option<SeedFailure>)];

fn seeds_of(options: &Options) -> String {
    match &options.job {
        Job::One(seed) => seed.to_string(),
        Job::Many(seeds) => format!("{}..{}", seeds.start, seeds.end),
    }
}

fn rate(result: &Soaked) -> f64 {
    result.seeds as f64 / result.took.as_secs_f64().max(1e-9)
}

/// The first line of what is wrong, to be read in a table.
fn first_line(failure: &SeedFailure) -> String {
    failure.problem.lines().next().unwrap_or_default().chars().take(160).collect::<String>().replace('|', "/")
}

/// What a person reads at the end.
pub(crate) fn text(options: &Options, result: &Soaked, planted: &Planted) -> String {
    let mut text = format!(
        "seeds {}, each twice: {} failed; {:.0} s, {:.1} a second, {} s of their own time\n",
        seeds_of(options),
        result.failed,
        result.took.as_secs_f64(),
        rate(result),
        result.milliseconds / 1000,
    );
    let calls: Vec<String> = result.calls.iter().map(|(end, times)| format!("{times} {end}")).collect();
    let _ = writeln!(
        text,
        "calls: {}; {} worlds continued without a reducer",
        calls.join(", "),
        result.recovered
    );
    let _ = writeln!(text, "{}", result.coverage);
    for impossible in result.coverage.impossible() {
        let _ = writeln!(text, "seen, and cannot be: {impossible}");
    }
    for failure in &result.failures {
        let _ = writeln!(text, "{failure}");
    }
    for (plant, found) in planted {
        let _ = match found {
            Some(failure) => writeln!(text, "{plant}: found by seed {}", failure.seed),
            None => writeln!(text, "{plant}: NOT FOUND"),
        };
    }
    text
}

/// The same for programs.
pub(crate) fn json(options: &Options, result: &Soaked, planted: &Planted) -> Value {
    let failures: Vec<Value> = result.failures.iter().map(failure_json).collect();
    let planted: Vec<Value> = planted
        .iter()
        .map(|(plant, found)| json!({ "plant": plant, "found": found.as_ref().map(failure_json) }))
        .collect();
    let counts: serde_json::Map<String, Value> =
        result.coverage.counts().into_iter().map(|(name, times)| (name, json!(times))).collect();
    json!({
        "seeds": seeds_of(options),
        "plant": options.plant,
        "failed": result.failed,
        "failures": failures,
        "seconds": result.took.as_secs_f64(),
        "virtual_seconds": result.milliseconds / 1000,
        "calls": result.calls,
        "recovered": result.recovered,
        "slowest": { "seed": result.slowest.1, "seconds": result.slowest.0.as_secs_f64() },
        "transitions": {
            "all": result.coverage.all(),
            "seen": counts,
            "missing": result.coverage.missing(),
            "impossible": result.coverage.impossible(),
        },
        "planted": planted,
    })
}

fn failure_json(failure: &SeedFailure) -> Value {
    json!({ "seed": failure.seed, "problem": failure.problem })
}

/// A page of `record`.
pub(crate) fn page(options: &Options, result: &Soaked, planted: &Planted) -> String {
    let (commit, date) = (said_by(&["git", "rev-parse", "--short", "HEAD"]), said_by(&["date", "+%Y-%m-%d"]));
    let mut page = "# Simulator\n`make soak` wrote this page. It runs worlds of workers, reducers and a hub in virtual time, each \
        seed twice with the same hash of all events ([how to replay \
        one](../CONTRIBUTING.md#the-simulator)).\n\n| | |\n| --- | --- |\n"
        .to_owned();
    let mut row = |name: &str, value: String| {
        let _ = writeln!(page, "| {name} | {value} |");
    };
    row("machine", format!("{}, {} threads", processor(), options.threads));
    row("commit, date", format!("after {commit}, {date}"));
    row("seeds", format!("{}, each twice", seeds_of(options)));
    row("failed", result.failed.to_string());
    row("time", format!("{:.0} s, {:.1} seeds a second", result.took.as_secs_f64(), rate(result)));
    row("time in the worlds", format!("{} s", result.milliseconds / 1000));
    row("worlds that continued without a reducer", result.recovered.to_string());
    for (end, times) in &result.calls {
        row(&format!("calls that ended: {end}"), times.to_string());
    }
    let missing = result.coverage.missing();
    let all = result.coverage.all();
    let _ = writeln!(page, "\n## Transitions\nTransitions: {} of {all} seen.", all - missing.len());
    if !missing.is_empty() {
        let _ = writeln!(page, "Not seen:\n");
        for missing in missing {
            let _ = writeln!(page, "* {missing}");
        }
    }
    if !result.failures.is_empty() {
        let _ = writeln!(page, "\n## Failures\n");
        for failure in &result.failures {
            let _ = writeln!(page, "* seed {}: {}", failure.seed, first_line(failure));
        }
    }
    let _ =
        writeln!(page, "\n## Planted errors\n| error | found by seed | what was seen |\n| --- | --- | --- |");
    for (plant, found) in planted {
        let (seed, problem) = found
            .as_ref()
            .map_or(("none".to_owned(), String::new()), |found| (found.seed.to_string(), first_line(found)));
        let _ = writeln!(page, "| {plant} | {seed} | {problem} |");
    }
    page
}

fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name =
        text.lines().find_map(|line| line.strip_prefix("model name")).and_then(|rest| rest.split_once(':'));
    name.map_or("unknown", |(_, name)| name.trim()).to_owned()
}

/// What a command prints.
fn said_by(command: &[&str]) -> String {
    let output = Command::new(command[0]).args(&command[1..]).output();
    let text = output.ok().and_then(|output| String::from_utf8(output.stdout).ok());
    text.map_or("?".to_owned(), |text| text.trim().to_owned())
}
