//! A member's side of the fence: its numbers, its history, and the messages that it still has to send.

use super::{
    super::{
        basis::Basis,
        cause::{Cause, Mismatch},
        close_check::CloseQuestion,
        control::{Decision, Dispute, Message, Ordinal, REPORTED, Report, Waiting},
        recovery::{Calls, Resume},
    },
    history::{History, HistoryEntry},
};
use crate::{group::Rank, wire::Fingerprint};
use alloc::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    vec::Vec,
};
use core::cmp::Ordering;

/// How many decisions a member may be behind with; see [`Member::issue`].
const UNREPORTED: usize = 64;

/// One rank's place in one group.
///
/// Every call of a collective goes through [`issue`](Self::issue). If it was issued, it then goes through exactly one
/// of [`complete`](Self::complete), [`fail`](Self::fail) or a [`Settled`] that fails all open calls.
#[derive(Debug)]
pub struct Member {
    rank: Rank,
    group: u32,
    members: Arc<[Rank]>,
    /// What names the group, if it is that.
    ordinal: Option<Ordinal>,
    generation: u32,
    phase: Phase,
    history: History,
    unreported: VecDeque<UnreportedFailure>,
    /// What others have asked that leave, and this member has not answered.
    questions: Vec<CloseQuestion>,
    /// What the plans of its operations were made from, by digest.
    plans: BTreeMap<u64, Arc<Basis>>,
    /// Why the group is over at this member.
    ended: Option<Arc<Cause>>,
}

/// The state of a member in its generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Operations run.
    Running,
    /// It has called for a fence.
    Disputed,
    /// It has reported and waits for the decision.
    Frozen,
}

/// A decision that calls still to come have to learn of.
#[derive(Debug)]
struct UnreportedFailure {
    /// Calls below this number fail.
    below: u64,
    cause: Arc<Cause>,
    /// Whether a call has.
    is_reported: bool,
    /// Whether a call has ended well that is below it: no call to come fails for that.
    is_late: bool,
}

/// An operation that can begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Issued {
    /// Its generation.
    pub generation: u32,
    /// The rolling hash after it; 0 of one that has failed already.
    pub hash: u64,
    /// Its fingerprint, with its number.
    pub fingerprint: Fingerprint,
}

/// Why a call does not become an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotIssued<Why> {
    /// A decision is under way: call again after it.
    Frozen,
    /// The group is over here, so it has failed, and took no number.
    Failed(Why),
    /// It has failed, as the operation of its number does on the other members.
    Counted(Issued, Why),
}

impl<Why> NotIssued<Why> {
    /// The same, with another form of the reason.
    pub(crate) fn map<Other>(self, form: impl FnOnce(Why) -> Other) -> NotIssued<Other> {
        match self {
            Self::Frozen => NotIssued::Frozen,
            Self::Failed(why) => NotIssued::Failed(form(why)),
            Self::Counted(issued, why) => NotIssued::Counted(issued, form(why)),
        }
    }
}

/// How a frame's rolling hash compares with this member's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Check {
    /// Both issued the same operations so far.
    Match,
    /// They did not.
    Differs,
    /// This member has not called that operation.
    NotYet,
    /// The operation is further back than this member remembers, and over.
    Forgotten,
}

/// The treatment of a frame, by its generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Admission {
    /// Use it.
    Accept,
    /// Skip it: its operation has failed, or is about to.
    Discard,
    /// Keep it until the decision that begins its generation arrives.
    Hold,
}

/// The action of a member after a message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "it is looked at where it is returned, and not kept")]
pub enum Action {
    /// Send this to the hub.
    Send(Message),
    /// A decision has come.
    Settled(Settled),
}

/// The end of a generation at this member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    /// The generation that begins.
    pub generation: u32,
    /// Operations below this number have failed, unless they were complete.
    pub below: u64,
    /// Why.
    pub cause: Arc<Cause>,
    /// Whether there are such operations: the caller fails all that are open. Otherwise a call to come will learn of it.
    pub fails_open: bool,
}

impl Member {
    /// A member that has issued nothing, in generation 0. `members` ascend and contain `rank`.
    pub fn new(group: u32, rank: Rank, members: Vec<Rank>) -> Self {
        Self {
            rank,
            group,
            members: members.into(),
            ordinal: None,
            generation: 0,
            phase: Phase::Running,
            history: History::default(),
            unreported: VecDeque::new(),
            questions: Vec::new(),
            plans: BTreeMap::new(),
            ended: None,
        }
    }

    /// The same, whose first operation has this number.
    #[must_use]
    pub fn starting_at(self, first: u64) -> Self {
        Self { history: History::new(first, first), ..self }
    }

    /// The same, of a group that this names.
    #[must_use]
    pub fn named(self, ordinal: Option<Ordinal>) -> Self {
        Self { ordinal, ..self }
    }

    /// The same member, for a group whose members, name and first number have just become known: it takes them from
    /// `made`.
    #[must_use]
    pub fn made(mut self, made: &Self) -> Self {
        self.history.next = self.history.next.max(made.history.next);
        self.history.first = self.history.first.max(made.history.first);
        Self { members: made.members.clone(), ordinal: made.ordinal, ..self }
    }

    /// The group's number.
    pub fn group(&self) -> u32 {
        self.group
    }

    /// The current generation, to be written into frames.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// The group's name, if it is an ordinal.
    pub fn ordinal(&self) -> Option<Ordinal> {
        self.ordinal
    }

    /// The state in this generation.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Whether the group is over at this member.
    pub fn is_over(&self) -> bool {
        self.ended.is_some()
    }

    /// The number of the first operation of this generation.
    pub fn first(&self) -> u64 {
        self.history.first
    }

    /// The number of the next operation: how many were issued, or failed in their place.
    pub fn next(&self) -> u64 {
        self.history.next
    }

    /// The calls of this generation, as far as it remembers them.
    pub fn calls(&self) -> Calls {
        let Self { generation, history: History { next, operations, .. }, .. } = self;
        let hidden = operations.len().saturating_sub(Calls::KNOWN);
        let (generation, next) = (*generation, *next);
        Calls { generation, next, hashes: operations.iter().skip(hidden).map(|called| called.hash).collect() }
    }

    /// The hub reports these calls of the others: this member's [calls](Self::departs) must be the same from now on.
    pub fn follow(&mut self, resume: &Resume) {
        if resume.calls.generation == self.generation {
            self.history.others = resume.calls.clone();
        }
    }

    /// The cause to [dispute](Self::dispute) if an operation differs from the others' call that this member has to
    /// [follow](Self::follow).
    pub fn departs(&self, issued: &Issued) -> Option<Cause> {
        let Issued { hash, fingerprint, .. } = *issued;
        let others = self.history.others.hash(fingerprint.sequence)?;
        let own = (self.rank, fingerprint);
        (others != hash).then(|| Cause::Mismatch(Mismatch::new(fingerprint.sequence, [own])))
    }

    /// Whether it has issued all operations below this number, and their callers know how they ended.
    pub fn has_completed(&self, below: u64) -> bool {
        let all = below.checked_sub(1).is_none_or(|last| self.history.is_complete(last));
        self.history.next >= below && all
    }

    /// The last operation of this generation.
    pub fn last(&self) -> Option<&Fingerprint> {
        self.history.operations.back().map(|last| &last.fingerprint)
    }

    /// The number of the last operation that is over for its caller, though earlier ones might not be.
    pub fn over(&self) -> Option<u64> {
        let History { next, operations, .. } = &self.history;
        let over = operations.iter().rposition(|operation| !operation.open);
        let forgotten = next.checked_sub(operations.len() as u64)?;
        (forgotten + over.map_or(0, |at| at as u64 + 1)).checked_sub(1)
    }

    /// The inputs of a plan, so that a fence can report the differences. `plan` is its digest.
    pub fn planned(&mut self, plan: u64, basis: &Arc<Basis>) {
        self.plans.entry(plan).or_insert_with(|| basis.clone());
    }

    /// A collective is called; its fingerprint's sequence is filled in here.
    ///
    /// A call that has to report a decision reports one, in the order of decisions. If more than 64 are outstanding,
    /// the last one also stands for all later ones.
    pub fn issue(&mut self, call: Fingerprint) -> Result<Issued, NotIssued<Arc<Cause>>> {
        if let Some(cause) = self.ended.clone() {
            self.learn();
            return Err(NotIssued::Failed(cause));
        }
        if !self.unreported.is_empty()
            && let Some(cause) = self.learn_next()
        {
            let fingerprint = Fingerprint { sequence: self.history.next, ..call };
            self.history.next += 1;
            let issued = Issued { generation: self.generation, hash: 0, fingerprint };
            return Err(NotIssued::Counted(issued, cause));
        }
        if self.phase != Phase::Running {
            return Err(NotIssued::Frozen);
        }
        let (hash, fingerprint) = self.history.add(call);
        Ok(Issued { generation: self.generation, hash, fingerprint })
    }

    /// The decision that the next call has to learn of, if there is one.
    #[cold]
    fn learn_next(&mut self) -> Option<Arc<Cause>> {
        let next = self.history.next;
        self.unreported.retain(|failure| next < failure.below || failure.is_late && !failure.is_reported);
        let failure = self.unreported.iter_mut().find(|failure| next < failure.below)?;
        failure.is_reported = true;
        Some(failure.cause.clone())
    }

    /// An operation has succeeded, and its caller can know. `hears_all`: it cannot have, unless all members have issued the same up
    /// to it.
    pub fn complete(&mut self, sequence: u64, hears_all: bool) {
        self.history.has_ended_late |= self.phase == Phase::Frozen && sequence >= self.history.first;
        self.history.complete(sequence);
        let hears_all = hears_all && self.history.entry(sequence).is_none_or(|own| !own.besides_uneven);
        if hears_all && sequence >= self.history.first {
            self.history.confirmed = self.history.confirmed.max(sequence + 1);
        }
    }

    /// An operation has failed, and its caller can know, ahead of a decision; [`dispute`](Self::dispute) must follow.
    pub fn fail(&mut self, sequence: u64) {
        self.history.complete(sequence);
        self.history.has_failed_early |= sequence >= self.history.first;
    }

    /// Compares a frame of the current generation with the history.
    pub fn check(&self, sequence: u64, hash: u64) -> Check {
        if sequence >= self.history.next {
            return Check::NotYet;
        }
        match self.history.entry(sequence) {
            Some(own) if own.hash == hash => Check::Match,
            Some(_) => Check::Differs,
            None => Check::Forgotten,
        }
    }

    /// The operation that this member issued under a number of the current generation, if it remembers it.
    pub fn issued(&self, sequence: u64) -> Option<&Fingerprint> {
        self.history.entry(sequence).map(|operation| &operation.fingerprint)
    }

    /// The treatment of a frame of a generation.
    pub fn admit(&self, generation: u32) -> Admission {
        match generation.cmp(&self.generation) {
            _ if self.ended.is_some() => Admission::Discard,
            Ordering::Less => Admission::Discard,
            Ordering::Equal if self.phase == Phase::Frozen => Admission::Discard,
            Ordering::Equal => Admission::Accept,
            Ordering::Greater => Admission::Hold,
        }
    }

    /// The message to the hub about an operation that has to wait, after `round` earlier ones. `None` if a fence is
    /// under way, or the operation is not in this generation.
    pub fn waiting(&self, sequence: u64, round: u32) -> Option<Message> {
        let HistoryEntry { hash, fingerprint, .. } = *self.history.entry(sequence)?;
        let Self { rank, group, generation, .. } = *self;
        let running = self.phase == Phase::Running;
        running.then_some(Message::Waiting(Waiting { rank, group, generation, round, hash, fingerprint }))
    }

    /// The cause to [dispute](Self::dispute) when a frame from `rank` [differs](Check::Differs), or carries another
    /// fingerprint than this member issued.
    pub fn mismatch(&self, rank: Rank, theirs: Fingerprint) -> Cause {
        let own = self.issued(theirs.sequence).map(|own| (self.rank, *own));
        Cause::Mismatch(Mismatch::new(theirs.sequence, own.into_iter().chain([(rank, theirs)])))
    }

    /// Calls for a fence; to be sent to the hub. `None` if one is under way already, or the group is over.
    pub fn dispute(&mut self, cause: Cause) -> Option<Message> {
        if self.phase != Phase::Running || self.ended.is_some() {
            return None;
        }
        self.phase = Phase::Disputed;
        let Self { group, generation, ordinal, .. } = *self;
        Some(Message::Dispute(Dispute { group, generation, members: self.members.to_vec(), cause, ordinal }))
    }

    /// The question to the others before it leaves; `None` if it knows that all have issued the same, or a fence is
    /// under way.
    pub fn question(&self) -> Option<CloseQuestion> {
        let Self { rank, group, generation, ref history, .. } = *self;
        let HistoryEntry { hash, fingerprint, .. } = *history.operations.back()?;
        let runs = self.phase == Phase::Running && self.ended.is_none();
        let asks = runs && self.members.len() > 1 && history.confirmed < history.next;
        asks.then_some(CloseQuestion { rank, group, generation, hash, fingerprint })
    }

    /// A call has failed because the group is over, and has reported why.
    pub fn learn(&mut self) {
        self.unreported.iter_mut().for_each(|failure| failure.is_reported = true);
    }

    /// Why operations have failed elsewhere that were complete here, if no call of this member has reported it; once.
    /// `None` if the group is over for it, or if this member has not called the failed operation: then others have
    /// waited for it there. But a rank that has left without a call has kept no other waiting.
    pub fn take_unreported(&mut self) -> Option<Arc<Cause>> {
        let at = self.unreported.iter().position(|failure| self.is_news(failure))?;
        let failure = &mut self.unreported[at];
        failure.is_reported = true;
        Some(failure.cause.clone())
    }

    fn is_news(&self, failure: &UnreportedFailure) -> bool {
        let next = self.history.next;
        let was_issued = failure.cause.sequence().is_none_or(|sequence| sequence < next);
        let failed = self.ended.is_none() && (next < failure.below || failure.is_late) && was_issued;
        !failure.is_reported && (failed || matches!(*failure.cause, Cause::Left { .. }))
    }

    /// Whether all is known about its calls: all members have called the same, or the failure has been reported.
    pub fn is_settled(&self) -> bool {
        let is_decided = self.phase == Phase::Running || self.ended.is_some();
        let has_news = self.unreported.iter().any(|failure| self.is_news(failure));
        is_decided && self.question().is_none() && !has_news
    }

    /// That it leaves without a call about which another member has asked, if it leaves now.
    pub fn missed(&self) -> Option<Cause> {
        let is_missed = |question: &&CloseQuestion| question.fingerprint.sequence >= self.history.next;
        let question = self.questions.iter().find(is_missed).filter(|_| self.ended.is_none())?;
        let CloseQuestion { rank: caller, fingerprint: operation, .. } = *question;
        Some(Cause::Left { ranks: [self.rank].into(), operation, caller })
    }

    /// The next answer to a [question](super::super::close_check), for the hub: a confirmation of the same calls, or a
    /// dispute. A new answer can exist whenever it has issued or completed an operation, and when it was asked.
    #[inline]
    pub fn next_answer(&mut self) -> Option<Message> {
        if self.questions.is_empty() { None } else { self.find_answer() }
    }

    #[cold]
    fn find_answer(&mut self) -> Option<Message> {
        if self.phase != Phase::Running || self.history.has_failed_early {
            return None;
        }
        let answer = |question: &CloseQuestion| {
            let sequence = question.fingerprint.sequence;
            match self.check(sequence, question.hash) {
                Check::NotYet => None,
                Check::Match if !self.history.is_complete(sequence) => None,
                check => Some(check),
            }
        };
        let found =
            self.questions.iter().enumerate().find_map(|(at, question)| Some((at, answer(question)?)));
        let (at, check) = found?;
        let question = self.questions.swap_remove(at);
        match check {
            Check::Differs => self.dispute(self.mismatch(question.rank, question.fingerprint)),
            _ => Some(Message::Confirmed(question.confirmed())),
        }
    }

    /// This member takes no part any more, and its operations under way fail here. Send the result to the hub, in any
    /// phase. `None` if the group is over.
    pub fn abort(&self) -> Option<Message> {
        if self.ended.is_some() {
            return None;
        }
        let Self { rank, group, generation, ordinal, .. } = *self;
        let cause = Cause::Aborted { rank, sequence: self.history.first_open() };
        Some(Message::Dispute(Dispute { group, generation, members: self.members.to_vec(), cause, ordinal }))
    }

    /// A message from the hub about this group.
    pub fn receive(&mut self, message: &Message) -> Option<Action> {
        match message {
            Message::Confirm(question) if question.generation == self.generation => {
                self.questions.retain(|earlier| earlier.rank != question.rank);
                self.questions.push(*question);
                None
            }
            Message::Confirmed(confirmation)
                if self.question().is_some_and(|own| own.confirmed() == *confirmation) =>
            {
                self.history.confirmed = self.history.next;
                None
            }
            Message::Fence { generation, cause, .. } if *generation == self.generation => self.freeze(cause),
            Message::Decide(decision) if decision.generation == self.generation => self.settle(decision),
            Message::Waiting(theirs) if theirs.generation == self.generation => self.compare(theirs),
            _ => None,
        }
    }

    /// A member that is over still reports: the others' fence must not wait for it.
    fn freeze(&mut self, cause: &Cause) -> Option<Action> {
        if self.phase == Phase::Frozen {
            return None;
        }
        self.phase = Phase::Frozen;
        let next = self.history.next;
        let end = cause.sequence().map_or(next, |disputed| next.min(disputed.saturating_add(1)));
        let start = end.saturating_sub(REPORTED as u64);
        let recent: Vec<Fingerprint> =
            (start..end).filter_map(|sequence| self.issued(sequence).copied()).collect();
        let digests: BTreeSet<u64> = recent.iter().map(|operation| operation.plan).collect();
        let plans = digests.iter().filter_map(|digest| self.plans.get(digest));
        let plans = plans.map(|basis| Basis::clone(basis)).collect();
        let Self { group, generation, .. } = *self;
        let after_unreported = self.unreported.back().map_or(next, |failure| failure.below.max(next));
        let learns_later = self.history.open == 0 && !self.history.has_failed_early;
        let below = after_unreported.saturating_add(u64::from(learns_later));
        let is_made = true;
        let report = Report { group, generation, is_made, next, below, recent, plans };
        Some(Action::Send(Message::Report(report)))
    }

    fn settle(&mut self, decision: &Decision) -> Option<Action> {
        self.generation += 1;
        self.phase = Phase::Running;
        if self.ended.is_some() {
            return None;
        }
        let cause = Arc::new(decision.cause.clone());
        if cause.is_final() {
            self.ended = Some(cause.clone());
        }
        let (below, fails_open) = (decision.next, self.history.open > 0);
        if self.unreported.len() == UNREPORTED {
            self.unreported.pop_back();
        }
        let is_reported = fails_open || self.history.has_failed_early;
        let is_late = self.history.has_ended_late;
        self.unreported.push_back(UnreportedFailure { below, cause: cause.clone(), is_reported, is_late });
        self.questions.clear();
        self.history = History::new(self.history.next, below);
        Some(Action::Settled(Settled { generation: self.generation, below, cause, fails_open }))
    }

    fn compare(&mut self, theirs: &Waiting) -> Option<Action> {
        if self.check(theirs.fingerprint.sequence, theirs.hash) != Check::Differs {
            return None;
        }
        let cause = self.mismatch(theirs.rank, theirs.fingerprint);
        self.dispute(cause).map(Action::Send)
    }
}
