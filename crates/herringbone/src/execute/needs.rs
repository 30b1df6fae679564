//! What a running operation still needs of whom: for errors, losses and leaves.

use super::{operation::Operation, room::Flow};
use crate::execute::{program::Peer, room::Arrived};

impl Operation {
    /// The endpoints that have not sent, granted or confirmed what this operation needs of them.
    pub(crate) fn missing(&self) -> Vec<u32> {
        let awaited = self.awaited(|_| false);
        let waits_for_room = self.finished == self.begun && self.begun < self.prepared.segments;
        let waiting = |(at, (peer, flow)): &(usize, (&Peer, &Flow))| {
            self.has_unheard_before(self.begun, peer)
                || waits_for_room && !peer.heads.is_empty()
                || self.is_blocked_on(flow.endpoint)
                || awaited == Some(*at)
                || !flow.stable
        };
        let peers = self.prepared.peers.iter().zip(&self.room.flows).enumerate();
        peers.filter(waiting).map(|(_, (_, flow))| flow.endpoint).collect()
    }

    /// Whether a message or word from an endpoint is still needed to complete: also word that it has room for a message. What has
    /// come is enough for segments that have not begun, too: the endpoint may have been ahead, and have left since.
    pub(crate) fn needs(&self, endpoint: u32) -> bool {
        let segments = self.prepared.segments;
        let lacks_room = |flow: &Flow| self.begun < segments && !flow.window.has_room(segments - 1);
        self.is_blocked_on(endpoint)
            || self.prepared.peers.iter().zip(&self.room.flows).any(|(peer, flow)| {
                flow.endpoint == endpoint
                    && (!flow.stable
                        || peer.sends > 0 && lacks_room(flow)
                        || self.has_unheard_before(segments, peer))
            })
    }

    /// Whether a message of a segment below `end` has not come from a rank.
    fn has_unheard_before(&self, end: u32, peer: &Peer) -> bool {
        let has_come = |segment, head| {
            segment < self.finished + self.prepared.depth && self.arrived(segment, head) != Arrived::No
        };
        (self.finished..end).any(|segment| !peer.heads.iter().all(|head| has_come(segment, *head)))
    }

    /// Whether reducers have not said yet that all workers hold the whole result: until then it needs each of them.
    pub(crate) fn is_unstable(&self) -> bool {
        self.room.flows.iter().any(|flow| !flow.stable)
    }

    /// Whether an endpoint takes part and is not done.
    pub(crate) fn involves(&self, endpoint: u32) -> bool {
        self.room
            .flows
            .iter()
            .any(|flow| flow.endpoint == endpoint && flow.window.done() < self.prepared.segments)
    }

    /// Whether something waits to be sent to an endpoint.
    pub(crate) fn is_blocked_on(&self, endpoint: u32) -> bool {
        let to = |lane: u32| self.room.flows[self.prepared.lanes[lane as usize].peer as usize].endpoint;
        self.room.blocked.iter().any(|unsent| to(unsent.lane) == endpoint)
    }
}
