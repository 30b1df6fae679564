//! A group whose ranks call it now and then: those that have nothing to say sleep until another one calls.

use super::{
    Communicator,
    handle::{GroupHandle, make_known, settings_of},
};
use crate::{
    Result,
    completion::Completion,
    engine::group::{self, Settings},
};
use std::{sync::Arc, time::Duration};

/// A group of all ranks of `whole` that sleep between its operations: a rank that calls one wakes all those that
/// [wait for that](until_called). It uses no reducers, and has the timeout of `whole`.
pub(crate) fn resting_group(whole: &Communicator, name: &str) -> Result<Communicator> {
    whole.check_open("a group of its own")?;
    let (fabric, of) = whole.parts();
    let (rank, members, timeout) = (of.rank, of.members.clone(), whole.timeout());
    let number = group::number_of(name, &members);
    fabric.node.with(|engine| engine.out.observer.name_group(number, name));
    let settings = settings_of(fabric, number, (rank, &members), members.clone()).agreeing();
    make_known(fabric, Settings { timeout, ..settings });
    let group = GroupHandle::new(fabric, number, (rank, members), timeout);
    Ok(Communicator { fabric: fabric.clone(), group: Arc::new(group) })
}

/// A name by which no group of these ranks was known before: the same on all ranks that have made the same groups.
pub(crate) fn unused_name(whole: &Communicator, what: &str) -> String {
    let (fabric, of) = whole.parts();
    let name = |number: u32| format!("{what} {number} of group {:08x}", of.number);
    let is_used = |name: &String| {
        let number = group::number_of(name, &of.members);
        fabric.node.with(|engine| engine.has_had_group(number))
    };
    (0..).map(name).find(|name| !is_used(name)).unwrap_or_default()
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
