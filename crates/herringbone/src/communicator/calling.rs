//! The group that takes a call: the program's, or the group of the line in which this thread makes it.

use super::{
    handle::{GroupHandle, clash, introduced, settings_of},
    lines::{self, CallLine, StillEarlier},
    residuals::Draws,
};
use crate::{
    Error, ErrorKind, Result,
    engine::group::{self, Settings},
    fabric::Fabric,
};
use std::{sync::Arc, time::Duration};

/// The number of the group that takes a call of this thread, once it is its turn, and what it draws if that is not `group`.
pub(super) fn called_group(
    fabric: &Arc<Fabric>,
    group: &GroupHandle,
    call: &'static str,
    limit: Duration,
) -> Result<(u32, Option<Arc<Draws>>)> {
    let Some(line) = own_line(fabric, call, limit)? else { return Ok((group.number, None)) };
    let make = || make_group(fabric, group, &line).map_err(|error| error.about(fabric.job.rank, call));
    let (number, draws) = line.group(fabric, group.number, make)?;
    Ok((number, Some(draws)))
}

/// The line of this thread's calls, `None` for the program's, once it is its turn.
pub(super) fn own_line(
    fabric: &Fabric,
    call: &'static str,
    limit: Duration,
) -> Result<Option<Arc<CallLine>>> {
    lines::line_in_turn(limit).map_err(|StillEarlier| {
        let (rank, missing) = (fabric.job.rank, vec!["an earlier callback to return".to_owned()]);
        Error::new(ErrorKind::Timeout { rank, after: limit, missing }).about(rank, call)
    })
}

/// Makes a group of the same ranks for the calls of a line.
fn make_group(fabric: &Fabric, group: &GroupHandle, line: &CallLine) -> Result<u32> {
    let GroupHandle { number: of, origin, rank, members, .. } = group;
    let number = group::number_of(&format!("line {:016x} of group {of:08x}", line.number), members);
    let reducers = fabric.job.roster.reducers().map(|reducer| reducer.id);
    let ids = members.iter().copied().chain(reducers).collect();
    let settings = settings_of(fabric, number, *rank, members, ids).of_shards(origin.shards.clone());
    let (guidance, timeout) = (fabric.settings.guidance.clone(), group.timeout());
    let settings = Settings { guidance, timeout, ..settings };
    // In one go: an abort of the group between the two would end its lines, and not this one.
    fabric.node.with(|engine| {
        if !engine.add_line(*of, number, line.what)? {
            return Err(clash());
        }
        let ordinal = engine.ordinal_of(*of);
        engine.add_group(introduced(fabric, settings, ordinal));
        Ok(number)
    })
}
