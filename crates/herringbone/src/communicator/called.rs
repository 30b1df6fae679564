//! A group whose ranks call it now and then. Ranks with nothing to send sleep until another one calls.

use super::{
    Communicator,
    handle::{GroupHandle, GroupOrigin, make_known, settings_of},
};
use crate::{Result, completion::Completion, engine::group::Settings};
use std::{sync::Arc, time::Duration};

/// A group of all ranks of `whole` that sleep between its operations: a rank that calls one wakes all those that
/// [wait for that](until_called). It uses no reducers, and has the timeout of `whole`.
pub(crate) fn resting_group(whole: &Communicator, what: &str) -> Result<Communicator> {
    whole.check_open("a group of its own")?;
    let (fabric, of) = whole.parts();
    let (rank, members, timeout) = (of.rank, of.members.clone(), whole.timeout());
    let (number, ordinal) = whole.name_next(what, format_args!("group {:08x}", of.number), &members);
    let settings = settings_of(fabric, number, rank, &members, members.clone()).agreeing();
    make_known(fabric, Settings { timeout, ..settings }, Some(ordinal));
    let group = GroupHandle::new(fabric, number, GroupOrigin::of(of.origin.root), rank, members, timeout);
    Ok(Communicator { fabric: fabric.clone(), group: Arc::new(group) })
}

/// Sleeps until another rank has called the group's next operation, `awaited` has been [ended](end), or for at most `limit`.
/// Returns whether one of the first two has happened, or the group takes no more calls.
pub(crate) fn until_called(group: &Communicator, awaited: &Arc<Completion>, limit: Duration) -> bool {
    let (fabric, of) = group.parts();
    fabric.node.with(|engine| engine.watch(of.number, awaited.clone()));
    fabric.node.wait(awaited, Some(limit));
    let was_called = awaited.is_done();
    fabric.node.with(|engine| engine.end_watch(awaited));
    was_called
}

/// Wakes the thread of this process that waits for this.
pub(crate) fn end(group: &Communicator, awaited: &Arc<Completion>) {
    group.parts().0.node.with(|engine| engine.end_watch(awaited));
}
