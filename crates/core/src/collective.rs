//! The collectives: the state from which each one starts, and the state that it must leave.
//!
//! A collective owns its pre- and post-condition over terms: [`has_input`](Collective::has_input) has the existing
//! inputs, [`result`](Collective::result) the terms that each worker must hold at the end.
//! [`verify`](crate::verify::verify) checks every schedule against both, whatever algorithm made it (the idea is
//! msccl-tools').

pub mod all_to_all;
mod parts;

pub use parts::{PartsError, UnevenParts};

use crate::{
    group::Group,
    schedule::{Chunk, Cut, Rank},
};
use alloc::borrow::Cow;
use core::{fmt, ops::Range, str::FromStr};

/// A collective of a group.
///
/// Reducers have no data: every condition below is about workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Collective {
    /// Every worker gets the fold of all inputs.
    AllReduce,
    /// The root gets the fold of all inputs; no other worker has an output.
    Reduce {
        /// The worker that gets the result.
        root: Rank,
    },
    /// Every worker gets the root's input; no other worker has an input.
    Broadcast {
        /// The worker whose input it is.
        root: Rank,
    },
    /// The buffer has one part per worker; worker r gets the fold of all inputs at part r.
    ReduceScatter,
    /// The result has one part per worker; part r is worker r's input.
    AllGather,
    /// The root's result has one part per worker; part r is worker r's input. No other worker has an output.
    Gather {
        /// The worker that gets the result.
        root: Rank,
    },
    /// The root's input has one part per worker; worker r gets part r. No other worker has an input.
    Scatter {
        /// The worker whose input it is.
        root: Rank,
    },
    /// Each input has one part per worker, and so has each result: part s of worker r's is part r of worker s's input.
    AllToAll,
    /// An all-reduce of no elements: no worker leaves before all have come.
    Barrier,
}

/// The term that a worker must hold at a chunk at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Expected {
    /// The finished fold of every worker's input at this chunk, each exactly once.
    Fold,
    /// The input of one worker at this chunk, unchanged.
    Input(Rank),
}

impl Collective {
    /// All of them in the order of their codes, with this root if they have one.
    pub fn all(root: Rank) -> [Self; 9] {
        [
            Self::AllReduce,
            Self::Reduce { root },
            Self::Broadcast { root },
            Self::ReduceScatter,
            Self::AllGather,
            Self::Barrier,
            Self::Gather { root },
            Self::Scatter { root },
            Self::AllToAll,
        ]
    }

    /// The name without its root: `all_reduce`, `reduce`, `broadcast`, `reduce_scatter`, `all_gather`, `barrier`, `gather`,
    /// `scatter`, `all_to_all`.
    pub fn name(self) -> &'static str {
        match self {
            Collective::AllReduce => "all_reduce",
            Collective::Reduce { .. } => "reduce",
            Collective::Broadcast { .. } => "broadcast",
            Collective::ReduceScatter => "reduce_scatter",
            Collective::AllGather => "all_gather",
            Collective::Barrier => "barrier",
            Collective::Gather { .. } => "gather",
            Collective::Scatter { .. } => "scatter",
            Collective::AllToAll => "all_to_all",
        }
    }

    /// The number that stands for it on the wire, next to its [`root`](Self::root). Numbers are never used again.
    pub fn code(self) -> u8 {
        match self {
            Collective::AllReduce => 1,
            Collective::Reduce { .. } => 2,
            Collective::Broadcast { .. } => 3,
            Collective::ReduceScatter => 4,
            Collective::AllGather => 5,
            Collective::Barrier => 6,
            Collective::Gather { .. } => 7,
            Collective::Scatter { .. } => 8,
            Collective::AllToAll => 9,
        }
    }

    /// The collective of a [`code`](Self::code). `root` is used only by collectives that have one. `None` for an
    /// unknown code.
    pub fn from_code(code: u8, root: Rank) -> Option<Self> {
        Self::all(root).get(usize::from(code).checked_sub(1)?).copied()
    }

    /// The same with another root, if it has one.
    pub fn with_root(self, root: Rank) -> Self {
        Self::from_code(self.code(), root).unwrap_or(self)
    }

    /// The worker that the collective singles out.
    pub fn root(self) -> Option<Rank> {
        match self {
            Collective::Reduce { root }
            | Collective::Broadcast { root }
            | Collective::Gather { root }
            | Collective::Scatter { root } => Some(root),
            _ => None,
        }
    }

    /// The least load of each rank's link each way, relative to the whole buffer. nccl-tests multiplies the bandwidth
    /// of an algorithm by this to get the bandwidth of the bus.
    pub fn bus_share(self, workers: u32) -> f64 {
        let workers = f64::from(workers);
        match self {
            Collective::AllReduce => 2.0 * (workers - 1.0) / workers,
            Collective::ReduceScatter
            | Collective::AllGather
            | Collective::Gather { .. }
            | Collective::Scatter { .. }
            | Collective::AllToAll => (workers - 1.0) / workers,
            Collective::Reduce { .. } | Collective::Broadcast { .. } | Collective::Barrier => 1.0,
        }
    }

    /// Whether a worker that has completed it has heard of all others, be it through others: then all have called it, and the same
    /// before.
    pub fn hears_all(self, worker: Rank) -> bool {
        match self {
            Collective::AllReduce
            | Collective::ReduceScatter
            | Collective::AllGather
            | Collective::AllToAll
            | Collective::Barrier => true,
            Collective::Reduce { root } | Collective::Gather { root } => worker == root,
            Collective::Broadcast { .. } | Collective::Scatter { .. } => false,
        }
    }

    /// Whether results are folds, so that an element type and a reduce operation matter; if not, bytes are moved.
    pub fn folds(self) -> bool {
        match self {
            Collective::AllReduce
            | Collective::Reduce { .. }
            | Collective::ReduceScatter
            | Collective::Barrier => true,
            Collective::Broadcast { .. }
            | Collective::AllGather
            | Collective::Gather { .. }
            | Collective::Scatter { .. }
            | Collective::AllToAll => false,
        }
    }

    /// The group of this collective. For members with several inputs an all-reduce has all inputs, and a collective
    /// that only moves data, or folds nothing, has one input of each. `None` if a fold would leave some inputs out.
    pub fn group(self, group: &Group) -> Option<Cow<'_, Group>> {
        match self {
            Collective::AllReduce => Some(Cow::Borrowed(group)),
            Collective::Reduce { .. } | Collective::ReduceScatter if group.has_several() => None,
            _ => Some(group.with_one_input()),
        }
    }

    /// The pre-condition: whether `worker`, one of `workers`, comes with an input at `chunk`.
    pub fn has_input(self, workers: u32, worker: Rank, chunk: Chunk) -> bool {
        match self {
            Collective::Broadcast { root } | Collective::Scatter { root } => worker == root,
            Collective::AllGather | Collective::Gather { .. } => worker == chunk,
            Collective::AllToAll => all_to_all::receiver(workers, worker, chunk).is_some(),
            _ => true,
        }
    }

    /// The post-condition: the term that `worker`, one of `workers`, must hold at `chunk` at the end. `None` if it has
    /// no output, and then a schedule must not write there.
    pub fn result(self, workers: u32, worker: Rank, chunk: Chunk) -> Option<Expected> {
        match self {
            Collective::AllReduce | Collective::Barrier => Some(Expected::Fold),
            Collective::Reduce { root } => (worker == root).then_some(Expected::Fold),
            Collective::Broadcast { root } => Some(Expected::Input(root)),
            Collective::ReduceScatter => (worker == chunk).then_some(Expected::Fold),
            Collective::AllGather => Some(Expected::Input(chunk)),
            Collective::Gather { root } => (worker == root).then_some(Expected::Input(chunk)),
            Collective::Scatter { root } => (worker == chunk).then_some(Expected::Input(root)),
            Collective::AllToAll => all_to_all::sender(workers, worker, chunk).map(Expected::Input),
        }
    }

    /// Whether `worker`, one of `workers`, has an output.
    pub fn has_result(self, workers: u32, worker: Rank) -> bool {
        match self {
            Collective::Reduce { root } | Collective::Gather { root } => worker == root,
            _ => worker < workers,
        }
    }

    /// How many parts `worker`'s input and its output have, if the caller owns the parts.
    pub fn parts(self, workers: u32, worker: Rank) -> Option<(usize, usize)> {
        let all = workers as usize;
        let of_root = |root| if worker == root { all } else { 0 };
        match self {
            Collective::ReduceScatter => Some((all, 1)),
            Collective::AllGather => Some((1, all)),
            Collective::Gather { root } => Some((1, of_root(root))),
            Collective::Scatter { root } => Some((of_root(root), 1)),
            Collective::AllToAll => Some((all, all)),
            _ => None,
        }
    }

    /// How a schedule cuts the buffer into the parts that the caller owns; `None` if it owns none.
    pub fn given(self, workers: u32) -> Option<Cut> {
        match self {
            Collective::AllToAll => Some(Cut::Given { parts: all_to_all::chunks(workers) }),
            _ => self.parts(workers, 0).map(|_| Cut::Given { parts: workers }),
        }
    }

    /// Whether a schedule for this collective can cut the buffer in this way: into the parts that the caller owns,
    /// otherwise evenly into at least one chunk.
    pub fn accepts(self, cut: &Cut, workers: u32) -> bool {
        match self.given(workers) {
            Some(given) => given == *cut,
            None => match cut {
                Cut::Even { chunks } => *chunks > 0,
                Cut::Blocks { chunks } => *chunks > 0 && self == Collective::AllReduce,
                Cut::Weighted { .. } => self == Collective::AllReduce,
                Cut::Given { .. } => false,
            },
        }
    }

    /// How many elements `worker`'s input has, if `count` are given: `workers * count` for reduce_scatter and all_to_all, and
    /// for the root of a scatter.
    pub fn input_elements(self, workers: u32, worker: Rank, count: usize) -> usize {
        self.parts(workers, worker).map_or(count, |(input, _)| input.saturating_mul(count))
    }

    /// The same for a member of a group: if it has several inputs, in an all-reduce they lie one after the other, of `count`
    /// elements each.
    pub fn elements_of(self, group: &Group, worker: Rank, count: usize) -> usize {
        let inputs = if self == Collective::AllReduce { group.inputs_of(worker).len() } else { 1 };
        self.input_elements(group.size(), worker, count).saturating_mul(inputs)
    }

    /// How many elements `worker`'s output has, if `count` are given: `workers * count` for all_gather and all_to_all, and for
    /// the root of a gather.
    pub fn output_elements(self, workers: u32, worker: Rank, count: usize) -> usize {
        self.parts(workers, worker).map_or(count, |(_, output)| output.saturating_mul(count))
    }

    /// Which part of `worker`'s input a chunk is.
    fn input_part(self, workers: u32, worker: Rank, chunk: Chunk) -> usize {
        match self {
            Collective::AllGather | Collective::Gather { .. } => 0,
            Collective::AllToAll => all_to_all::receiver(workers, worker, chunk).unwrap_or_default() as usize,
            _ => chunk as usize,
        }
    }

    /// Which part of `worker`'s output a chunk is.
    fn output_part(self, workers: u32, worker: Rank, chunk: Chunk) -> usize {
        match self {
            Collective::ReduceScatter | Collective::Scatter { .. } => 0,
            Collective::AllToAll => all_to_all::sender(workers, worker, chunk).unwrap_or_default() as usize,
            _ => chunk as usize,
        }
    }

    /// Which elements of `worker`'s input `chunk` is; only for chunks at which it [has one](Self::has_input). Those beyond the
    /// cut's are chunks of its further inputs: see [`Place::User`](crate::schedule::Place::User).
    pub fn input_range(self, at: Viewpoint<'_>, chunk: Chunk, sizes: &Lengths<'_>) -> Range<usize> {
        let chunks = at.cut.chunks();
        if let (Collective::AllReduce, Lengths::Even { count, .. }) = (self, sizes)
            && chunk >= chunks
        {
            let (before, range) = (
                (chunk / chunks) as usize * count,
                sizes.range(at.cut, chunk % chunks, 0, UnevenParts::input),
            );
            return before + range.start..before + range.end;
        }
        let part = self.input_part(at.workers, at.worker, chunk);
        sizes.range(at.cut, chunk, part, UnevenParts::input)
    }

    /// Which elements of `worker`'s output `chunk` is; only for chunks at which it [has one](Self::result).
    pub fn output_range(self, at: Viewpoint<'_>, chunk: Chunk, sizes: &Lengths<'_>) -> Range<usize> {
        let part = self.output_part(at.workers, at.worker, chunk);
        sizes.range(at.cut, chunk, part, UnevenParts::output)
    }
}

/// A worker of a schedule.
#[derive(Clone, Copy, Debug)]
pub struct Viewpoint<'a> {
    /// How the schedule cuts the buffer.
    pub cut: &'a Cut,
    /// How many workers there are.
    pub workers: u32,
    /// Which one it is.
    pub worker: Rank,
}

/// How long the chunks of a worker's buffers are.
#[derive(Clone, Copy, Debug)]
pub enum Lengths<'a> {
    /// The number and size of the elements: of the whole buffer, or of each part that the caller owns.
    Even {
        /// The elements.
        count: usize,
        /// The bytes of each.
        element_bytes: usize,
    },
    /// The worker's own parts, which can differ.
    Uneven(&'a UnevenParts),
}

impl Lengths<'_> {
    fn range(
        &self,
        cut: &Cut,
        chunk: Chunk,
        part: usize,
        uneven: impl Fn(&UnevenParts, usize) -> Range<usize>,
    ) -> Range<usize> {
        match (*self, cut) {
            (Lengths::Uneven(parts), _) => uneven(parts, part),
            (Lengths::Even { count, .. }, Cut::Given { .. }) => part * count..(part + 1) * count,
            (Lengths::Even { count, element_bytes }, _) => cut.range(chunk, count, element_bytes),
        }
    }
}

impl fmt::Display for Collective {
    /// The name, with the root in parentheses: `all_reduce`, `broadcast(3)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        self.root().map_or(Ok(()), |root| write!(f, "({root})"))
    }
}

/// A text that names no collective.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a collective: expected all_reduce, reduce(root), broadcast(root), reduce_scatter, all_gather, gather(root), \
     scatter(root), all_to_all or barrier"
)]
pub struct ParseCollectiveError;

impl FromStr for Collective {
    type Err = ParseCollectiveError;

    /// Reads what [`Display`](fmt::Display) writes; a root that is left out is 0.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, root) = match text.split_once('(') {
            Some((name, rest)) => {
                let root = rest.strip_suffix(')').ok_or(ParseCollectiveError)?;
                (name, Some(root.parse().map_err(|_| ParseCollectiveError)?))
            }
            None => (text, None),
        };
        let named = Self::all(root.unwrap_or(0))
            .into_iter()
            .find(|collective| collective.name() == name)
            .ok_or(ParseCollectiveError)?;
        if root.is_some() && named.root().is_none() { Err(ParseCollectiveError) } else { Ok(named) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_codes_round_trip() {
        for collective in Collective::all(3) {
            assert_eq!(collective.to_string().parse(), Ok(collective));
            assert_eq!(Collective::from_code(collective.code(), 3), Some(collective));
            assert_eq!(collective.with_root(0).with_root(3), collective);
        }
        assert_eq!("reduce".parse(), Ok(Collective::Reduce { root: 0 }));
        for text in
            ["", "reduce(", "reduce()", "reduce(-1)", "barrier(0)", "reduce(1))", "Barrier", "all-reduce"]
        {
            assert_eq!(text.parse::<Collective>(), Err(ParseCollectiveError), "{text}");
        }
        assert_eq!(Collective::from_code(0, 0), None);
        assert_eq!(Collective::from_code(10, 0), None);
    }

    /// What is moved rather than folded starts as an input of the worker that it is expected from.
    #[test]
    fn expected_inputs_exist() {
        for collective in Collective::all(3) {
            let chunks = collective.given(5).map_or(5, |cut| cut.chunks());
            for worker in 0..5 {
                for chunk in 0..chunks {
                    match collective.result(5, worker, chunk) {
                        Some(Expected::Input(from)) => {
                            assert!(!collective.folds() && collective.has_input(5, from, chunk));
                        }
                        Some(Expected::Fold) => {
                            assert!(
                                collective.folds() && (0..5).all(|from| collective.has_input(5, from, chunk))
                            );
                        }
                        None => assert!(collective.folds() || collective.parts(5, 0).is_some()),
                    }
                }
            }
        }
    }

    /// The ranges of the chunks that a worker has make up its buffer, no more and no less.
    #[test]
    fn ranges_make_up_the_buffers() {
        let (workers, count) = (4, 100);
        for collective in Collective::all(3) {
            let cut = collective.given(workers).unwrap_or(Cut::Even { chunks: 4 });
            assert!(collective.accepts(&cut, workers));
            assert!(!collective.accepts(&Cut::Given { parts: 3 }, workers));
            assert!(!collective.accepts(&Cut::Even { chunks: 0 }, workers));
            for worker in 0..workers {
                let (at, chunks) = (Viewpoint { cut: &cut, workers, worker }, 0..cut.chunks());
                let even = Lengths::Even { count, element_bytes: 4 };
                let inputs = chunks.clone().filter(|chunk| collective.has_input(workers, worker, *chunk));
                let covered = whole(inputs.map(|chunk| collective.input_range(at, chunk, &even)));
                assert!(covered == 0 || covered == collective.input_elements(workers, worker, count));
                let outputs = chunks.filter(|chunk| collective.result(workers, worker, *chunk).is_some());
                let covered = whole(outputs.map(|chunk| collective.output_range(at, chunk, &even)));
                assert!(covered == 0 || covered == collective.output_elements(workers, worker, count));
            }
        }
    }

    /// How much ranges cover that lie side by side.
    fn whole(ranges: impl Iterator<Item = Range<usize>>) -> usize {
        let mut ranges: Vec<Range<usize>> = ranges.collect();
        ranges.sort_by_key(|range| range.start);
        assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start), "{ranges:?}");
        ranges.last().map_or(0, |last| last.end)
    }
}
