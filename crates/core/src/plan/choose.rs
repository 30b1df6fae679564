//! The lines of the [table](super), in its order.

use super::{
    Choice, DOUBLING_BYTES, ONE_SHOT_BYTES, ONE_SHOT_BYTES_HERE, ONE_SHOT_MESSAGE, ONE_SHOT_RANKS,
    REDUCTION_SERVER_BYTES, Request, STAR_BYTES, coded, is_one_host, linked, ports, rooted, served, several,
    size::ByteCount,
    stages::{self, Stages},
};
use crate::algorithm::{Algorithm, Layout, Unsupported};
use crate::codec::Codec;
use crate::collective::Collective;
use alloc::{format, string::String, vec};

/// Why a forced algorithm is taken.
pub(super) const FORCED: &str = "forced";

/// Chooses an algorithm.
///
/// # Errors
/// [`Unsupported`] if a forced algorithm cannot do the all-reduce, or if the root is not in the group. If only the
/// hosts prevent a forced algorithm, the choice is made as if none were forced, and the reason mentions it.
pub fn choose(request: &Request<'_>) -> Result<Choice, Unsupported> {
    if request.codec != Codec::Plain {
        return Ok(coded::choose(request));
    }
    let Request { collective, group, reducers, hosts, links, .. } = *request;
    let one_each = || Unsupported::OneInputEach { collective: collective.name() };
    let group = &*collective.group(group).ok_or_else(one_each)?;
    let request = &Request { group, ..*request };
    let possible = |algorithm: &Algorithm| {
        algorithm.schedule(collective, group, &Layout { reducers, hosts, links }).map(drop)
    };
    let Some(forced) = request.forced else {
        let choice = by_load(request);
        return possible(&choice.algorithm).map(|()| choice);
    };
    match possible(forced) {
        Ok(()) => Ok(Choice { algorithm: forced.clone(), why: String::from(FORCED) }),
        Err(reason) if reason.is_layout() => {
            let Choice { algorithm, why } = by_load(request);
            Ok(Choice { algorithm, why: format!("{why}; not the forced {forced}, because {reason}") })
        }
        Err(reason) => Err(reason),
    }
}

/// The choice by sizes, or what leaves less to the ports or links that are known.
fn by_load(request: &Request<'_>) -> Choice {
    let choice = by_size(request);
    match ports::deciding(request) {
        Some(ports) => ports::lighter(request, Some(ports), choice),
        None if request.links.is_none() => ports::lighter(request, None, choice),
        None => linked::lighter(request, choice),
    }
}

fn by_size(request: &Request<'_>) -> Choice {
    let workers = request.group.size();
    match request.collective {
        Collective::AllReduce if request.group.has_several() => several::choose(request),
        Collective::AllReduce => all_reduce(workers, request),
        Collective::Reduce { .. } | Collective::Broadcast { .. } => rooted::choose(request),
        Collective::ReduceScatter | Collective::AllGather => scattered(request),
        Collective::Gather { .. } | Collective::Scatter { .. } | Collective::AllToAll => Choice {
            algorithm: Algorithm::OneShot,
            why: String::from("each part goes once, directly to its rank"),
        },
        Collective::Barrier if workers <= ONE_SHOT_RANKS => Choice {
            algorithm: Algorithm::OneShot,
            why: format!("one round: {workers} ranks <= {ONE_SHOT_RANKS}"),
        },
        Collective::Barrier if is_one_host(request) => Choice {
            algorithm: Algorithm::Star,
            why: format!("one host: {workers} ranks > {ONE_SHOT_RANKS}"),
        },
        Collective::Barrier => Choice {
            algorithm: Algorithm::Doubling,
            why: format!("few messages per rank: {workers} ranks > {ONE_SHOT_RANKS}"),
        },
    }
}

fn all_reduce(workers: u32, request: &Request<'_>) -> Choice {
    let Request { bytes, reducers, .. } = *request;
    let in_all = bytes.saturating_mul(u64::from(workers));
    let (few, here) = (workers <= ONE_SHOT_RANKS, is_one_host(request));
    let most_in_one_shot = if here { ONE_SHOT_BYTES_HERE } else { ONE_SHOT_BYTES };
    if workers == 1 {
        let why = String::from("a single rank sends nothing");
        Choice { algorithm: Algorithm::radix(vec![]), why }
    } else if few && in_all <= most_in_one_shot && bytes <= ONE_SHOT_MESSAGE {
        let why = format!("one round: {} in all <= {}", ByteCount(in_all), ByteCount(most_in_one_shot));
        Choice { algorithm: Algorithm::OneShot, why }
    } else if here && !few && in_all <= STAR_BYTES {
        let why =
            format!("few messages inside a host: {} in all <= {}", ByteCount(in_all), ByteCount(STAR_BYTES));
        Choice { algorithm: Algorithm::Star, why }
    } else if bytes <= DOUBLING_BYTES && !(few && here) {
        let why = format!("few rounds: {} <= {}", ByteCount(bytes), ByteCount(DOUBLING_BYTES));
        Choice { algorithm: Algorithm::Doubling, why }
    } else if reducers > 0 && bytes >= REDUCTION_SERVER_BYTES {
        served::choose(request)
    } else {
        scattered(request)
    }
}

fn scattered(request: &Request<'_>) -> Choice {
    let Stages { algorithm, why, .. } = stages::choose(request);
    Choice { algorithm, why }
}
