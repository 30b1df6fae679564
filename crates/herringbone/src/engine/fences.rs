//! How groups agree about what went wrong, and what fails because of it.

use super::{
    backlog::Backlog,
    elsewhere::title,
    failure::{explained, left_because},
    group::{Group, number_of},
    groups::Groups,
    links::Links,
    ops::Ops,
    outbox::{Outbox, Todo},
    reducer::call_of,
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

impl Groups {
    /// What the hub says about a group.
    pub(super) fn told_by_hub(&mut self, number: u32, message: &Message, me: Rank, out: &mut Outbox) {
        if let Message::Waiting(waiting) = message {
            self.elsewhere.note(waiting, out.now());
        }
        match self.groups.get_mut(&number) {
            Some(group) => group.state.receive(message, out),
            None => self.told_early(number, message, me, out),
        }
    }

    /// What a group wants done.
    pub(super) fn perform(&mut self, number: u32, output: Output, links: &mut Links, out: &mut Outbox) {
        match output {
            Output::TellWorker(generation, cause) => {
                if let Some(group) = self.get(number) {
                    links.tell_worker(group, generation, cause);
                    out.push(Todo::Flush);
                }
            }
            Output::Fail(failure) => {
                let Some(group) = self.get(number) else { return };
                let (error, keep_memory) = (explained(&failure, group, links), !group.reduces());
                self.fail(number, &error, keep_memory, out);
            }
            Output::Settled(settled) => self.settled(number, &settled, links, out),
            output => out.put(number, output),
        }
    }

    /// Others wait in a call to which this rank has not come. They may wait for links to it that it has to make: what a call only
    /// sends is to arrive also where nobody calls, and what waits for links holds up later calls of all groups.
    pub(super) fn make_way(&mut self, waiting: &Waiting, (links, out): (&mut Links, &mut Outbox)) {
        let is_to_come = |group: &&mut Group| {
            let sequence = waiting.fingerprint.sequence;
            let Group { state, .. } = group;
            let is_now = state.generation() == waiting.generation && !state.is_over();
            is_now && state.next() <= sequence
        };
        let Some(group) = self.groups.get_mut(&waiting.group).filter(is_to_come) else { return };
        let planned = call_of(&waiting.fingerprint).and_then(|call| group.plan(call, &mut out.observer));
        if let Ok(planned) = planned
            && planned.fingerprint.plan == waiting.fingerprint.plan
        {
            let _are_up = links.are_up(&planned.partners, out);
        }
    }

    /// The others of a group may disagree, or give up waiting, before this rank has made it: they are answered as by a rank that
    /// has called nothing, whose first calls fail then. One that is named by a count, and in which others give up waiting, is never
    /// made here: the next one that this rank makes is their next one.
    fn told_early(&mut self, number: u32, message: &Message, me: Rank, out: &mut Outbox) {
        let mut is_made = true;
        if let Message::Fence { ordinal, .. } = message {
            self.unmade(number, *ordinal, me);
        } else if let Message::Confirm(_) = message {
            self.unmade(number, None, me);
        }
        if let Message::Fence { cause, ordinal: Some(ordinal), .. } = message {
            is_made = self.counts.has_made(*ordinal);
            if !is_made && matches!(cause, Cause::Timeout { .. }) {
                self.counts.pass(*ordinal);
            }
        }
        let Some(state) = self.unmade.get_mut(&number) else { return };
        let Some(settled) = state.receive_early(message, is_made, out) else { return };
        if let Cause::Unmade { .. } = *settled.cause {
            let ordinal = state.ordinal();
            self.unmade.remove(&number);
            self.forgotten.insert(number);
            out.push(Todo::RedeliverGroup(number));
            self.end_all_named(ordinal, &settled.cause, out);
            out.put(number, Output::Tell(Message::Forget { group: number }));
        }
    }

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

    fn settled(&mut self, number: u32, settled: &Settled, links: &Links, out: &mut Outbox) {
        let cause = &settled.cause;
        let why_late = self.why_late(cause, number, &out.observer);
        let Some(group) = self.get_mut(number) else { return };
        if let Some(error) = why_late {
            group.explained = Some((cause.clone(), error));
        }
        let ordinal = group.state.ordinal();
        let error = explained(&GroupFailure::Decided(cause.clone()), group, links);
        self.fail(number, &error, cause.is_final(), out);
        if !cause.is_final() {
            out.push(Todo::FailRedone { group: number, error });
        }
        out.observer.fenced(number, settled.generation, cause);
        if let Cause::Unmade { .. } = **cause {
            self.end_all_named(ordinal, cause, out);
        }
        out.push(Todo::RedeliverGroup(number));
        // It may have been closed, and waited for this.
        out.push(Todo::Forget(number));
        out.finished = true;
    }

    /// A group that a member has not made is over, with all that is a part of it: what carries its messages, and its lines.
    fn end_all_named(&mut self, ordinal: Option<Ordinal>, cause: &Arc<Cause>, out: &mut Outbox) {
        let is_part = |group: &&mut Group| group.state.ordinal() == ordinal && !group.state.is_over();
        for part in self.groups.values_mut().filter(|_| ordinal.is_some()).filter(is_part) {
            part.state.end(GroupFailure::Decided(cause.clone()), out);
        }
        out.finished = true;
    }

    /// A message of a group has waited for its timeout. If a member has not made the group, that is to come out as it does after
    /// a call; it is asked under a number of its own, so nothing of the group fails if all have made it.
    pub(super) fn ask_who_has_made(&mut self, number: u32, after: Duration, (me, out): (Rank, &mut Outbox)) {
        let Some(group) = self.groups.get_mut(&number) else { return };
        let Some(ordinal) = group.state.ordinal().filter(|_| !group.state.is_over()) else {
            return;
        };
        let barrier = Call::new(Collective::Barrier, DType::U8, ReduceOp::Sum, 0);
        let Ok(planned) = group.plan(barrier, &mut out.observer) else { return };
        let (operation, milliseconds) = (planned.fingerprint, after.as_millis() as u64);
        let question = number_of(&format!("who has made group {number:08x}"), group.settings.members());
        let member = || Member::new(question, me, group.settings.ranks.clone()).named(Some(ordinal));
        let asking = self.unmade.entry(question).or_insert_with(|| GroupState::of_worker(member()));
        let cause = Cause::Timeout { rank: me, operation, milliseconds, waiting_for: Vec::new() };
        asking.dispute(cause, out);
    }

    /// In what calls of other groups these ranks wait instead of coming to a call of a group, and what to do about it; nothing if
    /// that is not known, as for groups that this rank is not in.
    pub(super) fn instead(&self, late: &[Rank], number: u32, observer: &Observer) -> Option<String> {
        let waits = |rank: &Rank| {
            let (elsewhere, call) = self.elsewhere.of(*rank, number, observer.now)?;
            let group = self.get(elsewhere).filter(|group| group.settings.serves.is_none())?;
            Some(format!(
                "rank {rank} waits in {} of {}",
                group.settings.named(call),
                title(elsewhere, observer)
            ))
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
        let missing = vec![format!("{} to come to this call of {which}: {instead}", Ranks(waiting_for))];
        Some(Error::new(ErrorKind::Timeout { rank: *rank, after, missing }))
    }

    /// Fails all operations of a group. Slots that others may still read stay until no member needs the group if `keep_memory`.
    pub(super) fn fail(&self, number: u32, error: &Error, keep_memory: bool, out: &mut Outbox) {
        let Some(group) = self.get(number) else { return };
        out.push(Todo::FailQueued { group: number, error: error.clone() });
        for (_, key) in group.running.iter() {
            out.push(Todo::Fail { key: *key, error: error.clone(), keep_memory });
        }
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

    /// A rank has died: its groups take no new operations, and those under way that need more of it fail, everywhere.
    pub(super) fn lose(
        &mut self,
        index: MemberId,
        (reason, hub_is_gone): (&str, bool),
        (ops, backlog): (&Ops, &Backlog),
        (links, out): (&Links, &mut Outbox),
    ) {
        if hub_is_gone {
            self.lose_hub(out);
        }
        let Some(rank) = links.endpoints[index].rank else { return };
        for number in self.numbers_with(index) {
            let Some(group) = self.get_mut(number) else { continue };
            if group.state.lose(rank, reason, out) {
                // What waits for a decision in a carrier fails.
                out.push(Todo::Served(number));
                self.fail_what_needs(number, index, (ops, backlog), (links, out));
            }
        }
        out.finished = true;
    }

    /// Nobody decides any more: groups that wait for a decision wait in vain.
    pub(super) fn lose_hub(&mut self, out: &mut Outbox) {
        self.hub_is_gone = true;
        self.groups.values_mut().for_each(|group| group.state.lose_hub(out));
        out.finished = true;
    }

    fn fail_what_needs(
        &mut self,
        number: u32,
        index: MemberId,
        (ops, backlog): (&Ops, &Backlog),
        (links, out): (&Links, &mut Outbox),
    ) {
        let Some(group) = self.get(number) else { return };
        let needs = |(_, key): &&(u64, OpKey)| ops.needs(*key, index, self);
        let running: Vec<(u64, OpKey)> = group.running.iter().filter(needs).copied().collect();
        if running.is_empty() && !backlog.has_any(number) {
            return;
        }
        let error = group.failure(links).unwrap_or_else(|| Error::new(ErrorKind::Closed));
        for (_, key) in &running {
            out.push(Todo::Fail { key: *key, error: error.clone(), keep_memory: true });
        }
        out.push(Todo::FailQueued { group: number, error });
        let Some(group) = self.get_mut(number) else { return };
        group.state.fail_needing(running.into_iter().map(|(sequence, _)| sequence), out);
    }

    /// An operation needs more of an endpoint that has left.
    pub(super) fn fail_departed(
        &mut self,
        (number, sequence): (u32, u64),
        key: OpKey,
        index: MemberId,
        (links, out): (&Links, &mut Outbox),
    ) {
        let Some(group) = self.get_mut(number) else { return };
        // Where a member died, that is why this one left.
        let gone = group.state.gone().map(|gone| gone.ranks.clone());
        let ranks = gone.unwrap_or_else(|| links.ranks(&[index]));
        let left = || left_because(index, group.state.is_closed(), links);
        let error = group.failure(links).unwrap_or_else(left);
        out.push(Todo::Fail { key, error, keep_memory: true });
        group.state.fail(sequence);
        group.state.dispute(Cause::PeerLost { ranks }, out);
    }

    /// A link between workers broke and neither died: operations that need it fail, everywhere.
    pub(super) fn dispute_all_with(
        &mut self,
        index: MemberId,
        cause: &Cause,
        (ops, backlog): (&Ops, &Backlog),
        out: &mut Outbox,
    ) {
        for group in self.groups.values_mut().filter(|group| group.has(index)) {
            let needs =
                |key: OpKey| ops.get(key).is_some_and(|operation: &Operation| operation.involves(index));
            if backlog.has_any(group.settings.id) || group.running.iter().any(|(_, key)| needs(*key)) {
                group.state.dispute(cause.clone(), out);
            }
        }
    }

    /// A reducer has lost a worker: operations with it cannot end here. The workers know why.
    pub(super) fn drop_operations_with(&mut self, index: MemberId, out: &mut Outbox) {
        for number in self.numbers_with(index) {
            let group = self.get_mut(number);
            group.into_iter().for_each(|group| group.state.end(GroupFailure::Closed, out));
            // It goes on without this reducer, in another group.
            self.dropped_by(index, number, out);
        }
    }
}
