//! Sites: hosts whose messages to all other hosts share an uplink, such as the cable between two buildings.

use super::{MOST_SITES, Port, Topology, TopologyError, TopologySite};
use alloc::{format, vec::Vec};

/// The site of each rank, and the uplink of each site: the rate of all its ranks together to and from other sites.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sites {
    of_ranks: Vec<u8>,
    uplinks: Vec<Port>,
}

impl Sites {
    /// The sites of ranks, by number, and the uplink of each site: whole thousands of bytes/s.
    ///
    /// # Errors
    /// [`TopologyError::Whole`] unless there are 2 to [`MOST_SITES`] sites, and each rank has the number of one.
    pub fn new(of_ranks: Vec<u8>, uplinks: Vec<Port>) -> Result<Self, TopologyError> {
        if !(2..=MOST_SITES).contains(&uplinks.len()) {
            let problem = format!("{} sites", uplinks.len());
            return Err(TopologyError::whole(problem, format!("give 2 to {MOST_SITES}, or none")));
        }
        if let Some(rank) = of_ranks.iter().position(|site| usize::from(*site) >= uplinks.len()) {
            let problem = format!("rank {rank} in site {} of {}", of_ranks[rank], uplinks.len());
            return Err(TopologyError::whole(problem, "count sites from 0"));
        }
        Ok(Self { of_ranks, uplinks: uplinks.into_iter().map(Port::in_units).collect() })
    }

    /// The sites of a topology's [ranks](Topology::ranks); `None` where it has none.
    ///
    /// # Errors
    /// [`TopologyError::Whole`] for a rank in no site.
    pub(super) fn of(topology: &Topology) -> Result<Option<Self>, TopologyError> {
        let sites = topology.sites();
        if sites.is_empty() {
            return Ok(None);
        }
        let number = |node: usize| sites.iter().position(|site| site.hosts.contains(&node));
        let of_ranks = topology.ranks().into_iter().map(|node| {
            let lost = || {
                let problem =
                    format!("node {:?} is in no site while others are", topology.nodes()[node].name);
                TopologyError::whole(problem, "name each host in the \"hosts\" of one site")
            };
            number(node).map(|site| site as u8).ok_or_else(lost)
        });
        let uplinks = sites.iter().map(|site| Port::of_gigabytes(site.out, site.into)).collect();
        Self::new(of_ranks.collect::<Result<_, _>>()?, uplinks).map(Some)
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> usize {
        self.of_ranks.len()
    }

    /// The number of a rank's site.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn of_rank(&self, rank: usize) -> u32 {
        self.of_ranks[rank].into()
    }

    /// The number of each rank's site.
    pub fn numbers(&self) -> Vec<u32> {
        self.of_ranks.iter().map(|site| (*site).into()).collect()
    }

    /// The uplink of each site.
    pub fn uplinks(&self) -> &[Port] {
        &self.uplinks
    }

    /// The sites of these ranks, in their order.
    ///
    /// # Panics
    /// If there is no such rank.
    #[must_use]
    pub fn among(&self, ranks: &[u32]) -> Self {
        let of_ranks = ranks.iter().map(|rank| self.of_ranks[*rank as usize]).collect();
        Self { of_ranks, uplinks: self.uplinks.clone() }
    }

    /// Those in which all ranks of a host have the site of the first of them; `hosts` has a number for each rank's host.
    #[must_use]
    pub(super) fn shared<H: PartialEq>(&self, hosts: &[H]) -> Self {
        let first = |host: &H| hosts.iter().position(|other| other == host).unwrap_or(0);
        let of_ranks = hosts.iter().map(|host| self.of_ranks[first(host)]).collect();
        Self { of_ranks, uplinks: self.uplinks.clone() }
    }

    /// Has no known uplink be slower than a flow of so many bytes/s from one rank to another.
    pub(super) fn raise(&mut self, from: usize, to: usize, rate: u64) {
        let [one, other] = [from, to].map(|rank| usize::from(self.of_ranks[rank]));
        if one == other {
            return;
        }
        let raised = |known: u64| if known > 0 { known.max(rate) } else { 0 };
        self.uplinks[one].out = raised(self.uplinks[one].out);
        self.uplinks[other].into = raised(self.uplinks[other].into);
    }

    /// As a topology lists them, whose nodes are these ranks.
    pub fn listed(&self) -> Vec<TopologySite> {
        let of_site = |site: usize| {
            let hosts = (0..self.ranks()).filter(|rank| usize::from(self.of_ranks[*rank]) == site);
            let Port { out, into } = self.uplinks[site];
            let (out, into) = (out as f64 / 1e9, into as f64 / 1e9);
            TopologySite { name: format!("site {site}"), hosts: hosts.collect(), out, into }
        };
        (0..self.uplinks.len()).map(of_site).collect()
    }

    /// The number of each rank's site, then both rates of each uplink, in thousands of bytes/s.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        self.of_ranks
            .iter()
            .copied()
            .chain(self.uplinks.iter().flat_map(|uplink| uplink.to_bytes()))
            .collect()
    }

    /// What [`to_bytes`](Self::to_bytes) was given, of so many ranks; `None` for bytes that are no sites.
    pub(super) fn from_bytes(bytes: &[u8], ranks: usize) -> Option<Self> {
        let (of_ranks, uplinks) = bytes.split_at_checked(ranks)?;
        if !uplinks.len().is_multiple_of(Port::BYTES) || uplinks.len() / Port::BYTES > MOST_SITES {
            return None;
        }
        let uplinks = uplinks.chunks(Port::BYTES).map(Port::from_bytes).collect::<Option<Vec<_>>>()?;
        let of_ranks = of_ranks.to_vec();
        let is_whole = uplinks.len() > 1 && of_ranks.iter().all(|site| usize::from(*site) < uplinks.len());
        is_whole.then_some(Self { of_ranks, uplinks })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{LinkMatrix, Ports, read};
    use super::*;
    use alloc::{string::ToString, vec};

    const TEXT: &str = r#"{
        "nodes": [{"name": "a", "kind": "host"}, {"name": "b", "kind": "host"}, {"name": "c", "kind": "host"}],
        "sites": [{"name": "north", "hosts": ["a", "c"], "out": 0.0125, "into": 0.025}, {"name": "south", "hosts": [1], "out": 0, "into": 1}]
    }"#;

    fn uplink(out: u64, into: u64) -> Port {
        Port { out, into }
    }

    #[test]
    fn files_have_sites_of_hosts_by_number_or_name_and_keep_them() {
        let topology = read(TEXT, None).unwrap();
        assert_eq!(read(&topology.to_json(), None), Ok(topology.clone()));
        let ports = Ports::of(&topology).unwrap().unwrap();
        let sites = ports.sites().unwrap();
        assert_eq!((ports.site_numbers(), ports.port(0)), (vec![0, 1, 0], Port::default()));
        assert_eq!(sites.uplinks(), [uplink(12_500_000, 25_000_000), uplink(0, 1_000_000_000)]);
        let other = read(&TEXT.replace("0.0125", "0.0126"), None).unwrap();
        assert_ne!(topology.identity(), other.identity());
        let listed = topology.clone().with_sites(sites.listed()).unwrap();
        assert_eq!(Ports::of(&listed).unwrap().unwrap(), ports);
    }

    #[test]
    fn errors_name_the_place() {
        let with = |sites: &str| {
            let nodes = r#"[{"name": "a", "kind": "host"}, {"name": "b", "kind": "host"}]"#;
            let text = alloc::format!("{{\"nodes\": {nodes},\n\"sites\": {sites}}}");
            read(&text, None).and_then(|topology| Ports::of(&topology)).unwrap_err().to_string()
        };
        for (sites, said) in [
            ("3", "line 2, column 10: "),
            (r#"[{"name": "n", "hosts": ["a", "b"], "out": 1, "into": 1}]"#, "1 sites"),
            (r#"[{"name": "n", "hosts": ["z"], "out": 1, "into": 1}]"#, "the name of a node, or its number"),
            (r#"[{"name": "n", "hosts": ["a"], "out": 1, "into": -1}]"#, "not negative"),
            (r#"[{"name": "n", "host": ["a"], "out": 1, "into": 1}]"#, "\"hosts\""),
            (
                r#"[{"name": "n", "hosts": ["a"], "out": 1, "into": 1}, {"name": "n", "hosts": ["b"], "out": 1, "into": 1}]"#,
                "a name that no other site has",
            ),
            (
                r#"[{"name": "n", "hosts": ["a"], "out": 1, "into": 1}, {"name": "s", "hosts": [0], "out": 1, "into": 1}]"#,
                "each host in one site",
            ),
            (
                r#"[{"name": "n", "hosts": ["a"], "out": 1, "into": 1}, {"name": "s", "hosts": [], "out": 1, "into": 1}]"#,
                "a site without hosts",
            ),
        ] {
            let error = with(sites);
            assert!(error.contains(said), "{sites}: {error}");
        }
        let three = TEXT.replace(r#"["a", "c"]"#, r#"["a"]"#);
        let lost = Ports::of(&read(&three, None).unwrap()).unwrap_err().to_string();
        assert!(lost.contains("node \"c\" is in no site while others are"), "{lost}");
    }

    #[test]
    fn sites_travel_with_ports_and_foreign_bytes_are_refused() {
        let sites = Sites::new(vec![0, 0, 1], vec![uplink(5_000, 0), uplink(7_999, 1)]).unwrap();
        assert_eq!(sites.uplinks(), [uplink(5_000, 0), uplink(7_000, 1_000)]);
        let ports = Ports::uniform(3, uplink(9_000, 9_000)).with_sites(sites.clone()).unwrap();
        let bytes = ports.to_bytes();
        assert_eq!(Ports::from_bytes(&bytes), Some(ports.clone()));
        let without = bytes.len() - 3 - 2 * Port::BYTES;
        for end in (0..bytes.len()).filter(|end| *end != without) {
            assert_eq!(Ports::from_bytes(&bytes[..end]), None, "{end}");
        }
        let mut foreign = bytes.clone();
        foreign[without] = 2;
        assert_eq!(Ports::from_bytes(&foreign), None, "a site that is not there");
        assert_eq!(ports.among(&[2, 0]).site_numbers(), [1, 0]);
        assert!(Ports::uniform(2, Port::default()).with_sites(sites).is_err());
        assert!(Sites::new(vec![0, 2], vec![Port::default(); 2]).is_err());
        assert!(Sites::new(vec![0], vec![Port::default()]).is_err());
    }

    #[test]
    fn flows_between_sites_raise_what_was_measured_of_their_uplinks() {
        let row = |from: usize| (0..2).map(|to| if from < to { 0.5 } else { 0.25 }).collect::<Vec<f32>>();
        let links = LinkMatrix::of_weights(&[row(0), row(1)]).unwrap();
        let sites = Sites::new(vec![0, 1], vec![uplink(1_000, 0), uplink(400_000_000, 1_000)]).unwrap();
        let ports = Ports::uniform(2, uplink(1_000_000_000, 1_000_000_000)).with_sites(sites).unwrap();
        assert!(ports.explain(&links, &[0, 1]));
        let raised = ports.at_least(&links, &[0, 1]);
        let found = raised.sites().unwrap().uplinks().to_vec();
        assert_eq!(found, [uplink(500_000_000, 0), uplink(400_000_000, 500_000_000)]);
        assert!(!Ports::uniform(2, uplink(2_000_000_000, 2_000_000_000)).explain(&links, &[0, 1]));
    }
}
