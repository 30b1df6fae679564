//! The topology file of NCCL (`NCCL_TOPO_DUMP_FILE`): processors, PCIe switches, GPUs with their NVLinks, and network cards.

use super::xml::{XmlElement, parse};
use super::{LinkKind, NodeKind, Topology, TopologyError, TopologyLink, TopologyNode, links};
use alloc::{collections::BTreeMap, format, string::String, vec, vec::Vec};

/// The PCI class of an NVSwitch.
const NVSWITCH: &str = "0x068000";

/// Where a GPU or a network card hangs: its processor and the PCIe switches above it, outermost first.
struct Device {
    node: TopologyNode,
    host: usize,
    cpu: usize,
    switches: Vec<String>,
    /// NVLinks by target.
    nvlinks: Vec<(String, String, u8)>,
    bus: String,
    /// Of a network card, in GB/s.
    speed: Option<f64>,
}

pub(super) fn read(text: &str) -> Result<Topology, TopologyError> {
    let system = parse(text)?;
    if system.name != "system" {
        return Err(system.at.error(format!("<{}>", system.name), "<system>, as NCCL writes it"));
    }
    let (mut devices, mut cpus) = (vec![], vec![]);
    for cpu in system.children.iter().filter(|child| child.name == "cpu") {
        let id = cpu.number("numaid")?.unwrap_or(cpus.len() as f64);
        let host = cpu.get("host_hash").unwrap_or("").into();
        cpus.push((format!("CPU{id}"), host));
        let place = Place { cpu: cpus.len() - 1, bus: "", switches: vec![] };
        collect(cpu, &place, &cpus, &mut devices)?;
    }
    if !devices.iter().any(|device| device.node.kind == NodeKind::Gpu) {
        return Err(system.at.error("a system without GPUs", "<gpu> below <cpu> and <pci>"));
    }
    // Ranks are GPUs by their numbers.
    devices.sort_by_key(|device: &Device| device.node.kind != NodeKind::Gpu);
    Ok(topology(&devices, &cpus))
}

struct Place<'a> {
    cpu: usize,
    bus: &'a str,
    switches: Vec<String>,
}

fn collect(
    element: &XmlElement,
    place: &Place<'_>,
    cpus: &[(String, String)],
    devices: &mut Vec<Device>,
) -> Result<(), TopologyError> {
    for child in &element.children {
        match child.name.as_str() {
            "pci" => {
                let bus = child.get("busid").unwrap_or("");
                let mut switches = place.switches.clone();
                if child.children.iter().any(|below| below.name == "pci") {
                    switches.push(bus.into());
                }
                collect(child, &Place { cpu: place.cpu, bus, switches }, cpus, devices)?;
            }
            "nic" => collect(child, place, cpus, devices)?,
            "gpu" | "net" => devices.push(device(child, place, cpus)?),
            _ => {}
        }
    }
    Ok(())
}

fn device(
    element: &XmlElement,
    place: &Place<'_>,
    cpus: &[(String, String)],
) -> Result<Device, TopologyError> {
    let is_gpu = element.name == "gpu";
    let number = element.number("dev")?;
    let Some(number) = number else {
        return Err(element
            .at
            .error(format!("<{}> without dev", element.name), "its number, as in dev=\"0\""));
    };
    let (before, kind) = if is_gpu { ("GPU", NodeKind::Gpu) } else { ("NIC", NodeKind::Nic) };
    let device = element.get("name").map(String::from);
    let mut nvlinks = vec![];
    for link in element.children.iter().filter(|child| child.name == "nvlink") {
        let count = link.number("count")?.unwrap_or(1.0);
        if !(1.0..=18.0).contains(&count) {
            return Err(link.at.error(format!("{count} NVLinks"), "1 to 18"));
        }
        let of = |name: &str| String::from(link.get(name).unwrap_or(""));
        nvlinks.push((of("target"), of("tclass"), count as u8));
    }
    let hosts: Vec<&String> = cpus.iter().map(|(_, host)| host).collect();
    let host = hosts.iter().position(|host| *host == hosts[place.cpu]).unwrap_or(place.cpu);
    let node = TopologyNode { name: format!("{before}{number}"), kind, device };
    // NCCL counts in Mbit/s.
    let speed = element.number("speed")?.map(|speed| speed / 8000.0);
    let (bus, switches) = (place.bus.into(), place.switches.clone());
    Ok(Device { node, host, cpu: place.cpu, switches, nvlinks, bus, speed })
}

fn topology(devices: &[Device], cpus: &[(String, String)]) -> Topology {
    let mut nodes: Vec<TopologyNode> = devices.iter().map(|device| device.node.clone()).collect();
    let cpu_of =
        |(name, _): &(String, String)| TopologyNode { name: name.clone(), kind: NodeKind::Cpu, device: None };
    nodes.extend(cpus.iter().map(cpu_of));
    // Hosts count each by itself.
    let names: Vec<String> = nodes.iter().map(|node| node.name.clone()).collect();
    for (at, node) in nodes.iter_mut().enumerate() {
        let before = names[..at].iter().filter(|name| **name == names[at]).count();
        if before > 0 {
            node.name = format!("{} ({})", names[at], before + 1);
        }
    }
    let mut found = vec![];
    for (from, a) in devices.iter().enumerate() {
        for (to, b) in devices.iter().enumerate().filter(|(to, _)| *to != from) {
            if a.host != b.host {
                continue;
            }
            let kind = a.nvlink_to(b).unwrap_or_else(|| a.path_to(b));
            let slower = [a.speed, b.speed].into_iter().flatten();
            let bandwidth = slower.fold(kind.bandwidth().unwrap_or(0.0), f64::min);
            found.push(TopologyLink { from, to, kind, bandwidth, weight: 0.0, latency: None });
        }
    }
    for (at, device) in devices.iter().enumerate() {
        let (cpu, kind) = (devices.len() + device.cpu, LinkKind::Phb);
        for (from, to) in [(at, cpu), (cpu, at)] {
            found.push(TopologyLink {
                from,
                to,
                kind,
                bandwidth: kind.bandwidth().unwrap_or(0.0),
                weight: 0.0,
                latency: None,
            });
        }
    }
    links::assign_weights(&nodes, &mut found);
    found.sort_by_key(|link| (link.from, link.to));
    Topology { nodes, links: found, ..Topology::default() }
}

impl Device {
    /// The NVLinks straight to another GPU, or else through switches, where the GPU with fewer of them counts.
    fn nvlink_to(&self, other: &Self) -> Option<LinkKind> {
        let to_other = |(target, ..): &&(String, String, u8)| !target.is_empty() && *target == other.bus;
        let direct: u8 =
            self.nvlinks.iter().filter(to_other).map(|(.., count)| *count).fold(0, u8::saturating_add);
        let switched = self.switched().values().copied().fold(0, u8::saturating_add);
        let others = other.switched().values().copied().fold(0, u8::saturating_add);
        let count = if direct > 0 { direct } else { switched.min(others) };
        (count > 0).then_some(LinkKind::NvLink(count.min(18)))
    }

    /// NVLinks to switches, by switch.
    fn switched(&self) -> BTreeMap<&str, u8> {
        let mut counts = BTreeMap::new();
        for (target, class, count) in &self.nvlinks {
            if class == NVSWITCH {
                let sum = counts.entry(target.as_str()).or_insert(0u8);
                *sum = sum.saturating_add(*count);
            }
        }
        counts
    }

    /// The way over PCIe.
    fn path_to(&self, other: &Self) -> LinkKind {
        let shared = self.switches.iter().zip(&other.switches).take_while(|(a, b)| a == b).count();
        let apart = (self.switches.len() - shared).max(other.switches.len() - shared);
        match (self.cpu == other.cpu, shared, apart) {
            (false, ..) => LinkKind::Sys,
            (true, 0, _) if self.bus == other.bus && !self.bus.is_empty() => LinkKind::Pix,
            (true, 0, _) => LinkKind::Phb,
            (true, _, 0) => LinkKind::Pix,
            (true, ..) => LinkKind::Pxb,
        }
    }
}
