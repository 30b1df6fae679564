//! The two ends of a lane in shared memory: a ring of frames, and a slot for each of its cells.

use super::{
    Broken,
    frame::{CELL_WORDS, Frame, Incoming, Next, Wanted, in_cell, unpack},
};
use crate::{
    execute::prepare::EAGER_BYTES,
    sys::{
        ring,
        segment::{Segment, Words},
        span::Span,
    },
};
use std::{ops::Range, sync::Arc};

/// Cells per ring. As few as keep two ranks from waiting for each other, so that they stay in cache; eager messages alone
/// cannot fill it.
pub(super) const CELLS: usize = 16;
const WORD: usize = size_of::<u64>();
const RING_BYTES: usize = ring::cells_words(CELLS) * WORD;
/// A whole lane.
pub(super) const LANE_BYTES: usize = RING_BYTES + CELLS * EAGER_BYTES;

/// The end that sends.
pub(super) struct Outlet {
    ring: ring::Producer<Words, Words>,
    segment: Arc<Segment>,
    at: usize,
}

/// An end that receives.
pub(super) struct Inlet {
    ring: ring::Consumer<Words, Words>,
    at: usize,
}

/// The words of the ring of the lane that begins at a byte.
fn ring_of(at: usize) -> Range<usize> {
    at / WORD..at / WORD + ring::cells_words(CELLS)
}

/// Where the slot of a cell lies, in a lane that begins at `lane`.
fn slot_at(lane: usize, position: usize) -> usize {
    lane + RING_BYTES + position * EAGER_BYTES
}

impl Outlet {
    /// Of the lane at `at` of my segment, read by those who have these tails.
    pub(super) fn new(segment: &Arc<Segment>, at: usize, tails: impl IntoIterator<Item = Words>) -> Self {
        let ring = ring::Producer::new(segment.words(ring_of(at)), tails);
        Self { ring, segment: segment.clone(), at }
    }

    /// How many read it.
    pub(super) fn readers(&self) -> usize {
        self.ring.consumers()
    }

    pub(super) fn has_room(&mut self) -> bool {
        self.ring.has_room()
    }

    /// Sends a frame. Returns whether there was room for it.
    pub(super) fn send(&mut self, frame: &Frame<'_>) -> bool {
        let room = self.has_room();
        if room {
            if let Some(payload) = frame.carried {
                self.slot(payload.len()).copy_from(payload);
            }
            self.push(frame.words());
        }
        room
    }

    /// Sends a frame by its words, and what goes into the cell's slot; there is room.
    pub(super) fn send_kept(&mut self, words: &[u64], carried: Option<&[u8]>) {
        if let Some(payload) = carried {
            self.slot(payload.len()).write(payload);
        }
        self.push(words);
    }

    fn push(&mut self, words: &[u64]) {
        let _sent = self.ring.try_push(words);
    }

    /// The slot of the cell that the next frame goes to.
    fn slot(&self, bytes: usize) -> Span<'_> {
        let at = slot_at(self.at, self.ring.position());
        self.segment.span(at..at + bytes)
    }
}

impl Inlet {
    /// Of the lane at `at` of another's segment; `tail` is mine.
    pub(super) fn new(segment: &Arc<Segment>, at: usize, tail: Words) -> Self {
        Self { ring: ring::Consumer::new(segment.words(ring_of(at)), tail), at }
    }

    /// The next frame, if there is one. It stays the next until it is [taken](Self::take).
    pub(super) fn peek(&self) -> Result<Option<Incoming>, Broken> {
        let mut words = [0; CELL_WORDS];
        let Some(message) = self.ring.peek(&mut words) else { return Ok(None) };
        let used = message.len();
        unpack(&words, used, |bytes| self.carried_at(bytes)).map(Some)
    }

    /// Whether the next frame is this one.
    pub(super) fn next_is(&self, wanted: &Wanted) -> Next {
        match self.ring.next_words() {
            Some(cell) => wanted.compare(cell, |bytes| self.carried_at(bytes)),
            None => Next::None,
        }
    }

    /// Is done with the next frame and what it carries.
    pub(super) fn take(&mut self) {
        self.ring.take();
    }

    /// Where what the next frame carries lies in the sender's segment, if it is so many bytes.
    fn carried_at(&self, bytes: usize) -> usize {
        match in_cell(bytes) {
            Some(word) => self.at + (ring::message_at(self.ring.position()) + word) * WORD,
            None => slot_at(self.at, self.ring.position()),
        }
    }
}
