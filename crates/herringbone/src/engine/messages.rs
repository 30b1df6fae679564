//! Messages between two ranks of a group, by tag: [`Mailbox`] matches messages with receives, and groups of the two
//! ranks carry them.
//!
//! Two ranks have four such groups, two for each direction. One carries the sender's announcements and the receiver's
//! answers to the other's, as short broadcasts. One carries long messages, each as a broadcast of its own. Both ranks
//! issue these broadcasts in the order in which **the receiver** takes the messages. It issues the broadcast and
//! answers the announcement, and the sender issues its part when it reads the answer. So all data moves in ordinary
//! operations, with proofs, deadlines and fences, and a tag costs nothing.
//!
//! Each message has exactly one answer, and its send ends with that. So a sender knows that its message was wanted, and a
//! message of the wrong length or type fails on both ranks, in the call itself.

mod deadlines;
mod point_to_point;
mod post;

use super::{groups::Groups, outbox::Outbox, runtime::Runtime};
use crate::{Error, ErrorKind, core::group::Rank};
pub(crate) use deadlines::WaitingCall;
use point_to_point::PointToPoint;
pub(crate) use post::{Channel, Posted, ToOrFrom};
use std::collections::BTreeMap;

/// The messages of all groups.
#[derive(Debug, Default)]
pub(crate) struct Mail {
    /// By the number of the group whose ranks exchange them.
    by_group: BTreeMap<u32, PointToPoint>,
    /// Which group a group of two serves, and for messages with which rank.
    served: BTreeMap<u32, (u32, Rank)>,
}

impl Mail {
    /// The groups between `me`, a rank of a group, and another one of it were made.
    pub(crate) fn add_channel(&mut self, group: u32, me: Rank, peer: Rank, channel: Channel) {
        self.served.extend(channel.groups().map(|number| (number, (group, peer))));
        let point_to_point = self.by_group.entry(group).or_insert_with(|| PointToPoint::new(group, me));
        point_to_point.add(peer, channel);
    }

    /// Whether a group is one of those that carry messages.
    pub(crate) fn serves(&self, group: u32) -> bool {
        self.served.contains_key(&group)
    }

    /// The groups that carry messages.
    pub(super) fn pair_groups(&self) -> Vec<u32> {
        self.served.keys().copied().collect()
    }

    /// The groups whose ranks exchange messages.
    pub(super) fn groups(&self) -> Vec<u32> {
        self.by_group.keys().copied().collect()
    }

    /// Sends a message. Its groups were made, unless it is to this rank itself.
    pub(super) fn send(&mut self, group: u32, me: Rank, to: Rank, posted: Posted, runtime: &mut Runtime) {
        let point_to_point = self.by_group.entry(group).or_insert_with(|| PointToPoint::new(group, me));
        point_to_point.send(to, posted, runtime);
    }

    /// Receives a message. The groups between this rank and all those from whom it may come were made.
    pub(super) fn receive(
        &mut self,
        group: u32,
        me: Rank,
        from: Option<Rank>,
        posted: Posted,
        runtime: &mut Runtime,
    ) {
        let point_to_point = self.by_group.entry(group).or_insert_with(|| PointToPoint::new(group, me));
        point_to_point.receive(from, posted, runtime);
    }

    /// Something has come, ended or changed in a group that carries messages.
    pub(super) fn step(&mut self, number: u32, runtime: &mut Runtime) {
        let Some((group, peer)) = self.served.get(&number) else { return };
        if let Some(point_to_point) = self.by_group.get_mut(group) {
            point_to_point.step(*peer, runtime);
            self.close_if_over(*group, runtime);
        }
    }

    /// Looks for what has waited too long, or cannot come any more.
    pub(super) fn look(&mut self, runtime: &mut Runtime) {
        let groups: Vec<u32> = self.by_group.keys().copied().collect();
        for group in groups {
            if let Some(point_to_point) = self.by_group.get_mut(&group) {
                point_to_point.look(runtime);
            }
            self.close_if_over(group, runtime);
        }
    }

    /// Whether no call waits.
    pub(super) fn is_idle(&self) -> bool {
        self.by_group.values().all(PointToPoint::is_idle)
    }

    /// The calls that wait: how many, and the name of one.
    pub(super) fn unfinished(&self, groups: &Groups) -> Option<(usize, String)> {
        let names: Vec<String> =
            self.by_group.values().flat_map(|point_to_point| point_to_point.names(groups)).collect();
        names.first().map(|first| (names.len(), first.clone()))
    }

    /// The calls that wait, each with its group.
    pub(super) fn waiting(&self, groups: &Groups) -> Vec<(u32, WaitingCall)> {
        let of = |(group, point_to_point): (&u32, &PointToPoint)| {
            let group = *group;
            point_to_point.waiting(groups).into_iter().map(move |call| (group, call))
        };
        self.by_group.iter().flat_map(of).collect()
    }

    /// A group was closed here. Calls that wait go on.
    pub(super) fn close(&mut self, group: u32, runtime: &mut Runtime) {
        if let Some(point_to_point) = self.by_group.get_mut(&group) {
            point_to_point.is_closing = true;
            self.close_if_over(group, runtime);
        }
    }

    /// Fails all calls of a group that wait. Returns the groups that served it.
    pub(super) fn abort(&mut self, group: u32, out: &mut Outbox) -> Vec<u32> {
        let Some(mut point_to_point) = self.by_group.remove(&group) else { return Vec::new() };
        point_to_point.fail_all(&Error::new(ErrorKind::Closed), out);
        self.forget(&point_to_point)
    }

    fn close_if_over(&mut self, group: u32, runtime: &mut Runtime) {
        let is_over = |point_to_point: &PointToPoint| point_to_point.is_closing && point_to_point.is_idle();
        if self.by_group.get(&group).is_some_and(is_over)
            && let Some(point_to_point) = self.by_group.remove(&group)
        {
            for number in self.forget(&point_to_point) {
                runtime.groups.drop_group(number, &mut runtime.out);
            }
        }
    }

    fn forget(&mut self, point_to_point: &PointToPoint) -> Vec<u32> {
        let numbers: Vec<u32> = point_to_point.channels.values().flat_map(Channel::groups).collect();
        self.served.retain(|number, _| !numbers.contains(number));
        numbers
    }
}
