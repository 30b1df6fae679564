//! The collectives: what each one starts from, and what it must leave behind.
//!
//! A collective owns its pre- and post-condition over terms: [`has_input`](Collective::has_input) says which inputs
//! exist, [`result`](Collective::result) what each worker must hold at the end. [`verify`](crate::verify::verify)
//! holds every schedule against both, whatever algorithm made it (the idea is msccl-tools').

use crate::schedule::{Chunk, Cut, Rank};
use core::{fmt, ops::Range, str::FromStr};

/// What a group does together.
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
    /// An all-reduce of no elements: no worker leaves before all have come.
    Barrier,
}

/// What a worker must hold at a chunk at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Expected {
    /// The finished fold of every worker's input at this chunk, each exactly once.
    Fold,
    /// The input of one worker at this chunk, unchanged.
    Input(Rank),
}

impl Collective {
    /// The name without its root: `all_reduce`, `reduce`, `broadcast`, `reduce_scatter`, `all_gather`, `barrier`.
    pub fn name(self) -> &'static str {
        match self {
            Collective::AllReduce => "all_reduce",
            Collective::Reduce { .. } => "reduce",
            Collective::Broadcast { .. } => "broadcast",
            Collective::ReduceScatter => "reduce_scatter",
            Collective::AllGather => "all_gather",
            Collective::Barrier => "barrier",
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
        }
    }

    /// The collective of a [`code`](Self::code). `root` counts only where there is one; `None` for an unknown code.
    pub fn from_code(code: u8, root: Rank) -> Option<Self> {
        Some(match code {
            1 => Collective::AllReduce,
            2 => Collective::Reduce { root },
            3 => Collective::Broadcast { root },
            4 => Collective::ReduceScatter,
            5 => Collective::AllGather,
            6 => Collective::Barrier,
            _ => return None,
        })
    }

    /// The worker that the collective singles out.
    pub fn root(self) -> Option<Rank> {
        match self {
            Collective::Reduce { root } | Collective::Broadcast { root } => Some(root),
            _ => None,
        }
    }

    /// Whether results are folds, so that an element type and a reduce operation matter; if not, bytes are moved.
    pub fn folds(self) -> bool {
        match self {
            Collective::AllReduce
            | Collective::Reduce { .. }
            | Collective::ReduceScatter
            | Collective::Barrier => true,
            Collective::Broadcast { .. } | Collective::AllGather => false,
        }
    }

    /// The pre-condition: whether `worker` comes with an input at `chunk`.
    pub fn has_input(self, worker: Rank, chunk: Chunk) -> bool {
        match self {
            Collective::Broadcast { root } => worker == root,
            Collective::AllGather => worker == chunk,
            _ => true,
        }
    }

    /// The post-condition: what `worker` must hold at `chunk` at the end; `None` where it has no output, which a
    /// schedule must not write.
    pub fn result(self, worker: Rank, chunk: Chunk) -> Option<Expected> {
        match self {
            Collective::AllReduce | Collective::Barrier => Some(Expected::Fold),
            Collective::Reduce { root } => (worker == root).then_some(Expected::Fold),
            Collective::Broadcast { root } => Some(Expected::Input(root)),
            Collective::ReduceScatter => (worker == chunk).then_some(Expected::Fold),
            Collective::AllGather => Some(Expected::Input(chunk)),
        }
    }

    /// Whether a schedule for this collective may cut the buffer so: into one given part per worker where the caller
    /// owns the parts, evenly into at least one chunk elsewhere.
    pub fn accepts(self, cut: Cut, workers: u32) -> bool {
        match (self, cut) {
            (Collective::ReduceScatter | Collective::AllGather, Cut::Given { parts }) => parts == workers,
            (Collective::ReduceScatter | Collective::AllGather, Cut::Even { .. }) => false,
            (_, Cut::Even { chunks }) => chunks > 0,
            (_, Cut::Given { .. }) => false,
        }
    }

    /// How many elements each worker's input has, if `count` are given: `workers * count` for reduce_scatter.
    pub fn input_elements(self, workers: u32, count: usize) -> usize {
        match self {
            Collective::ReduceScatter => workers as usize * count,
            _ => count,
        }
    }

    /// How many elements each worker's output has, if `count` are given: `workers * count` for all_gather.
    pub fn output_elements(self, workers: u32, count: usize) -> usize {
        match self {
            Collective::AllGather => workers as usize * count,
            _ => count,
        }
    }

    /// Which elements of a worker's input `chunk` is; only for chunks at which it [has one](Self::has_input).
    pub fn input_range(self, cut: Cut, chunk: Chunk, count: usize, element_bytes: usize) -> Range<usize> {
        match self {
            Collective::AllGather => 0..count,
            _ => cut.range(chunk, count, element_bytes),
        }
    }

    /// Which elements of a worker's output `chunk` is; only for chunks at which it [has one](Self::result).
    pub fn output_range(self, cut: Cut, chunk: Chunk, count: usize, element_bytes: usize) -> Range<usize> {
        match self {
            Collective::ReduceScatter => 0..count,
            _ => cut.range(chunk, count, element_bytes),
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
    "not a collective: expected all_reduce, reduce(root), broadcast(root), reduce_scatter, all_gather or barrier"
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
        let named = (1..=u8::MAX)
            .map_while(|code| Collective::from_code(code, root.unwrap_or(0)))
            .find(|collective| collective.name() == name)
            .ok_or(ParseCollectiveError)?;
        if root.is_some() && named.root().is_none() { Err(ParseCollectiveError) } else { Ok(named) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Collective; 6] = [
        Collective::AllReduce,
        Collective::Reduce { root: 3 },
        Collective::Broadcast { root: 3 },
        Collective::ReduceScatter,
        Collective::AllGather,
        Collective::Barrier,
    ];

    #[test]
    fn names_and_codes_round_trip() {
        for collective in ALL {
            assert_eq!(collective.to_string().parse(), Ok(collective));
            assert_eq!(Collective::from_code(collective.code(), 3), Some(collective));
        }
        assert_eq!("reduce".parse(), Ok(Collective::Reduce { root: 0 }));
        for text in
            ["", "reduce(", "reduce()", "reduce(-1)", "barrier(0)", "reduce(1))", "Barrier", "all-reduce"]
        {
            assert_eq!(text.parse::<Collective>(), Err(ParseCollectiveError), "{text}");
        }
        assert_eq!(Collective::from_code(0, 0), None);
        assert_eq!(Collective::from_code(7, 0), None);
    }

    /// What is moved rather than folded starts as an input of the worker that it is expected from.
    #[test]
    fn expected_inputs_exist() {
        for collective in ALL {
            for worker in 0..5 {
                for chunk in 0..5 {
                    match collective.result(worker, chunk) {
                        Some(Expected::Input(from)) => {
                            assert!(!collective.folds() && collective.has_input(from, chunk));
                        }
                        Some(Expected::Fold) => {
                            assert!(
                                collective.folds() && (0..5).all(|from| collective.has_input(from, chunk))
                            );
                        }
                        None => assert!(collective.folds()),
                    }
                }
            }
        }
    }

    /// The ranges of the chunks that a worker has make up its buffer, no more and no less.
    #[test]
    fn ranges_make_up_the_buffers() {
        let (workers, count) = (4, 100);
        for collective in ALL {
            let cut = [Cut::Even { chunks: 4 }, Cut::Given { parts: workers }]
                .into_iter()
                .find(|cut| collective.accepts(*cut, workers))
                .unwrap();
            assert!(!collective.accepts(Cut::Given { parts: 3 }, workers));
            assert!(!collective.accepts(Cut::Even { chunks: 0 }, workers));
            for worker in 0..workers {
                let inputs = (0..4).filter(|chunk| collective.has_input(worker, *chunk));
                let elements: usize = inputs.map(|c| collective.input_range(cut, c, count, 4).len()).sum();
                assert!(elements == 0 || elements == collective.input_elements(workers, count));
                let outputs = (0..4).filter(|chunk| collective.result(worker, *chunk).is_some());
                let elements: usize = outputs.map(|c| collective.output_range(cut, c, count, 4).len()).sum();
                assert!(elements == 0 || elements == collective.output_elements(workers, count));
            }
        }
    }
}
