//! The engine: groups, operations and links of one process, driven by the thread that waits.
//!
//! It is one data structure without threads, blocking calls or a clock. A caller sets [the time](Engine::at), calls,
//! and takes the contents of the engine's [`Outbox`]: events for its surroundings, interests for the poller. The
//! [`node`](crate::node) around it decides which thread does that, and when to sleep.
//!
//! Operations of all kinds run with its [`Runtime`]: [`Links`], [`Groups`], [`Ops`], [`Backlog`] and [`Outbox`]. Above
//! it are messages between two ranks, the recoveries from lost reducers, and waiting threads; they are handed the
//! runtime. The runtime leaves requests to them, and work for later, in the outbox as a [`Deferred`]. The engine does
//! this work before it returns to its caller. So nothing calls back into what called it.

mod backlog;
mod begin;
mod buffers;
pub(crate) mod control;
mod counts;
mod disband;
mod early;
mod failure;
mod fences;
pub(crate) mod flight;
mod footprints;
pub(crate) mod group;
pub(crate) mod groups;
mod inbox;
mod introduced;
pub(crate) mod links;
pub(crate) mod messages;
pub(crate) mod ops;
pub(crate) mod outbox;
mod peer_waits;
mod plans;
mod port_reports;
mod queue;
mod rebalance;
mod recovery;
mod reducer;
pub(crate) mod refused;
pub(crate) mod rules;
pub(crate) mod runtime;
mod settings;
pub(crate) mod status;
pub(crate) mod straight;
mod table;
mod timers;
mod waits;

use crate::{
    Error, ErrorKind, Result,
    clock::Moment,
    completion::Completion,
    core::session::{
        control::Ordinal,
        membership::{MemberId, Roster},
        recovery::Resume,
    },
    execute::{
        issue::{Identity, Issue},
        staging::Staging,
    },
    observe::MessagePost,
    transport::{Broken, endpoint::Endpoints, stats::Stats},
};
use backlog::Backlog;
use group::Group;
use groups::Groups;
use links::{DRAINS, Links};
use messages::{Mail, Posted, ToOrFrom};
use ops::{Ops, WaitKind};
use outbox::{Deferred, Outbox};
use recovery::Recoveries;
use refused::Refused;
use rules::EngineRules;
use runtime::Runtime;
use std::sync::Arc;
use waits::Waits;

/// Groups, operations and links of one process.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) runtime: Runtime,
    pub(crate) messages: Mail,
    recoveries: Recoveries,
    /// Calls that were given up while their groups stood still, oldest first: they take their numbers when these go on.
    late: Vec<Issue>,
    waits: Waits,
    /// Whether this is a reducer: operations begin when a worker's first message comes.
    reduces: bool,
}

impl Engine {
    /// The engine of this member of a job, which is a reducer or not, and follows these rules.
    pub(crate) fn new(
        me: MemberId,
        endpoints: Endpoints,
        staging: Staging,
        reduces: bool,
        rules: EngineRules,
    ) -> Self {
        Self {
            runtime: Runtime {
                links: Links::new(me, endpoints),
                groups: Groups::new(rules.groups),
                ops: Ops::new(staging, rules.operations),
                backlog: Backlog::default(),
                out: Outbox::default(),
            },
            messages: Mail::default(),
            recoveries: Recoveries::default(),
            late: Vec::new(),
            waits: Waits::default(),
            reduces,
        }
    }

    /// The engine, at this moment.
    pub(crate) fn at(&mut self, now: Moment) -> &mut Self {
        self.runtime.out.observer.now = now;
        self
    }

    /// Whether nobody waits for anything here, nor for what is still queued for a link.
    pub(crate) fn is_idle(&self) -> bool {
        self.runtime.backlog.queue.is_empty()
            && !self.runtime.ops.has_awaited()
            && self.messages.is_idle()
            && !self.runtime.links.has_unsent()
    }

    /// Whether operations finished since this was last asked.
    pub(crate) fn take_finished(&mut self) -> bool {
        std::mem::take(&mut self.runtime.out.finished)
    }

    /// Ends `completion` when another rank has called the next operation of a group, or none can be called any more. The group
    /// is one in which ranks [agree](group::Service::Agreement): the next call of another one might be a successor's.
    pub(crate) fn watch(&mut self, number: u32, completion: Arc<Completion>) {
        match self.runtime.groups.get(number).filter(|group| !group.state.is_closed()) {
            Some(group) => {
                debug_assert_eq!(group.settings.serves, Some(group::Service::Agreement));
                self.runtime.out.finished |= self.runtime.backlog.watch(group, completion);
            }
            None => self.end_watch(&completion),
        }
    }

    /// Ends what waits for other ranks to call.
    pub(crate) fn end_watch(&mut self, completion: &Arc<Completion>) {
        self.runtime.backlog.unwatch(completion);
        completion.finish(Ok(()));
        self.runtime.out.finished = true;
    }

    /// Adds a group and hands it what came for it before.
    pub(crate) fn add_group(&mut self, group: Group) {
        let number = group.settings.id;
        if let Some(resume) = self.insert(group) {
            self.resume(number, resume);
        }
        self.catch_up();
    }

    /// Adds a group. Returns what the hub had decided of it before.
    fn insert(&mut self, group: Group) -> Option<Resume> {
        let number = group.settings.id;
        let Runtime { links, groups, backlog, out, .. } = &mut self.runtime;
        let resume = groups.add(group, links, out);
        backlog.redeliver(number, out);
        self.grow(number);
        resume
    }

    /// The hub has decided how a group goes on without a reducer.
    fn resume(&mut self, number: u32, resume: Resume) {
        let new = self.recoveries.resume(number, resume, &mut self.runtime);
        // Where this rank makes a group late, others may have gone through several after it.
        let decided: Vec<(u32, Resume)> =
            new.into_iter().filter_map(|group| Some((group.settings.id, self.insert(group)?))).collect();
        // What was under way goes on in a group that is closed, too: first it is handed to the others.
        self.catch_up();
        if self.runtime.groups.get(number).is_some_and(|group| group.state.is_closed()) {
            self.drop_group(number);
        }
        self.shorten(number);
        decided.into_iter().for_each(|(number, resume)| self.resume(number, resume));
    }

    /// A group has another one after it. The group before it, if that came after another one and takes no calls any more, is
    /// left out of their line, once nothing comes to light about its calls: who closes the line is told of the rest.
    fn shorten(&mut self, last: u32) {
        let before = |groups: &Groups, of: u32| {
            let is_before = |group: &&Group| group.state.replaced().is_some_and(|(_, by)| by == of);
            groups.iter().find(is_before).map(|group| group.settings.id)
        };
        let Some(middle) = before(&self.runtime.groups, last) else { return };
        let is_past = self.runtime.groups.get(middle).is_some_and(|group| group.state.is_past());
        let Some(first) = before(&self.runtime.groups, middle).filter(|_| is_past) else { return };
        if let Some(group) = self.runtime.groups.get_mut(first) {
            group.state.replaced_by(last);
        }
        let Self { runtime, recoveries, .. } = self;
        runtime.groups.drop_group(middle, &mut runtime.out);
        recoveries.close(middle, runtime);
        self.catch_up();
    }

    /// A group may be able to use reducers that it does not use.
    fn grow(&mut self, number: u32) {
        if !self.reduces {
            let Runtime { links, groups, out, .. } = &mut self.runtime;
            groups.get(number).into_iter().for_each(|group| links.grow(group, out));
        }
    }

    /// The members of the job have changed: reducers have come or are gone.
    pub(crate) fn renew(&mut self, roster: &Roster) {
        for gone in self.runtime.links.endpoints.renew(roster) {
            let reason = Broken::Io("another rank has lost it".to_owned());
            self.runtime.out.push(Deferred::Broken { endpoint: gone, reason });
            self.catch_up();
            // Groups may have been made since this rank has lost it itself.
            self.lose_reducer(gone);
        }
        self.runtime.groups.numbers().into_iter().for_each(|number| self.grow(number));
    }

    /// A reducer begins nothing more, as it says.
    fn drains(&mut self, index: MemberId) {
        let Runtime { links, groups, out, .. } = &mut self.runtime;
        links.endpoints[index].drains = true;
        groups.iter().for_each(|group| links.suspect(group, index, DRAINS, out));
    }

    /// The group whose next call a call of a group is: another one after it has lost a reducer.
    pub(crate) fn current(&self, mut number: u32) -> u32 {
        if !self.recoveries.have_begun() {
            return number;
        }
        while let Some(group) = self.runtime.groups.get(number)
            && let Some(next) = group.state.successor()
        {
            number = next;
        }
        number
    }

    /// Whether this rank finishes what a lost reducer has left.
    #[cfg(test)]
    pub(crate) fn redoes(&self) -> bool {
        self.recoveries.redone().next().is_some()
    }

    /// Whether there is a group of this number, or was one.
    pub(crate) fn has_had_group(&self, number: u32) -> bool {
        self.runtime.groups.has_had(number)
    }

    /// Names the next group of a kind, for which this number stands: all members that have made as many call it the same.
    pub(crate) fn name_next(&mut self, of: u32) -> Ordinal {
        self.runtime.groups.counts.name_next(of)
    }

    /// A message of a group has waited for a second.
    #[cfg(test)]
    pub(crate) fn message_is_late(&mut self, number: u32) {
        fences::ask_who_has_made(&mut self.runtime, number, std::time::Duration::from_secs(1));
    }

    /// What names a group, if it was [named so](Self::name_next), or is part of one that was.
    pub(crate) fn ordinal_of(&self, number: u32) -> Option<Ordinal> {
        self.runtime.groups.get(number)?.state.ordinal()
    }

    /// A group was closed, or its last handle is gone: nothing more is called in it here. What is under way goes on.
    pub(crate) fn drop_group(&mut self, number: u32) {
        // What serves another group goes on until that needs it no more.
        if self.messages.serves(number) || self.recoveries.carries(number) {
            return;
        }
        let Self { runtime, messages, recoveries, .. } = self;
        // A group that is forgotten has none any more.
        let lines = runtime.groups.lines_of(number);
        runtime.groups.drop_group(number, &mut runtime.out);
        messages.close(number, runtime);
        let successor = recoveries.close(number, runtime);
        self.catch_up();
        successor.into_iter().chain(lines).for_each(|other| self.drop_group(other));
    }

    /// As [`drop_group`](Self::drop_group), for a thread that waits until all members have made the same calls in what is closed with
    /// it. Returns the ends of that. What is under way ends before; if the last of it needs all members, nobody waits for that.
    pub(crate) fn close_group(&mut self, number: u32) -> Vec<Arc<Completion>> {
        let is_busy = |group: &Group| {
            let runs = group.running.iter().any(|(_, key)| self.runtime.ops.is_awaited(*key));
            runs || self.runtime.backlog.has_any(group.settings.id)
        };
        let hears_all = |group: &Group| group.state.hears_all(group.settings.me);
        let asks = |number: &u32| {
            !self.runtime.groups.get(*number).is_some_and(|group| is_busy(group) && hears_all(group))
        };
        let asking: Vec<u32> = self.family(number).into_iter().filter(asks).collect();
        let ends =
            asking.into_iter().filter_map(|number| self.runtime.groups.await_close_check(number)).collect();
        self.drop_group(number);
        ends
    }

    /// The same for all groups, after what is under way.
    pub(crate) fn close_all_groups(&mut self) -> Vec<Arc<Completion>> {
        let numbers = self.runtime.groups.numbers().into_iter();
        let ends = numbers.filter_map(|number| self.runtime.groups.await_close_check(number)).collect();
        self.drop_all_groups();
        ends
    }

    /// Nobody waits for these ends any more.
    pub(crate) fn end_close_checks(&mut self, ends: &[Arc<Completion>]) {
        let Runtime { groups, out, .. } = &mut self.runtime;
        groups.end_close_checks(ends, out);
        self.catch_up();
    }

    /// A group, and those that are closed with it.
    fn family(&self, number: u32) -> Vec<u32> {
        let mut family = vec![number];
        let mut at = 0;
        while let Some(&number) = family.get(at) {
            family.extend(self.runtime.groups.lines_of(number));
            let replaced = self.runtime.groups.get(number).and_then(|group| group.state.replaced());
            family.extend(replaced.map(|(_, by)| by));
            at += 1;
        }
        family
    }

    /// Fails what is under way in a group, on all its members. Nothing more is called in it here.
    pub(crate) fn abort_group(&mut self, number: u32) {
        self.abort(number, true);
    }

    /// Fails what is under way in a group here, which the others end as well. Nothing more is called in it.
    pub(crate) fn end_group(&mut self, number: u32) {
        self.abort(number, false);
    }

    fn abort(&mut self, number: u32, tells: bool) {
        let Self { runtime, messages, recoveries, .. } = self;
        let lines = runtime.groups.lines_of(number);
        disband::abort(runtime, number, tells);
        messages
            .abort(number, &mut runtime.out)
            .into_iter()
            .for_each(|served| disband::abort(runtime, served, tells));
        let others = recoveries.abort(number, &Error::new(ErrorKind::Closed), runtime);
        self.catch_up();
        others.into_iter().chain(lines).for_each(|other| self.abort(other, tells));
    }

    /// Another group of the same members is to take calls of a group that are a line of their own: it ends with that, and has its
    /// name. Returns whether the number is free.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] if the group takes no more calls.
    pub(crate) fn add_line(&mut self, of: u32, number: u32, what: &str) -> Result<bool> {
        if !self.runtime.groups.takes_calls(of) {
            return Err(Error::new(ErrorKind::Closed));
        }
        let name = format!("{}, {what}", self.runtime.out.observer.name_of(of));
        self.runtime.out.observer.name_group(number, &name);
        Ok(self.runtime.groups.add_line(of, number))
    }

    /// Whether this rank has a group of this number, and has not closed it.
    pub(crate) fn takes_calls(&self, number: u32) -> bool {
        self.runtime.groups.takes_calls(number)
    }

    /// The program is done with all groups.
    pub(crate) fn drop_all_groups(&mut self) {
        self.runtime.groups.numbers().into_iter().for_each(|number| self.drop_group(number));
    }

    /// Fails what is under way in all groups here, of which others hear as this rank leaves.
    pub(crate) fn end_all_groups(&mut self) {
        let numbers = self.runtime.groups.numbers().into_iter().chain(self.messages.groups());
        numbers.collect::<Vec<u32>>().into_iter().for_each(|number| self.end_group(number));
    }

    /// The operations and messages whose callers have not seen them end: how many, and the name of one.
    pub(crate) fn unfinished(&self) -> Option<(usize, String)> {
        match (self.unfinished_operations(), self.messages.unfinished(&self.runtime.groups)) {
            (Some((operations, name)), Some((messages, _))) => Some((operations + messages, name)),
            (operations, messages) => operations.or(messages),
        }
    }

    fn unfinished_operations(&self) -> Option<(usize, String)> {
        let running = self.runtime.ops.table.iter().filter(|operation| operation.caller.completion.is_some());
        let queued = self.runtime.backlog.queue.iter().map(|queued| queued.id);
        let inner = |id: &Identity| !self.recoveries.carries(id.group);
        let redone = self.recoveries.redone().map(|(_, redone)| redone.queued.id);
        let ids = running.map(|operation| operation.id).chain(queued).filter(inner).chain(redone);
        let ids: Vec<Identity> = ids.collect();
        let first = ids.iter().min_by_key(|id| id.fingerprint.sequence)?;
        let named = |group: &Group| group.settings.named(first.fingerprint).to_string();
        Some((ids.len(), self.runtime.groups.get(first.group).map_or(String::new(), named)))
    }

    /// Sends a message to a rank of a group, or receives one from it, or from any rank if none is named. The
    /// [channels](Mail::add_channel) that it may need are there.
    ///
    /// # Errors
    /// If the group is closed.
    pub(crate) fn post_message(
        &mut self,
        group: u32,
        to_or_from: ToOrFrom,
        called: Posted,
    ) -> Result<Arc<Completion>> {
        let (now, completion) = (self.runtime.out.now(), called.completion.clone());
        let me = self.runtime.groups.get(group).filter(|group| !group.state.is_closed());
        let me = me.map(|group| (group.settings.me, group.state.generation()));
        let (me, generation) = me.ok_or_else(|| Error::new(ErrorKind::Closed))?;
        let Self { runtime, messages, .. } = self;
        runtime.out.look_soon(timers::Timer::Operations);
        let (receives, peer) = match to_or_from {
            ToOrFrom::To(to) => (false, Some(to)),
            ToOrFrom::From(from) => (true, from),
        };
        let post = MessagePost { group, generation, receives, peer, envelope: called.envelope };
        let record = runtime.out.observer.posted(post, completion.clone());
        let called = Posted { issued: now, receives, record, ..called };
        match to_or_from {
            ToOrFrom::To(to) => messages.send(group, me, to, called, runtime),
            ToOrFrom::From(from) => messages.receive(group, me, from, called, runtime),
        }
        self.catch_up();
        Ok(completion)
    }

    /// Issues an operation and lets it run as far as it can. One that failed on other ranks before it was called here fails as
    /// it did there, when it is waited for: whoever issues several at once goes on with the next on all ranks.
    ///
    /// # Errors
    /// [`Refused::Frozen`] while its group stands still: to be tried again soon, with the same `frozen`, which says since when
    /// the call waits. It has failed when its timeout has passed.
    pub(crate) fn issue(
        &mut self,
        issue: &Issue,
        frozen: &mut Option<Moment>,
    ) -> Result<Arc<Completion>, Refused> {
        let result = self.issue_or_wait(issue);
        self.catch_up();
        if matches!(result, Err(Refused::Frozen)) {
            let since = *frozen.get_or_insert(self.runtime.out.now());
            return Err(self.give_up(issue, since).map_or(Refused::Frozen, Refused::Failed));
        }
        result
    }

    /// Why a call fails that waits since this moment for its group to go on, if it has waited for its timeout.
    fn give_up(&mut self, issue: &Issue, since: Moment) -> Option<Error> {
        let (current, waited) = (self.current(issue.group), self.runtime.out.now().since(since));
        let group = self.runtime.groups.get_mut(current)?;
        let after = issue.attrs.timeout.unwrap_or(group.settings.timeout);
        if waited < after {
            return None;
        }
        let mut called = group.plan(issue.call, &mut self.runtime.out.observer).ok()?.fingerprint;
        let earlier = self.late.iter().filter(|late| late.group == issue.group).count();
        called.sequence = group.state.next() + earlier as u64;
        let (rank, name) = (self.runtime.links.rank, group.settings.named(called));
        let error = Error::new(ErrorKind::Timeout { rank, after, missing: Vec::new() }).about(rank, name);
        // Nothing touches its buffers any more, which are the caller's again.
        self.late.push(Issue { fed: None, ..issue.clone() });
        self.runtime.out.look_soon(timers::Timer::Operations);
        self.runtime.out.observer.refused();
        Some(error)
    }

    /// Calls that were given up take their numbers, if their groups go on.
    fn issue_late(&mut self) {
        for issue in std::mem::take(&mut self.late) {
            let waits = self.late.iter().any(|earlier| earlier.group == issue.group);
            let late = Issue { group: self.current(issue.group), ..issue.clone() };
            let Runtime { groups, out, .. } = &mut self.runtime;
            let mut group = groups.get_mut(late.group);
            group.as_mut().into_iter().for_each(|group| group.take_ports());
            let issued = match group.is_some_and(|group| backlog::is_redone(group, late.call, out)) {
                _ if waits => Err(Refused::Frozen),
                true => self.recoveries.issue_late(&late, &mut self.runtime),
                false => self.runtime.issue_late(&late, Vec::new()),
            };
            if matches!(issued, Err(Refused::Frozen)) {
                self.late.push(issue);
            }
        }
    }

    fn issue_or_wait(&mut self, issue: &Issue) -> Result<Arc<Completion>, Refused> {
        self.issue_late();
        if self.late.iter().any(|earlier| earlier.group == issue.group) {
            return Err(Refused::Frozen);
        }
        let current = self.current(issue.group);
        let result = match current == issue.group {
            true => self.try_issue(issue),
            false => self.try_issue(&Issue { group: current, ..issue.clone() }),
        };
        match result {
            Err(Refused::Counted(error)) => Ok(Self::counted_as_failed(error)),
            result => {
                if matches!(result, Err(Refused::Failed(_))) {
                    self.runtime.out.observer.refused();
                }
                result
            }
        }
    }

    /// The end of an operation that has failed already.
    fn counted_as_failed(error: Error) -> Arc<Completion> {
        let completion = Arc::new(Completion::default());
        completion.finish(Err(error));
        completion
    }

    fn try_issue(&mut self, issue: &Issue) -> Result<Arc<Completion>, Refused> {
        let completion = Arc::new(Completion::default());
        issue.fed.iter().for_each(|fed| completion.commits(fed.clone()));
        self.runtime.issue(None, issue, completion.clone())?;
        Ok(completion)
    }

    /// What moved where, up to now.
    pub(crate) fn counted(&self) -> Stats {
        let mut stats = self.runtime.out.observer.counted();
        stats.most_staged = self.runtime.ops.staging.most_in_use() as u64;
        self.runtime.groups.iter().for_each(|group| group.count(&mut stats));
        stats
    }

    /// Moves what can move, but for what sockets have to say. Returns whether anything did.
    pub(crate) fn turn(&mut self) -> bool {
        let mut moved = false;
        let mut at = 0;
        while let Some(&index) = self.runtime.links.linked.get(at) {
            moved |= self.receive_shared(index);
            self.catch_up();
            at += 1;
        }
        if !self.runtime.backlog.queue.is_empty() {
            self.runtime.out.push(Deferred::Start);
            self.catch_up();
        }
        moved | self.flush()
    }

    /// Hands to links what is queued for them. Returns whether they took anything.
    fn flush(&mut self) -> bool {
        let moved = self.runtime.flush();
        self.catch_up();
        moved
    }

    /// Whether all links have taken what was queued for them.
    pub(crate) fn is_flushed(&mut self) -> bool {
        self.flush();
        !self.runtime.links.has_unsent()
    }

    /// How an answer can be expected to come, at the soonest.
    pub(crate) fn wait_kind(&self) -> WaitKind {
        self.runtime.ops.wait_kind(&self.runtime.links)
    }

    /// Does what is left to do.
    fn catch_up(&mut self) {
        loop {
            while let Some(deferred) = self.runtime.out.next() {
                self.perform(deferred);
            }
            if !std::mem::take(&mut self.runtime.out.flushes) {
                return;
            }
            self.runtime.flush();
        }
    }

    fn perform(&mut self, deferred: Deferred) {
        let Self { runtime, messages, recoveries, .. } = self;
        match deferred {
            Deferred::Run(key) => runtime.run(key),
            Deferred::FailRedone { group, error, all } => recoveries.fail_redone(group, &error, all, runtime),
            Deferred::Start => begin::start_ready(runtime),
            Deferred::Broken { endpoint, reason } => self.broken(endpoint, reason),
            Deferred::HandedOver(token) => {
                let Runtime { links, ops, out, .. } = runtime;
                if let Some((operation, _)) = ops.running(token.op, links, out) {
                    operation.delivered(token.ready);
                    out.push(Deferred::Run(token.op));
                }
            }
            Deferred::Redeliver(early) => self.redeliver(early),
            Deferred::Served(number) => {
                messages.step(number, runtime);
                recoveries.carried(number, runtime);
            }
            Deferred::Redo(number) => recoveries.redo(number, runtime),
            Deferred::Forget(number) => disband::forget_if_over(runtime, number),
            Deferred::Group(number, output) => fences::perform(runtime, number, *output),
        }
    }
}

#[cfg(test)]
mod tests;
