//! How groups agree about what went wrong, and what fails because of it.

use super::{
    backlog::Backlog,
    doom::{Doom, GONE, error},
    elsewhere::title,
    group::{Group, number_of},
    groups::Groups,
    links::Links,
    ops::Ops,
    outbox::{Event, Outbox, Todo},
    timers::Timer,
    told::call_of,
};
use crate::{
    Error, ErrorKind,
    core::{
        collective::Collective,
        element::{DType, ReduceOp},
        group::Rank,
        prepare::Call,
        session::{
            Cause, Mismatch, Ranks,
            control::{Message, Ordinal, Report, Waiting},
            fence::{Action, Member, Settled},
            membership::MemberId,
        },
    },
    execute::operation::Operation,
    observe::Observer,
    transport::{endpoint::Endpoint, ticket::OpKey},
};
use std::time::Duration;

/// How long operations before a disputed one have to end.
const AGREED_END: Duration = Duration::from_secs(1);
/// How long operations may stand still after the hub's death, which needed nothing of it themselves.
const GRACE: Duration = Duration::from_millis(300);

/// Of so many ranks is said where they wait.
const NAMED: usize = 4;

/// Why a rank is missed that left in order.
const LEFT: &str = "it left, by close() or the end of its program";

/// The operation before which all end first when a fence is called for.
fn disputed(cause: &Cause) -> Option<u64> {
    match cause {
        Cause::Mismatch(Mismatch { sequence, .. }) | Cause::ReducerLost { sequence, .. } => Some(*sequence),
        Cause::Uneven { operation, .. } | Cause::Memory { operation, .. } | Cause::Left { operation, .. } => {
            Some(operation.sequence)
        }
        Cause::Aborted { sequence, .. } => Some(*sequence),
        _ => None,
    }
}

impl Groups {
    /// Something went wrong in a generation of a group: what to tell the hub, unless that generation is over.
    pub(super) fn dispute(&mut self, number: u32, generation: u32, cause: Cause) -> Option<Message> {
        let member = &mut self.get_mut(number)?.member;
        if member.generation() == generation { member.dispute(cause) } else { None }
    }

    /// What the hub says about a group, and what this rank answers.
    pub(super) fn told_by_hub(
        &mut self,
        number: u32,
        message: &Message,
        (links, out): (&Links, &mut Outbox),
    ) -> Option<Message> {
        if let Message::Confirm(question) = message
            && !self.rules.compares_calls
        {
            return Some(Message::Confirmed(question.confirmed()));
        }
        if let Message::Waiting(waiting) = message {
            self.elsewhere.note(waiting, out.now());
        }
        let Some(group) = self.groups.get_mut(&number) else {
            return self.told_early(number, message, (links.rank, out));
        };
        // The hub does not wait for a rank that has aborted. What that has left to be read goes on, for earlier calls of others.
        if group.ending.is_aborted {
            return None;
        }
        if let Message::Fence { generation, cause, .. } = message
            && let Some(sequence) = disputed(cause)
            && *generation == group.member.generation()
            && group.unanswered.is_none()
        {
            group.frozen = Some(sequence);
            group.unanswered = Some(message.clone());
            out.after(Timer::Answer(number), AGREED_END);
            out.push(Todo::Answer(number));
            return None;
        }
        match group.member.receive(message) {
            Action::Nothing => {
                out.answer(group);
                if let Message::Confirm(_) = message {
                    // It may have been closed without the call that this asks for.
                    out.push(Todo::Forget(number));
                }
                None
            }
            Action::Send(answer) => {
                if matches!(message, Message::Fence { .. }) {
                    group.frozen = Some(0);
                }
                Some(answer)
            }
            Action::Settled(settled) => {
                self.settle(number, &settled, (links, out));
                None
            }
            Action::Confirmed => {
                out.push(Todo::Forget(number));
                None
            }
        }
    }

    /// Others wait in a call to which this rank has not come. They may wait for links to it that it has to make: what a call only
    /// sends is to arrive also where nobody calls, and what waits for links holds up later calls of all groups.
    pub(super) fn make_way(&mut self, waiting: &Waiting, (links, out): (&mut Links, &mut Outbox)) {
        let is_to_come = |group: &&mut Group| {
            let sequence = waiting.fingerprint.sequence;
            group.generation() == waiting.generation && group.member.next() <= sequence && !group.is_lost()
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
    fn told_early(
        &mut self,
        number: u32,
        message: &Message,
        (me, out): (Rank, &mut Outbox),
    ) -> Option<Message> {
        let mut is_made = true;
        if matches!(message, Message::Fence { .. } | Message::Confirm(_)) && !self.forgotten.contains(&number)
        {
            let ordinal = if let Message::Fence { ordinal, .. } = message { *ordinal } else { None };
            self.unmade.entry(number).or_insert_with(|| Member::new(number, me, Vec::new()).named(ordinal));
        }
        if let Message::Fence { cause, ordinal: Some(ordinal), .. } = message {
            is_made = self.counts.has_made(*ordinal);
            if !is_made && matches!(cause, Cause::Timeout { .. }) {
                self.counts.pass(*ordinal);
            }
        }
        match self.unmade.get_mut(&number)?.receive(message) {
            Action::Send(Message::Report(report)) => Some(Message::Report(Report { is_made, ..report })),
            Action::Send(answer) => Some(answer),
            Action::Settled(settled) if matches!(*settled.cause, Cause::Unmade { .. }) => {
                let ordinal = self.unmade.remove(&number).and_then(|member| member.ordinal());
                self.forgotten.insert(number);
                out.push(Todo::RedeliverGroup(number));
                self.end_all_named(ordinal, &settled.cause, out);
                Some(Message::Forget { group: number })
            }
            Action::Nothing | Action::Settled(_) | Action::Confirmed => None,
        }
    }

    /// Answers a fence once the operations before a disputed one have ended, also those that are to be called yet: they were
    /// agreed on, or need no reducer. If they do not end in time (`late`), something was wrong before, or this rank is late.
    pub(super) fn answer(&mut self, number: u32, late: bool, out: &mut Outbox) {
        let Some(group) = self.groups.get_mut(&number) else { return };
        if !late && !group.member.has_completed(group.frozen.unwrap_or(0)) {
            return;
        }
        let Some(message) = group.unanswered.take() else { return };
        out.timers.clear(Timer::Answer(number));
        group.frozen = Some(0);
        if let Action::Send(answer) = group.member.receive(&message) {
            out.events.push(Event::ToHub(answer));
        }
    }

    fn settle(&mut self, number: u32, settled: &Settled, (links, out): (&Links, &mut Outbox)) {
        let Some(group) = self.get(number) else { return };
        let mut error = error_of(&settled.cause, group, links);
        if let Some(explained) = self.explained(&settled.cause, number, &out.observer) {
            self.elsewhere.keep(number, &settled.cause, &explained);
            error = explained;
        }
        let is_final = settled.cause.is_final();
        self.fail(number, &error, is_final, out);
        if !is_final {
            out.push(Todo::FailRedone { group: number, error: error.clone() });
        }
        if let Some(group) = self.get_mut(number) {
            (group.frozen, group.unanswered) = (None, None);
            out.observer.fenced(number, group.generation(), &settled.cause);
            out.timers.clear(Timer::Answer(number));
            match &*settled.cause {
                Cause::ReducerLost { .. } => group.without_reducers = Some(error),
                _ if is_final => group.lost = Some(error),
                _ => {}
            }
        }
        if matches!(*settled.cause, Cause::Unmade { .. }) {
            let ordinal = self.get(number).and_then(|group| group.member.ordinal());
            self.end_all_named(ordinal, &settled.cause, out);
        }
        out.push(Todo::RedeliverGroup(number));
        // It may have been closed, and waited for this.
        out.push(Todo::Forget(number));
        out.finished = true;
    }

    /// A group that a member has not made is over, with all that is a part of it: what carries its messages, and its lines.
    fn end_all_named(&mut self, ordinal: Option<Ordinal>, cause: &Cause, out: &mut Outbox) {
        let is_part = |group: &&Group| group.member.ordinal() == ordinal && !group.is_lost();
        let parts: Vec<u32> = self.iter().filter(is_part).map(|group| group.settings.id).collect();
        for part in parts.into_iter().filter(|_| ordinal.is_some()) {
            self.close(part, &error(cause, &[]), out);
        }
        out.finished = true;
    }

    /// A message of a group has waited for its timeout. If a member has not made the group, that is to come out as it does after
    /// a call; it is asked under a number of its own, so nothing of the group fails if all have made it.
    pub(super) fn ask_who_has_made(&mut self, number: u32, after: Duration, (me, out): (Rank, &mut Outbox)) {
        let Some(group) = self.groups.get_mut(&number).filter(|group| !group.is_lost()) else { return };
        let Some(ordinal) = group.member.ordinal() else { return };
        let barrier = Call::new(Collective::Barrier, DType::U8, ReduceOp::Sum, 0);
        let Ok(planned) = group.plan(barrier, &mut out.observer) else { return };
        let (operation, milliseconds) = (planned.fingerprint, after.as_millis() as u64);
        let question = number_of(&format!("who has made group {number:08x}"), group.settings.members());
        let asking = || Member::new(question, me, group.settings.ranks.clone()).named(Some(ordinal));
        let member = self.unmade.entry(question).or_insert_with(asking);
        let cause = Cause::Timeout { rank: me, operation, milliseconds, waiting_for: Vec::new() };
        out.events.extend(member.dispute(cause).map(Event::ToHub));
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
    fn explained(&self, cause: &Cause, number: u32, observer: &Observer) -> Option<Error> {
        let Cause::Timeout { rank, milliseconds, waiting_for, .. } = cause else { return None };
        let instead = self.instead(waiting_for, number, observer)?;
        let (after, which) = (Duration::from_millis(*milliseconds), title(number, observer));
        let missing = vec![format!("{} to come to this call of {which}: {instead}", Ranks(waiting_for))];
        Some(Error::new(ErrorKind::Timeout { rank: *rank, after, missing }))
    }

    /// Fails all operations of a group. Slots that others may still read stay until no member needs the group if `keep_memory`.
    fn fail(&mut self, number: u32, error: &Error, keep_memory: bool, out: &mut Outbox) {
        let Some(group) = self.get(number) else { return };
        out.push(Todo::FailQueued { group: number, error: error.clone() });
        for (_, key) in group.running.iter() {
            out.push(Todo::Fail { key: *key, error: error.clone(), keep_memory });
        }
    }

    /// Fails everything of one group, for ever.
    pub(super) fn close(&mut self, number: u32, error: &Error, out: &mut Outbox) {
        let keep_memory = self.get(number).is_some_and(|group| !group.reduces());
        self.fail(number, error, keep_memory, out);
        if let Some(group) = self.get_mut(number) {
            group.lost = Some(error.clone());
        }
    }

    /// A thread has panicked in the engine, so nothing there is to be relied on: all groups end; everywhere, if this is a rank.
    pub(super) fn break_down(&mut self, me: Option<Rank>, out: &mut Outbox) {
        let cause = me.map(|rank| Cause::Panicked { rank });
        for number in self.numbers() {
            if let (Some(cause), Some(group)) = (&cause, self.get(number)) {
                out.dispute(group, cause.clone());
            }
            let error =
                cause.as_ref().map_or_else(|| Error::new(ErrorKind::Closed), |cause| error(cause, &[]));
            self.close(number, &error, out);
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
        let mut numbers = self.numbers_with(index);
        if hub_is_gone {
            // Groups that wait for its decision wait in vain, also without it as a member.
            let waits = |group: &&Group| group.is_undecided() && !group.has(index);
            numbers.extend(self.iter().filter(waits).map(|group| group.settings.id));
        }
        for number in numbers {
            if !self.doom(number, index, reason, links) {
                continue;
            }
            if hub_is_gone {
                out.after(Timer::Doom(number), GRACE);
            }
            // What waits for a decision in a carrier fails.
            out.push(Todo::Served(number));
            self.fail_what_needs(number, index, (ops, backlog), out);
        }
        out.finished = true;
    }

    /// A group cannot go on without a rank that has died. Returns whether it could before.
    fn doom(&mut self, number: u32, index: MemberId, reason: &str, links: &Links) -> bool {
        let Some(group) = self.get_mut(number).filter(|group| !group.is_lost()) else { return false };
        let mut ranks = group.doom.take().map_or(Vec::new(), |doom| doom.ranks);
        ranks.extend(links.endpoints[index].rank);
        ranks.sort_unstable();
        ranks.dedup();
        let error = links.lost(&ranks, reason);
        group.doom = Some(Doom { ranks, error });
        true
    }

    /// What is called for a fence in a group whose hub has died before: nobody decides.
    pub(super) fn doom_without_hub(&mut self, number: u32, links: &Links, out: &mut Outbox) {
        if self.get(number).is_none_or(|group| group.doom.is_some()) {
            return;
        }
        if let Some(hub) = links.lost_hub()
            && self.doom(number, hub, "rank 0 is gone, which decides", links)
        {
            out.after(Timer::Doom(number), GRACE);
            // What waits for a decision in a carrier fails.
            out.push(Todo::Served(number));
        }
    }

    /// Groups that wait for a decision of the hub wait in vain.
    pub(super) fn doom_undecided(&mut self, links: &Links, out: &mut Outbox) {
        let waits = |group: &&Group| group.is_undecided();
        let numbers: Vec<u32> = self.iter().filter(waits).map(|group| group.settings.id).collect();
        numbers.into_iter().for_each(|number| self.doom_without_hub(number, links, out));
        out.finished = true;
    }

    fn fail_what_needs(
        &mut self,
        number: u32,
        index: MemberId,
        (ops, backlog): (&Ops, &Backlog),
        out: &mut Outbox,
    ) {
        let Some(group) = self.get(number) else { return };
        let Some(Doom { error, ranks }) = &group.doom else { return };
        let (error, ranks) = (error.clone(), ranks.clone());
        let needs = |(_, key): &&(u64, OpKey)| ops.needs(*key, index, self);
        let running: Vec<(u64, OpKey)> = group.running.iter().filter(needs).copied().collect();
        if running.is_empty() && !backlog.has_any(number) {
            return;
        }
        let Some(group) = self.get_mut(number) else { return };
        for (sequence, key) in running {
            group.member.fail(sequence);
            out.push(Todo::Fail { key, error: error.clone(), keep_memory: true });
        }
        out.push(Todo::FailQueued { group: number, error });
        out.dispute(group, Cause::PeerLost { ranks });
    }

    /// With the hub dead, nobody will say that an operation failed elsewhere: those that still stand fail here too.
    pub(super) fn fail_doomed(&mut self, number: u32, out: &mut Outbox) {
        let Some(group) = self.get(number).filter(|group| !group.is_lost()) else { return };
        let Some(error) = group.doom.as_ref().map(|doom| doom.error.clone()) else { return };
        self.fail(number, &error, true, out);
        if let Some(group) = self.get_mut(number) {
            group.lost = Some(error);
        }
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
        group.member.fail(sequence);
        // Where a member died, that is why this one left.
        let is_dropped = group.ending.is_dropped;
        let lost = group.doom.as_ref().map(|doom| (doom.ranks.clone(), doom.error.clone()));
        let (ranks, error) =
            lost.unwrap_or_else(|| (links.ranks(&[index]), left_because(index, is_dropped, links)));
        out.push(Todo::Fail { key, error, keep_memory: true });
        out.dispute(group, Cause::PeerLost { ranks });
    }

    /// A link between workers broke and neither died: operations that need it fail, everywhere.
    pub(super) fn dispute_all_with(
        &self,
        index: MemberId,
        cause: &Cause,
        (ops, backlog): (&Ops, &Backlog),
        out: &mut Outbox,
    ) {
        for group in self.iter().filter(|group| group.has(index)) {
            let needs =
                |key: OpKey| ops.get(key).is_some_and(|operation: &Operation| operation.involves(index));
            if backlog.has_any(group.settings.id) || group.running.iter().any(|(_, key)| needs(*key)) {
                out.dispute(group, cause.clone());
            }
        }
    }

    /// A reducer has lost a worker: operations with it cannot end here. The workers know why.
    pub(super) fn drop_operations_with(&mut self, index: MemberId, out: &mut Outbox) {
        for number in self.numbers_with(index) {
            self.close(number, &Error::new(ErrorKind::Closed), out);
            // It goes on without this reducer, in another group.
            self.dropped_by(index, number, out);
        }
    }
}

/// Why a rank that left is missed where none of the group died: perhaps one of another group did, or left before. In a group
/// that this rank has closed itself, that is why.
pub(super) fn left_because(index: MemberId, is_dropped: bool, links: &Links) -> Error {
    if is_dropped {
        return Error::new(ErrorKind::Closed);
    }
    let named = |which: &dyn Fn(&Endpoint) -> bool| {
        let names = links.endpoints.iter().filter(|endpoint| which(endpoint));
        names.map(|endpoint| endpoint.name.as_str()).collect::<Vec<_>>().join(", ")
    };
    let left = links.endpoints[index].left;
    let dead = named(&|endpoint| endpoint.dead);
    let before = named(&|endpoint| endpoint.left.is_some_and(|at| Some(at) < left));
    let after = match (dead.as_str(), before.as_str()) {
        ("", "") => String::new(),
        ("", _) => format!(", after {before} had left"),
        _ => format!(", after {dead} had died"),
    };
    links.lost(&links.ranks(&[index]), format_args!("{LEFT}{after}"))
}

/// A decision of the hub as an error: where all ranks that are lost have left in order, this rank knows more than the hub says.
fn error_of(cause: &Cause, group: &Group, links: &Links) -> Error {
    let has_only_left = |rank: &Rank| {
        links.endpoints.worker(*rank).is_some_and(|endpoint| endpoint.left.is_some() && !endpoint.dead)
    };
    match cause {
        Cause::PeerLost { ranks } if ranks.iter().all(has_only_left) => match group.ending.is_dropped {
            true => Error::new(ErrorKind::Closed),
            false => links.lost(ranks, LEFT),
        },
        Cause::PeerLost { ranks } => links.lost(ranks, GONE),
        _ => error(cause, &group.settings.ranks),
    }
}
