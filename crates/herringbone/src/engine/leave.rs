//! Ranks that leave in order: they have finished their part, and nobody is to be harmed.
//!
//! What a rank sent before it left is still used, also by operations that begin only later here: its frames are read
//! to the end, and what it left in shared memory stays mapped. Only an operation that needs more of it fails.

use super::Engine;
use crate::{
    Error, ErrorKind,
    core::session::Cause,
    engine::{doom::error, group::Group},
    execute::operation::Operation,
    transport::{
        Broken,
        endpoint::{Endpoint, Link},
        layout,
        ticket::OpKey,
    },
};
use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

/// How long a link may be on its way from a rank that has left: it made it before, for what it had to send.
const UNDER_WAY: Duration = Duration::from_secs(1);
/// How long an operation that needs more of a rank that has left waits for a better reason to fail: that rank may have left
/// because another died, of which word is on its way.
const GRACE: Duration = Duration::from_millis(300);

impl Engine {
    /// A rank has left. What it sent is read to its end: at once in shared memory, until the end of a socket, and, if a
    /// link is still under way, once that is there.
    pub(crate) fn leave(&mut self, index: u32) {
        self.endpoints[index as usize].left = Some(Instant::now());
        if self.endpoints[index as usize].is_lost() {
            // Its socket was read to the end before its goodbye came.
            return self.departed();
        }
        self.read_to_the_end(index);
        self.start_queued();
    }

    /// Leaves word in shared memory that this rank leaves in order.
    pub(crate) fn say_goodbye(&self) {
        layout::goodbye(self.staging.segment()).store(1, Ordering::Release);
    }

    /// Whether a host-mate has left such word: its process may have ended before its goodbye has come by way of the hub.
    pub(crate) fn has_said_goodbye(&self, index: u32) -> bool {
        let segment = match &self.endpoints[index as usize].link {
            Link::Shm(link) => link.segment(),
            Link::Lost { left: Some(segment), .. } => segment,
            _ => return false,
        };
        layout::goodbye(segment).load(Ordering::Acquire) != 0
    }

    pub(super) fn read_to_the_end(&mut self, index: u32) {
        while self.receive_shared(index) {}
        if self.endpoints[index as usize].is_shared() {
            self.broken(index, Broken::Closed);
        }
    }

    /// Links that did not come from ranks that have left will not come any more.
    pub(super) fn tick_departures(&mut self, now: Instant) {
        for index in 0..self.endpoints.len() as u32 {
            let endpoint = &mut self.endpoints[index as usize];
            let late = endpoint.left.is_some_and(|left| now.saturating_duration_since(left) >= UNDER_WAY);
            if late && matches!(endpoint.link, Link::None | Link::Wanted) {
                endpoint.lose("it left the group".to_owned());
                self.departed();
            }
        }
        for index in self.departed_by(now) {
            self.ops.keys().into_iter().for_each(|key| self.fail_if_departed(key, index));
        }
    }

    /// The ranks that left a while ago and of which nothing more will come, in the order in which they left: those that
    /// left later may only have followed.
    fn departed_by(&self, now: Instant) -> Vec<u32> {
        let left = |index: &u32| self.endpoints[*index as usize].left;
        let has_departed = |index: &u32| {
            let late = left(index).is_some_and(|left| now.saturating_duration_since(left) >= GRACE);
            late && self.endpoints[*index as usize].is_lost()
        };
        let mut departed: Vec<u32> = (0..self.endpoints.len() as u32).filter(has_departed).collect();
        departed.sort_by_key(left);
        departed
    }

    /// Nothing more will come from a rank that has left.
    pub(super) fn departed(&mut self) {
        self.start_queued();
        self.finished = true;
    }

    /// An operation that has just begun may need what somebody who left never sent.
    pub(super) fn fail_if_any_departed(&mut self, key: OpKey) {
        if self.endpoints.iter().any(|endpoint| endpoint.left.is_some()) {
            let departed = self.departed_by(Instant::now());
            departed.into_iter().for_each(|index| self.fail_if_departed(key, index));
        }
    }

    fn fail_if_departed(&mut self, key: OpKey, index: u32) {
        let needs = |operation: &&Operation| operation.completion.is_some() && self.needs(key, index);
        let Some(operation) = self.ops.get(key).filter(needs) else { return };
        let (number, sequence) = (operation.id.group, operation.id.fingerprint.sequence);
        let Some(group) = self.groups.get_mut(&number) else { return };
        group.member.fail(sequence);
        // Where a member died, that is why this one left.
        let lost = group.doom.as_ref().map(|doom| (doom.ranks.clone(), doom.error.clone()));
        let is_dropped = group.is_dropped;
        let (ranks, error) = lost.unwrap_or_else(|| (vec![index], self.left_because(index, is_dropped)));
        self.fail(key, &error, true);
        self.call_for_fence(number, Cause::PeerLost { ranks });
    }

    /// Why a rank that left is missed where none of the group died: perhaps one of another group did, or left before. In a group
    /// that this rank has closed itself, that is why.
    fn left_because(&self, index: u32, is_dropped: bool) -> Error {
        if is_dropped {
            return Error::new(ErrorKind::Closed);
        }
        let named = |which: &dyn Fn(&Endpoint) -> bool| {
            let names = self.endpoints.iter().filter(|endpoint| which(endpoint));
            names.map(|endpoint| endpoint.name.as_str()).collect::<Vec<_>>().join(", ")
        };
        let dead = named(&|endpoint| endpoint.dead);
        let before = named(&|endpoint| {
            endpoint.left.is_some_and(|left| Some(left) < self.endpoints[index as usize].left)
        });
        let after = match (dead.as_str(), before.as_str()) {
            ("", "") => String::new(),
            ("", _) => format!(", after {before} had left"),
            _ => format!(", after {dead} had died"),
        };
        let reason = format!("it left, by close() or the end of its program{after}");
        Error::new(ErrorKind::PeerLost { ranks: vec![index], reason })
    }

    /// A decision of the hub as an error: where all ranks that are lost have left in order, this rank knows more than the hub
    /// says.
    pub(super) fn error_of(&self, cause: &Cause, group: &Group) -> Error {
        match cause {
            Cause::PeerLost { ranks } if ranks.iter().all(|rank| self.has_only_left(*rank)) => {
                if group.is_dropped {
                    return Error::new(ErrorKind::Closed);
                }
                let reason = "it left, by close() or the end of its program".to_owned();
                Error::new(ErrorKind::PeerLost { ranks: ranks.clone(), reason })
            }
            _ => error(cause, group.settings.members()),
        }
    }

    fn has_only_left(&self, rank: u32) -> bool {
        self.endpoints.get(rank as usize).is_some_and(|endpoint| endpoint.left.is_some() && !endpoint.dead)
    }

    /// Says on all sockets that nothing more will come.
    pub(crate) fn hang_up(&mut self) {
        for endpoint in &self.endpoints {
            if let Link::Tcp(link) = &endpoint.link {
                // A socket that is broken needs no goodbye.
                let _gone = rustix::net::shutdown(link.fd(), rustix::net::Shutdown::Write);
            }
        }
    }

    /// Whether all sockets have been closed from the other end too.
    pub(crate) fn is_hung_up(&self) -> bool {
        self.endpoints.iter().all(|endpoint| !matches!(endpoint.link, Link::Tcp(_)))
    }
}
