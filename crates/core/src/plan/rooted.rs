//! Reduce and broadcast: a tree, or a way on which the busiest link carries less.

use super::{
    CHAIN_BYTES, Choice, LINKED_BYTES, Request, SHARDED_RANKS, SPREAD_BYTES, busiest_link, is_one_host,
    linked,
};
use crate::algorithm::{Algorithm, Layout};
use crate::collective::Collective;
use alloc::{format, string::String, vec, vec::Vec};

pub(super) fn choose(request: &Request<'_>) -> Choice {
    let tree = || Choice {
        algorithm: Algorithm::Tree,
        why: String::from("each rank is reached through the fewest others"),
    };
    let loads: Vec<_> =
        ways(request).into_iter().filter_map(|way| Some((load(request, &way)?, way))).collect();
    let of_tree = loads.iter().find(|(_, way)| *way == Algorithm::Tree).map(|(load, _)| *load);
    // Of those that leave as much to the busiest link, the first.
    let best = loads.into_iter().min_by(|one, other| one.0.total_cmp(&other.0));
    match (best, of_tree) {
        (Some((load, algorithm)), Some(of_tree)) if algorithm != Algorithm::Tree => {
            let unit = if request.links.is_some() {
                "ms/GB of the slowest link"
            } else {
                "of the buffer over the busiest link"
            };
            Choice { algorithm, why: format!("{load:.2} {unit}, and {of_tree:.2} with tree") }
        }
        _ => tree(),
    }
}

/// The ways that could be taken, those first that are over sooner if their loads are equal.
fn ways(request: &Request<'_>) -> Vec<Algorithm> {
    let Request { collective, bytes, group, .. } = *request;
    let workers = group.size();
    let is_large = |each: u64| bytes >= each.saturating_mul(u64::from(workers));
    if workers <= 2 || is_one_host(request) || bytes < LINKED_BYTES || !is_large(SPREAD_BYTES) {
        return vec![Algorithm::Tree];
    }
    let mut ways = Vec::new();
    // In a chain sums grow in another order than the canonical one.
    if matches!(collective, Collective::Broadcast { .. }) && is_large(CHAIN_BYTES) {
        ways.push(Algorithm::Chain);
    }
    if workers <= SHARDED_RANKS {
        ways.push(Algorithm::radix(vec![]));
    }
    ways.push(Algorithm::Tree);
    ways
}

/// How long the slowest link is busy, in ms for a GB, or how much of the buffer the busiest host's link carries one way.
fn load(request: &Request<'_>, algorithm: &Algorithm) -> Option<f64> {
    let Request { collective, group, reducers, hosts, links, widening, .. } = *request;
    let schedule = algorithm.schedule(collective, group, &Layout { reducers, hosts, links }).ok()?;
    Some(match links.filter(|links| links.size() == group.size() as usize) {
        Some(links) => 1000.0 * linked::busiest(&schedule, links),
        None => busiest_link(&schedule, hosts, widening) as f64 / f64::from(schedule.cut().chunks()),
    })
}
