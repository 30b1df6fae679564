//! A link through shared memory: frames in rings, payloads left where their sender has them.

use super::{Broken, INLINE_BYTES};
use crate::{
    core::wire::{Header, Kind},
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
/// Cells per ring; one ring per ordered pair of ranks that share memory.
const CELLS: usize = 64;
const RING_BYTES: usize = ring::cells_words(CELLS) * WORD;

const _: () = assert!((CELL_WORDS - FRAME_WORDS) * 8 == INLINE_BYTES);

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
        (self.rings_at() + self.mates * RING_BYTES).next_multiple_of(PAGE)
    }

    fn rings_at(self) -> usize {
        (PAGE + self.mates * TAIL_BYTES).next_multiple_of(PAGE)
    }

    /// The words in which this process tells a host-mate how far it has read.
    fn tail(self, mate: usize) -> Range<usize> {
        let at = (PAGE + mate * TAIL_BYTES) / WORD;
        at..at + ring::TAIL_WORDS
    }

    /// The words of this process's ring to a host-mate.
    fn ring(self, mate: usize) -> Range<usize> {
        let at = (self.rings_at() + mate * RING_BYTES) / WORD;
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
    theirs: Arc<Segment>,
    bell: Arc<Bell>,
    waiting: VecDeque<([u64; CELL_WORDS], usize)>,
    unannounced: bool,
}

/// The payload of an incoming frame.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Body {
    /// It came in the frame.
    Inline([u64; CELL_WORDS - FRAME_WORDS]),
    /// It lies at this offset of the sender's segment, in a slot.
    At(usize),
    /// It lies at this offset of the sender's segment, in the user's buffer, where the result of its chunk may be put.
    Direct(usize),
    /// It is the result, and was put where [`Direct`](Self::Direct) allowed.
    Placed,
}

impl Body {
    /// The first bytes of an inline payload.
    pub(crate) fn bytes(words: &[u64; CELL_WORDS - FRAME_WORDS]) -> [u8; INLINE_BYTES] {
        let mut bytes = [0; INLINE_BYTES];
        for (to, word) in bytes.chunks_exact_mut(WORD).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

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
            theirs,
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

    /// Sends a frame whose payload is none, inline, or at an offset of my segment.
    pub(crate) fn send(&mut self, header: &Header, body: Option<Body>) {
        let (words, used) = pack(header, body);
        if !self.waiting.is_empty() || !self.out.try_push(&words[..used]) {
            self.waiting.push_back((words, used));
        }
        self.unannounced = true;
    }

    /// Pushes what found no room before. Returns whether anything moved.
    pub(crate) fn flush(&mut self) -> bool {
        let mut moved = false;
        while let Some((words, used)) = self.waiting.front() {
            if !self.out.try_push(&words[..*used]) {
                break;
            }
            self.waiting.pop_front();
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

    /// The next frame, if there is one.
    pub(crate) fn receive(&mut self) -> Result<Option<(Header, Option<Body>)>, Broken> {
        let mut words = [0; CELL_WORDS];
        if self.inn.try_pop(&mut words).is_none() {
            return Ok(None);
        }
        unpack(&words).map(Some)
    }
}

impl fmt::Debug for ShmLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShmLink").field("waiting", &self.waiting.len()).finish_non_exhaustive()
    }
}

const INLINE_FLAG: u64 = 1 << 8;
const DIRECT_FLAG: u64 = 1 << 9;
const PLACED_FLAG: u64 = 1 << 10;

fn pack(header: &Header, body: Option<Body>) -> ([u64; CELL_WORDS], usize) {
    let mut words = [0; CELL_WORDS];
    let flag = match body {
        Some(Body::Inline(_)) => INLINE_FLAG,
        Some(Body::Direct(_)) => DIRECT_FLAG,
        Some(Body::Placed) => PLACED_FLAG,
        Some(Body::At(_)) | None => 0,
    };
    words[0] = header.kind as u64
        | u64::from(header.eager) << 16
        | flag
        | u64::from(header.credits) << 24
        | u64::from(header.group) << 32;
    words[1] = u64::from(header.generation) | u64::from(header.segment) << 32;
    words[2] = header.sequence;
    words[3] = header.hash;
    words[4] = u64::from(header.length) | u64::from(header.index) << 32;
    let used = match body {
        None | Some(Body::Placed) => FRAME_WORDS,
        Some(Body::At(offset) | Body::Direct(offset)) => {
            words[FRAME_WORDS] = offset as u64;
            FRAME_WORDS + 1
        }
        Some(Body::Inline(payload)) => {
            let used = (header.length as usize).div_ceil(WORD);
            words[FRAME_WORDS..FRAME_WORDS + used].copy_from_slice(&payload[..used]);
            FRAME_WORDS + used
        }
    };
    (words, used)
}

fn unpack(words: &[u64; CELL_WORDS]) -> Result<(Header, Option<Body>), Broken> {
    let known = [Kind::Data, Kind::Grant, Kind::Credit, Kind::Stable];
    let kind = known.into_iter().find(|kind| *kind as u8 == words[0] as u8);
    let kind = kind.ok_or(Broken::Protocol("a frame of unknown kind"))?;
    let mut header = Header::new(kind, (words[0] >> 32) as u32, words[1] as u32, words[2]);
    header.eager = words[0] >> 16 & 1 == 1;
    header.credits = u16::from((words[0] >> 24) as u8);
    (header.segment, header.hash) = ((words[1] >> 32) as u32, words[3]);
    (header.length, header.index) = (words[4] as u32, (words[4] >> 32) as u16);
    let flag = words[0] & (INLINE_FLAG | DIRECT_FLAG | PLACED_FLAG);
    let body = match (kind, flag) {
        (Kind::Data, INLINE_FLAG) if header.length as usize > INLINE_BYTES => {
            return Err(Broken::Protocol("an inline message that is too long"));
        }
        (Kind::Data, INLINE_FLAG) => {
            let mut payload = [0; CELL_WORDS - FRAME_WORDS];
            payload.copy_from_slice(&words[FRAME_WORDS..]);
            Some(Body::Inline(payload))
        }
        (Kind::Data, DIRECT_FLAG) => Some(Body::Direct(words[FRAME_WORDS] as usize)),
        (Kind::Data, PLACED_FLAG) => Some(Body::Placed),
        (Kind::Data, 0) => Some(Body::At(words[FRAME_WORDS] as usize)),
        (Kind::Data, _) => return Err(Broken::Protocol("a message in two places")),
        _ => None,
    };
    Ok((header, body))
}
