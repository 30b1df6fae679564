//! From a call to a running operation, which begins when its links, its memory and its turn are there.

use super::{
    footprints::{Footprints, LAST},
    group::{Group, Planned, Settings},
    groups::Groups,
    links::Links,
    ops::Ops,
    outbox::Outbox,
    runtime::Runtime,
};
use crate::{
    Error, ErrorKind,
    core::{
        collective::UnevenParts,
        prepare::Prepared,
        session::{Cause, group_state::ReducerUse, membership::MemberId},
        wire::{Fingerprint, Header},
    },
    execute::{
        issue::{Identity, NumberedCall, Queued},
        staging::{Claim, Zone},
    },
    feedback::Fed,
    observe::{Observer, OperationPurpose},
    transport::Broken,
};
use std::{ops::Range, sync::Arc, time::Duration};

/// How many operations of a group may use reducers at once, ordinary and urgent ones each: what bounds a reducer's memory.
const REDUCER_OPERATIONS: usize = 4;

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
    claims: Vec<Claim>,
    /// Whether one of them is ordinary.
    ordinary: bool,
}

/// Starts what can start: in order within each group, ordinary and urgent operations by themselves.
///
/// Memory that an older operation of any group waits for goes to no younger one: on another rank, where it was free at
/// another time, the older one may have it, and the younger one wait for that.
pub(super) fn start_ready(runtime: &mut Runtime) {
    let (mut stuck, mut after) = (Stuck::default(), None);
    loop {
        let Runtime { links, groups, ops, backlog, out } = runtime;
        let Some((place, queued, footprints)) = backlog.queue.head_after(after) else { return };
        let (id, class) = (queued.id, queued.class());
        let part = match (id.is_urgent(), stuck.ordinary) {
            (false, _) => Zone::Common,
            (true, false) => Zone::Either,
            // What an older operation waits for must not go to one that other ranks may issue only after that has ended.
            (true, true) => Zone::Urgent,
        };
        let start = match groups.get_mut(id.group) {
            Some(group) => {
                let beside = Beside { footprints, part, claims: &stuck.claims, ops };
                Head { queued, group, links, out }.can_start(beside)
            }
            None => Start::Never(Error::new(ErrorKind::Closed)),
        };
        if let Start::Later(bytes) = start {
            let part = if id.is_urgent() { Zone::Either } else { Zone::Common };
            out.observer.waited(&id, || missing(id.group, groups, links));
            stuck.ordinary |= !id.is_urgent();
            stuck.claims.push(Claim { bytes, part });
            after = Some(place);
            continue;
        }
        let Some(queued) = backlog.queue.pop(class) else { return };
        match start {
            Start::Now(memory, prepared) => runtime.start(queued, memory, prepared),
            Start::Never(error) => never_started(runtime, queued, &error),
            Start::Later(_) => {}
        }
    }
}

/// An operation fails whose group takes part in it elsewhere.
fn never_started(runtime: &mut Runtime, queued: Queued, error: &Error) {
    let group = runtime.groups.get_mut(queued.id.group);
    group.into_iter().for_each(|group| group.state.fail(queued.id.fingerprint.sequence));
    runtime.not_started(queued, error);
}

/// Takes out the operations of a group that were to use reducers which the group uses no more, in the order of their calls.
pub(super) fn take_with_reducers(runtime: &mut Runtime, number: u32) -> Vec<(Queued, Arc<Prepared>)> {
    let Runtime { links, groups, backlog, out, .. } = runtime;
    let Some(group) = groups.get_mut(number) else { return Vec::new() };
    let (mut taken, mut failed) = (Vec::new(), Vec::new());
    for queued in backlog.queue.take_of(number, |queued| queued.is_redone(group, out)) {
        match prepared(group, &queued, links, &mut out.observer) {
            Ok(prepared) => taken.push((queued, prepared)),
            Err(error) => failed.push((queued, error)),
        }
    }
    failed.into_iter().for_each(|(queued, error)| never_started(runtime, queued, &error));
    taken
}

/// A reducer begins the operation that a worker's first message announces.
pub(super) fn begin_sent(runtime: &mut Runtime, header: &Header, sent: Fingerprint) -> Result<(), Broken> {
    let Runtime { links, groups, ops, out, .. } = runtime;
    let nonsense = |_| Broken::Protocol("an operation that this build cannot run: is it another build?");
    let group = groups.get_mut(header.group).ok_or(Broken::Protocol("a group that was not introduced"))?;
    if group.running.len() >= 4 * REDUCER_OPERATIONS {
        return Err(Broken::Protocol("more operations at once than were agreed"));
    }
    let (planned, settings) = group.plan_as_sent(&sent, &mut out.observer).map_err(nonsense)?;
    let (plan, call, algorithm) = (planned.key, planned.call, planned.number);
    let prepared = compiled(planned, settings, None, links).map_err(nonsense)?;
    let memory = ops.staging.take(prepared.staging_bytes(prepared.depth), Zone::Either).ok_or(
        Broken::Protocol("an operation too large for a job's memory here: lower HERRINGBONE_SLICE_BYTES"),
    )?;
    let Header { generation, hash, .. } = *header;
    let number = out.observer.next();
    let id = Identity { group: header.group, generation, hash, fingerprint: sent, number };
    out.observer.issued(&id, algorithm, OperationPurpose::Called);
    let agreed = NumberedCall { id, plan, timeout: Duration::MAX };
    let queued = Queued::without_buffers(agreed, call, None, out.now());
    runtime.start(queued, memory, prepared);
    Ok(())
}

/// What the first operation of a line would run beside.
struct Beside<'a> {
    /// What all queued operations touch, if some are older.
    footprints: Option<&'a Footprints>,
    /// The part of the memory that it may take, and what is taken from it for older ones that wait.
    part: Zone,
    claims: &'a [Claim],
    ops: &'a mut Ops,
}

/// The first operation of a line.
struct Head<'a> {
    queued: &'a mut Queued,
    group: &'a mut Group,
    links: &'a mut Links,
    out: &'a mut Outbox,
}

impl Head<'_> {
    fn can_start(&mut self, Beside { footprints, part, claims, ops }: Beside<'_>) -> Start {
        let Self { queued, group, links, out } = self;
        let Queued { id, plan, call, lacks, .. } = **queued;
        let reducers = group.state.reducers();
        let (planned, settings) = match group.plan_at(Some(plan), call, &mut out.observer) {
            Ok(planned) => planned,
            Err(error) => return Start::Never(error),
        };
        let with_reducers = planned.with_reducers;
        let waits = match reducers {
            ReducerUse::InUse => false,
            ReducerUse::Suspended => with_reducers,
            // What is to be redone will be taken out of the queue.
            ReducerUse::Replaced { .. } => with_reducers && lacks.is_none(),
        };
        if waits {
            return Start::Later(None);
        }
        if let Some(bytes) = lacks {
            return self.lacks(bytes);
        }
        let parts = queued.parts.as_ref();
        if !planned.is_prepared(links.changes, parts) {
            match links.are_up(&planned.partners, out) {
                Ok(true) => {}
                Ok(false) => return Start::Later(None),
                Err(reducer) => return self.gives_up(reducer),
            }
        }
        let prepared = match compiled(planned, settings, parts, links) {
            Ok(prepared) => prepared,
            Err(error) => return Start::Never(error),
        };
        let (least, most) = (prepared.staging_bytes(prepared.lead), ops.staging.most());
        if least > most {
            return Start::Never(Error::config(
                "HERRINGBONE_STAGING_BYTES",
                format_args!(
                    "this operation needs {least} bytes, and one operation gets at most {most}, 7/8 of it; raise it on every rank"
                ),
            ));
        }
        let running = group.running.with_reducers[usize::from(id.is_urgent())];
        if waits_for_buffers(queued, footprints, ops) || with_reducers && running >= REDUCER_OPERATIONS {
            return Start::Later(Some(least));
        }
        if let Err(bytes) = queued.allocate(group.settings.me) {
            return self.lacks(bytes);
        }
        let is_mapped = queued.mapped(ops.heap.as_deref()).is_some();
        let wanted = prepared.wanted_bytes(is_mapped);
        let memory =
            [wanted, least].into_iter().find_map(|bytes| ops.staging.take_beside(bytes, part, claims));
        memory.map_or(Start::Later(Some(least)), |memory| Start::Now(memory, prepared))
    }

    /// Its reducer is gone: it fails with everybody's, by a fence, so that nobody is told twice.
    fn gives_up(&mut self, reducer: MemberId) -> Start {
        if !std::mem::replace(&mut self.queued.given_up, true) {
            self.links.suspect(self.group, reducer, self.links.why_lost(reducer), self.out);
        }
        Start::Later(None)
    }

    /// This rank lacks memory for it: it fails with everybody's, by a fence. Older ones end first, because a fence does not wait
    /// long for ranks that have not come to these.
    fn lacks(&mut self, bytes: u64) -> Start {
        let operation = self.queued.id.fingerprint;
        let has_older = self.group.running.first().is_some_and(|first| first < operation.sequence);
        if !has_older && !std::mem::replace(&mut self.queued.given_up, true) {
            self.group.state.dispute(Cause::Memory { rank: self.links.rank, operation, bytes }, self.out);
        }
        Start::Later(None)
    }
}

/// Whether a queued operation has to wait for older ones, of which one writes what it uses or uses what it writes: on the
/// same memory, operations run in the order in which they were issued. What an older one leaves of its tensor has to be known, too.
fn waits_for_buffers(queued: &Queued, footprints: Option<&Footprints>, ops: &Ops) -> bool {
    let Some(own) = &queued.footprint else { return false };
    let is_fed = queued.fed.as_ref().is_none_or(Fed::may_begin);
    !is_fed
        || ops.footprints.interferes(own, LAST)
        || footprints.is_some_and(|footprints| footprints.interferes(own, own.place))
}

/// The endpoints to which links are missing.
fn missing(group: u32, groups: &Groups, links: &Links) -> Vec<MemberId> {
    groups.get(group).map_or_else(Vec::new, |group| links.wanted(group).collect())
}

/// The program of a queued operation, compiled for the links there are.
pub(super) fn prepared(
    group: &mut Group,
    queued: &Queued,
    links: &Links,
    observer: &mut Observer,
) -> Result<Arc<Prepared>, Error> {
    let (planned, settings) = group.plan_at(Some(queued.plan), queued.call, observer)?;
    compiled(planned, settings, queued.parts.as_ref(), links)
}

/// The program of a group's plan, compiled for the links there are.
fn compiled(
    planned: &mut Planned,
    settings: &Settings,
    parts: Option<&Arc<UnevenParts>>,
    links: &Links,
) -> Result<Arc<Prepared>, Error> {
    let shared = |rank: u32| links.endpoints[settings.ids[rank as usize]].is_shared();
    planned.prepared(settings, links.changes, parts, shared)
}
