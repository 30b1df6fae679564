//! From a call to a running operation: issued in order, begun when its links, its memory and its turn are there.

use super::{Engine, Event, group::Settings};
use crate::{
    Error, ErrorKind, Result,
    clock::Moment,
    completion::Completion,
    core::{
        session::{Cause, fence::NotIssued},
        wire::Fingerprint,
    },
    engine::{doom, refused::Refused},
    execute::{
        io::Io,
        issue::{Identity, Issue, Queued},
        operation::Operation,
        program::{Call, Prepared},
        staging::{Claim, Part},
    },
    transport::{Broken, endpoint::Link, ticket::OpKey},
};
use std::{ops::Range, sync::Arc, time::Duration};

/// How many operations of a group may use reducers at once, ordinary and urgent ones each: what bounds a reducer's memory.
pub(crate) const REDUCER_OPERATIONS: usize = 4;

/// Whether a queued operation can start.
enum Start {
    Now(Range<usize>, Arc<Prepared>),
    /// Not yet; how much memory it needs at the least, if that is known.
    Later(Option<usize>),
    Never(Error),
}

/// The queued operations that cannot start yet and are first in their group and class, oldest first: which, and what they
/// will take.
#[derive(Default)]
struct Stuck {
    classes: Vec<(u32, bool)>,
    claims: Vec<Claim>,
}

impl Engine {
    /// Issues an operation and lets it run as far as it can. One that failed on other ranks before it was called here fails as
    /// it did there, when it is waited for: whoever issues several at once goes on with the next on all ranks.
    ///
    /// # Errors
    /// [`Refused::Frozen`] while a fence is under way: to be tried again after its decision.
    pub(crate) fn issue(&mut self, issue: &Issue) -> Result<Arc<Completion>, Refused> {
        match self.try_issue(issue) {
            Err(Refused::Counted(error)) => Ok(self.counted_as_failed(error)),
            result => {
                self.stats.failed += u64::from(matches!(result, Err(Refused::Failed(_))));
                result
            }
        }
    }

    /// The end of an operation that has failed already.
    pub(super) fn counted_as_failed(&mut self, error: Error) -> Arc<Completion> {
        self.stats.failed += 1;
        let completion = Arc::new(Completion::default());
        completion.finish(Err(error));
        completion
    }

    fn try_issue(&mut self, issue: &Issue) -> Result<Arc<Completion>, Refused> {
        let (id, timeout) = self.agree(issue)?;
        let completion = Arc::new(Completion::default());
        self.queue.push_back(Queued::new(id, issue, Some(completion.clone()), timeout));
        self.check_parked(id.group, id.fingerprint.sequence, id.hash);
        self.start_queued();
        self.flush();
        Ok(completion)
    }

    /// Numbers a call and adds it to what this rank has issued. Returns also how long it may take if it does not say.
    pub(super) fn agree(&mut self, issue: &Issue) -> Result<(Identity, Duration), Refused> {
        let me = self.me;
        let group = self.groups.get_mut(&issue.group).filter(|group| !group.is_dropped);
        let group =
            group.ok_or_else(|| Error::new(ErrorKind::Closed).about(me, issue.call.collective.name()))?;
        let planned = group.plan(issue.call, &mut self.stats).map_err(|error| error.at(me))?;
        let (mut fingerprint, with_reducers) = (planned.fingerprint, planned.with_reducers);
        (fingerprint.sequence, fingerprint.priority) = (group.member.next(), issue.priority);
        if let Some(error) = &group.lost {
            return Err(error.about(me, group.settings.named(fingerprint)).into());
        }
        if let Some(doom) = &group.doom {
            let error = doom.error.about(me, group.settings.named(fingerprint));
            let cause = Cause::PeerLost { ranks: doom.ranks.clone() };
            self.call_for_fence(issue.group, cause);
            return Err(error.into());
        }
        let issued = group.member.issue(fingerprint).map_err(|reason| match reason {
            NotIssued::Frozen => Refused::Frozen,
            NotIssued::Failed(failed) => {
                let error = doom::error(&failed.cause, group.settings.members());
                let error = error.about(me, group.settings.named(fingerprint));
                if failed.sequence.is_some() { Refused::Counted(error) } else { Refused::Failed(error) }
            }
        })?;
        if let Some(error) = group.without_reducers.as_ref().filter(|_| with_reducers) {
            // All ranks know, and fail the same call: there is nothing to decide.
            group.member.complete(issued.fingerprint.sequence);
            return Err(Refused::Counted(error.about(me, group.settings.named(issued.fingerprint))));
        }
        let (hash, generation) = (issued.hash, issued.generation);
        let id = Identity { group: issue.group, generation, hash, fingerprint };
        Ok((id, group.settings.timeout))
    }

    /// A reducer begins the operation that a worker's first message announces.
    pub(crate) fn begin_told(
        &mut self,
        group: u32,
        generation: u32,
        hash: u64,
        told: Fingerprint,
    ) -> Result<OpKey, Broken> {
        let nonsense = |_| Broken::Protocol("an operation that makes no sense here: is it another build?");
        let group_state =
            self.groups.get_mut(&group).ok_or(Broken::Protocol("a group that was not introduced"))?;
        if group_state.running.len() >= 4 * REDUCER_OPERATIONS {
            return Err(Broken::Protocol("more operations at once than were agreed"));
        }
        let call = group_state.plan_as_told(&told, &mut self.stats).map_err(nonsense)?.call;
        let prepared = self.prepared(group, call).map_err(nonsense)?;
        let memory = self.staging.take(prepared.staging_bytes(prepared.depth), Part::Either).ok_or(
            Broken::Protocol("an operation too large for a job's memory here: lower HERRINGBONE_SLICE_BYTES"),
        )?;
        let queued = Queued {
            id: Identity { group, generation, hash, fingerprint: told },
            call,
            buffers: None,
            completion: None,
            issued: Moment::now(),
            timeout: Duration::MAX,
            given_up: false,
        };
        Ok(self.start(queued, memory, prepared))
    }

    /// Starts what can start: in order within each group, ordinary and urgent operations by themselves.
    ///
    /// Memory that an older operation of any group waits for goes to no younger one: on another rank, where it was free at
    /// another time, the older one may have it, and the younger one wait for that.
    pub(crate) fn start_queued(&mut self) {
        let mut stuck = Stuck::default();
        let mut at = 0;
        while at < self.queue.len() {
            let id = self.queue[at].id;
            let class = (id.group, id.is_urgent());
            if stuck.classes.contains(&class) {
                at += 1;
                continue;
            }
            let part = match (id.is_urgent(), stuck.classes.iter().any(|(_, urgent)| !urgent)) {
                (false, _) => Part::Common,
                (true, false) => Part::Either,
                // What an older operation waits for must not go to one that other ranks may issue only after that has ended.
                (true, true) => Part::Urgent,
            };
            match self.can_start(at, part, &stuck.claims) {
                Start::Later(bytes) => {
                    let part = if id.is_urgent() { Part::Either } else { Part::Common };
                    stuck.classes.push(class);
                    stuck.claims.push(Claim { bytes, part });
                    at += 1;
                }
                Start::Now(memory, prepared) => {
                    let Some(queued) = self.queue.remove(at) else { return };
                    let key = self.start(queued, memory, prepared);
                    self.redeliver_to(&id);
                    self.run(key);
                    self.fail_if_any_departed(key);
                }
                Start::Never(error) => {
                    let Some(queued) = self.queue.remove(at) else { return };
                    self.not_started(queued, &error);
                }
            }
        }
    }

    fn can_start(&mut self, at: usize, part: Part, claims: &[Claim]) -> Start {
        let Queued { id, call, .. } = &self.queue[at];
        let (call, urgent) = (*call, id.is_urgent());
        let Some(group) = self.groups.get_mut(&id.group) else {
            return Start::Never(Error::new(ErrorKind::Closed));
        };
        let planned = match group.plan(call, &mut self.stats) {
            Ok(planned) => planned,
            Err(error) => return Start::Never(error),
        };
        let (id, with_reducers) = (*id, planned.with_reducers);
        if planned.is_prepared(self.links).is_none() {
            let partners = planned.partners.clone();
            if !self.are_linked(at, &partners) {
                return Start::Later(None);
            }
        }
        let prepared = match self.prepared(id.group, call) {
            Ok(prepared) => prepared,
            Err(error) => return Start::Never(error),
        };
        let (least, most) = (prepared.staging_bytes(prepared.lead), self.staging.most());
        if least > most {
            return Start::Never(Error::config(
                "HERRINGBONE_STAGING_BYTES",
                format_args!(
                    "this operation needs {least} bytes, and one operation gets at most {most}, 7/8 of it; raise it \
                     on every rank"
                ),
            ));
        }
        if self.waits_for_buffers(at)
            || with_reducers && self.with_reducers(id.group, urgent) >= REDUCER_OPERATIONS
        {
            return Start::Later(Some(least));
        }
        let is_mapped = self.queue[at].mapped(self.heap.as_deref()).is_some();
        let wanted = prepared.staging_bytes(prepared.ahead(is_mapped));
        let memory =
            [wanted, least].into_iter().find_map(|bytes| self.staging.take_beside(bytes, part, claims));
        memory.map_or(Start::Later(Some(least)), |memory| Start::Now(memory, prepared))
    }

    /// How many operations of a group and class that use reducers are running.
    fn with_reducers(&self, group: u32, urgent: bool) -> usize {
        let Some(group) = self.groups.get(&group) else { return 0 };
        let counts = |operation: &&Operation| operation.with_reducers() && operation.id.is_urgent() == urgent;
        group.running.iter().filter_map(|(_, key)| self.ops.get(*key)).filter(counts).count()
    }

    /// The program of a call, compiled for the links there are.
    fn prepared(&mut self, number: u32, call: Call) -> Result<Arc<Prepared>, Error> {
        let Self { groups, endpoints, stats, links, .. } = self;
        let group = groups.get_mut(&number).ok_or_else(|| Error::new(ErrorKind::Closed))?;
        if let Some(prepared) = group.plan(call, stats)?.is_prepared(*links) {
            return Ok(prepared.clone());
        }
        let Settings { me, sizing, memories, roster, .. } = group.settings.clone();
        let shared = |rank: u32| endpoints[roster[rank as usize] as usize].is_shared();
        Ok(group.plan(call, stats)?.prepare(me, (sizing, &memories), *links, shared))
    }

    /// Whether all links that a queued operation needs are up. Asks for those that are not.
    fn are_linked(&mut self, at: usize, partners: &[u32]) -> bool {
        let (mut up, mut lost) = (true, None);
        for &index in partners {
            let endpoint = &mut self.endpoints[index as usize];
            match &endpoint.link {
                Link::Lost { .. } if endpoint.is_reducer => lost = Some(index),
                _ if endpoint.left.is_some() => {}
                Link::Lost { .. } if endpoint.dead => up = false,
                Link::None | Link::Lost { .. } => {
                    endpoint.link = Link::Wanted;
                    self.events.push(Event::Want(index));
                    up = false;
                }
                Link::Wanted => up = false,
                Link::Shm(_) | Link::Tcp(_) => {}
            }
        }
        if let Some(reducer) = lost {
            self.give_up(at, reducer);
            return false;
        }
        up
    }

    /// An operation's reducer is gone: it fails with everybody's, by a fence, so that nobody is told twice.
    fn give_up(&mut self, at: usize, reducer: u32) {
        let Identity { group, fingerprint, .. } = self.queue[at].id;
        if !std::mem::replace(&mut self.queue[at].given_up, true) {
            let cause = self.lost_reducer(reducer, fingerprint.sequence);
            self.call_for_fence(group, cause);
        }
    }

    /// An operation that can never start fails.
    fn not_started(&mut self, queued: Queued, error: &Error) {
        if let Some(group) = self.groups.get_mut(&queued.id.group) {
            group.member.fail(queued.id.fingerprint.sequence);
        }
        self.conclude(&queued.id, &queued.call, queued.completion, Err(error.clone()), queued.issued);
    }

    fn start(&mut self, mut queued: Queued, memory: Range<usize>, prepared: Arc<Prepared>) -> OpKey {
        let (key, room) = self.ops.reserve();
        let number = queued.id.group;
        let Some(group) = self.groups.get_mut(&number) else { return key };
        group.running.push_back((queued.id.fingerprint.sequence, key));
        queued.separate(group.settings.me);
        let mapped = queued.mapped(self.heap.as_deref());
        let roster = &group.settings.roster;
        let mut operation = Operation::new(key, queued, mapped, prepared, memory, (room, roster));
        if operation.with_reducers() {
            self.introduce(number);
        }
        let mut io = Io { endpoints: &mut self.endpoints, staging: &self.staging, stats: &mut self.stats };
        operation.start(&mut io);
        self.ops.insert(operation);
        self.stats.most_in_flight = self.stats.most_in_flight.max(self.ops.len() as u64);
        key
    }
}
