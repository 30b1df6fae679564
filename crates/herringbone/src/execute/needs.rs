//! What a running operation still needs of whom: for errors, losses and leaves.

use super::{operation::Operation, room::Flow};
use crate::execute::{program::Peer, room::Arrived};

impl Operation {
    /// The endpoints that have not sent, granted or confirmed what this operation needs of them.
    pub(crate) fn missing(&self) -> Vec<u32> {
        let awaited = self.awaited(|_| false);
        let waits_for_room = self.finished == self.begun && self.begun < self.prepared.segments;
        let waiting = |(at, (peer, flow)): &(usize, (&Peer, &Flow))| {
            self.has_unheard(peer)
                || waits_for_room && !peer.heads.is_empty()
                || self.is_blocked_on(flow.endpoint)
                || awaited == Some(*at)
                || !flow.stable
        };
        let peers = self.prepared.peers.iter().zip(&self.room.flows).enumerate();
        peers.filter(waiting).map(|(_, (_, flow))| flow.endpoint).collect()
    }

    /// Whether a message or word from an endpoint is still needed to complete: also word that it has room for a message.
    pub(crate) fn needs(&self, endpoint: u32) -> bool {
        self.is_blocked_on(endpoint)
            || self.prepared.peers.iter().zip(&self.room.flows).any(|(peer, flow)| {
                let takes_part = peer.sends > 0 || !peer.heads.is_empty();
                flow.endpoint == endpoint
                    && (!flow.stable
                        || takes_part && self.begun < self.prepared.segments
                        || self.has_unheard(peer))
            })
    }

    /// Whether a message of a segment that has begun has not come from a rank.
    fn has_unheard(&self, peer: &Peer) -> bool {
        let has_not_come = |segment, head| self.arrived(segment, head) == Arrived::No;
        (self.finished..self.begun).any(|segment| peer.heads.iter().any(|head| has_not_come(segment, *head)))
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
