//! The hub's side of fences and recoveries: the reports, and the decision.

use super::super::{
    cause::{Cause, Mismatch},
    close_check::{CloseQuestion, Confirmation, Questions},
    control::{Decision, Dispute, Message, Ordinal, Report, Waiting},
    membership::Roster,
    rebalance::{PortPledge, PortReport, Rebalancing},
    recovery::{
        Calls, Held, Resume,
        decision::{Recovery, RecoveryEnd},
        repair_of, successor_of,
    },
    stragglers::StragglerTracker,
};
use crate::{group::Rank, wire::Fingerprint};
use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};

/// How many operations per group the hub knows somebody to wait in; the oldest are forgotten first.
const WAITS: usize = 16;

/// The groups of a job, as the hub knows them. The rank that is the hub need not be a member of them; where it is, its own messages
/// go through it like anyone's.
#[derive(Debug, Default)]
pub(in crate::session) struct Fences {
    groups: BTreeMap<u32, Group>,
    gone: Gone,
}

/// Ranks that take no part any more.
#[derive(Debug, Default)]
struct Gone {
    dead: BTreeSet<Rank>,
    /// In the order in which they left.
    left: Vec<Rank>,
}

impl Gone {
    fn has(&self, rank: Rank) -> bool {
        self.dead.contains(&rank) || self.left.contains(&rank)
    }

    /// Which of a group's members are the reason that it cannot go on. A rank that left may have done so because another rank
    /// died or left before, so it is named if the cause names it, or if it was the first.
    fn blamed(&self, members: &[Rank], cause: &Cause) -> Vec<Rank> {
        let dead: Vec<Rank> = members.iter().copied().filter(|rank| self.dead.contains(rank)).collect();
        let mut left = self.left.iter().copied().filter(|rank| members.contains(rank));
        match cause {
            _ if !dead.is_empty() => dead,
            // What a rank called that left is known, and differs.
            Cause::Mismatch(_) | Cause::Left { .. } => Vec::new(),
            // Whoever left has aborted, or has left because of that.
            Cause::Aborted { .. } => Vec::new(),
            Cause::PeerLost { ranks } if ranks.iter().any(|rank| self.left.contains(rank)) => {
                left.filter(|rank| ranks.contains(rank)).collect()
            }
            _ => left.next().into_iter().collect(),
        }
    }
}

#[derive(Debug, Default)]
struct Group {
    members: Vec<Rank>,
    /// Members that have no use for it any more.
    left: BTreeSet<Rank>,
    generation: u32,
    fence: Option<Fence>,
    /// What the one of those that left has called which had called most.
    called_by_left: Calls,
    /// How many operations members had issued when they last said so: those that left, when they did. Of a group that serves
    /// another one nobody says it.
    issued: BTreeMap<Rank, u64>,
    /// How its operations go on without a reducer, once one was lost.
    recovery: Option<Recovery>,
    /// Whether it has ended on all members, so that nothing of it goes on.
    is_over: bool,
    stragglers: StragglerTracker,
    /// Who waits in an operation, and has said so in the highest round.
    waiting: BTreeMap<u64, Waiting>,
    questions: Questions,
    rebalancing: Rebalancing,
}

#[derive(Debug)]
struct Fence {
    cause: Cause,
    /// What names the group, if it is that.
    ordinal: Option<Ordinal>,
    awaited: BTreeSet<Rank>,
    reports: BTreeMap<Rank, Report>,
}

/// A message, and its receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directed {
    /// A worker; it can be the hub's own rank.
    pub to: Rank,
    /// The message.
    pub message: Message,
}

/// The protocols that are under way in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HubState {
    /// Whether a fence is.
    pub fences: bool,
    /// Whether a recovery is; `None` if there was none.
    pub recovers: Option<bool>,
}

impl Fences {
    /// What is under way in each group, by number.
    pub(in crate::session) fn states(&self) -> impl Iterator<Item = (u32, HubState)> {
        let state = |group: &Group| HubState {
            fences: group.fence.is_some(),
            recovers: group.recovery.as_ref().map(Recovery::is_under_way),
        };
        self.groups.iter().map(move |(number, group)| (*number, state(group)))
    }

    /// See [`Hub::receive`](crate::session::hub::Hub::receive).
    pub(in crate::session) fn receive(&mut self, from: Rank, message: Message) -> Vec<Directed> {
        let sent = match message {
            Message::GroupInfo { group, members, .. } => self.made(group, members),
            Message::Forget { group } => self.forget(from, group),
            Message::Dispute(dispute) => self.dispute(dispute),
            Message::Report(report) => self.report(from, report),
            Message::Suspect(suspect) => {
                let (group, members) = (suspect.group, suspect.members.clone());
                self.recover(group, members, |recovery| recovery.suspect(suspect))
            }
            Message::Grow(grow) => {
                self.recover(grow.group, grow.members, |recovery| recovery.grow(grow.reducers))
            }
            Message::Held(held) => self.held(from, held),
            Message::Waiting(waiting) if waiting.rank == from => self.waiting(waiting),
            Message::Confirm(question) if question.rank == from => self.ask(question),
            Message::Confirmed(confirmation) => self.confirmed(from, confirmation),
            Message::PortPledge(pledge) => self.pledged(from, pledge),
            _ => Vec::new(),
        };
        self.add_followers(&sent);
        sent
    }

    /// See [`Hub::lose`](crate::session::hub::Hub::lose).
    pub(in crate::session) fn lose(&mut self, rank: Rank) -> Vec<Directed> {
        self.gone.dead.insert(rank);
        self.go_on_without(rank)
    }

    /// See [`Hub::leave`](crate::session::hub::Hub::leave).
    pub(in crate::session) fn leave(&mut self, rank: Rank) -> Vec<Directed> {
        if !self.gone.left.contains(&rank) {
            self.gone.left.push(rank);
        }
        self.go_on_without(rank)
    }

    fn go_on_without(&mut self, rank: Rank) -> Vec<Directed> {
        let mut sent = Vec::new();
        for (number, group) in &mut self.groups {
            if group.members.contains(&rank) {
                sent.extend(group.cancel_ports(*number, &self.gone));
            }
            if let Some(fence) = &mut group.fence {
                fence.awaited.remove(&rank);
                sent.extend(group.decide_if_complete(*number, &self.gone));
            }
            if let Some(recovery) = &mut group.recovery {
                recovery.without(rank);
                sent.extend(group.resume_if_known(*number, &self.gone));
            }
            sent.extend(group.answer_questions(&self.gone));
        }
        self.add_followers(&sent);
        let numbers: Vec<u32> = self.groups.keys().copied().collect();
        sent.extend(numbers.into_iter().flat_map(|number| self.drop_if_left(number)));
        sent
    }

    /// Groups go on in others, in which members that have left them take no part.
    fn add_followers(&mut self, sent: &[Directed]) {
        for Directed { message, .. } in sent {
            let Message::Resume(Resume { group: number, .. }) = message else { continue };
            let (repair, successor) = (repair_of(*number), successor_of(*number));
            let Some(group) = self.groups.get(number).filter(|_| !self.groups.contains_key(&successor))
            else {
                continue;
            };
            let follower = |issued| {
                let (members, left) = (group.members.clone(), group.left.clone());
                Group { members, left, issued, ..Group::default() }
            };
            let carrying = follower(BTreeMap::new());
            let rebalancing = group.rebalancing.succeeded();
            let inheriting = Group { rebalancing, ..follower(group.issued.clone()) };
            self.groups.extend([(repair, carrying), (successor, inheriting)]);
        }
    }

    /// Who is in a group.
    fn made(&mut self, number: u32, members: Vec<Rank>) -> Vec<Directed> {
        let group = self.groups.entry(number).or_default();
        group.members = members;
        let live: Vec<Rank> = group.live(&self.gone).collect();
        let shown = group.questions.shown(&live).into_iter();
        let mut sent: Vec<Directed> =
            shown.map(|(to, question)| Directed { to, message: Message::Confirm(question) }).collect();
        sent.extend(group.look_at_questions(number, &self.gone));
        sent.extend(self.drop_if_left(number));
        sent
    }

    fn forget(&mut self, from: Rank, number: u32) -> Vec<Directed> {
        let group = self.groups.entry(number).or_default();
        group.left.insert(from);
        if let Some(fence) = &mut group.fence {
            fence.awaited.remove(&from);
        }
        if let Some(recovery) = &mut group.recovery {
            recovery.without(from);
        }
        let mut sent = group.cancel_ports(number, &self.gone);
        sent.extend(group.decide_if_complete(number, &self.gone));
        sent.extend(group.resume_if_known(number, &self.gone));
        sent.extend(group.look_at_questions(number, &self.gone));
        sent.extend(self.drop_if_left(number));
        sent
    }

    /// A member says what its connections have carried; see [`rebalance`](crate::session::rebalance).
    pub(in crate::session) fn carried(
        &mut self,
        from: Rank,
        carried: &PortReport,
        roster: &Roster,
    ) -> Vec<Directed> {
        let Some(group) = self.groups.get_mut(&carried.group) else { return Vec::new() };
        let are_all = group.live(&self.gone).count() == group.members.len();
        if !are_all || group.recovery.is_some() || group.is_over {
            return Vec::new();
        }
        let proposal = group.rebalancing.carried(from, carried, &group.members, roster);
        proposal.map_or_else(Vec::new, |proposal| group.to_live(&Message::PortProposal(proposal), &self.gone))
    }

    fn pledged(&mut self, from: Rank, pledge: PortPledge) -> Vec<Directed> {
        let Some(group) = self.groups.get_mut(&pledge.group) else { return Vec::new() };
        let outcome = group.rebalancing.pledged(from, pledge);
        outcome.map_or_else(Vec::new, |outcome| group.to_live(&Message::PortOutcome(outcome), &self.gone))
    }

    fn drop_if_left(&mut self, number: u32) -> Vec<Directed> {
        let Self { groups, gone } = self;
        let is_left = |group: &Group| !group.members.is_empty() && group.live(gone).next().is_none();
        if !groups.get(&number).is_some_and(is_left) {
            return Vec::new();
        }
        let members = groups.remove(&number).map_or(Vec::new(), |group| group.members);
        let alive = members.into_iter().filter(|rank| !gone.has(*rank));
        alive.map(|to| Directed { to, message: Message::Forget { group: number } }).collect()
    }

    fn dispute(&mut self, dispute: Dispute) -> Vec<Directed> {
        let Dispute { group: number, generation, members, cause, ordinal } = dispute;
        let group = self.groups.entry(number).or_default();
        let aborts = matches!(cause, Cause::Aborted { .. });
        if let Some(fence) = &mut group.fence {
            if aborts && !fence.cause.is_final() {
                fence.cause = cause;
            }
            return Vec::new();
        }
        if generation != group.generation && !aborts {
            return Vec::new();
        }
        group.members = members;
        let mut sent = group.begin(number, cause, ordinal, &self.gone);
        sent.extend(group.decide_if_complete(number, &self.gone));
        sent
    }

    fn report(&mut self, from: Rank, report: Report) -> Vec<Directed> {
        let number = report.group;
        let Some(group) = self.groups.get_mut(&number) else { return Vec::new() };
        let Some(fence) = &mut group.fence else { return Vec::new() };
        if report.generation != group.generation || !fence.awaited.remove(&from) {
            return Vec::new();
        }
        fence.reports.insert(from, report);
        group.decide_if_complete(number, &self.gone)
    }

    fn recover(
        &mut self,
        number: u32,
        members: Vec<Rank>,
        because: impl FnOnce(&mut Recovery),
    ) -> Vec<Directed> {
        let group = self.groups.entry(number).or_default();
        if let Some(recovery) = &mut group.recovery {
            because(recovery);
            return Vec::new();
        }
        if group.is_over {
            return Vec::new();
        }
        group.members = members;
        let mut sent = group.cancel_ports(number, &self.gone);
        sent.extend(group.to_live(&Message::Recover { group: number }, &self.gone));
        because(group.recovery.insert(Recovery::of(group.live(&self.gone).collect())));
        sent
    }

    fn held(&mut self, from: Rank, held: Held) -> Vec<Directed> {
        let number = held.group;
        let group = self.groups.entry(number).or_default();
        if !group.left.contains(&from) {
            group.issued.insert(from, held.calls.next);
        }
        let Some(recovery) = &mut group.recovery else {
            if held.calls.next >= group.called_by_left.next {
                group.called_by_left = held.calls;
            }
            return Vec::new();
        };
        recovery.answered(from, held);
        group.resume_if_known(number, &self.gone)
    }

    fn waiting(&mut self, waiting: Waiting) -> Vec<Directed> {
        let group = self.groups.entry(waiting.group).or_default();
        if waiting.generation != group.generation || group.fence.is_some() {
            return Vec::new();
        }
        let number = waiting.group;
        let live: Vec<Rank> = group.live(&self.gone).collect();
        let mut sent = Vec::new();
        if let Some(late) = group.stragglers.waits(&waiting, live.iter().copied()) {
            let message = Message::Late(late);
            sent.extend(live.iter().map(|&to| Directed { to, message: message.clone() }));
        }
        sent.extend(group.show_waiting(waiting, &live));
        sent.extend(group.begin_if_missed(number, &self.gone));
        sent
    }

    /// A member leaves, and asks whether the others have made the same calls.
    fn ask(&mut self, question: CloseQuestion) -> Vec<Directed> {
        let number = question.group;
        let group = self.groups.entry(number).or_default();
        if question.generation != group.generation || group.fence.is_some() {
            return Vec::new();
        }
        let mut sent = Vec::new();
        if group.questions.ask(question) {
            let others = group.live(&self.gone).filter(|rank| *rank != question.rank);
            sent.extend(others.map(|to| Directed { to, message: Message::Confirm(question) }));
        }
        sent.extend(group.look_at_questions(number, &self.gone));
        sent
    }

    fn confirmed(&mut self, from: Rank, confirmation: Confirmation) -> Vec<Directed> {
        let group = self
            .groups
            .get_mut(&confirmation.group)
            .filter(|group| group.generation == confirmation.generation);
        let Some(group) = group else { return Vec::new() };
        group.questions.confirmed(from, &confirmation);
        group.answer_questions(&self.gone)
    }
}

impl Group {
    /// Shows who waits to those that can compare it with their own history.
    fn show_waiting(&mut self, waiting: Waiting, live: &[Rank]) -> Vec<Directed> {
        let sequence = waiting.fingerprint.sequence;
        match self.waiting.get(&sequence) {
            Some(other) if other.hash != waiting.hash => [show(waiting.rank, other)].into(),
            Some(other) if other.round >= waiting.round => Vec::new(),
            Some(_) => {
                self.waiting.insert(sequence, waiting);
                let asked = live.iter().filter(|rank| **rank != waiting.rank);
                asked.map(|rank| show(*rank, &waiting)).collect()
            }
            None => self.wait_first(waiting),
        }
    }

    /// Nobody has waited in this operation before.
    fn wait_first(&mut self, waiting: Waiting) -> Vec<Directed> {
        let sequence = waiting.fingerprint.sequence;
        let behind = self.waiting.range(..sequence).next_back().map(|(_, other)| show(waiting.rank, other));
        let ahead = self.waiting.range(sequence..).next().map(|(_, other)| show(other.rank, &waiting));
        self.waiting.insert(sequence, waiting);
        if self.waiting.len() > WAITS {
            self.waiting.pop_first();
        }
        behind.into_iter().chain(ahead).collect()
    }

    /// There is another question, or another member has left.
    fn look_at_questions(&mut self, number: u32, gone: &Gone) -> Vec<Directed> {
        let sent = self.begin_if_missed(number, gone);
        if self.fence.is_none() && sent.is_empty() { self.answer_questions(gone) } else { sent }
    }

    /// A fence, if members have left without a call that others have made.
    fn begin_if_missed(&mut self, number: u32, gone: &Gone) -> Vec<Directed> {
        let Some(cause) = self.missed() else { return Vec::new() };
        let mut sent = self.begin(number, cause, None, gone);
        sent.extend(self.decide_if_complete(number, gone));
        sent
    }

    /// That members have left without a call about which another one asks, or in which another one waits.
    fn missed(&self) -> Option<Cause> {
        if self.fence.is_some() || self.members.is_empty() {
            return None;
        }
        let left = || self.left.iter().filter_map(|rank| Some((*rank, *self.issued.get(rank)?)));
        let asked = left().filter_map(|(_, made)| self.questions.beyond(made));
        let asked = asked.map(|question| (question.fingerprint, question.rank));
        let awaited = left().filter_map(|(_, made)| self.waiting.range(made..).next());
        let awaited = awaited.map(|(_, waiting)| (waiting.fingerprint, waiting.rank));
        let (operation, caller) = asked.chain(awaited).min_by_key(|(operation, _)| operation.sequence)?;
        let ranks = left().filter(|(_, made)| *made <= operation.sequence).map(|(rank, _)| rank).collect();
        Some(Cause::Left { ranks, operation, caller })
    }

    /// Tells those that leave, once all members have made the same calls, or take no part any more.
    fn answer_questions(&mut self, gone: &Gone) -> Vec<Directed> {
        if self.members.is_empty() {
            return Vec::new();
        }
        let live: Vec<Rank> = self.live(gone).collect();
        let answers = self.questions.answered(&live).into_iter();
        answers.map(|(to, confirmation)| Directed { to, message: Message::Confirmed(confirmation) }).collect()
    }

    fn begin(&mut self, number: u32, cause: Cause, ordinal: Option<Ordinal>, gone: &Gone) -> Vec<Directed> {
        let awaited: BTreeSet<Rank> = self.live(gone).collect();
        let (generation, sent_cause) = (self.generation, cause.clone());
        let fence = Message::Fence { group: number, generation, cause: sent_cause, ordinal };
        let to_all = awaited.iter().map(|&to| Directed { to, message: fence.clone() }).collect();
        self.fence = Some(Fence { cause, ordinal, awaited, reports: BTreeMap::new() });
        to_all
    }

    fn decide_if_complete(&mut self, number: u32, gone: &Gone) -> Vec<Directed> {
        let Some(fence) = self.fence.take_if(|fence| fence.awaited.is_empty()) else { return Vec::new() };
        let unmade = fence.unmade();
        let Fence { cause, reports, .. } = fence;
        let lost = gone.blamed(&self.members, &cause);
        let live: Vec<Rank> = self.live(gone).collect();
        let cause = match unmade {
            _ if !lost.is_empty() => Cause::PeerLost { ranks: lost },
            Some(unmade) => unmade,
            None => explain(cause, &reports),
        };
        self.is_over |= cause.is_final();
        let next = failing_below(&cause, &reports);
        let decision = Decision { group: number, generation: self.generation, next, cause };
        self.generation += 1;
        self.waiting.clear();
        self.stragglers.clear();
        self.questions.clear();
        self.recovery.iter_mut().for_each(|recovery| recovery.fenced(next));
        let message = Message::Decide(decision);
        let mut sent: Vec<Directed> =
            live.into_iter().map(|to| Directed { to, message: message.clone() }).collect();
        sent.extend(self.resume_if_known(number, gone));
        sent
    }

    /// The decision of a recovery, if all is known; a fence, if members have not called the same.
    fn resume_if_known(&mut self, number: u32, gone: &Gone) -> Vec<Directed> {
        let Self { recovery: Some(recovery), fence: None, is_over: false, .. } = self else {
            return Vec::new();
        };
        match recovery.decide(number, &self.called_by_left) {
            Some(RecoveryEnd::Resume(resume)) => {
                let message = Message::Resume(resume);
                self.live(gone).map(|to| Directed { to, message: message.clone() }).collect()
            }
            Some(RecoveryEnd::Differ(sequence)) => {
                self.begin(number, Cause::Mismatch(Mismatch::new(sequence, [])), None, gone)
            }
            None => Vec::new(),
        }
    }

    /// Nothing comes of a proposal about ports that is under way.
    fn cancel_ports(&mut self, number: u32, gone: &Gone) -> Vec<Directed> {
        let outcome = self.rebalancing.cancel(number);
        outcome.map_or_else(Vec::new, |outcome| self.to_live(&Message::PortOutcome(outcome), gone))
    }

    fn to_live(&self, message: &Message, gone: &Gone) -> Vec<Directed> {
        self.live(gone).map(|to| Directed { to, message: message.clone() }).collect()
    }

    /// The members that take part.
    fn live(&self, gone: &Gone) -> impl Iterator<Item = Rank> {
        self.members.iter().copied().filter(|rank| !gone.has(*rank) && !self.left.contains(rank))
    }
}

impl Fence {
    /// That members have not made the group, where others have given up waiting. A group with a name of its own can be made later.
    fn unmade(&self) -> Option<Cause> {
        let Cause::Timeout { rank, milliseconds, .. } = self.cause else { return None };
        let unmade = self.reports.iter().filter(|(_, report)| !report.is_made);
        let ranks: Vec<Rank> = unmade.map(|(rank, _)| *rank).collect();
        let is_over = self.ordinal.is_some() && !ranks.is_empty();
        is_over.then_some(Cause::Unmade { rank, milliseconds, ranks })
    }
}

/// Below which number calls fail. If the timeout of the last operation passed while it ended well on all members, none does.
fn failing_below(cause: &Cause, reports: &BTreeMap<Rank, Report>) -> u64 {
    let below = reports.values().map(|report| report.next.max(report.below)).max().unwrap_or_default();
    let Cause::Timeout { operation, .. } = cause else { return below };
    let next = operation.sequence.saturating_add(1);
    // Only a member on which nothing fails puts its news off until a call to come.
    let ended_well = |report: &Report| report.next == next && report.below == next.saturating_add(1);
    if reports.values().all(ended_well) { next } else { below }
}

/// The earliest operation in which the members' reports differ, if the cause is one that this may be behind.
fn explain(cause: Cause, reports: &BTreeMap<Rank, Report>) -> Cause {
    if cause.sequence().is_none() {
        return cause;
    }
    let mut issued: BTreeMap<u64, Vec<(Rank, Fingerprint)>> = BTreeMap::new();
    for (&rank, report) in reports {
        for &fingerprint in &report.recent {
            issued.entry(fingerprint.sequence).or_default().push((rank, fingerprint));
        }
    }
    let differ = |issued: &[(Rank, Fingerprint)]| issued.iter().any(|(_, one)| *one != issued[0].1);
    match issued.into_iter().find(|(_, issued)| differ(issued)) {
        Some((sequence, issued)) => {
            let basis = |rank: Rank, plan: u64| {
                let plans = &reports.get(&rank)?.plans;
                plans.iter().find(|basis| basis.digest() == plan).cloned()
            };
            Cause::Mismatch(Mismatch::new(sequence, issued).explained(basis))
        }
        None => name_the_late(cause, reports),
    }
}

/// Who waits for a reducer cannot tell whom that waits for: it is the members that have not come to the operation.
fn name_the_late(mut cause: Cause, reports: &BTreeMap<Rank, Report>) -> Cause {
    if let Cause::Timeout { operation, waiting_for, .. } = &mut cause {
        let is_late = |report: &Report| report.next <= operation.sequence;
        let late: Vec<Rank> =
            reports.iter().filter(|(_, report)| is_late(report)).map(|(&rank, _)| rank).collect();
        if !late.is_empty() {
            *waiting_for = late;
        }
    }
    cause
}

fn show(to: Rank, waiting: &Waiting) -> Directed {
    Directed { to, message: Message::Waiting(*waiting) }
}
