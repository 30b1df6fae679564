//! The known ways between ranks: links of pairs, and ports of hosts.

use super::{LinkMatrix, Ports, RoundTrips, Topology, TopologyError};
use alloc::{string::String, vec::Vec};

/// The known ways between ranks. Ports decide if they are known, because the links of a host share its port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wiring {
    /// The links, one for each pair.
    pub links: Option<LinkMatrix>,
    /// The ports of the ranks' hosts.
    pub ports: Option<Ports>,
    /// The round trips between ranks and rank 0, which were measured while the job formed. No topology has them.
    pub round_trips: RoundTrips,
}

impl From<LinkMatrix> for Wiring {
    fn from(links: LinkMatrix) -> Self {
        Self { links: Some(links), ..Self::default() }
    }
}

impl Wiring {
    /// The ways between the [ranks](Topology::ranks) of a topology. A topology with ports can be without links.
    ///
    /// # Errors
    /// As [`LinkMatrix::of`] and [`Ports::of`], even if no links that carry both ways connect all ranks.
    pub fn of(topology: &Topology) -> Result<Self, TopologyError> {
        let ports = Ports::of(topology)?;
        if ports.is_some() && topology.links().is_empty() {
            return Ok(Self { ports, ..Self::default() });
        }
        let links = LinkMatrix::of(topology)?;
        links.check_connected()?;
        Ok(Self { links: Some(links), ports, ..Self::default() })
    }

    /// The number of the site of each of these ranks; empty unless the sites of all of them are known.
    pub fn sites_of(&self, ranks: &[u32]) -> Vec<u32> {
        self.among(ranks).ports.map(|ports| ports.site_numbers()).unwrap_or_default()
    }

    /// Whether neither links nor ports are known.
    pub fn is_unknown(&self) -> bool {
        self.links.is_none() && self.ports.is_none()
    }

    /// How many ranks there are, if anything is known.
    pub fn size(&self) -> Option<usize> {
        self.links.as_ref().map(LinkMatrix::size).or(self.ports.as_ref().map(Ports::size))
    }

    /// That between these ranks, in their order: links and ports that are known of all of them.
    #[must_use]
    pub fn among(&self, ranks: &[u32]) -> Self {
        let are_below = |size: usize| ranks.iter().all(|rank| (*rank as usize) < size);
        let links = self.links.as_ref().filter(|links| are_below(links.size()));
        let ports = self.ports.as_ref().filter(|ports| are_below(ports.size()));
        Self {
            links: links.map(|links| links.among(ranks)),
            ports: ports.map(|ports| ports.among(ranks)),
            round_trips: self.round_trips.among(ranks),
        }
    }

    /// The ways between ranks on these hosts, from nodes with these names; see [`LinkMatrix::placed`].
    ///
    /// # Errors
    /// [`TopologyError::Whole`] for a host that no node is while others are, and for another number of nodes than of ranks.
    pub fn placed(self, nodes: &[String], hosts: &[&str]) -> Result<Self, TopologyError> {
        Ok(Self {
            links: self.links.map(|links| links.placed(nodes, hosts)).transpose()?,
            ports: self.ports.map(|ports| ports.placed(nodes, hosts)).transpose()?,
            round_trips: self.round_trips,
        })
    }

    /// The same with other ports, as they are observed while a job runs. If no ports were known and the new ones are
    /// all equal, they are left out.
    #[must_use]
    pub fn with_ports(&self, ports: &Ports) -> Self {
        let says = self.ports.is_some() || !ports.are_alike();
        let ports = says.then(|| match &self.ports {
            Some(known) => ports.clone().with_nanoseconds(known.nanoseconds()),
            None => ports.clone(),
        });
        Self { ports, ..self.clone() }
    }

    /// All numbers of links and ports, for digests of plans. `None` if neither is known.
    pub fn to_bytes(&self) -> Option<Vec<u8>> {
        let links = self.links.as_ref().map(LinkMatrix::to_bytes);
        let Some(ports) = &self.ports else { return links };
        // The links' size comes first, so that no links run together with the ports.
        Some(links.unwrap_or_default().into_iter().chain(ports.to_bytes()).collect())
    }

    /// How many bytes it takes in a message, at most.
    pub fn bytes(&self) -> usize {
        let links = self.links.as_ref().map_or(0, |links| links.to_bytes().len());
        let ports = self.ports.as_ref().map_or(0, |ports| ports.to_bytes().len());
        links + ports + size_of_val(self.round_trips.numbers())
    }
}
