//! The functions that have run, as a trace.

use super::recorder::{RecordedOperation, Recorder};
use crate::core::trace::{Argument, TraceRow, TraceWriter};
use std::{fmt, time::Instant};

/// The process that a trace shows threads as, and that of operations that ended elsewhere.
const PROCESSES: [(u32, &str); 2] = [(1, "functions, on threads"), (2, "operations that end later")];

/// The whole trace. Times begin at the first operation.
pub(crate) fn written(recorder: &Recorder) -> String {
    write(recorder).unwrap_or_else(|_| unreachable!("writing to a text does not fail"))
}

fn write(recorder: &Recorder) -> Result<String, fmt::Error> {
    let mut ran: Vec<&RecordedOperation> = recorder.ran().collect();
    ran.sort_by_key(|ran| (ran.began, ran.number));
    let mut trace = TraceWriter::new(String::new())?;
    for (process, name) in PROCESSES {
        trace.process(process, name)?;
    }
    let mut threads: Vec<u32> = ran.iter().filter_map(|ran| ran.thread).collect();
    threads.sort_unstable();
    threads.dedup();
    for thread in threads {
        trace.thread(TraceRow { process: PROCESSES[0].0, thread }, &format!("thread {thread}"))?;
    }
    let origin = ran.first().map(|ran| ran.began);
    // When each of the rows that others share is free.
    let mut lanes: Vec<Instant> = Vec::new();
    let mut named = 0;
    for ran in ran {
        let row = match ran.thread {
            Some(thread) => TraceRow { process: PROCESSES[0].0, thread },
            None => TraceRow { process: PROCESSES[1].0, thread: lane(&mut lanes, ran) },
        };
        if named < lanes.len() {
            trace.thread(row, &format!("operations {}", lanes.len()))?;
            named = lanes.len();
        }
        let micros = |from: Instant, to: Instant| to.saturating_duration_since(from).as_secs_f64() * 1e6;
        let start = origin.map_or(0.0, |origin| micros(origin, ran.began));
        let arguments = [
            ("operation", Argument::Whole(ran.number)),
            ("result", Argument::Text(if ran.is_well { "well" } else { "failed" })),
        ];
        let unnamed = format!("operation {}", ran.number);
        let name = ran.name.as_deref().unwrap_or(&unnamed);
        trace.span(row, name, start, micros(ran.began, ran.ended), &arguments)?;
    }
    trace.finish()
}

/// The first row that is free when this begins.
fn lane(lanes: &mut Vec<Instant>, ran: &RecordedOperation) -> u32 {
    let at = lanes.iter().position(|free| *free <= ran.began).unwrap_or_else(|| {
        lanes.push(ran.ended);
        lanes.len() - 1
    });
    lanes[at] = ran.ended;
    at as u32
}
