//! The status of an engine: its groups, its operations with the ranks for which they wait, its links.

use super::{Engine, group::Group, links::Links, recovery::Redone};
use crate::{
    clock::Moment,
    core::{
        group::Rank,
        session::{
            fence::Member,
            membership::MemberId,
            status::{GROUPS, GroupStatus, InFlight, JobStatus, LINKS, LinkStatus, OPERATIONS, WAITS, Way},
        },
        wire::Fingerprint,
    },
    execute::{issue::Identity, operation::Operation},
    transport::endpoint::{Endpoint, Link},
};
use std::collections::BTreeSet;

/// How an engine stands, where it is one of so many whose lists go into one answer.
pub(crate) fn job_status(engine: &Engine, of: usize) -> JobStatus {
    let share = |most: usize| (most / of.max(1)).max(1);
    let mut job_status = JobStatus {
        epoch: engine.runtime.groups.iter().map(|group| group.settings.epoch).max().unwrap_or_default(),
        moment: engine.runtime.out.observer.now.since(Moment::default()).as_micros() as u64,
        issued: engine.runtime.out.observer.next(),
        groups: groups(engine),
        operations: operations(engine),
        links: links(engine),
        unlisted: [0; 3],
        ports: engine.runtime.groups.iter().find_map(Group::followed_ports).map(str::to_owned),
    };
    let JobStatus { groups, operations, links, unlisted, .. } = &mut job_status;
    *unlisted = [cut(groups, share(GROUPS)), cut(operations, share(OPERATIONS)), cut(links, share(LINKS))];
    job_status
}

/// Cuts a list. Returns how many items are left out.
fn cut<T>(list: &mut Vec<T>, most: usize) -> u32 {
    let more = list.len().saturating_sub(most);
    list.truncate(most);
    more as u32
}

/// Those that programs have made: what serves these is no group of a user's.
fn groups(engine: &Engine) -> Vec<GroupStatus> {
    let called = engine.runtime.groups.iter().filter(|group| group.settings.serves.is_none());
    called.map(|group| shown(engine, group)).collect()
}

/// How the group of this number stands, if it is there.
pub(crate) fn group_status(engine: &Engine, number: u32) -> Option<GroupStatus> {
    engine.runtime.groups.get(number).map(|group| shown(engine, group))
}

fn shown(engine: &Engine, group: &Group) -> GroupStatus {
    GroupStatus {
        group: group.settings.id,
        name: engine.runtime.out.observer.name_of(group.settings.id),
        ranks: group.settings.workers(),
        generation: group.state.generation(),
        next: group.state.member().map(Member::next),
        over: group.state.member().and_then(Member::over),
        lost: group
            .failure(&engine.runtime.links)
            .filter(|_| group.state.is_over())
            .map(|error| error.kind().to_string()),
    }
}

/// The oldest first.
fn operations(engine: &Engine) -> Vec<InFlight> {
    let now = engine.runtime.out.observer.now;
    let age = |issued: Moment| now.since(issued).as_millis() as u64;
    let named = |group: u32, called: Fingerprint| {
        let group = engine.runtime.groups.get(group);
        group.map_or_else(|| called.to_string(), |group| group.settings.named(called).to_string())
    };
    let under_way = |id: &Identity, issued, runs, mut waits: Vec<MemberId>| {
        waits.truncate(WAITS);
        let (group, sequence) = (id.group, Some(id.fingerprint.sequence));
        InFlight { group, sequence, name: named(id.group, id.fingerprint), age: age(issued), runs, waits }
    };
    // Others may still read what a worker's operation has sent when its caller has the result.
    let is_called = |id: &Identity| !engine.recoveries.carries(id.group);
    let running = engine.runtime.ops.table.iter().filter(|operation| is_called(&operation.id));
    let running = running.filter(|operation| engine.reduces || operation.caller.completion.is_some());
    let running = running
        .map(|operation| under_way(&operation.id, operation.caller.issued, true, waited_for(operation)));
    let queued = engine.runtime.backlog.queue.iter().filter(|queued| is_called(&queued.id)).map(|queued| {
        let wanted = engine
            .runtime
            .groups
            .get(queued.id.group)
            .map(|group| engine.runtime.links.wanted(group).collect());
        under_way(&queued.id, queued.caller.issued, false, wanted.unwrap_or_default())
    });
    let redone = engine.recoveries.redone().map(|(repair, Redone { queued, parts, .. })| {
        let running =
            |(number, _): &_| engine.runtime.ops.get(engine.runtime.groups.get(repair)?.operation(*number)?);
        let waits: BTreeSet<MemberId> =
            parts.iter().filter_map(running).flat_map(Operation::missing).collect();
        under_way(&queued.id, queued.caller.issued, true, waits.into_iter().collect())
    });
    let messages = engine.messages.waiting(&engine.runtime.groups).into_iter().map(|(group, call)| {
        let waits = call.ranks.iter().filter_map(|rank| member_of(&engine.runtime.links, *rank)).take(WAITS);
        let (name, age) = (call.name, age(call.issued));
        InFlight { group, sequence: None, name, age, runs: false, waits: waits.collect() }
    });
    let mut all: Vec<InFlight> = running.chain(queued).chain(redone).chain(messages).collect();
    all.sort_by_key(|operation| std::cmp::Reverse(operation.age));
    all
}

/// Whom an operation waits for. A reducer that lacks nothing waits for word that workers have what it sent.
fn waited_for(operation: &Operation) -> Vec<MemberId> {
    let missing = operation.missing();
    if !missing.is_empty() || operation.is_workers() {
        return missing;
    }
    operation.endpoints().filter(|endpoint| operation.involves(*endpoint)).collect()
}

fn member_of(links: &Links, rank: Rank) -> Option<MemberId> {
    links.endpoints.ids().find(|id| links.endpoints[*id].rank == Some(rank))
}

fn links(engine: &Engine) -> Vec<LinkStatus> {
    let endpoints = &engine.runtime.links.endpoints;
    let known = endpoints.ids().filter(|id| *id != engine.runtime.links.me);
    let shown = |to: MemberId| {
        let moved = engine.runtime.out.observer.moved_with(to);
        let way = way(&endpoints[to])?;
        Some(LinkStatus { to, way, sent: moved.sent, received: moved.received })
    };
    known.filter_map(shown).collect()
}

/// `None` for a link that nobody has needed yet.
fn way(endpoint: &Endpoint) -> Option<Way> {
    Some(match &endpoint.link {
        Link::None => return None,
        Link::Wanted => Way::Wanted,
        Link::Shm(_) => Way::Shm,
        Link::Tcp(_) => Way::Tcp,
        Link::Lost { reason, .. } => Way::Lost { reason: reason.clone() },
    })
}
