//! The timeline of a job's processes, or of one of them, read for its roofs.

use super::roofs::{Roofline, covered};
use crate::chrome::{EventReader, ReadEvent};
use herringbone::{
    Collective,
    core::{
        simulate::{Picoseconds, Roof, RoofCounter, duration},
        trace::{TracePhase, timeline},
    },
};
use indicatif::HumanBytes;
use serde_json::Value;
use std::{
    collections::{BTreeMap, HashMap},
    io::BufRead,
};

/// Whether a file that begins with this event is a job's timeline.
pub(super) fn is_of_job(first: &Value) -> bool {
    first["name"] == timeline::JOB || first["name"] == timeline::PROCESS
}

/// What was found.
#[derive(Debug, Default)]
struct RoofReading {
    /// The name of each process that is a rank, and how many ranks its job has.
    ranks: BTreeMap<u32, String>,
    world: u64,
    /// Whether the operation of a row is included.
    counts: HashMap<(u32, u32), bool>,
    counter: RoofCounter<String>,
    /// Bytes that each rank has summed, and that it has sent.
    bytes: BTreeMap<u32, u64>,
    sent: BTreeMap<u32, u64>,
    under_way: Vec<(Picoseconds, Picoseconds)>,
}

/// Takes the all-reduces of a timeline; time with several in flight is included once. `port` is the rate of a rank's port in
/// bytes/s, which is not in a timeline.
///
/// # Errors
/// If it has none, or cannot be read.
pub(super) fn roofline(mut reader: EventReader<impl BufRead>, port: u64) -> Result<Roofline, String> {
    let mut read = RoofReading::default();
    while let Some(text) = reader.next()? {
        // Only these are looked at, and a timeline has many more.
        if text.starts_with(br#"{"ph":"M""#) || text.starts_with(br#"{"ph":"X""#) {
            read.event(&ReadEvent::parse(text)?);
        }
    }
    let bytes = read.bytes.values().copied().max().unwrap_or(0);
    if bytes == 0 {
        return Err("it has no finished all-reduces of ranks".into());
    }
    for (rank, sent) in &read.sent {
        let name = &read.ranks[rank];
        read.counter.add(
            format!("the port of {name}, at the rate of the constants"),
            Roof::Link,
            *sent,
            duration(*sent, port),
        );
    }
    let ranks = read.ranks.len().max(usize::try_from(read.world).unwrap_or(0)).min(u32::MAX as usize) as u32;
    let mut bounds = read.counter.bounds();
    bounds.retain(|bound| bound.alone > 0);
    Ok(Roofline {
        title: format!("a job's timeline: all-reduces of {}, ranks {ranks}", HumanBytes(bytes)),
        total: covered(&read.under_way),
        collective: Collective::AllReduce,
        bytes,
        ranks,
        parts: None,
        bounds,
    })
}

impl RoofReading {
    fn event(&mut self, event: &ReadEvent) {
        let process = event.row.process;
        if event.phase == TracePhase::Metadata {
            if event.name == timeline::PROCESS && event.text("role") == Some(timeline::ROLES[0]) {
                let number = event.whole("number").unwrap_or(0);
                self.ranks.insert(process, format!("{} {number}", timeline::ROLES[0]));
                self.world = self.world.max(event.whole("world").unwrap_or(0));
            }
            return;
        }
        let (Some(name), Some(start), Some(end)) = (self.ranks.get(&process), event.at, event.end()) else {
            return;
        };
        let row = (process, event.row.thread);
        match event.category.as_str() {
            timeline::OPERATION => {
                let is_counted = event.name == "all_reduce" && event.text("failed").is_none();
                self.counts.insert(row, is_counted);
                if is_counted {
                    *self.bytes.entry(process).or_default() += event.whole("bytes").unwrap_or(0);
                    *self.sent.entry(process).or_default() += event.whole("sent").unwrap_or(0);
                    self.under_way.push((picoseconds(start), picoseconds(end)));
                }
            }
            timeline::PHASE if self.counts.get(&row) == Some(&true) => {
                let roof = match event.name.as_str() {
                    timeline::MOVE => Roof::Messages,
                    timeline::FOLD => Roof::Fold,
                    timeline::COPY => Roof::Copy,
                    _ => return,
                };
                let bytes = event.whole("bytes").unwrap_or(0);
                self.counter.add(format!("the thread of {name}"), roof, bytes, picoseconds(end - start));
            }
            _ => {}
        }
    }
}

fn picoseconds(nanoseconds: i64) -> Picoseconds {
    nanoseconds.max(0).unsigned_abs().saturating_mul(1000)
}
