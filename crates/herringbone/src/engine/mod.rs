//! The engine: groups, operations and links of one process, driven by the thread that waits.
//!
//! It is one data structure without threads, blocking calls or a clock. A caller says [what time it is](Engine::at), calls,
//! and takes what the engine leaves in its [`Outbox`]: events for its surroundings, interests for the poller. The
//! [`node`](crate::node) around it decides which thread does that, and when to sleep.
//!
//! It has parts, each with a file of its own: [`Links`], [`Groups`], [`Ops`], [`Backlog`] and [`Outbox`]. A part is handed the
//! others that it needs. What it cannot do itself it leaves in the outbox as a [`Todo`], and the engine does that before it
//! returns to its caller. So no part calls back into the one that called it.

mod backlog;
mod begin;
mod buffers;
pub(crate) mod control;
mod counts;
mod disband;
mod early;
mod elsewhere;
mod failure;
mod fences;
pub(crate) mod group;
pub(crate) mod groups;
mod inbox;
pub(crate) mod links;
pub(crate) mod messages;
pub(crate) mod ops;
pub(crate) mod outbox;
mod plans;
mod queue;
mod recovery;
mod reducer;
pub(crate) mod refused;
pub(crate) mod rules;
mod settings;
pub(crate) mod status;
pub(crate) mod straight;
mod table;
mod timers;
mod touched;
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
    transport::{Broken, endpoint::Endpoints, stats::Stats},
};
use backlog::Backlog;
use group::Group;
use groups::Groups;
use links::{DRAINS, Links};
use messages::{Mail, Others, Posted, ToOrFrom};
use ops::{Haste, Ops};
use outbox::{Outbox, Todo};
use recovery::{EngineParts, Recoveries};
use refused::Refused;
use rules::EngineRules;
use std::sync::Arc;
use waits::Waits;

/// Groups, operations and links of one process.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) links: Links,
    pub(crate) groups: Groups,
    pub(crate) ops: Ops,
    backlog: Backlog,
    pub(crate) messages: Mail,
    recoveries: Recoveries,
    /// Calls that were given up while their groups stood still, oldest first: they take their numbers when these go on.
    late: Vec<Issue>,
    waits: Waits,
    pub(crate) out: Outbox,
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
            links: Links::new(me, endpoints),
            groups: Groups::new(rules.groups),
            ops: Ops::new(staging, rules.operations),
            backlog: Backlog::default(),
            messages: Mail::default(),
            recoveries: Recoveries::default(),
            late: Vec::new(),
            waits: Waits::default(),
            out: Outbox::default(),
            reduces,
        }
    }

    /// The engine, at this moment.
    pub(crate) fn at(&mut self, now: Moment) -> &mut Self {
        self.out.observer.now = now;
        self
    }

    /// Whether nobody waits for anything here, nor for what is still queued for a link.
    pub(crate) fn is_idle(&self) -> bool {
        self.backlog.queue.is_empty()
            && !self.ops.has_awaited()
            && self.messages.is_idle()
            && !self.links.has_unsent()
    }

    /// Whether operations finished since this was last asked.
    pub(crate) fn take_finished(&mut self) -> bool {
        std::mem::take(&mut self.out.finished)
    }

    /// Ends `completion` when another rank has called the next operation of a group, or none can be called any more. The group
    /// is one in which ranks [agree](group::Service::Agreement): the next call of another one might be an heir's.
    pub(crate) fn watch(&mut self, number: u32, completion: Arc<Completion>) {
        match self.groups.get(number).filter(|group| !group.state.is_closed()) {
            Some(group) => {
                debug_assert_eq!(group.settings.serves, Some(group::Service::Agreement));
                self.out.finished |= self.backlog.watch(group, completion);
            }
            None => self.end_watch(&completion),
        }
    }

    /// Ends what waits for other ranks to call.
    pub(crate) fn end_watch(&mut self, completion: &Arc<Completion>) {
        self.backlog.unwatch(completion);
        completion.finish(Ok(()));
        self.out.finished = true;
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
        let resume = self.groups.add(group, &self.links, &mut self.out);
        self.gain(number);
        self.out.push(Todo::RedeliverGroup(number));
        resume
    }

    /// The hub has decided how a group goes on without a reducer.
    fn resume(&mut self, number: u32, resume: Resume) {
        let Self { links, groups, ops, backlog, recoveries, out, .. } = self;
        let new = recoveries.resume(number, resume, &mut EngineParts { groups, ops, backlog, links, out });
        // Where this rank makes a group late, others may have gone through several after it.
        let decided: Vec<(u32, Resume)> =
            new.into_iter().filter_map(|group| Some((group.settings.id, self.insert(group)?))).collect();
        // What was under way goes on in a group that is closed, too: first it is handed to the others.
        self.catch_up();
        if self.groups.get(number).is_some_and(|group| group.state.is_closed()) {
            self.drop_group(number);
        }
        self.shorten(number);
        decided.into_iter().for_each(|(number, resume)| self.resume(number, resume));
    }

    /// A group has another one after it. The group before it, if that came after another one and takes no calls any more, is
    /// left out of their line, once it is known that all have called the same in it.
    fn shorten(&mut self, last: u32) {
        let before = |groups: &Groups, of: u32| {
            let is_before = |group: &&Group| group.state.replaced().is_some_and(|(_, by)| by == of);
            groups.iter().find(is_before).map(|group| group.settings.id)
        };
        let Some(middle) = before(&self.groups, last) else { return };
        let is_past = self.groups.get(middle).is_some_and(|group| group.state.is_past());
        let Some(first) = before(&self.groups, middle).filter(|_| is_past) else { return };
        if let Some(group) = self.groups.get_mut(first) {
            group.state.replaced_by(last);
        }
        self.groups.drop_group(middle, &mut self.out);
        let Self { links, groups, ops, backlog, recoveries, out, .. } = self;
        recoveries.close(middle, &mut EngineParts { groups, ops, backlog, links, out });
        self.catch_up();
    }

    /// A group may be able to use reducers that it does not use.
    fn gain(&mut self, number: u32) {
        if !self.reduces {
            self.groups.get(number).into_iter().for_each(|group| self.links.gain(group, &mut self.out));
        }
    }

    /// The members of the job have changed: reducers have come or are gone.
    pub(crate) fn renew(&mut self, roster: &Roster) {
        for gone in self.links.endpoints.renew(roster) {
            let reason = Broken::Io("another rank has lost it".to_owned());
            self.out.push(Todo::Broken { endpoint: gone, reason });
            self.catch_up();
            // Groups may have been made since this rank has lost it itself.
            self.lose_reducer(gone);
        }
        self.groups.numbers().into_iter().for_each(|number| self.gain(number));
    }

    /// A reducer begins nothing more, as it says.
    fn drains(&mut self, index: MemberId) {
        let Self { links, groups, out, .. } = self;
        links.endpoints[index].drains = true;
        groups.iter().for_each(|group| links.accuse(group, index, DRAINS, out));
    }

    /// The group whose next call a call of a group is: another one after it has lost a reducer.
    pub(crate) fn current(&self, mut number: u32) -> u32 {
        if !self.recoveries.have_begun() {
            return number;
        }
        while let Some(group) = self.groups.get(number)
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
        self.groups.has_had(number)
    }

    /// Names the next group of a kind, for which this number stands: all members that have made as many call it the same.
    pub(crate) fn name_next(&mut self, of: u32) -> Ordinal {
        self.groups.counts.name_next(of)
    }

    /// A message of a group has waited for a second.
    #[cfg(test)]
    pub(crate) fn message_is_late(&mut self, number: u32) {
        let (rank, after) = (self.links.rank, std::time::Duration::from_secs(1));
        self.groups.ask_who_has_made(number, after, (rank, &mut self.out));
    }

    /// What names a group, if it was [named so](Self::name_next), or is part of one that was.
    pub(crate) fn ordinal_of(&self, number: u32) -> Option<Ordinal> {
        self.groups.get(number)?.state.ordinal()
    }

    /// A group was closed, or its last handle is gone: nothing more is called in it here. What is under way goes on.
    pub(crate) fn drop_group(&mut self, number: u32) {
        // What serves another group goes on until that needs it no more.
        if self.messages.serves(number) || self.recoveries.carries(number) {
            return;
        }
        self.groups.drop_group(number, &mut self.out);
        let Self { links, groups, ops, backlog, messages, recoveries, out, .. } = self;
        messages.close(number, &mut Others { groups, backlog, links, out });
        let heir = recoveries.close(number, &mut EngineParts { groups, ops, backlog, links, out });
        self.catch_up();
        let lines = self.groups.lines_of(number);
        heir.into_iter().chain(lines).for_each(|other| self.drop_group(other));
    }

    /// As [`drop_group`](Self::drop_group), for a thread that waits until all members have made the same calls in what is closed with
    /// it. Returns the ends of that. What is under way ends before; if the last of it needs all members, nobody waits for that.
    pub(crate) fn close_group(&mut self, number: u32) -> Vec<Arc<Completion>> {
        let is_busy = |group: &Group| {
            let runs = group.running.iter().any(|(_, key)| self.ops.is_awaited(*key));
            runs || self.backlog.has_any(group.settings.id)
        };
        let hears_all = |group: &Group| group.state.hears_all(group.settings.me);
        let asks =
            |number: &u32| !self.groups.get(*number).is_some_and(|group| is_busy(group) && hears_all(group));
        let asking: Vec<u32> = self.family(number).into_iter().filter(asks).collect();
        let ends = asking.into_iter().filter_map(|number| self.groups.await_farewell(number)).collect();
        self.drop_group(number);
        ends
    }

    /// The same for all groups, after what is under way.
    pub(crate) fn close_all_groups(&mut self) -> Vec<Arc<Completion>> {
        let numbers = self.groups.numbers().into_iter();
        let ends = numbers.filter_map(|number| self.groups.await_farewell(number)).collect();
        self.drop_all_groups();
        ends
    }

    /// Nobody waits for these ends any more.
    pub(crate) fn end_farewells(&mut self, ends: &[Arc<Completion>]) {
        self.groups.end_farewells(ends, &mut self.out);
        self.catch_up();
    }

    /// A group, and those that are closed with it.
    fn family(&self, number: u32) -> Vec<u32> {
        let mut family = vec![number];
        let mut at = 0;
        while let Some(&number) = family.get(at) {
            family.extend(self.groups.lines_of(number));
            let replaced = self.groups.get(number).and_then(|group| group.state.replaced());
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
        self.groups.abort(number, tells, &self.ops, &mut self.out);
        for served in self.messages.abort(number, &mut self.out) {
            self.groups.abort(served, tells, &self.ops, &mut self.out);
        }
        let Self { links, groups, ops, backlog, recoveries, out, .. } = self;
        let closed = Error::new(ErrorKind::Closed);
        let others = recoveries.abort(number, &closed, &mut EngineParts { groups, ops, backlog, links, out });
        self.catch_up();
        let lines = self.groups.lines_of(number);
        others.into_iter().chain(lines).for_each(|other| self.abort(other, tells));
    }

    /// Another group of the same members is to take calls of a group that are a line of their own: it ends with that, and has its
    /// name. Returns whether the number is free.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] if the group takes no more calls.
    pub(crate) fn add_line(&mut self, of: u32, number: u32, what: &str) -> Result<bool> {
        if !self.groups.takes_calls(of) {
            return Err(Error::new(ErrorKind::Closed));
        }
        let name = format!("{}, {what}", self.out.observer.name_of(of));
        self.out.observer.name_group(number, &name);
        Ok(self.groups.add_line(of, number))
    }

    /// Whether this rank has a group of this number, and has not closed it.
    pub(crate) fn takes_calls(&self, number: u32) -> bool {
        self.groups.takes_calls(number)
    }

    /// The program is done with all groups.
    pub(crate) fn drop_all_groups(&mut self) {
        self.groups.numbers().into_iter().for_each(|number| self.drop_group(number));
    }

    /// Fails what is under way in all groups here, of which others hear as this rank leaves.
    pub(crate) fn end_all_groups(&mut self) {
        let numbers = self.groups.numbers().into_iter().chain(self.messages.groups());
        numbers.collect::<Vec<u32>>().into_iter().for_each(|number| self.end_group(number));
    }

    /// The operations and messages whose callers have not seen them end: how many, and the name of one.
    pub(crate) fn unfinished(&self) -> Option<(usize, String)> {
        match (self.unfinished_operations(), self.messages.unfinished(&self.groups)) {
            (Some((operations, name)), Some((messages, _))) => Some((operations + messages, name)),
            (operations, messages) => operations.or(messages),
        }
    }

    fn unfinished_operations(&self) -> Option<(usize, String)> {
        let running = self.ops.table.iter().filter(|operation| operation.caller.completion.is_some());
        let queued = self.backlog.queue.iter().map(|queued| queued.id);
        let inner = |id: &Identity| !self.recoveries.carries(id.group);
        let redone = self.recoveries.redone().map(|(_, redone)| redone.queued.id);
        let ids = running.map(|operation| operation.id).chain(queued).filter(inner).chain(redone);
        let ids: Vec<Identity> = ids.collect();
        let first = ids.iter().min_by_key(|id| id.fingerprint.sequence)?;
        let named = |group: &Group| group.settings.named(first.fingerprint).to_string();
        Some((ids.len(), self.groups.get(first.group).map_or(String::new(), named)))
    }

    /// Sends a message to a rank of a group, or receives one from it, or from any rank if none is named. The
    /// [channels](Mail::add_channel) that it may need are there.
    ///
    /// # Errors
    /// If the group is closed.
    pub(crate) fn exchange(
        &mut self,
        group: u32,
        to_or_from: ToOrFrom,
        called: Posted,
    ) -> Result<Arc<Completion>> {
        let (now, completion) = (self.out.now(), called.completion.clone());
        let me = self.groups.get(group).filter(|group| !group.state.is_closed());
        let me = me.map(|group| group.settings.me).ok_or_else(|| Error::new(ErrorKind::Closed))?;
        let Self { links, groups, backlog, messages, out, .. } = self;
        out.look_soon(timers::Timer::Operations);
        let called = Posted { issued: now, ..called };
        let mut others = Others { groups, backlog, links, out };
        match to_or_from {
            ToOrFrom::To(to) => messages.send((group, me), to, called, &mut others),
            ToOrFrom::From(from) => messages.receive((group, me), from, called, &mut others),
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
            let since = *frozen.get_or_insert(self.out.now());
            return Err(self.give_up(issue, since).map_or(Refused::Frozen, Refused::Failed));
        }
        result
    }

    /// Why a call fails that waits since this moment for its group to go on, if it has waited for its timeout.
    fn give_up(&mut self, issue: &Issue, since: Moment) -> Option<Error> {
        let (current, waited) = (self.current(issue.group), self.out.now().since(since));
        let group = self.groups.get_mut(current)?;
        let after = issue.manner.timeout.unwrap_or(group.settings.timeout);
        if waited < after {
            return None;
        }
        let mut called = group.plan(issue.call, &mut self.out.observer).ok()?.fingerprint;
        let earlier = self.late.iter().filter(|late| late.group == issue.group).count();
        called.sequence = group.state.next() + earlier as u64;
        let (rank, name) = (self.links.rank, group.settings.named(called));
        let error = Error::new(ErrorKind::Timeout { rank, after, missing: Vec::new() }).about(rank, name);
        // Nothing touches its buffers any more, which are the caller's again.
        self.late.push(Issue { fed: None, ..issue.clone() });
        self.out.look_soon(timers::Timer::Operations);
        self.out.observer.refused();
        Some(error)
    }

    /// Calls that were given up take their numbers, if their groups go on.
    fn issue_late(&mut self) {
        for issue in std::mem::take(&mut self.late) {
            let waits = self.late.iter().any(|earlier| earlier.group == issue.group);
            let late = Issue { group: self.current(issue.group), ..issue.clone() };
            let Self { links, groups, ops, backlog, recoveries, out, .. } = self;
            let group = groups.get_mut(late.group);
            let issued = match group.is_some_and(|group| backlog::is_redone(group, late.call, out)) {
                _ if waits => Err(Refused::Frozen),
                true => recoveries.issue_late(&late, &mut EngineParts { groups, ops, backlog, links, out }),
                false => groups.issue_late(&late, Vec::new(), (links, out)),
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
                    self.out.observer.refused();
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
        let Self { links, groups, backlog, out, .. } = self;
        backlog.issue(None, issue, completion.clone(), groups, (links, out))?;
        Ok(completion)
    }

    /// What moved where, up to now.
    pub(crate) fn counted(&self) -> Stats {
        let mut stats = self.out.observer.counted();
        stats.most_staged = self.ops.staging.most_in_use() as u64;
        self.groups.iter().for_each(|group| group.count(&mut stats));
        stats
    }

    /// Moves what can move, but for what sockets have to say. Returns whether anything did.
    pub(crate) fn turn(&mut self) -> bool {
        let mut moved = false;
        let mut at = 0;
        while let Some(&index) = self.links.linked.get(at) {
            moved |= self.receive_shared(index);
            self.catch_up();
            at += 1;
        }
        if !self.backlog.queue.is_empty() {
            self.out.push(Todo::Start);
            self.catch_up();
        }
        moved | self.flush()
    }

    /// Hands to links what is queued for them. Returns whether they took anything.
    fn flush(&mut self) -> bool {
        let moved = self.ops.flush(&mut self.links, &mut self.out);
        self.catch_up();
        moved
    }

    /// Whether all links have taken what was queued for them.
    pub(crate) fn is_flushed(&mut self) -> bool {
        self.flush();
        !self.links.has_unsent()
    }

    /// How an answer can be expected to come, at the soonest.
    pub(crate) fn haste(&self) -> Haste {
        self.ops.haste(&self.links)
    }

    /// Does what the parts have left to do.
    fn catch_up(&mut self) {
        while let Some(todo) = self.out.next() {
            self.perform(todo);
        }
    }

    fn perform(&mut self, todo: Todo) {
        let Self { links, groups, ops, backlog, messages, recoveries, out, .. } = self;
        match todo {
            Todo::Run(key) => ops.run(key, groups, (links, out)),
            Todo::Started(key) => {
                if let Some(operation) = ops.get(key) {
                    backlog.take_early(&operation.id, out);
                }
                out.push(Todo::Run(key));
                out.push(Todo::Missed(key));
            }
            Todo::Missed(key) => self.fail_if_any_departed(key),
            Todo::Fail { key, error, keep_memory } => {
                ops.fail(key, (&error, keep_memory), groups, (links, out));
            }
            Todo::FailQueued { group, error } => {
                backlog.fail_queued(group, &error, groups, (links, out));
                let parts = &mut EngineParts { groups, ops, backlog, links, out };
                recoveries.fail_disputed(group, &error, parts);
            }
            Todo::FailRedone { group, error } => {
                recoveries.fail_redone(group, &error, &mut EngineParts { groups, ops, backlog, links, out });
            }
            Todo::NotStarted { queued, error } => {
                if let Some(group) = groups.get_mut(queued.id.group) {
                    group.state.fail(queued.id.fingerprint.sequence);
                }
                backlog::not_started(*queued, &error, groups, (links, out));
            }
            Todo::Start => backlog.start_ready(groups, ops, (links, out)),
            Todo::Broken { endpoint, reason } => self.broken(endpoint, reason),
            Todo::HandedOver(token) => {
                if let Some((operation, _)) = ops.running(token.op, links, out) {
                    operation.delivered(token.ready);
                    out.push(Todo::Run(token.op));
                }
            }
            Todo::Redeliver(early) => self.redeliver(early),
            Todo::RedeliverGroup(number) => {
                let early = backlog.early.take_group(number);
                self.redeliver(early);
                self.out.push(Todo::Served(number));
            }
            Todo::Served(number) => {
                messages.step(number, &mut Others { groups, backlog, links, out });
                recoveries.carried(number, &mut EngineParts { groups, ops, backlog, links, out });
            }
            Todo::Redo(number) => {
                recoveries.redo(number, &mut EngineParts { groups, ops, backlog, links, out });
            }
            Todo::Forget(number) if backlog.has_any(number) => {}
            Todo::Forget(number) => {
                groups.forget_if_over(number, ops, (links, out));
                if groups.get(number).is_none() {
                    backlog.queue.forget(number);
                }
            }
            Todo::Departed => {
                backlog.start_ready(groups, ops, (links, out));
                out.finished = true;
            }
            Todo::Group(number, output) => groups.perform(number, *output, links, out),
            Todo::Flush => drop(ops.flush(links, out)),
        }
    }
}

#[cfg(test)]
mod tests;
