//! Waiting ranks: the reports to the hub about calls that have waited for long, and the hub's reports about late ranks.
//!
//! For each group, a rank reports the call in which it waits: the oldest that has not ended, whether it runs or waits
//! for a link. The others wait behind it, and a rank that has called it has called all earlier ones.

use super::{
    backlog::Backlog,
    group::Group,
    groups::Groups,
    ops::Ops,
    outbox::Event,
    peer_waits::{self, title},
    recovery::Recoveries,
    runtime::Runtime,
    settings::{Named, Service},
};
use crate::{
    clock::{Moment, resolution},
    core::{
        group::Rank,
        session::{
            Ranks,
            control::Message,
            fence::{WAITING_AGAIN_MILLISECONDS, WAITING_MILLISECONDS},
            membership::MemberId,
            stragglers::{Late, NAMED_IN_ROUND},
        },
    },
    execute::{issue::Identity, operation::Operation},
};
use std::{collections::BTreeMap, time::Duration};

/// How long ranks have waited when others are called late, in seconds.
const LATE: u32 = NAMED_IN_ROUND;

/// The oldest call of a group that has not ended here.
#[derive(Debug)]
struct Oldest {
    id: Identity,
    /// Since when it waits with none before it.
    since: Moment,
    /// How often the hub was told so.
    reported: u32,
}

/// In what the groups of a process wait, and what was said about it.
#[derive(Debug, Default)]
pub(super) struct Waits {
    oldest: BTreeMap<u32, Oldest>,
    /// When this was last looked at.
    looked: Moment,
    /// Who was said to be late in each group, and the number of the next call then.
    said: BTreeMap<u32, (Vec<Rank>, u64)>,
}

impl Waits {
    /// Tells the hub of the groups in whose oldest call this rank waits for long.
    pub(super) fn look(&mut self, runtime: &mut Runtime) {
        let Runtime { groups, ops, backlog, out, .. } = runtime;
        let now = out.now();
        let before = std::mem::replace(&mut self.looked, now);
        let mut oldest = std::mem::take(&mut self.oldest);
        for (id, issued) in in_flight(ops, backlog) {
            let first = self.oldest.entry(id.group).or_insert(Oldest { id, since: issued, reported: 0 });
            if id.fingerprint.sequence < first.id.fingerprint.sequence {
                *first = Oldest { id, since: issued, reported: 0 };
            }
        }
        self.said.retain(|group, _| groups.get(*group).is_some());
        for (number, first) in &mut self.oldest {
            match oldest.remove(number) {
                Some(known) if known.id.is(&first.id) => *first = known,
                Some(_) => first.since = first.since.max(before),
                None => {}
            }
            let Some(group) = groups.get(*number) else { continue };
            let waited = now.since(first.since).saturating_sub(resolution());
            let due = WAITING_MILLISECONDS + WAITING_AGAIN_MILLISECONDS * u64::from(first.reported);
            if waited < Duration::from_millis(due) {
                continue;
            }
            if first.reported == 0 {
                // Its first member, which says this to the hub, may not have made it yet.
                let members = group.settings.ranks.clone();
                let info = Message::GroupInfo { group: *number, generation: 0, members };
                out.events.push(Event::ToHub(info));
            }
            let message = group.state.waiting(first.id.fingerprint.sequence, first.reported);
            first.reported += 1;
            out.observer.suspected(|| missing(group, first.id.fingerprint.sequence, ops), waited);
            if let Some(Message::Waiting(own)) = &message {
                groups.peer_waits.note(own, now);
            }
            out.events.extend(message.map(Event::ToHub));
        }
    }

    /// Whether this rank waits in a call of another group that programs call.
    fn are_elsewhere(&self, number: u32, groups: &Groups) -> bool {
        let calls = |group: &Group| group.settings.serves.is_none();
        let waits = |(other, first): (&u32, &Oldest)| {
            *other != number && first.reported > 0 && groups.get(*other).is_some_and(calls)
        };
        self.oldest.iter().any(waits)
    }

    /// Says who has not come to an operation that others have waited in for a while, once for all of them that are in flight. Of a
    /// rank that waits in another group the others say so, and it says for whom it waits there.
    pub(super) fn tell(&mut self, late: &Late, runtime: &Runtime, recoveries: &Recoveries) {
        let Runtime { links, groups, ops, backlog, out } = runtime;
        let Some(group) = groups.get(late.group) else { return };
        if late.ranks.contains(&links.rank) && self.are_elsewhere(late.group, groups) {
            return;
        }
        let next = group.state.next();
        let is_known = |(ranks, then): &(Vec<Rank>, u64)| {
            *ranks == late.ranks && (late.sequence < *then || *then == next)
        };
        if self.said.get(&late.group).is_some_and(is_known) {
            return;
        }
        self.said.insert(late.group, (late.ranks.clone(), next));
        let after =
            |(id, _): &(Identity, Moment)| id.group == late.group && id.fingerprint.sequence > late.sequence;
        let operation = name_of(late, group, groups, recoveries);
        let others: Vec<Rank> = late.ranks.iter().copied().filter(|rank| *rank != links.rank).collect();
        let instead = groups.instead(&others, late.group, &out.observer);
        let operation = match peer_waits::name_of(late.group, &out.observer) {
            None if instead.is_none() => operation,
            _ => format!("{operation} of {}", title(late.group, &out.observer)),
        };
        let operation = match in_flight(ops, backlog).filter(after).count() {
            0 => operation,
            1 => format!("{operation} and the call after it"),
            more => format!("{operation} and the {more} calls after it"),
        };
        let awaited = links.ranks(&missing(group, late.sequence, ops));
        let said = said(&late.ranks, &operation, links.rank, &awaited);
        let line = instead.map_or_else(|| said.clone(), |instead| format!("{said}: {instead}"));
        crate::log::warn(&format!("rank {}", links.rank), line);
    }
}

/// The calls that have not ended here, and when they were made.
fn in_flight<'a>(ops: &'a Ops, backlog: &'a Backlog) -> impl Iterator<Item = (Identity, Moment)> + 'a {
    let awaited = |operation: &&Operation| operation.caller.completion.is_some();
    let running = ops.table.iter().filter(awaited);
    let running = running.map(|operation| (operation.id, operation.caller.issued));
    running.chain(backlog.queue.iter().map(|queued| (queued.id, queued.caller.issued)))
}

/// For whom an operation waits, if it runs.
fn missing(group: &Group, sequence: u64, ops: &Ops) -> Vec<MemberId> {
    let running = group.operation(sequence).and_then(|key| ops.get(key));
    running.map(Operation::missing).unwrap_or_default()
}

/// The operation in which ranks wait, as programs know it: what a lost reducer left has the name of their call.
fn name_of(late: &Late, group: &Group, groups: &Groups, recoveries: &Recoveries) -> String {
    let origin = recoveries.origin(late.group, late.sequence);
    let named = |id: &Identity| groups.get(id.group).map(|group| group.settings.named(id.fingerprint));
    let called = || group.state.issued(late.sequence).map(|called| group.settings.named(*called));
    let name = match group.settings.serves {
        Some(Service::Remains) => origin.and_then(named),
        _ => called(),
    };
    let carried = recoveries.repaired_group(late.group).and_then(|number| groups.get(number));
    let number = carried.map_or(late.sequence, |group| group.state.next());
    name.as_ref().map_or_else(|| format!("operation {number}"), Named::to_string)
}

/// That these ranks have not come to an operation; none if all wait, and rank `me` for data of `awaited`.
fn said(late: &[Rank], operation: &str, me: Rank, awaited: &[Rank]) -> String {
    match late {
        [] if awaited.is_empty() => {
            format!("all ranks have waited in {operation} for {LATE} s: is a network slow?")
        }
        [] => format!(
            "all ranks have waited in {operation} for {LATE} s, this one for data of {}: is the network between them slow, \
             or does it let nothing through?",
            Ranks(awaited)
        ),
        late if late.contains(&me) => {
            format!(
                "the other ranks have waited in {operation} for {LATE} s, and this rank has not called it"
            )
        }
        late => {
            let has = if late.len() == 1 { "has" } else { "have" };
            format!("{} {has} not called {operation}, in which others have waited for {LATE} s", Ranks(late))
        }
    }
}
