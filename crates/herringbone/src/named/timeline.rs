//! The events of each tensor, as a trace for viewers. Rank 0 writes it.

use super::{NamedFailure, queue::NamedTask};
use crate::{
    Error,
    core::{
        named::{NamedKind, NamedResponse, Readiness},
        trace::{Argument, TraceRow, TraceWriter},
    },
    log,
};
use std::{
    collections::BTreeMap,
    fmt::{self, Write},
    fs::File,
    io::{self, Write as _},
    path::Path,
    time::Instant,
};

/// A trace that is being written: a process for each tensor.
#[derive(Debug)]
pub(super) struct Timeline {
    trace: Option<TraceWriter<TraceFile>>,
    began: Instant,
    /// The process of each tensor, and whether it is being negotiated.
    processes: BTreeMap<String, (u32, bool)>,
    marks_cycles: bool,
}

/// A file that gets whole events only, so that what a killed process leaves of it is still a trace.
#[derive(Debug)]
struct TraceFile {
    file: File,
    /// What is not yet in the file.
    events: String,
}

/// How many bytes of events are held back at most.
const HELD_BACK: usize = 64 << 10;

impl TraceFile {
    fn flush(&mut self) -> io::Result<()> {
        let events = std::mem::take(&mut self.events);
        self.file.write_all(events.as_bytes())
    }
}

impl Write for TraceFile {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.events.push_str(text);
        Ok(())
    }
}

impl Timeline {
    /// Begins a file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn begin(path: &Path, marks_cycles: bool) -> Result<Self, Error> {
        let failed =
            |error: io::Error| Error::io(format_args!("writing the timeline {}", path.display()), error);
        let file = File::create(path).map_err(failed)?;
        let trace = TraceWriter::new(TraceFile { file, events: String::new() });
        let mut trace = trace.map_err(|_| failed(io::ErrorKind::Other.into()))?;
        trace.out().flush().map_err(failed)?;
        Ok(Self { trace: Some(trace), began: Instant::now(), processes: BTreeMap::new(), marks_cycles })
    }

    fn at(&self, moment: Instant) -> f64 {
        moment.saturating_duration_since(self.began).as_secs_f64() * 1e6
    }

    /// Writes something. The first error ends the trace, and is told.
    fn write(&mut self, f: impl FnOnce(&mut TraceWriter<TraceFile>) -> fmt::Result) {
        let Some(trace) = &mut self.trace else { return };
        // The file is told later, and only it has errors.
        if f(trace).is_ok() && trace.out().events.len() > HELD_BACK {
            self.flush();
        }
    }

    /// Brings all events to the file.
    pub(super) fn flush(&mut self) {
        let Some(Err(error)) = self.trace.as_mut().map(|trace| trace.out().flush()) else { return };
        log::warn("rank 0", format_args!("the timeline ends here, because it cannot be written: {error}"));
        self.trace = None;
    }

    /// The row of a tensor.
    fn row(&mut self, name: &str) -> TraceRow {
        let number = self.processes.len() as u32 + 1;
        if let Some((process, _)) = self.processes.get(name) {
            return TraceRow { process: *process, thread: 0 };
        }
        self.processes.insert(name.to_owned(), (number, false));
        self.write(|trace| trace.process(number, name));
        TraceRow { process: number, thread: 0 }
    }

    pub(super) fn cycle(&mut self) {
        if self.marks_cycles {
            let at = self.at(Instant::now());
            self.write(|trace| trace.moment(TraceRow { process: 0, thread: 0 }, "CYCLE_START", at));
        }
    }

    /// A rank is ready for a tensor, as rank 0 has just heard.
    pub(super) fn ready(&mut self, Readiness { name, kind, rank }: &Readiness) {
        self.ready_at(name, *kind, Instant::now(), [*rank]);
    }

    fn ready_at(
        &mut self,
        name: &str,
        kind: NamedKind,
        moment: Instant,
        ranks: impl IntoIterator<Item = u32>,
    ) {
        let (row, at) = (self.row(name), self.at(moment));
        let was_negotiating = self.set_negotiating(name, true);
        if !was_negotiating {
            self.write(|trace| trace.begin(row, &format!("NEGOTIATE_{}", kind.name()), at, &[]));
        }
        for rank in ranks {
            self.write(|trace| trace.span(row, &rank.to_string(), at, 0.0, &[]));
        }
    }

    fn set_negotiating(&mut self, name: &str, is: bool) -> bool {
        self.processes.get_mut(name).is_some_and(|(_, was)| std::mem::replace(was, is))
    }

    /// A tensor is agreed about: it waits for its turn.
    pub(super) fn agreed(&mut self, task: &NamedTask, ranks: u32) {
        let response = &task.response;
        let (name, kind) = (&response.name, response.call.kind);
        let row = self.row(name);
        if !self.set_negotiating(name, true) {
            self.set_negotiating(name, false);
            // The cache knew it: rank 0 was ready when it submitted it, and all ranks are now.
            let since = task.since.unwrap_or_else(Instant::now);
            self.ready_at(name, kind, since, [0]);
            self.ready_at(name, kind, Instant::now(), 1..ranks);
        }
        self.set_negotiating(name, false);
        let now = self.at(Instant::now());
        self.write(|trace| {
            trace.end(row, now, &[])?;
            trace.begin(row, kind.name(), now, &[])?;
            trace.begin(row, "QUEUE", now, &[])
        });
    }

    /// A tensor that is not agreed about.
    pub(super) fn failed(&mut self, name: &str) {
        let (row, now) = (self.row(name), self.at(Instant::now()));
        if self.set_negotiating(name, false) {
            self.write(|trace| trace.end(row, now, &[]));
        }
    }

    fn begin_activity(&mut self, name: &str, activity: &str) {
        let (row, now) = (self.row(name), self.at(Instant::now()));
        self.write(|trace| trace.begin(row, activity, now, &[]));
    }

    fn end_activity(&mut self, name: &str) {
        let (row, now) = (self.row(name), self.at(Instant::now()));
        self.write(|trace| trace.end(row, now, &[]));
    }

    fn ended(&mut self, response: &NamedResponse) {
        let (row, now) = (self.row(&response.name), self.at(Instant::now()));
        let shape: Vec<String> = response.call.shape.iter().map(ToString::to_string).collect();
        let shape = format!("[{}]", shape.join(", "));
        let arguments =
            [("dtype", Argument::Text(response.call.dtype.name())), ("shape", Argument::Text(&shape))];
        self.write(|trace| trace.end(row, now, &arguments));
    }

    /// Ends the file: it is a whole list then.
    pub(super) fn finish(mut self) {
        if let Some(trace) = self.trace.take()
            && let Ok(mut out) = trace.finish()
            && let Err(error) = out.flush()
        {
            log::warn("rank 0", format_args!("the end of the timeline is not written: {error}"));
        }
    }
}

/// Tells the timeline of a batch, if there is one. At its end all that was told is in the file.
pub(super) struct Tracer<'a>(pub(super) Option<&'a mut Timeline>);

impl Drop for Tracer<'_> {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(|timeline| timeline.flush());
    }
}

impl Tracer<'_> {
    /// A batch begins.
    pub(super) fn begins(&mut self, tasks: &[NamedTask]) {
        if let Some(timeline) = &mut self.0 {
            tasks.iter().for_each(|task| timeline.end_activity(&task.response.name));
        }
    }

    /// A batch has ended.
    pub(super) fn ends(&mut self, tasks: &[NamedTask]) {
        if let Some(timeline) = &mut self.0 {
            tasks.iter().for_each(|task| timeline.ended(&task.response));
        }
    }

    /// Runs something that is done to all these tensors.
    pub(super) fn run<R>(
        &mut self,
        tasks: &[&NamedTask],
        activity: &str,
        f: impl FnOnce() -> Result<R, NamedFailure>,
    ) -> Result<R, NamedFailure> {
        let Some(timeline) = &mut self.0 else { return f() };
        tasks.iter().for_each(|task| timeline.begin_activity(&task.response.name, activity));
        let result = f();
        tasks.iter().for_each(|task| timeline.end_activity(&task.response.name));
        result
    }
}
