//! How operations are cut into segments: a pure function of what all ranks agree on.
//!
//! A segment is what is under way at once between one rank's send and its grant. Small segments fill and empty the
//! pipeline fast; large ones cost fewer messages, each with its system calls and wake-ups. What is in flight must be
//! enough to keep links busy while segments are folded and grants return, and less than a switch can hold when several
//! ranks send to one.

use super::prepare::{Call, EAGER_BYTES};
use crate::core::{
    collective::Collective,
    schedule::{Cut, Form, GRAIN},
};
use std::ops::Range;

/// Where all ranks share memory: all slots of the stages fit a core's cache.
const MEMORY: Cutting =
    Cutting { segment: Size::Of(512 << 10), message: 8 << 10..256 << 10, in_flight: 2 << 20, depth: 4 };
/// Between workers over links: all links are busy from the first message to the last, so messages can be large.
const LINKS: Cutting =
    Cutting { segment: Size::Part(16), message: 16 << 10..256 << 10, in_flight: 4 << 20, depth: 8 };
/// Through reducers: what has gone up has to come down again, so the last segment's way adds to the time.
const SERVED: Cutting =
    Cutting { segment: Size::Part(64), message: 16 << 10..32 << 10, in_flight: 640 << 10, depth: 10 };

/// The smallest and the largest messages that a user's wish for a segment can lead to.
const LEAST_MESSAGE: usize = 4 << 10;
const MOST_MESSAGE: usize = 1 << 20;
/// The least segments that are in flight, if there are so many, however large they are.
pub(crate) const LEAST_DEPTH: u32 = 4;

#[derive(Debug)]
struct Cutting {
    /// How large a segment is over the whole buffer, if its messages' size allows.
    segment: Size,
    /// The bytes of a segment of one chunk, at least and at most.
    message: Range<usize>,
    /// How many bytes of an operation are in flight, by and large.
    in_flight: usize,
    /// How many segments of an operation are in flight between two ranks at most.
    depth: u32,
}

#[derive(Debug)]
enum Size {
    /// So many bytes.
    Of(usize),
    /// The buffer divided by this.
    Part(usize),
}

/// Through what an operation's messages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Medium {
    Memory,
    Links,
    Reducers,
}

/// How an operation is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segmentation {
    /// Elements per chunk and segment.
    pub(super) elements: usize,
    pub(super) segments: u32,
    /// How many segments are in flight at most.
    pub(super) depth: u32,
}

/// Names all constants that ranks and reducers have to agree on, for the fingerprint: builds that differ in one of them
/// must not take each other's messages for their own.
pub(crate) fn constants() -> String {
    format!("{MEMORY:?} {LINKS:?} {SERVED:?} {LEAST_DEPTH} {EAGER_BYTES}")
}

/// Cuts a call; `wish` is the user's for a segment's bytes over the whole buffer, 0 for none.
pub(super) fn segmentation(cut: Cut, call: &Call, wish: usize, medium: Medium) -> Segmentation {
    let cutting = match medium {
        Medium::Memory => MEMORY,
        Medium::Links => LINKS,
        Medium::Reducers => SERVED,
    };
    let width = call.width(Form::Acc).max(call.width(Form::Plain));
    let chunks = cut.chunks() as usize;
    let longest = (0..cut.chunks()).map(|chunk| cut.range(chunk, call.count, call.dtype.bytes()).len()).max();
    let longest = longest.unwrap_or(0);
    let part = match cutting.segment {
        Size::Of(bytes) => bytes / chunks,
        Size::Part(of) => longest * width / of,
    };
    let message = match wish {
        0 => part.clamp(cutting.message.start, cutting.message.end),
        bytes => (bytes / chunks).clamp(LEAST_MESSAGE, MOST_MESSAGE),
    };
    let grain = (GRAIN / width).max(1);
    let most = (message / width / grain).max(1) * grain;
    let segments = longest.div_ceil(most).max(1);
    let even = longest.div_ceil(segments).div_ceil(grain) * grain;
    let elements = even.min(longest);
    let depth = (cutting.in_flight / (elements * width * chunks).max(1)).min(cutting.depth as usize) as u32;
    Segmentation { elements, segments: segments as u32, depth: depth.max(LEAST_DEPTH) }
}

/// Which elements of which chunk the input and the output buffer hold.
pub(super) fn buffers(cut: Cut, call: &Call, me: u32) -> (Vec<Range<usize>>, Vec<Range<usize>>) {
    let whole = |chunk| cut.range(chunk, call.count, call.dtype.bytes());
    let own = |chunk| if chunk == me { 0..call.count } else { 0..0 };
    let chunks = 0..cut.chunks();
    match call.collective {
        Collective::AllGather => (chunks.clone().map(own).collect(), chunks.map(whole).collect()),
        Collective::ReduceScatter => (chunks.clone().map(whole).collect(), chunks.map(own).collect()),
        _ => (chunks.clone().map(whole).collect(), chunks.map(whole).collect()),
    }
}
