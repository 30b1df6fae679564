//! The flight record of an engine: its last operations and messages, and the groups that they are of.

use super::{Engine, group::Group};
use crate::{
    clock,
    core::session::{
        fence::Member,
        flight::{FlightGroup, FlightOperation, FlightRecord, GROUPS, RANKS},
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
    let operations = engine.runtime.out.observer.flight();
    FlightRecord {
        job,
        role,
        rank,
        world,
        process: std::process::id(),
        host: host_name(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        clock: clock::reading(),
        issued: engine.runtime.out.observer.next(),
        posted: 0,
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
        let group = engine.runtime.groups.get(number);
        let ranks = group.map(|group| group.settings.ranks.clone()).unwrap_or_default();
        let ranks = if ranks.len() <= room { ranks } else { Vec::new() };
        room -= ranks.len();
        FlightGroup {
            group: number,
            name: engine.runtime.out.observer.name_of(number),
            description: String::new(),
            ranks,
            over: group.and_then(|group| group.state.member().and_then(Member::over)),
            failure: group.and_then(|group| failure(engine, group)),
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
