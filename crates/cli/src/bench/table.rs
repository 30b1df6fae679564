//! The table of nccl-tests, or one JSON object per size.

use super::measure::{Column, Row};
use super::options::Options;
use crate::failure::Failure;
use serde_json::{Value, json};
use std::io::Write;

/// Prints rows as they come.
pub(super) struct Printer<'a> {
    options: &'a Options,
    ranks: u32,
    out: &'a mut dyn Write,
    bus: Vec<f64>,
    wrong: u64,
    /// Each algorithm, and the first and the last size that took it.
    algorithms: Vec<(String, usize, usize)>,
    /// That one was forced and not taken, and why.
    not_forced: Option<String>,
}

impl<'a> Printer<'a> {
    pub(super) fn new(options: &'a Options, ranks: u32, out: &'a mut dyn Write) -> Self {
        Self { options, ranks, out, bus: Vec::new(), wrong: 0, algorithms: Vec::new(), not_forced: None }
    }

    /// The lines above the first row.
    pub(super) fn head(&mut self, group: &str) -> Result<(), Failure> {
        if self.options.json {
            return Ok(());
        }
        let collective = self.options.collective;
        writeln!(
            self.out,
            "# herringbone {}, {collective}, {} rank{}",
            env!("CARGO_PKG_VERSION"),
            self.ranks,
            if self.ranks == 1 { "" } else { "s" }
        )?;
        for line in group.lines() {
            writeln!(self.out, "# {line}")?;
        }
        writeln!(self.out, "#{:>57}{:>19}{:>35}", "", "out-of-place", "in-place")?;
        let placement = format!("{:>10} {:>7} {:>7} {:>6}", "time", "algbw", "busbw", "#wrong");
        writeln!(
            self.out,
            "#{:>12} {:>12} {:>8} {:>8} {:>7} {placement} {placement}",
            "size", "count", "type", "redop", "root"
        )?;
        let units = format!("{:>10} {:>7} {:>7} {:>6}", "(us)", "(GB/s)", "(GB/s)", "");
        writeln!(
            self.out,
            "#{:>12} {:>12} {:>8} {:>8} {:>7} {units} {units}",
            "(B)", "(elements)", "", "", ""
        )?;
        Ok(self.out.flush()?)
    }

    /// One size.
    pub(super) fn row(&mut self, row: &Row) -> Result<(), Failure> {
        self.wrong += row.wrong();
        let columns = [row.out_of_place, row.in_place];
        for column in columns.iter().flatten() {
            self.bus.push(self.rates(row, column).1);
        }
        let Row { algorithm, why, .. } = row;
        if let Some(at) = why.find("; not the forced ") {
            self.not_forced = Some(why[at..].to_owned());
        }
        match self.algorithms.last_mut() {
            Some((last, _, to)) if last == algorithm => *to = row.bytes,
            _ => self.algorithms.push((algorithm.clone(), row.bytes, row.bytes)),
        }
        let line = if self.options.json { self.object(row).to_string() } else { self.line(row) };
        writeln!(self.out, "{line}")?;
        Ok(self.out.flush()?)
    }

    /// The lines below the last row.
    pub(super) fn trailer(&mut self) -> Result<(), Failure> {
        if !self.options.json {
            let verdict = if self.wrong == 0 { "OK" } else { "FAILED" };
            let mean = self.bus.iter().sum::<f64>() / self.bus.len().max(1) as f64;
            let sizes = |(algorithm, from, to): &(String, usize, usize)| match from == to {
                true => format!("{algorithm} ({from} B)"),
                false => format!("{algorithm} ({from} to {to} B)"),
            };
            let algorithms: Vec<String> = self.algorithms.iter().map(sizes).collect();
            let not_forced = self.not_forced.as_deref().unwrap_or_default();
            writeln!(self.out, "# Algorithm            : {}{not_forced}", algorithms.join(", "))?;
            writeln!(self.out, "# Out of bounds values : {} {verdict}", self.wrong)?;
            writeln!(self.out, "# Avg bus bandwidth    : {mean:.4}")?;
        }
        Ok(self.out.flush()?)
    }

    fn line(&self, row: &Row) -> String {
        let Options { collective, dtype, .. } = self.options;
        let op = if collective.folds() { self.options.op().name() } else { "none" };
        let root = collective.root().map_or("-1".to_owned(), |root| root.to_string());
        let placement = |column: Option<Column>| match column {
            None => format!("{:>10} {:>7} {:>7} {:>6}", "N/A", "N/A", "N/A", "N/A"),
            Some(column) => {
                let (algorithm, bus) = self.rates(row, &column);
                let time = format!("{:.2}", column.seconds * 1e6);
                format!("{time:>10} {algorithm:>7.2} {bus:>7.2} {:>6}", column.wrong)
            }
        };
        format!(
            " {:>12} {:>12} {:>8} {op:>8} {root:>7} {} {}",
            row.bytes,
            row.count,
            dtype.name(),
            placement(row.out_of_place),
            placement(row.in_place)
        )
    }

    fn object(&self, row: &Row) -> Value {
        let Options { collective, dtype, .. } = self.options;
        let placement = |column: Option<Column>| {
            column.map(|column| {
                let (algorithm, bus) = self.rates(row, &column);
                json!({ "us": column.seconds * 1e6, "algbw": algorithm, "busbw": bus, "wrong": column.wrong })
            })
        };
        json!({
            "collective": collective.name(),
            "ranks": self.ranks,
            "bytes": row.bytes,
            "count": row.count,
            "dtype": dtype.name(),
            "op": collective.folds().then(|| self.options.op().name()),
            "root": collective.root(),
            "algorithm": row.algorithm,
            "why": row.why,
            "out_of_place": placement(row.out_of_place),
            "in_place": placement(row.in_place),
        })
    }

    /// GB/s of the algorithm, and of the bus: what each rank's link carries each way at the least, as nccl-tests
    /// defines both.
    fn rates(&self, row: &Row, column: &Column) -> (f64, f64) {
        let algorithm = row.bytes as f64 / column.seconds / 1e9;
        (algorithm, algorithm * self.options.collective.bus_share(self.ranks))
    }
}
