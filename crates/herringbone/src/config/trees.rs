//! A process's knowledge of the links between ranks.

use crate::core::{session::Measuring, topology::Wiring};

/// What trees are planned from.
#[derive(Clone, Default)]
pub(crate) struct Trees {
    /// The links between all ranks, or between their hosts, and the ports of hosts.
    pub(crate) wiring: Wiring,
    /// What the nodes of these links and ports are called.
    pub(crate) nodes: Vec<String>,
    /// Whether the ranks measure both instead, and whether they follow ports later.
    pub(crate) measuring: Measuring,
    /// Up to how many elements one tree carries the whole buffer.
    pub(crate) bound: Option<u64>,
}

impl Trees {
    /// The same with other links, or without any.
    pub(crate) fn with(&self, trees: Self) -> Self {
        let measuring = Measuring { while_running: self.measuring.while_running, ..trees.measuring };
        Self { measuring, bound: self.bound, ..trees }
    }

    /// Those whose links the ranks measure.
    pub(crate) fn measured() -> Self {
        Self { measuring: Measuring { at_start: true, while_running: false }, ..Self::default() }
    }

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
