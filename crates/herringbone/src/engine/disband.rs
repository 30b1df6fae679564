//! Groups that programs are done with.
//!
//! Operations that are under way go on. What this rank has left in memory stays until the others have read it. A rank
//! that has failed an operation reads no more and says nothing of it, so the others keep its slots until the hub says that
//! no member needs the group. Then only the group's number is left.

use super::{Engine, Event};
use crate::{
    execute::issue::Identity,
    transport::{endpoint::send_control, ticket::OpKey},
    {Error, ErrorKind, core::session::control::Message},
};

impl Engine {
    /// Whether there is a group of this number, or was one.
    pub(crate) fn has_had_group(&self, number: u32) -> bool {
        self.groups.contains_key(&number) || self.forgotten.contains(&number)
    }

    /// Whether this rank has a group of this number, and has not closed it.
    pub(crate) fn takes_calls(&self, number: u32) -> bool {
        self.groups.get(&number).is_some_and(|group| !group.is_dropped)
    }

    /// A group was closed, or its last handle is gone: nothing more is called in it here. What is under way goes on.
    pub(crate) fn drop_group(&mut self, number: u32) {
        if let Some(group) = self.groups.get_mut(&number) {
            group.is_dropped = true;
            self.forget_if_over(number);
        }
    }

    /// Fails what is under way in a group. Nothing more is called in it here.
    pub(crate) fn abort_group(&mut self, number: u32) {
        self.fail_issued(number, &Error::new(ErrorKind::Closed));
        self.drop_group(number);
    }

    /// The program is done with all groups.
    pub(crate) fn drop_all_groups(&mut self) {
        self.groups
            .keys()
            .copied()
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|number| self.drop_group(number));
    }

    /// Fails what is under way in all groups.
    pub(crate) fn abort_all_groups(&mut self) {
        self.groups
            .keys()
            .copied()
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|number| self.abort_group(number));
    }

    /// The operations that callers have not seen end: how many, and the name of one.
    pub(crate) fn unfinished(&self) -> Option<(usize, String)> {
        let running = self.ops.iter().filter(|operation| operation.completion.is_some());
        let queued = self.queue.iter().map(|queued| queued.id);
        let ids: Vec<Identity> = running.map(|operation| operation.id).chain(queued).collect();
        let first = ids.iter().min_by_key(|id| id.fingerprint.sequence)?;
        let settings = self.groups.get(&first.group).map(|group| &group.settings);
        let name = settings.map_or(String::new(), |settings| settings.named(first.fingerprint).to_string());
        Some((ids.len(), name))
    }

    /// Once nothing is under way in a group that was dropped, this rank has read all that it needs from the others, and says
    /// so. Once they have read all from this rank, the group is forgotten.
    pub(super) fn forget_if_over(&mut self, number: u32) {
        let Some(group) = self.groups.get(&number).filter(|group| group.is_dropped) else { return };
        let is_issued =
            |key: &OpKey| self.ops.get(*key).is_some_and(|operation| operation.completion.is_some());
        if group.running.iter().any(|(_, key)| is_issued(key))
            || self.queue.iter().any(|queued| queued.id.group == number)
        {
            return;
        }
        let is_read = group.running.is_empty() && group.kept.is_empty();
        if !group.is_left {
            self.leave_group(number);
        }
        if is_read {
            self.forget_group(number);
        }
    }

    /// Tells the hub and the reducers that this rank takes no part in a group any more.
    fn leave_group(&mut self, number: u32) {
        if let Some(group) = self.groups.get_mut(&number) {
            group.is_left = true;
        }
        for endpoint in &mut self.endpoints {
            let known = endpoint.introduced.len();
            endpoint.introduced.retain(|(group, _)| *group != number);
            if endpoint.introduced.len() < known {
                send_control(endpoint, &Message::Forget { group: number });
            }
        }
        self.events.push(Event::ToHub(Message::Forget { group: number }));
    }

    /// No member takes part in a group any more, so nobody reads what this rank has left for it.
    pub(crate) fn left_by_all(&mut self, number: u32) {
        let Some(group) = self.groups.get_mut(&number).filter(|group| group.is_left) else { return };
        let running: Vec<OpKey> = group.running.iter().map(|(_, key)| *key).collect();
        let kept = std::mem::take(&mut group.kept);
        kept.into_iter().for_each(|memory| self.staging.give_back(memory));
        running.into_iter().for_each(|key| self.end(key));
        self.forget_group(number);
    }

    /// Only a group's number stays, so that what others send late is not taken for early.
    fn forget_group(&mut self, number: u32) {
        let Some(group) = self.groups.remove(&number) else { return };
        group.count(&mut self.stats);
        self.forgotten.insert(number);
        let early = self.early.take_group(number);
        self.redeliver(early);
        self.finished = true;
    }

    /// Looks for groups whose last operation never began.
    pub(super) fn tick_dropped(&mut self) {
        for number in self.groups.keys().copied().collect::<Vec<_>>() {
            self.forget_if_over(number);
        }
    }

    /// A worker tells a reducer that it takes no part in a group any more.
    pub(super) fn dropped_by(&mut self, worker: u32, number: u32) {
        let Some(group) = self.groups.get_mut(&number) else { return };
        group.dropped_by.insert(worker);
        let workers = group.settings.members();
        if workers.iter().all(|worker| group.dropped_by.contains(worker)) {
            self.close_group(number, &Error::new(ErrorKind::Closed));
            self.groups.remove(&number);
        }
    }
}
