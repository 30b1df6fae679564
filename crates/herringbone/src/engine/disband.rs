//! Groups that programs are done with.
//!
//! Operations that are under way go on. What this rank has left in memory stays until the others have read it. A rank that has
//! failed an operation reads no more and says nothing of it, so the others keep its slots until the hub says that no member
//! needs the group. Then only the group's number is left.
//!
//! A rank that does not know whether all have made the same calls [asks](crate::core::session::farewell) before it takes no part
//! any more, and stays as long as somebody waits for the answer.

use super::{
    doom,
    farewell::Farewell,
    group::Group,
    groups::Groups,
    links::Links,
    ops::Ops,
    outbox::{Event, Outbox, Todo},
};
use crate::{
    Error, ErrorKind,
    completion::Completion,
    core::{
        group::Rank,
        session::{Cause, control::Message, farewell::FarewellQuestion, fence::Phase, recovery::Held},
    },
    transport::ticket::OpKey,
};
use std::sync::Arc;

impl Groups {
    /// A group was closed, or its last handle is gone: nothing more is called in it here. What is under way goes on.
    pub(super) fn drop_group(&mut self, number: u32, out: &mut Outbox) {
        if let Some(group) = self.get_mut(number) {
            group.ending.is_dropped = true;
            out.push(Todo::Forget(number));
        }
    }

    /// Somebody waits until all members have made the same calls in a group that is to be dropped. Returns the end of that.
    pub(super) fn await_farewell(&mut self, number: u32) -> Option<Arc<Completion>> {
        let is_users = |group: &&mut Group| group.settings.serves.is_none() && !group.ending.is_dropped;
        let group = self.get_mut(number).filter(is_users)?;
        let end = Arc::new(Completion::default());
        group.ending.farewell = Farewell::Awaited(end.clone());
        Some(end)
    }

    /// Nobody waits for these ends any more.
    pub(super) fn end_farewells(&mut self, ends: &[Arc<Completion>], out: &mut Outbox) {
        for (number, group) in &mut self.groups {
            if ends.iter().any(|end| group.ending.farewell.is_awaited_by(end)) {
                group.ending.farewell.end(Ok(()));
                out.push(Todo::Forget(*number));
            }
        }
    }

    /// Fails what is under way in a group, except operations that have ended for their callers, which others may still read.
    /// Nothing more is called in it here. If it `tells` the others, their calls fail as well: all but those before the first that
    /// fails here. It need not where all members end the group, or hear otherwise that this rank leaves it.
    pub(super) fn abort(&mut self, number: u32, tells: bool, ops: &Ops, out: &mut Outbox) {
        let tells = tells && self.rules.says_aborts;
        let Some(group) = self.get_mut(number) else { return };
        if tells && !group.ending.is_left && !std::mem::replace(&mut group.ending.is_aborted, true) {
            out.events.extend(group.member.abort().map(Event::ToHub));
        }
        let error = Error::new(ErrorKind::Closed);
        out.push(Todo::FailQueued { group: number, error: error.clone() });
        for (_, key) in group.running.iter().filter(|(_, key)| ops.is_awaited(*key)) {
            out.push(Todo::Fail { key: *key, error: error.clone(), keep_memory: true });
        }
        if let Some(group) = self.get_mut(number) {
            group.ending.farewell.end(Ok(()));
        }
        self.drop_group(number, out);
    }

    /// Whether this rank has a group of this number, and has not closed it.
    pub(super) fn takes_calls(&self, number: u32) -> bool {
        self.get(number).is_some_and(|group| !group.ending.is_dropped)
    }

    /// Once nothing is under way in a group that was dropped, this rank has read all that it needs from the others, and says
    /// so. Once they have read all from this rank, the group is forgotten.
    pub(super) fn forget_if_over(&mut self, number: u32, ops: &Ops, (links, out): (&mut Links, &mut Outbox)) {
        let counts_calls = self.rules.counts_calls;
        let Some(group) = self.get_mut(number).filter(|group| group.ending.is_dropped) else { return };
        if group.running.iter().any(|(_, key)| ops.is_awaited(*key)) {
            return;
        }
        if !group.ending.is_left && !may_leave(group, (links, out)) {
            return;
        }
        let is_read = group.running.is_empty() && group.ending.kept.is_empty();
        if !std::mem::replace(&mut group.ending.is_left, true) {
            links.forget(number);
            let held = Held { group: number, calls: group.member.calls(), operations: Vec::new() };
            // In groups that serve others ranks need not do the same: a message may not be received.
            let counted = counts_calls && group.settings.serves.is_none();
            out.events.extend(counted.then_some(Event::ToHub(Message::Held(held))));
            out.events.push(Event::ToHub(Message::Forget { group: number }));
        }
        if is_read {
            self.forget(number, out);
        }
    }

    /// No member takes part in a group any more, so nobody reads what this rank has left for it.
    pub(super) fn left_by_all(&mut self, number: u32, ops: &mut Ops, out: &mut Outbox) {
        let Some(group) = self.get_mut(number).filter(|group| group.ending.is_left) else { return };
        let running: Vec<OpKey> = group.running.iter().map(|(_, key)| *key).collect();
        std::mem::take(&mut group.ending.kept).into_iter().for_each(|memory| ops.staging.give_back(memory));
        running.into_iter().for_each(|key| ops.end(key, Ok(()), self, out));
        self.forget(number, out);
    }

    /// Only a group's number stays, so that what others send late is not taken for early.
    fn forget(&mut self, number: u32, out: &mut Outbox) {
        let Some(group) = self.groups.remove(&number) else { return };
        group.count(&mut out.observer.stats);
        self.forgotten.insert(number);
        self.forget_lines(number);
        self.elsewhere.forget(number);
        out.push(Todo::RedeliverGroup(number));
        out.finished = true;
    }
}

/// What a rank does before it leaves a group in which it has nothing under way.
enum BeforeLeaving {
    Nothing,
    /// An operation that was complete here has failed elsewhere, or this rank has not made a call of another one.
    Tell(Error),
    /// A decision is under way.
    Wait,
    Ask(FarewellQuestion),
}

fn before_leaving(group: &mut Group, links: &Links) -> BeforeLeaving {
    let tell = |cause: &Cause, ranks: &[Rank]| {
        BeforeLeaving::Tell(doom::error(cause, ranks).about(links.rank, "close"))
    };
    if let Some(cause) = group.member.take_unlearnt() {
        return tell(&cause, &group.settings.ranks);
    }
    let is_over = group.is_lost() || group.doom.is_some() || links.lost_hub().is_some();
    if is_over || group.settings.serves.is_some() {
        return BeforeLeaving::Nothing;
    }
    let stops = group.frozen.is_some() || group.unanswered.is_some();
    if stops || group.member.phase() != Phase::Running {
        return BeforeLeaving::Wait;
    }
    if let Some(cause) = group.member.missed() {
        return tell(&cause, &group.settings.ranks);
    }
    group.member.question().map_or(BeforeLeaving::Nothing, BeforeLeaving::Ask)
}

/// Whether a rank may leave a group in which it has nothing under way. It may not while somebody waits for what the others say.
fn may_leave(group: &mut Group, (links, out): (&Links, &mut Outbox)) -> bool {
    if group.ending.farewell.is_over() {
        return true;
    }
    let is_awaited = group.ending.farewell.is_awaited();
    let result = match before_leaving(group, links) {
        BeforeLeaving::Wait if is_awaited => return false,
        BeforeLeaving::Ask(question) => {
            if group.ending.farewell.asks() {
                out.events.push(Event::ToHub(Message::Confirm(question)));
            }
            if is_awaited {
                return false;
            }
            Ok(())
        }
        BeforeLeaving::Tell(error) => Err(error),
        BeforeLeaving::Nothing | BeforeLeaving::Wait => Ok(()),
    };
    if let Some(error) = group.ending.farewell.end(result) {
        let what = format_args!("at the end of a group: {}", error.kind());
        crate::log::warn(&format!("rank {}", links.rank), what);
    }
    out.finished = true;
    true
}
