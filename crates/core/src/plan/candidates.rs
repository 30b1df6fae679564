//! The algorithms that could do a call, and the machines on which it would run: the input of prices and simulations.

use super::{Request, choose::choose, coded, port_loads::host_numbers, ports};
use crate::{
    algorithm::Algorithm,
    codec::Codec,
    collective::Collective,
    simulate::{Calibration, Cores, Port, Rig},
};
use alloc::{vec, vec::Vec};

/// The most ranks that talk each to every other in a candidate.
const MOST_SHARDED: u32 = 256;
/// The largest buffer that one rank folds for all, or every rank by itself, in a candidate.
const MOST_WHOLE: u64 = 1 << 20;

/// The algorithms that could do a request, the table's choice first.
pub fn candidates(request: &Request<'_>) -> Vec<Algorithm> {
    if request.codec != Codec::Plain {
        return coded::candidates(request);
    }
    let Request { collective, bytes, group, reducers, hosts, links, .. } = *request;
    let workers = group.size();
    let of_sites = ports::of_sites(request.ports);
    let mut found: Vec<Algorithm> =
        choose(&Request { forced: None, ..*request }).map(|choice| choice.algorithm).into_iter().collect();
    let mut add = |algorithm: Algorithm, fits: bool| {
        if fits && !found.contains(&algorithm) {
            found.push(algorithm);
        }
    };
    let bits = group.key_bits();
    let twos = || Algorithm::radix(vec![2; bits as usize]);
    let stages = |factor: u32| Algorithm::radix(vec![factor; bits.div_ceil(factor.ilog2()) as usize]);
    match collective {
        Collective::AllReduce => {
            let whole = bytes <= MOST_WHOLE;
            add(Algorithm::OneShot, whole && workers <= 16);
            add(Algorithm::Star, whole && workers <= 64);
            add(Algorithm::Doubling, true);
            add(Algorithm::Tree, true);
            add(Algorithm::radix(vec![]), workers <= MOST_SHARDED);
            add(twos(), workers > 2);
            add(stages(4), workers > 4);
            add(stages(8), workers > 8);
            let has_hosts = hosts.len() == workers as usize;
            add(Algorithm::hierarchical(), has_hosts);
            add(Algorithm::ReductionServer, reducers > 0);
            add(Algorithm::Mixed { shares: None }, (1..workers).contains(&reducers));
            add(Algorithm::hosts_and_reducers(), reducers > 0 && has_hosts);
            add(Algorithm::Trees { mode: None, single: false }, links.is_some());
            of_sites.into_iter().for_each(|algorithm| add(algorithm, true));
        }
        Collective::ReduceScatter | Collective::AllGather => {
            add(Algorithm::radix(vec![]), workers <= MOST_SHARDED);
            add(twos(), workers > 2);
            add(stages(4), workers > 4);
            add(stages(8), workers > 8);
            of_sites.into_iter().for_each(|algorithm| add(algorithm, true));
        }
        Collective::Reduce { .. } | Collective::Broadcast { .. } => {
            add(Algorithm::Tree, true);
            add(Algorithm::radix(vec![]), workers > 2 && workers <= MOST_SHARDED);
            add(Algorithm::Chain, workers > 2 && matches!(collective, Collective::Broadcast { .. }));
        }
        _ => {}
    }
    found
}

/// The machines of a request. Hosts are behind ports, and known ports override the calibration's. If only the links
/// between workers are known, the workers have links.
pub fn machine(request: &Request<'_>, known: &Calibration, reducers: u32) -> Rig {
    let workers = request.group.size();
    let (hosts, workers_hosts) = host_numbers(request, reducers);
    let links = request.links.filter(|links| links.size() == workers as usize && reducers == 0);
    let mut machine = match (ports::deciding(request), links) {
        (Some(ports), _) => Rig::with_known_ports(hosts, ports, known.port, known.latency, known.costs),
        (None, Some(links)) => Rig::with_links(links, known.latency, known.costs),
        (None, None) => Rig::with_ports(hosts, known.port, known.latency, known.costs),
    };
    if reducers > 0 {
        machine.ports[workers_hosts..].fill(Port { out: known.reducer_port, into: known.reducer_port });
    }
    if known.shared_cores > 0 {
        machine.cores = Cores::InAll(known.shared_cores);
    }
    machine
}
