//! The results of requests.

use super::{TableCaller, walk::FrozenTable};
use crate::{
    core::table::{TableAnswer, TableOperation, TableSpec, ValueCodec},
    table::memory::CountedKeys,
};

/// What a connection is to be told.
#[derive(Debug)]
pub(in crate::table) struct Reply {
    pub(in crate::table) connection: u64,
    /// Of the request.
    pub(in crate::table) number: u64,
    pub(in crate::table) content: ReplyContent,
}

#[derive(Debug)]
pub(in crate::table) enum ReplyContent {
    Answer(TableAnswer),
    /// These rows, as they are when they are [written](Tables::payload).
    Rows {
        table: u32,
        codec: ValueCodec,
        keys: CountedKeys,
    },
}

/// What comes of requests.
#[derive(Default)]
pub(in crate::table) struct ServedRequest {
    pub(in crate::table) replies: Vec<Reply>,
    /// What copies are to execute, too, if there may be any.
    pub(in crate::table) operations: Option<Vec<TableOperation>>,
    /// What is to be written to disk, and who is to be told of it.
    pub(in crate::table) saves: Vec<ReadySave>,
    /// What is to be read from disk.
    pub(in crate::table) restores: Vec<WantedRestore>,
}

/// A table that is to be restored.
#[derive(Debug)]
pub(in crate::table) struct WantedRestore {
    pub(in crate::table) connection: u64,
    /// Of the request.
    pub(in crate::table) number: u64,
    pub(in crate::table) name: String,
    pub(in crate::table) spec: TableSpec,
    pub(in crate::table) ranges: u32,
}

/// A range of a table as it is to be written to disk.
pub(in crate::table) struct ReadySave {
    pub(in crate::table) connection: u64,
    /// Of the request.
    pub(in crate::table) number: u64,
    pub(in crate::table) id: u64,
    /// How many steps its workers had ended when it was asked for.
    pub(in crate::table) step: u64,
    pub(in crate::table) frozen: FrozenTable,
}

impl ServedRequest {
    pub(super) fn answer(&mut self, caller: &TableCaller, number: u64, answer: TableAnswer) {
        let content = ReplyContent::Answer(answer);
        self.replies.push(Reply { connection: caller.connection, number, content });
    }

    pub(super) fn note(&mut self, operation: impl FnOnce() -> TableOperation) {
        if let Some(operations) = &mut self.operations {
            operations.push(operation());
        }
    }
}
