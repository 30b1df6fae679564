//! The groups that this process is in, and what is called in them.

use super::{
    counts::Counts,
    doom::{Doom, error},
    elsewhere::Elsewhere,
    group::{Group, Recovering, Settings},
    links::Links,
    outbox::Outbox,
    refused::Refused,
};
#[cfg(any(test, feature = "simulator"))]
use crate::core::wire::Kind;
use crate::{
    Error, ErrorKind,
    core::{
        group::Rank,
        session::{
            Cause, GroupRules, Mismatch, Parameters,
            control::{Introduction, PlanTold},
            fence::{Admission, Check, Member, NotIssued},
            membership::MemberId,
        },
        wire::{Fingerprint, Header},
    },
    execute::issue::{Identity, Issue, NumberedCall, PlanKey},
    transport::{Broken, ticket::OpKey},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// How many groups of a job a reducer takes part in.
const REDUCER_GROUPS: usize = 256;

/// What to do with a frame.
pub(super) enum Verdict {
    /// Its operation runs.
    Deliver(OpKey),
    /// It is early.
    Park,
    /// Its operation does not run: it has not started, or is over.
    NotRunning,
    /// It belongs to something that is over.
    Discard,
}

/// The groups that this process is in.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    pub(super) rules: GroupRules,
    pub(super) groups: BTreeMap<u32, Group>,
    /// The numbers of groups that are gone.
    pub(super) forgotten: BTreeSet<u32>,
    /// The groups that take calls which are lines of their own, and the group that they are meant for.
    lines: BTreeMap<u32, u32>,
    /// What the hub has said of groups that this rank has not made yet.
    pub(super) unmade: BTreeMap<u32, Member>,
    pub(super) counts: Counts,
    pub(super) elsewhere: Elsewhere,
    /// What workers have told a reducer of groups that they have not introduced yet: by group and digest.
    parameters: BTreeMap<(u32, u64), Arc<Parameters>>,
}

impl Groups {
    /// None yet, whose members follow these rules.
    pub(super) fn new(rules: GroupRules) -> Self {
        Self { rules, ..Self::default() }
    }

    pub(crate) fn get(&self, number: u32) -> Option<&Group> {
        self.groups.get(&number)
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut Group> {
        self.groups.get_mut(&number)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Group> {
        self.groups.values()
    }

    /// How many there are.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.groups.len()
    }

    /// Whether there is a group of this number, or was one.
    pub(super) fn has_had(&self, number: u32) -> bool {
        self.groups.contains_key(&number) || self.forgotten.contains(&number)
    }

    /// A group of this number is to take a line of another one's calls. Returns whether the number is free.
    pub(super) fn add_line(&mut self, of: u32, number: u32) -> bool {
        let is_free = !self.has_had(number);
        if is_free {
            self.lines.insert(number, of);
        }
        is_free
    }

    /// The groups that take a group's lines.
    pub(super) fn lines_of(&self, number: u32) -> Vec<u32> {
        self.lines.iter().filter(|(_, of)| **of == number).map(|(line, _)| *line).collect()
    }

    /// A group is over.
    pub(super) fn forget_lines(&mut self, number: u32) {
        self.lines.retain(|line, of| *line != number && *of != number);
    }

    /// Adds a group, which goes on where the hub has left it.
    pub(super) fn add(&mut self, mut group: Group, links: &Links) {
        let id = group.settings.id;
        if let Some(member) = self.unmade.remove(&id) {
            group.follow(member);
        }
        group.doom = doomed_by(group.settings.members(), links);
        self.groups.insert(id, group);
    }

    /// Numbers a call, whose plan may be known, and adds it to what rank `me` has issued.
    pub(super) fn agree(
        &mut self,
        issue: &Issue,
        plan: Option<PlanKey>,
        (me, out): (Rank, &mut Outbox),
    ) -> Result<NumberedCall, Refused> {
        let Self { groups, elsewhere, rules, .. } = self;
        let group = groups.get_mut(&issue.group).filter(|group| !group.ending.is_dropped);
        let group =
            group.ok_or_else(|| Error::new(ErrorKind::Closed).about(me, issue.call.collective.name()))?;
        let (planned, _) =
            group.plan_at(plan, issue.call, &mut out.observer).map_err(|error| error.at(me))?;
        let (plan, with_reducers, algorithm) = (planned.key, planned.with_reducers, planned.number);
        let mut fingerprint = planned.fingerprint;
        fingerprint.sequence = group.member.next();
        (fingerprint.priority, fingerprint.mark) = (issue.manner.priority, issue.manner.mark);
        if let Some(error) = &group.lost {
            let error = error.about(me, group.settings.named(fingerprint));
            group.member.learn();
            return Err(error.into());
        }
        if let Some(doom) = &group.doom {
            let error = doom.error.about(me, group.settings.named(fingerprint));
            out.dispute(group, Cause::PeerLost { ranks: doom.ranks.clone() });
            return Err(error.into());
        }
        if rules.stands_still && group.recovering == Recovering::StandsStill {
            // The others were told how many calls there are here.
            return Err(Refused::Frozen);
        }
        let at = (issue.group, group.member.generation());
        let issued = group.member.issue(fingerprint).map_err(|reason| match reason {
            NotIssued::Frozen => Refused::Frozen,
            NotIssued::Failed(failed) => {
                let explained = elsewhere.explained(issue.group, &failed.cause).cloned();
                let error = explained.unwrap_or_else(|| error(&failed.cause, &group.settings.ranks));
                let error = error.about(me, group.settings.named(fingerprint));
                if failed.sequence.is_none() {
                    return Refused::Failed(error);
                }
                let (group, generation) = at;
                let id = Identity { group, generation, hash: 0, fingerprint, number: out.observer.next() };
                out.observer.issued(&id, algorithm);
                out.observer.ended(&id, out.now(), &Err(error.clone()));
                Refused::Counted(error)
            }
        })?;
        if let Some(cause) = group.member.departs(&issued) {
            out.dispute(group, cause);
        }
        let (hash, generation) = (issued.hash, issued.generation);
        let id = Identity { group: issue.group, generation, hash, fingerprint, number: out.observer.next() };
        out.observer.issued(&id, algorithm);
        if let Some(error) = group.without_reducers.as_ref().filter(|_| with_reducers) {
            // All ranks know, and fail the same call: there is nothing to decide.
            group.member.complete(issued.fingerprint.sequence, false);
            let error = error.about(me, group.settings.named(issued.fingerprint));
            out.observer.ended(&id, out.now(), &Err(error.clone()));
            return Err(Refused::Counted(error));
        }
        out.answer(group);
        Ok(NumberedCall { id, plan, timeout: issue.manner.timeout.unwrap_or(group.settings.timeout) })
    }

    /// A call that has waited for its timeout and was not issued takes its number and fails, everywhere: else the ranks' next
    /// calls would not meet.
    ///
    /// # Errors
    /// [`Refused::Counted`] once it has; else see [`agree`](Self::agree).
    pub(super) fn issue_late(
        &mut self,
        issue: &Issue,
        waiting_for: Vec<Rank>,
        (links, out): (&Links, &mut Outbox),
    ) -> Result<(), Refused> {
        let NumberedCall { id, timeout, .. } = self.agree(issue, None, (links.rank, out))?;
        let Some(group) = self.get_mut(issue.group) else { return Ok(()) };
        group.member.fail(id.fingerprint.sequence);
        let milliseconds = timeout.as_millis() as u64;
        let (rank, operation) = (links.rank, id.fingerprint);
        let cause = Cause::Timeout { rank, operation, milliseconds, waiting_for };
        let error = error(&cause, &[]);
        out.observer.ended(&id, out.now(), &Err(error.clone()));
        out.dispute(group, cause);
        Err(Refused::Counted(error))
    }

    /// What a frame means to its group, by its generation, its number and the hash of all that was issued before.
    pub(super) fn judge(&self, header: &Header, me: Rank, out: &mut Outbox) -> Verdict {
        #[cfg(any(test, feature = "simulator"))]
        self.note_frame(header);
        let Some(group) = self.get(header.group) else {
            let is_early = self.rules.keeps_early && !self.forgotten.contains(&header.group);
            return if is_early { Verdict::Park } else { Verdict::Discard };
        };
        // Nothing that begins later is called here any more.
        let early = if group.ending.is_dropped { Verdict::Discard } else { Verdict::Park };
        if group.is_lost() {
            return Verdict::Discard;
        }
        match group.admission(header, group.reduces()) {
            Admission::Accept => {}
            Admission::Hold => return early,
            Admission::Discard => return Verdict::Discard,
        }
        match group.check(header, group.reduces()) {
            Check::Match => match group.operation(header.sequence) {
                Some(key) => Verdict::Deliver(key),
                None => Verdict::NotRunning,
            },
            Check::NotYet => early,
            Check::Forgotten => Verdict::Discard,
            Check::Differs => {
                let own = group.member.issued(header.sequence).map(|own| (me, *own));
                out.dispute(group, Cause::Mismatch(Mismatch::new(header.sequence, own)));
                Verdict::Discard
            }
        }
    }

    #[cfg(any(test, feature = "simulator"))]
    fn note_frame(&self, header: &Header) {
        let state = match self.get(header.group) {
            None if self.forgotten.contains(&header.group) => "a group that is over",
            None => "no group yet",
            Some(group) if group.is_lost() => "a group that is lost",
            Some(group) => match (group.admission(header, group.reduces()), group.recovering) {
                (Admission::Discard, _) => "an old generation",
                (Admission::Hold, _) => "a generation to come",
                (Admission::Accept, Recovering::No) => "runs",
                (Admission::Accept, Recovering::StandsStill) => "stands still",
                (Admission::Accept, Recovering::Over { .. }) => "has recovered",
            },
        };
        let input = match header.kind {
            Kind::Data => "Data",
            Kind::Grant => "Grant",
            Kind::Stable => "Stable",
            Kind::Credit | Kind::Control => return,
        };
        crate::seen::note("frames", state, input);
    }

    /// A message's sender has more for this rank than it expects, or less: what the two have.
    pub(super) fn uneven(
        &self,
        (number, sequence): (u32, u64),
        (from, to): (Rank, Rank),
        (sent, expected): (u64, u64),
        out: &mut Outbox,
    ) {
        let Some(group) = self.get(number) else { return };
        let Some(operation) = group.member.issued(sequence).copied() else { return };
        out.dispute(group, Cause::Uneven { operation, from, to, sent, expected });
    }

    /// Whether a frame's operation is over, so that damage to it does not matter.
    pub(super) fn is_over(&self, header: &Header) -> bool {
        let Some(group) = self.get(header.group) else { return false };
        group.is_lost() || group.admission(header, group.reduces()) == Admission::Discard
    }

    /// A worker's first message tells a reducer of an operation. Returns whether it is to begin.
    pub(super) fn announced(
        &mut self,
        worker: Rank,
        header: &Header,
        told: &Fingerprint,
        out: &mut Outbox,
    ) -> Result<bool, Broken> {
        let Some(group) = self.get_mut(header.group) else {
            return Err(Broken::Protocol("an operation of a group that was not introduced"));
        };
        let current = group.admission(header, true) == Admission::Accept;
        if group.is_lost() || !current || group.check(header, true) != Check::NotYet {
            return Ok(false);
        }
        group.note_told(header, *told);
        let Some(reason) = group.refused_plan(told.plan) else { return Ok(true) };
        let (address, reason, sequence) = (group.own_address(), reason.to_owned(), told.sequence);
        out.dispute(group, Cause::ReducerLost { address, rank: worker, reason, sequence });
        Ok(false)
    }

    /// A reducer is told what a group uses, before it is told of the group.
    pub(super) fn told_parameters(&mut self, group: u32, parameters: Parameters) -> Result<(), Broken> {
        if self.groups.contains_key(&group) {
            return Ok(());
        }
        if self.parameters.len() >= REDUCER_GROUPS {
            return Err(Broken::Protocol("the parameters of more groups than a reducer takes"));
        }
        self.parameters.insert((group, parameters.digest()), Arc::new(parameters));
        Ok(())
    }

    /// A reducer is told of a group, or of its next generation.
    pub(super) fn join(
        &mut self,
        told: &Introduction,
        (links, out): (&Links, &mut Outbox),
    ) -> Result<(), Broken> {
        let known = self.get(told.group);
        if known.is_some_and(|group| group.told_generation() >= told.generation) {
            return Ok(());
        }
        let before = known.map(|group| group.settings.parameters.clone());
        let parameters = before.or_else(|| self.parameters.remove(&(told.group, told.parameters)));
        let parameters = parameters.ok_or(Broken::Protocol("a group whose parameters were not told"))?;
        self.parameters.retain(|(group, _), _| *group != told.group);
        self.remove(told.group, out);
        let ranks = links.ranks(&told.members);
        let possible =
            ranks.len() == told.members.len() && told.reducers as usize == parameters.reducers.len();
        if self.groups.len() >= REDUCER_GROUPS || !possible {
            return Err(Broken::Protocol("more groups than a reducer takes, or members that cannot be"));
        }
        let settings = Settings::told(told, links.me, ranks.clone(), parameters);
        let mut group = Group::new(settings, Member::new(told.group, links.rank, ranks));
        group.begin_generation(told.generation);
        self.groups.insert(told.group, group);
        Ok(())
    }

    /// A worker tells a reducer what a plan is made from.
    pub(super) fn told_plan(&mut self, worker: &str, planned: &PlanTold) -> Result<(), Broken> {
        let PlanTold { group, generation, basis } = planned;
        match self.get_mut(*group).filter(|group| group.told_generation() == *generation) {
            Some(group) => group.told_plan(worker, basis),
            // Of a group or a generation that is over here.
            None => Ok(()),
        }
    }

    /// A reducer is done with a group.
    fn remove(&mut self, number: u32, out: &mut Outbox) {
        self.close(number, &Error::new(ErrorKind::Closed), out);
        self.groups.remove(&number);
    }

    /// A worker tells a reducer that it takes no part in a group any more.
    pub(super) fn dropped_by(&mut self, worker: MemberId, number: u32, out: &mut Outbox) {
        let Some(group) = self.get_mut(number) else { return };
        group.ending.dropped_by.insert(worker);
        if group.settings.members().iter().all(|worker| group.ending.dropped_by.contains(worker)) {
            self.remove(number, out);
        }
    }
}

/// What a group that is made now learns of members that died before.
fn doomed_by(members: &[MemberId], links: &Links) -> Option<Doom> {
    let dead: Vec<MemberId> = members.iter().copied().filter(|id| links.endpoints[*id].dead).collect();
    let ranks = links.ranks(&dead);
    let error = links.lost(&ranks, "died before");
    (!ranks.is_empty()).then_some(Doom { ranks, error })
}
