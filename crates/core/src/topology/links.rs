//! The links between ranks as a matrix, with MXNet's weights (`GetP2PWeight`).

use super::{LinkKind, NodeKind, Topology, TopologyError, TopologyLink, TopologyNode};
use alloc::{collections::BTreeSet, format, string::String, vec, vec::Vec};

/// The most ranks that trees are planned for.
pub const MOST_RANKS: usize = 64;

/// The links between ranks: weights and bandwidths, by sender and receiver. 0 is no link.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkMatrix {
    size: usize,
    weights: Vec<f32>,
    bandwidths: Vec<f64>,
}

// No entry is NaN.
impl Eq for LinkMatrix {}

impl LinkMatrix {
    /// The links between the [ranks](Topology::ranks) of a topology.
    ///
    /// # Errors
    /// [`TopologyError::Whole`] unless there are 1 to 64 ranks.
    pub fn of(topology: &Topology) -> Result<Self, TopologyError> {
        let ranks = topology.ranks();
        let size = ranks.len();
        if !(1..=MOST_RANKS).contains(&size) {
            let problem =
                format!("trees are planned for 1 to {MOST_RANKS} ranks, and the topology has {size}");
            return Err(TopologyError::whole(problem, "leave rows out, or plan for parts of it"));
        }
        let mut number = vec![usize::MAX; topology.nodes().len()];
        ranks.iter().enumerate().for_each(|(rank, node)| number[*node] = rank);
        let mut matrix = Self { size, weights: vec![0.0; size * size], bandwidths: vec![0.0; size * size] };
        for link in topology.links() {
            let (from, to) = (number[link.from], number[link.to]);
            if from < size && to < size {
                matrix.weights[from * size + to] = link.weight;
                matrix.bandwidths[from * size + to] = link.bandwidth;
            }
        }
        Ok(matrix)
    }

    /// Ranks that are all linked alike, with this weight and bandwidth: the assumption if no topology is known.
    pub fn uniform(size: usize, weight: f32) -> Self {
        let link = |at: usize| if at / size == at % size { 0.0 } else { weight };
        let weights: Vec<f32> = (0..size * size).map(link).collect();
        let bandwidths = weights.iter().map(|weight| f64::from(*weight)).collect();
        Self { size, weights, bandwidths }
    }

    /// A matrix of weights, which are the bandwidths too. The diagonal is ignored.
    ///
    /// # Errors
    /// [`TopologyError::Whole`] unless it is square, of 1 to 64 ranks, without negative numbers and NaNs.
    pub fn of_weights(rows: &[Vec<f32>]) -> Result<Self, TopologyError> {
        let size = rows.len();
        let is_weight = |weight: &f32| weight.is_finite() && *weight >= 0.0;
        if !(1..=MOST_RANKS).contains(&size) || rows.iter().any(|row| row.len() != size) {
            let problem = format!("a matrix of {size} rows");
            return Err(TopologyError::whole(problem, "give it as many columns, and at most 64"));
        }
        if !rows.iter().flatten().all(is_weight) {
            return Err(TopologyError::whole("a weight is negative or no number", "use 0 for no link"));
        }
        let mut weights: Vec<f32> = rows.iter().flatten().copied().collect();
        (0..size).for_each(|rank| weights[rank * size + rank] = 0.0);
        let bandwidths = weights.iter().map(|weight| f64::from(*weight)).collect();
        Ok(Self { size, weights, bandwidths })
    }

    /// The links between these ranks, in their order.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn among(&self, ranks: &[u32]) -> Self {
        let size = ranks.len();
        let mut among = Self { size, weights: vec![0.0; size * size], bandwidths: vec![0.0; size * size] };
        for (at, (from, to)) in
            ranks.iter().flat_map(|from| ranks.iter().map(move |to| (from, to))).enumerate()
        {
            let (from, to) = (*from as usize, *to as usize);
            (among.weights[at], among.bandwidths[at]) = (self.weight(from, to), self.speed(from, to));
        }
        among
    }

    /// The links between ranks on these hosts, from links between nodes with these names. If the nodes have the names
    /// of hosts, the links within a host are as fast as the fastest link between nodes. Otherwise node i is rank i.
    ///
    /// # Errors
    /// [`TopologyError::Whole`] for a host that no node is while others are, and for another number of nodes than of ranks.
    pub fn placed(self, nodes: &[String], hosts: &[&str]) -> Result<Self, TopologyError> {
        let Some(places) = places(self.size, nodes, hosts)? else { return Ok(self) };
        let mut placed = self.among(&places);
        let weight = self.weights.iter().copied().fold(0.0, f32::max);
        let bandwidth = self.bandwidths.iter().copied().fold(0.0, f64::max);
        let ranks = places.len();
        for at in (0..ranks * ranks)
            .filter(|at| places[at / ranks] == places[at % ranks] && at / ranks != at % ranks)
        {
            placed.weights[at] = if weight > 0.0 { weight } else { 1.0 };
            placed.bandwidths[at] = if bandwidth > 0.0 { bandwidth } else { 1.0 };
        }
        Ok(placed)
    }

    /// All numbers, for other processes and for digests.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::from((self.size as u32).to_le_bytes());
        for (weight, bandwidth) in self.weights.iter().zip(&self.bandwidths) {
            bytes.extend(weight.to_bits().to_le_bytes());
            bytes.extend(bandwidth.to_bits().to_le_bytes());
        }
        bytes
    }

    /// Reverses [`to_bytes`](Self::to_bytes); `None` for bytes that are no matrix.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        const ENTRY: usize = size_of::<f32>() + size_of::<f64>();
        let (size, rest) = bytes.split_first_chunk()?;
        let size = u32::from_le_bytes(*size) as usize;
        if !(1..=MOST_RANKS).contains(&size) || rest.len() != size * size * ENTRY {
            return None;
        }
        let mut matrix = Self { size, weights: vec![], bandwidths: vec![] };
        for entry in rest.chunks(ENTRY) {
            let (weight, bandwidth) = entry.split_first_chunk()?;
            let weight = f32::from_le_bytes(*weight);
            let bandwidth = f64::from_le_bytes(bandwidth.try_into().ok()?);
            if !(weight.is_finite() && weight >= 0.0 && bandwidth.is_finite() && bandwidth >= 0.0) {
                return None;
            }
            matrix.weights.push(weight);
            matrix.bandwidths.push(bandwidth);
        }
        Some(matrix)
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The weight of the link from one rank to another; 0 is no link.
    pub fn weight(&self, from: usize, to: usize) -> f32 {
        self.weights[from * self.size + to]
    }

    /// The bandwidth that trees have from one rank to another, in GB/s, or as a matrix has it: 0 if the link weighs
    /// nothing.
    pub fn bandwidth(&self, from: usize, to: usize) -> f64 {
        if self.weight(from, to) > 0.0 { self.speed(from, to) } else { 0.0 }
    }

    /// The bandwidth of the link from one rank to another, even if trees do not use it; 0 if there is none.
    pub fn speed(&self, from: usize, to: usize) -> f64 {
        self.bandwidths[from * self.size + to]
    }

    /// The lesser weight of both directions, which carries a tree's edge up and down.
    pub fn both_ways(&self, a: usize, b: usize) -> f32 {
        self.weight(a, b).min(self.weight(b, a))
    }

    /// All weights, row by row.
    pub fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// Whether each link is as heavy in both directions.
    pub fn is_symmetric(&self) -> bool {
        (0..self.size).all(|a| (0..a).all(|b| self.weight(a, b) == self.weight(b, a)))
    }

    /// Whether links that carry both ways lead from rank 0 to each other; else a rank that they do not reach.
    ///
    /// # Errors
    /// [`TopologyError::Whole`] with a rank that is out of reach.
    pub fn check_connected(&self) -> Result<(), TopologyError> {
        let mut reached = vec![false; self.size];
        reached[0] = true;
        let mut open = vec![0];
        while let Some(at) = open.pop() {
            for (to, is_reached) in reached.iter_mut().enumerate() {
                if !*is_reached && self.both_ways(at, to) > 0.0 {
                    *is_reached = true;
                    open.push(to);
                }
            }
        }
        match reached.iter().position(|reached| !reached) {
            None => Ok(()),
            Some(rank) => {
                let problem = format!("no links that carry both ways lead from rank 0 to rank {rank}");
                Err(TopologyError::whole(
                    problem,
                    "give it a link whose weight is above 0 in both directions, or use ring, which needs only links from each \
                     rank to the next",
                ))
            }
        }
    }

    /// The same with the ranks of MXNet's performance attribute as weights: MXNet's rules applied to them. `peers`
    /// tells which pairs reach each other's memory, if it is known.
    pub fn by_mxnet_rules(&self, peers: Option<&[bool]>) -> Self {
        let mut weights = self.weights.clone();
        mxnet_rules(&mut weights, self.size, peers);
        let bandwidths = weights.iter().map(|weight| f64::from(*weight)).collect();
        Self { size: self.size, weights, bandwidths }
    }
}

/// The node of each rank, where the nodes have these names and the ranks run on these hosts; `None` where node i is rank i.
///
/// # Errors
/// [`TopologyError::Whole`] for a host that no node is while others are, and for another number of nodes than of ranks.
pub(super) fn places(
    size: usize,
    nodes: &[String],
    hosts: &[&str],
) -> Result<Option<Vec<u32>>, TopologyError> {
    let place = |host: &&str| nodes.iter().position(|node| node == host);
    let places: Vec<Option<usize>> = hosts.iter().map(place).collect();
    let listed = || match nodes.len() {
        0..=8 => nodes.join(", "),
        many => format!("{}, ... (of {many})", nodes[..8].join(", ")),
    };
    if places.iter().all(Option::is_none) {
        if size == hosts.len() {
            return Ok(None);
        }
        let ranks = hosts.len();
        let host = hosts.first().copied().unwrap_or_default();
        let (named, change) = match nodes {
            [] => (String::new(), String::new()),
            _ => (
                format!(", and rank 0's host {host} is none of {}", listed()),
                String::from(", or name its nodes as the hosts are called"),
            ),
        };
        return Err(TopologyError::whole(
            format!("the topology has {size} nodes and the job {ranks} ranks{named}"),
            format!("give it a node for each rank, in their order{change}"),
        ));
    }
    if let Some(rank) = places.iter().position(Option::is_none) {
        return Err(TopologyError::whole(
            format!("rank {rank} runs on {}, and the topology's nodes are {}", hosts[rank], listed()),
            "name a node as each host is called, or none, so that node i is rank i",
        ));
    }
    Ok(Some(places.into_iter().flatten().map(|place| place as u32).collect()))
}

/// The topology whose matrix has the entries that MXNet turns into weights; see [`LinkMatrix::by_mxnet_rules`].
///
/// # Errors
/// [`TopologyError::Whole`] unless there are 1 to 64 ranks, and nothing else.
pub fn by_mxnet_rules(topology: &Topology, peers: Option<&[bool]>) -> Result<Topology, TopologyError> {
    let matrix = LinkMatrix::of(topology)?.by_mxnet_rules(peers);
    let ranks = topology.ranks();
    let mut weighed = topology.clone();
    weighed.links.clear();
    for (from, node) in ranks.iter().enumerate() {
        for (to, other) in ranks.iter().enumerate() {
            let (weight, bandwidth) = (matrix.weight(from, to), f64::from(matrix.weight(from, to)));
            if weight > 0.0 {
                weighed.links.push(TopologyLink::given(*node, *other, bandwidth, weight));
            }
        }
    }
    Ok(weighed)
}

/// MXNet's rules from the ranks of CUDA's performance attribute, plus 1, to weights: 1 is a link without peer access, 2 and more
/// are NVLinks.
///
/// If a pair has peer access and rank 1, the driver's ranks are wrong: pairs with peer access weigh 2, the others 1. If the
/// links above 1 connect all ranks, those of 1 become 0. Else they become 1 / ranks, for the queue on the way through
/// the processor.
pub(super) fn mxnet_rules(weights: &mut [f32], size: usize, peers: Option<&[bool]>) {
    if let Some(peers) = peers
        && weights.iter().zip(peers).any(|(weight, peer)| *peer && *weight == 1.0)
    {
        let by_peer = |(at, peer): (usize, &bool)| match at / size == at % size {
            true => 0.0,
            false => 1.0 + f32::from(u8::from(*peer)),
        };
        peers.iter().enumerate().map(by_peer).zip(weights.iter_mut()).for_each(|(new, old)| *old = new);
    }
    let low = if is_connected_above_one(weights, size) { 0.0 } else { 1.0 / size as f32 };
    weights.iter_mut().filter(|weight| **weight == 1.0).for_each(|weight| *weight = low);
}

/// As MXNet asks: over entries that are above 1 as integers, from rank 0.
fn is_connected_above_one(weights: &[f32], size: usize) -> bool {
    let mut reached = vec![false; size];
    reached[0] = true;
    let mut open = vec![0];
    while let Some(at) = open.pop() {
        for to in 0..size {
            if weights[at * size + to] >= 2.0 && !reached[to] {
                reached[to] = true;
                open.push(to);
            }
        }
    }
    reached.iter().all(|reached| *reached)
}

/// Gives the links between GPUs their weights: the counts of NVLinks that the machine has become 2, 3, ... in their order, as
/// CUDA ranks them; everything else is 1; then [`mxnet_rules`]. Links of other nodes weigh 0.
pub(super) fn assign_weights(nodes: &[TopologyNode], links: &mut [TopologyLink]) {
    let gpus: Vec<usize> = (0..nodes.len()).filter(|at| nodes[*at].kind == NodeKind::Gpu).collect();
    let size = gpus.len();
    if size == 0 {
        return;
    }
    let number = |node: usize| gpus.binary_search(&node).ok();
    let counts: BTreeSet<u8> = links.iter().filter_map(|link| nvlinks(link.kind)).collect();
    let rank = |kind: LinkKind| match nvlinks(kind) {
        Some(count) => 2 + counts.range(..count).count(),
        None => 1,
    };
    let mut weights = vec![0.0; size * size];
    for link in links.iter() {
        if let (Some(from), Some(to)) = (number(link.from), number(link.to)) {
            weights[from * size + to] = rank(link.kind) as f32;
        }
    }
    mxnet_rules(&mut weights, size, None);
    for link in links {
        if let (Some(from), Some(to)) = (number(link.from), number(link.to)) {
            link.weight = weights[from * size + to];
        }
    }
}

fn nvlinks(kind: LinkKind) -> Option<u8> {
    match kind {
        LinkKind::NvLink(count) => Some(count),
        _ => None,
    }
}
