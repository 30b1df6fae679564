//! The hub's side: the reports of a group's members, and the proposal that is under way.

use super::{LinkUse, PortOutcome, PortPledge, PortProposal, PortReport};
use crate::{
    group::Rank,
    session::membership::{MemberId, Roster},
    topology::{HostFlow, Port, PortChange, PortSpeeds, PortWatch, Ports},
};
use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};

/// The fewest hosts between which shares make a difference: of two each carries the whole buffer, whoever owns what.
const LEAST_HOSTS: usize = 3;
/// A connection counts as busy for one part of so many of an interval at least: kernels count in ticks, and ports that are that idle
/// hold nobody up.
const LEAST_BUSY: u64 = 16;

/// How the ports of a group's hosts look, and what was proposed.
#[derive(Debug, Default)]
pub(in crate::session) struct Rebalancing {
    watch: Option<PortWatch>,
    /// What each member has sent since the last interval.
    carried: BTreeMap<Rank, BTreeMap<MemberId, Interval>>,
    /// How many proposals there were.
    proposals: u32,
    pending: Option<Pending>,
}

/// What a connection has carried in an interval.
#[derive(Clone, Copy, Debug, Default)]
struct Interval {
    bytes: u64,
    busy: u64,
    whole: u64,
}

/// A proposal whose outcome is open.
#[derive(Debug)]
struct Pending {
    awaited: BTreeSet<Rank>,
    /// The highest number that was pledged.
    from: u64,
    /// What the ports looked like before.
    before: PortWatch,
}

impl Rebalancing {
    /// A member says what its connections have carried. Returns a proposal for all members, if all have said so since the last interval and
    /// it changes what plans take ports for.
    pub(in crate::session) fn carried(
        &mut self,
        from: Rank,
        carried: &PortReport,
        members: &[Rank],
        roster: &Roster,
    ) -> Option<PortProposal> {
        if !members.contains(&from) {
            return None;
        }
        let of_rank = self.carried.entry(from).or_default();
        let known = carried.links.iter().filter(|link| roster.member(link.peer).is_some());
        for LinkUse { peer, bytes, microseconds } in known {
            let interval = of_rank.entry(*peer).or_default();
            interval.bytes = interval.bytes.saturating_add(*bytes);
            interval.busy = interval.busy.saturating_add(*microseconds);
            interval.whole = interval.whole.saturating_add(carried.microseconds);
        }
        if self.carried.len() < members.len() {
            return None;
        }
        let all = core::mem::take(&mut self.carried);
        let hosts = roster.hosts();
        let host = |rank: Rank| hosts.get(rank as usize).copied();
        let of_members: Vec<u32> = members.iter().filter_map(|rank| host(*rank)).collect();
        let distinct: BTreeSet<u32> = of_members.iter().copied().collect();
        if self.pending.is_some() || of_members.len() < members.len() || distinct.len() < LEAST_HOSTS {
            return None;
        }
        // Reducers have hosts of their own, which no worker's number is.
        let host_of = |peer: MemberId| match roster.rank_of(peer) {
            Some(rank) => host(rank),
            None => Some(u32::MAX - peer.number()),
        };
        let flows: Vec<HostFlow> = all
            .iter()
            .flat_map(|(rank, links)| links.iter().map(move |(peer, interval)| (*rank, *peer, *interval)))
            .filter_map(|(rank, peer, Interval { bytes, busy, whole })| {
                let microseconds = busy.max(whole / LEAST_BUSY);
                Some(HostFlow { from: host(rank)?, to: host_of(peer)?, bytes, microseconds })
            })
            .collect();
        let watch = self.watch.get_or_insert_with(|| PortWatch::new(distinct));
        let before = watch.clone();
        let ports = ports(&watch.interval(&flows)?, &of_members)?;
        self.proposals += 1;
        self.pending = Some(Pending { awaited: members.iter().copied().collect(), from: 0, before });
        Some(PortProposal { group: carried.group, change: self.proposals, ports })
    }

    /// A member has pledged. Returns the outcome for all members with the last one.
    pub(in crate::session) fn pledged(&mut self, from: Rank, pledge: PortPledge) -> Option<PortOutcome> {
        let PortPledge { group, change, bound } = pledge;
        let pending = self.pending.as_mut().filter(|_| change == self.proposals)?;
        if pending.awaited.remove(&from) {
            pending.from = pending.from.max(bound);
        }
        let Pending { from, .. } = self.pending.take_if(|pending| pending.awaited.is_empty())?;
        Some(PortOutcome { group, change, from: Some(from) })
    }

    /// Nothing comes of the proposal that is under way, if one is.
    pub(in crate::session) fn cancel(&mut self, group: u32) -> Option<PortOutcome> {
        self.carried.clear();
        self.watch = Some(self.pending.take()?.before);
        Some(PortOutcome { group, change: self.proposals, from: None })
    }

    /// That of a group which takes the calls of this one: its plans take the ports as this one's did.
    pub(in crate::session) fn succeeded(&self) -> Self {
        Self { watch: self.watch.clone(), ..Self::default() }
    }
}

/// The ports of the workers' hosts; `None` where there are more than plans take.
fn ports(change: &PortChange, hosts: &[u32]) -> Option<Ports> {
    let rate = |speed: u16| {
        let whole = u128::from(PortSpeeds::WHOLE.out);
        u64::try_from(u128::from(change.fastest) * u128::from(speed) / whole).unwrap_or(u64::MAX)
    };
    let port = |host: &u32| {
        let PortSpeeds { out, into } = change.speeds.get(host).copied().unwrap_or(PortSpeeds::WHOLE);
        Port { out: rate(out), into: rate(into) }
    };
    Ports::new(hosts.iter().map(port).collect(), 0).ok()
}
