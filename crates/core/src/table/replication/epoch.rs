//! Epochs, and the owner and copies of each range in one.

use crate::session::{Malformed, Reader, Writer};
use alloc::{collections::BTreeMap, vec::Vec};

/// The most servers of a parameter server: an epoch is one for all of its ranges.
pub const SERVERS_MOST: u32 = 64;

/// Numbers an epoch. Later ones are higher, and no two are equal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EpochId {
    /// One more than the counter of any epoch that its servers knew.
    pub counter: u64,
    /// The server that proposed it.
    pub decider: u32,
}

/// The servers that are in an epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Epoch {
    /// Its number.
    pub id: EpochId,
    /// By their places in the list of servers, the lives of their processes.
    pub members: BTreeMap<u32, u64>,
}

/// A process, as the server of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerLife {
    /// Its place in the list of servers.
    pub server: u32,
    /// The life of the process.
    pub life: u64,
}

/// An epoch that is settled: all its servers have promised it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SettledEpoch {
    /// Which.
    pub epoch: Epoch,
    /// The owner and copies of each range.
    pub tenures: Vec<Tenure>,
}

/// A range that a server holds whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldRange {
    /// Which.
    pub range: u32,
    /// The last epoch in which the server held it whole.
    pub epoch: EpochId,
    /// How many operations have changed it.
    pub sequence: u64,
    /// Whether no operation of it waits for copies.
    pub is_settled: bool,
}

/// The owner and copies of a range in an epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tenure {
    /// The last epoch in which it had an owner. A server's data of the range from an earlier epoch is out of date.
    pub last: EpochId,
    /// The server that executes its requests. `None`: no server of the epoch has it.
    pub owner: Option<u32>,
    /// Other servers that have it, or are to get it.
    pub copies: Vec<CopyPlace>,
}

/// A copy of a range in an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyPlace {
    /// Its server.
    pub server: u32,
    /// How many operations it had at least when the epoch began. `None`: it needs an image of the whole range.
    pub sequence: Option<u64>,
}

/// The owner and copies of each of `servers` ranges in an epoch, with `replicas` copies of each if possible.
///
/// By default server `i` owns range `i`, and the servers after it have copies. The owner must hold the range whole: it
/// is server `i` if it has all executed operations, otherwise the next server that has. Servers that hold it whole keep
/// it until the default owner and copies hold it, too. `before` has the tenures of the epoch before, if there was one.
pub fn lay_out(
    epoch: EpochId,
    servers: u32,
    replicas: u32,
    before: &[Tenure],
    holdings: &BTreeMap<u32, Vec<HeldRange>>,
) -> Vec<Tenure> {
    let tenure = |range: u32| {
        let ring = (range..servers).chain(0..range).filter(|server| holdings.contains_key(server));
        let last = before.get(range as usize).map_or_else(EpochId::default, |tenure| tenure.last);
        let held = |server: u32| {
            let held = holdings.get(&server)?.iter().find(|holding| holding.range == range)?;
            Some(*held).filter(|held| held.epoch >= last)
        };
        let newest = ring.clone().filter_map(held).map(|held| (held.epoch, held.sequence)).max();
        let Some((newest, sequence)) = newest else { return Tenure { last, ..Tenure::default() } };
        let is_settled = ring
            .clone()
            .filter_map(held)
            .any(|held| held.is_settled && (held.epoch, held.sequence) == (newest, sequence));
        // What is settled all have that hold it whole.
        let has_all = |server: &u32| {
            held(*server)
                .is_some_and(|held| held.epoch == newest && (is_settled || held.sequence == sequence))
        };
        let owner = ring.clone().find(has_all);
        let others = || ring.clone().filter(|server| Some(*server) != owner);
        let whole = |server: u32| held(server).filter(|held| held.epoch == newest).map(|held| held.sequence);
        let by_rights: Vec<u32> = others().take(replicas as usize).collect();
        let kept: Vec<u32> =
            others().filter(|server| whole(*server).is_some()).take(replicas as usize).collect();
        let copies = others().filter(|server| by_rights.contains(server) || kept.contains(server));
        let copies = copies.map(|server| CopyPlace { server, sequence: whole(server) }).collect();
        Tenure { last: epoch, owner, copies }
    };
    (0..servers).map(tenure).collect()
}

impl Epoch {
    /// Whether a process is in it.
    pub fn has(&self, process: ServerLife) -> bool {
        self.members.get(&process.server) == Some(&process.life)
    }

    /// Its processes, in the order of their places.
    pub fn processes(&self) -> impl Iterator<Item = ServerLife> + '_ {
        self.members.iter().map(|(server, life)| ServerLife { server: *server, life: *life })
    }

    /// The lowest of its servers, which proposes the next epoch while all are there.
    pub fn decider(&self) -> Option<u32> {
        self.members.keys().next().copied()
    }

    pub(super) fn write(&self, to: &mut Writer) {
        self.id.write(to);
        let members: Vec<ServerLife> = self.processes().collect();
        to.list("the servers of an epoch", &members, |to, process| process.write(to));
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let id = EpochId::read(from)?;
        let members = from.list(ServerLife::read)?;
        Ok(Self { id, members: members.into_iter().map(|process| (process.server, process.life)).collect() })
    }
}

impl ServerLife {
    pub(super) fn write(self, to: &mut Writer) {
        to.u32(self.server);
        to.u64(self.life);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self { server: server(from)?, life: from.u64()? })
    }
}

impl SettledEpoch {
    pub(super) fn write(&self, to: &mut Writer) {
        self.epoch.write(to);
        to.list("who has which range", &self.tenures, |to, tenure| tenure.write(to));
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self { epoch: Epoch::read(from)?, tenures: from.list(Tenure::read)? })
    }
}

impl EpochId {
    pub(super) fn write(&self, to: &mut Writer) {
        to.u64(self.counter);
        to.u32(self.decider);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self { counter: from.u64()?, decider: from.u32()? })
    }
}

impl core::fmt::Display for EpochId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}", self.counter)
    }
}

impl HeldRange {
    pub(super) fn write(&self, to: &mut Writer) {
        to.u32(self.range);
        self.epoch.write(to);
        to.u64(self.sequence);
        to.bool(self.is_settled);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (range, epoch) = (server(from)?, EpochId::read(from)?);
        Ok(Self { range, epoch, sequence: from.u64()?, is_settled: from.bool()? })
    }
}

impl Tenure {
    /// Whether a server is to have it, as its owner or as a copy.
    pub fn has(&self, server: u32) -> bool {
        self.owner == Some(server) || self.copies.iter().any(|copy| copy.server == server)
    }

    pub(super) fn write(&self, to: &mut Writer) {
        self.last.write(to);
        to.option(self.owner.as_ref(), |to, owner| to.u32(*owner));
        to.list("the copies of a range", &self.copies, |to, copy| {
            to.u32(copy.server);
            to.option(copy.sequence.as_ref(), |to, sequence| to.u64(*sequence));
        });
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (last, owner) = (EpochId::read(from)?, from.option(server)?);
        let copies =
            from.list(|from| Ok(CopyPlace { server: server(from)?, sequence: from.option(Reader::u64)? }))?;
        Ok(Self { last, owner, copies })
    }
}

/// The place of a server, or a range, of which there are as many.
pub(super) fn server(from: &mut Reader<'_>) -> Result<u32, Malformed> {
    from.u32().and_then(|server| {
        if server < SERVERS_MOST { Ok(server) } else { Err(Malformed("a server of an impossible number")) }
    })
}
