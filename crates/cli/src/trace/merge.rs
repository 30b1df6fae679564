//! Merges the files that the processes of a job have written.

use super::{
    clocks::{ClockLine, lines},
    part::{Scanned, TimelinePart, open, scan},
    sorter::EventSorter,
};
use crate::{
    chrome::{ReadEvent, is_same_file},
    failure::Failure,
};
use herringbone::core::trace::{Argument, TracePhase, TraceRow, TraceWriter, timeline};
use std::{
    collections::BTreeMap,
    fmt,
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

/// How many bytes of events are kept in memory.
const ROOM: usize = 64 << 20;

const HINT: &str = "HERRINGBONE_TIMELINE=DIR makes each process of a job write its file there";

/// What was merged.
#[derive(Debug)]
pub(super) struct Merged {
    pub(super) job: String,
    /// How many there are in each role.
    pub(super) processes: [usize; timeline::ROLES.len()],
    pub(super) events: u64,
    /// By how much clocks still differ at most, in nanoseconds.
    pub(super) error: i64,
    /// What is wrong with a file, or missing in it.
    pub(super) remarks: Vec<String>,
}

/// Merges the files of a folder that are of one job.
///
/// # Errors
/// If there is none, if there are several jobs and none is named, or if the result cannot be written.
pub(super) fn merge(folder: &Path, job: Option<&str>, output: &Path) -> Result<Merged, Failure> {
    let mut remarks = Vec::new();
    let mut parts = scanned(folder, &mut remarks)?;
    if parts.iter().any(|part| is_same_file(&part.path, output)) {
        return Err(Failure::Usage {
            problem: format!(
                "-o {} is the timeline of a process, which would be overwritten",
                output.display()
            ),
            hint: "pass another file with -o, like job.json",
        });
    }
    let job = chosen(folder, &parts, job)?;
    parts.retain(|part| part.process.job == job);
    parts.sort_by_key(|part| {
        (part.process.role, part.process.number, part.process.began, part.process.process)
    });
    let clocks = aligned(&parts, &mut remarks);
    for part in &parts {
        let name = part.path.display();
        remarks.extend(
            part.problem
                .iter()
                .map(|problem| format!("{name}: {problem}; everything before that is included")),
        );
        if part.left_out > 0 {
            remarks
                .push(format!("{name}: its process could not keep up and dropped {} events", part.left_out));
        }
    }
    let wrong = Failure::system(format!("cannot write {}", output.display()));
    let mut merged = Merged {
        job,
        processes: [0; timeline::ROLES.len()],
        events: 0,
        error: clocks.iter().map(ClockLine::error).max().unwrap_or(0),
        remarks,
    };
    for process in processes(&parts) {
        merged.processes[process[0].process.role] += 1;
    }
    write(&parts, &clocks, output, &mut merged).map_err(wrong)?;
    Ok(merged)
}

/// The files of each process, which follow each other.
fn processes(parts: &[TimelinePart]) -> impl Iterator<Item = &[TimelinePart]> {
    parts.chunk_by(|one, other| one.process.is_same(&other.process))
}

/// All files of processes in a folder.
fn scanned(folder: &Path, remarks: &mut Vec<String>) -> Result<Vec<TimelinePart>, Failure> {
    let wrong = || Failure::system(format!("cannot read {}", folder.display()));
    let mut paths: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(folder).map_err(wrong())? {
        let path = entry.map_err(wrong())?.path();
        if path.extension().is_some_and(|extension| extension == "json") && path.is_file() {
            paths.push(path);
        }
    }
    paths.sort();
    let mut parts = Vec::new();
    for path in paths {
        match scan(&path) {
            Ok(Scanned::Part(part)) => parts.push(*part),
            Ok(Scanned::Merged) => {}
            Err(problem) => remarks.push(format!("{}: {problem}; skipped", path.display())),
        }
    }
    match parts.is_empty() {
        true => {
            remarks.insert(0, format!("{} has no timeline of a process", folder.display()));
            Err(Failure::Usage { problem: remarks.join("\n"), hint: HINT })
        }
        false => Ok(parts),
    }
}

/// The one job, or the one that is asked for.
fn chosen(folder: &Path, parts: &[TimelinePart], job: Option<&str>) -> Result<String, Failure> {
    let mut jobs: BTreeMap<&str, usize> = BTreeMap::new();
    for part in parts {
        *jobs.entry(&part.process.job).or_default() += 1;
    }
    let listed = || {
        let each = jobs.iter().map(|(job, files)| format!("{job} ({files} files)"));
        each.collect::<Vec<_>>().join(", ")
    };
    let asked = job.map(|job| (job, jobs.contains_key(job)));
    match (asked, jobs.len()) {
        (Some((job, true)), _) => Ok(job.to_owned()),
        (Some((job, false)), _) => Err(Failure::Usage {
            problem: format!("{} has no file of job {job}, only of {}", folder.display(), listed()),
            hint: "pass one of these with --job",
        }),
        (None, 1) => Ok(parts[0].process.job.clone()),
        (None, _) => Err(Failure::Usage {
            problem: format!("{} has files of several jobs: {}", folder.display(), listed()),
            hint: "pass one with --job",
        }),
    }
}

/// Converts the times of each part to one clock: that of the process that has measured others, or of the first.
fn aligned(parts: &[TimelinePart], remarks: &mut Vec<String>) -> Vec<ClockLine> {
    let most = |part: &TimelinePart| part.clock.readings.values().map(Vec::len).sum::<usize>();
    let reference = (0..parts.len()).rev().max_by_key(|index| most(&parts[*index])).unwrap_or(0);
    let clocks: Vec<_> = parts.iter().map(|part| &part.clock).collect();
    let found = lines(&clocks, reference);
    let each = parts.iter().zip(found).map(|(part, line)| {
        line.unwrap_or_else(|| {
            remarks.push(format!(
                "{}: the clock of this process was not measured, so its times can be off by any amount",
                part.path.display()
            ));
            ClockLine::default()
        })
    });
    each.collect()
}

/// Both ends of these arrows are there. The others would end nowhere.
fn whole_arrows(parts: &[TimelinePart]) -> Vec<u64> {
    let [mut starts, mut ends] = [0, 1].map(|end| {
        let all = parts.iter().flat_map(|part| &part.arrows[end]);
        all.copied().collect::<Vec<u64>>()
    });
    // What has the same identity twice is no arrow.
    for ids in [&mut starts, &mut ends] {
        ids.sort_unstable();
        let once: Vec<u64> = ids
            .chunk_by(|one, other| one == other)
            .filter(|same| same.len() == 1)
            .map(|same| same[0])
            .collect();
        *ids = once;
    }
    starts.retain(|id| ends.binary_search(id).is_ok());
    starts
}

fn write(parts: &[TimelinePart], clocks: &[ClockLine], output: &Path, merged: &mut Merged) -> io::Result<()> {
    let began = parts.iter().zip(clocks).map(|(part, clock)| clock.here(part.process.began));
    let origin = began.min().unwrap_or(0);
    let arrows = whole_arrows(parts);
    let mut sorter = EventSorter::new(output.to_owned(), ROOM);
    let mut clocks = clocks.iter();
    for (process, files) in (0..).zip(processes(parts)) {
        for (part, clock) in files.iter().zip(&mut clocks) {
            let mut shift = Shift { process, clock, origin, arrows: &arrows };
            let added = shift.add_all(part, &mut sorter)?;
            merged.events += added.events;
            if let Some(problem) = added.problem {
                let what =
                    format!("{} unreadable events were skipped, the first: {problem}", added.unreadable);
                merged.remarks.push(format!("{}: {what}", part.path.display()));
            }
        }
    }
    let mut trace =
        TraceWriter::new(Output::new(BufWriter::new(File::create(output)?))).map_err(io::Error::other)?;
    let written = head(&mut trace, parts, merged);
    trace.out().checked(written)?;
    sorter.finish(|event| {
        let written = trace.written(event);
        trace.out().checked(written)
    })?;
    let mut out = trace.finish().map_err(io::Error::other)?;
    let done = out.out.flush();
    out.problem.map_or(done, Err)
}

/// What stands before all spans: names, in order.
fn head(trace: &mut TraceWriter<Output>, parts: &[TimelinePart], merged: &Merged) -> fmt::Result {
    trace.about(
        timeline::JOB,
        &[
            ("version", Argument::Whole(timeline::VERSION)),
            ("job", Argument::Text(&merged.job)),
            ("processes", Argument::Whole(merged.processes.iter().sum::<usize>() as u64)),
            ("error_ns", Argument::Whole(merged.error.unsigned_abs())),
        ],
    )?;
    for (process, files) in (0u32..).zip(processes(parts)) {
        let about = &files[0].process;
        let left_out: u64 = files.iter().map(|part| part.left_out).sum();
        let row = TraceRow { process, thread: 0 };
        trace.metadata(
            row,
            timeline::PROCESS,
            &[
                ("version", Argument::Whole(timeline::VERSION)),
                ("job", Argument::Text(&about.job)),
                ("role", Argument::Text(timeline::ROLES[about.role])),
                ("number", Argument::Whole(about.number)),
                ("member", Argument::Whole(about.member)),
                ("host", Argument::Text(&about.host)),
                ("process", Argument::Whole(about.process)),
                ("world", Argument::Whole(about.world)),
                ("began", Argument::Whole(0)),
            ],
        )?;
        if left_out > 0 {
            trace.metadata(row, timeline::LEFT_OUT, &[("events", Argument::Whole(left_out))])?;
        }
        trace.process(process, &format!("{} ({}, process {})", about.name(), about.host, about.process))?;
        let threads: BTreeMap<u32, &String> =
            files.iter().flat_map(|part| &part.threads).map(|(thread, name)| (*thread, name)).collect();
        for (thread, name) in &threads {
            trace.thread(TraceRow { process, thread: *thread }, name)?;
        }
    }
    Ok(())
}

/// What came of a part.
#[derive(Default)]
struct AddedEvents {
    events: u64,
    unreadable: u64,
    /// What is wrong with the first of those.
    problem: Option<String>,
}

/// Moves the events of a part into the whole.
struct Shift<'a> {
    process: u32,
    clock: &'a ClockLine,
    origin: i64,
    arrows: &'a [u64],
}

impl Shift<'_> {
    /// Hands over all events of a part that can be read.
    fn add_all(&mut self, part: &TimelinePart, sorter: &mut EventSorter) -> io::Result<AddedEvents> {
        let mut added = AddedEvents::default();
        // What is wrong with the file itself was found when it was scanned.
        let Ok(mut reader) = open(&part.path) else { return Ok(added) };
        while let Ok(Some(text)) = reader.next() {
            let event = match ReadEvent::parse(text) {
                Ok(event) => event,
                Err(problem) => {
                    added.unreadable += 1;
                    added.problem.get_or_insert_with(|| problem.to_string());
                    continue;
                }
            };
            let is_wanted = event.phase != TracePhase::Metadata
                && event.id.is_none_or(|id| self.arrows.binary_search(&id).is_ok());
            if is_wanted {
                self.add(event, sorter)?;
                added.events += 1;
            }
        }
        Ok(added)
    }

    fn add(&mut self, mut event: ReadEvent, sorter: &mut EventSorter) -> io::Result<()> {
        let at = event.at.unwrap_or(0);
        let start = self.clock.here(at).saturating_sub(self.origin);
        // Both ends are moved, so that what lies in another span still does.
        event.duration = event.duration.map(|duration| {
            let end = self.clock.here(at.saturating_add(duration)).saturating_sub(self.origin);
            let length = end.saturating_sub(start);
            // The end of a stretched span is rounded, so it might not meet the start of the next one.
            if length == duration { length } else { (length - 1).max(0) }
        });
        event.at = Some(start);
        event.row.process = self.process;
        sorter.add(start, event.duration.unwrap_or(-1), |text| event.with_event(|event| event.write(text)))
    }
}

/// A file that is written as text. What goes wrong is kept, as the format's writer cannot say it.
struct Output {
    out: BufWriter<File>,
    problem: Option<io::Error>,
}

impl Output {
    fn new(out: BufWriter<File>) -> Self {
        Self { out, problem: None }
    }

    fn checked(&mut self, written: fmt::Result) -> io::Result<()> {
        written.map_err(|_| self.problem.take().unwrap_or_else(|| io::ErrorKind::Other.into()))
    }
}

impl fmt::Write for Output {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.out.write_all(text.as_bytes()).map_err(|error| {
            self.problem = Some(error);
            fmt::Error
        })
    }
}
