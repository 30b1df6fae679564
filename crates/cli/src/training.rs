//! `herringbone simulate-training`: the predicted step time of data-parallel training on given machines.

mod models;
mod options;
mod pictured;
mod profile;
mod report;
mod rows;
mod ways;
mod worker;

pub(crate) use models::find as find_model;
pub(crate) use options::{SimulateTrainingOptions, Workers};
pub(crate) use ways::{SumCosts, SumWay, WorkerMachines, pushed_first};
pub(crate) use worker::{TrainedStep, WorkerChoice};

use crate::{failure::Failure, outcome::Outcome, progress::LateBar, topologies};
use herringbone::core::{
    codec::Codec,
    training::{StepTimeline, TrainingStep, timeline},
};
use options::TrainingQuestion;
use report::TrainingReport;
use rows::{SimulatedTraining, StepRow, WayLeftOut};
use std::{collections::BTreeMap, io::Write};

pub(crate) fn run(options: &SimulateTrainingOptions, out: &mut dyn Write) -> Result<Outcome, Failure> {
    let asked = options.asked()?;
    let simulated = simulated(&asked)?;
    if simulated.rows.is_empty() {
        return Err(Failure::Usage {
            problem: simulated.left_out.iter().map(WayLeftOut::sentence).collect::<Vec<_>>().join("\n"),
            hint: "nothing is left to show: choose other algorithms, codecs or numbers of workers",
        });
    }
    let report = TrainingReport { asked: &asked, simulated: &simulated };
    if let Some(path) = &options.shown.svg {
        topologies::write(&path.to_string_lossy(), &pictured::picture(&report))?;
    }
    match (options.shown.json, options.shown.csv) {
        (true, _) => writeln!(out, "{}", report.object())?,
        (_, true) => {
            write!(out, "{}", report.csv())?;
            for left_out in &simulated.left_out {
                eprintln!("herringbone: {}", left_out.sentence());
            }
        }
        _ => write!(out, "{}", report.text())?,
    }
    Ok(Outcome::Passed)
}

/// A row for each way, codec and number of workers, and what has none.
fn simulated(asked: &TrainingQuestion) -> Result<SimulatedTraining, Failure> {
    let mut costs = SumCosts::new(&asked.machines);
    let progress = LateBar::of((asked.ways.len() * asked.codecs.len() * asked.workers.len()) as u64);
    let (mut rows, mut refused) = (Vec::new(), BTreeMap::<(String, String), Vec<u32>>::new());
    for way in &asked.ways {
        for codec in &asked.codecs {
            for workers in &asked.workers {
                progress.tell(format!("{} of {workers} workers", way.name));
                match row(asked, &mut costs, way, *codec, *workers)? {
                    Ok(row) => rows.push(row),
                    Err(why) => {
                        let name = report::named(&way.name, *codec);
                        refused.entry((name, why)).or_default().push(*workers);
                    }
                }
                progress.step();
            }
        }
    }
    let left_out = refused.into_iter().map(|((way, why), workers)| WayLeftOut { way, workers, why });
    Ok(SimulatedTraining { rows, left_out: left_out.collect(), simulations: costs.count() })
}

/// What a step takes; or why there is no such step.
fn row(
    asked: &TrainingQuestion,
    costs: &mut SumCosts<'_>,
    way: &SumWay,
    codec: Codec,
    workers: u32,
) -> Result<Result<StepRow, String>, Failure> {
    let TrainedStep { step, buckets, .. } = &asked.worker;
    let step =
        &TrainingStep { cores: step.cores.map(|of_one| asked.machines.cores(of_one, workers)), ..*step };
    let mut row = StepRow {
        algorithm: way.name.clone(),
        chosen: Vec::new(),
        codec,
        workers,
        reducers: 0,
        communication: 0,
        exposed: 0,
        step: step.computing(),
        has_prices: false,
    };
    // One worker sums nothing, whatever it would be by.
    if workers == 1 {
        return Ok(way.is_coded_by(codec).map(|()| row));
    }
    let found = match costs.of(way, codec, workers, buckets)? {
        Ok(found) => found,
        Err(why) => return Ok(Err(why)),
    };
    let mut each = found.buckets.iter().copied();
    let StepTimeline { exposed, total, .. } =
        timeline(step, buckets, asked.in_flight, |_| each.next().unwrap_or_default());
    row.communication = found.buckets.iter().fold(0, |sum, cost| sum.saturating_add(cost.time));
    if way.is_chosen() {
        row.chosen = found.algorithms;
    }
    (row.reducers, row.has_prices) = (found.reducers, found.has_prices);
    (row.exposed, row.step) = (exposed, total);
    Ok(Ok(row))
}

#[cfg(test)]
mod tests;
