//! How groups agree about a failure, and which operations fail because of it.

use super::{
    failure::{explained, left_because},
    group::{Group, number_of},
    groups::Groups,
    introduced,
    outbox::{Deferred, Outbox},
    peer_waits::title,
    reducer::call_of,
    runtime::Runtime,
};
use crate::{
    Error, ErrorKind,
    core::{
        collective::Collective,
        element::{DType, ReduceOp},
        group::Rank,
        prepare::Call,
        session::{
            Cause, Ranks,
            control::{Message, Ordinal, Waiting},
            fence::{Member, Settled},
            group_state::{GroupFailure, GroupState, Output, Outputs},
            membership::MemberId,
        },
    },
    execute::operation::Operation,
    observe::Observer,
    transport::ticket::OpKey,
};
use std::{sync::Arc, time::Duration};

/// Of so many ranks is said where they wait.
const NAMED: usize = 4;

/// What the hub says about a group.
pub(super) fn heard_from_hub(runtime: &mut Runtime, number: u32, message: &Message) {
    let Runtime { groups, out, .. } = runtime;
    if let Message::Waiting(waiting) = message {
        groups.peer_waits.note(waiting, out.now());
    }
    match groups.get_mut(number) {
        Some(group) => group.state.receive(message, out),
        None => heard_early(runtime, number, message),
    }
}

/// The others of a group may disagree, or give up waiting, before this rank has made it: they are answered as by a rank that
/// has called nothing, whose first calls fail then. One that is named by a count, and in which others give up waiting, is never
/// made here: the next one that this rank makes is their next one.
fn heard_early(runtime: &mut Runtime, number: u32, message: &Message) {
    let Runtime { links, groups, backlog, out, .. } = runtime;
    let mut is_made = true;
    if let Message::Fence { ordinal, .. } = message {
        groups.unmade(number, *ordinal, links.rank);
    } else if let Message::Confirm(_) = message {
        groups.unmade(number, None, links.rank);
    }
    if let Message::Fence { cause, ordinal: Some(ordinal), .. } = message {
        is_made = groups.counts.has_made(*ordinal);
        if !is_made && matches!(cause, Cause::Timeout { .. }) {
            groups.counts.pass(*ordinal);
        }
    }
    let Some(state) = groups.unmade.get_mut(&number) else { return };
    let Some(settled) = state.receive_early(message, is_made, out) else { return };
    if let Cause::Unmade { .. } = *settled.cause {
        let ordinal = state.ordinal();
        groups.unmade.remove(&number);
        groups.forgotten.insert(number);
        backlog.redeliver(number, out);
        groups.end_all_named(ordinal, &settled.cause, out);
        out.put(number, Output::Tell(Message::Forget { group: number }));
    }
}

/// What a group wants done.
pub(super) fn perform(runtime: &mut Runtime, number: u32, output: Output) {
    let Runtime { links, groups, out, .. } = runtime;
    match output {
        Output::TellWorker(generation, cause) => {
            if let Some(group) = groups.get(number) {
                links.tell_worker(group, generation, cause);
                out.flushes = true;
            }
        }
        Output::Fail(failure) => {
            let Some(group) = groups.get(number) else { return };
            let (error, keep_memory) = (explained(&failure, group, links), !group.reduces());
            runtime.fail_group(number, &error, keep_memory);
        }
        Output::Settled(settled) => settle(runtime, number, &settled),
        output => out.put(number, output),
    }
}

/// Others wait in a call to which this rank has not come. They may wait for links to it that it has to make: what a call only
/// sends is to arrive also where nobody calls, and what waits for links holds up later calls of all groups.
pub(super) fn make_links_for(runtime: &mut Runtime, waiting: &Waiting) {
    let Runtime { links, groups, out, .. } = runtime;
    let is_to_come = |group: &&mut Group| {
        let sequence = waiting.fingerprint.sequence;
        let Group { state, .. } = group;
        let is_now = state.generation() == waiting.generation && !state.is_over();
        is_now && state.next() <= sequence
    };
    let Some(group) = groups.get_mut(waiting.group).filter(is_to_come) else { return };
    let planned = call_of(&waiting.fingerprint).and_then(|call| group.plan(call, &mut out.observer));
    if let Ok(planned) = planned
        && planned.fingerprint.plan == waiting.fingerprint.plan
    {
        let _are_up = links.are_up(&planned.partners, out);
    }
}

fn settle(runtime: &mut Runtime, number: u32, settled: &Settled) {
    let Runtime { links, groups, out, .. } = runtime;
    let cause = &settled.cause;
    let why_late = groups.why_late(cause, number, &out.observer);
    let Some(group) = groups.get_mut(number) else { return };
    if let Some(error) = why_late {
        group.explained = Some((cause.clone(), error));
    }
    let ordinal = group.state.ordinal();
    let error = explained(&GroupFailure::Decided(cause.clone()), group, links);
    // What has come of the next generation is there before anything is looked at that serves another group.
    runtime.backlog.redeliver(number, &mut runtime.out);
    runtime.fail_all_of(number, &error, cause.is_final());
    let Runtime { groups, out, .. } = runtime;
    out.push(Deferred::FailRedone { group: number, error, all: !cause.is_final() });
    out.observer.fenced(number, settled.generation, cause);
    if let Cause::Unmade { .. } = **cause {
        groups.end_all_named(ordinal, cause, out);
    }
    // It may have been closed, and waited for this.
    out.push(Deferred::Forget(number));
    out.finished = true;
}

/// A message of a group has waited for its timeout. If a member has not made the group, that is to come out as it does after
/// a call; it is asked under a number of its own, so nothing of the group fails if all have made it.
pub(super) fn ask_who_has_made(runtime: &mut Runtime, number: u32, after: Duration) {
    let Runtime { links, groups: Groups { groups, unmade, .. }, out, .. } = runtime;
    let Some(group) = groups.get_mut(&number) else { return };
    let Some(ordinal) = group.state.ordinal().filter(|_| !group.state.is_over()) else {
        return;
    };
    let barrier = Call::new(Collective::Barrier, DType::U8, ReduceOp::Sum, 0);
    let Ok(planned) = group.plan(barrier, &mut out.observer) else { return };
    let (operation, milliseconds, rank) = (planned.fingerprint, after.as_millis() as u64, links.rank);
    let question = number_of(&format!("who has made group {number:08x}"), group.settings.members());
    let member = || Member::new(question, rank, group.settings.ranks.clone()).named(Some(ordinal));
    let asking = unmade.entry(question).or_insert_with(|| GroupState::of_worker(member()));
    let cause = Cause::Timeout { rank, operation, milliseconds, waiting_for: Vec::new() };
    asking.dispute(cause, out);
}

/// A rank has died: its groups take no new operations, and those under way that need more of it fail, everywhere.
pub(super) fn lose(runtime: &mut Runtime, index: MemberId, reason: &str, hub_is_gone: bool) {
    if hub_is_gone {
        runtime.groups.lose_hub(&mut runtime.out);
    }
    let Some(rank) = runtime.links.endpoints[index].rank else { return };
    for number in runtime.groups.numbers_with(index) {
        let Runtime { groups, out, .. } = runtime;
        let Some(group) = groups.get_mut(number) else { continue };
        if group.state.lose(rank, reason, out) {
            // What waits for a decision in a repair group fails.
            out.push(Deferred::Served(number));
            fail_what_needs(runtime, number, index);
        }
    }
    runtime.out.finished = true;
}

fn fail_what_needs(runtime: &mut Runtime, number: u32, index: MemberId) {
    let Runtime { links, groups, ops, backlog, out } = runtime;
    let Some(group) = groups.get_mut(number) else { return };
    let needs = |(_, key): &&(u64, OpKey)| ops.needs(*key, index, group);
    let running: Vec<(u64, OpKey)> = group.running.iter().filter(needs).copied().collect();
    if running.is_empty() && !backlog.has_any(number) {
        return;
    }
    let error = group.failure(links).unwrap_or_else(|| Error::new(ErrorKind::Closed));
    group.state.fail_needing(running.iter().map(|(sequence, _)| *sequence), out);
    running.into_iter().for_each(|(_, key)| runtime.fail(key, &error, true));
    runtime.fail_queued(number, &error);
    runtime.out.push(Deferred::FailRedone { group: number, error, all: false });
}

/// Fails an operation if it needs more of an endpoint that has left. Returns whether it does.
pub(super) fn fail_if_departed(runtime: &mut Runtime, key: OpKey, index: MemberId) -> bool {
    let Runtime { links, groups, ops, out, .. } = runtime;
    let Some(operation) = ops.get(key).filter(|_| ops.is_awaited(key)) else { return false };
    let Some(group) = groups.get_mut(operation.id.group) else { return false };
    if !ops.needs(key, index, group) {
        return false;
    }
    // Where a member died, that is why this one left.
    let gone = group.state.gone().map(|gone| gone.ranks.clone());
    let ranks = gone.unwrap_or_else(|| links.ranks(&[index]));
    let left = || left_because(index, group.state.is_closed(), links);
    let error = group.failure(links).unwrap_or_else(left);
    group.state.fail(operation.id.fingerprint.sequence);
    group.state.dispute(Cause::PeerLost { ranks }, out);
    runtime.fail(key, &error, true);
    true
}

/// A link between workers broke and neither died: operations that need it fail, everywhere.
pub(super) fn dispute_all_with(runtime: &mut Runtime, index: MemberId, cause: &Cause) {
    let Runtime { groups, ops, backlog, out, .. } = runtime;
    for group in groups.groups.values_mut().filter(|group| group.has(index)) {
        let needs = |key: OpKey| ops.get(key).is_some_and(|operation: &Operation| operation.involves(index));
        if backlog.has_any(group.settings.id) || group.running.iter().any(|(_, key)| needs(*key)) {
            group.state.dispute(cause.clone(), out);
        }
    }
}

/// A reducer has lost a worker's link: operations cannot end here that were to use it. The workers know why. Groups of which the
/// worker has not spoken over that link go on: it may have given the link up long ago, and come to them over another one.
pub(super) fn drop_operations_with(runtime: &mut Runtime, index: MemberId) {
    for number in runtime.groups.numbers_with(index) {
        let Runtime { groups, out, .. } = runtime;
        if let Some(Group { state, .. }) = groups.get_mut(number)
            && state.reducer().is_some_and(|reducer| reducer.has_met(index))
        {
            state.end(GroupFailure::Closed, out);
        }
        // It goes on without this reducer, in another group, or introduces this one again.
        introduced::dropped_by(runtime, index, number);
    }
}

impl Groups {
    /// This rank, `me`, in a group that it has not made yet, of which others speak; nothing if the group is over.
    pub(super) fn unmade(
        &mut self,
        number: u32,
        ordinal: Option<Ordinal>,
        me: Rank,
    ) -> Option<&mut GroupState> {
        let Self { unmade, forgotten, rules, .. } = self;
        let member = || Member::new(number, me, Vec::new()).named(ordinal);
        let made = || GroupState::of_worker(member()).with_rules(*rules);
        (!forgotten.contains(&number)).then(|| unmade.entry(number).or_insert_with(made))
    }

    /// A group that a member has not made is over, with all that is a part of it: what carries its messages, and its lines.
    fn end_all_named(&mut self, ordinal: Option<Ordinal>, cause: &Arc<Cause>, out: &mut Outbox) {
        let is_part = |group: &&mut Group| group.state.ordinal() == ordinal && !group.state.is_over();
        for part in self.groups.values_mut().filter(|_| ordinal.is_some()).filter(is_part) {
            part.state.end(GroupFailure::Decided(cause.clone()), out);
        }
        out.finished = true;
    }

    /// In what calls of other groups these ranks wait instead of coming to a call of a group, and what to do about it; nothing if
    /// that is not known, as for groups that this rank is not in.
    pub(super) fn instead(&self, late: &[Rank], number: u32, observer: &Observer) -> Option<String> {
        let waits = |rank: &Rank| {
            let (other, call) = self.peer_waits.of(*rank, number, observer.now)?;
            let group = self.get(other).filter(|group| group.settings.serves.is_none())?;
            Some(format!("rank {rank} waits in {} of {}", group.settings.named(call), title(other, observer)))
        };
        let waits: Vec<String> = late.iter().filter_map(waits).take(NAMED).collect();
        (!waits.is_empty()).then(|| {
            format!(
                "{}; make all ranks make their groups, and call them, in the same order",
                waits.join(", ")
            )
        })
    }

    /// The error of a call that has waited for ranks which wait in calls of other groups, if it has.
    fn why_late(&self, cause: &Cause, number: u32, observer: &Observer) -> Option<Error> {
        let Cause::Timeout { rank, milliseconds, waiting_for, .. } = cause else { return None };
        let instead = self.instead(waiting_for, number, observer)?;
        let (after, which) = (Duration::from_millis(*milliseconds), title(number, observer));
        let missing = vec![format!("{} to make this call of {which}: {instead}", Ranks(waiting_for))];
        Some(Error::new(ErrorKind::Timeout { rank: *rank, after, missing }))
    }

    /// A thread has panicked in the engine, so nothing there is to be relied on: all groups end; everywhere, if this is a rank.
    pub(super) fn break_down(&mut self, me: Option<Rank>, out: &mut Outbox) {
        let cause = me.map(|rank| Arc::new(Cause::Panicked { rank }));
        for Group { state, .. } in self.groups.values_mut() {
            cause.iter().for_each(|cause| state.dispute(Cause::clone(cause), out));
            state.end(cause.clone().map_or(GroupFailure::Closed, GroupFailure::Decided), out);
        }
        out.finished = true;
    }

    pub(crate) fn numbers(&self) -> Vec<u32> {
        self.groups.keys().copied().collect()
    }

    /// The groups that an endpoint is in.
    fn numbers_with(&self, index: MemberId) -> Vec<u32> {
        let has = |group: &&Group| group.has(index);
        self.iter().filter(has).map(|group| group.settings.id).collect()
    }

    /// Nobody decides any more: groups that wait for a decision wait in vain.
    pub(super) fn lose_hub(&mut self, out: &mut Outbox) {
        self.hub_is_gone = true;
        self.groups.values_mut().for_each(|group| group.state.lose_hub(out));
        out.finished = true;
    }
}
