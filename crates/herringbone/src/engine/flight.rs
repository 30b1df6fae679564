//! The flight record of an engine: its last operations and messages, and the groups that they are of.

use super::{Engine, group::Group};
use crate::{
    clock,
    core::session::{
        fence::Member,
        flight::{FlightGroup, FlightOperation, FlightRecord, GROUPS, KEPT, RANKS},
        handshake::Identity,
    },
};
use std::collections::BTreeSet;

/// The name of this machine.
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// What an engine has called last.
pub(crate) fn flight_record(engine: &Engine, owner: Identity) -> FlightRecord {
    let Identity { role, job, rank, world, .. } = owner;
    let serves =
        |number| engine.runtime.groups.get(number).is_some_and(|group| group.settings.serves.is_some());
    let observer = &engine.runtime.out.observer;
    let mut operations =
        observer.flight(|number| serves(number) || (!engine.reduces && !observer.is_called(number)));
    let (issued, posted) = (observer.next(), observer.messages_posted());
    // As long as nothing is forgotten, what other groups do for these counts for nothing.
    let has_all = issued.max(posted) <= KEPT as u64;
    let first = if has_all { 0 } else { (issued + posted).saturating_sub(operations.len() as u64) };
    (first..).zip(&mut operations).for_each(|(number, operation)| operation.number = number);
    FlightRecord {
        job,
        role,
        rank,
        world,
        process: std::process::id(),
        host: host_name(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        clock: clock::reading(),
        issued,
        posted,
        groups: groups(engine, &operations),
        operations,
    }
}

/// The groups that are there and no service of others, and those of the operations.
fn groups(engine: &Engine, operations: &[FlightOperation]) -> Vec<FlightGroup> {
    let called = engine.runtime.groups.iter().filter(|group| group.settings.serves.is_none());
    let mut numbers: BTreeSet<u32> = operations.iter().map(|operation| operation.group).collect();
    numbers.extend(called.map(|group| group.settings.id));
    let mut room = RANKS;
    let shown = |number: u32| {
        let (group, mut noted) =
            (engine.runtime.groups.get(number), engine.runtime.out.observer.noted(number));
        if noted.ranks.len() > room {
            noted.ranks.clear();
        }
        room -= noted.ranks.len();
        FlightGroup {
            over: group.and_then(|group| group.state.member().and_then(Member::over)),
            failure: group.and_then(|group| failure(engine, group)),
            ..noted
        }
    };
    // Those that were made last are kept.
    let first = numbers.len().saturating_sub(GROUPS);
    numbers.into_iter().skip(first).map(shown).collect()
}

/// The kind of the error because of which a group is over.
fn failure(engine: &Engine, group: &Group) -> Option<String> {
    let error = group.failure(&engine.runtime.links).filter(|_| group.state.is_over());
    error.map(|error| error.kind().name().to_owned())
}
