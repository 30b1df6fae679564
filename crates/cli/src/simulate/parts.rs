//! Unequal parts on the command line.

use crate::failure::Failure;
use herringbone::{
    Collective, DType,
    core::{
        collective::{PartsError, UnevenParts},
        group::Rank,
    },
    settings::Bytes,
};
use std::{
    fmt::{self, Display},
    str::FromStr,
};

/// Bytes: the part of each rank in a gather or an all_gather, and for each rank in a scatter. An all_to_all has a row per rank with
/// its part for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PartsOption {
    rows: Vec<Vec<usize>>,
}

impl Display for PartsOption {
    /// As it is read: `1M,2M;0,3M`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |row: &Vec<usize>| {
            row.iter().map(|bytes| Bytes(*bytes).to_string()).collect::<Vec<_>>().join(",")
        };
        f.write_str(&self.rows.iter().map(text).collect::<Vec<_>>().join(";"))
    }
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

    /// How many bytes all parts have together.
    pub(super) fn bytes(&self) -> Bytes {
        Bytes(self.rows.iter().flatten().copied().fold(0, usize::saturating_add))
    }

    /// The parts of each of this many ranks.
    pub(super) fn of(
        &self,
        collective: Collective,
        dtype: DType,
        ranks: u32,
    ) -> Result<Vec<UnevenParts>, Failure> {
        let usage = |problem: String, hint: &'static str| Failure::Usage { problem, hint };
        if collective == Collective::ReduceScatter || collective.parts(ranks, 0).is_none() {
            let none = PartsError::None { collective: collective.name() };
            return Err(usage(none.to_string(), "leave --parts out"));
        }
        self.is_of(collective, ranks).map_err(|problem| {
            usage(problem, "a ; separates rows, and only all_to_all has a row for each rank")
        })?;
        let all = self.rows.iter().flatten();
        if let Some(odd) = all.copied().find(|bytes| !bytes.is_multiple_of(dtype.bytes())) {
            return Err(usage(
                format!("--parts has {odd} bytes, which is not a whole number of {dtype}"),
                "each part must be a multiple of the bytes of --dtype",
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
        UnevenParts::of_all(collective, ranks, moved)
            .map_err(|error| usage(error.to_string(), "see herringbone simulate --help"))
    }

    /// Whether there are as many rows as the collective has, each of as many parts as there are ranks; else what there is.
    fn is_of(&self, collective: Collective, ranks: u32) -> Result<(), String> {
        let counted =
            |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        let (rows, needed) =
            (self.rows.len(), if collective == Collective::AllToAll { ranks as usize } else { 1 });
        if rows != needed {
            let needed = counted(needed, "row");
            return Err(format!("--parts has {}, and {collective} needs {needed}", counted(rows, "row")));
        }
        match (1..).zip(&self.rows).find(|(_, row)| row.len() != ranks as usize) {
            None => Ok(()),
            Some((at, row)) => Err(format!(
                "row {at} of --parts has {}, but there are {}",
                counted(row.len(), "part"),
                counted(ranks as usize, "rank")
            )),
        }
    }
}
