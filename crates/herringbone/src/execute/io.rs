//! The services of the engine for an operation.

use super::{issue::Identity, staging::Staging};
use crate::{
    core::{
        execution::{Members, Signal},
        session::membership::MemberId,
        wire::Kind as FrameKind,
    },
    observe::Observer,
    transport::{endpoint::Endpoints, ticket::OpKey},
};

/// What an operation needs of the engine while it runs.
pub(crate) struct Io<'a> {
    pub(crate) endpoints: &'a mut Endpoints,
    pub(crate) staging: &'a Staging,
    pub(crate) observer: &'a mut Observer,
}

/// The members' ends here, as an [`Execution`](crate::core::execution::Execution) sees them.
pub(super) struct MemberEnds<'a, 'b> {
    pub(super) io: &'a mut Io<'b>,
    pub(super) id: &'a Identity,
    pub(super) key: OpKey,
}

impl Members for MemberEnds<'_, '_> {
    #[inline]
    fn is_away(&self, member: MemberId) -> bool {
        self.io.endpoints[member].is_away()
    }

    #[inline]
    fn is_crowded(&self, member: MemberId) -> bool {
        self.io.endpoints[member].is_crowded()
    }

    #[inline]
    fn take_slot(&mut self, member: MemberId) -> bool {
        let (endpoint, priority) = (&mut self.io.endpoints[member], self.id.fingerprint.priority);
        let taken = endpoint.take_eager(priority);
        if !taken {
            endpoint.wait_for_slot(priority, self.key);
        }
        taken
    }

    fn tell(&mut self, member: MemberId, signal: Signal) {
        let header = match signal {
            Signal::Grant(segments) => self.id.header(FrameKind::Grant, segments),
            Signal::Stable => self.id.header(FrameKind::Stable, 0),
        };
        self.io.endpoints[member].notice(header);
    }
}
