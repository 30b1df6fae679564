//! Groups that programs are done with.
//!
//! Operations that are under way continue. Data that this rank has left in memory stays until the others have read it.
//! A rank that has failed an operation reads no more and does not report it. So the others keep its slots until the hub
//! reports that no member needs the group. Then only the group's number remains.

use super::{
    failure,
    group::Group,
    groups::Groups,
    outbox::{Deferred, Outbox},
    runtime::Runtime,
};
use crate::{
    Error, ErrorKind, completion::Completion, core::session::group_state::Departure, transport::ticket::OpKey,
};
use std::sync::Arc;

impl Groups {
    /// A group was closed, or its last handle is gone: nothing more is called in it here. What is under way goes on.
    pub(super) fn drop_group(&mut self, number: u32, out: &mut Outbox) {
        if let Some(group) = self.get_mut(number) {
            group.state.close(out);
        }
    }

    /// Somebody waits until all members have made the same calls in a group that is to be dropped. Returns the end of that.
    pub(super) fn await_close_check(&mut self, number: u32) -> Option<Arc<Completion>> {
        let is_users = |group: &&mut Group| group.settings.serves.is_none() && !group.state.is_closed();
        let group = self.get_mut(number).filter(is_users)?;
        group.state.await_close_check();
        Some(group.close_check.insert(Arc::default()).clone())
    }

    /// Nobody waits for these ends any more.
    pub(super) fn end_close_checks(&mut self, ends: &[Arc<Completion>], out: &mut Outbox) {
        for group in self.groups.values_mut() {
            let is_awaited = |end: &Arc<Completion>| {
                group.close_check.as_ref().is_some_and(|awaited| Arc::ptr_eq(awaited, end))
            };
            if ends.iter().any(is_awaited) {
                group.end_close_check(Ok(()));
                group.state.end_close_check(out);
            }
        }
    }

    /// Whether this rank has a group of this number, and has not closed it.
    pub(super) fn takes_calls(&self, number: u32) -> bool {
        self.get(number).is_some_and(|group| !group.state.is_closed())
    }
}

/// Fails what is under way in a group, except operations that have ended for their callers, which others may still read.
/// Nothing more is called in it here. If it `tells` the others, their calls fail as well: all but those before the first that
/// fails here. It need not where all members end the group, or hear otherwise that this rank leaves it.
pub(super) fn abort(runtime: &mut Runtime, number: u32, tells: bool) {
    let Runtime { groups, ops, out, .. } = runtime;
    let Some(group) = groups.get_mut(number) else { return };
    group.state.abort(tells, out);
    group.end_close_check(Ok(()));
    let awaited = |(_, key): &&(u64, OpKey)| ops.is_awaited(*key);
    let running: Vec<OpKey> = group.running.iter().filter(awaited).map(|(_, key)| *key).collect();
    let error = Error::new(ErrorKind::Closed);
    runtime.fail_queued(number, &error);
    running.into_iter().for_each(|key| runtime.fail(key, &error, true));
    runtime.out.push(Deferred::FailRedone { group: number, error, all: false });
}

/// Once nothing is under way in a group that was dropped, this rank has read all that it needs from the others, and says
/// so. Once they have read all from this rank, the group is forgotten.
pub(super) fn forget_if_over(runtime: &mut Runtime, number: u32) {
    let Runtime { links, groups, ops, backlog, out } = runtime;
    let Some(group) = groups.get_mut(number).filter(|group| group.state.is_closed()) else { return };
    if backlog.has_any(number) || group.running.iter().any(|(_, key)| ops.is_awaited(*key)) {
        return;
    }
    // In groups that serve others ranks need not do the same: a message may not be received.
    let Departure::Left(news) = group.state.leave(group.settings.serves.is_none(), out) else {
        return;
    };
    let result = news.map(|cause| failure::error(&cause, &group.settings.ranks).about(links.rank, "close"));
    out.finished |= group.close_check.is_some();
    if let Some(error) = group.end_close_check(result.map_or(Ok(()), Err)) {
        let what = format!("at the end of a group: {}", error.kind());
        crate::log::warn(&format!("rank {}", links.rank), what);
    }
    let is_read = group.running.is_empty() && group.kept.is_empty();
    links.forget(number);
    if is_read {
        forget(runtime, number);
    }
}

/// No member takes part in a group any more, so nobody reads what this rank has left for it.
pub(super) fn left_by_all(runtime: &mut Runtime, number: u32) {
    let Runtime { groups, ops, .. } = runtime;
    let Some(group) = groups.get_mut(number).filter(|group| group.state.has_left()) else { return };
    let running: Vec<OpKey> = group.running.iter().map(|(_, key)| *key).collect();
    std::mem::take(&mut group.kept).into_iter().for_each(|memory| ops.staging.give_back(memory));
    running.into_iter().for_each(|key| runtime.end(key, Ok(())));
    forget(runtime, number);
}

/// Only a group's number stays, so that what others send late is not taken for early.
fn forget(runtime: &mut Runtime, number: u32) {
    let Runtime { groups, backlog, out, .. } = runtime;
    let Some(group) = groups.groups.remove(&number) else { return };
    group.count(&mut out.observer.stats);
    out.observer.group_is_gone(number);
    groups.forgotten.insert(number);
    groups.forget_lines(number);
    backlog.queue.forget(number);
    backlog.redeliver(number, out);
    out.finished = true;
}

impl Group {
    /// This rank has left, or nobody is to wait for that any more. Returns the error if nobody waits for it.
    fn end_close_check(&mut self, result: Result<(), Error>) -> Option<Error> {
        match self.close_check.take() {
            Some(end) => {
                end.finish(result);
                None
            }
            None => result.err(),
        }
    }
}
