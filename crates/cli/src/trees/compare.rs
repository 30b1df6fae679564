//! The bytes on each link, counted from the programs of algorithms.

use crate::{failure::Failure, outcome::Outcome, table};
use herringbone::core::{
    algorithm::{Algorithm, Layout},
    collective::Collective,
    group::Group,
    schedule::{Schedule, Step},
    topology::{LinkMatrix, Topology, trees::TreeMode},
};
use serde_json::{Value, json};
use std::io::Write;

/// What an algorithm sends.
struct Counted {
    name: String,
    /// In buffers, by sender and receiver.
    sent: Vec<f64>,
}

pub(super) fn run(
    topology: &Topology,
    links: &LinkMatrix,
    mode: TreeMode,
    as_json: bool,
    out: &mut dyn Write,
) -> Result<Outcome, Failure> {
    let compared = Compared::new(topology, links, mode)?;
    match as_json {
        true => writeln!(out, "{}", compared.object())?,
        false => writeln!(out, "{}", compared.table())?,
    }
    Ok(Outcome::Passed)
}

struct Compared {
    names: Vec<String>,
    /// In GB/s, by sender and receiver.
    bandwidths: Vec<f64>,
    counted: Vec<Counted>,
}

impl Compared {
    fn new(topology: &Topology, links: &LinkMatrix, mode: TreeMode) -> Result<Self, Failure> {
        let ranks = topology.ranks();
        let size = ranks.len();
        let mut bandwidths = vec![0.0; size * size];
        let rank = |node: usize| ranks.binary_search(&node).ok();
        for link in topology.links() {
            if let (Some(from), Some(to)) = (rank(link.from), rank(link.to)) {
                bandwidths[from * size + to] = link.bandwidth;
            }
        }
        let trees = |single| Algorithm::Trees { mode: Some(mode), single };
        let algorithms =
            [Algorithm::Ring, Algorithm::Star, Algorithm::radix(vec![]), trees(true), trees(false)];
        let (group, layout) =
            (Group::of_size(size as u32), Layout { links: Some(links), ..Layout::default() });
        let count = |algorithm: &Algorithm| {
            let schedule = algorithm.schedule(Collective::AllReduce, &group, &layout);
            let schedule = schedule.map_err(|why| Failure::Usage {
                problem: why.to_string(),
                hint: "see herringbone trees --help",
            })?;
            Ok(Counted { name: algorithm.to_string(), sent: sent(&schedule, size) })
        };
        let counted = algorithms.iter().map(count).collect::<Result<_, Failure>>()?;
        let names = ranks.iter().map(|node| topology.nodes()[*node].name.clone()).collect();
        Ok(Self { names, bandwidths, counted })
    }

    fn link(&self, at: usize) -> String {
        let size = self.names.len();
        format!("{}-{}", self.names[at / size], self.names[at % size])
    }

    /// The most milliseconds per GB that a link is busy, and the links that are used and are not there.
    fn slowest(&self, counted: &Counted) -> (f64, Vec<String>) {
        let used = counted.sent.iter().enumerate().filter(|(_, sent)| **sent > 0.0);
        let (there, missing): (Vec<_>, Vec<_>) = used.partition(|(at, _)| self.bandwidths[*at] > 0.0);
        let slowest = there.iter().map(|(at, sent)| *sent / self.bandwidths[*at]).fold(0.0, f64::max);
        (1000.0 * slowest, missing.into_iter().map(|(at, _)| self.link(at)).collect())
    }

    fn object(&self) -> Value {
        let of_algorithm = |counted: &Counted| {
            let used = counted.sent.iter().enumerate().filter(|(_, sent)| **sent > 0.0);
            let size = self.names.len();
            let bytes = used.map(|(at, sent)| json!({"from": at / size, "to": at % size, "buffers": sent}));
            let (slowest, missing) = self.slowest(counted);
            json!({
                "algorithm": counted.name,
                "bytes": bytes.collect::<Vec<_>>(),
                "slowest": slowest,
                "missing": missing,
            })
        };
        json!({"algorithms": self.counted.iter().map(of_algorithm).collect::<Vec<_>>()})
    }

    /// A row for each link, in buffers; below it, how long the slowest link is busy.
    fn table(&self) -> String {
        let names: Vec<&str> = self.counted.iter().map(|counted| counted.name.as_str()).collect();
        let columns = [&["link", "GB/s"], &names[..]].concat();
        let is_used = |at: &usize| {
            self.bandwidths[*at] != 0.0 || self.counted.iter().any(|counted| counted.sent[*at] != 0.0)
        };
        let links = (0..self.bandwidths.len()).filter(is_used).map(|at| {
            let mut row = vec![self.link(at), format!("{}", self.bandwidths[at])];
            row.extend(self.counted.iter().map(|counted| match counted.sent[at] {
                0.0 => String::new(),
                sent => format!("{sent:.2} K"),
            }));
            row
        });
        let mut last = vec!["slowest, ms/GB".to_owned(), String::new()];
        last.extend(self.counted.iter().map(|counted| match self.slowest(counted) {
            (slowest, missing) if missing.is_empty() => format!("{slowest:.1}"),
            (_, missing) => format!("no link {}", missing[0]),
        }));
        format!("# K is the buffer\n{}", table::text(&columns, &columns[1..], links.chain([last])))
    }
}

/// What each rank sends to each other, in buffers.
fn sent(schedule: &Schedule, size: usize) -> Vec<f64> {
    let mut sent = vec![0.0; size * size];
    let part = 1.0 / f64::from(schedule.cut().units());
    for rank in 0..size {
        let program = schedule.program(rank as u32);
        for step in program.steps() {
            if let Step::Send { to, .. } = *step {
                program.lanes(to).iter().for_each(|to| sent[rank * size + *to as usize] += part);
            }
        }
    }
    sent
}
