//! Switches between ranks, which pairs without a link of their own share.

use super::{NodeKind, Topology};
use alloc::vec::Vec;

/// The switch of each rank, and the rates of switches to and from the rest of the machine. This models PCIe switches,
/// where all GPUs behind a switch share its way to the processor.
#[derive(Clone, Debug, PartialEq)]
pub struct Switches {
    /// By rank: the number of its switch.
    pub of_rank: Vec<usize>,
    /// By switch: GB/s from its ranks in all.
    pub out: Vec<f64>,
    /// By switch: GB/s to its ranks in all.
    pub into: Vec<f64>,
}

impl Switches {
    /// The switches of a topology in which each rank has links with a switch, in both directions, and each of these
    /// switches with a node that is no rank. If there are several, the fastest link is used. `None` for any other
    /// topology.
    pub fn of(topology: &Topology) -> Option<Self> {
        let (ranks, nodes) = (topology.ranks(), topology.nodes());
        let fastest = |from: usize, to: usize| {
            let links = topology.links().iter().filter(|link| link.from == from && link.to == to);
            links.map(|link| link.bandwidth).fold(0.0, f64::max)
        };
        let both_ways = |one: usize, other: usize| fastest(one, other).min(fastest(other, one));
        let switch_of = |rank: &usize| {
            let switches = (0..nodes.len()).filter(|node| nodes[*node].kind == NodeKind::Switch);
            let linked = switches.filter(|node| both_ways(*rank, *node) > 0.0);
            linked.max_by(|a, b| both_ways(*rank, *a).total_cmp(&both_ways(*rank, *b)))
        };
        let of_rank = ranks.iter().map(switch_of).collect::<Option<Vec<usize>>>()?;
        let mut switches = of_rank.clone();
        switches.sort_unstable();
        switches.dedup();
        let others = || (0..nodes.len()).filter(|node| !ranks.contains(node));
        let most = |rate: &dyn Fn(usize) -> f64| others().map(rate).fold(0.0, f64::max);
        let out: Vec<f64> = switches.iter().map(|switch| most(&|node| fastest(*switch, node))).collect();
        let into: Vec<f64> = switches.iter().map(|switch| most(&|node| fastest(node, *switch))).collect();
        let of_rank = of_rank.iter().filter_map(|switch| switches.binary_search(switch).ok()).collect();
        let is_whole = !ranks.is_empty() && out.iter().chain(&into).all(|rate| *rate > 0.0);
        is_whole.then_some(Self { of_rank, out, into })
    }
}
