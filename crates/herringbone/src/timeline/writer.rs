//! Makes events of records.

use super::{
    buffer::{HELD_BACK, RecordBuffer, TakenRecords},
    drawn::{DrawnArrow, DrawnCall, DrawnOperation, DrawnPhase, DrawnSpan},
    file::TimelineFile,
    owner::TimelineOwner,
    record::{ClockMeasurement, Nanoseconds, TimelineRecord},
};
use crate::{
    clock::Moment,
    core::{
        collective::Collective,
        element::{DType, ReduceOp},
        trace::{Argument, ChromeEvent, MomentScope, TracePhase, TraceRow, timeline},
        wire::Fingerprint,
    },
    observe::OperationId,
};
use std::{collections::BTreeMap, io};

/// Who is silent for less is no fault: in nanoseconds.
const SILENT: Nanoseconds = 1_000_000_000;
/// More operations than this are not drawn at the same time.
const UNDER_WAY: usize = 4096;
/// The process of all rows; merging gives each file another one.
const PROCESS: u32 = 0;
/// The row of what is of no operation.
const MOMENTS: TraceRow = TraceRow { process: PROCESS, thread: 0 };

/// Keeps what is under way, and writes what has ended.
#[derive(Debug)]
pub(super) struct TimelineWriter {
    file: TimelineFile,
    owner: TimelineOwner,
    names: Vec<Box<str>>,
    operations: BTreeMap<OperationId, DrawnOperation>,
    /// Whether each row has an operation.
    rows: Vec<bool>,
    /// When the engine told of the last record.
    reported: Nanoseconds,
    /// How many records of any kind could not be drawn.
    left_out: u64,
    /// The first error of the file.
    problem: Option<io::Error>,
}

fn microseconds(time: Nanoseconds) -> f64 {
    time as f64 / 1e3
}

impl TimelineWriter {
    /// Begins the file of a timeline that began at a moment.
    pub(super) fn new(mut file: TimelineFile, owner: TimelineOwner, began: Moment) -> Self {
        let began = began.since_start().as_nanos() as u64;
        file.introduce(&owner, began);
        file.name_row(MOMENTS, "steps and faults");
        Self {
            file,
            owner,
            names: Vec::new(),
            operations: BTreeMap::new(),
            rows: Vec::new(),
            reported: began,
            left_out: 0,
            problem: None,
        }
    }

    /// Writes these records and those that come, until the buffer ends.
    ///
    /// # Errors
    /// The first of the file.
    pub(super) fn write_all(
        &mut self,
        buffer: &RecordBuffer,
        mut records: Vec<TimelineRecord>,
        mut taken: TakenRecords,
    ) -> io::Result<()> {
        loop {
            records.drain(..).for_each(|record| self.record(record));
            if taken.dropped > 0 {
                self.left_out(taken.dropped);
            }
            if taken.is_over {
                return self.finish();
            }
            self.flush()?;
            taken = buffer.take(&mut records, HELD_BACK);
        }
    }

    fn record(&mut self, record: TimelineRecord) {
        // One thread drives the engine: between two records it did nothing that another one tells of.
        let before = self.reported;
        self.reported = record.at().unwrap_or(before);
        match record {
            TimelineRecord::Name(name) => self.names.push(name),
            // It is in the file's beginning.
            TimelineRecord::Introduced { .. } => {}
            TimelineRecord::Issued { id, at, call, group, algorithm } => {
                self.issued(id, DrawnCall { row: 0, fingerprint: call, group, algorithm, issued: at });
            }
            TimelineRecord::Began { id, at } => self.with(id, |operation| operation.began(at)),
            TimelineRecord::Step { id, began, ended, kind, bytes } => {
                self.with(id, |operation| operation.step(kind, began, ended, bytes));
            }
            TimelineRecord::Sent { id, at, to, segment, bytes } => {
                let arrow = DrawnArrow { peer: to, is_sent: true, at: before.min(at), reported: at };
                self.with(id, |operation| operation.message(arrow, segment, bytes));
            }
            TimelineRecord::Received { id, at, from, segment, bytes } => {
                let arrow = DrawnArrow { peer: from, is_sent: false, at, reported: at };
                self.with(id, |operation| operation.message(arrow, segment, bytes));
            }
            TimelineRecord::Waited { id, at, first, others } => {
                self.with(id, |operation| operation.waited(at, first, others));
            }
            TimelineRecord::Ended { id, at, failed } => {
                if let Some(operation) = self.operations.remove(&id) {
                    self.draw(id, operation, at, failed);
                }
            }
            // The engine begins to ask after a tenth of a second, which is no fault on a busy machine.
            TimelineRecord::Suspected { silent: ..SILENT, .. } => {}
            TimelineRecord::Suspected { at, member, silent } => {
                let name = self.owner.member(member).name();
                self.fault(at, &format!("{name} is suspected: silent for {:.1} s", silent as f64 / 1e9));
            }
            TimelineRecord::Lost { at, member, reason } => {
                let name = self.owner.member(member).name();
                self.fault(at, &format!("{name} is lost: {reason}"));
            }
            TimelineRecord::Fenced { at, what } => self.fault(at, &what),
            TimelineRecord::Marked { at, step } => {
                let (name, arguments) = (format!("step {step}"), [("step", Argument::Whole(step))]);
                self.moment(at, timeline::STEP, &name, &arguments);
            }
            TimelineRecord::Clock(measured) => self.clock(measured),
        }
        if self.problem.is_none() && self.file.is_full() {
            self.problem = self.file.flush().err();
        }
    }

    fn with(&mut self, id: OperationId, f: impl FnOnce(&mut DrawnOperation)) {
        // Others were under way before the timeline began.
        if let Some(operation) = self.operations.get_mut(&id) {
            f(operation);
        }
    }

    fn issued(&mut self, id: OperationId, call: DrawnCall) {
        if self.operations.len() == UNDER_WAY {
            self.left_out += 1;
            return;
        }
        let row = self.rows.iter().position(|is_taken| !is_taken).unwrap_or_else(|| {
            self.rows.push(false);
            let row = self.rows.len() as u32;
            self.file.name_row(TraceRow { process: PROCESS, thread: row }, &format!("operations {row}"));
            self.rows.len() - 1
        });
        self.rows[row] = true;
        let operation = DrawnOperation::new(DrawnCall { row: row as u32 + 1, ..call });
        if let Some(before) = self.operations.insert(id, operation) {
            self.rows[before.call.row as usize - 1] = false;
        }
    }

    fn moment(&mut self, at: Nanoseconds, category: &str, name: &str, arguments: &[(&str, Argument<'_>)]) {
        let event = ChromeEvent {
            name,
            category,
            at: Some(microseconds(at)),
            scope: MomentScope::Process,
            arguments,
            ..ChromeEvent::new(TracePhase::Instant, MOMENTS)
        };
        self.file.write(|trace| trace.event(&event));
    }

    fn fault(&mut self, at: Nanoseconds, what: &str) {
        self.moment(at, timeline::FAULT, what, &[]);
    }

    fn clock(&mut self, measured: ClockMeasurement) {
        let arguments = [
            ("member", Argument::Whole(measured.member.into())),
            ("here", Argument::Whole(measured.here)),
            ("there", Argument::Whole(measured.there)),
            ("round_trip", Argument::Whole(measured.round_trip)),
        ];
        self.file.write(|trace| trace.about(timeline::CLOCK, &arguments));
    }

    /// Writes an operation with all that was done for it.
    fn draw(
        &mut self,
        id: OperationId,
        mut operation: DrawnOperation,
        at: Nanoseconds,
        failed: Option<&'static str>,
    ) {
        let ended = operation.ended(at);
        self.rows[operation.call.row as usize - 1] = false;
        self.left_out += operation.left_out;
        self.draw_whole(id, &operation, ended, failed);
        let row = TraceRow { process: PROCESS, thread: operation.call.row };
        for span in &operation.spans {
            self.draw_span(row, span);
        }
        for arrow in &operation.arrows {
            let phase = if arrow.is_sent { TracePhase::FlowStart } else { TracePhase::FlowEnd };
            let id = self.owner.arrow(id, arrow.peer, arrow.is_sent);
            let event = ChromeEvent {
                name: "message",
                category: timeline::MESSAGE,
                at: Some(microseconds(arrow.at.clamp(operation.call.issued, ended))),
                id: Some(id),
                ..ChromeEvent::new(phase, row)
            };
            self.file.write(|trace| trace.event(&event));
        }
    }

    fn draw_whole(
        &mut self,
        id: OperationId,
        operation: &DrawnOperation,
        ended: Nanoseconds,
        failed: Option<&'static str>,
    ) {
        let Fingerprint { collective, root, dtype, op, count, priority, .. } =
            operation.call.fingerprint.runs();
        let collective = Collective::from_code(collective, root);
        let dtype = DType::from_code(dtype);
        let name = collective.map_or_else(|| "operation".to_owned(), |collective| collective.to_string());
        let named = |number: u32| self.names.get(number as usize).map_or("", |name| name);
        let bytes = match dtype {
            Some(dtype) if count != Fingerprint::UNEVEN => count.saturating_mul(dtype.bytes() as u64),
            // Parts differ: what has moved says how large they are.
            _ => operation.sent.max(operation.received),
        };
        let mut arguments = vec![
            ("group", Argument::Text(named(operation.call.group))),
            ("group_number", Argument::Whole(id.group.into())),
            ("generation", Argument::Whole(id.generation.into())),
            ("sequence", Argument::Whole(id.sequence)),
            ("algorithm", Argument::Text(named(operation.call.algorithm))),
            ("bytes", Argument::Whole(bytes)),
            ("priority", Argument::Real(priority.into())),
            ("sent", Argument::Whole(operation.sent)),
            ("received", Argument::Whole(operation.received)),
        ];
        arguments.extend(dtype.map(|dtype| ("dtype", Argument::Text(dtype.name()))));
        let op = ReduceOp::from_code(op).filter(|_| collective.is_some_and(Collective::folds));
        arguments.extend(op.map(|op| ("op", Argument::Text(op.name()))));
        arguments.extend(failed.map(|failed| ("failed", Argument::Text(failed))));
        let event = ChromeEvent {
            name: &name,
            category: timeline::OPERATION,
            at: Some(microseconds(operation.call.issued)),
            duration: Some(microseconds(ended - operation.call.issued)),
            arguments: &arguments,
            ..ChromeEvent::new(
                TracePhase::Complete,
                TraceRow { process: PROCESS, thread: operation.call.row },
            )
        };
        self.file.write(|trace| trace.event(&event));
    }

    fn draw_span(&mut self, row: TraceRow, span: &DrawnSpan) {
        let whom = match span.phase {
            DrawnPhase::Wait { first: Some(first), others: 0 } => {
                format!("wait for {}", self.owner.member(first).name())
            }
            DrawnPhase::Wait { first: Some(first), others } => {
                format!("wait for {} and {others} more", self.owner.member(first).name())
            }
            _ => String::new(),
        };
        let bytes = [("bytes", Argument::Whole(span.bytes))];
        let event = ChromeEvent {
            name: if whom.is_empty() { span.phase.name() } else { &whom },
            category: timeline::PHASE,
            at: Some(microseconds(span.start)),
            // Viewers add start and duration as floats: so what ends just as another thing begins or ends may seem to end later.
            duration: Some(microseconds((span.end - span.start).saturating_sub(1))),
            arguments: if span.bytes > 0 { &bytes } else { &[] },
            ..ChromeEvent::new(TracePhase::Complete, row)
        };
        self.file.write(|trace| trace.event(&event));
    }

    /// Records were lost here. The operations that are under way lack some of theirs, so they are not drawn.
    fn left_out(&mut self, records: u64) {
        self.left_out += records + self.operations.len() as u64;
        self.operations.clear();
        self.rows.fill(false);
    }

    /// Brings all events to the file.
    ///
    /// # Errors
    /// Those of the file.
    fn flush(&mut self) -> io::Result<()> {
        if self.left_out > 0 {
            let events = [("events", Argument::Whole(std::mem::take(&mut self.left_out)))];
            self.file.write(|trace| trace.about(timeline::LEFT_OUT, &events));
        }
        match self.problem.take() {
            Some(problem) => Err(problem),
            None => self.file.flush(),
        }
    }

    /// Draws what is still under way, and ends the list.
    ///
    /// # Errors
    /// Those of the file.
    fn finish(&mut self) -> io::Result<()> {
        let now = Moment::exact().since_start().as_nanos() as u64;
        while let Some((id, operation)) = self.operations.pop_first() {
            self.draw(id, operation, now, Some("Unfinished"));
        }
        self.flush()?;
        self.file.finish()
    }
}
