//! `bench --calibrate`: constants of the machines that a job runs on, for `HERRINGBONE_CALIBRATION` and `simulate`.
//!
//! Sums of several sizes are timed, each size with a different algorithm, and rank 0 fits the constants to the times.

use super::{
    measure::Case,
    options::{Options, START},
};
use crate::{failure::Failure, job, outcome::Outcome, progress::LateBar, table};
use herringbone::{
    Collective, Communicator, ReduceOp,
    calibrate::{TimedAllReduce, coding_rates, fit_constants},
    core::{
        algorithm::Algorithm,
        plan::{
            Guidance, PlanRules,
            fitting::{FIT_ROUNDS, Fitted},
        },
        simulate::{Calibration, SECOND},
    },
    settings::Bytes,
};
use serde_json::json;
use std::{fmt::Write as _, fs, io::Write, path::Path, time::Duration};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// The timed sizes, each once, so that the size decides the algorithm.
const TIMED: [(usize, &str); 10] = [
    (KIB, "doubling"),
    (4 * KIB, "radix"),
    (32 * KIB, "tree"),
    (64 * KIB, "doubling"),
    (512 * KIB, "tree"),
    (MIB, "radix"),
    (2 * MIB, "ring"),
    (4 * MIB, "tree"),
    (8 * MIB, "doubling"),
    (25 * MIB, "radix"),
];
const TIMED_WITH_REDUCERS: [(usize, &str); 3] =
    [(3 * MIB / 2, "reduction_server"), (6 * MIB, "reduction_server"), (16 * MIB, "reduction_server")];

/// Times calls on this rank; rank 0 writes the constants to `path` and prints.
pub(super) fn run(options: &Options, path: &Path, out: &mut dyn Write) -> Result<Outcome, Failure> {
    let config = job::of_environment(START)?;
    let start = config.guided_by().calibration.unwrap_or(Calibration::DEFAULT);
    let start = match options.ways.gbps {
        Some(gbps) => {
            let port = (gbps * 125e6) as u64;
            Calibration { port, reducer_port: port, ..start }
        }
        None => start,
    };
    let with_reducers = config.has_reducers();
    let rules = rules(&calls(with_reducers)?)?;
    let communicator = Communicator::connect(config.guidance(Guidance { rules, ..Guidance::default() }))?;
    if communicator.size() < 2 {
        return Err(Failure::Usage { problem: "one rank alone has nothing to time".into(), hint: START });
    }
    let is_first = communicator.rank() == 0;
    // Rank 0's reducers and rules apply.
    let writable = if is_first { can_be_written(path) } else { Ok(()) };
    let mut said = [u8::from(is_first && with_reducers), u8::from(writable.is_err())];
    communicator.broadcast(&mut said, 0)?;
    writable?;
    if said[1] == 1 {
        return Ok(Outcome::passed_if(false));
    }
    let calls = calls(said[0] == 1)?;
    let budget = Duration::from_secs_f64(options.seconds);
    let progress = is_first.then(|| LateBar::of((calls.len() + FIT_ROUNDS) as u64));
    let (mut timed, mut wrong) = (Vec::new(), 0);
    for (bytes, algorithm) in calls {
        progress.iter().for_each(|progress| progress.tell(format!("{algorithm} with {}", Bytes(bytes))));
        let run = Case::<f32>::new(&communicator, Collective::AllReduce, ReduceOp::Sum, bytes)
            .one(false, budget)?;
        wrong += run.wrong;
        timed.push(TimedAllReduce { bytes, algorithm, time: run.timing.quantile(5) });
        progress.iter().for_each(LateBar::step);
    }
    communicator.barrier()?;
    if let Some(progress) = progress {
        progress.tell("fitting the constants");
        let mut fitted =
            fit_constants(&communicator, &timed, start, options.ways.gbps.is_some(), || progress.step())?;
        // The rates of codecs are measured by themselves.
        let costs = &mut fitted.calibration.costs;
        (costs.encode, costs.decode) = coding_rates();
        drop(progress);
        let about = format!("# {}\n# fitted by `herringbone bench --calibrate`\n", communicator.describe());
        fs::write(path, format!("{about}{}", fitted.calibration))
            .map_err(Failure::system(format!("cannot write {}", path.display())))?;
        match options.json {
            true => writeln!(out, "{}", object(&timed, &fitted, path))?,
            false => write!(out, "{}", report(&timed, &fitted, path))?,
        }
    }
    Ok(Outcome::passed_if(wrong == 0))
}

/// Fails before anything is timed if the file cannot be written; what is in it stays.
fn can_be_written(path: &Path) -> Result<(), Failure> {
    let is_new = !path.exists();
    let opened = fs::OpenOptions::new().append(true).create(true).open(path);
    opened.map_err(Failure::system(format!("cannot write {}", path.display())))?;
    if is_new {
        // Whether it is gone is of no matter: it is written in the end.
        let _gone = fs::remove_file(path);
    }
    Ok(())
}

/// What is timed, the smallest first.
fn calls(with_reducers: bool) -> Result<Vec<(usize, Algorithm)>, Failure> {
    let more = if with_reducers { &TIMED_WITH_REDUCERS[..] } else { &[] };
    let mut calls = TIMED.iter().chain(more).copied().collect::<Vec<_>>();
    calls.sort_unstable();
    let named = |(bytes, name): (usize, &str)| Some((bytes, name.parse().ok()?));
    calls.into_iter().map(named).collect::<Option<_>>().ok_or_else(|| Failure::Usage {
        problem: "an algorithm of the calibration is unknown".into(),
        hint: "this is a bug, please report it",
    })
}

/// Rules by which each size takes its algorithm.
fn rules(calls: &[(usize, Algorithm)]) -> Result<PlanRules, Failure> {
    let mut text = String::from("all_reduce:");
    for (at, (bytes, algorithm)) in calls.iter().enumerate() {
        let from = if at == 0 { 0 } else { *bytes };
        let to = calls.get(at + 1).map_or("inf".to_owned(), |(next, _)| next.to_string());
        let comma = if at == 0 { "" } else { "," };
        let _ = write!(text, "{comma}{from}-{to}:{algorithm}");
    }
    PlanRules::parse(&text).map_err(|error| Failure::Usage {
        problem: error.to_string(),
        hint: "this is a bug, please report it",
    })
}

/// Measured and predicted seconds of each call.
fn rows<'a>(
    timed: &'a [TimedAllReduce],
    fitted: &'a Fitted,
) -> impl Iterator<Item = (&'a TimedAllReduce, f64, f64)> {
    timed
        .iter()
        .zip(&fitted.predicted)
        .map(|(call, predicted)| (call, call.time.as_secs_f64(), *predicted as f64 / SECOND as f64))
}

fn report(timed: &[TimedAllReduce], fitted: &Fitted, path: &Path) -> String {
    let columns = ["algorithm", "size", "measured", "predicted", "ratio"];
    let cells = rows(timed, fitted).map(|(call, measured, predicted)| {
        [
            call.algorithm.to_string(),
            Bytes(call.bytes).to_string(),
            format!("{:.3} ms", 1e3 * measured),
            format!("{:.3} ms", 1e3 * predicted),
            format!("{:.2}", predicted / measured),
        ]
    });
    let far =
        rows(timed, fitted).any(|(_, measured, predicted)| !(0.8..1.25).contains(&(predicted / measured)));
    let warning = match far {
        true => {
            "# Some times are far from their predictions: other programs used the machines, or ranks share cores. Try again; \
             if you know the rate of the ports, pass it with --gbps.\n"
        }
        false => "",
    };
    let path = path.display();
    format!(
        "{}\n{warning}# The constants are in {path}. Jobs use them with HERRINGBONE_CALIBRATION={path}\n{}",
        table::text(&columns, &columns[1..], cells),
        fitted.calibration
    )
}

fn object(timed: &[TimedAllReduce], fitted: &Fitted, path: &Path) -> serde_json::Value {
    let calls = rows(timed, fitted).map(|(call, measured, predicted)| {
        json!({
            "algorithm": call.algorithm.to_string(),
            "bytes": call.bytes,
            "measured_s": measured,
            "predicted_s": predicted,
        })
    });
    json!({
        "file": path.to_string_lossy(),
        "constants": fitted.calibration.to_string(),
        "calls": calls.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_size_takes_its_algorithm() {
        for with_reducers in [false, true] {
            let calls = calls(with_reducers).unwrap();
            let rules = rules(&calls).unwrap();
            for (bytes, algorithm) in &calls {
                assert_eq!(rules.algorithm(Collective::AllReduce, *bytes as u64), Some(algorithm), "{bytes}");
            }
        }
    }
}
