//! The groups that this process is in, and what is called in them.

use super::{
    doom::{Doom, error},
    group::{self, Group},
    links::Links,
    outbox::{Event, Outbox, Todo},
    refused::Refused,
};
use crate::{
    Error, ErrorKind,
    core::{
        group::Rank,
        session::{
            Cause, Mismatch,
            control::{Introduction, Message},
            fence::{Admission, Check, Member, NotIssued},
        },
        wire::{Fingerprint, Header},
    },
    execute::{
        issue::{Identity, Issue},
        program::Sizing,
    },
    transport::{Broken, ticket::OpKey},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
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
    pub(super) groups: BTreeMap<u32, Group>,
    /// The numbers of groups that are gone.
    pub(super) forgotten: BTreeSet<u32>,
    /// What the hub has said of groups that this rank has not made yet.
    pub(super) unmade: BTreeMap<u32, Member>,
}

impl Groups {
    pub(crate) fn get(&self, number: u32) -> Option<&Group> {
        self.groups.get(&number)
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut Group> {
        self.groups.get_mut(&number)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Group> {
        self.groups.values()
    }

    /// Whether there is a group of this number, or was one.
    pub(super) fn has_had(&self, number: u32) -> bool {
        self.groups.contains_key(&number) || self.forgotten.contains(&number)
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

    /// Numbers a call and adds it to what rank `me` has issued. Returns also how long it may take if it does not say.
    pub(super) fn agree(
        &mut self,
        issue: &Issue,
        me: u32,
        out: &mut Outbox,
    ) -> Result<(Identity, Duration), Refused> {
        let group = self.get_mut(issue.group).ok_or_else(|| Error::new(ErrorKind::Closed))?;
        let planned = group.plan(issue.call, &mut out.observer).map_err(|error| error.at(me))?;
        let (mut fingerprint, with_reducers, algorithm) =
            (planned.fingerprint, planned.with_reducers, planned.number);
        (fingerprint.sequence, fingerprint.priority) = (group.member.next(), issue.priority);
        if let Some(error) = &group.lost {
            return Err(error.about(me, group.settings.named(fingerprint)).into());
        }
        if let Some(doom) = &group.doom {
            let error = doom.error.about(me, group.settings.named(fingerprint));
            out.dispute(group, Cause::PeerLost { ranks: doom.ranks.clone() });
            return Err(error.into());
        }
        let at = (issue.group, group.member.generation());
        let issued = group.member.issue(fingerprint).map_err(|reason| match reason {
            NotIssued::Frozen => Refused::Frozen,
            NotIssued::Failed(failed) => {
                let error = error(&failed.cause, group.settings.members());
                let error = error.about(me, group.settings.named(fingerprint));
                if failed.sequence.is_none() {
                    return Refused::Failed(error);
                }
                let id = out.observer.issued(at, (fingerprint, 0), algorithm);
                out.observer.ended(&id, out.now(), &Err(error.clone()));
                Refused::Counted(error)
            }
        })?;
        let (hash, generation) = (issued.hash, issued.generation);
        let id = out.observer.issued((issue.group, generation), (fingerprint, hash), algorithm);
        if let Some(error) = group.without_reducers.as_ref().filter(|_| with_reducers) {
            // All ranks know, and fail the same call: there is nothing to decide.
            group.member.complete(issued.fingerprint.sequence);
            let error = error.about(me, group.settings.named(issued.fingerprint));
            out.observer.ended(&id, out.now(), &Err(error.clone()));
            return Err(Refused::Counted(error));
        }
        Ok((id, group.settings.timeout))
    }

    /// What a frame means to its group, by its generation, its number and the hash of all that was issued before.
    pub(super) fn judge(&self, header: &Header, me: u32, out: &mut Outbox) -> Verdict {
        let Some(group) = self.get(header.group) else {
            return if self.forgotten.contains(&header.group) { Verdict::Discard } else { Verdict::Park };
        };
        if group.is_lost() {
            return Verdict::Discard;
        }
        match group.admission(header, group.reduces()) {
            Admission::Accept => {}
            Admission::Hold => return Verdict::Park,
            Admission::Discard => return Verdict::Discard,
        }
        match group.check(header, group.reduces()) {
            Check::Match => match group.operation(header.sequence) {
                Some(key) => Verdict::Deliver(key),
                None => Verdict::NotRunning,
            },
            Check::NotYet => Verdict::Park,
            Check::Forgotten => Verdict::Discard,
            Check::Differs => {
                let own = group.member.issued(header.sequence).map(|own| (me, *own));
                out.dispute(group, Cause::Mismatch(Mismatch::new(header.sequence, own)));
                Verdict::Discard
            }
        }
    }

    /// Whether a frame's operation is over, so that damage to it does not matter.
    pub(super) fn is_over(&self, header: &Header) -> bool {
        let Some(group) = self.get(header.group) else { return false };
        group.is_lost() || group.admission(header, group.reduces()) == Admission::Discard
    }

    /// A worker's first message tells a reducer of an operation. Returns whether it is new.
    pub(super) fn announced(&mut self, header: &Header, told: &Fingerprint) -> Result<bool, Broken> {
        let Some(group) = self.get_mut(header.group) else {
            return Err(Broken::Protocol("an operation of a group that was not introduced"));
        };
        let current = group.admission(header, true) == Admission::Accept;
        if group.is_lost() || !current || group.check(header, true) != Check::NotYet {
            return Ok(false);
        }
        group.note_told(header, *told);
        Ok(true)
    }

    /// A reducer is told of a group, or of its next generation.
    pub(super) fn join(&mut self, told: &Introduction, me: u32, out: &mut Outbox) -> Result<(), Broken> {
        let known = self.get(told.group).map(Group::told_generation);
        if known.is_some_and(|generation| generation >= told.generation) {
            return Ok(());
        }
        self.remove(told.group, out);
        if self.groups.len() >= REDUCER_GROUPS || told.members.iter().any(|member| *member >= me) {
            return Err(Broken::Protocol("more groups than a reducer takes, or members that cannot be"));
        }
        let forced = told.forced.as_deref().map(str::parse).transpose();
        let forced = forced.map_err(|_| Broken::Protocol("an algorithm that is not known here"))?;
        let workers = told.members.len() as u32;
        let mut roster = told.members.clone();
        roster.resize((workers + told.reducers) as usize, me);
        let settings = group::Settings {
            id: told.group,
            roster,
            workers,
            me: workers + told.reducer,
            hosts: told.hosts.clone(),
            order: told.order,
            memories: told.hosts.clone(),
            sizing: Sizing {
                hosts: Sizing::distinct(&told.hosts),
                shared: false,
                segment_bytes: told.segment as usize,
                most_staged: told.most_staged as usize,
            },
            forced,
            timeout: Duration::MAX,
        };
        let mut group = Group::new(settings, Member::new(told.group, me, told.members.clone()));
        group.begin_generation(told.generation);
        self.groups.insert(told.group, group);
        Ok(())
    }

    /// A reducer is done with a group.
    fn remove(&mut self, number: u32, out: &mut Outbox) {
        self.close(number, &Error::new(ErrorKind::Closed), out);
        self.groups.remove(&number);
    }

    /// A worker tells a reducer that it takes no part in a group any more.
    pub(super) fn dropped_by(&mut self, worker: u32, number: u32, out: &mut Outbox) {
        let Some(group) = self.get_mut(number) else { return };
        group.dropped_by.insert(worker);
        if group.settings.members().iter().all(|worker| group.dropped_by.contains(worker)) {
            self.remove(number, out);
        }
    }

    /// Forgets a group that was dropped and of which nothing runs or is queued. Only its number stays, so that what others send late
    /// is not taken for early.
    pub(super) fn forget_if_over(&mut self, number: u32, (links, out): (&mut Links, &mut Outbox)) {
        let Some(group) = self.get(number).filter(|group| group.is_dropped) else { return };
        if !group.running.is_empty() {
            return;
        }
        group.count(&mut out.observer.stats);
        links.forget(number);
        self.groups.remove(&number);
        self.forgotten.insert(number);
        out.push(Todo::RedeliverGroup(number));
        out.events.push(Event::ToHub(Message::Forget { group: number }));
        out.finished = true;
    }
}

/// What a group that is made now learns of members that died before.
fn doomed_by(members: &[u32], links: &Links) -> Option<Doom> {
    let is_dead = |index: &u32| links.endpoints[*index as usize].dead;
    let ranks: Vec<Rank> = members.iter().copied().filter(is_dead).collect();
    let kind = ErrorKind::PeerLost { ranks: ranks.clone(), reason: "died before".to_owned() };
    (!ranks.is_empty()).then(|| Doom { ranks, error: Error::new(kind) })
}
