//! Groups that programs are done with: what others may still read of theirs stays until they have, then nothing is left of them.

use super::{Engine, Event};
use crate::{
    transport::endpoint::send_control,
    {Error, ErrorKind, core::session::control::Message},
};

impl Engine {
    /// Whether there is a group of this number, or was one.
    pub(crate) fn has_had_group(&self, number: u32) -> bool {
        self.groups.contains_key(&number) || self.forgotten.contains(&number)
    }

    /// The last handle of a group is gone, so nothing more is called in it here. What is under way goes on.
    pub(crate) fn drop_group(&mut self, number: u32) {
        if let Some(group) = self.groups.get_mut(&number) {
            group.is_dropped = true;
            self.forget_if_over(number);
        }
    }

    /// Forgets a group that was dropped and of which nothing is under way. Only its number stays, so that what others send late
    /// is not taken for early.
    pub(super) fn forget_if_over(&mut self, number: u32) {
        let Some(group) = self.groups.get(&number).filter(|group| group.is_dropped) else { return };
        if !group.running.is_empty() || self.queue.iter().any(|queued| queued.id.group == number) {
            return;
        }
        group.count(&mut self.stats);
        for endpoint in &mut self.endpoints {
            if endpoint.introduced.remove(&number).is_some() {
                send_control(endpoint, &Message::Forget { group: number });
            }
        }
        self.groups.remove(&number);
        self.forgotten.insert(number);
        let early = self.early.take_group(number);
        self.redeliver(early);
        self.events.push(Event::ToHub(Message::Forget { group: number }));
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
