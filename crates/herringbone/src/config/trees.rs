//! What a process knows of the links between ranks.

use crate::core::topology::LinkMatrix;

/// What trees are planned from.
#[derive(Clone, Default)]
pub(crate) struct Trees {
    /// The links between all ranks, or between their hosts.
    pub(crate) links: Option<LinkMatrix>,
    /// What the nodes of these links are called.
    pub(crate) nodes: Vec<String>,
    /// Whether the ranks measure the links instead.
    pub(crate) measure: bool,
    /// Up to how many elements one tree carries the whole buffer.
    pub(crate) bound: Option<u64>,
}

impl Trees {
    /// What trees of some of the ranks are planned from. Nodes that are called as hosts find their ranks again.
    pub(crate) fn among(&self, ranks: &[u32]) -> Self {
        let are_ranks = !self.nodes.contains(&host_name());
        let links = self.links.as_ref().map(|links| match are_ranks {
            true => links.among(ranks),
            false => links.clone(),
        });
        let nodes = if are_ranks { Vec::new() } else { self.nodes.clone() };
        Self { links, nodes, ..self.clone() }
    }
}

/// The name of this host, as a topology may call it.
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
