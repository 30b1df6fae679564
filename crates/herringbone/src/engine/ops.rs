//! The operations under way, and the memory that they use.

use super::{
    group::Group,
    links::Links,
    outbox::{Ended, Outbox, Todo},
    runtime::Runtime,
    table::Table,
    timers::Timer,
    touched::Touched,
};
use crate::{
    Error,
    core::{
        execution::{ExecutionProgress, Rules},
        prepare::Prepared,
        session::membership::MemberId,
    },
    execute::{
        io::Io,
        issue::{Queued, Touches},
        operation::{Operation, OperationMeans},
        staging::Staging,
    },
    sys::{heap::Heap, span::Span},
    transport::{
        Outgoing, Payload,
        tcp::Memory,
        ticket::{OpKey, Token},
    },
};
use std::{ops::Range, sync::Arc};

/// What is being waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Haste {
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
    pub(super) touched: Touched,
    /// How many these are.
    awaited: usize,
    pub(crate) staging: Staging,
    /// Where users' buffers may lie so that local ranks can reach them; reducers have none.
    pub(crate) heap: Option<Arc<Heap>>,
    /// What all operations follow.
    pub(super) rules: Rules,
}

impl Ops {
    pub(super) fn new(staging: Staging, rules: Rules) -> Self {
        let (table, touched) = (Table::default(), Touched::default());
        Self { table, touched, awaited: 0, staging, heap: None, rules }
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
    fn released(&mut self, touches: Option<Touches>) {
        self.awaited -= 1;
        touches.into_iter().for_each(|touches| self.touched.remove(&touches));
    }

    /// Whether anybody waits for an operation.
    pub(super) fn has_awaited(&self) -> bool {
        self.awaited > 0
    }

    /// Has links forget an operation that fails, before its memory is given back.
    fn cancel(&mut self, key: OpKey, links: &mut Links) {
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
    pub(super) fn haste(&self, links: &Links) -> Haste {
        if links.are_local() && !self.table.has_streams() {
            Haste::Memory
        } else if self.table.has_eager() {
            Haste::Message
        } else {
            Haste::Stream
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

impl Runtime {
    /// Starts an operation, whose links are up, in staging memory. What has come early for it is looked at after this.
    pub(super) fn start(&mut self, queued: Queued, memory: Range<usize>, prepared: Arc<Prepared>) {
        let Self { links, groups, ops, out, .. } = self;
        let Some(group) = groups.get_mut(queued.id.group) else { return };
        let (key, counts) = ops.table.reserve();
        let mapped = queued.mapped(ops.heap.as_deref());
        let (seats, rules) = (&group.settings.seats, ops.rules);
        let means = OperationMeans { prepared, mapped, memory, counts, seats, rules };
        let mut operation = Operation::new(key, queued, means);
        if operation.with_reducers() {
            links.introduce(group, operation.plan);
        }
        out.observer.began(&operation.id, ops.table.len() + 1);
        operation.start(&mut Io {
            endpoints: &mut links.endpoints,
            staging: &ops.staging,
            observer: &mut out.observer,
        });
        self.insert(operation);
    }

    /// Takes in an operation that has started, and what has come early for it.
    pub(super) fn insert(&mut self, operation: Operation) {
        let Self { links, groups, ops, backlog, out } = self;
        let (id, key) = (operation.id, operation.key);
        if let Some(group) = groups.get_mut(id.group) {
            group.running.insert(id.fingerprint.sequence, key);
            if operation.with_reducers() {
                group.running.with_reducers[usize::from(id.is_urgent())] += 1;
            }
        }
        operation.touches().into_iter().for_each(|touches| ops.touched.insert(touches));
        ops.awaited += usize::from(operation.caller.completion.is_some());
        ops.table.insert(operation);
        out.look_soon(Timer::Operations);
        backlog.take_early(&id, out);
        out.push(Todo::Run(key));
        // It may need what a rank that left has never sent.
        if !links.left.is_empty() {
            out.timers.ensure(Timer::Departures, out.now());
        }
    }

    /// Runs an operation as far as it can, and ends it if that was all.
    pub(super) fn run(&mut self, key: OpKey) {
        let Self { links, groups, ops, out, .. } = self;
        let me = links.rank;
        let Some((operation, mut io)) = ops.running(key, links, out) else { return };
        let sequence = operation.id.fingerprint.sequence;
        let may_run = |group: &&mut Group| group.state.may_run(sequence, operation.with_reducers());
        let Some(group) = groups.get_mut(operation.id.group).filter(may_run) else { return };
        let progress = operation.run(&mut io);
        if progress == ExecutionProgress::Running {
            io.observer.waited(&operation.id, || operation.missing());
        } else if let Some((ended, touches)) = ended(operation, Ok(())) {
            ops.released(touches);
            out.conclude(group, me, ended);
            if group.state.is_closed() {
                out.push(Todo::Forget(group.settings.id));
            }
        }
        if progress == ExecutionProgress::Over {
            self.end(key, Ok(()));
        }
    }

    /// An operation fails. Slots that others may still read stay until no member needs the group if `keep_memory`.
    pub(super) fn fail(&mut self, key: OpKey, error: &Error, keep_memory: bool) {
        let Self { links, groups, ops, out, .. } = self;
        ops.cancel(key, links);
        let Some(operation) = ops.table.get_mut(key) else { return };
        if let Some(group) = groups.get_mut(operation.id.group) {
            let kept = if keep_memory { std::mem::take(&mut operation.memory) } else { 0..0 };
            group.kept.extend((!kept.is_empty()).then_some(kept));
            if let Some((ended, touches)) = ended(operation, Err(error.clone())) {
                ops.released(touches);
                out.conclude(group, links.rank, ended);
            }
        }
        self.end(key, Err(error));
    }

    /// All operations of a group fail, with those of its carrier about which its ranks do not agree. Slots that others may still
    /// read stay until no member needs the group if `keep_memory`.
    pub(super) fn fail_group(&mut self, number: u32, error: &Error, keep_memory: bool) {
        self.fail_all_of(number, error, keep_memory);
        self.out.push(Todo::FailRedone { group: number, error: error.clone(), all: false });
    }

    /// The same without those of its carrier.
    pub(super) fn fail_all_of(&mut self, number: u32, error: &Error, keep_memory: bool) {
        let Some(group) = self.groups.get(number) else { return };
        let running: Vec<OpKey> = group.running.iter().map(|(_, key)| *key).collect();
        self.fail_queued(number, error);
        running.into_iter().for_each(|key| self.fail(key, error, keep_memory));
    }

    /// Takes an operation out, to be done in another way. Nobody reads its slots any more.
    pub(super) fn take_back(&mut self, key: OpKey) -> Option<(Queued, Arc<Prepared>)> {
        let Self { links, ops, .. } = self;
        ops.cancel(key, links);
        let operation = ops.table.get_mut(key)?;
        let prepared = operation.prepared().clone();
        let queued = operation.taken_back()?;
        ops.released(queued.touches.clone());
        self.end(key, Ok(()));
        Some((queued, prepared))
    }

    /// Forgets an operation and frees its memory.
    pub(super) fn end(&mut self, key: OpKey, result: Result<(), &Error>) {
        let Self { groups, ops, out, .. } = self;
        let Some(operation) = ops.table.remove(key) else { return };
        if !operation.is_workers() {
            out.observer.reduced(&operation.id, result);
        }
        let number = operation.id.group;
        if operation.caller.completion.is_some() {
            ops.released(operation.touches().cloned());
        }
        if let Some(group) = groups.get_mut(number) {
            let was_running = group.running.remove(operation.id.fingerprint.sequence, key);
            if was_running && operation.with_reducers() {
                group.running.with_reducers[usize::from(operation.id.is_urgent())] -= 1;
            }
            if group.state.is_closed() {
                out.push(Todo::Forget(number));
            }
        }
        ops.staging.give_back(operation.memory.clone());
        ops.table.recycle(operation.into_counts());
    }

    /// Hands to links what is queued for them. Returns whether they took anything.
    pub(super) fn flush(&mut self) -> bool {
        let Self { links, ops, out, .. } = self;
        links.flush(&mut Buffers { table: &mut ops.table, staging: &ops.staging }, out)
    }

    /// Hands to a socket what is queued for it. Returns whether it took anything.
    pub(super) fn flush_socket(&mut self, index: MemberId) -> bool {
        let Self { links, ops, out, .. } = self;
        links.flush_socket(index, &mut Buffers { table: &mut ops.table, staging: &ops.staging }, out)
    }
}

/// The end of an operation that somebody waits for.
fn ended(operation: &mut Operation, result: crate::Result<()>) -> Option<(Ended, Option<Touches>)> {
    let completion = operation.caller.completion.take()?;
    let touches = operation.release_buffers();
    let (id, plan, issued) = (operation.id, operation.plan, operation.caller.issued);
    Some((Ended { id, plan, completion: Some(completion), issued, result }, touches))
}

/// Where links find outgoing payloads.
struct Buffers<'a> {
    table: &'a mut Table,
    staging: &'a Staging,
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
