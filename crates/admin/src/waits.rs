//! Who waits for whom, from the answers of all members.

use crate::ask::{AskedMember, Round};
use herringbone::core::session::Ranks;
use herringbone::status::{InFlight, MemberId, Role};
use std::collections::{BTreeMap, BTreeSet};

/// Some members wait for one.
#[derive(Debug)]
pub struct Wait<'a> {
    /// Whom they wait for.
    pub on: MemberId,
    /// Who waits.
    pub by: Vec<MemberId>,
    /// The oldest operation in which they wait.
    pub operation: &'a InFlight,
    /// The number of further operations.
    pub more: usize,
    /// Why, as far as that is known.
    pub why: Option<&'static str>,
}

/// An operation, as all ranks call it.
type Key<'a> = (u32, Option<u64>, &'a str);

/// Who waits in it, and its state at the member that called it first.
type Waiters<'a> = (BTreeSet<MemberId>, &'a InFlight);

/// All waits. Members that wait themselves come last.
pub fn of(round: &Round) -> Vec<Wait<'_>> {
    let mut found: BTreeMap<MemberId, BTreeMap<Key<'_>, Waiters<'_>>> = BTreeMap::new();
    for member in &round.members {
        let (Some(id), Some(job_status)) = (member.id, member.job_status(round.job)) else { continue };
        for operation in &job_status.operations {
            // Ranks number the calls of a group alike, and messages by themselves.
            let name = if operation.sequence.is_some() { "" } else { operation.name.as_str() };
            for on in operation.waits.iter().filter(|on| **on != id) {
                let key = (operation.group, operation.sequence, name);
                let operations = found.entry(*on).or_default();
                let (by, oldest) = operations.entry(key).or_insert_with(|| (BTreeSet::new(), operation));
                by.insert(id);
                if operation.age > oldest.age {
                    *oldest = operation;
                }
            }
        }
    }
    let waiting: BTreeSet<MemberId> = found
        .values()
        .flat_map(|operations| operations.values().flat_map(|(by, _)| by.iter().copied()))
        .collect();
    let mut waits: Vec<Wait<'_>> = found
        .into_iter()
        .filter_map(|(on, operations)| {
            let more = operations.len() - 1;
            let (by, operation) = operations.into_values().max_by_key(|(_, operation)| operation.age)?;
            let why = why(round, on, operation);
            Some(Wait { on, by: by.into_iter().collect(), operation, more, why })
        })
        .collect();
    waits.sort_by_key(|wait| (waiting.contains(&wait.on), std::cmp::Reverse(wait.operation.age)));
    waits
}

/// Why a member keeps others waiting in an operation.
fn why(round: &Round, on: MemberId, operation: &InFlight) -> Option<&'static str> {
    let member = round.members.iter().find(|member| member.id == Some(on))?;
    if member.heard.is_err() {
        return Some("it does not answer");
    }
    let group = member.job_status(round.job)?.group(operation.group);
    let next = group.and_then(|group| group.next);
    match (member.role, operation.sequence, next) {
        (Some(Role::Worker), Some(sequence), Some(next)) if next <= sequence => Some("it has not called it"),
        _ => None,
    }
}

/// Members for people: `ranks 0, 2-5 and reducer 10.0.0.5:7070`.
pub fn names(round: &Round, members: &[MemberId]) -> String {
    let roster = round.roster.as_ref();
    let mut ranks: Vec<u32> =
        members.iter().filter_map(|id| roster.and_then(|roster| roster.rank_of(*id))).collect();
    ranks.sort_unstable();
    let mut names = if ranks.is_empty() { Vec::new() } else { vec![Ranks(&ranks).to_string()] };
    let others = members.iter().filter(|id| roster.and_then(|roster| roster.rank_of(**id)).is_none());
    names.extend(others.map(|id| name(round, *id)));
    match names.split_last() {
        Some((last, before)) if !before.is_empty() => format!("{} and {last}", before.join(", ")),
        _ => names.concat(),
    }
}

/// A member for people.
pub fn name(round: &Round, id: MemberId) -> String {
    match &round.roster {
        Some(roster) if roster.is_reducer(id) => format!("reducer {}", roster.name(id)),
        Some(roster) => roster.name(id),
        // A reducer knows workers alone, whose identities are their ranks as long as nobody has left.
        None => format!("rank {}", id.number()),
    }
}

/// The name of a group, as any member calls it.
pub fn group(round: &Round, number: u32) -> String {
    let named = |member: &AskedMember| Some(member.job_status(round.job)?.group(number)?.name.clone());
    round.members.iter().find_map(named).unwrap_or_else(|| format!("group {number}"))
}
