//! How a rank of a world closes its groups, as [`Communicator::close`](crate::Communicator::close) does.

use crate::{Error, clock::Moment, completion::Completion, engine::Engine, fabric::CLOSE_TIMEOUT};
use std::{collections::VecDeque, sync::Arc};

/// A group that a rank has closed.
pub(crate) struct ClosedGroup {
    pub(crate) group: u32,
    pub(crate) began: Moment,
    /// When its program went on, and with what.
    pub(crate) ended: Option<(Moment, Result<(), Error>)>,
    /// Whether it went on without a reducer.
    pub(super) has_recovered: bool,
    ends: Vec<Arc<Completion>>,
}

impl ClosedGroup {
    /// Whether its program went on although others had not come to their last calls.
    pub(super) fn has_given_up(&self) -> bool {
        self.ended.as_ref().is_some_and(|(at, _)| at.since(self.began) >= CLOSE_TIMEOUT)
    }
}

/// How far a rank's program has come to its end.
#[derive(Default)]
pub(crate) struct Exit {
    /// When it began to leave, and whether it has said so.
    pub(crate) leaving: Option<(Moment, bool)>,
    /// The groups that it closes next; `true` for those that it closes once its calls have ended.
    to_close: VecDeque<(u32, bool)>,
    pub(crate) closed: Vec<ClosedGroup>,
}

impl Exit {
    /// It closes a group before it calls anything else.
    pub(super) fn close(&mut self, group: u32, patient: bool) {
        self.to_close.push_back((group, patient));
    }

    /// Closes what it can. Returns whether the program goes on.
    pub(super) fn go_on(&mut self, engine: &mut Engine, is_quiet: bool, now: Moment) -> bool {
        loop {
            if let Some(closed) = self.closed.last_mut().filter(|closed| closed.ended.is_none()) {
                let is_over = closed.ends.iter().all(|end| end.is_done());
                if !is_over && now.since(closed.began) < CLOSE_TIMEOUT {
                    return false;
                }
                engine.at(now).end_close_checks(&closed.ends);
                let error = closed.ends.iter().find_map(|end| end.result()?.err());
                closed.ended = Some((now, error.map_or(Ok(()), Err)));
            }
            let Some((group, patient)) = self.to_close.front().copied() else { return true };
            // Who has not made a group yet has nothing to close.
            if patient && !is_quiet || !engine.has_had_group(group) {
                return false;
            }
            self.to_close.pop_front();
            let has_recovered = engine.current(group) != group;
            let ends = engine.at(now).close_group(group);
            self.closed.push(ClosedGroup { group, began: now, ended: None, has_recovered, ends });
        }
    }

    /// The end of a group, if it was closed.
    pub(super) fn of(&self, group: u32) -> Option<&ClosedGroup> {
        self.closed.iter().find(|closed| closed.group == group)
    }

    /// Whether all groups are closed that were to be.
    pub(super) fn is_done(&self) -> bool {
        self.to_close.is_empty() && self.closed.iter().all(|closed| closed.ended.is_some())
    }
}
