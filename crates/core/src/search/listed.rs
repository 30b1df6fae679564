//! The time of the algorithms on the same machines, which a found schedule has to beat.

use super::{MOST_MESSAGES, Problem};
use crate::{
    algorithm::{Algorithm, Layout},
    plan::{Request, predicted},
    simulate::{Picoseconds, Workload, estimate},
    verify::{Order, verify},
};
use alloc::vec::Vec;

/// An algorithm, and its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// How long it takes by the simulation.
    pub time: Picoseconds,
    /// The order of its sums. A schedule that is found has the same bits as algorithms with the [fixed](Order::Fixed)
    /// order only.
    pub order: Order,
}

/// All algorithms that can do a request without reducers, with the choice of its plan, by time.
pub fn listed(problem: &Problem<'_>, request: &Request<'_>) -> Vec<Listed> {
    let Problem { group, rig, call, sizing } = *problem;
    let mut algorithms = predicted::candidates(request);
    for algorithm in Algorithm::all() {
        if !algorithms.contains(&algorithm) {
            algorithms.push(algorithm);
        }
    }
    let layout = Layout { reducers: 0, hosts: request.hosts, links: request.links };
    let priced = |algorithm: Algorithm| {
        if algorithm.needs_reducers() {
            return None;
        }
        let schedule = algorithm.schedule(call.collective, group, &layout).ok()?;
        let verified = verify(schedule, call.collective, group).ok()?;
        let order = verified.order();
        let work = Workload::of_one(&verified, call, sizing);
        let time = estimate(MOST_MESSAGES, &work, rig).ok()?.total();
        Some(Listed { algorithm, time, order })
    };
    let mut found: Vec<Listed> = algorithms.into_iter().filter_map(priced).collect();
    found.sort_by_key(|listed| listed.time);
    found
}
