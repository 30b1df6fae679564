//! The groups that this process is in, and the calls in them.

use super::{counts::Counts, group::Group, links::Links, outbox::Outbox, peer_waits::PeerWaits};
#[cfg(any(test, feature = "simulator"))]
use crate::core::{session::group_state::ReducerUse, wire::Kind};
use crate::{
    core::{
        group::Rank,
        session::{
            Cause, GroupRules, Parameters,
            control::PlanInfo,
            fence::{Admission, Check},
            group_state::GroupState,
            membership::MemberId,
            recovery::Resume,
        },
        wire::{Fingerprint, Header},
    },
    transport::{Broken, ticket::OpKey},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// How many groups of a job a reducer takes part in.
pub(super) const REDUCER_GROUPS: usize = 256;

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
    /// This rank in groups that it has not made yet, of which the hub has spoken.
    pub(super) unmade: BTreeMap<u32, GroupState>,
    /// Whether nobody decides any more.
    pub(super) hub_is_gone: bool,
    pub(super) counts: Counts,
    pub(super) peer_waits: PeerWaits,
    /// What workers have told a reducer of groups that they have not introduced yet: by group and digest.
    pub(super) parameters: BTreeMap<(u32, u64), Arc<Parameters>>,
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

    /// Adds a group, which goes on where the hub has left it. Returns what that had decided of its reducers before.
    pub(super) fn add(&mut self, mut group: Group, links: &Links, out: &mut Outbox) -> Option<Resume> {
        let Group { settings, state, .. } = &mut group;
        let id = settings.id;
        if settings.serves.is_none() {
            out.observer.note_ranks(id, &settings.ranks);
        }
        let made = std::mem::replace(state, GroupState::of_reducer(id, 0)).with_rules(self.rules);
        *state = match self.unmade.remove(&id) {
            Some(known) => known.made(made),
            None => made,
        };
        if self.hub_is_gone {
            state.lose_hub(out);
        }
        let dead = settings.members().iter().copied().filter(|id| links.endpoints[*id].dead);
        for rank in links.ranks(&dead.collect::<Vec<MemberId>>()) {
            state.lose(rank, "died before", out);
        }
        let resume = state.take_early_resume();
        self.groups.insert(id, group);
        resume
    }

    /// What a frame means to its group, by its generation, its number and the hash of all that was issued before.
    pub(super) fn judge(&mut self, header: &Header, me: Rank, out: &mut Outbox) -> Verdict {
        #[cfg(any(test, feature = "simulator"))]
        self.note_frame(header);
        let Some(group) = self.groups.get_mut(&header.group) else {
            let is_early = self.rules.keeps_early && !self.forgotten.contains(&header.group);
            return if is_early { Verdict::Park } else { Verdict::Discard };
        };
        let Group { state, .. } = group;
        // Nothing that begins later is called here any more.
        let early = if state.is_closed() { Verdict::Discard } else { Verdict::Park };
        if state.is_over() {
            return Verdict::Discard;
        }
        match state.admit(header.generation) {
            Admission::Accept => {}
            Admission::Hold => return early,
            Admission::Discard => return Verdict::Discard,
        }
        match state.check(header.sequence, header.hash) {
            Check::Match => group.operation(header.sequence).map_or(Verdict::NotRunning, Verdict::Deliver),
            Check::NotYet => early,
            Check::Forgotten => Verdict::Discard,
            Check::Differs => {
                state.dispute_frame(header.sequence, me, out);
                Verdict::Discard
            }
        }
    }

    #[cfg(any(test, feature = "simulator"))]
    fn note_frame(&self, header: &Header) {
        let state = match self.get(header.group) {
            None if self.forgotten.contains(&header.group) => "a group that is over",
            None => "no group yet",
            Some(group) if group.state.is_over() => "a group that is lost",
            Some(Group { state, .. }) => match (state.admit(header.generation), state.reducers()) {
                (Admission::Discard, _) => "an old generation",
                (Admission::Hold, _) => "a generation to come",
                (Admission::Accept, ReducerUse::InUse) => "runs",
                (Admission::Accept, ReducerUse::Suspended) => "stands still",
                (Admission::Accept, ReducerUse::Replaced { .. }) => "has recovered",
            },
        };
        let input = match header.kind {
            Kind::Data => "Data",
            Kind::Grant => "Grant",
            Kind::Stable => "Stable",
            Kind::Credit | Kind::Control | Kind::Request | Kind::Answer => return,
        };
        crate::seen::note("frames", state, input);
    }

    /// Whether a frame's operation is over, so that damage to it does not matter.
    pub(super) fn is_over(&self, header: &Header) -> bool {
        let Some(Group { state, .. }) = self.get(header.group) else { return false };
        state.is_over() || state.admit(header.generation) == Admission::Discard
    }

    /// A worker's first message tells a reducer of an operation. Returns whether it is to begin.
    pub(super) fn announced(
        &mut self,
        worker: Rank,
        header: &Header,
        sent: &Fingerprint,
        out: &mut Outbox,
    ) -> Result<bool, Broken> {
        let Some(group) = self.get_mut(header.group) else {
            return Err(Broken::Protocol("an operation of a group that was not introduced"));
        };
        let is_current = group.state.admit(header.generation) == Admission::Accept;
        let is_new = group.state.check(header.sequence, header.hash) == Check::NotYet;
        if group.state.is_over() || !is_current || !is_new {
            return Ok(false);
        }
        group.announce(header);
        let refused = group.state.reducer().and_then(|reducer| reducer.refused(sent.plan));
        let Some(reason) = refused.map(ToOwned::to_owned) else { return Ok(true) };
        let (address, sequence) = (group.own_address(), sent.sequence);
        group.state.dispute(Cause::ReducerLost { address, rank: worker, reason, sequence }, out);
        Ok(false)
    }

    /// A reducer is told what a group uses, before it is told of the group.
    pub(super) fn learn_parameters(&mut self, group: u32, parameters: Parameters) -> Result<(), Broken> {
        if self.groups.contains_key(&group) {
            return Ok(());
        }
        if self.parameters.len() >= REDUCER_GROUPS {
            return Err(Broken::Protocol("the parameters of more groups than a reducer takes"));
        }
        self.parameters.insert((group, parameters.digest()), Arc::new(parameters));
        Ok(())
    }

    /// A worker tells a reducer what a plan is made from.
    pub(super) fn learn_plan(&mut self, worker: &str, planned: &PlanInfo) -> Result<(), Broken> {
        let PlanInfo { group, generation, basis } = planned;
        match self.get_mut(*group).filter(|group| group.state.generation() == *generation) {
            Some(group) => group.take_plan(worker, basis),
            // Of a group or a generation that is over here.
            None => Ok(()),
        }
    }
}
