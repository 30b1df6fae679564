//! Steps in a table, as comma-separated values and as JSON.

use super::{
    options::TrainingQuestion,
    rows::{SimulatedTraining, StepRow, WayLeftOut},
};
use crate::table;
use herringbone::core::{
    codec::Codec,
    simulate::{Picoseconds, SECOND},
};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// What was asked for, and what came of it.
pub(super) struct TrainingReport<'a> {
    pub(super) asked: &'a TrainingQuestion,
    pub(super) simulated: &'a SimulatedTraining,
}

/// An algorithm and a codec, if there is one.
pub(super) fn named(algorithm: &str, codec: Codec) -> String {
    match codec {
        Codec::Plain => algorithm.to_owned(),
        codec => format!("{algorithm} {codec}"),
    }
}

fn seconds(time: Picoseconds) -> f64 {
    time as f64 / SECOND as f64
}

impl WayLeftOut {
    pub(super) fn sentence(&self) -> String {
        let workers = self.workers.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        format!("left out: {} with {workers} workers: {}", self.way, self.why)
    }
}

impl TrainingReport<'_> {
    /// The step of one worker alone, divided by this one.
    pub(super) fn efficiency(&self, row: &StepRow) -> f64 {
        match row.step {
            0 => 1.0,
            step => self.asked.worker.step.computing() as f64 / step as f64,
        }
    }

    fn steps_per_second(row: &StepRow) -> f64 {
        1.0 / seconds(row.step.max(1))
    }

    pub(super) fn text(&self) -> String {
        const COLUMNS: [&str; 8] =
            ["algorithm", "codec", "workers", "steps/s", "step", "sums", "exposed", "efficiency"];
        let milliseconds = |time| format!("{:.1} ms", 1e3 * seconds(time));
        let rows = self.simulated.rows.iter().map(|row| {
            vec![
                row.title(),
                row.codec.to_string(),
                row.workers.to_string(),
                format!("{}{}", if row.has_prices { "~" } else { "" }, rate(Self::steps_per_second(row))),
                milliseconds(row.step),
                milliseconds(row.communication),
                milliseconds(row.exposed),
                format!("{:.1} %", 100.0 * self.efficiency(row)),
            ]
        });
        let mut text = self.head();
        let _written = writeln!(text, "{}", table::text(&COLUMNS, &COLUMNS[2..], rows));
        if self.simulated.rows.iter().any(|row| row.has_prices) {
            text += "~: too many messages to simulate, so sums have the prices that plans use (docs/planning.md)\n";
        }
        for left_out in &self.simulated.left_out {
            let _written = writeln!(text, "{}", left_out.sentence());
        }
        text
    }

    /// What all rows rest on.
    fn head(&self) -> String {
        let TrainingQuestion { model, worker, machines, in_flight, .. } = self.asked;
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let links = match machines.wiring.size() {
            Some(_) => "a topology's links".to_owned(),
            None => format!("{} Gbit/s", machines.constants.port as f64 / 125e6),
        };
        format!(
            "# {}: {}\n# a worker alone: {:.1} ms; {} buckets, {:.1} MiB, {in_flight} in flight; {links}, {} us\n",
            model.profile.name,
            worker.basis,
            1e3 * seconds(worker.step.computing()),
            worker.buckets.len(),
            mib(worker.bytes()),
            machines.constants.latency as f64 / 1e6,
        )
    }

    pub(super) fn csv(&self) -> String {
        let mut text = String::from(
            "algorithm,codec,workers,reducers,steps_per_second,step_s,communication_s,exposed_s,efficiency,has_prices\n",
        );
        for row in &self.simulated.rows {
            // Names of algorithms, and of codecs, can have commas.
            let _written = writeln!(
                text,
                "\"{}\",\"{}\",{},{},{:.6},{:.9},{:.9},{:.9},{:.6},{}",
                row.algorithm,
                row.codec,
                row.workers,
                row.reducers,
                Self::steps_per_second(row),
                seconds(row.step),
                seconds(row.communication),
                seconds(row.exposed),
                self.efficiency(row),
                row.has_prices,
            );
        }
        text
    }

    pub(super) fn object(&self) -> Value {
        let TrainingQuestion { model, worker, in_flight, .. } = self.asked;
        let rows = self.simulated.rows.iter().map(|row| {
            json!({
                "algorithm": row.algorithm,
                "chosen": row.chosen,
                "codec": row.codec.to_string(),
                "workers": row.workers,
                "reducers": row.reducers,
                "steps_per_second": Self::steps_per_second(row),
                "step_s": seconds(row.step),
                "communication_s": seconds(row.communication),
                "exposed_s": seconds(row.exposed),
                "efficiency": self.efficiency(row),
                "has_prices": row.has_prices,
            })
        });
        let buckets = worker.buckets.iter();
        let left_out = self.simulated.left_out.iter().map(
            |left_out| json!({ "algorithm": left_out.way, "workers": left_out.workers, "why": left_out.why }),
        );
        json!({
            "model": model.profile.name,
            "basis": worker.basis,
            "forward_s": seconds(worker.step.forward),
            "backward_s": seconds(worker.step.backward),
            "after_s": seconds(worker.step.after),
            "buckets": buckets.map(|bucket| json!({ "bytes": bucket.bytes, "ready_s": seconds(bucket.ready) })).collect::<Vec<_>>(),
            "in_flight": in_flight,
            "simulations": self.simulated.simulations,
            "steps": rows.collect::<Vec<_>>(),
            "left_out": left_out.collect::<Vec<_>>(),
        })
    }
}

/// Steps per second, with three digits that tell slow ways apart.
fn rate(steps_per_second: f64) -> String {
    match steps_per_second {
        slow if slow < 0.01 => format!("{slow:.2e}"),
        fast => format!("{fast:.3}"),
    }
}
