//! A link through shared memory: frames in rings. Small payloads go with their frames, in the ring's cell or in a slot
//! that belongs to it; others are left where their sender has them.

use super::Broken;
use crate::{
    core::wire::{Header, Kind},
    engine::endpoint::SHARED_SLOTS,
    execute::prepare::EAGER_BYTES,
    sys::{
        doorbell,
        doorbell::Bell,
        ring,
        segment::{Segment, Words},
        span::Span,
    },
};
use std::{
    collections::VecDeque,
    fmt,
    ops::Range,
    sync::{Arc, atomic::AtomicU64},
};

const FRAME_WORDS: usize = 5;
const CELL_WORDS: usize = ring::MESSAGE_WORDS;
/// Cells per ring; one ring per ordered pair of ranks that share memory. As few as keep two ranks from waiting for each
/// other, so that they stay in cache; eager messages alone cannot fill it.
const CELLS: usize = 16;
const _: () = assert!(SHARED_SLOTS as usize <= CELLS / 2);
const RING_BYTES: usize = ring::cells_words(CELLS) * WORD;
/// The largest payload that a cell holds beside the frame; up to [`EAGER_BYTES`] it goes into the cell's slot.
const CELL_BYTES: usize = (CELL_WORDS - FRAME_WORDS) * WORD;
/// A ring, and a slot for each of its cells.
const LANE_BYTES: usize = RING_BYTES + CELLS * EAGER_BYTES;

/// Where things lie in a process's segment: control words, then what its host-mates tell it, then its
/// rings, its slots, and its user's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// How many ranks share the host.
    pub(crate) mates: usize,
    /// Bytes for slots.
    pub(crate) pool: usize,
    /// Bytes for users' buffers; each process has as many as it likes.
    pub(crate) heap: usize,
}

const PAGE: usize = 4096;
const WORD: usize = 8;
const TAIL_BYTES: usize = ring::TAIL_WORDS * WORD;
/// Control words of a segment, by their number.
const STAMP: Range<usize> = 0..3;
const SLEEPING: Range<usize> = 16..17;

impl Layout {
    /// The whole segment.
    pub(crate) fn bytes(self) -> usize {
        self.heap_at() + self.heap
    }

    /// Where users' buffers begin.
    pub(crate) fn heap_at(self) -> usize {
        (self.pool_at() + self.pool).next_multiple_of(PAGE)
    }

    /// Where slots begin.
    pub(crate) fn pool_at(self) -> usize {
        (self.lane_at(self.mates)).next_multiple_of(PAGE)
    }

    /// Where what this process sends a host-mate begins: its ring, then the cells' slots.
    fn lane_at(self, mate: usize) -> usize {
        (PAGE + self.mates * TAIL_BYTES).next_multiple_of(PAGE) + mate * LANE_BYTES
    }

    /// The words in which this process tells a host-mate how far it has read.
    fn tail(self, mate: usize) -> Range<usize> {
        let at = (PAGE + mate * TAIL_BYTES) / WORD;
        at..at + ring::TAIL_WORDS
    }

    /// The words of this process's ring to a host-mate.
    fn ring(self, mate: usize) -> Range<usize> {
        let at = self.lane_at(mate) / WORD;
        at..at + ring::cells_words(CELLS)
    }
}

/// The word that tells others that this process sleeps and wants its bell rung.
pub(crate) fn sleeping(segment: &Segment) -> &AtomicU64 {
    &segment.atomics(SLEEPING)[0]
}

/// Stamps a new segment, so that whoever maps it can tell that it is the one it was promised.
pub(crate) fn stamp(segment: &Segment, job: u64, rank: u32, incarnation: u64) {
    for (word, value) in segment.atomics(STAMP).iter().zip([job, u64::from(rank), incarnation]) {
        word.store(value, std::sync::atomic::Ordering::Release);
    }
}

/// Whether a mapped segment carries this stamp and has this layout's size.
pub(crate) fn is_stamped(segment: &Segment, layout: Layout, job: u64, rank: u32, incarnation: u64) -> bool {
    segment.len() >= layout.heap_at()
        && segment
            .atomics(STAMP)
            .iter()
            .zip([job, u64::from(rank), incarnation])
            .all(|(word, value)| word.load(std::sync::atomic::Ordering::Acquire) == value)
}

/// One end of a link between two ranks that map each other's segments.
pub(crate) struct ShmLink {
    out: ring::Producer<Words, Words>,
    inn: ring::Consumer<Words, Words>,
    mine: Arc<Segment>,
    theirs: Arc<Segment>,
    /// Where the lanes of the two directions begin, each in its sender's segment.
    out_at: usize,
    inn_at: usize,
    bell: Arc<Bell>,
    waiting: VecDeque<Waiting>,
    unannounced: bool,
}

/// A frame on its way out, made once for all who get it.
#[derive(Debug)]
pub(crate) struct Frame<'a> {
    words: [u64; CELL_WORDS],
    used: usize,
    /// What goes into the cell's slot.
    carried: Option<Span<'a>>,
}

impl<'a> Frame<'a> {
    /// The header's length is the payload's.
    pub(crate) fn new(header: &Header, body: Option<Body<Span<'a>>>) -> Self {
        let (words, used) = pack(header, body.as_ref());
        let carried = match body {
            Some(Body::Carried(payload)) if payload.len() > CELL_BYTES => Some(payload),
            _ => None,
        };
        Self { words, used, carried }
    }

    /// Says what differs from one receiver to the next.
    pub(crate) fn address(&mut self, index: u16, eager: bool, credits: u16) {
        self.words[0] = self.words[0] & !VARIABLE | variable(eager, credits);
        self.words[4] = self.words[4] & u64::from(u32::MAX) | u64::from(index) << 32;
    }
}

/// A frame that found no room in the ring, with its payload if that goes to the cell's slot.
struct Waiting {
    words: [u64; CELL_WORDS],
    used: usize,
    carried: Option<Vec<u8>>,
}

/// The payload of a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Body<C> {
    /// It goes with the frame: at most [`EAGER_BYTES`].
    Carried(C),
    /// It lies at this offset of the sender's segment, in a slot.
    At(usize),
    /// It lies at this offset of the sender's segment, in the user's buffer, where the result of its chunk may be put.
    Direct(usize),
    /// It is the result, and was put where [`Direct`](Self::Direct) allowed.
    Placed,
}

/// A frame that is waited for: it carries a payload.
#[derive(Debug)]
pub(crate) struct Wanted([u64; FRAME_WORDS]);

impl Wanted {
    /// A message of at most [`EAGER_BYTES`]; whether it is eager, and its credits, do not matter.
    pub(crate) fn new(header: &Header) -> Self {
        let mut words = frame_words(header);
        words[0] = words[0] & !VARIABLE | CARRIED_FLAG;
        Self(words)
    }
}

/// The next frame, compared with a wanted one.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Next {
    None,
    Other,
    /// It is that one, and carries its payload at this offset of the sender's segment.
    Wanted {
        at: usize,
        eager: bool,
        credits: u16,
    },
}

/// An incoming frame. What it [carries](Body::Carried) lies at an offset of the sender's segment until it is taken.
pub(crate) type Incoming = (Header, Option<Body<usize>>);

impl ShmLink {
    /// `mate` and `my_mate` are the two ranks' positions among the ranks of their host.
    pub(crate) fn new(
        mine: &Arc<Segment>,
        theirs: Arc<Segment>,
        layout: Layout,
        my_mate: usize,
        mate: usize,
        bell: Arc<Bell>,
    ) -> Self {
        let words = |segment: &Arc<Segment>, range: Range<usize>| segment.words(range);
        Self {
            out: ring::Producer::new(words(mine, layout.ring(mate)), words(&theirs, layout.tail(my_mate))),
            inn: ring::Consumer::new(words(&theirs, layout.ring(my_mate)), words(mine, layout.tail(mate))),
            mine: mine.clone(),
            theirs,
            out_at: layout.lane_at(mate),
            inn_at: layout.lane_at(my_mate),
            bell,
            waiting: VecDeque::new(),
            unannounced: false,
        }
    }

    /// The sender's memory at a checked range: a message's payload.
    pub(crate) fn payload(&self, at: usize, length: usize) -> Option<Span<'_>> {
        let end = at.checked_add(length)?;
        (end <= self.theirs.len()).then(|| self.theirs.span(at..end))
    }

    /// The other's segment.
    pub(crate) fn segment(&self) -> &Arc<Segment> {
        &self.theirs
    }

    /// Sends a frame.
    pub(crate) fn send(&mut self, frame: &Frame<'_>) {
        let Frame { words, used, carried } = frame;
        if self.waiting.is_empty() && self.out.has_room() {
            if let Some(payload) = carried {
                self.slot(payload.len()).copy_from(*payload);
            }
            let _sent = self.out.try_push(&words[..*used]);
        } else {
            let carried = carried.map(Span::to_vec);
            self.waiting.push_back(Waiting { words: *words, used: *used, carried });
        }
        self.unannounced = true;
    }

    /// The slot of the cell that the next frame goes to.
    fn slot(&self, bytes: usize) -> Span<'_> {
        let at = slot_at(self.out_at, self.out.position());
        self.mine.span(at..at + bytes)
    }

    /// Pushes what found no room before. Returns whether anything moved.
    pub(crate) fn flush(&mut self) -> bool {
        let mut moved = false;
        while self.out.has_room()
            && let Some(Waiting { words, used, carried }) = self.waiting.pop_front()
        {
            if let Some(payload) = carried {
                self.slot(payload.len()).write(&payload);
            }
            let _sent = self.out.try_push(&words[..used]);
            (moved, self.unannounced) = (true, true);
        }
        moved
    }

    /// Whether something was pushed that the other may sleep through.
    pub(crate) fn is_unannounced(&self) -> bool {
        self.unannounced
    }

    /// Wakes the other if it sleeps; after [`doorbell::published`].
    pub(crate) fn announce(&mut self) {
        if std::mem::take(&mut self.unannounced) {
            // A bell that cannot be rung costs its owner a nap at most.
            let _rung = doorbell::wake_published(sleeping(&self.theirs), &self.bell);
        }
    }

    /// Whether everything is in the ring.
    pub(crate) fn is_flushed(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The next frame, if there is one. It stays the next until it is [taken](Self::take).
    pub(crate) fn peek(&self) -> Result<Option<Incoming>, Broken> {
        let mut words = [0; CELL_WORDS];
        let Some(message) = self.inn.peek(&mut words) else { return Ok(None) };
        let used = message.len();
        unpack(&words, used, |bytes| self.carried_at(bytes)).map(Some)
    }

    /// Whether the next frame is this one.
    pub(crate) fn next_is(&self, wanted: &Wanted) -> Next {
        let mut words = [0; CELL_WORDS];
        let Some(message) = self.inn.peek(&mut words) else { return Next::None };
        let bytes = wanted.0[4] as u32 as usize;
        let used = FRAME_WORDS + if bytes <= CELL_BYTES { bytes.div_ceil(WORD) } else { 0 };
        if message.len() != used
            || words[0] & !VARIABLE != wanted.0[0]
            || words[1..FRAME_WORDS] != wanted.0[1..]
        {
            return Next::Other;
        }
        let (eager, credits) = variable_of(words[0]);
        Next::Wanted { at: self.carried_at(bytes), eager, credits }
    }

    /// Where what the next frame carries lies in the sender's segment, if it is so many bytes.
    fn carried_at(&self, bytes: usize) -> usize {
        match bytes <= CELL_BYTES {
            true => self.inn_at + (ring::message_at(self.inn.position()) + FRAME_WORDS) * WORD,
            false => slot_at(self.inn_at, self.inn.position()),
        }
    }

    /// Is done with the next frame and what it carries.
    pub(crate) fn take(&mut self) {
        self.inn.take();
    }
}

/// Where the slot of a cell lies, in a lane that begins at `lane`.
fn slot_at(lane: usize, position: usize) -> usize {
    lane + RING_BYTES + position * EAGER_BYTES
}

impl fmt::Debug for ShmLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShmLink").field("waiting", &self.waiting.len()).finish_non_exhaustive()
    }
}

const CARRIED_FLAG: u64 = 1 << 8;
const DIRECT_FLAG: u64 = 1 << 9;
const PLACED_FLAG: u64 = 1 << 10;
const EAGER_AT: u32 = 16;
/// What of the first word differs from one receiver to the next.
const VARIABLE: u64 = 1 << EAGER_AT | 0xff << CREDITS_AT;
const CREDITS_AT: u32 = 24;

fn variable(eager: bool, credits: u16) -> u64 {
    u64::from(u8::from(eager)) << EAGER_AT | u64::from(credits as u8) << CREDITS_AT
}

fn variable_of(word: u64) -> (bool, u16) {
    (word >> EAGER_AT & 1 == 1, u16::from((word >> CREDITS_AT) as u8))
}

fn frame_words(header: &Header) -> [u64; FRAME_WORDS] {
    [
        header.kind as u64 | variable(header.eager, header.credits) | u64::from(header.group) << 32,
        u64::from(header.generation) | u64::from(header.segment) << 32,
        header.sequence,
        header.hash,
        u64::from(header.length) | u64::from(header.index) << 32,
    ]
}

fn pack(header: &Header, body: Option<&Body<Span<'_>>>) -> ([u64; CELL_WORDS], usize) {
    let mut words = [0; CELL_WORDS];
    words[..FRAME_WORDS].copy_from_slice(&frame_words(header));
    words[0] |= match body {
        Some(Body::Carried(_)) => CARRIED_FLAG,
        Some(Body::Direct(_)) => DIRECT_FLAG,
        Some(Body::Placed) => PLACED_FLAG,
        Some(Body::At(_)) | None => 0,
    };
    let used = match body {
        Some(Body::At(offset) | Body::Direct(offset)) => {
            words[FRAME_WORDS] = *offset as u64;
            FRAME_WORDS + 1
        }
        Some(Body::Carried(payload)) if payload.len() <= CELL_BYTES => {
            let mut bytes = [0; CELL_BYTES];
            payload.read(&mut bytes[..payload.len()]);
            for (word, bytes) in words[FRAME_WORDS..].iter_mut().zip(bytes.as_chunks().0) {
                *word = u64::from_ne_bytes(*bytes);
            }
            FRAME_WORDS + payload.len().div_ceil(WORD)
        }
        _ => FRAME_WORDS,
    };
    (words, used)
}

/// A frame of `used` words; `carried` tells where a payload of so many bytes lies that goes with it.
fn unpack(
    words: &[u64; CELL_WORDS],
    used: usize,
    carried: impl Fn(usize) -> usize,
) -> Result<Incoming, Broken> {
    let known = [Kind::Data, Kind::Grant, Kind::Credit, Kind::Stable];
    let kind = known.into_iter().find(|kind| *kind as u8 == words[0] as u8);
    let kind = kind.ok_or(Broken::Protocol("a frame of unknown kind"))?;
    let mut header = Header::new(kind, (words[0] >> 32) as u32, words[1] as u32, words[2]);
    (header.eager, header.credits) = variable_of(words[0]);
    (header.segment, header.hash) = ((words[1] >> 32) as u32, words[3]);
    (header.length, header.index) = (words[4] as u32, (words[4] >> 32) as u16);
    let length = header.length as usize;
    let flag = words[0] & (CARRIED_FLAG | DIRECT_FLAG | PLACED_FLAG);
    let body = match (kind, flag) {
        (Kind::Data, CARRIED_FLAG) if length > EAGER_BYTES => {
            return Err(Broken::Protocol("a message too long to go with its frame"));
        }
        (Kind::Data, CARRIED_FLAG) if length <= CELL_BYTES && used != FRAME_WORDS + length.div_ceil(WORD) => {
            return Err(Broken::Protocol("a frame without its message"));
        }
        (Kind::Data, CARRIED_FLAG) => Some(Body::Carried(carried(length))),
        (Kind::Data, DIRECT_FLAG) => Some(Body::Direct(words[FRAME_WORDS] as usize)),
        (Kind::Data, PLACED_FLAG) => Some(Body::Placed),
        (Kind::Data, 0) => Some(Body::At(words[FRAME_WORDS] as usize)),
        (Kind::Data, _) => return Err(Broken::Protocol("a message in two places")),
        _ => None,
    };
    Ok((header, body))
}
