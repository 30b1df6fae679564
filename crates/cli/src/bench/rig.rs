//! `--rig`: the loop that all programs in the comparison rigs share, so that their numbers can be compared.
//!
//! In: `BENCH_SIZES` (bytes), `BENCH_BUDGET_S` (seconds per size), `BENCH_OUT` (a folder), `BENCH_EXTRA_HOSTS` (hosts
//! with a reducer at port 7070), and the job. For each size an f32 sum in place of `(rank+1) * (i%17 + 1)`, or another
//! collective by the options, checked in full, then the timed loop on zeroes. Out: `BENCH_OUT/r<rank>.jsonl`, one object per
//! size.

use super::measure::{Case, Run};
use super::{
    options::{Options, START, positive},
    sample::Sample,
};
use crate::{failure::Failure, job, numbers::Sizes, outcome::Outcome};
use herringbone::{Communicator, Config};
use serde_json::json;
use std::{env, fs::File, io::Write, path::PathBuf, time::Duration};

const REDUCER_PORT: u16 = 7070;

/// Runs the loop on this rank, with elements of type `T`.
pub(super) fn run<T: Sample>(options: &Options) -> Result<Outcome, Failure> {
    let budget = Duration::from_secs_f64(setting("BENCH_BUDGET_S", positive)?.unwrap_or(0.5));
    let sizes = |text: &str| text.parse::<Sizes>().map_err(|error| error.to_string());
    let sizes = setting("BENCH_SIZES", sizes)?.unwrap_or(Sizes(vec![4, 1 << 10, 64 << 10, 1 << 20]));
    let communicator = Communicator::connect(config()?)?;
    herringbone_admin::attach(&communicator);
    let folder = setting("BENCH_OUT", |text| Ok(PathBuf::from(text)))?.unwrap_or(PathBuf::from("."));
    let path = folder.join(format!("r{}.jsonl", communicator.rank()));
    let mut out =
        File::create(&path).map_err(Failure::system(format!("cannot create {}", path.display())))?;
    let mut wrong = 0;
    for bytes in sizes.0 {
        let case = Case::<T>::new(&communicator, options.collective, options.op(), bytes);
        let run = case.one(options.ways.mapped, budget)?;
        wrong += run.wrong;
        writeln!(out, "{}", line(bytes, &run))
            .map_err(Failure::system(format!("cannot write {}", path.display())))?;
    }
    communicator.barrier()?;
    Ok(Outcome::passed_if(wrong == 0))
}

fn config() -> Result<Config, Failure> {
    let config = job::of_environment(START)?;
    let hosts = env::var("BENCH_EXTRA_HOSTS").unwrap_or_default();
    let reducers: Vec<String> = hosts
        .split(',')
        .map(str::trim)
        .filter(|host| !host.is_empty())
        .map(|host| format!("{host}:{REDUCER_PORT}"))
        .collect();
    Ok(if reducers.is_empty() { config } else { config.reducers(reducers) })
}

/// A variable of the rig, if it is set to something; `meaning` says of a text that is not one why.
fn setting<T>(name: &'static str, meaning: impl Fn(&str) -> Result<T, String>) -> Result<Option<T>, Failure> {
    let text = env::var(name).unwrap_or_default();
    if text.trim().is_empty() {
        return Ok(None);
    }
    meaning(text.trim()).map(Some).map_err(|problem| Failure::Usage {
        problem: format!("{name} holds `{text}`: {problem}"),
        hint: "the rigs set these variables; see `herringbone bench --help`",
    })
}

/// One line of the result, for the size that was asked for.
fn line(bytes: usize, run: &Run) -> serde_json::Value {
    let timing = &run.timing;
    json!({
        "bytes": bytes,
        "iters": timing.each.len(),
        "wall_s": timing.wall.as_secs_f64(),
        "cpu_s": timing.cpu.as_secs_f64(),
        "med_s": timing.quantile(5).as_secs_f64(),
        "p10_s": timing.quantile(1).as_secs_f64(),
        "p90_s": timing.quantile(9).as_secs_f64(),
        "max_s": timing.quantile(10).as_secs_f64(),
        "ok": run.wrong == 0,
    })
}
