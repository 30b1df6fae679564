//! Nodes, the links between them, and questions about both.

use super::{TopologyError, json};
use crate::choice::choices;
use alloc::{format, string::String, string::ToString, vec, vec::Vec};
use core::fmt;

/// The most nodes that a topology has.
pub const MOST_NODES: usize = 256;

/// The most sites of a topology.
pub const MOST_SITES: usize = 255;

choices! {
    "a kind of node":
    /// The kind of a node of a topology.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum NodeKind {
        /// A machine.
        Host => "host",
        /// A processor, or one NUMA node of it.
        Cpu => "cpu",
        /// An accelerator.
        Gpu => "gpu",
        /// A network card.
        Nic => "nic",
        /// A switch between others.
        Switch => "switch",
        /// A member of a group of which no more is known: a row of a matrix.
        Rank => "rank",
    }
}

/// The kind of a link, in the words of `nvidia-smi topo -m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LinkKind {
    /// Bonded NVLinks, and their number.
    NvLink(u8),
    /// At most one PCIe switch.
    Pix,
    /// Several PCIe switches.
    Pxb,
    /// A PCIe host bridge.
    Phb,
    /// Several host bridges of one NUMA node.
    Numa,
    /// The link between processors.
    Sys,
    /// Given by a file in numbers.
    Given,
    /// Measured by ranks.
    Measured,
}

impl LinkKind {
    /// GB/s each way: 25 for each NVLink and 10 through a processor, as on p3.16xlarge; 12 through PCIe switches alone.
    /// `None` if only a file can tell.
    pub fn bandwidth(self) -> Option<f64> {
        match self {
            Self::NvLink(count) => Some(25.0 * f64::from(count)),
            Self::Pix | Self::Pxb => Some(12.0),
            Self::Phb | Self::Numa | Self::Sys => Some(10.0),
            Self::Given | Self::Measured => None,
        }
    }

    /// Reads the text of [`Display`](fmt::Display), and `SOC`, the `SYS` of older drivers.
    pub fn of_text(text: &str) -> Option<Self> {
        Some(match text {
            "PIX" => Self::Pix,
            "PXB" => Self::Pxb,
            "PHB" => Self::Phb,
            "NODE" => Self::Numa,
            "SYS" | "SOC" => Self::Sys,
            "given" => Self::Given,
            "measured" => Self::Measured,
            _ => {
                Self::NvLink(text.strip_prefix("NV")?.parse().ok().filter(|count| (1..=18).contains(count))?)
            }
        })
    }
}

impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NvLink(count) => write!(f, "NV{count}"),
            Self::Pix => f.write_str("PIX"),
            Self::Pxb => f.write_str("PXB"),
            Self::Phb => f.write_str("PHB"),
            Self::Numa => f.write_str("NODE"),
            Self::Sys => f.write_str("SYS"),
            Self::Given => f.write_str("given"),
            Self::Measured => f.write_str("measured"),
        }
    }
}

/// A node of a topology.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologyNode {
    /// Its name: `GPU0`, `NIC1`, a host's.
    pub name: String,
    /// Its kind.
    pub kind: NodeKind,
    /// The system's name for it, if the text has a legend: `mlx5_0`.
    pub device: Option<String>,
}

/// A link in one direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TopologyLink {
    /// The number of the node that sends.
    pub from: usize,
    /// The number of the node that receives.
    pub to: usize,
    /// Its kind.
    pub kind: LinkKind,
    /// In GB/s; of a matrix, its entry.
    pub bandwidth: f64,
    /// The weight by which trees are chosen: 0 if no tree is allowed to use the link.
    pub weight: f32,
    /// How many microseconds an empty message takes, if it was measured.
    pub latency: Option<f64>,
}

impl TopologyLink {
    /// A link that a matrix gives.
    pub(super) fn given(from: usize, to: usize, bandwidth: f64, weight: f32) -> Self {
        Self { from, to, kind: LinkKind::Given, bandwidth, weight, latency: None }
    }
}

/// A host's port as a topology has it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TopologyPort {
    /// The number of a node: the host itself, or a rank on it.
    pub host: usize,
    /// The host's rate to all others at once, in GB/s; 0 if unknown.
    pub out: f64,
    /// Its rate from all others at once.
    pub into: f64,
    /// How many microseconds an empty message takes to or from another host, if it was measured.
    pub latency: Option<f64>,
}

/// A site as a topology has it: hosts whose messages to all other sites share an uplink.
#[derive(Clone, Debug, PartialEq)]
pub struct TopologySite {
    /// Its name.
    pub name: String,
    /// The numbers of its nodes: hosts, or ranks on them.
    pub hosts: Vec<usize>,
    /// The site's rate to all other sites at once, in GB/s; 0 if unknown.
    pub out: f64,
    /// Its rate from all other sites at once.
    pub into: f64,
}

/// Nodes and the links between them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Topology {
    pub(super) nodes: Vec<TopologyNode>,
    pub(super) links: Vec<TopologyLink>,
    pub(super) ports: Vec<TopologyPort>,
    pub(super) sites: Vec<TopologySite>,
    pub(super) warnings: Vec<String>,
}

impl Topology {
    /// A topology of these nodes and links.
    ///
    /// # Errors
    /// [`TopologyError::Whole`] for too many nodes, links to nodes that do not exist, and invalid numbers.
    pub fn of_parts(nodes: Vec<TopologyNode>, links: Vec<TopologyLink>) -> Result<Self, TopologyError> {
        let is_amount = |number: f64| number.is_finite() && number >= 0.0;
        let is_whole = |link: &TopologyLink| {
            link.from < nodes.len()
                && link.to < nodes.len()
                && link.from != link.to
                && is_amount(link.bandwidth)
                && is_amount(link.weight.into())
                && link.latency.is_none_or(is_amount)
        };
        if nodes.len() > MOST_NODES {
            return Err(TopologyError::whole(
                format!("{} nodes", nodes.len()),
                format!("give at most {MOST_NODES}"),
            ));
        }
        if !links.iter().all(is_whole) {
            return Err(TopologyError::whole(
                "a link without both nodes, or without numbers",
                "leave it out",
            ));
        }
        Ok(Self { nodes, links, ..Self::default() })
    }

    /// The same with these ports.
    ///
    /// # Errors
    /// [`TopologyError::Whole`] for ports of nodes that do not exist, two of one node, and invalid numbers.
    pub fn with_ports(self, ports: Vec<TopologyPort>) -> Result<Self, TopologyError> {
        let is_amount = |number: f64| number.is_finite() && number >= 0.0;
        let is_whole = |(at, port): (usize, &TopologyPort)| {
            port.host < self.nodes.len()
                && ports[..at].iter().all(|other| other.host != port.host)
                && is_amount(port.out)
                && is_amount(port.into)
                && port.latency.is_none_or(is_amount)
        };
        match ports.iter().enumerate().all(is_whole) {
            true => Ok(Self { ports, ..self }),
            false => Err(TopologyError::whole(
                "a port without a node of its own, or without numbers",
                "leave it out, or give each host one port",
            )),
        }
    }

    /// The same with these sites.
    ///
    /// # Errors
    /// [`TopologyError::Whole`] for one site or more than [`MOST_SITES`], a node that does not exist, a node in two
    /// sites, two sites of one name, or invalid numbers.
    pub fn with_sites(self, sites: Vec<TopologySite>) -> Result<Self, TopologyError> {
        let is_amount = |number: f64| number.is_finite() && number >= 0.0;
        let mut nodes: Vec<usize> = sites.iter().flat_map(|site| site.hosts.iter().copied()).collect();
        nodes.sort_unstable();
        let are_nodes = nodes.last().is_none_or(|last| *last < self.nodes.len());
        let is_whole = |(at, site): (usize, &TopologySite)| {
            let is_alone = sites[..at].iter().all(|other| other.name != site.name);
            is_alone && !site.hosts.is_empty() && is_amount(site.out) && is_amount(site.into)
        };
        let are_apart = nodes.windows(2).all(|pair| pair[0] != pair[1]);
        if !(2..=MOST_SITES).contains(&sites.len()) {
            let problem = format!("{} sites", sites.len());
            return Err(TopologyError::whole(problem, format!("give 2 to {MOST_SITES}, or no \"sites\"")));
        }
        match are_nodes && are_apart && sites.iter().enumerate().all(is_whole) {
            true => Ok(Self { sites, ..self }),
            false => Err(TopologyError::whole(
                "a site without hosts or a name of its own, or with a host of another one, or without numbers",
                "name each host in the \"hosts\" of one site",
            )),
        }
    }

    /// The nodes; links name them by their numbers.
    pub fn nodes(&self) -> &[TopologyNode] {
        &self.nodes
    }

    /// The links, by sender and receiver.
    pub fn links(&self) -> &[TopologyLink] {
        &self.links
    }

    /// The ports of hosts, which are shared by all of their links.
    pub fn ports(&self) -> &[TopologyPort] {
        &self.ports
    }

    /// The sites of hosts. The hosts of a site share its uplink.
    pub fn sites(&self) -> &[TopologySite] {
        &self.sites
    }

    /// The parts that were left out of a text that was cut, in sentences without a full stop.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The numbers of the nodes that are ranks, in their order: rank i of a group is the node at i. These are GPUs if
    /// there are any, else members of a matrix, else hosts.
    pub fn ranks(&self) -> Vec<usize> {
        let of_kind = |kind| {
            let is_one = |at: &usize| self.nodes[*at].kind == kind;
            (0..self.nodes.len()).filter(is_one).collect::<Vec<_>>()
        };
        let kinds = [NodeKind::Gpu, NodeKind::Rank, NodeKind::Host];
        kinds.into_iter().map(of_kind).find(|nodes| !nodes.is_empty()).unwrap_or_default()
    }

    /// The nodes that links connect, in whichever direction: each component by the numbers of its nodes.
    pub fn components(&self) -> Vec<Vec<usize>> {
        let mut component: Vec<usize> = (0..self.nodes.len()).collect();
        // The smallest number of a component reaches all of its nodes.
        loop {
            let mut changed = false;
            for link in &self.links {
                let least = component[link.from].min(component[link.to]);
                for end in [link.from, link.to] {
                    changed |= component[end] != least;
                    component[end] = least;
                }
            }
            if !changed {
                break;
            }
        }
        let members =
            |first: usize| (0..component.len()).filter(|node| component[*node] == first).collect::<Vec<_>>();
        (0..component.len()).map(members).filter(|members| !members.is_empty()).collect()
    }

    /// The link with the least bandwidth above 0.
    pub fn slowest(&self) -> Option<&TopologyLink> {
        let fast = self.links.iter().filter(|link| link.bandwidth > 0.0);
        fast.min_by(|a, b| a.bandwidth.total_cmp(&b.bandwidth))
    }

    /// Bytes that are equal for equal topologies, whatever text they were read from: all numbers that plans use.
    pub fn identity(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for node in &self.nodes {
            bytes.extend([node.kind as u8]);
            bytes.extend(node.name.bytes());
            bytes.push(b'\n');
        }
        for link in &self.links {
            bytes.extend((link.from as u32).to_le_bytes());
            bytes.extend((link.to as u32).to_le_bytes());
            bytes.extend(link.bandwidth.to_bits().to_le_bytes());
            bytes.extend(link.weight.to_bits().to_le_bytes());
        }
        for port in &self.ports {
            bytes.push(b'p');
            bytes.extend((port.host as u32).to_le_bytes());
            bytes.extend(port.out.to_bits().to_le_bytes());
            bytes.extend(port.into.to_bits().to_le_bytes());
        }
        for site in &self.sites {
            bytes.push(b's');
            bytes.extend((site.hosts.len() as u32).to_le_bytes());
            site.hosts.iter().for_each(|host| bytes.extend((*host as u32).to_le_bytes()));
            bytes.extend(site.out.to_bits().to_le_bytes());
            bytes.extend(site.into.to_bits().to_le_bytes());
        }
        bytes
    }

    /// As JSON, which [`read`](super::read) reads.
    pub fn to_json(&self) -> String {
        let node = |node: &TopologyNode| {
            let device = node.device.as_ref().map(|device| format!(", \"device\": {}", json::quoted(device)));
            let (name, kind) = (json::quoted(&node.name), node.kind.name());
            format!("    {{\"name\": {name}, \"kind\": \"{kind}\"{}}}", device.unwrap_or_default())
        };
        let link = |link: &TopologyLink| {
            let TopologyLink { from, to, kind, bandwidth, weight, latency } = link;
            let latency = latency.map(|latency| format!(", \"latency_us\": {latency}")).unwrap_or_default();
            format!(
                "    {{\"from\": {from}, \"to\": {to}, \"kind\": \"{kind}\", \"bandwidth\": {bandwidth}, \"weight\": {weight}{latency}}}"
            )
        };
        let nodes: Vec<String> = self.nodes.iter().map(node).collect();
        let port = |port: &TopologyPort| {
            let TopologyPort { host, out, into, latency } = port;
            let latency = latency.map(|latency| format!(", \"latency_us\": {latency}")).unwrap_or_default();
            format!("    {{\"host\": {host}, \"out\": {out}, \"into\": {into}{latency}}}")
        };
        let links: Vec<String> = self.links.iter().map(link).collect();
        let ports: Vec<String> = self.ports.iter().map(port).collect();
        let ports = match &ports[..] {
            [] => String::new(),
            ports => format!(",\n  \"ports\": [\n{}\n  ]", ports.join(",\n")),
        };
        let site = |site: &TopologySite| {
            let TopologySite { name, hosts, out, into } = site;
            let hosts: Vec<String> = hosts.iter().map(usize::to_string).collect();
            let (name, hosts) = (json::quoted(name), hosts.join(", "));
            format!("    {{\"name\": {name}, \"hosts\": [{hosts}], \"out\": {out}, \"into\": {into}}}")
        };
        let sites = match &self.sites[..] {
            [] => String::new(),
            sites => {
                let sites: Vec<String> = sites.iter().map(site).collect();
                format!(",\n  \"sites\": [\n{}\n  ]", sites.join(",\n"))
            }
        };
        format!(
            "{{\n  \"nodes\": [\n{}\n  ],\n  \"links\": [\n{}\n  ]{ports}{sites}\n}}\n",
            nodes.join(",\n"),
            links.join(",\n")
        )
    }

    /// The topology of a square matrix: one node for each row.
    pub(super) fn of_matrix(names: &[String], weights: &[Vec<f64>], bandwidths: Option<&[Vec<f64>]>) -> Self {
        let named = |at: usize| names.get(at).cloned().unwrap_or_else(|| at.to_string());
        let node = |at| TopologyNode { name: named(at), kind: NodeKind::Rank, device: None };
        let mut links = vec![];
        for (from, row) in weights.iter().enumerate() {
            for (to, weight) in row.iter().enumerate().filter(|(to, _)| *to != from) {
                let bandwidth = bandwidths.map_or(*weight, |bandwidths| bandwidths[from][to]);
                if *weight > 0.0 || bandwidth > 0.0 {
                    let weight = *weight as f32;
                    links.push(TopologyLink::given(from, to, bandwidth, weight));
                }
            }
        }
        Self { nodes: (0..weights.len()).map(node).collect(), links, ..Self::default() }
    }
}
