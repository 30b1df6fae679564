//! The choice where the ports of hosts are known and differ: a slow port gets less to carry.
//!
//! Each candidate gets the [best shares](super::shares), and the least time of the busiest port wins. All of it is whole numbers, so
//! ranks that know the same ports choose alike. Candidates keep the canonical order: `ring` is none of them, and carries no less
//! between hosts of one rank than `radix` with even shares.

use super::{
    Choice, LINKED_BYTES, REDUCTION_SERVER_BYTES, Request, SHARDED_RANKS,
    port_loads::{PortLoads, host_numbers},
    shares::{PortTime, ShareSearch, filled},
};
use crate::{
    algorithm::{Algorithm, Layout, OwnedBy, Shares},
    codec::Codec,
    collective::Collective,
    schedule::{Chunk, Schedule},
    topology::{Port, Ports},
};
use alloc::{format, string::String, vec, vec::Vec};

/// The most members for which shares are planned.
const MOST_MEMBERS: u32 = 256;

/// Ports that differ by less than one part of so many count as equal.
const ALIKE: u64 = 16;

/// Of a hundred parts of the plain choice's time, what another one may take to be chosen.
const WORTH_PERCENT: u64 = 97;

/// The most kinds of hosts whose shares may differ.
const MOST_KINDS: usize = 8;

/// The ports that decide about a request: where they are known of all of its workers, and explain the links that are known.
pub(super) fn deciding<'a>(request: &Request<'a>) -> Option<&'a Ports> {
    let Request { ports, links, hosts, group, .. } = *request;
    Ports::deciding(ports, links, hosts, group.size() as usize)
}

/// The choice, or an algorithm by shares that leaves the busiest port at least 3 % less time: for an all-reduce of at least
/// [`LINKED_BYTES`] between hosts whose ports differ.
pub(super) fn lighter(request: &Request<'_>, ports: &Ports, choice: Choice) -> Choice {
    let Request { collective, bytes, group, reducers, .. } = *request;
    let counts = collective == Collective::AllReduce && bytes >= LINKED_BYTES && !group.has_several();
    if !counts || group.size() + reducers > MOST_MEMBERS {
        return choice;
    }
    let known = KnownPorts::new(request, ports);
    if !known.differ() {
        return choice;
    }
    let plain = choice.algorithm.plain();
    let found = candidates(request, &choice.algorithm);
    let mut found: Vec<SharedChoice> =
        found.into_iter().filter_map(|algorithm| known.by_shares(request, algorithm)).collect();
    // What the plain choice takes was counted on the way, if it can have shares.
    let own = found.iter().find(|found| found.plain == *plain).map(|found| found.even);
    let Some(own) = own.or_else(|| known.time_of(request, &choice.algorithm)) else { return choice };
    found.retain(|found| found.time.is_below(WORTH_PERCENT, own));
    while let Some(at) = least(&found) {
        let best = found.swap_remove(at);
        // Ranks that forward in several stages may carry more than the search has counted.
        let exact = match has_stages(&best.plain) {
            true => known.time_of(request, &best.algorithm),
            false => Some(best.time),
        };
        if let Some(time) = exact.filter(|time| time.is_below(WORTH_PERCENT, own)) {
            let why = known.reason(&best, time, &choice.algorithm, own);
            return Choice { algorithm: best.algorithm, why };
        }
    }
    let Choice { algorithm, why } = choice;
    let why = format!("{why}; its busiest port takes {}, and no shares make that 3 % less", shown(own));
    Choice { algorithm, why }
}

/// The first of those with the least time.
fn least(found: &[SharedChoice]) -> Option<usize> {
    (0..found.len()).reduce(|best, at| if found[at].time.is_below(100, found[best].time) { at } else { best })
}

/// What can have shares; of those that take as long, the first one is chosen.
fn candidates(request: &Request<'_>, chosen: &Algorithm) -> Vec<Algorithm> {
    let Request { bytes, reducers, hosts, group, codec, .. } = *request;
    if codec != Codec::Plain {
        return vec![chosen.plain().clone()];
    }
    let has_hosts = hosts.len() == group.size() as usize;
    let are_served = reducers > 0 && bytes >= REDUCTION_SERVER_BYTES;
    let inside = Algorithm::hierarchical();
    let others = [
        (Algorithm::radix(vec![]), true),
        (inside, has_hosts),
        (Algorithm::Mixed { shares: None }, are_served),
        (Algorithm::ReductionServer, are_served),
        (Algorithm::hosts_and_reducers(), are_served && has_hosts),
    ];
    // Between so few ranks a single stage has the fewest rounds.
    let is_sharded = group.size() <= SHARDED_RANKS;
    let mut found = vec![if is_sharded { Algorithm::radix(vec![]) } else { chosen.clone() }];
    for (algorithm, fits) in [(chosen.clone(), true)].into_iter().chain(others) {
        if fits && !found.contains(&algorithm) {
            found.push(algorithm);
        }
    }
    found
}

/// An algorithm with its best shares.
struct SharedChoice {
    plain: Algorithm,
    algorithm: Algorithm,
    /// The time with even shares.
    even: PortTime,
    time: PortTime,
    /// Of the workers' hosts; none where no worker owns anything.
    of_hosts: Vec<HostShare>,
}

/// What a host folds, in sixteenths of the largest share, and how much of the buffer its port carries out and in.
struct HostShare {
    share: u8,
    carried: [f64; 2],
}

/// The ports of a request's hosts, workers' first, then one for each reducer.
struct KnownPorts {
    hosts: Vec<u32>,
    ports: Vec<Port>,
    workers_hosts: usize,
    /// The kind of each host: those of one kind have ports that are alike, and as many ranks.
    kinds: Vec<usize>,
}

impl KnownPorts {
    /// Of reducers nothing is known: they count as fast as the fastest worker's port.
    fn new(request: &Request<'_>, known: &Ports) -> Self {
        let (hosts, workers_hosts) = host_numbers(request, request.reducers);
        let mut ports = vec![Port::default(); workers_hosts];
        let mut ranks = vec![0u64; workers_hosts];
        for (rank, host) in hosts[..known.size()].iter().enumerate() {
            ranks[*host as usize] += 1;
            let port = &mut ports[*host as usize];
            if *port == Port::default() {
                *port = known.port(rank);
            }
        }
        let most = |rate: fn(&Port) -> u64| ports.iter().map(rate).max().unwrap_or(0);
        let fastest = Port { out: most(|port| port.out), into: most(|port| port.into) };
        let mut kinds = kinds(&ports, &ranks);
        let of_reducers = kinds.iter().max().map_or(0, |most| most + 1);
        kinds.resize(workers_hosts + request.reducers as usize, of_reducers);
        ports.resize(kinds.len(), fastest);
        Self { hosts, ports, workers_hosts, kinds }
    }

    /// Whether the workers' ports differ by more than one part of [`ALIKE`].
    fn differ(&self) -> bool {
        let differs = |rate: fn(&Port) -> u64| {
            let known = self.ports[..self.workers_hosts].iter().map(rate).filter(|rate| *rate > 0);
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

    /// The ports of the members of a schedule.
    fn ports_of(&self, schedule: &Schedule) -> (&[u32], &[Port]) {
        let members = schedule.ranks() as usize;
        (&self.hosts[..members], &self.ports[..self.workers_hosts + schedule.reducers() as usize])
    }

    /// How long the busiest port takes with an algorithm as it is, counted from its programs.
    fn time_of(&self, request: &Request<'_>, algorithm: &Algorithm) -> Option<PortTime> {
        let schedule = self.schedule(request, algorithm)?;
        let (hosts, ports) = self.ports_of(&schedule);
        let loads = PortLoads::of(&schedule, hosts, request.widening, 1, |_| 0);
        ShareSearch::new(&loads, ports).time(&[1])
    }

    /// An algorithm with the shares that leave the least to the busiest port; `None` where it has none, or does not fit the hosts.
    fn by_shares(&self, request: &Request<'_>, plain: Algorithm) -> Option<SharedChoice> {
        let workers = request.group.size();
        let by = OwnedBy::of(&plain)?;
        let owners = by.count(workers, request.reducers);
        // The owners' places among members: reducers come after the workers.
        let first = if by == OwnedBy::Reducers { workers } else { 0 };
        let equal = Shares::new(vec![Shares::WHOLE; owners as usize]).ok()?;
        let coded = request.codec != Codec::Plain;
        let with = |shares: Shares| {
            let weighted = plain.clone().weighted(shares);
            if coded { weighted.coded() } else { weighted }
        };
        let schedule = self.schedule(request, &with(equal))?;
        let (hosts, ports) = self.ports_of(&schedule);
        let each = (schedule.cut().chunks() / owners).max(1);
        let kind_of = |owner: u32| self.kinds[self.hosts[(first + owner) as usize] as usize];
        let count = self.kinds[..ports.len()].iter().max().map_or(1, |most| most + 1);
        let loads =
            PortLoads::of(&schedule, hosts, request.widening, count, |chunk: Chunk| kind_of(chunk / each));
        let search = ShareSearch::new(&loads, ports);
        let even = search.time(&vec![Shares::WHOLE; count])?;
        let (lengths, time) = search.best(&self.starts(ports));
        let shares = Shares::new((0..owners).map(|owner| lengths[kind_of(owner)]).collect()).ok()?;
        let of_hosts = match first {
            0 => (0..self.workers_hosts)
                .map(|host| HostShare {
                    share: lengths[self.kinds[host]],
                    carried: loads.of_buffer(host, &lengths),
                })
                .collect(),
            _ => vec![],
        };
        let algorithm = with(shares);
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

    /// What is said of a choice: the slowest port, what its host folds and carries, and what the plain choice would take.
    fn reason(&self, found: &SharedChoice, time: PortTime, plain: &Algorithm, own: PortTime) -> String {
        let rates = self.ports[..self.workers_hosts].iter().map(rate);
        let known = rates.enumerate().filter(|(_, rate)| *rate > 0);
        let (slowest, least) = known.clone().min_by_key(|(_, rate)| *rate).unwrap_or((0, 1));
        let most = known.map(|(_, rate)| rate).max().unwrap_or(1);
        let rank = self.hosts.iter().position(|host| *host as usize == slowest).unwrap_or(0);
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
            "the port of rank {rank}'s host has {:.1} MB/s, {part:.2} of the fastest{carries}; the busiest port takes {}, with {plain} {}",
            least as f64 / 1e6,
            shown(time),
            shown(own)
        )
    }
}

/// Whether ranks forward what others own, by shares that a search does not see.
fn has_stages(algorithm: &Algorithm) -> bool {
    match algorithm {
        Algorithm::Radix { scatter, gather } => scatter.len().max(gather.len()) > 1,
        Algorithm::Hierarchical { .. } => true,
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

/// The kind of each host by its port and its number of ranks; at most [`MOST_KINDS`], or as many as there are numbers of ranks.
/// Where there would be more, ports count as alike that differ by more.
fn kinds(ports: &[Port], ranks: &[u64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..ports.len()).collect();
    order.sort_by_key(|host| (ranks[*host], core::cmp::Reverse(rate(&ports[*host])), *host));
    let mut parts = ALIKE;
    loop {
        let (mut kinds, mut kind, mut first) = (vec![0; ports.len()], 0, None);
        for host in &order {
            let (count, own) = (ranks[*host], rate(&ports[*host]));
            let is_new = first.is_some_and(|(ranks, most)| ranks != count || !are_alike(most, own, parts));
            if first.is_none() || is_new {
                kind += usize::from(is_new);
                first = Some((count, own));
            }
            kinds[*host] = kind;
        }
        if kind < MOST_KINDS || parts == 1 {
            return kinds;
        }
        parts /= 2;
    }
}

fn shown(time: PortTime) -> String {
    match time.of_gigabyte() {
        milliseconds if milliseconds < 1000.0 => format!("{milliseconds:.2} ms/GB"),
        milliseconds => format!("{:.2} s/GB", milliseconds / 1000.0),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{choose, counted::tests::large};
    use super::*;
    use crate::{group::Group, topology::LinkMatrix};

    fn known(rates: &[u64]) -> Ports {
        Ports::new(rates.iter().map(|rate| Port { out: *rate, into: *rate }).collect(), 0).unwrap()
    }

    fn chosen(request: &Request<'_>) -> (String, String) {
        let Choice { algorithm, why } = choose(request).unwrap();
        (format!("{algorithm}"), why)
    }

    const FAST: u64 = 62_500_000;
    const SLOW: u64 = 12_500_000;

    #[test]
    fn a_slow_port_folds_nothing_and_the_reason_says_so() {
        let (group, ports) = (Group::of_size(4), known(&[FAST, FAST, FAST, SLOW]));
        let request = Request { bytes: 8 << 20, ports: Some(&ports), ..large(&group, &[0, 1, 2, 3]) };
        let (name, why) = chosen(&request);
        assert_eq!(name, "weighted(radix,16x3,0)");
        assert_eq!(
            why,
            "the port of rank 3's host has 12.5 MB/s, 0.20 of the fastest: it folds nothing and carries 1.00 of the buffer each way; \
             the busiest port takes 80.00 s/GB, with radix(2,2) 120.00 s/GB"
        );
        let (name, _) = chosen(&Request { bytes: LINKED_BYTES - 4, ..request });
        assert_eq!(name, "radix(2,2)", "of small buffers messages count");
        assert_eq!(chosen(&Request { hosts: &[], ..request }).0, "weighted(radix,16x3,0)");
        let coded = Request { codec: Codec::Int8, ..request };
        assert_eq!(chosen(&coded).0, "coded(weighted(radix,16x3,0))");
        assert!(chosen(&coded).1.starts_with("messages are coded with int8; the port of rank 3's host"));
    }

    #[test]
    fn equal_ports_and_those_that_do_not_explain_links_change_nothing() {
        let group = Group::of_size(4);
        let request = large(&group, &[0, 1, 2, 3]);
        let plain = chosen(&request);
        for rates in [[FAST; 4], [FAST, FAST - FAST / 20, FAST, FAST], [0; 4], [0, 0, 0, FAST]] {
            let ports = known(&rates);
            assert_eq!(chosen(&Request { ports: Some(&ports), ..request }), plain, "{rates:?}");
        }
        // Links that are slower than ports have something else in their way.
        let (ports, links) = (known(&[FAST, FAST, FAST, SLOW]), LinkMatrix::uniform(4, 0.000_1));
        let (name, why) = chosen(&Request { ports: Some(&ports), links: Some(&links), ..request });
        assert!(!name.starts_with("weighted") && why.contains("slowest link"), "{name}: {why}");
        let as_fast = LinkMatrix::uniform(4, 1.0);
        let (name, _) = chosen(&Request { ports: Some(&ports), links: Some(&as_fast), ..request });
        assert_eq!(name, "weighted(radix,16x3,0)");
    }

    /// Whatever is chosen leaves no more to the busiest port than the plain choice does, in programs as they are.
    #[test]
    fn choices_are_never_worse_than_the_plain_one() {
        let layouts: [&[u32]; 7] =
            [&[1; 4], &[1; 8], &[2; 4], &[2, 2, 2], &[3, 3, 3], &[8, 4, 4], &[1, 1, 1, 5]];
        for (sizes, reducers) in layouts.iter().flat_map(|sizes| [0, 2, 4].map(|reducers| (sizes, reducers)))
        {
            let hosts: Vec<u32> =
                (0..).zip(*sizes).flat_map(|(host, size)| (0..*size).map(move |_| host)).collect();
            let group = Group::of_size(hosts.len() as u32);
            for slow in 0..sizes.len() as u32 {
                let rates: Vec<u64> =
                    hosts.iter().map(|host| if *host == slow { SLOW } else { FAST }).collect();
                let ports = known(&rates);
                let request = Request { reducers, bytes: 64 << 20, ..large(&group, &hosts) };
                let plain = choose(&request).unwrap().algorithm;
                let request = Request { ports: Some(&ports), ..request };
                let found = choose(&request).unwrap();
                let known = KnownPorts::new(&request, &ports);
                let time = |algorithm| known.time_of(&request, algorithm).unwrap();
                let (own, best) = (time(&plain), time(&found.algorithm));
                assert!(
                    !own.is_below(100, best),
                    "{sizes:?}, {reducers} reducers, {slow}: {found:?} after {plain}"
                );
                // Each buffer goes out of the slow port once and comes in once, at the least.
                let bound = 1e12 / SLOW as f64;
                assert!(best.of_gigabyte() >= 0.999 * bound);
                if sizes.iter().all(|size| *size == 1) && reducers == 0 {
                    assert!(best.of_gigabyte() <= 1.02 * bound, "{sizes:?}: {}", found.why);
                }
            }
        }
    }

    #[test]
    fn many_different_ports_make_few_kinds() {
        let ports: Vec<Port> = (1..=64).map(|at| Port { out: at * 1_000_000, into: 0 }).collect();
        let kinds = kinds(&ports, &[1; 64]);
        assert!(kinds.iter().max().unwrap() < &MOST_KINDS, "{kinds:?}");
        assert!(kinds.windows(2).all(|pair| pair[0] >= pair[1]), "the fastest is kind 0");
    }
}
