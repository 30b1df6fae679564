//! Schedules whose ranks all do the same: one program, shifted.
//!
//! Ranks are numbers of several digits, each with a radix of its own. A **shift** adds a number digit by digit, without a carry, so
//! the shifts are a group that takes each rank to each other one in one way. The program of a rank is, by definition, the first
//! one's after the shift that takes the first rank there. So whatever holds of the first program holds of all, and a proof needs to
//! look at one; see [`verify`](mod@crate::verify).

use super::{Chunk, Origin, Place, Program, Rank, Source, Step};
use alloc::vec::Vec;

/// How ranks are alike; see the [module](self).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symmetry {
    radices: Vec<u32>,
    moves_chunks: bool,
}

impl Symmetry {
    /// Ranks with digits of these radices, the lowest digit first: as many ranks as their product. If a shift `moves_chunks`, it
    /// takes chunk r to chunk s where it takes rank r to rank s, and there are as many chunks as ranks; else chunks stay.
    ///
    /// # Panics
    /// If a radix is 0, or there are more ranks than can be numbered.
    pub fn new(radices: Vec<u32>, moves_chunks: bool) -> Self {
        assert!(!radices.contains(&0), "each digit has a value: {radices:?}");
        let size = radices.iter().try_fold(1u32, |size, radix| size.checked_mul(*radix));
        assert!(size.is_some(), "too many ranks: {radices:?}");
        Self { radices, moves_chunks }
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

    /// What takes `by` to 0.
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

    /// What takes the first of the ranks that are alike to this one.
    pub fn place_of(&self, rank: Rank) -> u32 {
        rank % self.size()
    }

    /// Where a rank comes to be: workers and reducers stay such.
    pub fn rank(&self, rank: Rank, by: u32) -> Rank {
        self.first_of(rank) + self.shifted(self.place_of(rank), by)
    }

    /// Where a chunk comes to be.
    pub fn chunk(&self, chunk: Chunk, by: u32) -> Chunk {
        if self.moves_chunks { self.shifted(chunk, by) } else { chunk }
    }

    /// The program of `rank`, given that of the first one alike.
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
        for source in &mut counterpart.sources {
            source.from = self.origin(source.from, by);
        }
        for step in &mut counterpart.steps {
            *step = self.step(*step, by);
            let Step::Fold { from, .. } = *step else { continue };
            if ascends(self.first_of(rank), first.sources(from)) {
                let run = from.start as usize..(from.start + from.len) as usize;
                put_in_order(rank, &mut counterpart.sources[run]);
            }
        }
        counterpart
    }

    fn step(&self, step: Step, by: u32) -> Step {
        let (place, chunk) = (|place| self.place(place, by), |chunk| self.chunk(chunk, by));
        match step {
            Step::Send { from, to } => Step::Send { from: place(from), to },
            Step::Recv { lane, chunk: of, into } => {
                Step::Recv { lane: self.rank(lane, by), chunk: chunk(of), into: place(into) }
            }
            Step::Fold { chunk: of, from, into, finish } => {
                Step::Fold { chunk: chunk(of), from, into: place(into), finish }
            }
            Step::Copy { from, into } => Step::Copy { from: place(from), into: place(into) },
            Step::Encode { from, into } => Step::Encode { from: place(from), into: place(into) },
            Step::Decode { chunk: of, from, into } => {
                Step::Decode { chunk: chunk(of), from: self.origin(from, by), into: place(into) }
            }
        }
    }

    fn place(&self, place: Place, by: u32) -> Place {
        match place {
            Place::User(chunk) => Place::User(self.chunk(chunk, by)),
            slot @ Place::Slot(_) => slot,
        }
    }

    fn origin(&self, origin: Origin, by: u32) -> Origin {
        match origin {
            Origin::At(place) => Origin::At(self.place(place, by)),
            Origin::Head { lane, form } => Origin::Head { lane: self.rank(lane, by), form },
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

/// Whether the ranks that sources come from ascend.
fn ascends(rank: Rank, sources: &[Source]) -> bool {
    sources.is_sorted_by_key(|source| rank_of(source, rank))
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
