//! The calls in which ranks wait, as the hub has reported: they explain why ranks do not call another group.

use crate::{
    clock::Moment,
    core::{
        group::Rank,
        session::{
            control::Waiting,
            fence::{WAITING_AGAIN_MILLISECONDS, WAITING_MILLISECONDS},
        },
        wire::Fingerprint,
    },
    execute::issue::WORLD_GROUP,
    observe::Observer,
};
use std::{collections::BTreeMap, time::Duration};

/// For how long what was shown holds: who still waits says so again before.
const HOLDS: Duration = Duration::from_millis(2 * WAITING_AGAIN_MILLISECONDS + WAITING_MILLISECONDS);

/// What a rank waits in.
#[derive(Debug)]
struct Wait {
    group: u32,
    call: Fingerprint,
    shown: Moment,
}

/// What each rank was last shown to wait in.
#[derive(Debug, Default)]
pub(super) struct PeerWaits {
    waits: BTreeMap<Rank, Wait>,
}

impl PeerWaits {
    pub(super) fn note(&mut self, waiting: &Waiting, shown: Moment) {
        let Waiting { rank, group, fingerprint: call, .. } = *waiting;
        self.waits.insert(rank, Wait { group, call, shown });
    }

    /// In which call of which other group than this one a rank waits.
    pub(super) fn of(&self, rank: Rank, but: u32, now: Moment) -> Option<(u32, Fingerprint)> {
        let holds = |wait: &&Wait| wait.group != but && now.since(wait.shown) <= HOLDS;
        self.waits.get(&rank).filter(holds).map(|wait| (wait.group, wait.call))
    }
}

/// A group, as programs know it; `None` for that of all ranks, also where another one goes on for it.
pub(super) fn name_of(number: u32, observer: &Observer) -> Option<String> {
    match observer.name_of(number) {
        name if name == observer.name_of(WORLD_GROUP) => None,
        name if name.starts_with("group ") => Some(name),
        name => Some(format!("group {name:?}")),
    }
}

/// The same for all groups.
pub(super) fn title(number: u32, observer: &Observer) -> String {
    name_of(number, observer).unwrap_or_else(|| "the group of all ranks".to_owned())
}
