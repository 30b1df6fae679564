//! How machines are linked: nodes, directed links, and the trees that go over them.
//!
//! [`read`] takes public formats: the text of `nvidia-smi topo -m`, NCCL's topology XML, and matrices as JSON or CSV.
//! [`trees`] are planned on a [`LinkMatrix`]: the links between ranks, with the weights of MXNet's `GetP2PWeight`.

#[cfg(feature = "topology-readers")]
mod csv;
mod error;
pub mod json;
mod links;
#[cfg(feature = "topology-readers")]
mod listed;
mod measured;
mod measured_ports;
mod measured_sites;
mod model;
#[cfg(feature = "topology-readers")]
mod nccl;
mod port;
mod port_speeds;
mod port_watch;
mod ports;
pub(crate) mod random;
mod round_trips;
mod samples;
mod sites;
#[cfg(feature = "topology-readers")]
mod smi;
mod switches;
mod text;
pub mod trees;
mod wiring;
#[cfg(feature = "topology-readers")]
mod xml;

pub use error::TopologyError;
pub use links::{LinkMatrix, MOST_RANKS, by_mxnet_rules};
pub use measured::{MeasuredLink, MeasuringPair, measured_topology, measuring_rounds};
pub use measured_ports::{
    MOST_IN_BLOCK, PortArrival, PortFindings, TURN_REPEATS, mean_rate, measured_ports, measuring_blocks,
    median_rate, steady_rates,
};
pub use measured_sites::{SiteFlow, found_sites, measured_sites, site_flows};
pub use model::{
    LinkKind, MOST_NODES, MOST_SITES, NodeKind, Topology, TopologyLink, TopologyNode, TopologyPort,
    TopologySite,
};
pub use port::Port;
pub use port_speeds::{HostFlow, SeenPort, SeenRate, seen_ports};
pub use port_watch::{INTERVALS, PortChange, PortSpeeds, PortWatch};
pub use ports::{MOST_PORTS, Ports};
pub use round_trips::RoundTrips;
pub use samples::{BatchTimes, LARGEST_MESSAGE, LinkSamples, MESSAGES_IN_FLIGHT, MessageBatch};
pub use sites::Sites;
pub use switches::Switches;
pub use wiring::Wiring;

use alloc::format;

/// Reads a topology in any of the formats. `name` selects one from a list of topologies.
///
/// ```
/// use herringbone_core::topology::{LinkMatrix, read};
///
/// let topology = read("\tGPU0\tGPU1\nGPU0\tX\tNV2\nGPU1\tNV2\tX\n", None)?;
/// assert_eq!(topology.links()[0].bandwidth, 50.0);
/// assert_eq!(LinkMatrix::of(&topology)?.weight(0, 1), 2.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`TopologyError::Text`] if the text has no format or breaks its own, and [`TopologyError::Whole`] if it has too many
/// nodes, or the crate was built without its feature `topology-readers`.
pub fn read(text: &str, name: Option<&str>) -> Result<Topology, TopologyError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let topology = read_in_its_format(text, name)?;
    if topology.nodes.len() > MOST_NODES {
        let problem = format!("the topology has {} nodes", topology.nodes.len());
        return Err(TopologyError::whole(problem, format!("give it at most {MOST_NODES}")));
    }
    Ok(topology)
}

#[cfg(feature = "topology-readers")]
fn read_in_its_format(text: &str, name: Option<&str>) -> Result<Topology, TopologyError> {
    match text.trim_start().chars().next() {
        Some('<') => nccl::read(text),
        Some('{' | '[') => listed::read(text, name),
        _ if smi::is_header_in(text) => smi::read(text),
        _ => csv::read(text),
    }
}

#[cfg(not(feature = "topology-readers"))]
fn read_in_its_format(_text: &str, _name: Option<&str>) -> Result<Topology, TopologyError> {
    let problem = "this program was built without readers of topologies";
    Err(TopologyError::whole(problem, "build it with the feature `topology-readers`"))
}
