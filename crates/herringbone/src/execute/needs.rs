//! What a running operation still needs of whom: for errors, losses and leaves.

use super::{
    operation::{Arrived, Operation},
    room::Flow,
};

impl Operation {
    /// The endpoints that have not sent, granted or confirmed what this operation needs of them.
    pub(crate) fn missing(&self) -> Vec<u32> {
        let awaited = self.awaited(|_| false);
        let waiting = |at: usize, flow: &Flow| {
            let unheard = (self.finished..self.begun.max(self.finished + 1).min(self.prepared.segments)).any(
                |segment| {
                    segment >= self.begun && !self.prepared.peers[at].heads.is_empty()
                        || self.prepared.peers[at].heads.iter().any(|head| {
                            segment < self.begun
                                && self.room.heads
                                    [self.stage(segment) * self.prepared.heads.len() + *head as usize]
                                    == Arrived::No
                        })
                },
            );
            let unsent = self
                .room
                .blocked
                .iter()
                .any(|(_, _, lane)| self.prepared.lanes[*lane as usize].peer as usize == at);
            unheard || unsent || awaited == Some(at) || !flow.stable
        };
        let flows = self.room.flows.iter().enumerate();
        flows.filter(|(at, flow)| waiting(*at, flow)).map(|(_, flow)| flow.endpoint).collect()
    }

    /// Whether a message or word from an endpoint is still needed to complete: also word that it has room for a message.
    pub(crate) fn needs(&self, endpoint: u32) -> bool {
        let unheard = |heads: &[u32]| {
            (self.finished..self.begun).any(|segment| {
                let base = self.stage(segment) * self.prepared.heads.len();
                heads.iter().any(|head| self.room.heads[base + *head as usize] == Arrived::No)
            })
        };
        self.is_blocked_on(endpoint)
            || self.prepared.peers.iter().zip(&self.room.flows).any(|(peer, flow)| {
                let takes_part = peer.sends > 0 || !peer.heads.is_empty();
                flow.endpoint == endpoint
                    && (!flow.stable
                        || takes_part && self.begun < self.prepared.segments
                        || unheard(&peer.heads))
            })
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
        self.room.blocked.iter().any(|(_, _, lane)| to(*lane) == endpoint)
    }
}
