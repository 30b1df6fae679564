//! Parts of other lengths, as the command line has them.

use crate::failure::Failure;
use herringbone::{
    Collective, DType,
    core::{
        collective::{PartsError, UnevenParts},
        group::Rank,
    },
    settings::Bytes,
};
use std::str::FromStr;

/// Bytes: of a gather or an all_gather what each rank has, of a scatter what each gets, of an all_to_all a row per rank with what
/// it has for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PartsOption {
    rows: Vec<Vec<usize>>,
}

impl FromStr for PartsOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bytes = |word: &str| match word.trim().parse::<Bytes>() {
            Ok(bytes) => Ok(bytes.0),
            Err(error) => Err(format!("{error}; expected 4M,0,1M, or 1M,2M;0,3M for an all_to_all")),
        };
        let row = |row: &str| row.split(',').map(bytes).collect::<Result<Vec<_>, _>>();
        Ok(Self { rows: text.split(';').map(row).collect::<Result<_, _>>()? })
    }
}

impl PartsOption {
    /// How many ranks there are.
    pub(super) fn ranks(&self) -> u32 {
        self.rows[0].len() as u32
    }

    /// In bytes, row by row.
    pub(super) fn rows(&self) -> &[Vec<usize>] {
        &self.rows
    }

    /// The parts of each rank.
    pub(super) fn of(&self, collective: Collective, dtype: DType) -> Result<Vec<UnevenParts>, Failure> {
        let usage = |problem: String, hint: &'static str| Failure::Usage { problem, hint };
        let ranks = self.ranks() as usize;
        let rows = if collective == Collective::AllToAll { ranks } else { 1 };
        if self.rows.len() != rows || self.rows.iter().any(|row| row.len() != ranks) {
            return Err(usage(
                format!("--parts has {} rows, and {collective} needs {rows} of {ranks}", self.rows.len()),
                "rows are parted by ;, and only all_to_all has one for each rank",
            ));
        }
        let all = self.rows.iter().flatten();
        if let Some(odd) = all.copied().find(|bytes| !bytes.is_multiple_of(dtype.bytes())) {
            return Err(usage(
                format!("--parts has one of {odd} bytes, which is no whole number of {dtype}"),
                "all parts are multiples of the type's bytes; --dtype says which it is",
            ));
        }
        let moved = |from: Rank, to: Rank| {
            let (row, at) = match collective {
                Collective::AllToAll => (from as usize, to),
                Collective::Scatter { .. } => (0, to),
                _ => (0, from),
            };
            self.rows[row][at as usize] / dtype.bytes()
        };
        match collective {
            Collective::ReduceScatter => {
                let name = collective.name();
                Err(usage(PartsError::None { collective: name }.to_string(), "leave --parts out"))
            }
            _ => UnevenParts::of_all(collective, self.ranks(), moved)
                .map_err(|error| usage(error.to_string(), "see herringbone simulate --help")),
        }
    }
}
