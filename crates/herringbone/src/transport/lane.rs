//! The two ends of a lane in shared memory: a ring of frames, and one of the payloads that do not fit beside them.

use super::{
    Broken,
    frame::{CELL_WORDS, Incoming, Next, PAYLOAD_WORD, Wanted, unpack},
    stores::copy_for_others,
};
use crate::{
    execute::cutting::EAGER_BYTES_HERE,
    sys::{
        ring,
        segment::{Segment, Words},
        span::Span,
    },
};
use std::{ops::Range, sync::Arc};

/// Cells per ring. As few as keep two ranks from waiting for each other, so that they stay in cache; eager messages alone
/// cannot fill them.
pub(super) const CELLS: usize = 16;
const WORD: usize = size_of::<u64>();
const RING_BYTES: usize = ring::cells_words(CELLS) * WORD;
/// For payloads, which come and go in turn; few enough to stay in cache.
pub(super) const PAYLOAD_BYTES: usize = 64 << 10;
/// Where a payload may begin: processors fetch lines in pairs.
const PAYLOAD_GRAIN: u64 = 128;
/// A whole lane.
pub(super) const LANE_BYTES: usize = RING_BYTES + PAYLOAD_BYTES;
const _: () = assert!(2 * EAGER_BYTES_HERE <= PAYLOAD_BYTES);

/// The end that sends.
pub(super) struct Outlet {
    ring: ring::Producer<Words, Words>,
    payloads: Payloads,
    segment: Arc<Segment>,
    at: usize,
}

/// The payload ring: one after the other, each in one piece, and from the beginning again. Places are counted on without end.
#[derive(Debug, Default)]
struct Payloads {
    /// Where the last one ends.
    end: u64,
    /// Per cell: where the payloads up to that of its message end.
    ends: [u64; CELLS],
}

impl Payloads {
    /// The place for the next payload, if there is room for it once so many messages are taken; the next cell is free.
    fn place(&self, bytes: usize, taken: u64) -> Option<u64> {
        let (bytes, whole) = (bytes as u64, PAYLOAD_BYTES as u64);
        let fits = self.end % whole + bytes <= whole;
        let place = if fits { self.end } else { self.end.next_multiple_of(whole) };
        let free = taken.checked_sub(1).map_or(0, |last| self.ends[last as usize % CELLS]);
        (place + bytes <= free + whole).then_some(place)
    }

    /// The message of a cell has a payload of so many bytes at this place.
    fn placed(&mut self, position: usize, place: u64, bytes: usize) {
        self.end = (place + bytes as u64).next_multiple_of(PAYLOAD_GRAIN);
        self.ends[position] = self.end;
    }
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

impl Outlet {
    /// Of the lane at `at` of my segment, read by those who have these tails.
    pub(super) fn new(segment: &Arc<Segment>, at: usize, tails: impl IntoIterator<Item = Words>) -> Self {
        let ring = ring::Producer::new(segment.words(ring_of(at)), tails);
        Self { ring, payloads: Payloads::default(), segment: segment.clone(), at }
    }

    /// How many read it.
    pub(super) fn readers(&self) -> usize {
        self.ring.consumers()
    }

    /// Sends a frame by its words, with what goes into the payload ring. Returns whether there was room for both.
    pub(super) fn send(&mut self, words: &[u64], carried: Option<Span<'_>>) -> bool {
        let bytes = carried.map_or(0, Span::len);
        let Some(place) = self.place(bytes) else { return false };
        self.payloads.placed(self.ring.position(), place, bytes);
        match carried {
            None => self.ring.try_push(words),
            Some(payload) => {
                let at = self.at + RING_BYTES + place as usize % PAYLOAD_BYTES;
                copy_for_others(payload, self.segment.span(at..at + bytes));
                let mut placed: [u64; PAYLOAD_WORD + 1] = std::array::from_fn(|word| words[word]);
                placed[PAYLOAD_WORD] = at as u64;
                self.ring.try_push(&placed)
            }
        }
    }

    /// The place of the next frame's payload, if there is room for both. Looks at the tails only if there is none as far
    /// as known.
    fn place(&mut self, bytes: usize) -> Option<u64> {
        let Self { ring, payloads, .. } = self;
        let known = ring.has_room().then(|| payloads.place(bytes, ring.taken()))?;
        known.or_else(|| payloads.place(bytes, ring.look()))
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
        unpack(&words, used, self.here()).map(Some)
    }

    /// Whether the next frame is this one.
    pub(super) fn next_is(&self, wanted: &Wanted) -> Next {
        match self.ring.next_words() {
            Some(cell) => wanted.compare(cell, self.here()),
            None => Next::None,
        }
    }

    /// Is done with the next frame and what it carries.
    pub(super) fn take(&mut self) {
        self.ring.take();
    }

    /// Where a payload in the next frame's cell lies in the sender's segment.
    fn here(&self) -> usize {
        self.at + (ring::message_at(self.ring.position()) + PAYLOAD_WORD) * WORD
    }
}
