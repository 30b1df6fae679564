//! Measures the rates of sites' uplinks: all hosts of a site receive from others at once, then send to others at once.

use super::ports::{TurnFlows, longest};
use crate::{
    Communicator, Error, Result,
    config::settings,
    core::topology::{
        LinkMatrix, Ports, SiteFlow, Sites, TURN_REPEATS, found_sites, measured_sites, site_flows,
    },
};
use std::{fmt, time::Duration};

/// A measurement of the uplinks of sites that is about to begin. All ranks of the group make one and run it.
///
/// The sites follow from the links between hosts and their ports ([`found_sites`]), so measure these first. The rate of
/// a link between two hosts depends on other pairs' use of the uplink, and does not show the rate of many pairs. So all
/// hosts of a site measure at once.
pub struct SiteMeasurement<'a> {
    comm: &'a Communicator,
    of_ranks: Vec<u8>,
    turns: Vec<Vec<SiteFlow>>,
}

impl<'a> SiteMeasurement<'a> {
    /// A measurement of the sites that these ports and links show. `hosts` has a number for each rank's host. `None` if
    /// they show no sites.
    pub fn of(comm: &'a Communicator, ports: &Ports, links: &LinkMatrix, hosts: &[u32]) -> Option<Self> {
        let of_ranks = found_sites(ports, links, hosts)?;
        let turns = site_flows(&of_ranks, hosts);
        Some(Self { comm, of_ranks, turns })
    }

    /// In how many turns it measures, each of them repeated.
    pub fn turns(&self) -> usize {
        TURN_REPEATS * self.turns.len()
    }

    /// The longest time, if each uplink carries 10 Mbit/s or more.
    pub fn limit(&self) -> Duration {
        longest(self.turns())
    }

    /// Measures. All ranks of the group get the same sites. `done` hears of each turn that has ended.
    ///
    /// # Errors
    /// Errors of messages; see [`ErrorKind`](crate::ErrorKind).
    pub fn run(self, mut done: impl FnMut(usize)) -> Result<Sites> {
        let me = self.comm.rank();
        let mut own = vec![0u64; self.turns()];
        for (turn, rate) in own.iter_mut().enumerate() {
            self.comm.barrier()?;
            let flows = &self.turns[turn % self.turns.len()];
            let senders: Vec<u32> =
                flows.iter().filter(|flow| flow.receiver == me).map(|flow| flow.sender).collect();
            let receivers: Vec<u32> =
                flows.iter().filter(|flow| flow.sender == me).map(|flow| flow.receiver).collect();
            let of_turn = TurnFlows { comm: self.comm };
            if !senders.is_empty() {
                *rate = of_turn.received(&senders)?.mean;
            } else if !receivers.is_empty() {
                of_turn.served(&receivers)?;
            }
            done(turn + 1);
        }
        let mut all = vec![0u64; own.len() * self.comm.size() as usize];
        self.comm.all_gather(&own, &mut all)?;
        let found: Vec<&[u64]> = all.chunks(own.len()).collect();
        measured_sites(self.of_ranks, &found)
            .map_err(|error| Error::config(settings::TOPOLOGY.name, error).at(me))
    }
}

impl fmt::Debug for SiteMeasurement<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SiteMeasurement").field("turns", &self.turns).finish_non_exhaustive()
    }
}
