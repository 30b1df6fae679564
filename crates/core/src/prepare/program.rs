//! One rank's program for one kind of call: a flat array of steps with resolved places and predecessor counts,
//! made once. Running it copies the counts; no closure or queue per variable is involved.

use crate::{
    codec::Codec,
    collective::{Collective, Lengths, UnevenParts},
    element::{DType, ReduceOp},
    group::Rank,
    schedule::{Chunk, ChunkRun, Cut, Form, GRAIN},
    wire::Fingerprint,
};
use alloc::{collections::BTreeSet, vec::Vec};
use core::ops::Range;

/// The call, as far as the program depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    /// The collective.
    pub collective: Collective,
    /// The type of an element.
    pub dtype: DType,
    /// The operation, if the collective folds.
    pub op: ReduceOp,
    /// How many elements, as [`Collective::input_elements`] counts them.
    pub count: usize,
    /// How messages are coded, if they are.
    pub codec: Codec,
}

impl Call {
    /// The count if parts can differ; see [`Fingerprint::UNEVEN`].
    pub const UNEVEN: usize = Fingerprint::UNEVEN as usize;

    /// The call of a collective that codes nothing.
    pub const fn new(collective: Collective, dtype: DType, op: ReduceOp, count: usize) -> Self {
        Self { collective, dtype, op, count, codec: Codec::Plain }
    }

    /// How long chunks are; `parts` where they may differ.
    pub(super) fn lengths<'a>(&self, parts: Option<&'a UnevenParts>) -> Lengths<'a> {
        let even = Lengths::Even { count: self.count, element_bytes: self.dtype.bytes() };
        parts.map_or(even, Lengths::Uneven)
    }

    /// How many bytes an element has; of coded ones, where it is decoded.
    pub(super) fn width(&self, form: Form) -> usize {
        match form {
            Form::Plain | Form::Coded | Form::CodedResult => self.dtype.bytes(),
            Form::Acc => self.dtype.accumulator(self.op).bytes(),
        }
    }

    /// How many bytes so many elements have in a form, or the most that they have.
    pub fn bytes(&self, elements: usize, form: Form) -> usize {
        match self.codec_of(form) {
            None => elements * self.width(form),
            Some(codec) => codec.bound(elements),
        }
    }

    /// The expected number of bytes of `elements` elements in a form, in a group of `workers` workers.
    pub fn expected_bytes(&self, elements: usize, form: Form, workers: u32) -> usize {
        match form {
            Form::Plain | Form::Acc => self.bytes(elements, form),
            Form::Coded => self.codec.expected_bytes(elements),
            Form::CodedResult => self.codec.expected_result_bytes(elements, workers),
        }
    }

    /// The codec of a form, if it is coded.
    pub fn codec_of(&self, form: Form) -> Option<Codec> {
        match form {
            Form::Plain | Form::Acc => None,
            Form::Coded => Some(self.codec),
            Form::CodedResult => Some(self.codec.result()),
        }
    }
}

/// How a group's operations are cut into segments; the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizing {
    /// The number of hosts of the members: their data leaves by as many links.
    pub hosts: u32,
    /// Whether all members share one host's memory; ignored if reducers take part.
    pub shared: bool,
    /// The bytes of a segment over the whole buffer that the user prefers, 0 for the default.
    pub segment_bytes: usize,
    /// The most staging memory that an operation gets on any rank.
    pub most_staged: usize,
}

/// The part of a process' staging memory that only urgent operations take, as a fraction of it.
const URGENT_PART: usize = 8;

impl Sizing {
    /// How many bytes of a process' staging memory are for all operations: one operation can take as many.
    pub fn most_staged(memory: usize) -> usize {
        memory - (memory / URGENT_PART).next_multiple_of(GRAIN).min(memory)
    }

    /// The number of different hosts of the members.
    pub fn distinct(hosts: &[u32]) -> u32 {
        hosts.iter().collect::<BTreeSet<_>>().len() as u32
    }
}

/// The place of the segment of a chunk, or of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loc {
    /// In the input.
    Input(ChunkRun),
    /// In the output.
    Output(ChunkRun),
    /// In the stage's staging memory.
    Staged(Staged),
}

/// The place of the segment of a chunk, or of several, in a stage's staging memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Staged {
    /// The chunks.
    pub run: ChunkRun,
    /// The chunk at the offset; the next ones, up to the first of the run, follow it.
    pub base: Chunk,
    /// A byte in the stage.
    pub offset: usize,
}

impl Loc {
    /// Its chunks.
    pub fn run(self) -> ChunkRun {
        match self {
            Self::Input(run) | Self::Output(run) | Self::Staged(Staged { run, .. }) => run,
        }
    }
}

/// One message of mine to one rank.
#[derive(Clone, Copy, Debug)]
pub struct Outbound {
    /// The receiver: a position among [`Prepared::peers`].
    pub peer: u32,
    /// Which of my messages to that rank it is.
    pub index: u16,
    /// The head whose fold's result this message carries back to the sender of the head.
    pub answers: Option<u32>,
}

/// One source of a fold.
#[derive(Clone, Copy, Debug)]
pub enum Operand {
    /// The data in a place.
    At {
        /// The place.
        loc: Loc,
        /// Its form.
        form: Form,
        /// How many merges follow it.
        merges: u8,
    },
    /// A message, read in its place.
    Head {
        /// Its position among [`Prepared::heads`].
        head: u32,
        /// How many merges follow it.
        merges: u8,
    },
}

/// One message that I receive.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// The step that takes it.
    pub step: u32,
    /// The sender: a position among [`Prepared::peers`].
    pub peer: u32,
    /// Which of that rank's messages it is.
    pub index: u16,
    /// The chunks that it has.
    pub run: ChunkRun,
    /// The form of its data.
    pub form: Form,
    /// Its offset in the stage's staging memory, if it does not stay with its sender.
    pub offset: usize,
    /// Whether it has no place there, as its place in the user's buffer is free whenever it comes.
    pub placed: bool,
}

/// The action of a step.
#[derive(Clone, Debug)]
pub enum Kind {
    /// Sends a message.
    Send(Send),
    /// Takes a message.
    Recv {
        /// Its position among [`Prepared::heads`].
        head: u32,
        /// The destination.
        into: Loc,
    },
    /// Folds partial sums.
    Fold(Fold),
    /// Copies.
    Copy {
        /// The source.
        from: Loc,
        /// The destination.
        into: Loc,
        /// The form.
        form: Form,
    },
    /// Encodes.
    Encode {
        /// The source.
        from: Loc,
        /// The coded form.
        form: Form,
        /// The destination.
        into: Loc,
    },
    /// Decodes a result.
    Decode {
        /// The operand; no merges follow it.
        from: Operand,
        /// The destination.
        into: Loc,
    },
}

/// A message for one rank or several.
#[derive(Clone, Debug)]
pub struct Send {
    /// The place of the data.
    pub from: Loc,
    /// The form of the data.
    pub form: Form,
    /// The receivers: positions among [`Prepared::lanes`].
    pub lanes: Range<u32>,
    /// The offset in the stage's staging memory where receivers on this host find it, if it is not there already.
    pub copy: Option<usize>,
    /// Whether the fold that makes the message puts it there.
    pub folded: bool,
    /// Whether they can find it in the user's buffer instead, because its result overwrites it.
    pub direct: bool,
}

/// Partial sums that become one.
#[derive(Clone, Debug)]
pub struct Fold {
    /// Positions among [`Prepared::operands`].
    pub operands: Range<u32>,
    /// The destination of the result.
    pub into: Loc,
    /// The form of the result.
    pub form: Form,
    /// The divisor of an average, for the last fold, which turns a sum into elements.
    pub finish: Option<u32>,
    /// The first step that sends the result. The result is then put at once where its receivers look for it.
    pub sent_by: Option<u32>,
}

/// One step: a step with resolved places.
#[derive(Clone, Debug)]
pub struct PreparedStep {
    /// The action.
    pub kind: Kind,
    /// The steps that wait for this one.
    pub next: Range<u32>,
}

/// A rank that I exchange messages with in this program.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its place in the group: workers, then reducers.
    pub rank: Rank,
    /// The heads of its messages to me, by index.
    pub heads: Vec<u32>,
    /// How many messages I send it per segment.
    pub sends: u16,
    /// In how many segments it sends me any: in all, unless parts differ.
    pub gives: u32,
    /// In how many I send it any, likewise.
    pub takes: u32,
    /// Whether we share memory.
    pub shared: bool,
}

/// One rank's program for one kind of call, ready to run.
#[derive(Debug)]
pub struct Prepared {
    /// The call.
    pub call: Call,
    /// How many workers there are.
    pub workers: u32,
    /// The steps, in the order of the program.
    pub steps: Vec<PreparedStep>,
    /// Per step: how many steps and messages it waits for.
    pub waits: Vec<u16>,
    /// The entries of [`PreparedStep::next`].
    pub next: Vec<u32>,
    /// The entries of [`Fold::operands`].
    pub operands: Vec<Operand>,
    /// The entries of [`Send::lanes`].
    pub lanes: Vec<Outbound>,
    /// The messages that I receive.
    pub heads: Vec<Head>,
    /// The ranks that I exchange messages with, ascending.
    pub peers: Vec<Peer>,
    /// How many segments there are.
    pub segments: u32,
    /// How many segments can be in flight.
    pub depth: u32,
    /// How many of them a rank begins if it has to copy its messages to places where local ranks find them. Memory for
    /// that many is required.
    pub lead: u32,
    /// Bytes of staging memory for one segment.
    pub stage_bytes: usize,
    /// Whether messages are [eager](crate::session::lane::EAGER_BYTES).
    pub eager: bool,
    /// Per chunk: its elements in the input and in the output, empty where the buffer does not have it. Chunks of further inputs
    /// follow, in the input only.
    pub(super) input: Vec<Range<usize>>,
    pub(super) output: Vec<Range<usize>>,
    pub(super) per_segment: PerSegment,
}

/// How many elements of a chunk go in a segment.
#[derive(Clone, Debug)]
pub(super) enum PerSegment {
    /// So many, of each chunk.
    Same(usize),
    /// By the chunk's length, so that all chunks go in the same number of segments: whole grains of so many elements.
    Proportional {
        /// The elements of a grain.
        grain: usize,
        /// In how many segments the whole buffer goes; a simulation may [run](Prepared::segments) fewer of them.
        whole: u32,
    },
    /// A segment is a piece of the buffer, in which all chunks lie side by side.
    SideBySide(SegmentEdges),
}

/// Where chunks begin in segments in which they lie side by side.
#[derive(Clone, Debug)]
pub(super) struct SegmentEdges {
    /// How many elements a segment has, but for the last.
    length: usize,
    /// In how many segments the whole buffer goes.
    whole: u32,
    /// The first element of each chunk, counted from the segment's first, and the end of the last.
    edges: Vec<usize>,
    /// The same in the last segment, which may be shorter.
    in_last: Vec<usize>,
}

impl SegmentEdges {
    /// Of a buffer of so many elements, cut into segments of `length`.
    pub(super) fn new(cut: &Cut, count: usize, element_bytes: usize, length: usize) -> Self {
        let edges = |length: usize| {
            let starts = (0..cut.chunks()).map(|chunk| cut.range(chunk, length, element_bytes).start);
            starts.chain([length]).collect()
        };
        let last = match count.checked_rem(length) {
            None | Some(0) => length,
            Some(rest) => rest,
        };
        let whole = count.div_ceil(length.max(1)).max(1) as u32;
        Self { length, whole, edges: edges(length), in_last: edges(last) }
    }

    /// The elements of some chunks in a segment of so many, counted from the buffer's first.
    #[inline]
    fn elements(&self, run: ChunkRun, segment: u32) -> Range<usize> {
        let edges = if segment + 1 < self.whole { &self.edges } else { &self.in_last };
        let start = self.length * segment as usize;
        start + edges[run.first as usize]..start + edges[run.chunks().end as usize]
    }
}

impl PerSegment {
    /// Those of a cut into chunks that are cut into so many segments, where the longest chunk has so many elements in each and edges
    /// are on grains.
    pub(super) fn new(cut: &Cut, segments: u32, elements: usize, grain: usize) -> Self {
        match cut {
            Cut::Weighted { .. } => Self::Proportional { grain, whole: segments },
            Cut::Even { .. } | Cut::Blocks { .. } | Cut::Given { .. } => Self::Same(elements),
        }
    }

    /// Those of a chunk of so many elements.
    #[inline]
    fn of(&self, elements: usize) -> usize {
        match self {
            Self::Same(elements) => *elements,
            Self::Proportional { grain, whole } => {
                elements.div_ceil(*whole as usize).next_multiple_of(*grain)
            }
            Self::SideBySide(_) => unreachable!("segments are no pieces of chunks that lie side by side"),
        }
    }
}

impl Prepared {
    /// How many bytes the program takes by itself, beside what runs it.
    pub(crate) fn own_bytes(&self) -> u64 {
        fn of<T>(list: &[T]) -> usize {
            size_of_val(list)
        }
        let edges = match &self.per_segment {
            PerSegment::SideBySide(SegmentEdges { edges, in_last, .. }) => of(edges) + of(in_last),
            PerSegment::Same(_) | PerSegment::Proportional { .. } => 0,
        };
        let steps = of(&self.steps) + of(&self.waits) + of(&self.next) + of(&self.operands);
        let messages = of(&self.lanes) + of(&self.heads);
        let peers = of(&self.peers) + self.peers.iter().map(|peer| of(&peer.heads)).sum::<usize>();
        (size_of::<Self>() + edges + of(&self.input) + of(&self.output) + steps + messages + peers) as u64
    }

    /// Whether a place in the group is a reducer's.
    pub fn is_reducer(&self, place: Rank) -> bool {
        place >= self.workers
    }

    /// Whether parts can differ, so that each message has to carry the length of its part.
    pub fn is_uneven(&self) -> bool {
        self.call.count == Call::UNEVEN
    }

    /// The send that a step is.
    pub fn send(&self, step: u32) -> &Send {
        match &self.steps[step as usize].kind {
            Kind::Send(send) => send,
            kind => unreachable!("only sends have lanes: {kind:?}"),
        }
    }

    /// Bytes of staging memory for `segments` segments in flight.
    pub fn staging_bytes(&self, segments: u32) -> usize {
        self.stage_bytes * segments as usize
    }

    /// The most staging memory that is useful for a rank. A rank that copies its messages for local ranks has fewer
    /// segments in flight than one whose buffer they can reach.
    pub fn wanted_bytes(&self, is_mapped: bool) -> usize {
        self.staging_bytes(if self.is_in_memory() && !is_mapped { self.lead } else { self.depth })
    }

    /// The most segments that a rank has in flight with `memory` bytes of staging memory.
    #[inline]
    pub fn ahead(&self, memory: usize) -> u32 {
        match self.stage_bytes {
            0 => self.depth,
            bytes => (memory / bytes) as u32,
        }
    }

    /// How many chunks there are.
    pub fn chunks(&self) -> u32 {
        self.output.len() as u32
    }

    /// The chunk whose result a step puts in its place, if it does; the first of several.
    pub fn result_of(&self, step: u32) -> Option<Chunk> {
        match &self.steps[step as usize].kind {
            Kind::Recv { into: Loc::Output(run), .. }
            | Kind::Copy { into: Loc::Output(run), .. }
            | Kind::Decode { into: Loc::Output(run), .. }
            | Kind::Fold(Fold { into: Loc::Output(run), .. }) => Some(run.first),
            _ => None,
        }
    }

    /// The bytes of some segments of a chunk within a user's buffer, in an all-reduce with reducers.
    pub fn byte_range(&self, chunk: Chunk, segments: &Range<u32>) -> Range<usize> {
        let (run, last) = (ChunkRun::one(chunk), segments.end.clamp(1, self.segments) - 1);
        self.output(run, segments.start).start..self.output(run, last).end
    }

    /// The position of a rank among [`Self::peers`], if it is one.
    pub fn peer(&self, rank: u32) -> Option<usize> {
        self.peers.binary_search_by_key(&rank, |peer| peer.rank).ok()
    }

    /// Whether all messages are read in their places.
    pub fn is_in_memory(&self) -> bool {
        self.peers.iter().all(|peer| peer.shared)
    }

    /// How many bytes an element has.
    pub fn width(&self, form: Form) -> usize {
        self.call.width(form)
    }

    /// The bytes of some chunks' segment within the input buffer.
    pub fn input(&self, run: ChunkRun, segment: u32) -> Range<usize> {
        self.slice(&self.input, run, segment, self.width(Form::Plain))
    }

    /// The bytes of some chunks' segment within the output buffer.
    pub fn output(&self, run: ChunkRun, segment: u32) -> Range<usize> {
        self.slice(&self.output, run, segment, self.width(Form::Plain))
    }

    /// The bytes of some chunks' segment within the stage's staging memory, in a form.
    pub fn staged(&self, loc: Staged, segment: u32, form: Form) -> Range<usize> {
        let Staged { run, base, offset } = loc;
        let before = match base == run.first {
            true => 0,
            false => {
                let elements = |chunk| self.elements(ChunkRun::one(chunk), segment).start;
                (elements(run.first) - elements(base)) * self.width(form)
            }
        };
        offset + before..offset + before + self.bytes(run, segment, form)
    }

    /// How many bytes some chunks' segment has in a form, or the most that it has.
    pub fn bytes(&self, run: ChunkRun, segment: u32, form: Form) -> usize {
        self.call.bytes(self.elements(run, segment).len(), form)
    }

    /// How many bytes some chunks' segment is expected to have in a form.
    pub fn expected_bytes(&self, run: ChunkRun, segment: u32, form: Form) -> usize {
        self.call.expected_bytes(self.elements(run, segment).len(), form, self.workers)
    }

    /// The elements of some chunks' segment, counted from the buffer's first.
    pub fn elements(&self, run: ChunkRun, segment: u32) -> Range<usize> {
        match &self.per_segment {
            PerSegment::SideBySide(edges) => edges.elements(run, segment),
            _ => self.piece(self.whole(run.first), segment, 1),
        }
    }

    /// The place of a chunk in a buffer that has it, in elements.
    pub fn whole(&self, chunk: Chunk) -> &Range<usize> {
        let input = &self.input[chunk as usize];
        if input.is_empty() { self.output.get(chunk as usize).unwrap_or(input) } else { input }
    }

    /// The number of segments of a chunk, if parts can differ. It is at least one, so that an empty chunk is reported,
    /// and at most the number of segments.
    pub fn segments_of(&self, chunk: Chunk) -> u32 {
        let elements = self.whole(chunk).len();
        elements.div_ceil(self.per_segment.of(elements).max(1)).max(1) as u32
    }

    /// How many bytes some chunks take in a stage.
    pub(super) fn room_of(&self, run: ChunkRun, form: Form) -> usize {
        match &self.per_segment {
            PerSegment::Same(elements) if !self.is_uneven() => self.call.bytes(*elements, form),
            PerSegment::SideBySide(_) => {
                let in_last = self.bytes(run, self.segments - 1, form);
                self.bytes(run, 0, form).max(in_last)
            }
            _ => self.bytes(run, 0, form),
        }
    }

    /// The bytes of some chunks' segment within a buffer that has these chunks.
    fn slice(&self, chunks: &[Range<usize>], run: ChunkRun, segment: u32, width: usize) -> Range<usize> {
        match &self.per_segment {
            PerSegment::SideBySide(edges) => {
                let elements = edges.elements(run, segment);
                elements.start * width..elements.end * width
            }
            _ => self.piece(&chunks[run.first as usize], segment, width),
        }
    }

    /// The bytes of a segment of a chunk, which is cut into segments.
    fn piece(&self, whole: &Range<usize>, segment: u32, width: usize) -> Range<usize> {
        let per_segment = self.per_segment.of(whole.len());
        let from = (whole.start + per_segment * segment as usize).min(whole.end);
        let to = (from + per_segment).min(whole.end);
        from * width..to * width
    }
}
