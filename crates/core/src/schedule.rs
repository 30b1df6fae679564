//! The schedule: the steps of every rank over the chunks of one buffer.
//!
//! A schedule is data. Each rank runs a straight-line [`Program`]; between two ranks there is one ordered **lane** in
//! each direction, and every receive names its lane. Chunks are counted, not measured, so one proof serves all sizes.

mod build;
mod symmetry;
mod text;
mod weights;

pub use build::ProgramBuilder;
pub use symmetry::Symmetry;
pub(crate) use symmetry::ascends;
pub use text::TextError;
pub use weights::{HEAVIEST, Weights};
pub(crate) use weights::{read_runs, write_runs};

use crate::codec::BLOCK;
pub use crate::group::Rank;
use alloc::{borrow::Cow, boxed::Box, vec::Vec};
use core::{fmt, ops::Range};

/// A piece of the user's buffer, numbered from 0; the unit that every step moves or folds.
pub type Chunk = u32;

/// Consecutive chunks that one step works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChunkRun {
    /// The first.
    pub first: Chunk,
    /// How many they are.
    pub span: u32,
}

impl ChunkRun {
    /// A run of one chunk.
    pub fn one(chunk: Chunk) -> Self {
        Self { first: chunk, span: 1 }
    }

    /// Its chunks.
    pub fn chunks(self) -> Range<Chunk> {
        self.first..self.first + self.span
    }
}

/// Chunk boundaries of an evenly cut buffer fall on multiples of this many bytes: one cache line, one vector.
pub const GRAIN: usize = 64;

/// How the user's buffer is cut into chunks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Cut {
    /// Into `chunks` pieces as equal as [`GRAIN`] allows; for buffers that are reduced or sent as a whole.
    Even {
        /// How many chunks.
        chunks: u32,
    },
    /// Into `chunks` pieces as equal as whole [blocks](crate::codec::BLOCK) allow, which are coded each by itself.
    Blocks {
        /// How many chunks.
        chunks: u32,
    },
    /// Into pieces as near to their weights as [`GRAIN`], or whole blocks, allow; for all_reduces whose ranks do not fold as much as
    /// each other.
    Weighted {
        /// The weight of each chunk.
        weights: Weights,
        /// Whether chunks are whole [blocks](crate::codec::BLOCK), which are coded each by itself.
        blocks: bool,
    },
    /// Into `parts` pieces that the caller owns, one per rank, or of an all_to_all for each two: of exactly `count` elements
    /// each, or of lengths that differ.
    Given {
        /// How many parts.
        parts: u32,
    },
}

impl Cut {
    /// How many chunks there are.
    pub fn chunks(&self) -> u32 {
        match self {
            Cut::Even { chunks } | Cut::Blocks { chunks } => *chunks,
            Cut::Weighted { weights, .. } => weights.chunks(),
            Cut::Given { parts } => *parts,
        }
    }

    /// In how many units the buffer is: as many as chunks, or as all weights together.
    pub fn units(&self) -> u32 {
        match self {
            Cut::Weighted { weights, .. } => weights.total(),
            _ => self.chunks(),
        }
    }

    /// How many of the buffer's [units](Self::units) a chunk is.
    pub fn units_of(&self, chunk: Chunk) -> u32 {
        match self {
            Cut::Weighted { weights, .. } => weights.weight(chunk).into(),
            _ => 1,
        }
    }

    /// How many units the longest chunk is.
    pub fn most_units(&self) -> u32 {
        match self {
            Cut::Weighted { weights, .. } => weights.heaviest().into(),
            _ => 1,
        }
    }

    /// Whether chunks are whole blocks, which are coded each by itself.
    pub fn is_coded(&self) -> bool {
        matches!(self, Cut::Blocks { .. } | Cut::Weighted { blocks: true, .. })
    }

    /// The elements of `chunk`. `count` is one part's for [`Cut::Given`], the whole buffer's for others.
    pub fn range(&self, chunk: Chunk, count: usize, element_bytes: usize) -> Range<usize> {
        let edges = match self {
            Cut::Given { .. } => return chunk as usize * count..(chunk as usize + 1) * count,
            Cut::Weighted { weights, .. } => weights.edges(chunk),
            Cut::Even { .. } | Cut::Blocks { .. } => chunk..chunk + 1,
        };
        let per_grain = self.grain((GRAIN / element_bytes).max(1));
        let (grains, units) = (count.div_ceil(per_grain) as u128, u128::from(self.units()));
        let elements = |edge: u32| {
            let grain = (grains * u128::from(edge) / units) as usize;
            (grain * per_grain).min(count)
        };
        elements(edges.start)..elements(edges.end)
    }

    /// Chunks and segments are multiples of this number of elements. It is `grain` if the schedule can be cut anywhere.
    pub fn grain(&self, grain: usize) -> usize {
        if self.is_coded() { BLOCK } else { grain }
    }

    /// How many elements the whole buffer has; see [`range`](Self::range) for `count`.
    pub fn total(&self, count: usize) -> usize {
        match self {
            Cut::Given { parts } => *parts as usize * count,
            Cut::Even { .. } | Cut::Blocks { .. } | Cut::Weighted { .. } => count,
        }
    }
}

/// The form of a slot's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// Elements as the user has them: inputs and finished results.
    Plain,
    /// Partial results in the accumulator's type (f32 for 16-bit floats).
    Acc,
    /// An input or a partial result, [coded](crate::codec).
    Coded,
    /// A finished result, coded as results are.
    CodedResult,
}

impl Form {
    /// Whether its bytes are a codec's.
    pub fn is_coded(self) -> bool {
        matches!(self, Self::Coded | Self::CodedResult)
    }
}

/// A place for one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// The user's buffer at a chunk: the input until this rank first writes the chunk, then the output. Always
    /// [`Form::Plain`]. For a worker with several inputs and a buffer of C chunks, number i * C + c is chunk c of input
    /// i. Only the chunks of its first input are written.
    User(Chunk),
    /// A buffer that the schedule owns, of the form listed in [`Program::slots`].
    Slot(u32),
}

/// Which chunk each slot holds, while a program is read step by step.
pub(crate) struct SlotChunks {
    slots: Vec<Chunk>,
    chunks: u32,
}

impl SlotChunks {
    /// Before the first step of a program of a schedule with so many chunks.
    pub(crate) fn new(program: &Program, chunks: u32) -> Self {
        Self { slots: alloc::vec![0; program.slots().len()], chunks }
    }

    /// The chunk at a place.
    pub(crate) fn chunk(&self, place: Place) -> Chunk {
        match place {
            Place::User(chunk) => chunk % self.chunks.max(1),
            Place::Slot(slot) => self.slots[slot as usize],
        }
    }

    /// After a step. Returns the place that it has written, if it has.
    pub(crate) fn step(&mut self, step: &Step) -> Option<Place> {
        let (chunk, into) = match *step {
            Step::Send { .. } => return None,
            Step::Recv { chunk, into, .. }
            | Step::Fold { chunk, into, .. }
            | Step::Decode { chunk, into, .. } => (chunk, into),
            Step::Copy { from, into } | Step::Encode { from, into } => (self.chunk(from), into),
        };
        if let Place::Slot(slot) = into {
            self.slots[slot as usize] = chunk;
        }
        Some(into)
    }
}

/// A source of a fold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// A place of this rank.
    At(Place),
    /// The next message of the lane from a rank, consumed wherever the transport keeps it.
    Head {
        /// The rank whose lane it is.
        lane: Rank,
        /// The form of the message.
        form: Form,
    },
}

/// One source of a fold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// The place of the values.
    pub from: Origin,
    /// How many merges follow: the sources are pushed on a stack in order, and each merge joins the top two.
    pub merges: u8,
}

/// A run of entries in one of a program's lists; see [`Program::lanes`] and [`Program::sources`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Run {
    pub(crate) start: u32,
    pub(crate) len: u32,
}

/// One thing that one rank does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Send the data at a place to one or more ranks.
    Send {
        /// The place.
        from: Place,
        /// The receivers; see [`Program::lanes`].
        to: Run,
    },
    /// Receive the next message of a lane into a place.
    Recv {
        /// The sender.
        lane: Rank,
        /// The chunk that the message must be of.
        chunk: Chunk,
        /// The destination.
        into: Place,
    },
    /// Fold an ordered set of sources, in the shape that their merges give, into one place.
    Fold {
        /// The chunk that all sources must be of.
        chunk: Chunk,
        /// The sources; see [`Program::sources`].
        from: Run,
        /// The destination of the result.
        into: Place,
        /// Whether this is the last fold: divide (average), round to the element type, make NaNs canonical.
        finish: bool,
    },
    /// Copy one place to another of the same form.
    Copy {
        /// The source.
        from: Place,
        /// The destination.
        into: Place,
    },
    /// Encode the data at a place. An input, or a partial result, takes the earlier error with it, so each rank encodes
    /// a chunk only once.
    Encode {
        /// The place of the data.
        from: Place,
        /// A slot of the form that it becomes.
        into: Place,
    },
    /// Decode a result. Inputs of a fold are decoded as they are folded.
    Decode {
        /// The chunk that it must be of.
        chunk: Chunk,
        /// The result, which is [`Form::CodedResult`].
        from: Origin,
        /// The destination.
        into: Place,
    },
}

impl Place {
    /// The place `offset` chunks further on.
    pub fn shifted(self, offset: u32) -> Self {
        match self {
            Self::User(chunk) => Self::User(chunk.saturating_add(offset)),
            Self::Slot(slot) => Self::Slot(slot.saturating_add(offset)),
        }
    }
}

impl Origin {
    /// The same origin for the chunk `offset` further on.
    pub fn shifted(self, offset: u32) -> Self {
        match self {
            Self::At(place) => Self::At(place.shifted(offset)),
            Self::Head { .. } => self,
        }
    }
}

impl Source {
    /// The same source for the chunk `offset` further on.
    pub fn shifted(self, offset: u32) -> Self {
        Self { from: self.from.shifted(offset), ..self }
    }
}

impl Step {
    /// The same for the chunk so many further on; `sources` gives the sources of a fold of that chunk.
    fn shifted(self, offset: u32, sources: impl FnOnce(Run) -> Run) -> Self {
        let at = |place: Place| place.shifted(offset);
        match self {
            Self::Send { from, to } => Self::Send { from: at(from), to },
            Self::Recv { lane, chunk, into } => Self::Recv { lane, chunk: chunk + offset, into: at(into) },
            Self::Fold { chunk, from, into, finish } => {
                Self::Fold { chunk: chunk + offset, from: sources(from), into: at(into), finish }
            }
            Self::Copy { from, into } => Self::Copy { from: at(from), into: at(into) },
            Self::Encode { from, into } => Self::Encode { from: at(from), into: at(into) },
            Self::Decode { chunk, from, into } => {
                Self::Decode { chunk: chunk + offset, from: from.shifted(offset), into: at(into) }
            }
        }
    }
}

/// The program of one rank. Built with [`ProgramBuilder`].
///
/// In a schedule whose chunks lie [side by side](Schedule::side_by_side) a step can stand for several consecutive
/// chunks. Their number is its [span](Self::span). It treats each chunk like the first, in consecutive places, and
/// sends or receives all of them as one message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Program {
    slots: Vec<Form>,
    steps: Vec<Step>,
    /// The span of each step, as far as the last that is not 1.
    spans: Vec<u16>,
    lanes: Vec<Rank>,
    sources: Vec<Source>,
}

impl Program {
    /// The form of each slot.
    pub fn slots(&self) -> &[Form] {
        &self.slots
    }

    /// The steps, in program order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// For how many chunks a step stands, by its position.
    pub fn span(&self, step: usize) -> u32 {
        self.spans.get(step).map_or(1, |span| u32::from(*span))
    }

    /// The longest span.
    pub fn longest_span(&self) -> u32 {
        self.spans.iter().copied().max().map_or(1, u32::from)
    }

    /// The same program with one step, and one message, for each chunk. The same data ends in the same places, so it
    /// shows places and bytes, but not messages.
    pub fn chunk_by_chunk(&self) -> Cow<'_, Self> {
        if self.spans.is_empty() {
            return Cow::Borrowed(self);
        }
        let mut single = Self { slots: self.slots.clone(), lanes: self.lanes.clone(), ..Self::default() };
        for (at, step) in self.steps.iter().enumerate() {
            for offset in 0..self.span(at) {
                let step = step.shifted(offset, |from| {
                    let start = single.sources.len() as u32;
                    single.sources.extend(self.sources(from).iter().map(|source| source.shifted(offset)));
                    Run { start, len: from.len }
                });
                single.steps.push(step);
            }
        }
        Cow::Owned(single)
    }

    /// The receivers of a send.
    pub fn lanes(&self, run: Run) -> &[Rank] {
        &self.lanes[run.start as usize..(run.start + run.len) as usize]
    }

    /// The sources of a fold.
    pub fn sources(&self, run: Run) -> &[Source] {
        &self.sources[run.start as usize..(run.start + run.len) as usize]
    }

    /// The places that a step reads and writes. If it stands for several chunks, these are the places of the first
    /// chunk.
    pub fn places(&self, step: &Step) -> impl Iterator<Item = Place> + use<'_> {
        let (places, sources) = match *step {
            Step::Send { from, .. } => ([Some(from), None], &[][..]),
            Step::Recv { into, .. } => ([Some(into), None], &[][..]),
            Step::Copy { from, into } | Step::Encode { from, into } => ([Some(from), Some(into)], &[][..]),
            Step::Decode { from: Origin::At(from), into, .. } => ([Some(from), Some(into)], &[][..]),
            Step::Decode { into, .. } => ([Some(into), None], &[][..]),
            Step::Fold { from, into, .. } => ([Some(into), None], self.sources(from)),
        };
        let folded = sources.iter().filter_map(|source| match source.from {
            Origin::At(place) => Some(place),
            Origin::Head { .. } => None,
        });
        places.into_iter().flatten().chain(folded)
    }

    /// The lanes that a step takes a message from.
    pub fn received(&self, step: &Step) -> impl Iterator<Item = Rank> + use<'_> {
        let (lane, sources) = match *step {
            Step::Recv { lane, .. } => (Some(lane), &[][..]),
            Step::Decode { from: Origin::Head { lane, .. }, .. } => (Some(lane), &[][..]),
            Step::Fold { from, .. } => (None, self.sources(from)),
            Step::Send { .. } | Step::Copy { .. } | Step::Encode { .. } | Step::Decode { .. } => {
                (None, &[][..])
            }
        };
        let folded = sources.iter().filter_map(|source| match source.from {
            Origin::Head { lane, .. } => Some(lane),
            Origin::At(_) => None,
        });
        lane.into_iter().chain(folded)
    }

    /// The form of a place of this program; `None` for a slot that it does not have.
    pub fn form(&self, place: Place) -> Option<Form> {
        match place {
            Place::User(_) => Some(Form::Plain),
            Place::Slot(slot) => self.slots.get(slot as usize).copied(),
        }
    }
}

enum Programs {
    Listed(Vec<Program>),
    Generated(Box<dyn Fn(Rank) -> Program + Send + Sync>),
    Written(Box<dyn Fn() -> ProgramWriter + Send + Sync>),
    Alike { symmetry: Symmetry, first: Box<dyn Fn(Rank) -> Program + Send + Sync> },
}

/// Writes the program of one rank after another, and remembers what the next one has in common with it.
pub(crate) type ProgramWriter = Box<dyn FnMut(Rank) -> Program>;

/// A whole collective: a program for every rank of the roster.
pub struct Schedule {
    workers: u32,
    reducers: u32,
    cut: Cut,
    side_by_side: bool,
    programs: Programs,
}

impl Schedule {
    /// A schedule whose programs are made when they are asked for: a process keeps only its own rank's.
    pub fn generated(
        workers: u32,
        reducers: u32,
        cut: Cut,
        program: impl Fn(Rank) -> Program + Send + Sync + 'static,
    ) -> Self {
        Self { workers, reducers, cut, side_by_side: false, programs: Programs::Generated(Box::new(program)) }
    }

    /// The same where programs of many ranks have work in common: `writer` begins with none, and is asked for ranks that mostly ascend.
    pub(crate) fn written(
        workers: u32,
        reducers: u32,
        cut: Cut,
        writer: impl Fn() -> ProgramWriter + Send + Sync + 'static,
    ) -> Self {
        Self { workers, reducers, cut, side_by_side: false, programs: Programs::Written(Box::new(writer)) }
    }

    /// A schedule in which all workers do the same, and so do all reducers. There are as many reducers as workers, or
    /// none. `first` makes the programs of the first worker and of the first reducer, and the programs of the others
    /// are their [counterparts](Symmetry::counterpart).
    ///
    /// # Panics
    /// If shifts move chunks, and there are not as many as workers.
    pub fn alike(
        symmetry: Symmetry,
        has_reducers: bool,
        cut: Cut,
        first: impl Fn(Rank) -> Program + Send + Sync + 'static,
    ) -> Self {
        let workers = symmetry.size();
        assert!(!symmetry.moves_chunks() || cut.chunks() == workers, "{} chunks of {workers}", cut.chunks());
        let reducers = if has_reducers { workers } else { 0 };
        let side_by_side = symmetry.is_side_by_side();
        Self {
            workers,
            reducers,
            cut,
            side_by_side,
            programs: Programs::Alike { symmetry, first: Box::new(first) },
        }
    }

    /// A schedule with these programs, workers first.
    ///
    /// # Panics
    /// If there are fewer programs than workers.
    pub fn listed(workers: u32, cut: Cut, programs: Vec<Program>) -> Self {
        let reducers = (programs.len() as u32).checked_sub(workers).expect("a program for every worker");
        Self { workers, reducers, cut, side_by_side: false, programs: Programs::Listed(programs) }
    }

    /// The same schedule with chunks that lie side by side in each segment, as steps with a [span](Program::span) need
    /// them. A segment is a piece of the buffer, and is cut into chunks. Otherwise a chunk is a piece of the buffer,
    /// and is cut into segments.
    pub fn with_chunks_side_by_side(self) -> Self {
        Self { side_by_side: true, ..self }
    }

    /// Whether the chunks of a segment lie side by side.
    pub fn side_by_side(&self) -> bool {
        self.side_by_side
    }

    /// How many ranks have data.
    pub fn workers(&self) -> u32 {
        self.workers
    }

    /// How many ranks only help.
    pub fn reducers(&self) -> u32 {
        self.reducers
    }

    /// How many ranks there are in all.
    pub fn ranks(&self) -> u32 {
        self.workers + self.reducers
    }

    /// How the buffer is cut.
    pub fn cut(&self) -> &Cut {
        &self.cut
    }

    /// The program of a rank.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn program(&self, rank: Rank) -> Cow<'_, Program> {
        self.programs()(rank)
    }

    /// Makes the programs of ranks, one after another: many take less time so than each by itself, if ranks ascend.
    ///
    /// # Panics
    /// The returned function does so if the rank does not exist.
    pub fn programs<'a>(&'a self) -> Box<dyn FnMut(Rank) -> Cow<'a, Program> + 'a> {
        let mut program: Box<dyn FnMut(Rank) -> Cow<'a, Program> + 'a> = match &self.programs {
            Programs::Listed(programs) => Box::new(|rank| Cow::Borrowed(&programs[rank as usize])),
            Programs::Generated(program) => Box::new(|rank| Cow::Owned(program(rank))),
            Programs::Written(writer) => {
                let mut writer = writer();
                Box::new(move |rank| Cow::Owned(writer(rank)))
            }
            Programs::Alike { symmetry, first } => {
                let mut known: Option<(Rank, Program)> = None;
                Box::new(move |rank| {
                    let of = symmetry.first_of(rank);
                    let (_, program) = match known.take() {
                        Some(known) if known.0 == of => known,
                        _ => (of, first(of)),
                    };
                    let program_of_rank = symmetry.counterpart(&program, rank);
                    known = Some((of, program));
                    Cow::Owned(program_of_rank)
                })
            }
        };
        let ranks = self.ranks();
        Box::new(move |rank| {
            assert!(rank < ranks, "rank {rank} of {ranks}");
            program(rank)
        })
    }

    /// The program of a rank as what makes the first ones' would make it, where ranks are alike.
    #[cfg(test)]
    pub(crate) fn made_for(&self, rank: Rank) -> Option<Program> {
        match &self.programs {
            Programs::Alike { first, .. } => Some(first(rank)),
            _ => None,
        }
    }

    /// How its ranks are alike, if it is made so that they are.
    pub fn symmetry(&self) -> Option<&Symmetry> {
        match &self.programs {
            Programs::Alike { symmetry, .. } => Some(symmetry),
            _ => None,
        }
    }
}

impl PartialEq for Schedule {
    fn eq(&self, other: &Self) -> bool {
        let header = |schedule: &Self| (schedule.workers, schedule.reducers, schedule.side_by_side);
        (header(self), &self.cut) == (header(other), &other.cut) && {
            let (mut own, mut others) = (self.programs(), other.programs());
            (0..self.ranks()).all(|rank| own(rank) == others(rank))
        }
    }
}

impl Eq for Schedule {}

impl fmt::Debug for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Schedule")
            .field("workers", &self.workers)
            .field("reducers", &self.reducers)
            .field("cut", &self.cut)
            .field("side_by_side", &self.side_by_side)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_partition_the_buffer() {
        for chunks in [1, 2, 3, 7, 64] {
            for count in [0, 1, 2, 15, 16, 17, 1000, 12_345] {
                for bytes in [1, 2, 4, 8] {
                    let weights = Weights::new((0..chunks).map(|chunk| (chunk * 7 % 16 + 1) as u8)).unwrap();
                    let weighted = |blocks| Cut::Weighted { weights: weights.clone(), blocks };
                    let [even, blocks] = [Cut::Even { chunks }, Cut::Blocks { chunks }];
                    let cuts = [even, blocks, Cut::Given { parts: chunks }, weighted(false), weighted(true)];
                    for cut in cuts {
                        let mut at = 0;
                        for chunk in 0..chunks {
                            let range = cut.range(chunk, count, bytes);
                            assert_eq!(range.start, at);
                            assert!(range.end >= range.start);
                            at = range.end;
                        }
                        assert_eq!(at, cut.total(count));
                    }
                }
            }
        }
        assert_eq!(Cut::Even { chunks: 2 }.range(0, 100, 4), 0..48);
        assert_eq!(Cut::Blocks { chunks: 2 }.range(0, 3 * BLOCK + 1, 4), 0..2 * BLOCK);
    }

    #[test]
    fn weighted_chunks_are_as_long_as_their_weights_say() {
        let cut = |blocks| Cut::Weighted { weights: Weights::new([16, 16, 1]).unwrap(), blocks };
        assert_eq!((cut(false).chunks(), cut(false).units(), cut(false).most_units()), (3, 33, 16));
        let lengths = |cut: Cut, count| [0, 1, 2].map(|chunk| cut.range(chunk, count, 4).len());
        assert_eq!(lengths(cut(false), 33 * 16), [256, 256, 16]);
        assert_eq!(lengths(cut(false), 32 * 16), [15 * 16, 16 * 16, 16], "whole grains");
        assert_eq!(lengths(cut(false), 17), [0, 16, 1]);
        assert_eq!(lengths(cut(true), 33 * BLOCK - 1), [16 * BLOCK, 16 * BLOCK, BLOCK - 1], "whole blocks");
        // Equal weights cut as equal chunks do.
        let even = Cut::Weighted { weights: Weights::new([5; 7]).unwrap(), blocks: false };
        for (count, chunk) in (0..2000).step_by(37).flat_map(|count| (0..7).map(move |chunk| (count, chunk)))
        {
            assert_eq!(even.range(chunk, count, 2), Cut::Even { chunks: 7 }.range(chunk, count, 2));
        }
    }
}
