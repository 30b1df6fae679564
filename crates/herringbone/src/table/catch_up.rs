//! How the ranges of a table agree on the number of steps that a worker has ended.

use super::{
    calls::TableCall,
    connections::{Connections, refused},
};
use crate::{
    Error,
    core::table::{RowKeys, TableError, TableRequest, ValueCodec},
};
use std::{ops::Range, sync::Arc};

/// By how many steps servers may differ in where a worker is.
const APART: u64 = 1024;

/// Where a worker goes on of whom ranges say that it has ended so many steps: where it is furthest. A step that ended on one range
/// ends on all: all had what was pushed in it.
///
/// # Errors
/// [`ErrorKind::Table`](crate::ErrorKind::Table) if they are too far apart.
pub(super) fn furthest(name: &str, steps: impl Iterator<Item = u64> + Clone) -> Result<u64, Error> {
    let most = steps.clone().max().unwrap_or_default();
    if steps.into_iter().any(|step| most - step > APART) {
        let what =
            "its servers are too many steps apart: drop the table, and make it again or restore a snapshot";
        return Err(refused(name, "", TableError::Unusable(what.to_owned())));
    }
    Ok(most)
}

/// Ends steps of a worker on a range.
pub(super) fn end_steps(
    connections: &Connections,
    range: u32,
    table: u32,
    steps: Range<u64>,
    call: &Arc<TableCall>,
) {
    for step in steps {
        let (codec, keys) = (ValueCodec::PLAIN, RowKeys::Listed([].into()));
        connections.ask(range, TableRequest::Push { table, step, ends: true, codec, keys }, call);
    }
}
