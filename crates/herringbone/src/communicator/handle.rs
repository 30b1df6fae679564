//! The handle of a group, and how groups are made known.

use super::{
    lines::AskedLines,
    residuals::{AutomaticCodecs, Draws},
};
use crate::{
    Error,
    core::{
        group::{Group as FoldGroup, Rank},
        session::{
            control::{Message, Ordinal},
            fence::Member,
            membership::MemberId,
        },
    },
    engine::group::{Group, Settings},
    fabric::Fabric,
    residuals::Residuals,
};
use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// What a group was made of.
#[derive(Clone, Debug)]
pub(super) struct GroupOrigin {
    /// The group that it is a part of, of any depth, which is no part of another: that of all ranks, or of those that were left.
    pub(super) root: u32,
    /// Of a group for sums of shards: the order of these.
    pub(super) shards: Option<Arc<FoldGroup>>,
}

impl GroupOrigin {
    /// Of an ordinary group, a part of this one.
    pub(super) fn of(root: u32) -> Self {
        Self { root, shards: None }
    }
}

/// One group, as this process holds it: closed here when the last handle is gone.
pub(crate) struct GroupHandle {
    pub(super) number: u32,
    pub(super) origin: GroupOrigin,
    pub(super) rank: u32,
    pub(super) members: Vec<MemberId>,
    /// In nanoseconds.
    pub(super) timeout: AtomicU64,
    /// The ranks to which there are ways for messages.
    pub(super) channels: Mutex<BTreeSet<u32>>,
    /// How many operations of the group before it, of which ranks were lost, all of its members have completed.
    pub(crate) completed_before: OnceLock<u64>,
    /// Of tensors that have no other owner. A group with other members starts without.
    pub(crate) residuals: Residuals,
    pub(super) draws: Draws,
    pub(super) codecs: AutomaticCodecs,
    pub(super) lines: AskedLines,
    pub(super) fabric: std::sync::Weak<Fabric>,
}

/// What makes a group of these members, of which this process is the one at place `rank`.
pub(super) fn settings_of(
    fabric: &Fabric,
    number: u32,
    rank: Rank,
    members: &[MemberId],
    ids: Vec<MemberId>,
) -> Settings {
    let roster = &fabric.job.roster;
    let hosts = roster.hosts();
    let ranks: Vec<Rank> = members.iter().filter_map(|member| roster.rank_of(*member)).collect();
    let hosts: Vec<u32> = ranks.iter().map(|rank| hosts[*rank as usize]).collect();
    let parameters = fabric.settings.parameters.clone();
    Settings::new(number, roster.epoch(), ids, ranks, rank, hosts, parameters)
}

/// Makes a group known to the engine and to the hub, with what names it, or the group that it is a part of, if that is a count.
pub(super) fn make_known(fabric: &Fabric, settings: Settings, ordinal: Option<Ordinal>) {
    let group = introduced(fabric, settings, ordinal);
    fabric.node.with(|engine| engine.add_group(group));
}

/// A group of which the hub knows, for the engine.
pub(super) fn introduced(fabric: &Fabric, settings: Settings, ordinal: Option<Ordinal>) -> Group {
    let members = settings.ranks.clone();
    if settings.me == 0 {
        let message = Message::GroupInfo { group: settings.id, generation: 0, members: members.clone() };
        fabric.commands.tell_hub(message);
    }
    let member = Member::new(settings.id, fabric.job.rank, members).named(ordinal);
    Group::new(settings, member)
}

/// The error of a group whose number, the hash of its name, another one has.
pub(super) fn clash() -> Error {
    let problem = "its hash is that of another one: give one of the two another name";
    Error::config("the name of a group", problem)
}

/// As many as there can be.
pub(super) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl GroupHandle {
    /// Of a group that has done nothing yet, of which this process is the member at place `rank`.
    pub(super) fn new(
        fabric: &Arc<Fabric>,
        number: u32,
        origin: GroupOrigin,
        rank: Rank,
        members: Vec<MemberId>,
        timeout: Duration,
    ) -> Self {
        Self {
            number,
            origin,
            rank,
            members,
            timeout: AtomicU64::new(nanoseconds(timeout)),
            channels: Mutex::default(),
            completed_before: OnceLock::new(),
            residuals: Residuals::new(),
            draws: Draws::default(),
            codecs: AutomaticCodecs::default(),
            lines: AskedLines::default(),
            fabric: Arc::downgrade(fabric),
        }
    }

    /// The group's number within its job.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// The host of each of its ranks.
    pub(crate) fn hosts(&self, fabric: &Fabric) -> Vec<u32> {
        let (roster, hosts) = (&fabric.job.roster, fabric.job.roster.hosts());
        let host = |member: &MemberId| roster.rank_of(*member).map(|rank| hosts[rank as usize]);
        self.members.iter().filter_map(host).collect()
    }

    pub(super) fn timeout(&self) -> Duration {
        Duration::from_nanos(self.timeout.load(Ordering::Relaxed))
    }
}

impl Drop for GroupHandle {
    fn drop(&mut self) {
        if let Some(fabric) = self.fabric.upgrade()
            && !fabric.is_forked()
        {
            fabric.node.with(|engine| engine.drop_group(self.number));
        }
    }
}
