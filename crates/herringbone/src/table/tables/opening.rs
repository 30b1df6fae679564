//! Requests to open a table.

use crate::core::table::{TableError, TableSpec};

/// A table that a worker opens: the parts of [`TableRequest::Open`](crate::core::table::TableRequest::Open).
pub(super) struct WantedTable {
    pub(super) name: String,
    pub(super) spec: TableSpec,
    pub(super) ranges: u32,
    pub(super) birth: Option<u32>,
    pub(super) is_whole: bool,
}

impl WantedTable {
    /// Whether a range may be made for it.
    ///
    /// # Errors
    /// [`TableError::Unusable`] if the table's other ranges are from before this one was lost.
    pub(super) fn check_new(&self) -> Result<(), TableError> {
        if self.is_whole { Err(apart()) } else { Ok(()) }
    }

    /// Whether it was made together with a range of this number, which is there and was made with `birth`.
    ///
    /// # Errors
    /// [`TableError::Unusable`] if not: one of them was lost, and made again or restored.
    pub(super) fn check_birth(&self, range: u32, number: u32, birth: Option<u32>) -> Result<(), TableError> {
        match (birth, self.birth) {
            (Some(own), Some(birth)) if own != birth => Err(apart()),
            // Range 0 is told its own.
            (None, Some(birth)) if self.is_whole && (range > 0 || birth != number) => Err(apart()),
            _ => Ok(()),
        }
    }
}

fn apart() -> TableError {
    let what = "a server of it was restarted, and has lost its rows: drop the table, and make it again or restore a snapshot";
    TableError::Unusable(what.to_owned())
}
