//! The operations under way, and the memory that they use.

use super::{footprints::Footprints, group::Group, links::Links, outbox::Outbox, table::Table};
use crate::{
    core::{execution::Rules, session::membership::MemberId},
    execute::{io::Io, issue::Footprint, operation::Operation, staging::Staging},
    sys::{heap::Heap, span::Span},
    transport::{
        Outgoing, Payload,
        tcp::Memory,
        ticket::{OpKey, Token},
    },
};
use std::sync::Arc;

/// What is being waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitKind {
    /// Local ranks, which answer through memory.
    Memory,
    /// Small messages, which come within a round trip.
    Message,
    /// Large ones, which take their time.
    Stream,
}

/// The operations under way, and the memory that they use.
#[derive(Debug)]
pub(crate) struct Ops {
    pub(super) table: Table,
    /// What those touch whose callers wait.
    pub(super) footprints: Footprints,
    /// How many these are.
    pub(super) awaited: usize,
    pub(crate) staging: Staging,
    /// Where users' buffers may lie so that local ranks can reach them; reducers have none.
    pub(crate) heap: Option<Arc<Heap>>,
    /// What all operations follow.
    pub(super) rules: Rules,
}

impl Ops {
    pub(super) fn new(staging: Staging, rules: Rules) -> Self {
        let (table, footprints) = (Table::default(), Footprints::default());
        Self { table, footprints, awaited: 0, staging, heap: None, rules }
    }

    pub(super) fn get(&self, key: OpKey) -> Option<&Operation> {
        self.table.get(key)
    }

    /// An operation, with what it needs to run.
    pub(super) fn running<'a>(
        &'a mut self,
        key: OpKey,
        links: &'a mut Links,
        out: &'a mut Outbox,
    ) -> Option<(&'a mut Operation, Io<'a>)> {
        let operation = self.table.get_mut(key)?;
        let io = Io { endpoints: &mut links.endpoints, staging: &self.staging, observer: &mut out.observer };
        Some((operation, io))
    }

    /// The caller of an operation waits no more.
    pub(super) fn released(&mut self, footprint: Option<Footprint>) {
        self.awaited -= 1;
        footprint.into_iter().for_each(|footprint| self.footprints.remove(&footprint));
    }

    /// Whether anybody waits for an operation.
    pub(super) fn has_awaited(&self) -> bool {
        self.awaited > 0
    }

    /// Has links forget an operation that fails, before its memory is given back.
    pub(super) fn cancel(&mut self, key: OpKey, links: &mut Links) {
        let Some(operation) = self.table.get(key) else { return };
        let (partners, memory): (Vec<MemberId>, _) =
            (operation.endpoints().collect(), operation.memory.clone());
        let buffers = Buffers { table: &mut self.table, staging: &self.staging };
        for index in partners {
            links.endpoints[index].cancel(key, &memory, &buffers);
        }
    }

    /// How an answer can be expected to come, at the soonest. Where large messages go between hosts, local ranks wait for
    /// links, too.
    pub(super) fn wait_kind(&self, links: &Links) -> WaitKind {
        if links.are_local() && !self.table.has_streams() {
            WaitKind::Memory
        } else if self.table.has_eager() {
            WaitKind::Message
        } else {
            WaitKind::Stream
        }
    }

    /// Whether somebody waits for an operation here.
    pub(super) fn is_awaited(&self, key: OpKey) -> bool {
        self.get(key).is_some_and(|operation| operation.caller.completion.is_some())
    }

    /// Whether an operation of a group cannot end without more of an endpoint.
    pub(super) fn needs(&self, key: OpKey, index: MemberId, group: &Group) -> bool {
        let needs =
            |operation: &Operation| operation.needs(index) || operation.is_unstable() && group.has(index);
        self.get(key).is_some_and(needs)
    }
}

/// Where links find outgoing payloads.
pub(super) struct Buffers<'a> {
    pub(super) table: &'a mut Table,
    pub(super) staging: &'a Staging,
}

impl Buffers<'_> {
    /// Where the checksum is kept that a frame has in common with others of its send.
    fn kept(&mut self, frame: &Outgoing) -> Option<&mut Option<u32>> {
        let Token { op, ready } = frame.done?;
        Some(self.table.get_mut(op)?.checksum(ready))
    }
}

impl Memory for Buffers<'_> {
    fn with<R>(&self, payload: &Payload, f: impl FnOnce(Option<Span<'_>>) -> R) -> R {
        match payload {
            Payload::None => f(Some(Span::of(&mut []))),
            Payload::Owned(bytes) => f(Some(Span::of_shared(bytes))),
            Payload::Kept(bytes) => f(Some(Span::of_shared(bytes))),
            Payload::Staged(range) => f(Some(self.staging.segment().span(range.clone()))),
            Payload::User { op, output, range } => {
                let access = self.table.get(*op).and_then(|operation| operation.user(*output));
                f(access.as_ref().map(|access| access.span().slice(range.clone())))
            }
        }
    }

    fn checksum(&mut self, frame: &Outgoing) -> u32 {
        if let Some(known) = self.kept(frame).and_then(|kept| *kept) {
            return known;
        }
        let checksum = self.with(&frame.payload, |span| span.map_or(0, Span::crc32c));
        if let Some(kept) = self.kept(frame) {
            *kept = Some(checksum);
        }
        checksum
    }
}
