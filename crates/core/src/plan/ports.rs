//! The choice by ports: a slow port gets less to carry, whether it is a host's or a site's, and so does the port of a
//! host with many ranks.
//!
//! Each candidate gets the [best shares](super::shares), and the least time of the busiest port wins. All of it is
//! whole numbers, so ranks that know the same ports choose alike. Candidates keep the canonical order. So `ring` is no
//! candidate; between hosts of one rank it carries no less than `radix` with even shares. If no port is known, all are
//! taken as equal.

use super::{
    Choice, LINKED_BYTES, REDUCTION_SERVER_BYTES, Request, SHARDED_RANKS,
    known_ports::{BusiestPort, KnownPorts, PortKind, SharedChoice, WORTH_PERCENT},
    shares::PortTime,
    stages,
};
use crate::{
    algorithm::{Algorithm, SiteSizes, pieces_of_hosts},
    codec::Codec,
    collective::Collective,
    group::{FoldObstacle, FoldOrder},
    topology::Ports,
};
use alloc::{boxed::Box, format, string::String, vec, vec::Vec};

/// The most members for which shares are planned.
const MOST_MEMBERS: u32 = 256;

/// On a host with more ranks than so many these add up first, unless ports that are known say otherwise.
const MOST_ALONE: u64 = 4;

/// The ports that decide about a request: where they are known of all of its workers, and explain the links that are known.
pub(super) fn deciding<'a>(request: &Request<'a>) -> Option<&'a Ports> {
    let Request { ports, links, hosts, group, .. } = *request;
    Ports::deciding(ports, links, hosts, group.size() as usize)
}

/// The choice, or an algorithm that leaves the busiest port at least 3 % less time: for an all-reduce of at least [`LINKED_BYTES`]
/// between hosts whose ports or numbers of ranks differ, and for that and its halves between sites.
pub(super) fn lighter(request: &Request<'_>, ports: Option<&Ports>, choice: Choice) -> Choice {
    let Request { collective, bytes, group, reducers, .. } = *request;
    if bytes < LINKED_BYTES || group.has_several() || group.size() + reducers > MOST_MEMBERS {
        return choice;
    }
    let has_sites = ports.is_some_and(|ports| ports.sites().is_some());
    let counts = match collective {
        Collective::AllReduce => has_sites || ports.is_some() || is_uneven(request),
        Collective::ReduceScatter | Collective::AllGather => has_sites,
        _ => false,
    };
    if !counts {
        return choice;
    }
    let known = KnownPorts::new(request, ports);
    if !known.differ() && !has_sites && !is_uneven(request) {
        return choice;
    }
    let plain = choice.algorithm.plain();
    let mut found = candidates(request, ports, &choice.algorithm);
    if known.has_reckoned_stages(request, plain) {
        // A single stage, inside hosts and across, is no more to a port than several, with fewer rounds.
        found.retain(|algorithm| algorithm != plain);
    }
    let mut found: Vec<SharedChoice> =
        found.into_iter().filter_map(|algorithm| best_of(request, &known, algorithm)).collect();
    // What the plain choice takes was counted on the way, if it can have shares.
    let own = found.iter().find(|found| found.plain == *plain).map(|found| found.even);
    let Some(own) = own.or_else(|| known.time_of(request, &choice.algorithm)) else { return choice };
    if own.is_nothing() {
        return choice;
    }
    found.retain(|found| found.time.is_below(WORTH_PERCENT, own));
    if let Some(at) = least(&found) {
        let best = found.swap_remove(at);
        let why = reason(request, &known, &best, own, &choice.algorithm);
        return Choice { algorithm: best.algorithm, why };
    }
    let Choice { algorithm, why } = choice;
    let why = match ports {
        Some(_) => {
            let busiest = known.busiest(request, &algorithm);
            let note = busiest.map_or_else(String::new, |busiest| order_note(request, &known, &busiest));
            let why = format!("{why}; its busiest port takes {}", shown(own));
            format!("{why}, and no shares make that 3 % less{note}")
        }
        None => why,
    };
    Choice { algorithm, why }
}

/// The first of those with the least time.
fn least(found: &[SharedChoice]) -> Option<usize> {
    (0..found.len()).reduce(|best, at| if found[at].time.is_below(100, found[best].time) { at } else { best })
}

/// Whether workers are on several hosts, of which some have more of them than others, or are more nodes of the canonical tree.
fn is_uneven(request: &Request<'_>) -> bool {
    let mut hosts = request.hosts.to_vec();
    hosts.sort_unstable();
    let sizes: Vec<usize> = hosts.chunk_by(|a, b| a == b).map(<[u32]>::len).collect();
    let differ = |numbers: &[usize]| numbers.windows(2).any(|pair| pair[0] != pair[1]);
    differ(&sizes) || differ(&pieces(request))
}

/// How many nodes of the canonical tree each host's ranks are; nothing where no host has several, or they are not consecutive.
fn pieces(request: &Request<'_>) -> Vec<usize> {
    let found = pieces_of_hosts(request.group, request.hosts).unwrap_or_default();
    found.iter().map(Vec::len).collect()
}

/// What can have shares or levels; of those that take as long, the first one is chosen.
fn candidates(request: &Request<'_>, ports: Option<&Ports>, chosen: &Algorithm) -> Vec<Algorithm> {
    let Request { bytes, reducers, hosts, group, codec, .. } = *request;
    if codec != Codec::Plain {
        return vec![chosen.plain().clone()];
    }
    let has_hosts = hosts.len() == group.size() as usize;
    let are_served = ports.is_some() && reducers > 0 && bytes >= REDUCTION_SERVER_BYTES;
    let others = [
        (Algorithm::radix(vec![]), ports.is_some() || stages::most_on_a_host(request) <= MOST_ALONE),
        (Algorithm::hierarchical(), has_hosts),
        (Algorithm::Mixed { shares: None }, are_served),
        (Algorithm::ReductionServer, are_served),
        (Algorithm::hosts_and_reducers(), are_served && has_hosts),
    ];
    // Between so few ranks a single stage has the fewest rounds.
    let is_sharded = group.size() <= SHARDED_RANKS;
    let is_first = is_sharded && others[0].1;
    let mut found = vec![if is_first { Algorithm::radix(vec![]) } else { chosen.clone() }];
    let pairs = if is_sharded && is_uneven(request) { of_pairs(request) } else { vec![] };
    let levels = of_sites(ports).into_iter().chain(pairs).map(|algorithm| (algorithm, true));
    for (algorithm, fits) in [(chosen.clone(), true)].into_iter().chain(others).chain(levels) {
        if fits && !found.contains(&algorithm) {
            found.push(algorithm);
        }
    }
    found
}

/// What is said of a choice: the port that decides, what it carries, and what it would carry with the plain choice, with which the
/// busiest port takes `own`.
fn reason(
    request: &Request<'_>,
    known: &KnownPorts,
    found: &SharedChoice,
    own: PortTime,
    plain: &Algorithm,
) -> String {
    let Some(BusiestPort { port, kind, carried }) = known.busiest(request, plain) else {
        return shown(found.time);
    };
    let left = known.carried(request, &found.algorithm, port).unwrap_or_default();
    let carries = format!("carries {left:.2} x the buffer, {carried:.2} x with {plain}");
    let note = || order_note(request, known, &BusiestPort { port, kind, carried: left });
    match kind {
        PortKind::Uplink { rank, rate } => {
            let note = note();
            format!("the uplink of rank {rank}'s site ({:.1} MB/s) {carries}{note}", rate as f64 / 1e6)
        }
        PortKind::Host if !known.differ() => {
            let note = note();
            format!("hosts have unequal ranks: the busiest port {carries}{note}")
        }
        PortKind::Host => {
            let slow = known.slowest(found);
            format!("{slow}; the busiest port takes {}, and {} with {plain}", shown(found.time), shown(own))
        }
    }
}

/// What the busiest port would carry if the ranks of each site, or else of each host, were added first; nothing where that is not at
/// least 3 % less. Where ranks of a site are apart, no order does that, and another numbering would.
fn order_note(request: &Request<'_>, known: &KnownPorts, busiest: &BusiestPort) -> String {
    let sites = request.ports.map(Ports::site_numbers).unwrap_or_default();
    let order = if sites.is_empty() { FoldOrder::Hosts } else { FoldOrder::Sites };
    if request.hosts.is_empty() {
        return String::new();
    }
    match order.obstacle(request.hosts, &sites) {
        None => {}
        Some(FoldObstacle::Site(rank)) => {
            return format!(
                "; sites cannot sum first, because ranks of another site lie between rank {rank} and its own: number the ranks site \
                 by site"
            );
        }
        Some(_) => return String::new(),
    }
    let group = order.group(request.hosts, &sites);
    let changes = match order {
        FoldOrder::Hosts => pieces(request).iter().any(|pieces| *pieces > 1),
        _ => group != *request.group,
    };
    if !changes {
        return String::new();
    }
    let by_order = Request { group: &group, ..*request };
    let ways =
        of_sites(request.ports).into_iter().chain([Algorithm::hierarchical(), Algorithm::radix(vec![])]);
    let best = ways.filter_map(|way| best_of(&by_order, known, way));
    let best = best.reduce(|best, other| if other.time.is_below(100, best.time) { other } else { best });
    let less = best.and_then(|best| known.carried(&by_order, &best.algorithm, busiest.port));
    match less.filter(|less| 100.0 * less < WORTH_PERCENT as f64 * busiest.carried) {
        Some(less) => {
            let name = order.name();
            format!("; {less:.2} x with HERRINGBONE_FOLD_ORDER={name}, but sums then depend on the {name}")
        }
        None => String::new(),
    }
}

/// An algorithm with what leaves least to the busiest port.
fn best_of(request: &Request<'_>, known: &KnownPorts, algorithm: Algorithm) -> Option<SharedChoice> {
    match request.collective {
        Collective::AllReduce => known.by_shares(request, algorithm),
        _ => known.as_it_is(request, algorithm),
    }
}

/// The algorithms that add up inside sites first, where the ranks of each are consecutive.
pub(super) fn of_sites(ports: Option<&Ports>) -> Vec<Algorithm> {
    let sizes = ports.and_then(|ports| SiteSizes::of_numbers(&ports.site_numbers()));
    let inside = |sizes: &SiteSizes| {
        // The first of those that leave as much to the uplinks counts, and that is the one which spares hosts' ports.
        [Algorithm::hierarchical(), Algorithm::radix(vec![])].map(|inner| {
            let outer = Box::new(Algorithm::radix(vec![]));
            Algorithm::Sites { inner: Box::new(inner), outer, sizes: sizes.clone() }
        })
    };
    sizes.iter().flat_map(inside).collect()
}

/// Between hosts of unequal numbers of ranks: stages that add up pairs before the rest. They can spare hosts that are in pieces, and those
/// with many ranks.
fn of_pairs(request: &Request<'_>) -> Vec<Algorithm> {
    let bits = request.group.key_bits();
    let rest = vec![2, 1 << bits.saturating_sub(1).clamp(1, 30)];
    let [inner, outer] = [vec![], rest.clone()].map(|factors| Box::new(Algorithm::radix(factors)));
    let mut found = vec![Algorithm::Hierarchical { inner, outer }];
    if pieces(request).iter().any(|pieces| *pieces > 1) {
        found.extend([vec![2; bits as usize], rest].map(Algorithm::radix));
    }
    found
}

fn shown(time: PortTime) -> String {
    match time.of_gigabyte() {
        milliseconds if milliseconds < 1000.0 => format!("{milliseconds:.2} ms/GB"),
        milliseconds => format!("{:.2} s/GB", milliseconds / 1000.0),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{choose, counted::tests::large};
    use super::*;
    use crate::{
        group::Group,
        topology::{LinkMatrix, Port, Sites},
    };

    fn known(rates: &[u64]) -> Ports {
        Ports::new(rates.iter().map(|rate| Port { out: *rate, into: *rate }).collect(), 0).unwrap()
    }

    fn chosen(request: &Request<'_>) -> (String, String) {
        let Choice { algorithm, why } = choose(request).unwrap();
        (format!("{algorithm}"), why)
    }

    const FAST: u64 = 62_500_000;
    const SLOW: u64 = 12_500_000;

    #[test]
    fn a_slow_port_folds_nothing_and_the_reason_says_so() {
        let (group, ports) = (Group::of_size(4), known(&[FAST, FAST, FAST, SLOW]));
        let request = Request { bytes: 8 << 20, ports: Some(&ports), ..large(&group, &[0, 1, 2, 3]) };
        let (name, why) = chosen(&request);
        assert_eq!(name, "weighted(radix,16x3,0)");
        assert_eq!(
            why,
            "the port of rank 3's host has 12.5 MB/s, 0.20 of the fastest: it folds nothing and carries 1.00 of the buffer each way; \
             the busiest port takes 80.00 s/GB, and 120.00 s/GB with radix(2,2)"
        );
        let (name, _) = chosen(&Request { bytes: LINKED_BYTES - 4, ..request });
        assert_eq!(name, "radix(2,2)", "of small buffers messages count");
        assert_eq!(chosen(&Request { hosts: &[], ..request }).0, "weighted(radix,16x3,0)");
        let coded = Request { codec: Codec::Int8, ..request };
        assert_eq!(chosen(&coded).0, "coded(weighted(radix,16x3,0))");
        assert!(chosen(&coded).1.starts_with("messages are coded with int8; the port of rank 3's host"));
    }

    #[test]
    fn equal_ports_and_those_that_do_not_explain_links_change_nothing() {
        let group = Group::of_size(4);
        let request = large(&group, &[0, 1, 2, 3]);
        let plain = chosen(&request);
        for rates in [[FAST; 4], [FAST, FAST - FAST / 20, FAST, FAST], [0; 4], [0, 0, 0, FAST]] {
            let ports = known(&rates);
            assert_eq!(chosen(&Request { ports: Some(&ports), ..request }), plain, "{rates:?}");
        }
        // Links that are slower than ports have something else in their way.
        let (ports, links) = (known(&[FAST, FAST, FAST, SLOW]), LinkMatrix::uniform(4, 0.000_1));
        let (name, why) = chosen(&Request { ports: Some(&ports), links: Some(&links), ..request });
        assert!(!name.starts_with("weighted") && why.contains("slowest link"), "{name}: {why}");
        let as_fast = LinkMatrix::uniform(4, 1.0);
        let (name, _) = chosen(&Request { ports: Some(&ports), links: Some(&as_fast), ..request });
        assert_eq!(name, "weighted(radix,16x3,0)");
    }

    /// Two sites of two hosts, whose uplinks are known or not.
    fn in_sites(of_ranks: &[u8], uplink: u64) -> Ports {
        let uplink = Port { out: uplink, into: uplink };
        known(&[0; 4]).with_sites(Sites::new(of_ranks.to_vec(), vec![uplink; 2]).unwrap()).unwrap()
    }

    #[test]
    fn sites_whose_uplinks_nobody_knows_change_nothing() {
        let group = Group::of_size(4);
        let request = large(&group, &[0, 1, 2, 3]);
        let ports = in_sites(&[0, 0, 1, 1], 0);
        assert_eq!(chosen(&Request { ports: Some(&ports), ..request }), chosen(&request));
    }

    #[test]
    fn ranks_that_are_apart_from_their_site_are_told_to_be_numbered_otherwise() {
        let group = Group::of_size(4);
        let request = large(&group, &[0, 1, 2, 3]);
        let note = "ranks of another site lie between rank 2 and its own: number the ranks site by site";
        for (of_ranks, is_apart) in [(&[0, 0, 1, 1], false), (&[0, 1, 0, 1], true)] {
            let ports = in_sites(of_ranks, SLOW);
            let (name, why) = chosen(&Request { ports: Some(&ports), ..request });
            assert_eq!(why.contains(note), is_apart, "{of_ranks:?}: {name}: {why}");
        }
    }

    /// Whatever is chosen leaves no more to the busiest port than the plain choice does, in programs as they are.
    #[test]
    fn choices_are_never_worse_than_the_plain_one() {
        let layouts: [&[u32]; 7] =
            [&[1; 4], &[1; 8], &[2; 4], &[2, 2, 2], &[3, 3, 3], &[8, 4, 4], &[1, 1, 1, 5]];
        for (sizes, reducers) in layouts.iter().flat_map(|sizes| [0, 2, 4].map(|reducers| (sizes, reducers)))
        {
            let hosts: Vec<u32> =
                (0..).zip(*sizes).flat_map(|(host, size)| (0..*size).map(move |_| host)).collect();
            let group = Group::of_size(hosts.len() as u32);
            for slow in 0..sizes.len() as u32 {
                let rates: Vec<u64> =
                    hosts.iter().map(|host| if *host == slow { SLOW } else { FAST }).collect();
                let ports = known(&rates);
                let request = Request { reducers, bytes: 64 << 20, ..large(&group, &hosts) };
                let plain = choose(&request).unwrap().algorithm;
                let request = Request { ports: Some(&ports), ..request };
                let found = choose(&request).unwrap();
                let known = KnownPorts::new(&request, Some(&ports));
                let time = |algorithm| known.time_of(&request, algorithm).unwrap();
                let (own, best) = (time(&plain), time(&found.algorithm));
                assert!(
                    !own.is_below(100, best),
                    "{sizes:?}, {reducers} reducers, {slow}: {found:?} after {plain}"
                );
                // Each buffer goes out of the slow port once and comes in once, at the least.
                let bound = 1e12 / SLOW as f64;
                assert!(best.of_gigabyte() >= 0.999 * bound);
                if sizes.iter().all(|size| *size == 1) && reducers == 0 {
                    assert!(best.of_gigabyte() <= 1.02 * bound, "{sizes:?}: {}", found.why);
                }
            }
        }
    }
}
