//! Operations, ranks and faults in a merged timeline.

use super::part::TimelineProcess;
use crate::chrome::{EventReader, ReadEvent};
use herringbone::core::trace::{TracePhase, timeline};
use std::{
    collections::{BTreeMap, HashMap},
    io::BufRead,
};

/// More faults than this are only counted.
const MOST_FAULTS: usize = 1000;

/// What is done for an operation, in the order of the figures.
pub(super) const PHASES: [&str; 5] =
    [timeline::QUEUE, timeline::WAIT, timeline::MOVE, timeline::FOLD, timeline::COPY];
/// The first of them that keeps a thread busy.
const BUSY: usize = 2;

/// All of it.
#[derive(Debug, Default)]
pub(super) struct ReadTimeline {
    pub(super) job: String,
    pub(super) processes: BTreeMap<u32, ReadProcess>,
    /// Operations of ranks, sorted by their identity, then by process.
    pub(super) operations: Vec<ReadOperation>,
    pub(super) kinds: Vec<OperationKind>,
    pub(super) faults: Vec<ReadFault>,
    pub(super) more_faults: u64,
    /// How many events the processes have left out.
    pub(super) left_out: u64,
    /// By how much clocks still differ at most, in nanoseconds.
    pub(super) error: u64,
}

impl ReadTimeline {
    /// As `rank 3`.
    pub(super) fn name(&self, process: u32) -> Option<String> {
        self.processes.get(&process).map(|process| process.about.name())
    }
}

/// A process of the job.
#[derive(Debug)]
pub(super) struct ReadProcess {
    pub(super) about: TimelineProcess,
    /// When an operation was under way, and when its thread was busy with one.
    pub(super) under_way: Intervals,
    pub(super) busy: Intervals,
    /// When its steps begin, by their numbers.
    pub(super) steps: Vec<StepMark>,
    /// How long it has waited for each of these, in nanoseconds.
    pub(super) waited_for: BTreeMap<String, i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StepMark {
    pub(super) step: u64,
    pub(super) at: i64,
}

/// Which operation; all ranks call it alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct OperationKey {
    pub(super) group: u64,
    pub(super) generation: u64,
    pub(super) sequence: u64,
}

/// An operation of one process. Times are nanoseconds.
#[derive(Clone, Debug)]
pub(super) struct ReadOperation {
    pub(super) key: OperationKey,
    pub(super) process: u32,
    /// The number of its kind.
    pub(super) kind: u32,
    pub(super) issued: i64,
    pub(super) ended: i64,
    /// How long each of the [`PHASES`] took.
    pub(super) phases: [i64; PHASES.len()],
    pub(super) has_failed: bool,
}

/// What operations have in common that differ only in when they were called.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct OperationKind {
    pub(super) name: String,
    pub(super) group: String,
    pub(super) algorithm: String,
    pub(super) bytes: u64,
}

#[derive(Clone, Debug)]
pub(super) struct ReadFault {
    pub(super) at: i64,
    pub(super) process: u32,
    pub(super) what: String,
}

/// Times that do not overlap, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Intervals(Vec<Interval>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Interval {
    pub(super) start: i64,
    pub(super) end: i64,
}

impl Intervals {
    /// Adds one that does not begin before the last that was added.
    pub(super) fn add(&mut self, start: i64, end: i64) {
        match self.0.last_mut() {
            Some(last) if start <= last.end => last.end = last.end.max(end),
            _ => self.0.push(Interval { start, end }),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Interval> {
        self.0.iter()
    }

    /// How much of a window they cover.
    pub(super) fn within(&self, window: Interval) -> i64 {
        let first = self.0.partition_point(|interval| interval.end <= window.start);
        let inside = self.0[first..].iter().take_while(|interval| interval.start < window.end);
        inside.map(|interval| interval.end.min(window.end) - interval.start.max(window.start)).sum()
    }
}

/// Reads a merged file, whose events are in order.
///
/// # Errors
/// If it is none, or has an event that is none.
pub(super) fn read(input: impl BufRead) -> Result<ReadTimeline, String> {
    let mut reader = EventReader::new(input);
    let first = reader.next()?.ok_or("it has no events")?;
    let first = ReadEvent::parse(first)?;
    if first.name != timeline::JOB {
        return Err("is not a job's timeline".into());
    }
    let mut found = Reading {
        found: ReadTimeline {
            job: first.text("job").unwrap_or("").to_owned(),
            error: first.whole("error_ns").unwrap_or(0),
            ..ReadTimeline::default()
        },
        kinds: HashMap::new(),
        current: HashMap::new(),
    };
    while let Some(text) = reader.next()? {
        found.event(&ReadEvent::parse(text)?)?;
    }
    let mut found = found.found;
    let ReadTimeline { operations, processes, .. } = &mut found;
    operations
        .retain(|operation| processes.get(&operation.process).is_some_and(|found| found.about.role == 0));
    found.operations.sort_by_key(|operation| (operation.key, operation.process));
    Ok(found)
}

struct Reading {
    found: ReadTimeline,
    kinds: HashMap<OperationKind, u32>,
    /// The operation that a row shows.
    current: HashMap<(u32, u32), usize>,
}

impl Reading {
    fn event(&mut self, event: &ReadEvent) -> Result<(), String> {
        let process = event.row.process;
        if event.phase == TracePhase::Metadata {
            match event.name.as_str() {
                timeline::PROCESS => {
                    let read = ReadProcess {
                        about: TimelineProcess::of(event)?,
                        under_way: Intervals::default(),
                        busy: Intervals::default(),
                        steps: Vec::new(),
                        waited_for: BTreeMap::new(),
                    };
                    self.found.processes.insert(process, read);
                }
                timeline::LEFT_OUT => self.found.left_out += event.whole("events").unwrap_or(0),
                _ => {}
            }
            return Ok(());
        }
        let Some(read) = self.found.processes.get_mut(&process) else {
            return Err(format!("process {process} has events but no name"));
        };
        let (Some(start), Some(end)) = (event.at, event.end()) else { return Ok(()) };
        match event.category.as_str() {
            timeline::OPERATION => {
                read.under_way.add(start, end);
                self.operation(event, start, end)?;
            }
            timeline::PHASE => {
                let place = PHASES.iter().position(|phase| event.name.starts_with(phase));
                let Some(place) = place else { return Ok(()) };
                if place >= BUSY {
                    read.busy.add(start, end);
                }
                if let Some(whom) = event.name.strip_prefix("wait for ") {
                    *read.waited_for.entry(whom.to_owned()).or_default() += end - start;
                }
                if let Some(operation) = self.current.get(&(process, event.row.thread)) {
                    self.found.operations[*operation].phases[place] += end - start;
                }
            }
            timeline::STEP => {
                read.steps.push(StepMark { step: event.whole("step").unwrap_or(0), at: start });
            }
            timeline::FAULT if self.found.faults.len() < MOST_FAULTS => {
                self.found.faults.push(ReadFault { at: start, process, what: event.name.clone() });
            }
            timeline::FAULT => self.found.more_faults += 1,
            _ => {}
        }
        Ok(())
    }

    fn operation(&mut self, event: &ReadEvent, issued: i64, ended: i64) -> Result<(), String> {
        let whole =
            |name: &str| event.whole(name).ok_or_else(|| format!("`{}` lacks a number `{name}`", event.name));
        let text = |name: &str| event.text(name).unwrap_or("").to_owned();
        let key = OperationKey {
            group: whole("group_number")?,
            generation: whole("generation")?,
            sequence: whole("sequence")?,
        };
        let kind = OperationKind {
            name: event.name.clone(),
            group: text("group"),
            algorithm: text("algorithm"),
            bytes: event.whole("bytes").unwrap_or(0),
        };
        let next = self.found.kinds.len() as u32;
        let kind = *self.kinds.entry(kind).or_insert_with_key(|kind| {
            self.found.kinds.push(kind.clone());
            next
        });
        let process = event.row.process;
        self.current.insert((process, event.row.thread), self.found.operations.len());
        self.found.operations.push(ReadOperation {
            key,
            process,
            kind,
            issued,
            ended,
            phases: [0; PHASES.len()],
            has_failed: event.text("failed").is_some(),
        });
        Ok(())
    }
}
