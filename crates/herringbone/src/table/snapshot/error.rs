//! Why a snapshot is not written or not restored.

use std::{io, path::PathBuf};

/// Why a snapshot is not written or not restored.
#[derive(Debug, thiserror::Error)]
pub(in crate::table) enum SnapshotError {
    /// The disk is full, or does not take it for another reason.
    #[error(
        "cannot write the snapshot {}: {source}; earlier snapshots are unchanged: make room, or name another directory",
        path.display()
    )]
    Write { path: PathBuf, source: io::Error },
    /// It may be fine, and cannot be read.
    #[error("cannot read the snapshot {}: {source}; the server needs to read all files of the directory", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// It is not what was written.
    #[error(
        "the snapshot {} is damaged: {why}; delete the directory it is in to restore the snapshot before it",
        path.display()
    )]
    Damaged { path: PathBuf, why: String },
    /// It is of another table.
    #[error(
        "the snapshot {} is of a table that differs in {what}; make the table as it was, give it another name, or delete its snapshots",
        path.display()
    )]
    Differs { path: PathBuf, what: String },
}
