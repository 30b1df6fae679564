//! The timeline of a process, for `herringbone trace`: each operation as a span, with its phases and the ranks for
//! which it waited, arrows of messages, and faults.
//!
//! A listener of the engine puts records of a fixed size into a [buffer](buffer::RecordBuffer) of a fixed size. A
//! thread turns them into events and writes these. If it cannot keep up, records are dropped, and the file has their
//! number.

mod buffer;
mod drawn;
mod file;
mod owner;
mod record;
mod sink;
mod writer;

pub(crate) use owner::{TimelineMember, TimelineOwner};
pub(crate) use record::ClockMeasurement;

use crate::{clock::Moment, log, observe::Sink, sys::fork};
use buffer::{HELD_BACK, RecordBuffer};
use file::TimelineFile;
use record::TimelineRecord;
use sink::TimelineSink;
use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    thread::{Builder, JoinHandle},
    time::{Duration, Instant},
};
use writer::TimelineWriter;

/// How often clocks are measured.
const MEASURED: Duration = Duration::from_secs(30);

/// Measures how the clocks of other members stand, until a moment.
pub(crate) type MeasureClocks = Box<dyn FnMut(&dyn Fn() -> bool) -> Vec<ClockMeasurement> + Send>;

/// A timeline that is being written. It ends when it is [stopped](Self::stop), or dropped.
#[derive(Debug)]
pub(crate) struct JobTimeline {
    buffer: Arc<RecordBuffer>,
    /// Measures clocks, if this process does.
    clocks: Option<JoinHandle<()>>,
    writer: Option<JoinHandle<()>>,
    /// Of which process the threads are.
    generation: u64,
}

impl Drop for JobTimeline {
    fn drop(&mut self) {
        // The threads end by themselves. A forked child has none, and nobody who would give a lock back.
        if self.generation == fork::generation() {
            self.buffer.end_clocks();
            self.buffer.end();
        }
    }
}

impl JobTimeline {
    /// Begins a file in a folder, which is made if it is missing. The sink has to be told of all that happens.
    ///
    /// # Errors
    /// If the file cannot be written, or there are no threads left.
    pub(crate) fn start(
        folder: &Path,
        owner: TimelineOwner,
        measure: Option<MeasureClocks>,
    ) -> io::Result<(Self, Box<dyn Sink>)> {
        let file = TimelineFile::create(folder, owner.job, &owner.me)?;
        Self::start_with(owner, measure, move |_| Ok(file))
    }

    /// Begins a file for a process that knows its place only when the first group is introduced. If it cannot be written, a
    /// warning says so.
    ///
    /// # Errors
    /// If there are no threads left.
    pub(crate) fn start_later(folder: PathBuf, owner: TimelineOwner) -> io::Result<(Self, Box<dyn Sink>)> {
        Self::start_with(owner, None, move |owner| TimelineFile::create(&folder, owner.job, &owner.me))
    }

    fn start_with(
        owner: TimelineOwner,
        measure: Option<MeasureClocks>,
        create: impl FnOnce(&TimelineOwner) -> io::Result<TimelineFile> + Send + 'static,
    ) -> io::Result<(Self, Box<dyn Sink>)> {
        fork::watch()?;
        let buffer = Arc::new(RecordBuffer::new());
        let generation = fork::generation();
        let mut timeline = Self { buffer: buffer.clone(), clocks: None, writer: None, generation };
        let (of_writer, named) = (buffer.clone(), Builder::new().name("hb-timeline".into()));
        let began = Moment::exact();
        timeline.writer = Some(named.spawn(move || write(&of_writer, owner, began, create))?);
        if let Some(measure) = measure {
            let (of_clocks, named) = (buffer.clone(), Builder::new().name("hb-clocks".into()));
            timeline.clocks = Some(named.spawn(move || measure_clocks(&of_clocks, measure))?);
        }
        Ok((timeline, Box::new(TimelineSink::new(buffer))))
    }

    /// A step of the program begins.
    pub(crate) fn mark_step(&self) {
        self.buffer.mark_step();
    }

    /// Ends the file.
    pub(crate) fn stop(mut self) {
        // A forked child has no such threads.
        if self.generation != fork::generation() {
            return;
        }
        // The clocks come first, so that the last measurements are written.
        self.buffer.end_clocks();
        // A thread that panicked has nothing left to say.
        let _ended = self.clocks.take().map(JoinHandle::join);
        self.buffer.end();
        let _ended = self.writer.take().map(JoinHandle::join);
    }
}

/// Measures clocks at once, from time to time, and at the end.
fn measure_clocks(buffer: &RecordBuffer, mut measure: MeasureClocks) {
    loop {
        for measured in measure(&|| !buffer.clocks_end()) {
            buffer.push(|| TimelineRecord::Clock(measured));
        }
        if buffer.wait_for_clocks(MEASURED) {
            break;
        }
    }
    // Members may have left already, and nobody waits for long at the end.
    let until = Instant::now() + Duration::from_millis(500);
    for measured in measure(&|| Instant::now() < until) {
        buffer.push(|| TimelineRecord::Clock(measured));
    }
}

/// Writes what the buffer has until it ends. What goes wrong is said once, and the job goes on.
fn write(
    buffer: &RecordBuffer,
    mut owner: TimelineOwner,
    began: Moment,
    create: impl FnOnce(&TimelineOwner) -> io::Result<TimelineFile>,
) {
    let who = owner.me.name();
    let mut records = buffer.room();
    let mut taken = buffer.take(&mut records, HELD_BACK);
    // A reducer's file begins with its number.
    while owner.me.role == 1 && records.is_empty() && !taken.is_over {
        taken = buffer.take(&mut records, HELD_BACK);
    }
    if let Some(TimelineRecord::Introduced { reducer }) = records.first() {
        owner.me = TimelineMember::reducer(*reducer);
    }
    let result = create(&owner).and_then(|file| {
        let mut writer = TimelineWriter::new(file, owner, began);
        writer.write_all(buffer, records, taken)
    });
    if let Err(error) = result {
        buffer.close();
        log::warn(
            &who,
            format_args!("the timeline cannot be written, and the job continues without it: {error}"),
        );
    }
}
