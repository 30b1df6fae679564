//! What a process knows of the links between ranks.

use crate::core::topology::Wiring;

/// What trees are planned from.
#[derive(Clone, Default)]
pub(crate) struct Trees {
    /// The links between all ranks, or between their hosts, and the ports of hosts.
    pub(crate) wiring: Wiring,
    /// What the nodes of these links and ports are called.
    pub(crate) nodes: Vec<String>,
    /// Whether the ranks measure both instead.
    pub(crate) measure: bool,
    /// Up to how many elements one tree carries the whole buffer.
    pub(crate) bound: Option<u64>,
}

impl Trees {
    /// What trees of some of the ranks are planned from. Nodes that are called as hosts find their ranks again.
    pub(crate) fn among(&self, ranks: &[u32]) -> Self {
        let are_ranks = !self.nodes.contains(&host_name());
        let wiring = if are_ranks { self.wiring.among(ranks) } else { self.wiring.clone() };
        let nodes = if are_ranks { Vec::new() } else { self.nodes.clone() };
        Self { wiring, nodes, ..self.clone() }
    }
}

/// The name of this host, as a topology may call it.
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
