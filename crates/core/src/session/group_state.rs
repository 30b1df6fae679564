//! The state of one process in a group: a state machine without I/O, worker or reducer inside.
//!
//! A [`GroupState`] learns of calls and their ends, of the hub's messages, and of lost members. It decides about calls
//! and frames, and [puts out](Outputs) tasks for its user. The user has the data: the operations that run, their needs,
//! and their results.
//!
//! Inside is a worker, which numbers its calls and takes part in [fences](super::fence), or a [reducer](ReducerMember),
//! which calls nothing and follows the workers' announcements.

mod leaving;
mod recovering;
mod reducer;

pub use leaving::Departure;
pub use recovering::ReducerUse;
pub use reducer::{ReducerMember, TooManyPlans};

use super::{
    GroupRules,
    basis::Basis,
    cause::{Cause, Mismatch},
    control::{Message, Ordinal, Report},
    fence::{Action, Admission, Check, Issued, Member, NotIssued, Phase, Settled},
    rebalance::{PortOutcome, Switchover},
    recovery::{Calls, Resume},
};
use crate::{group::Rank, topology::Ports, wire::Fingerprint};
use alloc::{borrow::ToOwned, string::String, sync::Arc, vec::Vec};
use core::time::Duration;

/// How long operations before a disputed one have to end.
const AGREED_END: Duration = Duration::from_secs(1);
/// How long operations may stand still after the hub's death, which needed nothing of it themselves.
const GRACE: Duration = Duration::from_millis(300);

/// Ranks that are gone, as a process knows by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gone {
    /// The ranks, ascending.
    pub ranks: Vec<Rank>,
    /// The known reason.
    pub reason: String,
}

/// Why operations of a group fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupFailure {
    /// The hub has decided this cause, the same on all members.
    Decided(Arc<Cause>),
    /// Ranks that they need are gone, or no rank is left to decide.
    Gone(Gone),
    /// This process has ended the group.
    Closed,
}

/// A task from a group state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send this to the hub.
    Tell(Message),
    /// Ask a worker to dispute this, in a generation: a reducer has no hub.
    TellWorker(u32, Cause),
    /// All that is under way fails, as the group is over.
    Fail(GroupFailure),
    /// A generation has ended: all that is under way fails.
    Settled(Settled),
    /// [`GroupState::time_has_passed`] is to be called after this, and not at an earlier time that was named before.
    After(Duration),
    /// [`GroupState::leave`] might give another answer now.
    Leave,
}

/// Collects the tasks of group states.
pub trait Outputs {
    /// Takes a task of a group's state.
    fn put(&mut self, group: u32, output: Output);
}

/// What a process is in a group.
#[derive(Debug)]
enum Side {
    /// It calls.
    Worker(Member),
    /// It follows what workers announce.
    Reducer(ReducerMember),
}

/// The state of one process in a group.
#[derive(Debug)]
pub struct GroupState {
    group: u32,
    side: Side,
    rules: GroupRules,
    /// Why the group is over here.
    lost: Option<GroupFailure>,
    /// Why operations that use reducers fail, once all members have agreed that one is lost.
    without_reducers: Option<GroupFailure>,
    /// Members that are gone: nothing new begins, and what is under way may still end well.
    gone: Option<Gone>,
    hub_is_gone: bool,
    fenced: Fenced,
    /// What plans take the ports of hosts for.
    switchover: Switchover,
    reducers: ReducerUse,
    /// What the hub has decided of reducers before this process had made the group.
    early_resume: Option<Resume>,
    leaving: Leaving,
}

/// A fence that is under way, as this process knows.
#[derive(Debug, Default)]
struct Fenced {
    /// Operations from this one on do not move.
    frozen: Option<u64>,
    /// A fence that is answered once the operations before the disputed one have ended.
    unanswered: Option<Message>,
}

/// How far a process has come to the end of a group.
#[derive(Debug, Default)]
struct Leaving {
    /// Whether nothing more is called in it.
    is_closed: bool,
    /// Whether it was said that this process takes no part any more.
    has_left: bool,
    /// Whether it was said that this process aborts the group.
    has_aborted: bool,
    close_check: CloseCheck,
}

/// What a rank waits for when it leaves a group.
#[derive(Debug, Default, PartialEq, Eq)]
enum CloseCheck {
    /// Nothing yet. Nobody will wait: the others are left to compare what this rank has called.
    #[default]
    Unsaid,
    /// Somebody waits until all members have made the same calls, or it is known that they have not.
    Awaited,
    /// The others have been asked for whoever waits.
    Asked,
    Over,
}

/// The operation before which all end first when a fence is called for.
fn disputed(cause: &Cause) -> Option<u64> {
    match cause {
        Cause::Aborted { sequence, .. } => Some(*sequence),
        // Whoever has waited in vain waits no longer.
        Cause::Timeout { .. } => None,
        cause => cause.sequence(),
    }
}

impl GroupState {
    fn new(group: u32, side: Side) -> Self {
        Self {
            group,
            side,
            rules: GroupRules::DEFAULT,
            lost: None,
            without_reducers: None,
            gone: None,
            hub_is_gone: false,
            fenced: Fenced::default(),
            switchover: Switchover::default(),
            reducers: ReducerUse::InUse,
            early_resume: None,
            leaving: Leaving::default(),
        }
    }

    /// A worker.
    pub fn of_worker(member: Member) -> Self {
        Self::new(member.group(), Side::Worker(member))
    }

    /// A reducer that learns of a generation of a group.
    pub fn of_reducer(group: u32, generation: u32) -> Self {
        Self::new(group, Side::Reducer(ReducerMember::new(generation)))
    }

    /// The same, which follows these rules.
    #[must_use]
    pub fn with_rules(self, rules: GroupRules) -> Self {
        Self { rules, ..self }
    }

    /// The group is made. Only its number was known before: `made` has its members and its name.
    #[must_use]
    pub fn made(self, made: Self) -> Self {
        let side = match (self.side, made.side) {
            (Side::Worker(known), Side::Worker(made)) => Side::Worker(known.made(&made)),
            (_, made) => made,
        };
        Self { side, switchover: made.switchover, ..self }
    }

    /// The reducer's part, if this is one.
    pub fn reducer(&mut self) -> Option<&mut ReducerMember> {
        match &mut self.side {
            Side::Reducer(reducer) => Some(reducer),
            Side::Worker(_) => None,
        }
    }

    /// The worker's part, if this is one.
    pub fn member(&self) -> Option<&Member> {
        match &self.side {
            Side::Worker(member) => Some(member),
            Side::Reducer(_) => None,
        }
    }

    fn member_mut(&mut self) -> Option<&mut Member> {
        match &mut self.side {
            Side::Worker(member) => Some(member),
            Side::Reducer(_) => None,
        }
    }

    /// The generation that it works in.
    pub fn generation(&self) -> u32 {
        match &self.side {
            Side::Worker(member) => member.generation(),
            Side::Reducer(reducer) => reducer.generation(),
        }
    }

    /// The number of its next call.
    pub fn next(&self) -> u64 {
        self.member().map_or(0, Member::next)
    }

    /// The group's name, if it is an ordinal.
    pub fn ordinal(&self) -> Option<Ordinal> {
        self.member().and_then(Member::ordinal)
    }

    /// Its call under a number of this generation, if it remembers it.
    pub fn issued(&self, sequence: u64) -> Option<&Fingerprint> {
        self.member()?.issued(sequence)
    }

    /// Whether its last operation ends only once this one, of place `me`, has heard all members.
    pub fn hears_all(&self, me: Rank) -> bool {
        self.member().and_then(Member::last).is_some_and(|last| last.hears_all(me))
    }

    /// The message to the hub about an operation that waits; see [`Member::waiting`].
    pub fn waiting(&self, sequence: u64, round: u32) -> Option<Message> {
        self.member()?.waiting(sequence, round)
    }

    /// The inputs of a plan; see [`Member::planned`].
    pub fn planned(&mut self, plan: u64, basis: &Arc<Basis>) {
        self.member_mut().into_iter().for_each(|member| member.planned(plan, basis));
    }

    /// The treatment of a frame of a generation.
    pub fn admit(&self, generation: u32) -> Admission {
        match &self.side {
            Side::Worker(member) => member.admit(generation),
            Side::Reducer(reducer) => reducer.admit(generation),
        }
    }

    /// Compares the rolling hash of a frame of this generation with this process's own.
    pub fn check(&self, sequence: u64, hash: u64) -> Check {
        match &self.side {
            Side::Worker(member) => member.check(sequence, hash),
            Side::Reducer(reducer) => reducer.check(sequence, hash),
        }
    }

    /// Why the group is over here, or takes no calls because members are gone.
    pub fn failure(&self) -> Option<GroupFailure> {
        self.lost.clone().or_else(|| self.gone.clone().map(GroupFailure::Gone))
    }

    /// Whether the group is over here.
    pub fn is_over(&self) -> bool {
        self.lost.is_some()
    }

    /// The members that are gone.
    pub fn gone(&self) -> Option<&Gone> {
        self.gone.as_ref()
    }

    /// Whether this worker knows of a fence under way.
    pub fn is_fenced(&self) -> bool {
        self.fenced.frozen.is_some() || self.fenced.unanswered.is_some()
    }

    /// Whether it waits for a decision of the hub.
    pub fn is_undecided(&self) -> bool {
        let stops = self.member().is_some_and(|member| member.phase() != Phase::Running);
        self.is_fenced() || stops || self.reducers == ReducerUse::Suspended || self.switchover.is_open()
    }

    /// Whether an operation is allowed to move.
    pub fn may_run(&self, sequence: u64, with_reducers: bool) -> bool {
        let is_frozen = self.fenced.frozen.is_some_and(|from| sequence >= from);
        !is_frozen && (self.reducers == ReducerUse::InUse || !with_reducers)
    }

    /// A collective is called. It can use reducers.
    pub fn issue(
        &mut self,
        call: Fingerprint,
        with_reducers: bool,
        out: &mut impl Outputs,
    ) -> Result<Issued, NotIssued<GroupFailure>> {
        let is_suspended = self.rules.stands_still && self.reducers == ReducerUse::Suspended;
        let is_held = self.switchover.is_open() && self.switchover.holds(self.next());
        if self.lost.is_some() || self.gone.is_some() || is_suspended || is_held {
            return Err(self.refuse(out));
        }
        let Side::Worker(member) = &mut self.side else {
            return Err(NotIssued::Failed(GroupFailure::Closed));
        };
        let issued = member.issue(call).map_err(|not| not.map(GroupFailure::Decided))?;
        if let Some(cause) = member.departs(&issued) {
            self.dispute(cause, out);
        }
        if let Some(failure) = self.without_reducers.as_ref().filter(|_| with_reducers).cloned() {
            // All members know, and fail the same call: there is nothing to decide.
            self.complete(issued.fingerprint.sequence, false, out);
            return Err(NotIssued::Counted(issued, failure));
        }
        self.answer_questions(out);
        Ok(issued)
    }

    /// Why nothing can be called now: the group is over, members are gone, or the hub was told how many calls there are here.
    #[cold]
    fn refuse(&mut self, out: &mut impl Outputs) -> NotIssued<GroupFailure> {
        if let Some(failure) = &self.lost {
            let failure = failure.clone();
            self.member_mut().into_iter().for_each(Member::learn);
            return NotIssued::Failed(failure);
        }
        let Some(gone) = self.gone.clone() else { return NotIssued::Frozen };
        self.dispute(Cause::PeerLost { ranks: gone.ranks.clone() }, out);
        NotIssued::Failed(GroupFailure::Gone(gone))
    }

    /// An operation has succeeded, and its caller can know; see [`Member::complete`].
    pub fn complete(&mut self, sequence: u64, hears_all: bool, out: &mut impl Outputs) {
        if let Side::Worker(member) = &mut self.side {
            member.complete(sequence, hears_all);
            self.answer_questions(out);
        }
    }

    /// An operation has failed, and its caller can know, ahead of a decision; see [`Member::fail`].
    pub fn fail(&mut self, sequence: u64) {
        self.member_mut().into_iter().for_each(|member| member.fail(sequence));
    }

    /// An operation is over: a fence that waits for that can now be answered.
    pub fn ended(&mut self, out: &mut impl Outputs) {
        if self.fenced.unanswered.is_some() {
            self.answer_fence(false, out);
        }
    }

    /// Answers what other members have asked that leave, as far as this one can.
    fn answer_questions(&mut self, out: &mut impl Outputs) {
        let Side::Worker(member) = &mut self.side else { return };
        while let Some(answer) = member.next_answer() {
            out.put(self.group, Output::Tell(answer));
        }
        if self.hub_is_gone {
            self.lose_hub(out);
        }
    }

    /// Something went wrong in this generation.
    pub fn dispute(&mut self, cause: Cause, out: &mut impl Outputs) {
        match &mut self.side {
            Side::Worker(member) => {
                let Some(message) = member.dispute(cause) else { return };
                out.put(self.group, Output::Tell(message));
                if self.hub_is_gone {
                    self.lose_hub(out);
                }
            }
            Side::Reducer(reducer) => {
                out.put(self.group, Output::TellWorker(reducer.generation(), cause));
            }
        }
    }

    /// A frame of this generation, whose hash [differs](Check::Differs), does not belong to the calls of this process,
    /// rank `me`.
    pub fn dispute_frame(&mut self, sequence: u64, me: Rank, out: &mut impl Outputs) {
        let own = self.issued(sequence).map(|own| (me, *own));
        self.dispute(Cause::Mismatch(Mismatch::new(sequence, own)), out);
    }

    /// A message of the hub about the group.
    pub fn receive(&mut self, message: &Message, out: &mut impl Outputs) {
        let Self { group, rules, leaving, fenced, switchover, .. } = self;
        let Fenced { frozen, unanswered } = fenced;
        let Side::Worker(member) = &mut self.side else { return };
        if let Message::Confirm(question) = message
            && !rules.compares_calls
        {
            return out.put(*group, Output::Tell(Message::Confirmed(question.confirmed())));
        }
        // The hub does not wait for a rank that has aborted. What that has left to be read goes on, for earlier calls of others.
        if leaving.has_aborted {
            return;
        }
        if let Message::PortProposal(proposal) = message {
            let pledge = switchover.proposed(proposal, member.next());
            return out.put(*group, Output::Tell(Message::PortPledge(pledge)));
        }
        if let Message::Fence { generation, cause, .. } = message
            && let Some(sequence) = disputed(cause)
            && *generation == member.generation()
            && unanswered.is_none()
        {
            *frozen = Some(sequence);
            *unanswered = Some(message.clone());
            out.put(*group, Output::After(AGREED_END));
            return self.answer_fence(false, out);
        }
        match member.receive(message) {
            None => {
                self.answer_questions(out);
                if let Message::Confirm(_) | Message::Confirmed(_) = message {
                    // It may have been closed, and have waited for this answer, or lack the call that this asks for.
                    out.put(self.group, Output::Leave);
                }
            }
            Some(Action::Send(answer)) => {
                if let Message::Fence { .. } = message {
                    *frozen = Some(0);
                }
                out.put(*group, Output::Tell(answer));
            }
            Some(Action::Settled(settled)) => self.settle(settled, out),
        }
    }

    /// A message of the hub before this process has made the group. It answers as a process that has called nothing,
    /// whose first calls then fail. `is_made`: whether it has made the group, and forgotten it. Returns a decision.
    pub fn receive_early(
        &mut self,
        message: &Message,
        is_made: bool,
        out: &mut impl Outputs,
    ) -> Option<Settled> {
        let answer = match self.member_mut()?.receive(message)? {
            Action::Settled(settled) => {
                self.take_decision(&settled);
                return Some(settled);
            }
            Action::Send(Message::Report(report)) => Message::Report(Report { is_made, ..report }),
            Action::Send(answer) => answer,
        };
        out.put(self.group, Output::Tell(answer));
        None
    }

    /// Answers a fence once the operations before a disputed one have ended, also those that are to be called yet: they were agreed
    /// on, or need no reducer. If they do not end in time (`late`), something was wrong before, or this rank is late.
    fn answer_fence(&mut self, late: bool, out: &mut impl Outputs) {
        let Self { side: Side::Worker(member), fenced: Fenced { frozen, unanswered }, .. } = self else {
            return;
        };
        if !late && !member.has_completed(frozen.unwrap_or(0)) {
            return;
        }
        let Some(message) = unanswered.take() else { return };
        *frozen = Some(0);
        if let Some(Action::Send(answer)) = member.receive(&message) {
            out.put(self.group, Output::Tell(answer));
        }
    }

    fn settle(&mut self, settled: Settled, out: &mut impl Outputs) {
        self.take_decision(&settled);
        out.put(self.group, Output::Settled(settled));
    }

    /// What a decision changes here, also before the group is made.
    fn take_decision(&mut self, settled: &Settled) {
        self.fenced = Fenced::default();
        let failure = GroupFailure::Decided(settled.cause.clone());
        match *settled.cause {
            Cause::ReducerLost { .. } => self.without_reducers = Some(failure),
            _ if settled.cause.is_final() => self.lost = Some(failure),
            _ => {}
        }
    }

    /// A member has died: the group takes no new calls. Returns whether it did before; then operations that need more of that member
    /// are to [`fail_needing`](Self::fail_needing).
    pub fn lose(&mut self, rank: Rank, reason: &str, out: &mut impl Outputs) -> bool {
        if self.is_over() {
            return false;
        }
        let mut ranks = self.gone.take().map_or(Vec::new(), |gone| gone.ranks);
        if let Err(at) = ranks.binary_search(&rank) {
            ranks.insert(at, rank);
        }
        self.gone = Some(Gone { ranks, reason: reason.to_owned() });
        if self.hub_is_gone {
            out.put(self.group, Output::After(GRACE));
        }
        true
    }

    /// These operations fail, and all that wait, because of members that are [gone](Self::gone).
    pub fn fail_needing(&mut self, operations: impl IntoIterator<Item = u64>, out: &mut impl Outputs) {
        operations.into_iter().for_each(|sequence| self.fail(sequence));
        let ranks = self.gone.as_ref().map_or(Vec::new(), |gone| gone.ranks.clone());
        self.dispute(Cause::PeerLost { ranks }, out);
    }

    /// No rank decides any more. Waiting for a decision is in vain. If members are gone, others that know of it might
    /// leave the group without a message to this rank. So operations under way get [some time](Output::After).
    #[cold]
    pub fn lose_hub(&mut self, out: &mut impl Outputs) {
        self.hub_is_gone = true;
        if self.gone.is_some() && !self.is_over() {
            out.put(self.group, Output::After(GRACE));
        } else if self.is_undecided() {
            self.lose(0, "rank 0, which decides, is gone", out);
        }
    }

    /// [Some time](Output::After) has passed. If the hub is gone, no rank can report failures elsewhere, so operations
    /// that are still stuck fail here too.
    pub fn time_has_passed(&mut self, out: &mut impl Outputs) {
        self.answer_fence(true, out);
        if let Some(gone) = self.gone.clone().filter(|_| self.hub_is_gone && !self.is_over()) {
            self.end(GroupFailure::Gone(gone), out);
        }
    }

    /// The group is over here, whatever the others do.
    pub fn end(&mut self, failure: GroupFailure, out: &mut impl Outputs) {
        self.lost = Some(failure.clone());
        out.put(self.group, Output::Fail(failure));
    }

    /// The hub has decided about a [proposal](super::rebalance) for ports, and calls that wait for the decision
    /// continue. Returns the ports that plans use from an operation on, with its number.
    pub fn settle_ports(&mut self, outcome: &PortOutcome) -> Option<(u64, &Ports)> {
        self.switchover.settled(outcome)
    }

    /// Whether plans of the next operation use other ports of hosts than those before.
    #[inline]
    pub fn has_new_ports(&self) -> bool {
        self.switchover.is_due(self.next())
    }

    /// The ports that they use from the next operation on, if they [change](Self::has_new_ports).
    pub fn take_ports(&mut self) -> Option<&Ports> {
        let next = self.next();
        self.switchover.take_due(next)
    }

    /// The state of a group which takes the calls of another one: agreements about ports there hold here.
    #[must_use]
    pub fn succeeding(self, other: &Self) -> Self {
        Self { switchover: other.switchover.succeeded(), ..self }
    }

    /// What it has called, as far as it says so.
    fn calls(&self) -> Calls {
        let calls = self.member().map_or_else(Calls::default, Member::calls);
        if self.rules.says_calls { calls } else { Calls { hashes: Vec::new(), ..calls } }
    }
}
