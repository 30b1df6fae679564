//! The machine of MXNet's proposal: p3.16xlarge, 8 V100 with NVLinks, whose pairs share PCIe.

use super::inputs::TreesInputs;
use herringbone::core::{
    simulate::{Costs, Overhead, Picoseconds, Rig},
    topology::{
        LinkKind, LinkMatrix, NodeKind, Switches, Topology, TopologyError, TopologyLink, TopologyNode,
    },
};

/// How many GPUs there are.
pub(super) const GPUS: u32 = 8;
/// GPUs behind a PCIe switch.
const BEHIND_SWITCH: usize = 2;
/// Bytes/s that a V100 moves in its memory, by NVIDIA's data sheet.
pub(super) const MEMORY: u64 = 900_000_000_000;
/// NVLinks of each pair, as in the proposal's Figure 3 and in `GetP2PWeight` of MXNet's gpu_topology.h.
pub(super) const NVLINKS: [[u8; GPUS as usize]; GPUS as usize] = [
    [0, 1, 1, 2, 2, 0, 0, 0],
    [1, 0, 2, 1, 0, 2, 0, 0],
    [1, 2, 0, 2, 0, 0, 1, 0],
    [2, 1, 2, 0, 0, 0, 0, 1],
    [2, 0, 0, 0, 0, 1, 1, 2],
    [0, 2, 0, 0, 1, 0, 2, 1],
    [0, 0, 1, 0, 1, 2, 0, 2],
    [0, 0, 0, 1, 2, 1, 2, 0],
];

/// The links that a way to sum uses.
#[derive(Clone, Debug)]
pub(super) struct Wires {
    /// Links of pairs; what trees are planned for.
    pub(super) links: LinkMatrix,
    /// What other pairs send through.
    pub(super) switches: Option<Switches>,
}

impl Wires {
    /// NVLinks, and PCIe for pairs without.
    ///
    /// # Errors
    /// If rates are no numbers.
    pub(super) fn of_machine(inputs: &TreesInputs) -> Result<Self, TopologyError> {
        let gpus = GPUS as usize;
        let switches = gpus.div_ceil(BEHIND_SWITCH);
        let node = |kind, number| TopologyNode { name: format!("{kind}{number}"), kind, device: None };
        let mut nodes: Vec<TopologyNode> = (0..gpus).map(|gpu| node(NodeKind::Gpu, gpu)).collect();
        nodes.extend((0..switches).map(|switch| node(NodeKind::Switch, switch)));
        nodes.push(node(NodeKind::Cpu, 0));
        let pairs = (0..gpus).flat_map(|from| (0..gpus).map(move |to| (from, to)));
        let mut links: Vec<TopologyLink> = pairs
            .filter(|(from, to)| NVLINKS[*from][*to] > 0)
            .map(|(from, to)| {
                let count = NVLINKS[from][to];
                // MXNet's weights: 2 for one NVLink, 3 for two.
                link(from, to, f64::from(count) * inputs.nvlink, f32::from(count) + 1.0)
            })
            .collect();
        let mut both_ways = |one, other| {
            links.push(link(one, other, inputs.pcie, 0.0));
            links.push(link(other, one, inputs.pcie, 0.0));
        };
        (0..gpus).for_each(|gpu| both_ways(gpu, gpus + gpu / BEHIND_SWITCH));
        (0..switches).for_each(|switch| both_ways(gpus + switch, gpus + switches));
        let topology = Topology::of_parts(nodes, links)?;
        Ok(Self { links: LinkMatrix::of(&topology)?, switches: Switches::of(&topology) })
    }

    /// NCCL's ring: from each GPU to the next a link as fast as this many NVLinks. One ring leads through all GPUs over pairs with two, as
    /// 0, 3, 2, 1, 5, 6, 7, 4; its places are the ranks here.
    ///
    /// # Errors
    /// If rates are no numbers.
    pub(super) fn of_ring(inputs: &TreesInputs) -> Result<Self, TopologyError> {
        let name = |gpu| TopologyNode { name: format!("gpu{gpu}"), kind: NodeKind::Gpu, device: None };
        let (gpus, rate) = (GPUS as usize, f64::from(inputs.ring_links) * inputs.nvlink);
        let links = (0..gpus).map(|gpu| link(gpu, (gpu + 1) % gpus, rate, 1.0));
        let topology = Topology::of_parts((0..GPUS).map(name).collect(), links.collect())?;
        Ok(Self { links: LinkMatrix::of(&topology)?, switches: None })
    }

    /// The machine with this cost of a message for its sender.
    pub(super) fn rig(&self, message: Picoseconds) -> Rig {
        let costs = Costs {
            send: Overhead { each: message, rate: 0 },
            fold: Overhead { each: 0, rate: MEMORY },
            copy: Overhead { each: 0, rate: MEMORY / 2 },
            ..Costs::FREE
        };
        Rig { switches: self.switches.clone(), ..Rig::with_links(&self.links, 0, costs) }
    }
}

fn link(from: usize, to: usize, bandwidth: f64, weight: f32) -> TopologyLink {
    TopologyLink { from, to, kind: LinkKind::Given, bandwidth, weight, latency: None }
}
