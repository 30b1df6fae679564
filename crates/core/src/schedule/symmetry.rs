//! Schedules whose ranks all do the same: one program, shifted.
//!
//! Ranks are numbers of several digits, each with a radix of its own. A **shift** adds a number digit by digit, without a carry, so
//! the shifts are a group that takes each rank to each other one in one way. The program of a rank is, by definition, the first
//! one's after the shift that takes the first rank there. So whatever holds of the first program holds of all, and a proof needs to
//! look at one; see [`verify`](mod@crate::verify).

use super::{Chunk, ChunkRun, Origin, Place, Program, Rank, Source, Step};
use alloc::{vec, vec::Vec};

/// How ranks are alike: ranks are numbers of several digits, and the program of each is the first one's after a shift that adds a number digit by digit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symmetry {
    radices: Vec<u32>,
    moves_chunks: bool,
    /// Whether the lowest digit of a rank is the highest of its chunk, and so on.
    side_by_side: bool,
}

impl Symmetry {
    /// Ranks with digits of these radices, the lowest digit first: as many ranks as their product. If a shift
    /// `moves_chunks`, it takes chunk r to chunk s if it takes rank r to rank s, and there are as many chunks as ranks.
    /// Otherwise chunks stay.
    ///
    /// # Panics
    /// If a radix is 0, or there are more ranks than can be numbered.
    pub fn new(radices: Vec<u32>, moves_chunks: bool) -> Self {
        assert!(!radices.contains(&0), "each digit has a value: {radices:?}");
        let size = radices.iter().try_fold(1u32, |size, radix| size.checked_mul(*radix));
        assert!(size.is_some(), "too many ranks: {radices:?}");
        Self { radices, moves_chunks, side_by_side: false }
    }

    /// The same with chunks that lie [side by side](super::Schedule::side_by_side). The digits of a chunk are its
    /// rank's digits in reverse order, so that chunks of ranks that are alike in their lower digits are consecutive.
    /// Shifts move chunks.
    ///
    /// # Panics
    /// As [`new`](Self::new) does.
    pub fn of_chunks_side_by_side(radices: Vec<u32>) -> Self {
        Self { side_by_side: true, ..Self::new(radices, true) }
    }

    /// Whether chunks lie side by side.
    pub fn is_side_by_side(&self) -> bool {
        self.side_by_side
    }

    /// How many ranks are alike.
    pub fn size(&self) -> u32 {
        self.radices.iter().product()
    }

    /// How many values each digit has, the lowest digit first.
    pub fn radices(&self) -> &[u32] {
        &self.radices
    }

    /// Whether shifts move chunks as they move ranks.
    pub fn moves_chunks(&self) -> bool {
        self.moves_chunks
    }

    /// The sum of two numbers, digit by digit.
    pub fn shifted(&self, number: u32, by: u32) -> u32 {
        self.digits(number, by, |digit, by, radix| (digit + by) % radix)
    }

    /// The shift that takes `by` to 0.
    pub fn opposite(&self, by: u32) -> u32 {
        self.digits(0, by, |_, by, radix| (radix - by) % radix)
    }

    fn digits(&self, mut one: u32, mut other: u32, with: impl Fn(u32, u32, u32) -> u32) -> u32 {
        let (mut result, mut stride) = (0, 1);
        for radix in &self.radices {
            result += with(one % radix, other % radix, *radix) * stride;
            (one, other, stride) = (one / radix, other / radix, stride * radix);
        }
        result
    }

    /// The first of the ranks that are alike to this one: a worker's is 0, a reducer's is the first reducer.
    pub fn first_of(&self, rank: Rank) -> Rank {
        rank - self.place_of(rank)
    }

    /// The shift that takes the first of the alike ranks to this one.
    pub fn place_of(&self, rank: Rank) -> u32 {
        rank % self.size()
    }

    /// The shifted rank: workers stay workers, and reducers stay reducers.
    pub fn rank(&self, rank: Rank, by: u32) -> Rank {
        self.first_of(rank) + self.shifted(self.place_of(rank), by)
    }

    /// The shifted chunk.
    pub fn chunk(&self, chunk: Chunk, by: u32) -> Chunk {
        match (self.moves_chunks, self.side_by_side) {
            (false, _) => chunk,
            (true, false) => self.shifted(chunk, by),
            (true, true) => {
                let (mut rest, mut place) = (by, 0);
                let (mut stride, mut chunk) = (self.size(), chunk);
                for radix in &self.radices {
                    stride /= radix;
                    place += (chunk / stride + rest % radix) % radix * stride;
                    (chunk, rest) = (chunk % stride, rest / radix);
                }
                place
            }
        }
    }

    /// Where the first of some chunks that follow each other comes to be, if all values of some digits are among them: then it is the first
    /// of those that they become.
    fn first_chunk(&self, run: ChunkRun, by: u32) -> Chunk {
        let chunk = self.chunk(run.first, by);
        chunk - chunk % run.span
    }

    /// The program of `rank`, made from the program of the first rank that is alike.
    ///
    /// A fold's sources whose ranks ascend in the first program ascend in each: they are put in order after the shift, each merge at
    /// its place in the list. So a fold of all parts of a node in the canonical shape is one on each rank, though a shift turns the
    /// list round.
    pub fn counterpart(&self, first: &Program, rank: Rank) -> Program {
        let by = self.place_of(rank);
        let mut counterpart = first.clone();
        if by == 0 {
            return counterpart;
        }
        counterpart.lanes.iter_mut().for_each(|lane| *lane = self.rank(*lane, by));
        let slots = SlotRuns::of(first, self.side_by_side);
        for (at, step) in counterpart.steps.iter_mut().enumerate() {
            let shift = Shift { symmetry: self, slots: &slots, by, span: first.span(at) };
            *step = shift.step(*step);
            let Step::Fold { from, .. } = *step else { continue };
            let run = from.start as usize..(from.start + from.len) as usize;
            let sources = &mut counterpart.sources[run];
            sources.iter_mut().for_each(|source| source.from = shift.origin(source.from));
            let own = self.first_of(rank);
            if ascends(first.sources(from).iter().map(|source| rank_of(source, own))) {
                put_in_order(rank, sources);
            }
        }
        counterpart
    }

    /// Whether each step of several chunks does on other ranks what it does here: shifts keep its chunks together, and so the slots that
    /// these lie in, which one step has written together.
    pub(crate) fn keeps_steps(&self, program: &Program) -> bool {
        let slots = SlotRuns::of(program, self.side_by_side);
        let is_kept = |place: Place, span: u32| match place {
            Place::User(first) => self.keeps(ChunkRun { first, span }),
            Place::Slot(slot) => match slots.of_run(slot, span) {
                Some(SlotRun { slot: base, run }) => {
                    self.keeps(run) && self.keeps(ChunkRun { first: run.first + (slot - base), span })
                }
                None => span == 1,
            },
        };
        let is_step_kept = |(at, step): (usize, &Step)| {
            let span = program.span(at);
            program.places(step).all(|place| is_kept(place, span))
        };
        program.longest_span() == 1 || program.steps().iter().enumerate().all(is_step_kept)
    }

    /// Whether shifts keep the chunks of a run together: it has all values of a chunk's lowest digits.
    fn keeps(&self, run: ChunkRun) -> bool {
        let mut sizes = self.radices.iter().rev().scan(1, |size, radix| {
            *size *= radix;
            Some(*size)
        });
        run.span == 1
            || self.side_by_side && run.first.is_multiple_of(run.span) && sizes.any(|size| size == run.span)
    }
}

/// Which chunks slots hold, where chunks lie side by side.
struct SlotRuns(Vec<Option<SlotRun>>);

/// Slots that follow each other, of chunks that do.
#[derive(Clone, Copy, PartialEq, Eq)]
struct SlotRun {
    slot: u32,
    run: ChunkRun,
}

impl SlotRuns {
    fn of(program: &Program, side_by_side: bool) -> Self {
        let mut runs = vec![None; if side_by_side { program.slots().len() } else { 0 }];
        for (at, step) in program.steps().iter().enumerate().filter(|_| side_by_side) {
            let (Step::Recv { chunk: first, into: Place::Slot(slot), .. }
            | Step::Fold { chunk: first, into: Place::Slot(slot), .. }) = *step
            else {
                continue;
            };
            let run = ChunkRun { first, span: program.span(at) };
            let end = runs.len().min(slot as usize + run.span as usize);
            for slot_run in runs.get_mut(slot as usize..end).unwrap_or_default() {
                slot_run.get_or_insert(SlotRun { slot, run });
            }
        }
        Self(runs)
    }

    /// The slots that were first written together with all of these.
    fn of_run(&self, slot: u32, span: u32) -> Option<SlotRun> {
        let runs = self.0.get(slot as usize..)?.get(..span as usize)?;
        runs[0].filter(|_| runs.iter().all(|other| *other == runs[0]))
    }
}

/// A shift of one step.
struct Shift<'a> {
    symmetry: &'a Symmetry,
    slots: &'a SlotRuns,
    by: u32,
    /// For how many chunks the step stands.
    span: u32,
}

impl Shift<'_> {
    fn step(&self, step: Step) -> Step {
        let (place, chunk) = (|place| self.place(place), |chunk| self.chunk(chunk));
        let by = self.by;
        match step {
            Step::Send { from, to } => Step::Send { from: place(from), to },
            Step::Recv { lane, chunk: of, into } => {
                Step::Recv { lane: self.symmetry.rank(lane, by), chunk: chunk(of), into: place(into) }
            }
            Step::Fold { chunk: of, from, into, finish } => {
                Step::Fold { chunk: chunk(of), from, into: place(into), finish }
            }
            Step::Copy { from, into } => Step::Copy { from: place(from), into: place(into) },
            Step::Encode { from, into } => Step::Encode { from: place(from), into: place(into) },
            Step::Decode { chunk: of, from, into } => {
                Step::Decode { chunk: chunk(of), from: self.origin(from), into: place(into) }
            }
        }
    }

    /// Where the step's first chunk comes to be.
    fn chunk(&self, first: Chunk) -> Chunk {
        self.symmetry.first_chunk(ChunkRun { first, span: self.span }, self.by)
    }

    /// A slot stays, but one of several that lie side by side is where its chunk comes to be.
    fn place(&self, place: Place) -> Place {
        match place {
            Place::User(chunk) => Place::User(self.chunk(chunk)),
            Place::Slot(slot) => {
                let moved = |SlotRun { slot: base, run }: SlotRun| {
                    let chunk = self.chunk(run.first + (slot - base));
                    chunk.checked_sub(self.symmetry.first_chunk(run, self.by)).map(|offset| base + offset)
                };
                let of_run = self.slots.0.get(slot as usize).copied().flatten();
                Place::Slot(of_run.and_then(moved).unwrap_or(slot))
            }
        }
    }

    fn origin(&self, origin: Origin) -> Origin {
        match origin {
            Origin::At(place) => Origin::At(self.place(place)),
            Origin::Head { lane, form } => Origin::Head { lane: self.symmetry.rank(lane, self.by), form },
        }
    }
}

/// The rank that a source comes from, on a rank that folds it.
fn rank_of(source: &Source, rank: Rank) -> Rank {
    match source.from {
        Origin::At(_) => rank,
        Origin::Head { lane, .. } => lane,
    }
}

/// Whether the ranks that a fold's sources come from ascend: then counterparts put theirs in order.
pub(crate) fn ascends(ranks: impl Iterator<Item = Rank>) -> bool {
    ranks.is_sorted()
}

/// Orders the sources of a fold by rank, and leaves the merges where they are.
fn put_in_order(rank: Rank, sources: &mut [Source]) {
    // A shift turns the runs of a list round, and a stable sort finds the few that are in order.
    let mut ordered: Vec<Source> = sources.to_vec();
    ordered.sort_by_key(|source| rank_of(source, rank));
    for (source, Source { from, .. }) in sources.iter_mut().zip(ordered) {
        source.from = from;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shifts_are_a_group_that_takes_each_rank_to_each_other_one_in_one_way() {
        for radices in [vec![1], vec![7], vec![2, 3], vec![4, 2, 3], vec![2, 1, 2]] {
            let symmetry = Symmetry::new(radices, true);
            let all = || 0..symmetry.size();
            for (one, other) in all().flat_map(|one| all().map(move |other| (one, other))) {
                let both = symmetry.shifted(one, other);
                assert!(both < symmetry.size() && both == symmetry.shifted(other, one));
                assert_eq!(symmetry.shifted(both, symmetry.opposite(other)), one);
                assert_eq!(symmetry.rank(symmetry.size() + one, other), symmetry.size() + both);
                for third in all() {
                    let by = symmetry.shifted(other, third);
                    assert_eq!(symmetry.shifted(one, by), symmetry.shifted(both, third));
                }
            }
        }
    }
}
