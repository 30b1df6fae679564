//! The topology of this machine: processors and network cards from the kernel, GPUs from `nvidia-smi`.

use herringbone::core::topology::{self, LinkKind, NodeKind, Topology, TopologyLink, TopologyNode};
use std::{fs, path::Path, process::Command};

/// This machine. Without GPUs, or without their driver, there are processors and network cards.
pub(crate) fn topology() -> Topology {
    let gpus = Command::new("nvidia-smi").args(["topo", "-m"]).output().ok();
    let text = gpus.filter(|output| output.status.success());
    let text = text.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    with_gpus(&of_system(Path::new("/sys")), text.as_deref())
}

/// Processors and network cards, with the links between GPUs and cards that `nvidia-smi topo -m` shows, if it works.
fn with_gpus(system: &Topology, text: Option<&str>) -> Topology {
    let Some(gpus) = text.and_then(|text| topology::read(text, None).ok()) else { return system.clone() };
    let first = gpus.nodes().len();
    let nodes = gpus.nodes().iter().chain(system.nodes()).cloned().collect();
    let moved = system.links().iter().map(|link| TopologyLink {
        from: link.from + first,
        to: link.to + first,
        ..*link
    });
    // Each GPU hangs at the first processor: affinities are not in every text.
    let is_cpu = |node: &TopologyNode| node.kind == NodeKind::Cpu;
    let cpu = system.nodes().iter().position(is_cpu).map(|cpu| cpu + first);
    let ways = (0..first).flat_map(|gpu| cpu.map(|cpu| both_ways(gpu, cpu, LinkKind::Phb, 10.0)));
    let links = gpus.links().iter().copied().chain(moved).chain(ways.flatten()).collect();
    Topology::of_parts(nodes, links).unwrap_or(gpus)
}

/// NUMA nodes and physical network cards below a folder like `/sys`. Cards without a link have no bandwidth.
fn of_system(folder: &Path) -> Topology {
    let numbered = |name: &str| name.strip_prefix("node")?.parse::<u32>().ok();
    let mut numas: Vec<u32> =
        entries(&folder.join("devices/system/node")).iter().filter_map(|name| numbered(name)).collect();
    numas.sort_unstable();
    if numas.is_empty() {
        numas.push(0);
    }
    let cpu = |numa: &u32| TopologyNode { name: format!("CPU{numa}"), kind: NodeKind::Cpu, device: None };
    let mut nodes: Vec<TopologyNode> = numas.iter().map(cpu).collect();
    let mut links = vec![];
    for (a, b) in (0..numas.len()).flat_map(|b| (0..b).map(move |a| (a, b))) {
        links.extend(both_ways(a, b, LinkKind::Sys, 10.0));
    }
    let mut cards = entries(&folder.join("class/net"));
    cards.sort_unstable();
    for name in cards {
        let card = folder.join("class/net").join(&name);
        // Only what hangs at a bus is a device.
        if !card.join("device").exists() {
            continue;
        }
        let speed = number(&card.join("speed")).filter(|speed| *speed > 0.0).unwrap_or(0.0);
        let numa = number(&card.join("device/numa_node")).unwrap_or(0.0).max(0.0);
        let cpu = numas.iter().position(|known| f64::from(*known) == numa).unwrap_or(0);
        links.extend(both_ways(nodes.len(), cpu, LinkKind::Phb, speed / 8000.0));
        nodes.push(TopologyNode { name, kind: NodeKind::Nic, device: None });
    }
    Topology::of_parts(nodes, links).unwrap_or_default()
}

fn both_ways(a: usize, b: usize, kind: LinkKind, bandwidth: f64) -> [TopologyLink; 2] {
    [(a, b), (b, a)].map(|(from, to)| TopologyLink { from, to, kind, bandwidth, weight: 0.0, latency: None })
}

fn entries(folder: &Path) -> Vec<String> {
    let all = fs::read_dir(folder).into_iter().flatten().flatten();
    all.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

fn number(file: &Path) -> Option<f64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_and_cards_are_those_of_the_kernel() {
        let folder = std::env::temp_dir().join(format!("herringbone-machine-{}", std::process::id()));
        for numa in ["node0", "node1", "power"] {
            fs::create_dir_all(folder.join("devices/system/node").join(numa)).unwrap();
        }
        for (card, speed, numa) in [("eth0", "100000\n", "1\n"), ("eth1", "-1\n", "-1\n")] {
            let card = folder.join("class/net").join(card);
            fs::create_dir_all(card.join("device")).unwrap();
            fs::write(card.join("speed"), speed).unwrap();
            fs::write(card.join("device/numa_node"), numa).unwrap();
        }
        fs::create_dir_all(folder.join("class/net/lo")).unwrap();
        let system = of_system(&folder);
        fs::remove_dir_all(&folder).unwrap();
        let names: Vec<&str> = system.nodes().iter().map(|node| node.name.as_str()).collect();
        assert_eq!(names, ["CPU0", "CPU1", "eth0", "eth1"]);
        let link = |from, to| system.links().iter().find(|link| (link.from, link.to) == (from, to)).unwrap();
        assert_eq!((link(2, 1).bandwidth, link(3, 0).bandwidth), (12.5, 0.0));

        let all = with_gpus(&system, Some("GPU0 GPU1\nGPU0 X NV2\nGPU1 NV2 X\n"));
        assert_eq!((all.nodes().len(), all.ranks()), (6, vec![0, 1]));
        assert_eq!(with_gpus(&system, Some("No devices were found")).nodes(), system.nodes());
        assert_eq!(with_gpus(&system, None), system);
    }

    #[test]
    fn any_machine_has_a_processor() {
        let here = topology();
        assert!(here.nodes().iter().any(|node| node.kind == NodeKind::Cpu));
    }
}
