//! The ports of hosts: how fast each host sends and receives in all, whatever host is at the other end.
//!
//! Behind a switch all pairs of hosts share their ports, so a rate for each pair is misleading. For example, three
//! hosts that send to a fourth at once get a third of its port each. Ports are kept apart from links, which belong to
//! one pair alone.

use super::{LinkMatrix, MOST_SITES, Port, Sites, Topology, TopologyError, TopologyPort, port::UNIT};
use alloc::{collections::BTreeMap, format, string::String, vec, vec::Vec};

/// The most ranks whose ports are known: as many as there can be shares.
pub const MOST_PORTS: usize = 4096;

/// The port of each rank's host, by rank: ranks of one host have equal entries and share one port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ports {
    of_ranks: Vec<Port>,
    nanoseconds: u64,
    /// Of as many ranks.
    sites: Option<Sites>,
}

impl Ports {
    /// Ports of these ranks, in whole thousands of bytes/s, and the most nanoseconds that an empty message takes
    /// between hosts, 0 if unknown.
    ///
    /// # Errors
    /// [`TopologyError::Whole`] unless there are 1 to [`MOST_PORTS`] ranks.
    pub fn new(of_ranks: Vec<Port>, nanoseconds: u64) -> Result<Self, TopologyError> {
        if !(1..=MOST_PORTS).contains(&of_ranks.len()) {
            let problem = format!("the ports of {} ranks", of_ranks.len());
            return Err(TopologyError::whole(problem, format!("give them for 1 to {MOST_PORTS} ranks")));
        }
        Ok(Self { of_ranks: of_ranks.into_iter().map(Port::in_units).collect(), nanoseconds, sites: None })
    }

    /// The same, of ranks in these sites.
    ///
    /// # Errors
    /// [`TopologyError::Whole`] for sites of another number of ranks.
    pub fn with_sites(self, sites: Sites) -> Result<Self, TopologyError> {
        if sites.ranks() == self.size() {
            return Ok(Self { sites: Some(sites), ..self });
        }
        let problem = format!("the sites of {} ranks and the ports of {}", sites.ranks(), self.size());
        Err(TopologyError::whole(problem, "give each rank a site"))
    }

    /// The ports of a topology's [ranks](Topology::ranks), and their sites; `None` if it has neither.
    ///
    /// # Errors
    /// [`TopologyError::Whole`] if no port belongs to a rank's node, and for a rank in no site while others are in one.
    pub fn of(topology: &Topology) -> Result<Option<Self>, TopologyError> {
        let sites = Sites::of(topology)?;
        if topology.ports().is_empty() && sites.is_none() {
            return Ok(None);
        }
        let listed = topology.ports().iter();
        let of_node: BTreeMap<usize, Port> =
            listed.map(|port| (port.host, Port::of_gigabytes(port.out, port.into))).collect();
        let ranks = topology.ranks();
        let known: Vec<Port> =
            ranks.iter().map(|node| of_node.get(node).copied().unwrap_or_default()).collect();
        if !topology.ports().is_empty() && known.iter().all(|port| port.is_unknown()) {
            let problem = "the topology has ports, but none for a node that is a rank";
            return Err(TopologyError::whole(
                problem,
                "name hosts, or ranks on them, as \"host\" of its ports",
            ));
        }
        let latencies = topology.ports().iter().filter_map(|port| port.latency);
        let nanoseconds = (latencies.fold(0.0, f64::max) * 1e3 + 0.5) as u64;
        Ok(Some(Self { sites, ..Self::new(known, nanoseconds)? }))
    }

    /// Ranks that all have this port, each a host of its own.
    ///
    /// # Panics
    /// For no ranks, and more than [`MOST_PORTS`].
    pub fn uniform(ranks: usize, port: Port) -> Self {
        Self::new(vec![port; ranks], 0).expect("1 to MOST_PORTS ranks")
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.of_ranks.len()
    }

    /// The port of a rank's host.
    pub fn port(&self, rank: usize) -> Port {
        self.of_ranks[rank]
    }

    /// The sites of the ranks, if they are known.
    pub fn sites(&self) -> Option<&Sites> {
        self.sites.as_ref()
    }

    /// The number of each rank's site; empty if none is known.
    pub fn site_numbers(&self) -> Vec<u32> {
        self.sites.as_ref().map(Sites::numbers).unwrap_or_default()
    }

    /// What the ports of two ranks' hosts let through from one to the other; 0 where neither is known.
    pub(super) fn limit(&self, from: usize, to: usize) -> u64 {
        match (self.of_ranks[from].out, self.of_ranks[to].into) {
            (0, rate) | (rate, 0) => rate,
            (out, into) => out.min(into),
        }
    }

    /// The most nanoseconds that an empty message takes between hosts; 0 if unknown.
    pub fn nanoseconds(&self) -> u64 {
        self.nanoseconds
    }

    /// The same with the time of an empty message.
    #[must_use]
    pub fn with_nanoseconds(self, nanoseconds: u64) -> Self {
        Self { nanoseconds, ..self }
    }

    /// Whether all ranks have the same port, which sends as fast as it receives.
    pub fn are_alike(&self) -> bool {
        let first = self.of_ranks[0];
        first.out == first.into && self.of_ranks.iter().all(|port| *port == first)
    }

    /// The ports of these ranks, in their order.
    ///
    /// # Panics
    /// If there is no such rank.
    #[must_use]
    pub fn among(&self, ranks: &[u32]) -> Self {
        let of_ranks = ranks.iter().map(|rank| self.of_ranks[*rank as usize]).collect();
        let sites = self.sites.as_ref().map(|sites| sites.among(ranks));
        Self { of_ranks, sites, nanoseconds: self.nanoseconds }
    }

    /// The ports of ranks on these hosts, from ports of nodes with these names; see [`LinkMatrix::placed`].
    ///
    /// # Errors
    /// [`TopologyError::Whole`] for a host that no node is while others are, and for another number of nodes than of ranks.
    pub fn placed(self, nodes: &[String], hosts: &[&str]) -> Result<Self, TopologyError> {
        Ok(match super::links::places(self.size(), nodes, hosts)? {
            Some(places) => self.among(&places),
            None => self,
        })
    }

    /// The same ports, but all ranks of a host have the port of its first rank with a known port. `hosts` has a number
    /// for each rank's host.
    #[must_use]
    pub fn shared<H: Ord + Copy>(&self, hosts: &[H]) -> Self {
        let mut of_hosts = BTreeMap::new();
        for (host, port) in hosts.iter().zip(&self.of_ranks).filter(|(_, port)| !port.is_unknown()) {
            of_hosts.entry(*host).or_insert(*port);
        }
        let port = |host: &H| of_hosts.get(host).copied().unwrap_or_default();
        let sites = self.sites.as_ref().map(|sites| sites.shared(hosts));
        Self { of_ranks: hosts.iter().map(port).collect(), sites, nanoseconds: self.nanoseconds }
    }

    /// The ports that decide about plans and times instead of the links. They must be known for this number of ranks,
    /// and [explain](Self::explain) the known links.
    pub fn deciding<'a>(
        ports: Option<&'a Self>,
        links: Option<&LinkMatrix>,
        hosts: &[u32],
        ranks: usize,
    ) -> Option<&'a Self> {
        ports.filter(|ports| ports.size() == ranks && links.is_none_or(|links| ports.explain(links, hosts)))
    }

    /// One entry for each host, at the first of its ranks, as a topology lists ports whose nodes are ranks.
    pub fn listed(&self, hosts: &[u32]) -> Vec<TopologyPort> {
        let is_first = |rank: &usize| !hosts[..*rank].contains(&hosts[*rank]);
        let latency = (self.nanoseconds > 0).then_some(self.nanoseconds as f64 / 1e3);
        let listed = |rank: usize| {
            let Port { out, into } = self.of_ranks[rank];
            TopologyPort { host: rank, out: out as f64 / 1e9, into: into as f64 / 1e9, latency }
        };
        (0..self.size().min(hosts.len())).filter(is_first).map(listed).collect()
    }

    /// The same ports, but none slower than a link between hosts that goes through it. If one flow reaches a rate, its
    /// two ports and the uplinks of its two sites do, too.
    #[must_use]
    pub fn at_least(&self, links: &LinkMatrix, hosts: &[u32]) -> Self {
        let mut raised = self.clone();
        let size = self.size().min(links.size()).min(hosts.len());
        let pairs = (0..size).flat_map(|from| (0..size).map(move |to| (from, to)));
        for (from, to) in pairs.filter(|(from, to)| hosts[*from] != hosts[*to]) {
            let carried = (links.speed(from, to) * 1e9 + 0.5) as u64 / UNIT * UNIT;
            if let Some(sites) = &mut raised.sites {
                sites.raise(from, to, carried);
            }
            for rank in 0..self.size().min(hosts.len()) {
                let port = &mut raised.of_ranks[rank];
                if hosts[rank] == hosts[from] && port.out > 0 {
                    port.out = port.out.max(carried);
                }
                if hosts[rank] == hosts[to] && port.into > 0 {
                    port.into = port.into.max(carried);
                }
            }
        }
        raised
    }

    /// Whether these ports explain the speed of links between hosts: no link is slower than half of the rate of the
    /// ports at its two ends. A slower link is limited by something unknown, such as a cable. Links between sites are
    /// explained by the sites' uplinks, which others use while a pair is measured.
    pub fn explain(&self, links: &LinkMatrix, hosts: &[u32]) -> bool {
        let host = |rank: usize| hosts.get(rank).map_or((1, rank as u32), |host| (0, *host));
        let size = self.size().min(links.size());
        let pairs = (0..size).flat_map(|from| (0..size).map(move |to| (from, to)));
        let site = |rank: usize| self.sites.as_ref().map(|sites| sites.of_rank(rank));
        let mut between = pairs.filter(|(from, to)| host(*from) != host(*to) && site(*from) == site(*to));
        between.all(|(from, to)| links.speed(from, to) * 2e9 >= self.limit(from, to) as f64)
    }

    /// All numbers, for other processes and for digests: the nanoseconds, how many ranks there are, both rates of each, in thousands of
    /// bytes/s, and the sites, if they are known.
    pub fn to_bytes(&self) -> Vec<u8> {
        let ranks = (self.size() as u32).to_le_bytes();
        let rates = self.of_ranks.iter().flat_map(|port| port.to_bytes());
        let sites = self.sites.iter().flat_map(Sites::to_bytes);
        self.nanoseconds.to_le_bytes().into_iter().chain(ranks).chain(rates).chain(sites).collect()
    }

    /// Reverses [`to_bytes`](Self::to_bytes); `None` for bytes that are no ports.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (nanoseconds, rest) = bytes.split_first_chunk()?;
        let (ranks, rest) = rest.split_first_chunk()?;
        let ranks = u32::from_le_bytes(*ranks) as usize;
        if !(1..=MOST_PORTS).contains(&ranks) {
            return None;
        }
        let (rates, sites) = rest.split_at_checked(ranks * Port::BYTES)?;
        let of_ranks = rates.chunks(Port::BYTES).map(Port::from_bytes).collect::<Option<_>>()?;
        let sites = match sites {
            [] => None,
            sites => Some(Sites::from_bytes(sites, ranks)?),
        };
        Some(Self { of_ranks, nanoseconds: u64::from_le_bytes(*nanoseconds), sites })
    }

    /// The most bytes that they take.
    pub(crate) const MOST_BYTES: usize =
        size_of::<u64>() + size_of::<u32>() + (Port::BYTES + 1) * MOST_PORTS + Port::BYTES * MOST_SITES;
}

#[cfg(test)]
mod tests {
    use super::super::{Wiring, read};
    use super::*;

    const TEXT: &str = r#"{
        "nodes": [{"name": "a", "kind": "host"}, {"name": "b", "kind": "host"}, {"name": "c", "kind": "host"}],
        "ports": [{"host": 0, "out": 0.0625, "into": 0.125, "latency_us": 20}, {"host": "c", "out": 0.0125, "into": 0.0125}]
    }"#;

    fn port(out: u64, into: u64) -> Port {
        Port { out, into }
    }

    #[test]
    fn files_have_ports_by_number_or_name_and_keep_them() {
        let topology = read(TEXT, None).unwrap();
        assert_eq!(topology.links(), []);
        assert_eq!(read(&topology.to_json(), None), Ok(topology.clone()));
        let ports = Ports::of(&topology).unwrap().unwrap();
        assert_eq!((ports.size(), ports.nanoseconds()), (3, 20_000));
        assert_eq!(
            [0, 1, 2].map(|rank| ports.port(rank)),
            [port(62_500_000, 125_000_000), port(0, 0), port(12_500_000, 12_500_000)]
        );
        let with_matrix =
            read(r#"{"matrix": [[0, 1], [1, 0]], "ports": [{"host": 1, "out": 1, "into": 2}]}"#, None);
        assert_eq!(with_matrix.unwrap().ports().len(), 1);
        assert_eq!(Ports::of(&read("[[0, 1], [1, 0]]", None).unwrap()), Ok(None));
    }

    #[test]
    fn ports_that_are_alike_say_no_more_than_none() {
        let (alike, slow) =
            (Ports::uniform(3, port(9_000, 9_000)), vec![port(9_000, 9_000), port(2_000, 9_000)]);
        let slow = Ports::new(slow, 0).unwrap();
        assert!(alike.are_alike() && !slow.are_alike() && !Ports::uniform(2, port(1_000, 2_000)).are_alike());
        let nothing = Wiring::default();
        assert_eq!(nothing.with_ports(&alike), nothing);
        assert_eq!(nothing.with_ports(&slow).ports, Some(slow.clone()));
        let known = Wiring { ports: Some(slow.clone().with_nanoseconds(70)), ..Wiring::default() };
        assert_eq!(known.with_ports(&alike).ports, Some(alike.with_nanoseconds(70)));
    }

    #[test]
    fn errors_name_the_place() {
        let with = |ports: &str| {
            let text =
                format!("{{\"nodes\": [{{\"name\": \"a\", \"kind\": \"host\"}}],\n\"ports\": {ports}}}");
            read(&text, None).unwrap_err().to_string()
        };
        for (ports, place, said) in [
            ("3", "line 2, column 10", "a list of ports"),
            ("[{\"host\": 1, \"out\": 1, \"into\": 1}]", "line 2, column 20", "below 1"),
            ("[{\"host\": \"b\", \"out\": 1, \"into\": 1}]", "line 2, column 20", "the name of a node"),
            ("[{\"host\": 0, \"into\": 1}]", "line 2, column 11", "\"out\""),
            ("[{\"host\": 0, \"out\": -1, \"into\": 1}]", "line 2, column 30", "not negative"),
            ("[{\"host\": 0, \"outs\": 1, \"into\": 1}]", "line 2, column 31", "\"out\""),
            (
                "[{\"host\": 0, \"out\": 1, \"into\": 1}, {\"host\": \"a\", \"out\": 1, \"into\": 1}]",
                "line 2, column 45",
                "one port for each host",
            ),
        ] {
            let error = with(ports);
            assert!(error.starts_with(place) && error.contains(said), "{ports}: {error}");
        }
        let other = r#"{"nodes": [{"name": "s", "kind": "switch"}, {"name": "h", "kind": "host"}], "ports": [{"host": 0, "out": 1, "into": 1}]}"#;
        assert!(
            Ports::of(&read(other, None).unwrap())
                .unwrap_err()
                .to_string()
                .contains("none for a node that is a rank")
        );
    }

    #[test]
    fn ports_travel_and_foreign_bytes_are_refused() {
        let ports = Ports::new(vec![port(1, 0), port(1_999, u64::MAX), port(62_500_123, 5_000)], 7).unwrap();
        let expected = [port(1000, 0), port(1000, u64::from(u32::MAX) * 1000), port(62_500_000, 5_000)];
        assert_eq!([0, 1, 2].map(|rank| ports.port(rank)), expected);
        let bytes = ports.to_bytes();
        assert_eq!(Ports::from_bytes(&bytes), Some(ports.clone()));
        for end in 0..bytes.len() {
            assert_eq!(Ports::from_bytes(&bytes[..end]), None);
        }
        let of_many = |ranks: usize| {
            let mut bytes = vec![1; 12 + 8 * ranks];
            bytes[8..12].copy_from_slice(&(ranks as u32).to_le_bytes());
            Ports::from_bytes(&bytes)
        };
        assert_eq!(of_many(MOST_PORTS + 1), None);
        assert!(of_many(MOST_PORTS).is_some());
        assert!(Ports::new(vec![], 0).is_err() && Ports::new(vec![port(1, 1); MOST_PORTS + 1], 0).is_err());
    }

    #[test]
    fn ranks_of_a_host_share_its_port() {
        let ports = Ports::new(vec![port(1000, 2000), port(0, 0), port(0, 0), port(3000, 3000)], 0).unwrap();
        let shared = ports.shared(&[5, 5, 2, 2]);
        assert_eq!([0, 1, 2, 3].map(|rank| shared.port(rank).out), [1000, 1000, 3000, 3000]);
        let nodes = ["a", "b"].map(String::from);
        let two = Ports::new(vec![port(1000, 1000), port(2000, 2000)], 0).unwrap();
        let placed = two.clone().placed(&nodes, &["b", "a", "b"]).unwrap();
        assert_eq!([0, 1, 2].map(|rank| placed.port(rank).out), [2000, 1000, 2000]);
        assert!(two.placed(&nodes, &["b", "c"]).is_err());
    }

    #[test]
    fn no_port_is_slower_than_a_link_through_it() {
        let row =
            |from: usize| (0..3).map(|to| if (from, to) == (0, 2) { 3.0 } else { 1.0 }).collect::<Vec<f32>>();
        let links = LinkMatrix::of_weights(&[row(0), row(1), row(2)]).unwrap();
        let ports =
            Ports::new(vec![port(2_000_000_000, 5_000), port(2_000_000_000, 5_000), port(0, 7_000)], 9)
                .unwrap();
        let raised = ports.at_least(&links, &[0, 0, 1]);
        let giga = 1_000_000_000;
        assert_eq!(
            [0, 1, 2].map(|rank| raised.port(rank)),
            [port(3 * giga, giga), port(3 * giga, giga), port(0, 3 * giga)]
        );
        assert_eq!(raised.nanoseconds(), 9);
    }

    #[test]
    fn a_link_that_is_slower_than_its_ports_is_not_theirs() {
        let ports = Ports::uniform(3, port(1_000_000_000, 1_000_000_000));
        let links = |slow: f32| {
            let row =
                |from: usize| (0..3).map(|to| if from + to == 1 { slow } else { 1.0 }).collect::<Vec<f32>>();
            LinkMatrix::of_weights(&[row(0), row(1), row(2)]).unwrap()
        };
        assert!(ports.explain(&links(0.5), &[]));
        assert!(!ports.explain(&links(0.4), &[]));
        assert!(ports.explain(&links(0.4), &[0, 0, 1]), "inside a host there is no port");
    }
}
