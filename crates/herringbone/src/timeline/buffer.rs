//! Records on their way from the engine's thread to the writing thread.

use super::record::TimelineRecord;
use crate::clock::Moment;
use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// How many records are held at most: some 6 MB, and seconds of the events of a busy rank.
const ROOM: usize = 1 << 16;

/// How long the writer waits for more before it writes what it has.
pub(super) const HELD_BACK: Duration = Duration::from_millis(50);

/// A buffer of a fixed size. Its memory is taken once; the writer changes it for an empty one.
#[derive(Debug)]
pub(super) struct RecordBuffer {
    held: Mutex<HeldRecords>,
    /// There is much to write, or nothing more will come.
    much: Condvar,
    /// Clocks are not measured any more.
    clocks: Condvar,
}

#[derive(Debug)]
struct HeldRecords {
    records: Vec<TimelineRecord>,
    dropped: u64,
    steps: u64,
    /// Clocks are measured for the last time.
    clocks_end: bool,
    is_over: bool,
    /// Nobody writes any more.
    is_closed: bool,
}

/// What the writer has taken beside records.
#[derive(Clone, Copy, Debug)]
pub(super) struct TakenRecords {
    /// How many records were dropped after those that were taken.
    pub(super) dropped: u64,
    pub(super) is_over: bool,
}

impl RecordBuffer {
    pub(super) fn new() -> Self {
        let held = HeldRecords {
            records: Vec::with_capacity(ROOM),
            dropped: 0,
            steps: 0,
            clocks_end: false,
            is_over: false,
            is_closed: false,
        };
        Self { held: Mutex::new(held), much: Condvar::new(), clocks: Condvar::new() }
    }

    /// An empty buffer to change for the full one.
    pub(super) fn room(&self) -> Vec<TimelineRecord> {
        Vec::with_capacity(ROOM)
    }

    fn held(&self) -> MutexGuard<'_, HeldRecords> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a record, unless there is no room.
    #[inline]
    pub(super) fn push(&self, record: impl FnOnce() -> TimelineRecord) {
        let is_much = self.held().push(record);
        if is_much {
            self.much.notify_one();
        }
    }

    /// Keeps a name, for which there always is room: names are few, and have numbers by their order.
    pub(super) fn push_name(&self, name: &str) {
        let mut held = self.held();
        if !held.is_closed {
            held.records.push(TimelineRecord::Name(name.into()));
        }
    }

    /// The next step of the program begins.
    pub(super) fn mark_step(&self) {
        let at = Moment::exact().since_start().as_nanos() as u64;
        let mut held = self.held();
        // Before the first mark step 0 is under way.
        held.steps += 1;
        let step = held.steps;
        held.push(|| TimelineRecord::Marked { at, step });
    }

    /// Takes all that is held, and waits for it at most so long.
    pub(super) fn take(&self, empty: &mut Vec<TimelineRecord>, limit: Duration) -> TakenRecords {
        let until = Instant::now() + limit;
        let mut held = self.held();
        while held.records.len() < ROOM / 2 && !held.is_over {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            held = self
                .much
                .wait_timeout(held, left)
                .map_or_else(|error| error.into_inner().0, |(held, _)| held);
        }
        std::mem::swap(&mut held.records, empty);
        TakenRecords { dropped: std::mem::take(&mut held.dropped), is_over: held.is_over }
    }

    /// Waits so long, or until clocks are measured for the last time; whether they are.
    pub(super) fn wait_for_clocks(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        let mut held = self.held();
        while !(held.clocks_end || held.is_closed) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            held = self
                .clocks
                .wait_timeout(held, left)
                .map_or_else(|error| error.into_inner().0, |(held, _)| held);
        }
        true
    }

    /// Whether clocks are measured for the last time.
    pub(super) fn clocks_end(&self) -> bool {
        let held = self.held();
        held.clocks_end || held.is_closed
    }

    /// Clocks are measured for the last time.
    pub(super) fn end_clocks(&self) {
        self.held().clocks_end = true;
        self.clocks.notify_all();
    }

    /// Nothing more will come.
    pub(super) fn end(&self) {
        self.held().is_over = true;
        self.much.notify_all();
    }

    /// Nobody writes any more, so nothing is kept.
    pub(super) fn close(&self) {
        let mut held = self.held();
        held.is_closed = true;
        held.records = Vec::new();
    }
}

impl HeldRecords {
    /// Whether there is now just so much that the writer should begin.
    #[inline]
    fn push(&mut self, record: impl FnOnce() -> TimelineRecord) -> bool {
        if self.is_closed {
            return false;
        }
        // What comes after a gap would not be understood until the writer knows of it.
        if self.records.len() >= ROOM || self.dropped > 0 {
            self.dropped += 1;
            return false;
        }
        self.records.push(record());
        self.records.len() == ROOM / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_room_is_counted_and_the_memory_is_taken_once() {
        let buffer = RecordBuffer::new();
        (0..ROOM + 5).for_each(|_| buffer.mark_step());
        let mut taken = buffer.room();
        assert_eq!(buffer.take(&mut taken, Duration::ZERO).dropped, 5);
        assert_eq!((taken.len(), taken.capacity()), (ROOM, ROOM));
        taken.clear();
        buffer.mark_step();
        buffer.end();
        let last = buffer.take(&mut taken, Duration::from_secs(60));
        assert_eq!((last.dropped, last.is_over, taken.len(), taken.capacity()), (0, true, 1, ROOM));
        buffer.close();
        buffer.mark_step();
        taken.clear();
        buffer.take(&mut taken, Duration::ZERO);
        assert!(taken.is_empty());
    }

    #[test]
    fn a_record_is_small() {
        assert!(size_of::<TimelineRecord>() <= 96, "{}", size_of::<TimelineRecord>());
    }
}
