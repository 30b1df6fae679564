//! The candidates for a call, their predicted costs, and where the choice would change.

use crate::{failure::Failure, numbers::time, table};
use herringbone::core::{
    plan::{
        Guidance, PriceBasis, Request, busiest_link,
        predicted::{self, Candidate, Comparison, Unpriced, class_of},
        price,
    },
    prepare::Sizing,
    simulate::{Calibration, Resource, SECOND},
};
use indicatif::HumanBytes;
use serde_json::{Value, json};
use std::io::Write;

/// In place of a table without rows, which only a call has that is too long for all of them.
pub(super) const NONE: &str = "no times: an operation of this size has too many segments to count";

/// Why times do not decide.
const BY_SIZES: &str =
    "sizes decide, because HERRINGBONE_CALIBRATION is not set; with it, the shortest predicted time decides";

/// The candidates for a call, by predicted time.
pub(super) struct Candidates {
    bytes: u64,
    rows: Vec<Row>,
    /// Candidates that are not compared with this many ranks, and why.
    left_out: Vec<String>,
    /// Where another is chosen: sizes, and rates of ports.
    changes: Vec<String>,
    /// The constants by which the rows are predicted, and whether sizes alone decide.
    constants: &'static str,
    by_sizes: bool,
}

struct Row {
    name: String,
    seconds: f64,
    /// What choices compare.
    price: Option<f64>,
    link_bytes: u64,
    rounds: u32,
    limit: String,
    memory: u64,
}

impl Candidates {
    /// Those for a request.
    pub(super) fn of(request: &Request<'_>, guidance: &Guidance, sizing: Sizing) -> Result<Self, Failure> {
        let known = guidance.constants();
        let request = &Request { forced: None, ..*request };
        let Comparison { by_time, left_out } = predicted::compared(request, &known, sizing)
            .map_err(|error| Failure::Stalled { problem: error.to_string() })?;
        let is_large =
            |why: &&Unpriced| matches!(why, Unpriced::TooManyMessages { .. } | Unpriced::TooLarge { .. });
        Ok(Self {
            bytes: request.bytes,
            rows: by_time.iter().map(|candidate| Row::of(request, candidate, &known, sizing)).collect(),
            left_out: left_out.iter().filter(is_large).map(Unpriced::to_string).collect(),
            changes: changes(request, guidance, sizing),
            constants: match (guidance.calibration, guidance.latency) {
                (Some(_), _) => "the calibration's",
                (None, Some(_)) => "the round trip's",
                (None, None) => "built-in",
            },
            by_sizes: !guidance.is_timed(),
        })
    }

    pub(super) fn print(&self, out: &mut dyn Write) -> Result<(), Failure> {
        const COLUMNS: [&str; 7] =
            ["candidate", "price", "predicted", "bytes/link", "rounds", "memory", "limit"];
        writeln!(out, "\n# candidates for {}, by {} constants", HumanBytes(self.bytes), self.constants)?;
        if self.rows.is_empty() {
            return Ok(writeln!(out, "{NONE}")?);
        }
        writeln!(out, "{}", table::text(&COLUMNS, &COLUMNS[1..6], self.rows.iter().map(Row::cells)))?;
        for line in self.left_out.iter().chain(&self.changes) {
            writeln!(out, "{}", table::wrapped(line))?;
        }
        if self.by_sizes {
            writeln!(out, "{}", table::wrapped(BY_SIZES))?;
        }
        Ok(())
    }

    pub(super) fn object(&self) -> Value {
        let rows: Vec<Value> = self.rows.iter().map(Row::object).collect();
        json!({ "by": rows, "left_out": self.left_out, "changes": self.changes, "calibrated": !self.by_sizes })
    }
}

impl Row {
    fn of(request: &Request<'_>, candidate: &Candidate, known: &Calibration, sizing: Sizing) -> Self {
        let priced = price(request, &candidate.algorithm, PriceBasis { known, sizing });
        let schedule = candidate.verified.schedule();
        let units = busiest_link(schedule, request.hosts, request.widening);
        let link =
            (u128::from(units) * u128::from(request.bytes)).div_ceil(u128::from(schedule.cut().units()));
        let outcome = &candidate.outcome;
        Self {
            name: candidate.algorithm.to_string(),
            seconds: outcome.total() as f64 / SECOND as f64,
            price: priced.map(|nanoseconds| nanoseconds as f64 / 1e9),
            link_bytes: u64::try_from(link).unwrap_or(u64::MAX),
            rounds: candidate.cost().rounds,
            limit: limit(candidate),
            memory: outcome.staged,
        }
    }

    fn cells(&self) -> [String; 7] {
        let price = self.price.map_or_else(|| "-".into(), time);
        let memory = HumanBytes(self.memory).to_string();
        let [link, rounds] = [HumanBytes(self.link_bytes).to_string(), self.rounds.to_string()];
        [self.name.clone(), price, time(self.seconds), link, rounds, memory, self.limit.clone()]
    }

    fn object(&self) -> Value {
        json!({
            "algorithm": self.name,
            "price_seconds": self.price,
            "seconds": self.seconds,
            "link_bytes": self.link_bytes,
            "rounds": self.rounds,
            "memory_bytes": self.memory,
            "limit": self.limit,
        })
    }
}

/// What is busiest, and how much of the time.
pub(super) fn limit(candidate: &Candidate) -> String {
    let Candidate { verified, outcome, .. } = candidate;
    outcome.busiest().map_or_else(String::new, |used| {
        // An estimate knows the pace of the segments that it leaves out, but not their end.
        let part = (100.0 * used.busy as f64 / outcome.total().max(1) as f64).min(100.0);
        format!("{}, busy {part:.0} %", place(used.place, verified.schedule().workers()))
    })
}

fn place(place: Resource, workers: u32) -> String {
    match place {
        Resource::Thread(rank) if rank >= workers => "a reducer's thread".into(),
        Resource::Thread(_) => "a rank's thread".into(),
        Resource::Out(_) | Resource::Into(_) => "a host's port".into(),
        Resource::Link { from, to } => format!("link {from} to {to}"),
        Resource::SwitchOut(_) | Resource::SwitchInto(_) => "a switch".into(),
        Resource::SiteOut(_) | Resource::SiteInto(_) => "a site's uplink".into(),
    }
}

/// What would lead to another choice.
fn changes(request: &Request<'_>, guidance: &Guidance, sizing: Sizing) -> Vec<String> {
    let chosen = |request: &Request<'_>, guidance: &Guidance| {
        Some(guidance.choose(request, sizing).ok()?.algorithm.to_string())
    };
    let Some(now) = chosen(request, guidance) else { return Vec::new() };
    let differs = |request: &Request<'_>| chosen(request, guidance).filter(|other| *other != now);
    let mut found = Vec::new();
    let up =
        std::iter::successors(Some(class_of(request.bytes)), |bytes| bytes.checked_mul(2)).skip(1).take(12);
    let down = std::iter::successors(Some(class_of(request.bytes)), |bytes| Some(bytes / 2)).skip(1).take(24);
    let at = |bytes: u64| Some((bytes, differs(&Request { bytes, ..*request })?));
    if let Some((bytes, other)) = up.clone().find_map(at) {
        found.push(format!("at {} the choice would be {other}", HumanBytes(bytes)));
    }
    if let Some((bytes, other)) = down.take_while(|bytes| *bytes > 0).find_map(at) {
        found.push(format!("at {} the choice would be {other}", HumanBytes(bytes)));
    }
    let Some(known) = guidance.calibration else { return found };
    for (word, port) in [("half", known.port / 2), ("twice", known.port.saturating_mul(2))] {
        let reducer_port =
            if word == "half" { known.reducer_port / 2 } else { known.reducer_port.saturating_mul(2) };
        let known = Calibration { port, reducer_port, ..known };
        let guidance = &Guidance { calibration: Some(known), ..guidance.clone() };
        if let Some(other) = chosen(request, guidance).filter(|other| *other != now) {
            found.push(format!("with {word} the rate of the ports the choice would be {other}"));
        }
    }
    found
}
