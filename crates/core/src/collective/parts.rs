//! UnevenParts that differ in length, as one rank knows them.

use super::Collective;
use crate::group::Rank;
use alloc::vec::Vec;
use core::ops::Range;

/// How many elements each part of one rank's input and output has, if parts differ.
///
/// A rank knows only its own parts: the parts that it has for each other rank, and the parts that each has for it. So
/// each message carries the length of its part, and the receiver compares that with its own view.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UnevenParts {
    /// Where each part begins, and where the last one ends.
    input: Vec<usize>,
    output: Vec<usize>,
}

/// Why numbers are no parts of a collective.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PartsError {
    /// The caller of this collective does not own parts.
    #[error("{collective} has no parts of different lengths: use gather, scatter, all_gather or all_to_all")]
    None {
        /// The collective's name.
        collective: &'static str,
    },
    /// The number of parts is wrong.
    #[error(
        "{collective}: {buffer} has {given} parts where rank {rank} needs {needed}: pass one for each rank"
    )]
    Number {
        /// The collective's name.
        collective: &'static str,
        /// Which buffer.
        buffer: &'static str,
        /// How many there are.
        given: usize,
        /// The rank with the buffer.
        rank: Rank,
        /// How many there have to be.
        needed: usize,
    },
    /// A rank has more for itself than it takes, or less.
    #[error("{collective}: rank {rank} sends itself {given} elements and expects {taken}: make them equal")]
    Own {
        /// The collective's name.
        collective: &'static str,
        /// The rank.
        rank: Rank,
        /// Its part of its input.
        given: usize,
        /// Its part of its output.
        taken: usize,
    },
    /// No buffer can hold this many elements.
    #[error(
        "{collective}: {buffer} of rank {rank} is too long with its part {part}: {MOST} elements are the most"
    )]
    TooLong {
        /// The collective's name.
        collective: &'static str,
        /// Which buffer.
        buffer: &'static str,
        /// The rank with the buffer.
        rank: Rank,
        /// The first part that is too much, from 0.
        part: usize,
    },
}

impl UnevenParts {
    /// The parts of rank `me`, in the order of ranks. How many a rank has is [`Collective::parts`].
    ///
    /// # Errors
    /// If they do not fit the collective or each other.
    pub fn new(
        collective: Collective,
        workers: u32,
        me: Rank,
        input: &[usize],
        output: &[usize],
    ) -> Result<Self, PartsError> {
        let name = collective.name();
        let (inputs, outputs) = collective.parts(workers, me).ok_or(PartsError::None { collective: name })?;
        for (buffer, given, needed) in
            [("the input", input.len(), inputs), ("the output", output.len(), outputs)]
        {
            if given != needed {
                return Err(PartsError::Number { collective: name, buffer, given, rank: me, needed });
            }
        }
        let own = |parts: &[usize]| match parts {
            [only] => *only,
            parts => parts.get(me as usize).copied().unwrap_or_default(),
        };
        if inputs > 0 && outputs > 0 && own(input) != own(output) {
            let (given, taken) = (own(input), own(output));
            return Err(PartsError::Own { collective: name, rank: me, given, taken });
        }
        let edges = |buffer, parts: &[usize]| {
            edges(parts).map_err(|part| PartsError::TooLong { collective: name, buffer, rank: me, part })
        };
        Ok(Self { input: edges("the input", input)?, output: edges("the output", output)? })
    }

    /// The parts of all ranks, with `moved(from, to)` elements from rank `from` for rank `to`. In an all_gather it has
    /// the same value for all `to`.
    ///
    /// # Errors
    /// If the collective has no such parts, or they are too long.
    pub fn of_all(
        collective: Collective,
        workers: u32,
        moved: impl Fn(Rank, Rank) -> usize,
    ) -> Result<Vec<Self>, PartsError> {
        let of = |me: Rank| {
            let counts = collective.parts(workers, me);
            let (inputs, outputs) = counts.ok_or(PartsError::None { collective: collective.name() })?;
            let other = |count: usize, at: Rank| match count {
                1 => collective.root().unwrap_or(me),
                _ => at,
            };
            let input: Vec<_> = (0..inputs as Rank).map(|to| moved(me, other(inputs, to))).collect();
            let output: Vec<_> = (0..outputs as Rank).map(|from| moved(other(outputs, from), me)).collect();
            Self::new(collective, workers, me, &input, &output)
        };
        (0..workers).map(of).collect()
    }

    /// How many elements the input has.
    pub fn input_elements(&self) -> usize {
        self.input.last().copied().unwrap_or_default()
    }

    /// How many elements the output has.
    pub fn output_elements(&self) -> usize {
        self.output.last().copied().unwrap_or_default()
    }

    pub(super) fn input(&self, part: usize) -> Range<usize> {
        self.input[part]..self.input[part + 1]
    }

    pub(super) fn output(&self, part: usize) -> Range<usize> {
        self.output[part]..self.output[part + 1]
    }
}

/// The most elements that a buffer of the widest ones can hold.
const MOST: usize = isize::MAX as usize / 8;

/// Where parts begin, or the first one with which there are more than [`MOST`] elements.
fn edges(parts: &[usize]) -> Result<Vec<usize>, usize> {
    let mut edges = Vec::with_capacity(parts.len() + 1);
    let mut end = 0usize;
    edges.push(end);
    for (part, elements) in parts.iter().enumerate() {
        end = end.checked_add(*elements).filter(|end| *end <= MOST).ok_or(part)?;
        edges.push(end);
    }
    Ok(edges)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused() {
        let of = |collective, me, input: &[usize], output: &[usize]| {
            UnevenParts::new(collective, 3, me, input, output).map_err(|error| error.to_string())
        };
        let gather = Collective::Gather { root: 1 };
        assert!(of(gather, 0, &[4], &[]).is_ok() && of(gather, 1, &[4], &[0, 4, 9]).is_ok());
        for (collective, me, input, output, said) in [
            (gather, 0, &[4][..], &[0, 4, 9][..], "the output has 3 parts where rank 0 needs 0"),
            (gather, 1, &[4], &[4, 5, 9], "rank 1 sends itself 4 elements and expects 5"),
            (
                Collective::Scatter { root: 0 },
                1,
                &[1, 2, 3],
                &[2],
                "the input has 3 parts where rank 1 needs 0",
            ),
            (Collective::AllToAll, 2, &[1, 2], &[1, 2, 3], "the input has 2 parts where rank 2 needs 3"),
            (
                Collective::AllToAll,
                2,
                &[1, 2, usize::MAX],
                &[1, 2, usize::MAX],
                "the input of rank 2 is too long with its part 2: 1152921504606846975 elements are the most",
            ),
            (Collective::AllReduce, 2, &[1], &[1], "all_reduce has no parts of different lengths"),
        ] {
            let error = of(collective, me, input, output).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }
}
