//! How operations are cut into segments: a pure function of facts on which all ranks agree.
//!
//! A segment is the data that is under way at once between one rank's send and its grant. Small segments fill and empty
//! the pipeline fast; large ones cost fewer messages, each with its system calls and wake-ups. The data in flight must
//! be enough to keep links busy while segments are folded and grants return. It must be less than a switch can hold
//! when several ranks send to one.

use super::program::{Call, SegmentEdges, Sizing};
use crate::{
    algorithm::cost::{Cost, Load},
    collective::{Collective, Lengths, Viewpoint},
    group::Group,
    schedule::{Chunk, Cut, Form, GRAIN},
    session::lane::{EAGER_BYTES, EAGER_BYTES_HERE, EAGER_SLOTS, LEAST_DEPTH, SHARED_SLOTS},
    wire,
};
use alloc::{format, vec::Vec};
use core::ops::{Range, RangeInclusive};

/// Where all ranks share memory.
const MEMORY: Cutting =
    Cutting { segment: Size::Of(512 << 10), message: 8 << 10..256 << 10, in_flight: 4 << 20, depth: 8 };
/// How many bytes of an operation a rank that copies them has in flight in memory: its slots, and what it reads of
/// others' while they do the same, fit a core's cache.
const COPIED: usize = 1 << 20;
/// The least segments of them: one is read while the next is written.
const LEAST_LEAD: usize = 2;
/// Between workers over links: all links are busy from the first message to the last, so messages can be large. In the
/// default staging memory there is room for four such operations and more; with less, each has less in flight.
const LINKS: Cutting =
    Cutting { segment: Size::Messages(30), message: 16 << 10..512 << 10, in_flight: 7 << 20, depth: 16 };
/// The same by shares: a port that is slower than others is busy with the buffer once each way, and what has gone out of it comes
/// back one segment later. So the last segment's way adds to the time, as with reducers.
const WEIGHTED: Cutting = Cutting { segment: Size::Messages(120), ..LINKS };
/// Through reducers: what has gone up has to come down again, so the last segment's way adds to the time.
const SERVED: Cutting =
    Cutting { segment: Size::Part(64), message: 16 << 10..48 << 10, in_flight: 3 << 20, depth: 10 };
/// Through fewer reducers than there are hosts with workers: what is in flight stands in line before the reducers' links,
/// and a switch port that overflows loses it.
const CROWDED: Cutting = Cutting { in_flight: 960 << 10, ..SERVED };

/// Of schedules in which a segment's messages follow each other from rank to rank, over links. Times are in bytes that a link
/// carries meanwhile.
const DEEP: Deep = Deep { overhead: 2 << 10, message: 32 << 10, latency: 128 << 10 };

/// The most segments: sums of them and a window fit the 32 bits that messages and grants have for a segment's number.
const MOST_SEGMENTS: u32 = 1 << 31;

/// An operation on buffers so long that its segments could not be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{elements} elements are too many for one operation: it would have more than {MOST_SEGMENTS} segments"
)]
pub struct TooManySegments {
    /// The elements of the longest chunk, or of the buffer if no memory holds it.
    pub elements: usize,
}

/// The smallest and the largest messages that a segment of the user's size can lead to.
const LEAST_MESSAGE: usize = 4 << 10;
const MOST_MESSAGE: usize = 1 << 20;

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

/// How pipelines are cut: their best number of segments is the root of what fills and empties them, divided by what each costs.
#[derive(Debug)]
struct Deep {
    /// What a message costs beside its bytes: 16 us at 1 Gbit/s. With more, a chain of 16 ranks is further from its bound at 25
    /// MiB; with less, messages are more than links of 10 Gbit/s and threads gain by.
    overhead: usize,
    /// The least bytes of a message that are worth it: threads take 12 us for each at both ends, and 10 Gbit/s 26 us for these.
    message: usize,
    /// From a message's last byte at one rank to its first at the next: 100 us at 10 Gbit/s, for the wire and a thread that wakes.
    latency: usize,
}

#[derive(Debug)]
enum Size {
    /// So many bytes.
    Of(usize),
    /// The buffer divided by this.
    Part(usize),
    /// The buffer in about so many messages, whatever the number of chunks: each costs its system calls and wake-ups on
    /// both ends, and a host has as many to send. Within [`PARTS`].
    Messages(usize),
}

/// How many segments there are where their number depends on that of the chunks: with fewer, what fills and empties the
/// pipeline is much of the whole; more, of messages that are large in any case, gain nothing.
const PARTS: RangeInclusive<usize> = 3..=16;

/// The medium of an operation's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// The memory of the host that all ranks share.
    Memory,
    /// Connections between workers.
    Links,
    /// At least as many reducers as hosts with workers.
    Reducers,
    /// Fewer reducers than hosts with workers.
    FewReducers,
}

impl Medium {
    /// Of a schedule with so many reducers.
    pub(crate) fn of(reducers: u32, sizing: Sizing) -> Self {
        match (reducers > 0, sizing.shared) {
            (true, _) if reducers < sizing.hosts => Self::FewReducers,
            (true, _) => Self::Reducers,
            (false, true) => Self::Memory,
            (false, false) => Self::Links,
        }
    }

    fn cutting(self, is_weighted: bool) -> &'static Cutting {
        match self {
            Self::Memory => &MEMORY,
            Self::Links if is_weighted => &WEIGHTED,
            Self::Links => &LINKS,
            Self::Reducers => &SERVED,
            Self::FewReducers => &CROWDED,
        }
    }
}

impl Cutting {
    /// The bytes of a segment of one chunk of `chunks`, the longest of which has so many bytes.
    fn part(&self, chunks: usize, longest: usize) -> usize {
        let parts = |of: usize| longest.div_ceil(of).next_multiple_of(GRAIN);
        match self.segment {
            Size::Of(bytes) => bytes / chunks.max(1),
            Size::Part(of) => parts(of),
            Size::Messages(of) => parts((of / chunks.max(1)).clamp(*PARTS.start(), *PARTS.end())),
        }
    }

    /// What a message has at the most, as large as the least depth lets them be within what may be in flight.
    fn largest(&self, chunks: usize) -> usize {
        (self.in_flight / LEAST_DEPTH as usize / chunks.max(1)).min(self.message.end)
    }

    /// The bytes of a message: a part within its limits, or what the user prefers for a segment, if that is not 0.
    fn message(&self, chunks: usize, part: usize, preferred: usize) -> usize {
        match preferred {
            0 => part.min(self.largest(chunks)).max(self.message.start),
            bytes => (bytes / chunks.max(1)).clamp(LEAST_MESSAGE, MOST_MESSAGE),
        }
    }
}

/// How a call is cut whose schedule is not proved, by and large.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UsualSegments {
    pub(crate) segments: u64,
    /// How many of them are in flight.
    pub(crate) depth: u64,
}

/// How a call is cut, as [`segmentation`] says where staging memory is no limit and the schedule not deep. The longest chunk, of so
/// many as are as long, has so many bytes.
pub(crate) fn usual_segments(
    medium: Medium,
    is_weighted: bool,
    chunks: u32,
    longest: u64,
    preferred: usize,
) -> UsualSegments {
    let (cutting, chunks) = (medium.cutting(is_weighted), chunks as usize);
    let bytes = usize::try_from(longest).unwrap_or(usize::MAX / 2).min(usize::MAX / 2);
    let message = cutting.message(chunks, cutting.part(chunks, bytes), preferred);
    let segments = longest.div_ceil(message as u64).max(1);
    let in_flight = (cutting.in_flight / message.saturating_mul(chunks).max(1)) as u64;
    let depth = in_flight.clamp(LEAST_DEPTH.into(), cutting.depth.into()).min(segments);
    UsualSegments { segments, depth }
}

/// How an operation is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segmentation {
    /// Elements per segment of the longest chunk.
    pub(super) elements: usize,
    /// Of how many elements segments are multiples.
    pub(super) grain: usize,
    pub(super) segments: u32,
    /// How many segments are in flight at most.
    pub(super) depth: u32,
    /// How many of them a rank begins that has to copy its messages to where local ranks find them.
    pub(super) lead: u32,
}

/// What there is to cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    /// How many chunks a rank sends or folds: where chunks have weights, as many of the longest as are as long.
    pub(super) chunks: usize,
    /// The elements of the longest chunk.
    pub(super) longest: usize,
    /// Whether ranks know their own chunks only, so that segments have to be of a size that does not depend on them.
    pub(super) uneven: bool,
}

impl Extent {
    pub(super) fn of(
        at: Viewpoint<'_>,
        sizes: &Lengths<'_>,
        input: &[Range<usize>],
        output: &[Range<usize>],
        collective: Collective,
    ) -> Self {
        let in_longest = at.cut.units().div_ceil(at.cut.most_units());
        let chunks = if collective == Collective::AllToAll { at.workers } else { in_longest };
        let longest = input.iter().chain(output).map(Range::len).max().unwrap_or(0);
        Self { chunks: chunks as usize, longest, uneven: matches!(sizes, Lengths::Uneven(_)) }
    }
}

impl Extent {
    /// What there is to cut where chunks lie side by side in a segment and go several in a message: the buffer in pieces as long as
    /// messages are on average.
    pub(super) fn of_messages(self, load: &Load, cut: &Cut, count: usize) -> Self {
        let chunks = load.messages_of_buffer(cut.units()) as usize;
        Self { chunks, longest: count.div_ceil(chunks), ..self }
    }
}

/// How a segment goes through a schedule, by its messages: the same on all ranks, because the proof counts it.
#[derive(Clone, Copy, Debug)]
pub(super) struct SegmentTiming {
    /// The longest chain of messages.
    pub(super) rounds: usize,
    /// How long a segment takes that is alone.
    pub(super) alone: usize,
    /// How long after a segment the next one follows, where ports are busy.
    pub(super) busiest: usize,
}

impl SegmentTiming {
    pub(super) fn of(cost: &Cost) -> Self {
        let busiest = cost.busiest();
        let alone = cost.alone.unwrap_or(busiest);
        Self { rounds: cost.rounds as usize, alone: alone as usize, busiest: busiest as usize }
    }

    /// Whether a segment takes so long that ports stand idle until others fill them. Where it does not, because ranks send other
    /// chunks meanwhile, few segments do.
    fn is_deep(self) -> bool {
        self.busiest > 0 && self.alone >= 2 * self.busiest
    }

    /// The best number of segments of a deep schedule, for chunks of so many bytes.
    fn segments(self, bytes: usize) -> usize {
        let idle = (self.alone - self.busiest) as u128;
        let best = (idle * bytes as u128 / (self.busiest * DEEP.overhead) as u128).isqrt();
        usize::try_from(best).unwrap_or(usize::MAX).max(1)
    }

    /// How many segments have to be in flight: on its way up and down again a segment may wait for one other before each port, and
    /// grants come for a quarter of a window.
    fn in_flight(self, message: usize) -> usize {
        let way = self.rounds + (self.rounds * DEEP.latency).div_ceil(self.busiest * message.max(1));
        way + way.div_ceil(3) + 2
    }
}

/// What an operation has to do with the staging memory that it gets at most.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// How many chunks of a segment a rank keeps there, at most: where chunks have weights, as many of the longest as are as long.
    pub(super) chunks: usize,
    /// How many bytes more these chunks may take, because each is rounded up by itself.
    pub(super) rounding: usize,
    pub(super) bytes: usize,
}

impl Room {
    /// Of a rank with this load; coded messages may be a little longer than plain ones: by their prefix, and by a tag for each
    /// block.
    pub(super) fn of(load: Load, cut: &Cut, call: &Call, most_staged: usize) -> Self {
        let bytes = if cut.is_coded() { most_staged / 64 * 63 } else { most_staged };
        let rounding = match cut {
            // A chunk's edges, and those of its segments, are on grains.
            Cut::Weighted { .. } => rounding(&load, cut, call),
            _ => 0,
        };
        Self { chunks: load.kept.div_ceil(cut.most_units()) as usize, rounding, bytes }
    }

    /// The same in messages of the average length.
    pub(super) fn of_messages(self, load: &Load, cut: &Cut, call: &Call) -> Self {
        let chunks = u64::from(load.messages_of_buffer(cut.units()));
        let kept = (u64::from(load.kept) * chunks).div_ceil(cut.units().into());
        Self { chunks: kept as usize, rounding: rounding(load, cut, call), ..self }
    }

    /// How many bytes a chunk's segment may have, with so many segments in flight.
    fn message(self, segments: usize) -> usize {
        (self.bytes / segments).saturating_sub(self.rounding) / self.chunks.max(1) / GRAIN * GRAIN
    }

    /// How many segments there may be in flight, of messages of so many bytes.
    fn segments(self, message: usize) -> usize {
        self.bytes / (message.next_multiple_of(GRAIN) * self.chunks + self.rounding).max(1)
    }
}

/// A digest of all constants that ranks and reducers have to agree on: builds that differ in one of them must not take
/// each other's messages for their own.
pub fn digest() -> u64 {
    let slots = format!("{EAGER_BYTES} {EAGER_SLOTS} {EAGER_BYTES_HERE} {SHARED_SLOTS}");
    let constants = format!(
        "{MEMORY:?} {LINKS:?} {WEIGHTED:?} {SERVED:?} {CROWDED:?} {COPIED} {LEAST_LEAD} {LEAST_DEPTH} {PARTS:?} {DEEP:?} {slots}"
    );
    wire::digest(constants.as_bytes())
}

/// The largest eager message.
pub(super) fn eager_bytes(medium: Medium) -> usize {
    if medium == Medium::Memory { EAGER_BYTES_HERE } else { EAGER_BYTES }
}

/// Cuts a call; `preferred` is the bytes of a segment over the whole buffer that the user prefers, 0 for none. Over links it gives way to
/// the staging memory that workers have. Inside a host a rank makes do with less by itself.
///
/// # Errors
/// [`TooManySegments`] if there would be more than [`MOST_SEGMENTS`].
pub(super) fn segmentation(
    extent: Extent,
    cut: &Cut,
    call: &Call,
    preferred: usize,
    medium: Medium,
    timing: SegmentTiming,
    room: Room,
) -> Result<Segmentation, TooManySegments> {
    let cutting = medium.cutting(matches!(cut, Cut::Weighted { .. }));
    let width = width(call);
    let Extent { chunks, longest, uneven } = extent;
    let part = if uneven { usize::MAX } else { cutting.part(chunks, longest * width) };
    let parts = |of: usize| (longest * width).div_ceil(of).next_multiple_of(GRAIN);
    let deep = Some(timing).filter(|timing| medium == Medium::Links && !uneven && timing.is_deep());
    let part =
        deep.map_or(part, |timing| part.min(parts(timing.segments(longest * width)).max(DEEP.message)));
    let message = cutting.message(chunks, part, preferred);
    let message = match medium {
        Medium::Memory => message,
        _ => message.min(room.message(LEAST_DEPTH as usize)),
    };
    let grain = grain(cut, call);
    let most = (message / width / grain).max(1) * grain;
    let segments = longest.div_ceil(most).max(1);
    let counted = u32::try_from(segments).ok().filter(|segments| *segments <= MOST_SEGMENTS);
    let counted = counted.ok_or(TooManySegments { elements: longest })?;
    let even = longest.div_ceil(segments).div_ceil(grain) * grain;
    let elements = if uneven { most } else { even.min(longest) };
    let bytes = (elements * width * chunks).max(1);
    let needed = deep.map_or(0, |timing| timing.in_flight(elements * width));
    let mut depth = (cutting.in_flight / bytes).min(needed.max(cutting.depth as usize));
    if medium != Medium::Memory {
        depth = depth.min(room.segments(elements * width));
    }
    let depth = (depth as u32).max(LEAST_DEPTH);
    let lead = match medium {
        Medium::Memory => (COPIED / bytes).clamp(LEAST_LEAD, depth as usize) as u32,
        _ => depth,
    };
    let (depth, lead) = (depth.min(counted), lead.min(counted));
    Ok(Segmentation { elements, grain, segments: counted, depth, lead })
}

/// How many bytes more a rank's places may take than their part of a segment, where edges are on grains.
fn rounding(load: &Load, cut: &Cut, call: &Call) -> usize {
    load.places as usize * (3 * grain(cut, call) * width(call) + GRAIN)
}

impl Segmentation {
    /// Takes as many whole segments as there are in which all chunks lie side by side, and returns where.
    pub(super) fn side_by_side(&mut self, cut: &Cut, call: &Call) -> SegmentEdges {
        let grain = (GRAIN / call.dtype.bytes()).max(self.grain);
        let length = call.count.div_ceil(self.segments as usize).next_multiple_of(grain).min(call.count);
        self.segments = call.count.div_ceil(length.max(1)).max(1) as u32;
        (self.depth, self.lead) = (self.depth.min(self.segments), self.lead.min(self.segments));
        self.elements =
            length.div_ceil(grain).div_ceil(cut.units() as usize) * cut.most_units() as usize * grain;
        SegmentEdges::new(cut, call.count, call.dtype.bytes(), length)
    }
}

/// How many bytes an element has, where it has most.
fn width(call: &Call) -> usize {
    call.width(Form::Acc).max(call.width(Form::Plain))
}

/// Of how many elements segments are multiples.
fn grain(cut: &Cut, call: &Call) -> usize {
    cut.grain((GRAIN / width(call)).max(1))
}

/// Refuses an even call whose buffers no memory holds, so that bytes can be computed with.
pub(super) fn is_addressable(call: &Call, group: &Group) -> Result<(), TooManySegments> {
    let workers = group.size();
    let parts = call.collective.given(workers).map_or(group.most_inputs(), |_| workers) as usize;
    let elements = call.count.saturating_mul(parts);
    let bytes = elements.checked_mul(width(call)).filter(|bytes| isize::try_from(*bytes).is_ok());
    bytes.map(|_| ()).ok_or(TooManySegments { elements })
}

/// Which elements of which chunk the input and the output buffer hold; the input `inputs` times as many chunks.
pub(super) fn buffers(
    at: Viewpoint<'_>,
    collective: Collective,
    sizes: &Lengths<'_>,
    inputs: u32,
) -> (Vec<Range<usize>>, Vec<Range<usize>>) {
    let given = collective.given(at.workers).is_some();
    let input = |chunk: Chunk| match given && !collective.has_input(at.workers, at.worker, chunk) {
        true => 0..0,
        false => collective.input_range(at, chunk, sizes),
    };
    let output = |chunk: Chunk| match given && collective.result(at.workers, at.worker, chunk).is_none() {
        true => 0..0,
        false => collective.output_range(at, chunk, sizes),
    };
    let chunks = at.cut.chunks();
    ((0..chunks * inputs).map(input).collect(), (0..chunks).map(output).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        element::{DType, ReduceOp},
        schedule::Cut,
    };

    /// How an all-reduce of so many f32 over so many ranks is cut.
    fn cut(chunks: u32, count: usize, preferred: usize, medium: Medium) -> Segmentation {
        let call = Call::new(Collective::AllReduce, DType::F32, ReduceOp::Sum, count);
        let longest = (0..chunks).map(|chunk| Cut::Even { chunks }.range(chunk, count, 4).len()).max();
        let extent = Extent { chunks: chunks as usize, longest: longest.unwrap(), uneven: false };
        segmentation(
            extent,
            &Cut::Even { chunks },
            &call,
            preferred,
            medium,
            SegmentTiming { rounds: 2, alone: 2, busiest: 2 },
            Room { chunks: 1, rounding: 0, bytes: usize::MAX },
        )
        .unwrap()
    }

    #[test]
    fn what_a_rank_copies_at_once_fits_a_cache_whatever_the_wish() {
        for (chunks, count, preferred) in
            [(2, 1 << 20, 0), (7, 10_000_019, 0), (8, 5 << 20, 64 << 10), (8, 25 << 20, 0)]
        {
            let cut = cut(chunks, count, preferred, Medium::Memory);
            let bytes = cut.elements * 4 * chunks as usize;
            assert!(cut.lead >= 2 && cut.lead <= cut.depth, "{cut:?}");
            assert!(bytes * cut.lead as usize <= COPIED + bytes / 8, "{cut:?}");
        }
        assert_eq!(cut(8, 25 << 20, 8 << 20, Medium::Memory).lead, 2);
    }

    #[test]
    fn an_operation_leads_by_no_more_segments_than_it_has() {
        assert_eq!(cut(4, 1, 0, Medium::Memory).lead, 1);
        assert_eq!(cut(4, 0, 0, Medium::Memory).lead, 1);
    }

    #[test]
    fn over_links_every_rank_uses_its_window() {
        for medium in [Medium::Links, Medium::Reducers, Medium::FewReducers] {
            let cut = cut(4, 5 << 20, 0, medium);
            assert_eq!(cut.lead, cut.depth);
        }
    }

    #[test]
    fn what_is_in_flight_is_limited_unless_messages_would_be_tiny() {
        for (medium, cutting) in [
            (Medium::Memory, MEMORY),
            (Medium::Links, LINKS),
            (Medium::Reducers, SERVED),
            (Medium::FewReducers, CROWDED),
        ] {
            for chunks in [1, 3, 5, 8, 12, 64] {
                let cut = cut(chunks, 256 << 20, 0, medium);
                let message = cut.elements * 4;
                let in_flight = message * chunks as usize * cut.depth as usize;
                let tiny = message <= cutting.message.start;
                assert!(in_flight <= cutting.in_flight || tiny, "{medium:?} {chunks}: {cut:?}");
            }
        }
    }

    #[test]
    fn over_links_a_buffer_goes_in_about_as_many_messages_whatever_the_number_of_ranks() {
        for chunks in 2..=8 {
            let cut = cut(chunks, 3 << 18, 0, Medium::Links);
            assert!((24..=32).contains(&(cut.segments * chunks)), "{chunks}: {cut:?}");
        }
        assert_eq!(cut(64, 3 << 18, 0, Medium::Links).segments, 3, "never fewer");
        assert_eq!(cut(1, 3 << 18, 0, Medium::Links).segments, 16, "never more, of what is not too large");
    }

    #[test]
    fn fewer_reducers_than_workers_have_less_in_line_before_them() {
        let depth = |medium| cut(3, 25 << 20, 0, medium).depth;
        assert!(depth(Medium::FewReducers) < depth(Medium::Reducers));
    }
}
