//! The two ends of a lane in shared memory: a ring of frames, and one of the payloads that do not fit next to them.

use super::{
    Broken,
    frame::{CELL_WORDS, Incoming, Next, PAYLOAD_WORD, Wanted, unpack},
    stores::copy_for_others,
};
use crate::{
    core::session::lane::EAGER_BYTES_HERE,
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
/// For payloads, which come and go in turn. Eager messages can fill it, unlike the cells: whoever waits for room is woken.
/// Twice what a core's first cache holds and more: a line that another core still has there takes twice as long to write
/// again.
pub(super) const PAYLOAD_BYTES: usize = 128 << 10;
/// How much of their payload rings all ranks of a host write to if two messages in each are less: what a core's cache
/// holds.
const LAPS_BYTES: usize = 1 << 20;
/// How many messages a lap has at least, so that one is read while the next is written.
const LAP_MESSAGES: u64 = 2;
/// Where a payload may begin: processors fetch lines in pairs.
const PAYLOAD_GRAIN: u64 = 128;
/// A whole lane.
pub(super) const LANE_BYTES: usize = RING_BYTES + PAYLOAD_BYTES;
const _: () = assert!(2 * EAGER_BYTES_HERE <= PAYLOAD_BYTES);

/// The end that sends.
pub(super) struct SendHalf {
    ring: ring::Producer<Words, Words>,
    payloads: Payloads,
    segment: Arc<Segment>,
    at: usize,
}

/// The payload ring: one after the other, each in one piece, and from the beginning again, after a lap if what was there
/// is taken. Places are counted on without end.
#[derive(Debug)]
struct Payloads {
    /// Where the last one ends.
    end: u64,
    /// Per cell: where the payloads up to that of its message end.
    ends: [u64; CELLS],
    /// How long a lap is.
    lap: u64,
}

impl Payloads {
    /// On a host of so many ranks.
    fn new(locals: usize) -> Self {
        Self { end: 0, ends: [0; CELLS], lap: (LAPS_BYTES / (locals * locals)) as u64 }
    }

    /// Whether the next payload goes to the beginning, if that is free.
    fn ends_lap(&self, bytes: usize) -> bool {
        self.end % PAYLOAD_BYTES as u64 >= self.lap.max(LAP_MESSAGES * bytes as u64)
    }

    /// The place for the next payload, if there is room for it once so many messages are taken; the next cell is free.
    fn place(&self, bytes: usize, taken: u64) -> Option<u64> {
        let ends_lap = self.ends_lap(bytes);
        let (bytes, whole) = (bytes as u64, PAYLOAD_BYTES as u64);
        let beginning = self.end.next_multiple_of(whole);
        let fits = self.end % whole + bytes <= whole;
        let in_turn = if fits { self.end } else { beginning };
        let free = taken.checked_sub(1).map_or(0, |last| self.ends[last as usize % CELLS]);
        let is_free = |place: &u64| place + bytes <= free + whole;
        ends_lap.then_some(beginning).filter(is_free).or(Some(in_turn).filter(is_free))
    }

    /// The message of a cell has a payload of so many bytes at this place.
    fn placed(&mut self, position: usize, place: u64, bytes: usize) {
        self.end = (place + bytes as u64).next_multiple_of(PAYLOAD_GRAIN);
        self.passed(position);
    }

    /// The payloads up to that of a cell's message, if it has one, have their places.
    fn passed(&mut self, position: usize) {
        self.ends[position] = self.end;
    }
}

/// An end that receives.
pub(super) struct RecvHalf {
    ring: ring::Consumer<Words, Words>,
    at: usize,
}

/// The words of the ring of the lane that begins at a byte.
fn ring_of(at: usize) -> Range<usize> {
    at / WORD..at / WORD + ring::cells_words(CELLS)
}

impl SendHalf {
    /// Of the lane at `at` of my segment, read by those who have these tails, of a host's `locals`.
    pub(super) fn new(
        segment: &Arc<Segment>,
        at: usize,
        tails: impl IntoIterator<Item = Words>,
        locals: usize,
    ) -> Self {
        let ring = ring::Producer::new(segment.words(ring_of(at)), tails);
        Self { ring, payloads: Payloads::new(locals), segment: segment.clone(), at }
    }

    /// How many read it.
    pub(super) fn readers(&self) -> usize {
        self.ring.consumers()
    }

    /// Sends a frame by its words, with what goes into the payload ring. Returns whether there was room for both.
    pub(super) fn send(&mut self, words: &[u64], carried: Option<Span<'_>>) -> bool {
        let position = self.ring.position();
        let Some(payload) = carried else {
            let is_sent = self.ring.try_push(words);
            if is_sent {
                self.payloads.passed(position);
            }
            return is_sent;
        };
        let bytes = payload.len();
        let Some(place) = self.place(bytes) else { return false };
        self.payloads.placed(position, place, bytes);
        let at = self.at + RING_BYTES + place as usize % PAYLOAD_BYTES;
        let into = self.segment.span(at..at + bytes);
        copy_for_others(payload, into);
        let mut placed: [u64; PAYLOAD_WORD + 1] = std::array::from_fn(|word| words[word]);
        placed[PAYLOAD_WORD] = at as u64;
        self.ring.try_push(&placed)
    }

    /// The place of the next frame's payload, if there is room for both. Looks at the tails only at the end of a lap, or
    /// if there is none as far as known.
    fn place(&mut self, bytes: usize) -> Option<u64> {
        let Self { ring, payloads, .. } = self;
        if !ring.has_room() {
            return None;
        }
        let taken = if payloads.ends_lap(bytes) { ring.look() } else { ring.taken() };
        payloads.place(bytes, taken).or_else(|| payloads.place(bytes, ring.look()))
    }
}

impl RecvHalf {
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

    /// Releases the next frame and its payload.
    pub(super) fn take(&mut self) {
        self.ring.take();
    }

    /// Where a payload in the next frame's cell lies in the sender's segment.
    fn here(&self) -> usize {
        self.at + (ring::message_at(self.ring.position()) + PAYLOAD_WORD) * WORD
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where payloads of so many bytes go in the ring of a host of so many ranks, if all but the last few are taken.
    fn places(locals: usize, bytes: usize, behind: u64) -> Vec<u64> {
        let mut payloads = Payloads::new(locals);
        let place = |message: u64| {
            let place = payloads.place(bytes, message.saturating_sub(behind)).expect("room");
            payloads.placed(message as usize % CELLS, place, bytes);
            place % PAYLOAD_BYTES as u64
        };
        (0..1000).map(place).collect()
    }

    fn most(places: &[u64]) -> u64 {
        *places.iter().max().unwrap()
    }

    #[test]
    fn what_many_ranks_write_to_is_little_if_it_is_taken_in_time() {
        assert_eq!(places(8, 8 << 10, 0)[..4], [0, 8 << 10, 0, 8 << 10]);
        assert_eq!(most(&places(8, 1000, 0)), 15 << 10, "a lap of 16 KiB");
        assert_eq!(most(&places(64, 4096, 0)), 4096, "two messages at least");
        assert_eq!(most(&places(2, 8 << 10, 0)), 120 << 10, "few ranks take the whole ring");
    }

    #[test]
    fn what_is_not_taken_is_not_written_over() {
        for (locals, bytes, behind) in
            [(8, 8 << 10, 3), (8, 1000, 9), (64, 4096, 7), (2, EAGER_BYTES_HERE, 1)]
        {
            let places = places(locals, bytes, behind);
            for window in places.windows(behind as usize + 1) {
                for (at, place) in window.iter().enumerate() {
                    let apart = |other: &u64| place.abs_diff(*other) >= bytes as u64;
                    assert!(window[..at].iter().all(apart), "{locals} {bytes} {behind}: {window:?}");
                }
            }
        }
    }
}
