//! All-reduces whose messages are coded: which algorithm.

use super::{Choice, Request, ports};
use crate::algorithm::{Algorithm, Layout};
use alloc::{format, vec, vec::Vec};

/// Through the reducers if there are any, unless an algorithm without them is forced.
pub(super) fn choose(request: &Request<'_>) -> Choice {
    let algorithm = plain_candidates(request).swap_remove(0);
    let choice = Choice { algorithm, why: format!("messages are coded with {}", request.codec) };
    match ports::deciding(request).filter(|_| request.forced.is_none()) {
        Some(ports) => {
            let Choice { algorithm, why } = ports::lighter(request, Some(ports), choice.clone());
            let why = if why.starts_with(&choice.why) { why } else { format!("{}; {why}", choice.why) };
            Choice { algorithm, why }
        }
        None => choice,
    }
}

/// The algorithms that have coded forms for a request, one at least, the table's choice first.
pub(super) fn candidates(request: &Request<'_>) -> Vec<Algorithm> {
    let (chosen, mut found) = (choose(request).algorithm, plain_candidates(request));
    if !found.contains(&chosen) {
        found.insert(0, chosen);
    }
    found
}

fn plain_candidates(request: &Request<'_>) -> Vec<Algorithm> {
    let is_served = request.reducers > 0;
    let (radix, served) = (Algorithm::radix(vec![]).coded(), Algorithm::ReductionServer.coded());
    match request.forced {
        Some(forced) if forced.needs_reducers() && is_served => vec![by_shares(request, forced, served)],
        Some(forced) => vec![by_shares(request, forced, radix)],
        None if is_served => vec![served, radix],
        None => vec![radix],
    }
}

/// A coded form by the shares of a forced algorithm, if that has shares of the same owners, and the group has not lost any of them.
fn by_shares(request: &Request<'_>, forced: &Algorithm, coded: Algorithm) -> Algorithm {
    match forced.plain() {
        Algorithm::Weighted { plain, shares } if !matches!(**plain, Algorithm::Mixed { .. }) => {
            let by_shares = coded.plain().clone().weighted(shares.clone()).coded();
            let Request { collective, group, reducers, hosts, links, .. } = *request;
            let schedule = by_shares.schedule(collective, group, &Layout { reducers, hosts, links });
            if schedule.is_err_and(|reason| reason.is_layout()) { coded } else { by_shares }
        }
        _ => coded,
    }
}
