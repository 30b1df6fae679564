//! The parameters of time: ports, links, and the costs of a rank's thread. All are whole numbers, so every machine that
//! simulates gets the same times.

pub use crate::topology::Port;
use crate::{
    codec::Codec,
    execution::Rules,
    group::Rank,
    topology::{LinkMatrix, Ports, Switches},
};
use alloc::{collections::BTreeSet, vec, vec::Vec};

/// A time, or a length of time, in picoseconds: a byte of 100 GB/s takes ten of them.
pub type Picoseconds = u64;

/// Picoseconds of a second.
pub const SECOND: Picoseconds = 1_000_000_000_000;

/// How long `bytes` take at `rate` bytes/s; nothing at a rate of 0, which stands for one without a limit.
pub fn duration(bytes: u64, rate: u64) -> Picoseconds {
    if rate == 0 {
        return 0;
    }
    u64::try_from(u128::from(bytes) * u128::from(SECOND) / u128::from(rate)).unwrap_or(u64::MAX)
}

/// The time that an action costs a rank's thread: a constant for each time, and its bytes at a rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overhead {
    /// Each time.
    pub each: Picoseconds,
    /// Bytes/s; 0: they cost nothing.
    pub rate: u64,
}

impl Overhead {
    /// The cost of `bytes` at once.
    pub fn of(self, bytes: u64) -> Picoseconds {
        self.each.saturating_add(duration(bytes, self.rate))
    }
}

/// The costs of the ranks' threads, the kernel and the wires of a kind of machine: one set of constants for a rig,
/// whatever runs on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Sending a message over a connection.
    pub send: Overhead,
    /// Receiving one.
    pub receive: Overhead,
    /// Sending one to a local rank, and looking at one of theirs.
    pub here: Overhead,
    /// Folding. The bytes are the sum over all sources.
    pub fold: Overhead,
    /// Copying in memory.
    pub copy: Overhead,
    /// Bytes/s of f32 that [`Codec::Int8`] encodes with error feedback. Other codecs are faster or slower by their
    /// [speed](Codec::speed).
    pub encode: u64,
    /// Bytes/s of f32 that are decoded, likewise.
    pub decode: u64,
    /// From the call to the first step.
    pub call: Picoseconds,
    /// The time from the arrival of the data for which a thread sleeps until it runs.
    pub wake: Picoseconds,
    /// How many bytes a connection takes that have not left yet.
    pub buffered: u64,
    /// The number of payload bytes per 1,000 bytes of a link. The others are packet headers.
    pub payload_per_mille: u32,
    /// How many bytes a limited link that was idle lets through at once, as token buckets do; 0: a steady link.
    pub bucket: u64,
}

impl Costs {
    /// The constants of today's cloud machines, for use if nothing was measured: a few microseconds for each message,
    /// memory of 8 GB/s.
    pub const DEFAULT: Self = Self {
        send: Overhead { each: 6_000_000, rate: 8_000_000_000 },
        receive: Overhead { each: 6_000_000, rate: 6_000_000_000 },
        here: Overhead { each: 400_000, rate: 0 },
        fold: Overhead { each: 300_000, rate: 16_000_000_000 },
        copy: Overhead { each: 200_000, rate: 10_000_000_000 },
        encode: 3_000_000_000,
        decode: 5_000_000_000,
        call: 2_000_000,
        wake: 15_000_000,
        buffered: 512 << 10,
        payload_per_mille: 993,
        bucket: 0,
    };
}

impl Costs {
    /// Threads and wires that cost nothing but the links' time.
    pub const FREE: Self = {
        let nothing = Overhead { each: 0, rate: 0 };
        Self {
            send: nothing,
            receive: nothing,
            here: nothing,
            fold: nothing,
            copy: nothing,
            encode: 0,
            decode: 0,
            call: 0,
            wake: 0,
            payload_per_mille: 1000,
            ..Self::DEFAULT
        }
    };

    /// The cost of encoding by a codec, by the bytes of the f32.
    pub fn encoding(&self, codec: Codec) -> Overhead {
        self.coding(self.encode, codec.speed().encoding)
    }

    /// The cost of decoding, by the bytes of the f32.
    pub fn decoding(&self, codec: Codec) -> Overhead {
        self.coding(self.decode, codec.speed().decoding)
    }

    /// Each step of it costs what a fold does.
    fn coding(&self, rate: u64, per_mille: u64) -> Overhead {
        let of_codec = u128::from(rate) * u128::from(per_mille) / 1000;
        // 0 stands for no cost, and what is slow is not that.
        let least = rate.min(1);
        Overhead { each: self.fold.each, rate: u64::try_from(of_codec).unwrap_or(u64::MAX).max(least) }
    }
}

/// Cores that ranks run on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cores {
    /// One for each rank.
    #[default]
    Enough,
    /// This many in each host.
    OfHost(u32),
    /// This many in all, for a computer that plays all hosts.
    InAll(u32),
}

/// The machines of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Rig {
    /// The host of each member, workers first, then reducers; numbers from 0 up.
    pub hosts: Vec<u32>,
    /// The port of each host, headers included.
    pub ports: Vec<Port>,
    /// Direct links between workers, instead of ports, in bytes/s; 0 if there is none.
    pub links: Option<(usize, Vec<u64>)>,
    /// The switches for workers without a link of their own; `None`: they send nothing but reports of what they can
    /// receive.
    pub switches: Option<Switches>,
    /// Sites of hosts behind uplinks; `None`: all hosts are behind one switch.
    pub sites: Option<RigSites>,
    /// From the last byte that leaves a host until it is at another, without queueing.
    pub latency: Picoseconds,
    /// The cores.
    pub cores: Cores,
    /// How many times as slow a member is as the others, in thousandths; 1,000 beyond the list's end.
    pub slowness: Vec<u32>,
    /// The number of bytes per 1,000 bytes of each port that other programs use all the time.
    pub background_per_mille: u32,
    /// The costs of actions.
    pub costs: Costs,
    /// The random order; `None`: all is done in the order in which it comes up.
    pub random_order: Option<RandomOrder>,
}

/// Sites of hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RigSites {
    /// The site of each host; `None` outside of all.
    pub of_hosts: Vec<Option<u32>>,
    /// The uplink of each site, headers included: its hosts share it towards all other sites.
    pub uplinks: Vec<Port>,
}

impl RigSites {
    /// The site of a host; `None` outside of all.
    pub(crate) fn of_host(&self, host: u32) -> Option<u32> {
        self.of_hosts.get(host as usize).copied().flatten()
    }
}

/// The order that executors leave to chance, drawn by a seed: which ready step or message a thread does next, and
/// whether a rank's buffer is mapped. A mapped buffer has more segments in flight. Messages of one sender stay in their
/// order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomOrder {
    /// The seed.
    pub seed: u64,
    /// The rules that all ranks follow.
    pub rules: Rules,
}

impl Rig {
    /// Hosts behind ports of `rate` bytes/s both ways.
    pub fn with_ports(hosts: Vec<u32>, rate: u64, latency: Picoseconds, costs: Costs) -> Self {
        let ports = hosts.iter().max().map_or(0, |most| *most as usize + 1);
        Self {
            hosts,
            ports: vec![Port { out: rate, into: rate }; ports],
            links: None,
            switches: None,
            sites: None,
            latency,
            cores: Cores::Enough,
            slowness: Vec::new(),
            background_per_mille: 0,
            costs,
            random_order: None,
        }
    }

    /// Hosts behind measured ports: each has the rates in `ports` for payload. Members beyond the list have ports of
    /// `others`.
    pub fn with_known_ports(
        hosts: Vec<u32>,
        ports: &Ports,
        others: u64,
        latency: Picoseconds,
        costs: Costs,
    ) -> Self {
        // Ports are measured in payload, and a rig's include headers.
        let whole = |rate: u64| rate.saturating_mul(1000).div_ceil(u64::from(costs.payload_per_mille.max(1)));
        let latency = match ports.nanoseconds() {
            0 => latency,
            known => known.saturating_mul(1000),
        };
        let mut rig = Self::with_ports(hosts, others, latency, costs);
        let whole_port = |Port { out, into }: Port| Port { out: whole(out), into: whole(into) };
        // Where only sites are known, hosts have ports as the others.
        let knows_hosts = (0..ports.size()).any(|rank| ports.port(rank) != Port::default());
        let mut sites = ports.sites().map(|sites| RigSites {
            of_hosts: vec![None; rig.ports.len()],
            uplinks: sites.uplinks().iter().copied().map(whole_port).collect(),
        });
        for rank in (0..ports.size()).rev() {
            let Some(host) = rig.hosts.get(rank).map(|host| *host as usize) else { continue };
            if knows_hosts {
                rig.ports[host] = whole_port(ports.port(rank));
            }
            if let (Some(rig), Some(sites)) = (&mut sites, ports.sites()) {
                rig.of_hosts[host] = Some(sites.of_rank(rank));
            }
        }
        Self { sites, ..rig }
    }

    /// Workers, each with a link to each other as in a topology.
    pub fn with_links(links: &LinkMatrix, latency: Picoseconds, costs: Costs) -> Self {
        let size = links.size();
        let pairs = (0..size).flat_map(|from| (0..size).map(move |to| (from, to)));
        let rates = pairs.map(|(from, to)| match links.weight(from, to) > 0.0 {
            // 0 stands for no link, and what is slow is one.
            true => ((links.speed(from, to) * 1e9) as u64).max(1),
            false => 0,
        });
        let links = Some((size, rates.collect()));
        Self { links, ..Self::with_ports((0..size as u32).collect(), 0, latency, costs) }
    }

    /// The members that share the host of `member`, itself among them.
    pub(super) fn on_host_of(&self, member: Rank) -> usize {
        let host = self.hosts[member as usize];
        self.hosts.iter().filter(|other| **other == host).count()
    }

    /// Whether the hosts of the first so many members all have as many members.
    pub(super) fn hosts_are_alike(&self, members: u32) -> bool {
        let mut counts = vec![0u32; self.hosts.iter().max().map_or(0, |most| *most as usize + 1)];
        self.hosts.iter().for_each(|host| counts[*host as usize] += 1);
        let mut on_hosts = self.hosts.iter().take(members as usize).map(|host| counts[*host as usize]);
        on_hosts.next().is_none_or(|first| on_hosts.all(|other| other == first))
    }

    /// Whether members share a host.
    pub(super) fn is_shared(&self, one: Rank, other: Rank) -> bool {
        self.hosts[one as usize] == self.hosts[other as usize]
    }

    /// Whether messages can go from one member to another: where links are known, there is one.
    pub(super) fn is_linked(&self, from: Rank, to: Rank) -> bool {
        let (from, to) = (from as usize, to as usize);
        let between = self.links.as_ref().filter(|(size, _)| from < *size && to < *size);
        self.switches.is_some() || between.is_none_or(|(size, rates)| rates[from * size + to] > 0)
    }

    /// How many hosts have workers.
    pub fn workers_hosts(&self, workers: u32) -> u32 {
        self.hosts.iter().take(workers as usize).collect::<BTreeSet<_>>().len() as u32
    }

    pub(super) fn slowed(&self, member: Rank, cost: Picoseconds) -> Picoseconds {
        match self.slowness.get(member as usize) {
            Some(slowness) => cost.saturating_mul(u64::from(*slowness)) / 1000,
            None => cost,
        }
    }

    /// A port's rate for payload: without headers, without what others take, and slower where one of the host's members is.
    pub(crate) fn payload_rate(&self, host: u32, rate: u64) -> u64 {
        let on_host = (0..).zip(&self.hosts).filter(|(_, other)| **other == host);
        let slowness =
            on_host.map(|(member, _): (usize, _)| self.slowness.get(member).copied().unwrap_or(1000));
        self.rate_of_payload(rate, slowness.max().unwrap_or(1000))
    }

    /// The rate of a direction of a site's uplink, for payload.
    pub(crate) fn uplink(&self, site: u32, direction: fn(&Port) -> u64) -> u64 {
        let uplink = self.sites.as_ref().and_then(|sites| sites.uplinks.get(site as usize));
        uplink.map_or(0, |uplink| self.rate_of_payload(direction(uplink), 1000))
    }

    /// The rate of a switch, in GB/s, for payload.
    pub(super) fn switch_rate(&self, gigabytes: f64) -> u64 {
        // 0 stands for no limit, and what is slow is not that.
        self.rate_of_payload(((gigabytes * 1e9) as u64).max(1), 1000)
    }

    fn rate_of_payload(&self, rate: u64, slowness: u32) -> u64 {
        let left = 1000 - u64::from(self.background_per_mille.min(999));
        let payload = u64::from(self.costs.payload_per_mille);
        let of_payload =
            u128::from(rate) * u128::from(left) * u128::from(payload) / 1000 / u128::from(slowness.max(1));
        // 0 stands for no limit, and what is slow is not that.
        (of_payload as u64).max(rate.min(1))
    }
}
