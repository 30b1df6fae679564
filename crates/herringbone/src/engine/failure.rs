//! What happens when something goes wrong: fences, deaths, timeouts.

use super::{Engine, Event};
use crate::{
    Error, ErrorKind,
    core::{
        group::Rank,
        session::{
            Cause, Mismatch,
            control::Message,
            fence::{Action, Admission, Member, Settled},
        },
        wire::Header,
    },
    engine::doom::{Doom, error},
    execute::{
        issue::{Identity, Queued},
        operation::Operation,
    },
    transport::{
        endpoint::{Endpoint, Link},
        ticket::OpKey,
    },
};
use std::time::{Duration, Instant};

/// How long after its timeout an operation fails even if no decision has come.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long operations before a disputed one have to end.
const AGREED_END: Duration = Duration::from_secs(1);
/// How long operations may stand still after the hub's death, which needed nothing of it themselves.
const GRACE: Duration = Duration::from_millis(300);

/// Whether a frame's operation is over, so that damage to it does not matter.
pub(super) fn is_over(engine: &Engine, header: &Header) -> bool {
    let Some(group) = engine.groups.get(&header.group) else { return false };
    group.is_lost() || group.admission(header, engine.reduces) == Admission::Discard
}

/// The operation before which all end first when a fence is called for.
fn disputed(cause: &Cause) -> Option<u64> {
    match cause {
        Cause::Mismatch(Mismatch { sequence, .. }) | Cause::ReducerLost { sequence, .. } => Some(*sequence),
        _ => None,
    }
}

impl Engine {
    /// Asks the surroundings to have a group fenced.
    pub(super) fn call_for_fence(&mut self, group: u32, cause: Cause) {
        let Some(state) = self.groups.get(&group) else { return };
        let generation = if self.reduces { state.told_generation() } else { state.member.generation() };
        self.events.push(Event::Dispute { group, generation, cause });
    }

    /// Something went wrong in a generation of a group: what to tell the hub, unless that generation is over.
    pub(crate) fn dispute(&mut self, group: u32, generation: u32, cause: Cause) -> Option<Message> {
        let member = &mut self.groups.get_mut(&group)?.member;
        if member.generation() == generation { member.dispute(cause) } else { None }
    }

    /// What the hub says about a group, and what to answer.
    pub(crate) fn told_by_hub(&mut self, number: u32, message: &Message) -> Option<Message> {
        let Some(group) = self.groups.get_mut(&number) else { return self.told_early(number, message) };
        if let Message::Fence { generation, cause, .. } = message
            && let Some(sequence) = disputed(cause)
            && *generation == group.member.generation()
            && group.unanswered.is_none()
        {
            group.frozen = Some(sequence);
            group.unanswered = Some((message.clone(), Instant::now()));
            self.report_if_due(number);
            return None;
        }
        match group.member.receive(message) {
            Action::Nothing => None,
            Action::Send(answer) => {
                if matches!(message, Message::Fence { .. }) {
                    group.frozen = Some(0);
                }
                Some(answer)
            }
            Action::Settled(settled) => {
                self.settle(number, &settled);
                None
            }
        }
    }

    /// The others of a group may disagree, or give up waiting, before this rank has made it: they are answered as by a rank that
    /// has called nothing, whose first calls fail then.
    fn told_early(&mut self, number: u32, message: &Message) -> Option<Message> {
        if matches!(message, Message::Fence { .. }) && !self.forgotten.contains(&number) {
            let member = || Member::new(number, self.me, Vec::new());
            self.unmade.entry(number).or_insert_with(member);
        }
        match self.unmade.get_mut(&number)?.receive(message) {
            Action::Send(answer) => Some(answer),
            Action::Nothing | Action::Settled(_) => None,
        }
    }

    /// Operations before a disputed one were agreed on, or need no reducer: they end first, also those that are to be called
    /// yet, and then the fence is answered. That they do not end means that something was wrong before, or that this rank
    /// is late.
    pub(super) fn report_if_due(&mut self, number: u32) {
        let Some(group) = self.groups.get_mut(&number) else { return };
        let Some((message, since)) = &group.unanswered else { return };
        let from = group.frozen.unwrap_or(0);
        let running = group.running.iter().any(|(sequence, key)| {
            *sequence < from && self.ops.get(*key).is_some_and(|operation| operation.completion.is_some())
        });
        let queued = self
            .queue
            .iter()
            .any(|queued| queued.id.group == number && queued.id.fingerprint.sequence < from);
        let to_come = group.member.next() < from;
        if (running || queued || to_come) && since.elapsed() < AGREED_END {
            return;
        }
        let message = message.clone();
        group.unanswered = None;
        group.frozen = Some(0);
        if let Action::Send(answer) = group.member.receive(&message) {
            self.events.push(Event::ToHub(answer));
        }
    }

    fn settle(&mut self, number: u32, settled: &Settled) {
        let Some(group) = self.groups.get(&number) else { return };
        let error = self.error_of(&settled.cause, group);
        let is_final = settled.cause.is_final();
        self.fail_group(number, &error, is_final);
        if let Some(group) = self.groups.get_mut(&number) {
            (group.frozen, group.unanswered) = (None, None);
            match &*settled.cause {
                Cause::ReducerLost { .. } => group.without_reducers = Some(error),
                _ if is_final => group.lost = Some(error),
                _ => {}
            }
        }
        let early = self.early.take_group(number);
        self.redeliver(early);
        self.finished = true;
    }

    /// Fails what is under way in a group, except operations that have ended for their callers: others may still read those.
    pub(super) fn fail_issued(&mut self, number: u32, error: &Error) {
        self.fail_queued(number, error);
        let Some(group) = self.groups.get(&number) else { return };
        let is_issued =
            |key: &OpKey| self.ops.get(*key).is_some_and(|operation| operation.completion.is_some());
        let issued: Vec<OpKey> = group.running.iter().map(|(_, key)| *key).filter(is_issued).collect();
        issued.into_iter().for_each(|key| self.fail(key, error, true));
    }

    /// Fails all operations of a group. Slots that others may still read stay until no member needs the group if `keep_memory`.
    fn fail_group(&mut self, number: u32, error: &Error, keep_memory: bool) {
        self.fail_queued(number, error);
        let Some(group) = self.groups.get(&number) else { return };
        let running: Vec<OpKey> = group.running.iter().map(|(_, key)| *key).collect();
        for key in running {
            self.fail(key, error, keep_memory);
        }
    }

    fn fail_queued(&mut self, number: u32, error: &Error) {
        let queue = std::mem::take(&mut self.queue);
        for queued in queue {
            if queued.id.group == number {
                self.conclude(&queued.id, &queued.call, queued.completion, Err(error.clone()), queued.issued);
            } else {
                self.queue.push_back(queued);
            }
        }
    }

    pub(super) fn fail(&mut self, key: OpKey, error: &Error, keep_memory: bool) {
        self.cancel(key);
        let Some(operation) = self.ops.get_mut(key) else { return };
        if let Some(completion) = operation.completion.take() {
            operation.release_buffers();
            let (id, call, issued) = (operation.id, operation.prepared.call, operation.issued);
            self.conclude(&id, &call, Some(completion), Err(error.clone()), issued);
        }
        if keep_memory
            && let Some(operation) = self.ops.get_mut(key)
            && let Some(group) = self.groups.get_mut(&operation.id.group)
        {
            let memory = std::mem::take(&mut operation.memory);
            group.kept.extend((!memory.is_empty()).then_some(memory));
        }
        self.end(key);
    }

    /// A thread has panicked in here, so nothing here is to be relied on: all groups end, everywhere.
    pub(crate) fn break_down(&mut self) {
        let cause = Cause::Panicked { rank: self.me };
        for number in self.groups.keys().copied().collect::<Vec<_>>() {
            self.call_for_fence(number, cause.clone());
            self.close_group(number, &error(&cause, &[]));
        }
        self.finished = true;
    }

    /// A rank has died. What it sent before is still used.
    pub(crate) fn lose(&mut self, index: u32, reason: &str, hub_is_gone: bool) {
        while self.receive_shared(index) || self.receive_socket(index) {}
        self.broken(index, crate::transport::Broken::Closed);
        self.endpoints[index as usize].dead = true;
        let numbers: Vec<u32> = self.groups.keys().copied().collect();
        for number in numbers {
            let Some(group) = self.groups.get_mut(&number) else { continue };
            if group.rank_of(index).is_none() || group.is_lost() {
                continue;
            }
            let mut ranks = group.doom.take().map_or(Vec::new(), |doom| doom.ranks);
            ranks.push(index);
            ranks.sort_unstable();
            let kind = ErrorKind::PeerLost { ranks: ranks.clone(), reason: reason.to_owned() };
            let deadline = hub_is_gone.then(|| Instant::now() + GRACE);
            group.doom = Some(Doom { ranks, error: Error::new(kind), deadline });
            self.fail_what_needs(number, index);
        }
        self.finished = true;
    }

    /// What a group that is made now learns of members that died before.
    pub(super) fn doomed_by(&self, members: &[u32]) -> Option<Doom> {
        let is_dead = |index: &u32| self.endpoints[*index as usize].dead;
        let ranks: Vec<Rank> = members.iter().copied().filter(is_dead).collect();
        let kind = ErrorKind::PeerLost { ranks: ranks.clone(), reason: "died before".to_owned() };
        (!ranks.is_empty()).then(|| Doom { ranks, error: Error::new(kind), deadline: None })
    }

    fn fail_what_needs(&mut self, number: u32, index: u32) {
        let Some(group) = self.groups.get(&number) else { return };
        let Some(doom) = &group.doom else { return };
        let (error, ranks) = (doom.error.clone(), doom.ranks.clone());
        let running: Vec<OpKey> =
            group.running.iter().map(|(_, key)| *key).filter(|key| self.needs(*key, index)).collect();
        let queued = self.queue.iter().any(|queued| queued.id.group == number);
        if running.is_empty() && !queued {
            return;
        }
        for key in running {
            let sequence = self.ops.get(key).map(|operation| operation.id.fingerprint.sequence);
            if let (Some(sequence), Some(group)) = (sequence, self.groups.get_mut(&number)) {
                group.member.fail(sequence);
            }
            self.fail(key, &error, true);
        }
        self.fail_queued(number, &error);
        self.call_for_fence(number, Cause::PeerLost { ranks });
    }

    /// Whether an operation cannot end without more of a rank.
    pub(super) fn needs(&self, key: OpKey, index: u32) -> bool {
        let Some(operation) = self.ops.get(key) else { return false };
        let is_member = || {
            let group = self.groups.get(&operation.id.group);
            group.is_some_and(|group| group.rank_of(index).is_some())
        };
        operation.needs(index) || operation.is_unstable() && is_member()
    }

    /// A reducer is gone: operations that use it fail, everywhere.
    pub(crate) fn reducer_lost(&mut self, index: u32) {
        for number in self.groups.keys().copied().collect::<Vec<_>>() {
            if let Some(sequence) = self.first_with_reducers(number) {
                let cause = self.lost_reducer(index, sequence);
                self.call_for_fence(number, cause);
            }
        }
    }

    /// The first operation of a group that is under way and needs reducers.
    fn first_with_reducers(&mut self, number: u32) -> Option<u64> {
        let Self { groups, ops, queue, stats, .. } = self;
        let group = groups.get_mut(&number)?;
        let needs = |key: OpKey| ops.get(key).is_some_and(|operation| operation.with_reducers());
        let running = group.running.iter().find(|(_, key)| needs(*key)).map(|(sequence, _)| *sequence);
        let queued = queue.iter().filter(|queued| queued.id.group == number).find_map(|queued| {
            let with_reducers = group.plan(queued.call, stats).is_ok_and(|planned| planned.with_reducers);
            with_reducers.then_some(queued.id.fingerprint.sequence)
        });
        running.into_iter().chain(queued).min()
    }

    /// That a reducer is lost, and what is known of that here.
    pub(super) fn lost_reducer(&self, index: u32, sequence: u64) -> Cause {
        let Endpoint { name, link, .. } = &self.endpoints[index as usize];
        let reason = match link {
            Link::Lost { reason, .. } => reason.clone(),
            _ => "it cannot be reached".to_owned(),
        };
        Cause::ReducerLost { address: name.clone(), rank: self.me, reason, sequence }
    }

    /// A link could not be made.
    pub(crate) fn no_link(&mut self, index: u32, problem: String) {
        let endpoint = &mut self.endpoints[index as usize];
        if matches!(endpoint.link, Link::Wanted) {
            endpoint.lose(problem);
        }
    }

    /// A link between workers broke and neither died: operations that need it fail, everywhere.
    pub(crate) fn dispute_all_with(&mut self, index: u32, cause: &Cause) {
        for number in self.groups.keys().copied().collect::<Vec<_>>() {
            let Some(group) = self.groups.get(&number) else { continue };
            let needs = |key: &OpKey| self.ops.get(*key).is_some_and(|operation| operation.involves(index));
            let queued = self.queue.iter().any(|queued| queued.id.group == number);
            if group.rank_of(index).is_some() && (queued || group.running.iter().any(|(_, key)| needs(key))) {
                self.call_for_fence(number, cause.clone());
            }
        }
    }

    /// A reducer has lost a worker: operations with it cannot end here. The workers know why.
    pub(crate) fn drop_operations_with(&mut self, index: u32) {
        let closed = Error::new(ErrorKind::Closed);
        for number in self.groups.keys().copied().collect::<Vec<_>>() {
            if self.groups.get(&number).is_some_and(|group| group.rank_of(index).is_some()) {
                self.close_group(number, &closed);
            }
        }
    }

    /// Looks after what has waited for long. Called about ten times a second.
    pub(crate) fn tick(&mut self, now: Instant) {
        self.flush();
        for key in self.ops.keys() {
            let Some(operation) = self.ops.get_mut(key) else { continue };
            if operation.completion.is_none() {
                continue;
            }
            let waited = operation.issued.elapsed_at_least();
            if let Some(round) = operation.tells_hub(waited) {
                let (group, sequence) = (operation.id.group, operation.id.fingerprint.sequence);
                let message = self.groups.get(&group).and_then(|group| group.member.waiting(sequence, round));
                self.events.extend(message.map(Event::ToHub));
            }
            if waited >= operation_timeout(self.ops.get(key)) {
                let Some(operation) = self.ops.get(key) else { continue };
                let (id, missing) = (operation.id, operation.missing());
                let timeout = operation.timeout;
                self.overdue(&id, timeout, waited, missing, |engine, error| engine.fail(key, error, true));
            }
        }
        self.tick_queue();
        self.tick_departures(now);
        self.tick_dropped();
        self.tick_doom(now);
        self.listen_for_silence(now);
        self.groups
            .keys()
            .copied()
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|number| self.report_if_due(number));
    }

    fn tick_queue(&mut self) {
        let late = |queued: &Queued| queued.issued.elapsed_at_least() >= queued.timeout;
        let overdue: Vec<_> =
            self.queue.iter().filter(|queued| late(queued)).map(|queued| queued.id).collect();
        for id in overdue {
            let Some(at) = self.queue.iter().position(|queued| queued.id.is(&id)) else { continue };
            let (timeout, waited) = (self.queue[at].timeout, self.queue[at].issued.elapsed_at_least());
            let missing = self.unlinked(&id);
            self.overdue(&id, timeout, waited, missing, |engine, error| {
                if let Some(queued) = engine.queue.remove(at) {
                    engine.conclude(
                        &queued.id,
                        &queued.call,
                        queued.completion,
                        Err(error.clone()),
                        queued.issued,
                    );
                }
            });
        }
    }

    /// The endpoints of a group to which there is no link yet, though one is wanted.
    fn unlinked(&self, id: &Identity) -> Vec<u32> {
        let Some(group) = self.groups.get(&id.group) else { return Vec::new() };
        let wanted = |index: &u32| matches!(self.endpoints[*index as usize].link, Link::Wanted);
        group.settings.roster.iter().copied().filter(wanted).collect()
    }

    fn overdue(
        &mut self,
        id: &Identity,
        timeout: Duration,
        waited: Duration,
        missing: Vec<u32>,
        fail: impl FnOnce(&mut Self, &Error),
    ) {
        let (workers, reducers): (Vec<u32>, Vec<u32>) =
            missing.into_iter().partition(|index| !self.endpoints[*index as usize].is_reducer);
        // A reducer that is there waits for ranks, too: it is not to blame.
        let absent = reducers.into_iter().find(|index| !self.endpoints[*index as usize].is_up());
        let cause = match absent {
            Some(index) if workers.is_empty() => self.lost_reducer(index, id.fingerprint.sequence),
            _ => Cause::Timeout {
                rank: self.me,
                operation: id.fingerprint,
                milliseconds: timeout.as_millis() as u64,
                waiting_for: workers,
            },
        };
        if waited < timeout + PATIENCE {
            self.call_for_fence(id.group, cause);
            return;
        }
        if let Some(group) = self.groups.get_mut(&id.group) {
            group.member.fail(id.fingerprint.sequence);
        }
        fail(self, &error(&cause, &[]));
    }

    /// With the hub dead, nobody will say that an operation failed elsewhere: what stands still fails here too.
    fn tick_doom(&mut self, now: Instant) {
        let due = |doom: &Doom| doom.deadline.is_some_and(|deadline| now >= deadline);
        let doomed: Vec<u32> = self
            .groups
            .iter()
            .filter(|(_, group)| !group.is_lost() && group.doom.as_ref().is_some_and(due))
            .map(|(number, _)| *number)
            .collect();
        for number in doomed {
            let Some(error) =
                self.groups.get(&number).and_then(|group| group.doom.as_ref()).map(|doom| doom.error.clone())
            else {
                continue;
            };
            self.fail_group(number, &error, true);
            if let Some(group) = self.groups.get_mut(&number) {
                group.lost = Some(error);
            }
        }
    }

    /// Fails everything of one group, for ever.
    pub(crate) fn close_group(&mut self, number: u32, error: &Error) {
        self.fail_group(number, error, !self.reduces);
        if let Some(group) = self.groups.get_mut(&number) {
            group.lost = Some(error.clone());
        }
    }
}

fn operation_timeout(operation: Option<&Operation>) -> Duration {
    operation.map_or(Duration::MAX, |operation| operation.timeout)
}
