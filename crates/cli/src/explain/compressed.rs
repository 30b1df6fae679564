//! The effect of codecs on a call's predicted time, and whether one is worth it.

use super::candidates::{NONE, limit};
use crate::{failure::Failure, numbers::time, table};
use herringbone::core::{
    codec::Codec,
    plan::{Guidance, Request, automatic, compare_codecs, predicted::Candidate},
    prepare::Sizing,
    simulate::SECOND,
};
use indicatif::HumanBytes;
use serde_json::{Value, json};
use std::io::Write;

/// A call without a codec, then with each of some.
pub(super) struct CodecComparison {
    bytes: u64,
    rows: Vec<CodecRow>,
    /// What `auto` takes.
    automatic: Codec,
    why: String,
    is_calibrated: bool,
}

struct CodecRow {
    codec: Codec,
    algorithm: String,
    seconds: f64,
    link_bytes: u64,
    limit: String,
}

impl CodecComparison {
    pub(super) fn of(request: &Request<'_>, guidance: &Guidance, sizing: Sizing, codecs: &[Codec]) -> Self {
        let known = guidance.calibration.unwrap_or_default();
        let others = codecs.iter().filter(|codec| **codec != Codec::Plain);
        let codecs: Vec<Codec> = [Codec::Plain].iter().chain(others).copied().collect();
        let (automatic, why) = automatic(guidance, request, sizing);
        let compared = compare_codecs(request, &known, sizing, &codecs);
        Self {
            bytes: request.bytes,
            rows: compared.iter().map(|(codec, best)| CodecRow::of(*codec, best)).collect(),
            automatic,
            why,
            is_calibrated: guidance.calibration.is_some(),
        }
    }

    pub(super) fn print(&self, out: &mut dyn Write) -> Result<(), Failure> {
        const COLUMNS: [&str; 7] =
            ["codec", "algorithm", "predicted", "x none", "bytes/link", "of none", "limit"];
        let constants = if self.is_calibrated { "the calibration's" } else { "built-in" };
        writeln!(out, "\n# codecs for {}, by {constants} constants", HumanBytes(self.bytes))?;
        if self.rows.is_empty() {
            return Ok(writeln!(out, "{NONE}")?);
        }
        let rows = self.rows.iter().map(|row| row.cells(&self.rows[0]));
        writeln!(out, "{}", table::text(&COLUMNS, &COLUMNS[2..6], rows))?;
        if self.rows.iter().any(|row| row.codec.depends_on_numbers()) {
            writeln!(out, "* at most: the size depends on the numbers")?;
        }
        let Self { automatic: codec, why, .. } = self;
        // With a calibration the table has the times.
        let why = if self.is_calibrated { String::new() } else { format!(": {why}") };
        writeln!(out, "{}", table::wrapped(&format!("compression=auto would take {codec}{why}")))?;
        Ok(())
    }

    pub(super) fn object(&self) -> Value {
        let rows: Vec<Value> = self.rows.iter().map(|row| row.object(&self.rows[0])).collect();
        json!({
            "by": rows,
            "auto": { "codec": self.automatic.to_string(), "why": self.why },
            "calibrated": self.is_calibrated,
        })
    }
}

impl CodecRow {
    fn of(codec: Codec, best: &Candidate) -> Self {
        Self {
            codec,
            algorithm: best.algorithm.to_string(),
            seconds: best.outcome.total() as f64 / SECOND as f64,
            link_bytes: best.outcome.busiest_link_bytes(),
            limit: limit(best),
        }
    }

    /// Time and bytes, as parts of what they are without a codec.
    fn beside(&self, plain: &Self) -> (f64, f64) {
        let part = |one: f64, other: f64| if other > 0.0 { one / other } else { 1.0 };
        (part(self.seconds, plain.seconds), part(self.link_bytes as f64, plain.link_bytes as f64))
    }

    fn cells(&self, plain: &Self) -> [String; 7] {
        let (times, bytes) = self.beside(plain);
        let mark = if self.codec.depends_on_numbers() { "*" } else { "" };
        [
            format!("{}{mark}", self.codec),
            self.algorithm.clone(),
            time(self.seconds),
            format!("{times:.2}"),
            HumanBytes(self.link_bytes).to_string(),
            format!("{bytes:.3}"),
            self.limit.clone(),
        ]
    }

    fn object(&self, plain: &Self) -> Value {
        let (times, bytes) = self.beside(plain);
        json!({
            "codec": self.codec.to_string(),
            "algorithm": self.algorithm,
            "seconds": self.seconds,
            "times_plain": times,
            "link_bytes": self.link_bytes,
            "link_bytes_of_plain": bytes,
            "at_most": self.codec.depends_on_numbers(),
            "limit": self.limit,
        })
    }
}
