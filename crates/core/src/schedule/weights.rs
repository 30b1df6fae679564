//! The relative lengths of chunks, if they are not equally long.

use super::Chunk;
use alloc::{sync::Arc, vec::Vec};
use core::{fmt, ops::Range};

/// The weight of the longest chunk that a weighted cut can have.
pub const HEAVIEST: u8 = 16;

/// The weight of each chunk, 1 to [`HEAVIEST`]: a chunk's part of the buffer is its weight's part of all weights. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Weights {
    /// The sum of the weights before each chunk, and of all.
    edges: Arc<[u32]>,
}

impl Weights {
    /// The weights of these chunks, in order; `None` if there are none, if there are more than can be counted, or if one is 0 or
    /// above [`HEAVIEST`].
    pub fn new(weights: impl IntoIterator<Item = u8>) -> Option<Self> {
        let mut edges = alloc::vec![0u32];
        let mut sum = 0u32;
        for weight in weights {
            if !(1..=HEAVIEST).contains(&weight) {
                return None;
            }
            sum = sum.checked_add(u32::from(weight))?;
            edges.push(sum);
        }
        (edges.len() > 1).then(|| Self { edges: edges.into() })
    }

    /// How many chunks there are.
    pub fn chunks(&self) -> u32 {
        self.edges.len() as u32 - 1
    }

    /// The sum of all weights.
    pub fn total(&self) -> u32 {
        self.edges[self.edges.len() - 1]
    }

    /// The sum of the weights before a chunk, and up to its end.
    pub fn edges(&self, chunk: Chunk) -> Range<u32> {
        self.edges[chunk as usize]..self.edges[chunk as usize + 1]
    }

    /// The weight of a chunk.
    pub fn weight(&self, chunk: Chunk) -> u8 {
        // Each is at most HEAVIEST.
        self.edges(chunk).len() as u8
    }

    /// The weight of the longest chunk.
    pub fn heaviest(&self) -> u8 {
        self.iter().max().unwrap_or(HEAVIEST)
    }

    fn iter(&self) -> impl Iterator<Item = u8> {
        (0..self.chunks()).map(|chunk| self.weight(chunk))
    }

    /// Reads what [`Display`](fmt::Display) writes, at most so many weights.
    pub(super) fn parse(text: &str, most: usize) -> Option<Self> {
        Self::new(read_runs(text, most)?)
    }
}

impl fmt::Debug for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Weights({self})")
    }
}

impl fmt::Display for Weights {
    /// The weights, equal ones that follow each other as a run: `16x3,1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_runs(f, &self.iter().collect::<Vec<_>>())
    }
}

/// Writes numbers, equal ones that follow each other as a run: `16x3,1`.
pub(crate) fn write_runs<T: PartialEq + fmt::Display>(
    f: &mut fmt::Formatter<'_>,
    numbers: &[T],
) -> fmt::Result {
    for (at, run) in numbers.chunk_by(|a, b| a == b).enumerate() {
        if at > 0 {
            f.write_str(",")?;
        }
        match run {
            [number] => write!(f, "{number}")?,
            run => write!(f, "{}x{}", run[0], run.len())?,
        }
    }
    Ok(())
}

/// Reads what [`write_runs`] writes, at most so many numbers; spaces around numbers do not count.
pub(crate) fn read_runs<T: TryFrom<usize> + Clone>(text: &str, most: usize) -> Option<Vec<T>> {
    let number = |text: &str| {
        let text = text.trim();
        text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<usize>().ok())?
    };
    let mut numbers = Vec::new();
    for run in text.split(',') {
        let (value, count) = match run.split_once('x') {
            Some((value, count)) => (value, number(count)?),
            None => (run, 1),
        };
        if count == 0 || count > most - numbers.len() {
            return None;
        }
        let value = T::try_from(number(value)?).ok()?;
        numbers.resize(numbers.len() + count, value);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn runs_round_trip() {
        for (text, weights) in [("16x3,1", &[16, 16, 16, 1][..]), ("1", &[1]), ("2,1,2x2", &[2, 1, 2, 2])] {
            let read = Weights::parse(text, 4).unwrap();
            assert_eq!(read, Weights::new(weights.iter().copied()).unwrap());
            assert_eq!(read.to_string(), text);
            assert_eq!(read.iter().collect::<Vec<_>>(), weights);
            assert_eq!(read.total(), weights.iter().map(|weight| u32::from(*weight)).sum());
        }
        assert_eq!(Weights::parse("1,1 , 1", 4).unwrap().to_string(), "1x3");
        for text in [
            "", "0", "17", "1,", ",1", "1x", "1x0", "x2", "1x5", "1x2,1x3", "-1", "+1", "1.5", "256", "1x2x2",
        ] {
            assert_eq!(Weights::parse(text, 4), None, "{text}");
        }
    }

    /// Memory is bounded before it is taken.
    #[test]
    fn a_run_is_no_longer_than_allowed() {
        assert_eq!(read_runs::<u8>("1x18446744073709551615", 1 << 16), None);
        assert_eq!(read_runs::<u8>("1x65536", 1 << 16).unwrap().len(), 1 << 16);
        assert_eq!(Weights::new([]), None);
    }
}
