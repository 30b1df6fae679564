//! Groups that programs are done with.
//!
//! Operations that are under way go on. What this rank has left in memory stays until the others have read it. A rank that has
//! failed an operation reads no more and says nothing of it, so the others keep its slots until the hub says that no member
//! needs the group. Then only the group's number is left.

use super::{
    groups::Groups,
    links::Links,
    ops::Ops,
    outbox::{Event, Outbox, Todo},
};
use crate::{
    Error, ErrorKind,
    core::session::{control::Message, recovery::Held},
    transport::ticket::OpKey,
};

impl Groups {
    /// A group was closed, or its last handle is gone: nothing more is called in it here. What is under way goes on.
    pub(super) fn drop_group(&mut self, number: u32, out: &mut Outbox) {
        if let Some(group) = self.get_mut(number) {
            group.ending.is_dropped = true;
            out.push(Todo::Forget(number));
        }
    }

    /// Fails what is under way in a group, except operations that have ended for their callers, which others may still read.
    /// Nothing more is called in it here.
    pub(super) fn abort(&mut self, number: u32, ops: &Ops, out: &mut Outbox) {
        let Some(group) = self.get(number) else { return };
        let error = Error::new(ErrorKind::Closed);
        out.push(Todo::FailQueued { group: number, error: error.clone() });
        for (_, key) in group.running.iter().filter(|(_, key)| ops.is_awaited(*key)) {
            out.push(Todo::Fail { key: *key, error: error.clone(), keep_memory: true });
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
        let Some(group) = self.get_mut(number).filter(|group| group.ending.is_dropped) else { return };
        if group.running.iter().any(|(_, key)| ops.is_awaited(*key)) {
            return;
        }
        let is_read = group.running.is_empty() && group.ending.kept.is_empty();
        if !std::mem::replace(&mut group.ending.is_left, true) {
            links.forget(number);
            let held = Held { group: number, next: group.member.next(), operations: Vec::new() };
            out.events.push(Event::ToHub(Message::Held(held)));
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
        out.push(Todo::RedeliverGroup(number));
        out.finished = true;
    }
}
