//! The waiting lines: operations wait for their links, their memory or their turn, and frames for their operations.

use super::{
    early::{Content, EarlyArrivals, Parked},
    group::Group,
    links::Links,
    outbox::{Deferred, Outbox},
    queue::OpQueue,
};
use crate::core::{
    prepare::Call,
    session::{lane::EAGER_SLOTS, membership::MemberId},
    wire::Header,
};
use crate::{
    completion::Completion,
    execute::issue::{Identity, Queued},
    sys::span::Span,
    transport::{Broken, frame::Body},
};
use std::sync::Arc;

/// More frames than this cannot be backlog for operations that this rank has not issued, or so many of each link.
const PARKED_MOST: usize = u16::MAX as usize;
const PARKED_PER_LINK: usize = 2 * EAGER_SLOTS as usize;

/// Operations that have not started, and frames that came early.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    /// Operations that wait for links, memory or their turn.
    pub(super) queue: OpQueue,
    pub(super) early: EarlyArrivals,
    /// Those that wait for other ranks to call the next operation of a group.
    watches: Vec<(u32, Arc<Completion>)>,
}

impl Backlog {
    /// Whether an operation of a group with this number has not started.
    pub(super) fn has(&self, group: u32, sequence: u64) -> bool {
        self.queue.has(group, sequence)
    }

    /// Whether an operation of a group has not started.
    pub(super) fn has_any(&self, group: u32) -> bool {
        self.queue.has_any(group)
    }

    /// Ends `completion` when another rank calls the next operation of a group; at once if one has. Returns whether it ended.
    pub(super) fn watch(&mut self, group: &Group, completion: Arc<Completion>) -> bool {
        let number = group.settings.id;
        let next = group.state.next();
        if group.state.failure().is_some() || !self.early.of(number, next).is_empty() {
            completion.finish(Ok(()));
            return true;
        }
        self.watches.push((number, completion));
        false
    }

    /// Does not wait any more.
    pub(super) fn unwatch(&mut self, completion: &Arc<Completion>) {
        self.watches.retain(|(_, watching)| !Arc::ptr_eq(watching, completion));
    }

    /// Something has come for a group's next operation. Returns whether somebody waited for that.
    pub(super) fn is_called(&mut self, number: u32) -> bool {
        let called = self.watches.extract_if(.., |(group, _)| *group == number);
        called.map(|(_, completion)| completion.finish(Ok(()))).count() > 0
    }

    /// Takes an operation that has not started out of the queue.
    pub(super) fn take(&mut self, id: &Identity) -> Option<Queued> {
        self.queue.take(id)
    }

    /// Forgets frames that came early for an operation that is done in another way.
    pub(super) fn discard_early(&mut self, id: &Identity, links: &mut Links) {
        for Parked { endpoint, header, .. } in self.early.take(id.group, id.fingerprint.sequence, |_| true) {
            let endpoint = &mut links.endpoints[endpoint];
            endpoint.parked -= u16::from(header.eager);
            endpoint.emptied(header.eager);
        }
    }

    /// Keeps a frame whose operation has not begun here.
    pub(super) fn park(
        &mut self,
        index: MemberId,
        header: Header,
        body: Content,
        links: &mut Links,
    ) -> Result<(), Broken> {
        let parked = self.early.len();
        let are_too_many = parked >= PARKED_MOST && parked >= PARKED_PER_LINK * links.endpoints.ids().count();
        let endpoint = &mut links.endpoints[index];
        if are_too_many || header.eager && !endpoint.has_slot() {
            return Err(Broken::Protocol("more early messages than eager slots allow"));
        }
        // What goes with a frame stays in its place only as long as the frame.
        let body = match body {
            Content::Shared(Body::Carried(at)) => {
                let carried = endpoint.payload(at, header.length as usize);
                Content::Bytes(carried.map(Span::to_vec).unwrap_or_default())
            }
            body => body,
        };
        self.early.park(Parked { endpoint: index, header, body });
        endpoint.parked += u16::from(header.eager);
        Ok(())
    }

    /// Takes the frames that came early for an operation that begins.
    pub(super) fn take_early(&mut self, id: &Identity, out: &mut Outbox) {
        if !self.early.is_empty() {
            let early = self.early.take(id.group, id.fingerprint.sequence, |parked| id.is_of(&parked.header));
            out.push(Deferred::Redeliver(early));
        }
    }

    /// All frames that came early for a group may be of use now.
    pub(super) fn redeliver(&mut self, group: u32, out: &mut Outbox) {
        out.push(Deferred::Redeliver(self.early.take_group(group)));
        out.push(Deferred::Served(group));
    }

    /// Compares frames that came early with the operation that was just issued.
    pub(super) fn check_early(&mut self, id: &Identity, out: &mut Outbox) {
        let (group, sequence) = (id.group, id.fingerprint.sequence);
        let differs =
            |Parked { header, .. }: &Parked| header.hash != id.hash && header.generation == id.generation;
        if self.early.of(group, sequence).iter().any(differs) {
            out.push(Deferred::Redeliver(self.early.take(group, sequence, |_| true)));
        }
    }
}

impl Queued {
    /// Whether it is to be done without the reducers that it was to use. One that lacks memory fails, and has no buffers.
    pub(super) fn is_redone(&self, group: &mut Group, out: &mut Outbox) -> bool {
        self.lacks.is_none() && is_redone(group, self.call, out)
    }
}

/// Whether a call was to use reducers of a group that uses none any more.
pub(super) fn is_redone(group: &mut Group, call: Call, out: &mut Outbox) -> bool {
    group.state.replaced().is_some()
        && group.plan(call, &mut out.observer).is_ok_and(|planned| planned.with_reducers)
}
