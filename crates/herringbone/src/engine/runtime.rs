//! The surroundings of operations: their groups, the links that carry them, the lines in which they wait, and the
//! outbox for later work. This module also runs an operation from the call to its end; it is begun
//! [elsewhere](super::begin).

use super::{
    backlog::Backlog,
    failure::{error, explained},
    group::Group,
    groups::Groups,
    links::Links,
    ops::{Buffers, Ops},
    outbox::{Deferred, Ended, Outbox},
    plans::ahead_of_slices,
    refused::Refused,
    timers::Timer,
};
use crate::{
    Error, ErrorKind,
    completion::Completion,
    core::{
        execution::ExecutionProgress,
        group::Rank,
        prepare::Prepared,
        session::{
            Cause,
            fence::{Issued, NotIssued},
            group_state::GroupFailure,
            membership::MemberId,
        },
        wire::Fingerprint,
    },
    execute::{
        io::Io,
        issue::{Caller, Footprint, Identity, Issue, NumberedCall, PlanKey, Queued},
        operation::{Operation, OperationMeans},
    },
    transport::ticket::OpKey,
};
use std::{ops::Range, sync::Arc};

/// What operations of all kinds run with.
#[derive(Debug)]
pub(crate) struct Runtime {
    pub(crate) links: Links,
    pub(crate) groups: Groups,
    pub(crate) ops: Ops,
    pub(super) backlog: Backlog,
    pub(crate) out: Outbox,
}

impl Runtime {
    /// Numbers a call, whose plan may be known, and adds it to what this rank has issued.
    pub(super) fn agree(&mut self, issue: &Issue, plan: Option<PlanKey>) -> Result<NumberedCall, Refused> {
        let Self { links, groups, out, .. } = self;
        let me = links.rank;
        let group = groups.get_mut(issue.group).filter(|group| !group.state.is_closed());
        let group =
            group.ok_or_else(|| Error::new(ErrorKind::Closed).about(me, issue.call.collective.name()))?;
        group.take_ports();
        let (planned, _) =
            group.plan_at(plan, issue.call, &mut out.observer).map_err(|error| error.at(me))?;
        let (plan, with_reducers, algorithm) = (planned.key, planned.with_reducers, planned.number);
        let mut fingerprint = match &issue.attrs.ahead_of {
            Some(call) => ahead_of_slices(call, planned.fingerprint.plan),
            None => planned.fingerprint,
        };
        (fingerprint.priority, fingerprint.mark) = (issue.attrs.priority, issue.attrs.mark);
        let purpose = group.settings.purpose(fingerprint.root);
        let numbered = |Issued { generation, hash, fingerprint }, out: &mut Outbox| {
            let number = out.observer.next();
            let id = Identity { group: issue.group, generation, hash, fingerprint, number };
            out.observer.issued(&id, algorithm, purpose);
            id
        };
        match group.state.issue(fingerprint, with_reducers, out) {
            Ok(issued) => {
                let id = numbered(issued, out);
                Ok(NumberedCall { id, plan, timeout: issue.attrs.timeout.unwrap_or(group.settings.timeout) })
            }
            Err(NotIssued::Counted(issued, failure)) => {
                let id = numbered(issued, out);
                let error = failed(&failure, group, id.fingerprint, links);
                out.observer.ended(&id, out.now(), &Err(error.clone()));
                Err(Refused::Counted(error))
            }
            Err(NotIssued::Frozen) => Err(Refused::Frozen),
            Err(NotIssued::Failed(failure)) => {
                fingerprint.sequence = group.state.next();
                Err(Refused::Failed(failed(&failure, group, fingerprint, links)))
            }
        }
    }

    /// A call that has waited for its timeout and was not issued takes its number and fails, everywhere: else the ranks' next
    /// calls would not meet.
    ///
    /// # Errors
    /// [`Refused::Counted`] once it has; else see [`agree`](Self::agree).
    pub(super) fn issue_late(&mut self, issue: &Issue, waiting_for: Vec<Rank>) -> Result<(), Refused> {
        let NumberedCall { id, timeout, .. } = self.agree(issue, None)?;
        let Self { links, groups, out, .. } = self;
        let Some(group) = groups.get_mut(issue.group) else { return Ok(()) };
        group.state.fail(id.fingerprint.sequence);
        let milliseconds = timeout.as_millis() as u64;
        let (rank, operation) = (links.rank, id.fingerprint);
        let cause = Cause::Timeout { rank, operation, milliseconds, waiting_for };
        let error = error(&cause, &[]);
        out.observer.ended(&id, out.now(), &Err(error.clone()));
        group.state.dispute(cause, out);
        Err(Refused::Counted(error))
    }

    /// Issues an operation, whose end `completion` will say: as the last one, or, if it finishes what an older one has left, in the
    /// place of that.
    ///
    /// # Errors
    /// See [`agree`](Self::agree).
    pub(super) fn issue(
        &mut self,
        order: Option<u64>,
        issue: &Issue,
        completion: Arc<Completion>,
    ) -> Result<(), Refused> {
        let agreed = self.agree(issue, None)?;
        let Self { groups, backlog, out, .. } = self;
        let id = agreed.id;
        let mut queued = Queued::new(agreed, issue, Some(completion), out.now());
        if groups.get_mut(id.group).is_some_and(|group| queued.is_redone(group, out)) {
            out.push(Deferred::Redo(id.group));
        }
        order.into_iter().for_each(|order| queued.set_order(order));
        backlog.queue.push(queued);
        out.look_soon(Timer::Operations);
        backlog.check_early(&id, out);
        out.push(Deferred::Start);
        out.flushes = true;
        Ok(())
    }

    /// Fails all operations of a group that have not started.
    pub(super) fn fail_queued(&mut self, number: u32, error: &Error) {
        let failed = self.backlog.queue.take_of(number, |_| true);
        failed.into_iter().for_each(|queued| self.not_started(queued, error));
    }

    /// Tells those that wait for an operation which has not started that it failed.
    pub(super) fn not_started(&mut self, queued: Queued, error: &Error) {
        let Self { links, groups, out, .. } = self;
        let Queued { id, plan, caller: Caller { completion, issued, .. }, .. } = queued;
        out.push(Deferred::Forget(id.group));
        match groups.get_mut(id.group) {
            Some(group) => {
                let result = Err(error.clone());
                out.conclude(group, links.rank, Ended { id, plan, completion, issued, result });
            }
            None => {
                out.observer.ended(&id, issued, &Err(error.clone()));
                completion.into_iter().for_each(|completion| completion.finish(Err(error.clone())));
            }
        }
    }

    /// Starts an operation, whose links are up, in staging memory. What has come early for it is looked at after this.
    pub(super) fn start(&mut self, queued: Queued, memory: Range<usize>, prepared: Arc<Prepared>) {
        let Self { links, groups, ops, out, .. } = self;
        let Some(group) = groups.get_mut(queued.id.group) else { return };
        let (key, counts) = ops.table.reserve();
        let mapped = queued.mapped(ops.heap.as_deref());
        let (ids, rules) = (&group.settings.ids, ops.rules);
        let means = OperationMeans { prepared, mapped, memory, counts, ids, rules };
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
        operation.footprint().into_iter().for_each(|footprint| ops.footprints.insert(footprint));
        ops.awaited += usize::from(operation.caller.completion.is_some());
        ops.table.insert(operation);
        out.look_soon(Timer::Operations);
        backlog.take_early(&id, out);
        out.push(Deferred::Run(key));
        // It may need what a rank that left has never sent.
        // A look at the next tick says whether it needs more of one of these.
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
        } else if let Some((ended, footprint)) = ended(operation, Ok(())) {
            ops.released(footprint);
            out.conclude(group, me, ended);
            if group.state.is_closed() {
                out.push(Deferred::Forget(group.settings.id));
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
            if let Some((ended, footprint)) = ended(operation, Err(error.clone())) {
                ops.released(footprint);
                out.conclude(group, links.rank, ended);
            }
        }
        self.end(key, Err(error));
    }

    /// All operations of a group fail, with those of its repair group about which its ranks do not agree. Slots that others may still
    /// read stay until no member needs the group if `keep_memory`.
    pub(super) fn fail_group(&mut self, number: u32, error: &Error, keep_memory: bool) {
        self.fail_all_of(number, error, keep_memory);
        self.out.push(Deferred::FailRedone { group: number, error: error.clone(), all: false });
    }

    /// The same without those of its repair group.
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
        ops.released(queued.footprint.clone());
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
            ops.released(operation.footprint().cloned());
        }
        if let Some(group) = groups.get_mut(number) {
            let was_running = group.running.remove(operation.id.fingerprint.sequence, key);
            if was_running && operation.with_reducers() {
                group.running.with_reducers[usize::from(operation.id.is_urgent())] -= 1;
            }
            if group.state.is_closed() {
                out.push(Deferred::Forget(number));
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
fn ended(operation: &mut Operation, result: crate::Result<()>) -> Option<(Ended, Option<Footprint>)> {
    let completion = operation.caller.completion.take()?;
    let footprint = operation.release_buffers();
    let (id, plan, issued) = (operation.id, operation.plan, operation.caller.issued);
    Some((Ended { id, plan, completion: Some(completion), issued, result }, footprint))
}

/// Why a call fails that would have become an operation.
#[cold]
fn failed(failure: &GroupFailure, group: &Group, called: Fingerprint, links: &Links) -> Error {
    explained(failure, group, links).about(links.rank, group.settings.named(called))
}
