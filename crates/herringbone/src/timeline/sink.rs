//! Listens to events, on the engine's thread.

use super::{buffer::RecordBuffer, record::TimelineRecord};
use crate::observe::{Sink, TraceEvent};
use std::{sync::Arc, time::Duration};

/// More names than this are all called `others`, so that a program that makes groups for ever needs no more memory.
const NAMES: usize = 4096;

/// Makes records of events.
#[derive(Debug)]
pub(super) struct TimelineSink {
    buffer: Arc<RecordBuffer>,
    /// What groups and algorithms are called; at a name's number.
    names: Vec<Box<str>>,
}

impl TimelineSink {
    pub(super) fn new(buffer: Arc<RecordBuffer>) -> Self {
        Self { buffer, names: Vec::new() }
    }

    /// The number of a name, of which the writer is told if it is new.
    fn number(&mut self, name: &str) -> u32 {
        // The last names are those of the operations that run now.
        let known = self.names.iter().rposition(|known| **known == *name);
        known.unwrap_or_else(|| {
            if self.names.len() < NAMES {
                let name = if self.names.len() + 1 == NAMES { "others" } else { name };
                self.buffer.push_name(name);
                self.names.push(name.into());
            }
            self.names.len() - 1
        }) as u32
    }
}

fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos() as u64
}

impl Sink for TimelineSink {
    fn event(&mut self, now: Duration, event: &TraceEvent<'_>) {
        let at = nanoseconds(now);
        let record = match *event {
            TraceEvent::Issued { operation: id, call, group, algorithm, .. } => {
                let (group, algorithm) = (self.number(group), self.number(algorithm));
                TimelineRecord::Issued { id, at, call: *call, group, algorithm }
            }
            TraceEvent::Began { operation: id } => TimelineRecord::Began { id, at },
            TraceEvent::Step { operation: id, work, began, .. } => {
                let (began, bytes) = (nanoseconds(began), work.bytes as u64);
                TimelineRecord::Step { id, began, ended: at, kind: work.kind, bytes }
            }
            TraceEvent::Sent { operation: id, endpoint: to, segment, bytes } => {
                TimelineRecord::Sent { id, at, to, segment, bytes: bytes as u64 }
            }
            TraceEvent::Received { operation: id, endpoint: from, segment, bytes } => {
                TimelineRecord::Received { id, at, from, segment, bytes: bytes as u64 }
            }
            TraceEvent::Waited { operation: id, endpoints } => {
                let others = endpoints.len().saturating_sub(1) as u32;
                TimelineRecord::Waited { id, at, first: endpoints.first().copied(), others }
            }
            TraceEvent::Ended { operation: id, result } => {
                let failed = result.as_ref().err().map(|error| error.kind().name());
                TimelineRecord::Ended { id, at, failed }
            }
            // The operations that announced it are drawn.
            TraceEvent::Delivered { .. } => return,
            TraceEvent::Suspected { endpoint: member, silent } => {
                TimelineRecord::Suspected { at, member, silent: nanoseconds(silent) }
            }
            TraceEvent::Lost { endpoint: member, reason } => {
                TimelineRecord::Lost { at, member, reason: reason.into() }
            }
            TraceEvent::Introduced { reducer, .. } => TimelineRecord::Introduced { reducer },
            TraceEvent::Fenced { group, generation, cause } => {
                let what = format!("group {group} begins generation {generation}: {cause}");
                TimelineRecord::Fenced { at, what: what.into() }
            }
            TraceEvent::Rebalanced { group, why, .. } => {
                TimelineRecord::Fenced { at, what: format!("group {group}: {why}").into() }
            }
        };
        self.buffer.push(|| record);
    }
}
