//! The ports that decide about a request, which are hosts' ports and sites' uplinks, and the load that algorithms put
//! on them.

use super::{
    Request,
    port_loads::{MemberPlaces, PortLoads},
    reckoned,
    shares::{PortTime, ShareSearch, filled},
};
use crate::{
    algorithm::{Algorithm, Layout, OwnedBy, Shares, pieces_of_hosts},
    codec::Codec,
    group::Rank,
    schedule::{Chunk, Schedule},
    topology::{Port, Ports},
};
use alloc::{collections::BTreeSet, format, string::String, vec, vec::Vec};

/// Ports that differ by less than one part of so many count as equal.
const ALIKE: u64 = 16;

/// The most kinds of hosts whose ports may make their shares differ.
const MOST_KINDS: usize = 8;

/// Of a hundred parts of a choice's time, what another one, or the same with shares, may take to be taken in its place.
pub(super) const WORTH_PERCENT: u64 = 97;

/// The rate of all ports where none is known, in bytes/s.
const ASSUMED: u64 = 1_000_000_000;

/// An algorithm with its best shares.
pub(super) struct SharedChoice {
    pub(super) plain: Algorithm,
    pub(super) algorithm: Algorithm,
    /// The time with even shares.
    pub(super) even: PortTime,
    pub(super) time: PortTime,
    /// Of the workers' hosts; none where no worker owns anything.
    of_hosts: Vec<HostShare>,
}

/// What a host folds, in sixteenths of the largest share, and how much of the buffer its port carries out and in.
struct HostShare {
    share: u8,
    carried: [f64; 2],
}

/// What a port is one of.
#[derive(Clone, Copy, Debug)]
pub(super) enum PortKind {
    /// A host.
    Host,
    /// A site, which has this rank; in bytes/s.
    Uplink { rank: Rank, rate: u64 },
}

/// The port that is busy longest.
pub(super) struct BusiestPort {
    /// Its number, by which [`KnownPorts::carried`] knows it.
    pub(super) port: usize,
    pub(super) kind: PortKind,
    /// How much of the buffer it carries, in its busier direction.
    pub(super) carried: f64,
}

/// The ports of a request's hosts, workers' first, then one for each reducer, and the uplinks of its sites.
pub(super) struct KnownPorts {
    places: MemberPlaces,
    ports: Vec<Port>,
    uplinks: Vec<Port>,
    /// The kind of each host: those of one kind have ports that are alike, as many ranks, and sites that are alike.
    kinds: Vec<usize>,
}

/// What makes hosts alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HostKind {
    ranks: u64,
    /// How many nodes of the canonical tree the ranks are.
    pieces: usize,
    /// Of few sites each is a kind of its own; of many it is equal for those with as many ranks and equal uplinks.
    site: usize,
    rate: u64,
}

impl KnownPorts {
    /// Of reducers nothing is known: they count as fast as the fastest worker's port. Where sites are known and no host's port is, each of these
    /// counts as fast as all uplinks together, so that uplinks decide.
    pub(super) fn new(request: &Request<'_>, known: Option<&Ports>) -> Self {
        let sites = known.and_then(Ports::sites);
        let places = MemberPlaces::of(request, sites);
        let workers = request.group.size() as usize;
        let mut ports = vec![Port::default(); places.workers_hosts];
        let mut ranks = vec![0u64; places.workers_hosts];
        for (rank, host) in places.hosts[..workers].iter().enumerate() {
            ranks[*host as usize] += 1;
            let port = &mut ports[*host as usize];
            if let Some(known) = known.filter(|_| *port == Port::default()) {
                *port = known.port(rank);
            }
        }
        let uplinks = sites.map(|sites| sites.uplinks().to_vec()).unwrap_or_default();
        if ports.iter().all(|port| *port == Port::default()) {
            let rate = match known {
                None => ASSUMED,
                Some(_) => {
                    let rates = uplinks.iter().map(|uplink| uplink.out.max(uplink.into));
                    rates.fold(0, u64::saturating_add)
                }
            };
            ports.fill(Port { out: rate, into: rate });
        }
        let most = |rate: fn(&Port) -> u64| ports.iter().map(rate).max().unwrap_or(0);
        let fastest = Port { out: most(|port| port.out), into: most(|port| port.into) };
        let (alike, pieces) = (alike_sites(&places, &ranks, &uplinks), pieces(request, &places));
        let of_host = |host: usize| HostKind {
            ranks: ranks[host],
            pieces: pieces[host],
            site: alike[host],
            rate: rate(&ports[host]),
        };
        let mut kinds = kinds(&(0..places.workers_hosts).map(of_host).collect::<Vec<_>>());
        let of_reducers = kinds.iter().max().map_or(0, |most| most + 1);
        kinds.resize(places.workers_hosts + request.reducers as usize, of_reducers);
        ports.resize(kinds.len(), fastest);
        Self { places, ports, uplinks, kinds }
    }

    /// Whether the workers' ports differ by more than one part of [`ALIKE`].
    pub(super) fn differ(&self) -> bool {
        let differs = |rate: fn(&Port) -> u64| {
            let known = self.ports[..self.places.workers_hosts].iter().map(rate).filter(|rate| *rate > 0);
            let (least, most) =
                known.fold((u64::MAX, 0), |(least, most), rate| (rate.min(least), rate.max(most)));
            most > 0 && !are_alike(most, least, ALIKE)
        };
        differs(|port| port.out) || differs(|port| port.into)
    }

    fn schedule(&self, request: &Request<'_>, algorithm: &Algorithm) -> Option<Schedule> {
        let Request { collective, group, hosts, links, .. } = *request;
        let reducers = if algorithm.needs_reducers() { request.reducers } else { 0 };
        algorithm.schedule(collective, group, &Layout { reducers, hosts, links }).ok()
    }

    /// The ports of the members of a schedule, then the uplinks, in the order of [`PortLoads::directions`].
    fn ports_of(&self, schedule: &Schedule) -> Vec<Port> {
        let hosts = self.places.workers_hosts + schedule.reducers() as usize;
        [&self.ports[..hosts], &self.uplinks].concat()
    }

    /// What each port carries with an algorithm as it is, counted from its programs.
    fn loads_of(&self, request: &Request<'_>, algorithm: &Algorithm) -> Option<Counted> {
        let schedule = self.schedule(request, algorithm)?;
        let loads = reckoned::loads(request, &self.places, algorithm, 1, |_| 0);
        let loads =
            loads.unwrap_or_else(|| PortLoads::of(&schedule, &self.places, request.widening, 1, |_| 0));
        Some(Counted { loads, ports: self.ports_of(&schedule) })
    }

    /// Whether ports carry what a formula says with stages that are no more than a single one of them. Those need no shares.
    pub(super) fn has_reckoned_stages(&self, request: &Request<'_>, algorithm: &Algorithm) -> bool {
        let has_stages = matches!(algorithm, Algorithm::Radix { .. }) && !reckoned::is_one_stage(algorithm);
        has_stages && reckoned::loads(request, &self.places, algorithm, 1, |_| 0).is_some()
    }

    /// How long the busiest port takes with an algorithm as it is.
    pub(super) fn time_of(&self, request: &Request<'_>, algorithm: &Algorithm) -> Option<PortTime> {
        let Counted { loads, ports } = self.loads_of(request, algorithm)?;
        ShareSearch::new(&loads, &ports).time(&[1])
    }

    /// The port that is busy longest with an algorithm as it is.
    pub(super) fn busiest(&self, request: &Request<'_>, algorithm: &Algorithm) -> Option<BusiestPort> {
        let Counted { loads, ports } = self.loads_of(request, algorithm)?;
        let time = |port: &usize| {
            let Port { out, into } = ports[*port];
            let carried = loads.of_buffer(*port, &[1]);
            let busy = [out, into].map(|rate| if rate == 0 { 0.0 } else { 1.0 / rate as f64 });
            (carried[0] * busy[0]).max(carried[1] * busy[1])
        };
        // Of equal ones the last, which is an uplink if one is as busy as a host's port.
        let port = (0..ports.len()).max_by(|a, b| time(a).total_cmp(&time(b)))?;
        let hosts = ports.len() - self.uplinks.len();
        let workers = &self.places.hosts[..request.group.size() as usize];
        let is_there = |host: &u32| match port.checked_sub(hosts) {
            None => *host as usize == port,
            site => self.places.site(*host) == site,
        };
        let rank = workers.iter().position(is_there).unwrap_or(0) as Rank;
        let kind = match port < hosts {
            true => PortKind::Host,
            false => PortKind::Uplink { rank, rate: rate(&ports[port]) },
        };
        let [out, into] = loads.of_buffer(port, &[1]);
        Some(BusiestPort { port, kind, carried: out.max(into) })
    }

    /// How much of the buffer the ports of one kind carry at most with an algorithm as it is: those of hosts, or uplinks, as the one of this number is.
    pub(super) fn carried(&self, request: &Request<'_>, algorithm: &Algorithm, port: usize) -> Option<f64> {
        let Counted { loads, ports } = self.loads_of(request, algorithm)?;
        let hosts = ports.len() - self.uplinks.len();
        let alike = if port < hosts { 0..hosts } else { hosts..ports.len() };
        alike.flat_map(|port| loads.of_buffer(port, &[1])).reduce(f64::max)
    }

    /// An algorithm with the owners that it has by itself.
    pub(super) fn as_it_is(&self, request: &Request<'_>, plain: Algorithm) -> Option<SharedChoice> {
        let time = self.time_of(request, &plain)?;
        Some(SharedChoice { algorithm: plain.clone(), plain, even: time, time, of_hosts: vec![] })
    }

    /// An algorithm with the shares that leave the least to the busiest port, or with even ones if the search has found none that do; `None` where it has none, or does not fit the hosts.
    pub(super) fn by_shares(&self, request: &Request<'_>, plain: Algorithm) -> Option<SharedChoice> {
        let workers = request.group.size();
        let by = OwnedBy::of(&plain)?;
        let owners = by.count(workers, request.reducers);
        // The owners' places among members: reducers come after the workers.
        let first = if by == OwnedBy::Reducers { workers } else { 0 };
        let equal = Shares::new(vec![Shares::WHOLE; owners as usize]).ok()?;
        let coded = request.codec != Codec::Plain;
        let with = |shares: Shares| {
            // With even shares all but `mixed` are what they are without.
            let is_plain = shares.is_even() && by != OwnedBy::Both;
            let weighted = if is_plain { plain.clone() } else { plain.clone().weighted(shares) };
            if coded { weighted.coded() } else { weighted }
        };
        let schedule = self.schedule(request, &with(equal))?;
        let ports = self.ports_of(&schedule);
        let hosts = ports.len() - self.uplinks.len();
        let each = (schedule.cut().chunks() / owners).max(1);
        let kind_of = |owner: u32| self.kinds[self.places.hosts[(first + owner) as usize] as usize];
        let count = self.kinds[..hosts].iter().max().map_or(1, |most| most + 1);
        let loads = reckoned::loads(request, &self.places, &plain, count, kind_of).unwrap_or_else(|| {
            let of_chunk = |chunk: Chunk| kind_of(chunk / each);
            PortLoads::of(&schedule, &self.places, request.widening, count, of_chunk)
        });
        let search = ShareSearch::new(&loads, &ports);
        let even = search.time(&vec![Shares::WHOLE; count])?;
        let (mut lengths, mut time) = search.best(&self.starts(&ports[..hosts]));
        let shared = |lengths: &[u8]| {
            let parts = (0..owners).map(|owner| lengths[kind_of(owner)]).collect();
            Shares::new(parts).ok().map(with)
        };
        let mut algorithm = shared(&lengths)?;
        let mut exact = None;
        if has_stages(&plain) {
            // Ranks that forward in several stages carry other loads than the search has counted.
            exact = self.loads_of(request, &algorithm);
            let counted = exact.as_ref()?;
            time = ShareSearch::new(&counted.loads, &counted.ports).time(&[1])?;
        }
        // What ports were measured to carry is not exact, and even shares are worth as much.
        if by != OwnedBy::Both && !time.is_below(WORTH_PERCENT, even) {
            (lengths, time, exact) = (vec![Shares::WHOLE; count], even, None);
            algorithm = shared(&lengths)?;
        }
        let carried = |host: usize| match &exact {
            Some(counted) => counted.loads.of_buffer(host, &[1]),
            None => loads.of_buffer(host, &lengths),
        };
        let of_host = |host: usize| HostShare { share: lengths[self.kinds[host]], carried: carried(host) };
        let workers_hosts = if first == 0 { self.places.workers_hosts } else { 0 };
        let of_hosts = (0..workers_hosts).map(of_host).collect();
        Some(SharedChoice { plain, algorithm, even, time, of_hosts })
    }

    /// Lengths by kinds from which the search begins: those that fill ports, those of the rates, and all in the fastest.
    fn starts(&self, ports: &[Port]) -> Vec<Vec<u8>> {
        let rates: Vec<u64> = ports.iter().map(rate).collect();
        let most = rates.iter().copied().max().unwrap_or(1).max(1);
        let by_rate = |rate: &u64| match *rate {
            0 => Shares::WHOLE,
            rate => (u128::from(rate) * u128::from(Shares::WHOLE) / u128::from(most)) as u8,
        };
        let alone = |rate: &u64| if *rate == 0 || *rate == most { Shares::WHOLE } else { 0 };
        let of_hosts =
            [filled(&rates), rates.iter().map(by_rate).collect(), rates.iter().map(alone).collect()];
        let kinds = self.kinds[..ports.len()].iter().max().map_or(1, |most| most + 1);
        of_hosts
            .iter()
            .map(|lengths: &Vec<u8>| {
                let mut of_kinds = vec![0; kinds];
                self.kinds.iter().zip(lengths).for_each(|(kind, length)| of_kinds[*kind] = *length);
                of_kinds
            })
            .collect()
    }

    /// What is said of the slowest port: what its host folds and carries.
    pub(super) fn slowest(&self, found: &SharedChoice) -> String {
        let rates = self.ports[..self.places.workers_hosts].iter().map(rate);
        let known = rates.enumerate().filter(|(_, rate)| *rate > 0);
        let (slowest, least) = known.clone().min_by_key(|(_, rate)| *rate).unwrap_or((0, 1));
        let most = known.map(|(_, rate)| rate).max().unwrap_or(1);
        let rank = self.places.hosts.iter().position(|host| *host as usize == slowest).unwrap_or(0);
        let part = least as f64 / most.max(1) as f64;
        let carries = match found.of_hosts.get(slowest) {
            None => String::new(),
            Some(HostShare { share, carried: [out, into] }) => {
                let folds = match share {
                    0 => String::from("it folds nothing"),
                    share => format!("it folds {share}/{} of what a fast one does", Shares::WHOLE),
                };
                format!(": {folds} and carries {:.2} of the buffer each way", out.max(*into))
            }
        };
        format!(
            "the port of rank {rank}'s host has {:.1} MB/s, {part:.2} of the fastest{carries}",
            least as f64 / 1e6
        )
    }
}

/// What ports carry with a schedule.
struct Counted {
    loads: PortLoads,
    ports: Vec<Port>,
}

/// Whether ranks forward what others own, by shares that a search does not see.
fn has_stages(algorithm: &Algorithm) -> bool {
    match algorithm {
        Algorithm::Radix { scatter, gather } => scatter.len().max(gather.len()) > 1,
        Algorithm::Hierarchical { .. } | Algorithm::Sites { .. } => true,
        _ => false,
    }
}

/// The lesser rate of a port that is known; 0 if none is.
fn rate(port: &Port) -> u64 {
    match (port.out, port.into) {
        (0, rate) | (rate, 0) => rate,
        (out, into) => out.min(into),
    }
}

/// Whether a rate is no more than one part of `parts` above another one.
fn are_alike(most: u64, least: u64, parts: u64) -> bool {
    u128::from(most) * u128::from(parts) <= u128::from(least) * u128::from(parts + 1)
}

/// How many nodes of the canonical tree each host's ranks are; 1 where the ranks of a host are not consecutive.
fn pieces(request: &Request<'_>, places: &MemberPlaces) -> Vec<usize> {
    let found = pieces_of_hosts(request.group, request.hosts).unwrap_or_default();
    (0..places.workers_hosts).map(|host| found.get(host).map_or(1, Vec::len)).collect()
}

/// A number for each host's site: of its own if there are few, else equal for those with as many ranks and equal uplinks.
fn alike_sites(places: &MemberPlaces, ranks: &[u64], uplinks: &[Port]) -> Vec<usize> {
    let hosts = 0..places.workers_hosts;
    if uplinks.len() <= MOST_KINDS {
        return hosts.map(|host| places.site(host as u32).unwrap_or(0)).collect();
    }
    let of_site = |site: usize| -> u64 {
        let own = hosts.clone().filter(|host| places.site(*host as u32) == Some(site));
        own.map(|host| ranks[host]).sum()
    };
    let signature = |host: usize| {
        let site = places.site(host as u32)?;
        let Port { out, into } = uplinks.get(site).copied().unwrap_or_default();
        Some([of_site(site), out, into])
    };
    let signatures: Vec<_> = hosts.clone().map(signature).collect();
    let known: BTreeSet<_> = signatures.iter().copied().collect();
    signatures.iter().map(|own| known.iter().position(|other| other == own).unwrap_or(0)).collect()
}

/// The kind of each host; at most [`MOST_KINDS`], or as many as there are numbers of ranks and of sites that are not alike. Where there
/// would be more, ports count as alike that differ by more.
fn kinds(hosts: &[HostKind]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..hosts.len()).collect();
    order.sort_by_key(|host| {
        let HostKind { ranks, pieces, site, rate } = hosts[*host];
        (ranks, pieces, site, core::cmp::Reverse(rate), *host)
    });
    let mut parts = ALIKE;
    loop {
        let (mut kinds, mut kind) = (vec![0; hosts.len()], 0);
        let mut first: Option<HostKind> = None;
        for host in &order {
            let own = hosts[*host];
            let is_new = first.is_some_and(|first| {
                (first.ranks, first.pieces, first.site) != (own.ranks, own.pieces, own.site)
                    || !are_alike(first.rate, own.rate, parts)
            });
            if first.is_none() || is_new {
                kind += usize::from(is_new);
                first = Some(own);
            }
            kinds[*host] = kind;
        }
        if kind < MOST_KINDS || parts == 1 {
            return kinds;
        }
        parts /= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_different_ports_make_few_kinds() {
        let hosts: Vec<HostKind> =
            (1..=64).map(|at| HostKind { ranks: 1, pieces: 1, site: 0, rate: at * 1_000_000 }).collect();
        let kinds = kinds(&hosts);
        assert!(kinds.iter().max().unwrap() < &MOST_KINDS, "{kinds:?}");
        assert!(kinds.windows(2).all(|pair| pair[0] >= pair[1]), "the fastest is kind 0");
    }
}
