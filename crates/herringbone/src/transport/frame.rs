//! Frames in shared memory: five words, then a payload that fits next to them, or its place.

use super::Broken;
use crate::{
    core::session::lane::EAGER_BYTES_HERE,
    core::wire::{Header, Kind},
    sys::{ring, span::Span},
};
use std::sync::atomic::{AtomicU64, Ordering};

const WORD: usize = size_of::<u64>();
const FRAME_WORDS: usize = 5;
pub(super) const CELL_WORDS: usize = ring::MESSAGE_WORDS;
/// The largest payload that a cell holds beside the frame; up to [`EAGER_BYTES_HERE`] it goes into the lane's payload ring.
pub(crate) const CELL_BYTES: usize = (CELL_WORDS - FRAME_WORDS) * WORD;
/// Where in a cell's words the payload begins, or stands where it lies.
pub(super) const PAYLOAD_WORD: usize = FRAME_WORDS;

/// Where the length of a whole part stands, of messages that lie with their sender and belong to parts that may differ.
const WHOLE_WORD: usize = PAYLOAD_WORD + 1;

/// A frame on its way out, made once for all who get it.
#[derive(Debug)]
pub(crate) struct Frame<'a> {
    words: [u64; CELL_WORDS],
    used: usize,
    /// What goes into the payload ring; its place there is the word at [`PAYLOAD_WORD`].
    pub(super) carried: Option<Span<'a>>,
}

impl<'a> Frame<'a> {
    /// The header's length is the payload's.
    pub(crate) fn new(header: &Header, body: Option<Body<Span<'a>>>) -> Self {
        let mut frame = Self::of(&frame_words(header), body);
        if header.whole != 0 {
            frame.words[WHOLE_WORD] = header.whole;
            frame.used = WHOLE_WORD + 1;
        }
        frame
    }

    /// A message of at most [`EAGER_BYTES_HERE`], before it is [addressed](Self::address).
    pub(crate) fn carrying(common: &Common, payload: Span<'a>) -> Self {
        Self::of(&common.message(payload.len(), 0), Some(Body::Carried(payload)))
    }

    fn of(words: &[u64; FRAME_WORDS], body: Option<Body<Span<'a>>>) -> Self {
        let (words, used) = pack(words, body.as_ref());
        let carried = match body {
            Some(Body::Carried(payload)) if payload.len() > CELL_BYTES => Some(payload),
            _ => None,
        };
        Self { words, used, carried }
    }

    /// What goes into the cell.
    pub(super) fn words(&self) -> &[u64] {
        &self.words[..self.used]
    }

    /// Says what differs from one receiver to the next.
    pub(crate) fn address(&mut self, index: u16, eager: bool, credits: u16) {
        self.words[0] = self.words[0] & !VARIABLE | variable(eager, credits);
        self.words[4] = self.words[4] & u64::from(u32::MAX) | u64::from(index) << 32;
    }
}

/// The payload of a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Body<C> {
    /// It goes with the frame: at most [`EAGER_BYTES_HERE`].
    Carried(C),
    /// It lies at this offset of the sender's segment, in a slot.
    At(usize),
    /// It lies at this offset of the sender's segment, in the user's buffer, where the result of its chunk may be put.
    Direct(usize),
    /// It is the result, and was put where [`Direct`](Self::Direct) allowed.
    Placed,
}

/// The header fields that all frames of an operation share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Common([u64; FRAME_WORDS]);

impl Common {
    /// As in this header, but for length, index, credits and eagerness.
    pub(crate) fn of(header: &Header) -> Self {
        let mut words = frame_words(header);
        (words[0], words[4]) = (words[0] & !VARIABLE, 0);
        Self(words)
    }

    fn message(&self, length: usize, index: u16) -> [u64; FRAME_WORDS] {
        let mut words = self.0;
        words[4] = length as u64 | u64::from(index) << 32;
        words
    }
}

/// A frame that is waited for: it carries a payload.
#[derive(Debug)]
pub(crate) struct Wanted {
    words: [u64; FRAME_WORDS],
    bytes: usize,
}

impl Wanted {
    /// A message of at most [`EAGER_BYTES_HERE`]; whether it is eager, and its credits, do not matter.
    pub(crate) fn new(common: &Common, bytes: usize, index: u16) -> Self {
        let mut words = common.message(bytes, index);
        words[0] |= CARRIED_FLAG;
        Self { words, bytes }
    }

    /// Whether a cell's words are this frame; a payload in the cell lies at `here`.
    pub(super) fn compare(&self, cell: &[AtomicU64], here: usize) -> Next {
        let Wanted { words, bytes } = self;
        if cell.len() != words_with(*bytes) {
            return Next::Other;
        }
        let mut found = [0; FRAME_WORDS];
        for (found, word) in found.iter_mut().zip(cell) {
            *found = word.load(Ordering::Relaxed);
        }
        let (eager, credits) = variable_of(found[0]);
        found[0] &= !VARIABLE;
        // Not `==`, for which compilers call the C library.
        let differ = found.iter().zip(words).fold(0, |differ, (found, wanted)| differ | (found ^ wanted));
        match differ == 0 {
            true if *bytes <= CELL_BYTES => Next::Wanted { at: here, eager, credits },
            true => {
                let at = cell[PAYLOAD_WORD].load(Ordering::Relaxed) as usize;
                Next::Wanted { at, eager, credits }
            }
            false => Next::Other,
        }
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

fn pack(frame: &[u64; FRAME_WORDS], body: Option<&Body<Span<'_>>>) -> ([u64; CELL_WORDS], usize) {
    let mut words = [0; CELL_WORDS];
    words[..FRAME_WORDS].copy_from_slice(frame);
    words[0] |= match body {
        Some(Body::Carried(_)) => CARRIED_FLAG,
        Some(Body::Direct(_)) => DIRECT_FLAG,
        Some(Body::Placed) => PLACED_FLAG,
        Some(Body::At(_)) | None => 0,
    };
    let used = match body {
        Some(Body::At(offset) | Body::Direct(offset)) => {
            words[PAYLOAD_WORD] = *offset as u64;
            FRAME_WORDS + 1
        }
        Some(Body::Carried(payload)) if payload.len() <= CELL_BYTES => {
            let mut bytes = [0; CELL_BYTES];
            payload.read(&mut bytes[..payload.len()]);
            for (word, bytes) in words[PAYLOAD_WORD..].iter_mut().zip(bytes.as_chunks().0) {
                *word = u64::from_ne_bytes(*bytes);
            }
            words_with(payload.len())
        }
        Some(Body::Carried(payload)) => words_with(payload.len()),
        Some(Body::Placed) | None => FRAME_WORDS,
    };
    (words, used)
}

/// The words of a frame that carries so many bytes: they are among them, or it says where they lie.
fn words_with(bytes: usize) -> usize {
    FRAME_WORDS + if bytes <= CELL_BYTES { bytes.div_ceil(WORD) } else { 1 }
}

/// A frame of `used` words; a payload in the cell lies at `here`.
pub(super) fn unpack(words: &[u64; CELL_WORDS], used: usize, here: usize) -> Result<Incoming, Broken> {
    let known = [Kind::Data, Kind::Grant, Kind::Credit, Kind::Stable];
    let kind = known.into_iter().find(|kind| *kind as u8 == words[0] as u8);
    let kind = kind.ok_or(Broken::Protocol("a frame of unknown kind"))?;
    let mut header = Header::new(kind, (words[0] >> 32) as u32, words[1] as u32, words[2]);
    (header.eager, header.credits) = variable_of(words[0]);
    (header.segment, header.hash) = ((words[1] >> 32) as u32, words[3]);
    (header.length, header.index) = (words[4] as u32, (words[4] >> 32) as u16);
    if words[0] & CARRIED_FLAG == 0 && used > WHOLE_WORD {
        header.whole = words[WHOLE_WORD];
    }
    let length = header.length as usize;
    let flag = words[0] & (CARRIED_FLAG | DIRECT_FLAG | PLACED_FLAG);
    let body = match (kind, flag) {
        (Kind::Data, CARRIED_FLAG) if length > EAGER_BYTES_HERE => {
            return Err(Broken::Protocol("a frame that carries more bytes than frames can"));
        }
        (Kind::Data, CARRIED_FLAG) if used != words_with(length) => {
            return Err(Broken::Protocol("a frame that lacks the message that it announces"));
        }
        (Kind::Data, CARRIED_FLAG) if length <= CELL_BYTES => Some(Body::Carried(here)),
        (Kind::Data, CARRIED_FLAG) => Some(Body::Carried(words[PAYLOAD_WORD] as usize)),
        (Kind::Data, DIRECT_FLAG) => Some(Body::Direct(words[PAYLOAD_WORD] as usize)),
        (Kind::Data, PLACED_FLAG) => Some(Body::Placed),
        (Kind::Data, 0) => Some(Body::At(words[PAYLOAD_WORD] as usize)),
        (Kind::Data, _) => return Err(Broken::Protocol("a frame that names two places for one message")),
        _ => None,
    };
    Ok((header, body))
}
