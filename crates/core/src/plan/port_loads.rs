//! Counts the data that a schedule's programs send through each host's port.

use super::Request;
use crate::{
    schedule::{Chunk, Form, Schedule, SlotChunks, Step},
    topology::{Port, Sites},
};
use alloc::{collections::BTreeMap, vec, vec::Vec};

/// The hosts of a request's members, workers first, then reducers: numbers from 0 up in the order of their first members. A worker
/// without a host, and each reducer, has one of its own. Returns with them how many hosts have workers.
pub(super) fn host_numbers(request: &Request<'_>, reducers: u32) -> (Vec<u32>, usize) {
    let workers = request.group.size();
    let (mut hosts, mut names) = (Vec::with_capacity((workers + reducers) as usize), BTreeMap::new());
    for rank in 0..workers as usize {
        let name = request.hosts.get(rank).map_or((1, rank as u32), |host| (0, *host));
        let next = names.len() as u32;
        hosts.push(*names.entry(name).or_insert(next));
    }
    hosts.extend((names.len() as u32..).take(reducers as usize));
    (hosts, names.len())
}

/// Where the members of a request are: the host of each, and the site of each host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MemberPlaces {
    /// By member, workers first: numbers from 0 up.
    pub(super) hosts: Vec<u32>,
    /// How many hosts have workers.
    pub(super) workers_hosts: usize,
    /// By host of workers; nothing where no site is known. Reducers are in no site: what goes to them leaves the worker's.
    sites: Vec<u32>,
}

impl MemberPlaces {
    /// Those of a request's workers and reducers, in these sites if any are known.
    pub(super) fn of(request: &Request<'_>, sites: Option<&Sites>) -> Self {
        let (hosts, workers_hosts) = host_numbers(request, request.reducers);
        let first = |host: u32| hosts.iter().position(|other| *other == host).unwrap_or(0);
        let of_hosts =
            |sites: &Sites| (0..workers_hosts as u32).map(|host| sites.of_rank(first(host))).collect();
        let sites = sites.map(of_hosts).unwrap_or_default();
        Self { hosts, workers_hosts, sites }
    }

    /// The site of a host; `None` outside of all.
    pub(super) fn site(&self, host: u32) -> Option<usize> {
        self.sites.get(host as usize).map(|site| *site as usize)
    }

    /// How many ports members of a schedule have: one for each host, then one for each site.
    fn ports(&self, schedule: &Schedule) -> [usize; 2] {
        let sites = self.sites.iter().max().map_or(0, |most| *most as usize + 1);
        [self.workers_hosts + schedule.reducers() as usize, sites]
    }
}

/// What ports carry while a buffer is all-reduced, by kinds of chunks: linear in how long the chunks of each kind are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PortLoads {
    kinds: usize,
    /// How many chunks of each kind go out of each port and into it: `[2 * port * kinds..]`, first those out. Hosts come before sites.
    carried: Vec<u64>,
    /// How long the whole buffer is: chunks of each kind.
    chunks: Vec<u64>,
}

impl PortLoads {
    /// Goes through the programs of all members, who are in these places. `kind` is that of each chunk, below `kinds`. Partial sums are
    /// `widening` times as wide. One pass over all steps.
    pub(super) fn of(
        schedule: &Schedule,
        places: &MemberPlaces,
        widening: u32,
        kinds: usize,
        kind: impl Fn(Chunk) -> usize,
    ) -> Self {
        let (cut, hosts) = (schedule.cut(), &places.hosts);
        let [host_ports, sites] = places.ports(schedule);
        let (mut carried, mut chunks) = (vec![0; 2 * (host_ports + sites) * kinds], vec![0; kinds]);
        for chunk in 0..cut.chunks() {
            chunks[kind(chunk)] += u64::from(cut.units_of(chunk));
        }
        for rank in 0..schedule.ranks() {
            let program = schedule.program(rank);
            let program = program.chunk_by_chunk();
            let from_host = hosts[rank as usize];
            let mut held = SlotChunks::new(&program, cut.chunks());
            for step in program.steps() {
                let Step::Send { from, to } = *step else {
                    held.step(step);
                    continue;
                };
                let chunk = held.chunk(from);
                let wide = if program.form(from) == Some(Form::Acc) { u64::from(widening) } else { 1 };
                let units = wide * u64::from(cut.units_of(chunk));
                let kind = kind(chunk);
                for lane in program.lanes(to) {
                    let to_host = hosts[*lane as usize];
                    if to_host == from_host {
                        continue;
                    }
                    let [from_site, to_site] = [from_host, to_host].map(|host| places.site(host));
                    let crosses = from_site != to_site;
                    let outs = [
                        Some(from_host as usize),
                        from_site.filter(|_| crosses).map(|site| host_ports + site),
                    ];
                    let intos =
                        [Some(to_host as usize), to_site.filter(|_| crosses).map(|site| host_ports + site)];
                    outs.into_iter().flatten().for_each(|port| carried[2 * port * kinds + kind] += units);
                    intos
                        .into_iter()
                        .flatten()
                        .for_each(|port| carried[(2 * port + 1) * kinds + kind] += units);
                }
            }
        }
        Self { kinds, carried, chunks }
    }

    /// Those of one stage of `radix`, without its programs: each rank sends each other one the input of its chunk, and gets the result.
    /// Ranks with these host numbers own a chunk each, of so many units and a kind.
    pub(super) fn of_one_stage(
        hosts: &[u32],
        units: impl Fn(u32) -> u64,
        kinds: usize,
        kind: impl Fn(u32) -> usize,
    ) -> Self {
        let ports = hosts.iter().max().map_or(0, |most| *most as usize + 1);
        let (mut ranks, mut owned) = (vec![0u64; ports], vec![0u64; ports * kinds]);
        let mut chunks = vec![0; kinds];
        for (rank, host) in (0..).zip(hosts) {
            let kind = kind(rank);
            ranks[*host as usize] += 1;
            owned[*host as usize * kinds + kind] += units(rank);
            chunks[kind] += units(rank);
        }
        let others = |host: usize| hosts.len() as u64 - ranks[host];
        let mut carried = Vec::with_capacity(2 * ports * kinds);
        for host in 0..ports {
            let own = &owned[host * kinds..(host + 1) * kinds];
            // Inputs for other hosts' chunks go out as results of its own do; what comes in is the reverse of that.
            let of_kind = own.iter().zip(&chunks);
            let load: Vec<u64> =
                of_kind.map(|(own, all)| ranks[host] * (all - own) + own * others(host)).collect();
            carried.extend_from_slice(&load);
            carried.extend_from_slice(&load);
        }
        Self { kinds, carried, chunks }
    }

    /// Those of `hierarchical` in one stage inside hosts and one across, without its programs: each host sends the owner of a chunk what its
    /// ranks have of it, as one partial sum of this width, and gets the result once. Ranks own as in [`of_one_stage`](Self::of_one_stage).
    pub(super) fn of_host_sums(
        hosts: &[u32],
        width: u64,
        units: impl Fn(u32) -> u64,
        kinds: usize,
        kind: impl Fn(u32) -> usize,
    ) -> Self {
        let ports = hosts.iter().max().map_or(0, |most| *most as usize + 1);
        let (mut owned, mut chunks) = (vec![0u64; ports * kinds], vec![0; kinds]);
        for (rank, host) in (0..).zip(hosts) {
            let kind = kind(rank);
            owned[*host as usize * kinds + kind] += units(rank);
            chunks[kind] += units(rank);
        }
        let others = ports.saturating_sub(1) as u64;
        let mut carried = Vec::with_capacity(2 * ports * kinds);
        for own in owned.chunks(kinds) {
            let of_kind = || own.iter().zip(&chunks);
            carried.extend(of_kind().map(|(own, all)| (all - own) * width + own * others));
            carried.extend(of_kind().map(|(own, all)| own * others * width + all - own));
        }
        Self { kinds, carried, chunks }
    }

    /// Those of a schedule in which each port carries so much of a buffer of `whole` parts, both ways.
    pub(super) fn alike(ports: usize, busiest: u64, whole: u64) -> Self {
        Self { kinds: 1, carried: vec![busiest; 2 * ports], chunks: vec![whole] }
    }

    /// How many chunks of each kind the buffer has.
    pub(super) fn chunks(&self) -> &[u64] {
        &self.chunks
    }

    /// What each direction of each port carries, by kinds: of host 0 out, of host 0 in, and so on, then of sites.
    pub(super) fn directions(&self) -> impl Iterator<Item = &[u64]> {
        self.carried.chunks(self.kinds)
    }

    /// How much of the buffer goes out of a port and into it, if chunks of each kind are so long.
    pub(super) fn of_buffer(&self, port: usize, lengths: &[u8]) -> [f64; 2] {
        let weighed = |counts: &[u64]| -> u64 {
            counts.iter().zip(lengths).map(|(count, length)| count * u64::from(*length)).sum()
        };
        let whole = weighed(&self.chunks).max(1) as f64;
        [0, 1].map(|way| {
            let at = (2 * port + way) * self.kinds;
            weighed(&self.carried[at..at + self.kinds]) as f64 / whole
        })
    }
}

/// The rates of ports in the order of [`PortLoads::directions`].
pub(super) fn directions(ports: &[Port]) -> impl Iterator<Item = u64> {
    ports.iter().flat_map(|port| [port.out, port.into])
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::{busiest_link, counted::tests::large};
    use super::*;
    use crate::{
        algorithm::{Algorithm, Layout},
        group::Group,
    };

    /// The loads of an algorithm in which each host is a kind of its own.
    pub(crate) struct HostLoads {
        pub(crate) loads: PortLoads,
        pub(crate) schedule: Schedule,
    }

    fn counted(
        algorithm: &Algorithm,
        group: &Group,
        hosts: &[u32],
        widening: u32,
        reducers: u32,
    ) -> HostLoads {
        let request = Request { reducers, ..large(group, hosts) };
        let layout = Layout { reducers, hosts, links: None };
        let schedule = algorithm.schedule(request.collective, group, &layout).unwrap();
        let places = MemberPlaces::of(&request, None);
        let numbers = &places.hosts;
        let kinds = numbers.iter().max().unwrap() + 1;
        let kind = |chunk: Chunk| numbers[chunk as usize % numbers.len()] as usize;
        let loads = PortLoads::of(&schedule, &places, widening, kinds as usize, kind);
        HostLoads { loads, schedule }
    }

    pub(crate) fn one_stage(workers: u32, hosts: &[u32], widening: u32) -> HostLoads {
        counted(&Algorithm::radix(vec![]), &Group::of_size(workers), hosts, widening, 0)
    }

    /// One stage of `radix` between lone ranks: 1 + (N - 2) w of the buffer each way.
    #[test]
    fn loads_of_one_stage_are_those_of_the_formula() {
        for workers in 2..=9u32 {
            let HostLoads { loads, .. } = one_stage(workers, &[], 1);
            let lengths: Vec<u8> = (0..workers).map(|host| (host * 5 % 16 + 1) as u8).collect();
            let whole: f64 = lengths.iter().map(|length| f64::from(*length)).sum();
            for host in 0..workers as usize {
                let expected = 1.0 + f64::from(workers - 2) * f64::from(lengths[host]) / whole;
                for carried in loads.of_buffer(host, &lengths) {
                    assert!((carried - expected).abs() < 1e-9, "{workers}, {host}: {carried} and {expected}");
                }
            }
        }
    }

    #[test]
    fn the_busiest_direction_is_what_the_busiest_link_carries() {
        let hierarchical = Algorithm::hierarchical();
        for (algorithm, hosts, reducers) in [
            (Algorithm::radix(vec![]), &[0, 0, 1, 1, 2, 2][..], 0),
            (Algorithm::radix(vec![2, 2]), &[0, 1, 2, 3], 0),
            (hierarchical, &[0, 0, 0, 1, 1, 1], 0),
            (Algorithm::ReductionServer, &[0, 1, 2, 3], 2),
            (Algorithm::Mixed { shares: None }, &[0, 1, 2, 3], 2),
            (Algorithm::Ring, &[0, 1, 2], 0),
        ] {
            let group = Group::of_size(hosts.len() as u32);
            for widening in [1, 2] {
                let HostLoads { loads, schedule } = counted(&algorithm, &group, hosts, widening, reducers);
                let busiest = loads.directions().map(|counts| counts.iter().sum::<u64>()).max().unwrap();
                assert_eq!(busiest, busiest_link(&schedule, hosts, widening), "{algorithm}");
            }
        }
    }

    /// By shares, the programs carry what the plain ones do, weighed by the shares.
    #[test]
    fn loads_are_linear_in_shares() {
        let shares: crate::algorithm::Shares = "16,3,0,7".parse().unwrap();
        let plain = one_stage(4, &[], 1).loads;
        let group = Group::of_size(4);
        let weighted = counted(&Algorithm::radix(vec![]).weighted(shares.clone()), &group, &[], 1, 0).loads;
        let exact: Vec<u64> = weighted.directions().map(|counts| counts.iter().sum()).collect();
        let linear: Vec<u64> = plain
            .directions()
            .map(|counts| {
                counts.iter().zip(shares.parts()).map(|(count, share)| count * u64::from(*share)).sum()
            })
            .collect();
        assert_eq!(exact, linear);
    }
}
