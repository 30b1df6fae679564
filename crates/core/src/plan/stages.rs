//! The stages in which a buffer is scattered and gathered: the load of links decides.
//!
//! In a single stage every rank sends to every other. Its messages are inputs, which are as narrow as possible. But
//! nothing is summed before it leaves a host, so a host with m workers sends m (N-m)/N K, and N-1 flows meet at each
//! link. Stages that follow hosts send one partial sum of each host. In stages of two, each link serves one partner at
//! a time. Only scattered messages are partial sums, and those can be wider than inputs, so the two halves need not use
//! the same stages.

use super::{FACTOR, PAIR_BYTES, Request, SHARDED_RANKS, is_one_host, size::ByteCount};
use crate::algorithm::{Algorithm, Carried, carried, pieces_of_hosts};
use crate::collective::Collective;
use alloc::{boxed::Box, format, string::String, vec, vec::Vec};

/// How a buffer is scattered and gathered.
#[derive(Debug)]
pub(super) struct Stages {
    /// [`Radix`](Algorithm::Radix), or, for hosts in pieces, [`Hierarchical`](Algorithm::Hierarchical) of two.
    pub(super) algorithm: Algorithm,
    /// What the busiest link carries each way, in parts of which the buffer has one for each worker.
    pub(super) busiest: u64,
    /// The reason, as a sentence without a full stop.
    pub(super) why: String,
}

/// A way to scatter, and backwards to gather.
#[derive(Debug)]
struct Way {
    factors: Vec<u32>,
    /// What the busiest link carries each way while the buffer is scattered, in the same parts.
    scattered: u64,
    /// The same while it is gathered.
    gathered: u64,
    why: String,
}

/// The stages that leave the least to the busiest link, for each half by itself.
pub(super) fn choose(request: &Request<'_>) -> Stages {
    let regardless =
        if request.group.size() <= SHARDED_RANKS { single(request) } else { many_stages(request) };
    let followed = (!is_one_host(request)).then(|| follow_hosts(request)).flatten();
    let least = |busiest: fn(&Way) -> u64| {
        followed.as_ref().filter(|way| busiest(way) <= busiest(&regardless)).unwrap_or(&regardless)
    };
    let (scatter, gather) = (least(|way| way.scattered), least(|way| way.gathered));
    let stages = match request.collective {
        Collective::ReduceScatter => alike(scatter, scatter.scattered),
        Collective::AllGather => alike(gather, gather.gathered),
        _ if scatter.factors == gather.factors => alike(scatter, scatter.scattered + gather.gathered),
        _ => apart(request, scatter, gather),
    };
    if followed.is_some() && are_even(request.hosts) {
        return stages;
    }
    // For hosts that differ in size the above is not exact.
    let busiest = busiest(request, &stages.algorithm).unwrap_or(stages.busiest);
    let stages = Stages { busiest, ..stages };
    hosts_in_pieces(request).filter(|pieces| pieces.busiest < stages.busiest).unwrap_or(stages)
}

/// Both halves go one way, or there is only one.
fn alike(way: &Way, busiest: u64) -> Stages {
    Stages { algorithm: Algorithm::radix(way.factors.clone()), busiest, why: way.why.clone() }
}

/// Partial sums that are wider than inputs can make one way the best to scatter and another to gather.
fn apart(request: &Request<'_>, scatter: &Way, gather: &Way) -> Stages {
    let spelled = |way: &Way| match way.factors[..] {
        [] => vec![power(request.group.key_bits())],
        _ => way.factors.clone(),
    };
    let why = format!(
        "{} to gather; inputs go to the ranks that sum them, because partial sums are {} times as wide",
        gather.why, request.widening
    );
    Stages {
        algorithm: Algorithm::Radix { scatter: spelled(scatter), gather: spelled(gather) },
        busiest: scatter.scattered + gather.gathered,
        why,
    }
}

fn single(request: &Request<'_>) -> Way {
    let workers = request.group.size();
    let (n, m) = (u64::from(workers), most_on_a_host(request));
    let why = format!("fewest bytes in fewest rounds: {workers} ranks <= {SHARDED_RANKS}");
    Way { factors: vec![], scattered: m * (n - m), gathered: m * (n - m), why }
}

/// For many workers; links carry what they do in a single stage, or somewhat more where partial sums are wider.
fn many_stages(request: &Request<'_>) -> Way {
    let workers = request.group.size();
    let factors = vec![FACTOR; request.group.key_bits().div_ceil(FACTOR.ilog2()) as usize];
    let why = format!("fewest bytes, in stages of {FACTOR}: {workers} ranks > {SHARDED_RANKS}");
    Way { factors, why, ..single(request) }
}

/// The workers of a host in one stage, then hosts two by two as far as there is another for each, then the rest.
fn follow_hosts(request: &Request<'_>) -> Option<Way> {
    let Request { bytes, group, .. } = *request;
    let n = u64::from(group.size());
    let inside = host_bits(group.keys(), request.hosts)?;
    let factors = factors(group.keys(), inside);
    if factors.len() < 2 || inside == 0 && bytes < PAIR_BYTES * n {
        return None;
    }
    let widening = u64::from(request.widening);
    Some(if inside == 0 {
        // Inputs in the first stage, which halves them, then partial sums.
        let first = n / 2;
        let why = format!(
            "fewest bytes, two by two: {} >= {n} ranks x {}",
            ByteCount(bytes),
            ByteCount(PAIR_BYTES)
        );
        Way { factors, scattered: first + widening * (n - 1 - first), gathered: n - 1, why }
    } else {
        let m = most_on_a_host(request);
        let others = n - n / n.div_ceil(m);
        let why = format!("fewest {}", follows(request));
        Way { factors, scattered: widening * others, gathered: others, why }
    })
}

/// How a host's workers are spoken of, and why hosts send little that add up what these have first.
fn follows(request: &Request<'_>) -> String {
    let most = most_on_a_host(request);
    let own = match are_even(request.hosts) {
        true => format!("its {most} workers"),
        false => format!("its workers (up to {most})"),
    };
    match request.collective {
        Collective::AllGather => {
            format!("bytes between hosts: each host receives once for {own}")
        }
        _ => format!("bytes between hosts: each host sums {own} first"),
    }
}

/// Whether each run of workers of a host is as long as the others.
fn are_even(hosts: &[u32]) -> bool {
    let mut runs = hosts.chunk_by(|a, b| a == b).map(<[u32]>::len);
    runs.next().is_none_or(|first| runs.all(|run| run == first))
}

/// Hosts add up what they have, each to as many partial sums as its workers are nodes of the canonical tree.
fn hosts_in_pieces(request: &Request<'_>) -> Option<Stages> {
    let Request { collective, group, .. } = *request;
    let most = pieces_of_hosts(group, request.hosts).ok()?.iter().map(Vec::len).max()?;
    let across = match group.size() <= SHARDED_RANKS {
        true => vec![],
        false => vec![FACTOR; group.key_bits().div_ceil(FACTOR.ilog2()) as usize],
    };
    let mut why = match across.is_empty() {
        true => format!("fewest {}", follows(request)),
        false => format!("few {}, in stages of {FACTOR}, because ranks are many", follows(request)),
    };
    if most > 1 && collective != Collective::AllGather {
        why += &format!(", into up to {most} partial sums (one with HERRINGBONE_FOLD_ORDER=hosts)");
    }
    let (inner, outer) = (Box::new(Algorithm::radix(vec![])), Box::new(Algorithm::radix(across)));
    let algorithm = Algorithm::Hierarchical { inner, outer };
    let busiest = busiest(request, &algorithm)?;
    Some(Stages { algorithm, busiest, why })
}

/// What the busiest link carries each way, exactly: for workers of several hosts, some with more than one.
fn busiest(request: &Request<'_>, algorithm: &Algorithm) -> Option<u64> {
    let links = carried(request.group, request.hosts, algorithm, request.collective, request.widening.into());
    let [scattered, gathered] = links.ok()?;
    let busier = |link: &Carried| link.out.max(link.into);
    match request.collective {
        Collective::ReduceScatter => scattered.iter().map(busier).max(),
        Collective::AllGather => gathered.iter().map(busier).max(),
        _ => {
            let both = scattered.iter().zip(&gathered);
            both.map(|(a, b)| (a.out + b.out).max(a.into + b.into)).max()
        }
    }
}

/// The most workers that share a host.
pub(super) fn most_on_a_host(request: &Request<'_>) -> u64 {
    let mut hosts = request.hosts.to_vec();
    hosts.sort_unstable();
    hosts.chunk_by(|a, b| a == b).map(|host| host.len() as u64).max().unwrap_or(1)
}

/// How many bits of the keys tell a host's workers apart, if those above tell the hosts apart.
fn host_bits(keys: &[u32], hosts: &[u32]) -> Option<u32> {
    if hosts.len() != keys.len() {
        return Some(0);
    }
    let mut at = 0;
    let mut bits = 0;
    let mut known = Vec::new();
    for run in hosts.chunk_by(|a, b| a == b) {
        let (first, last) = (keys[at], keys[at + run.len() - 1]);
        bits = bits.max(u32::BITS - (first ^ last).leading_zeros());
        at += run.len();
        known.push(run[0]);
    }
    let runs = known.len();
    known.sort_unstable();
    known.dedup();
    (known.len() == runs && nodes(keys, bits).len() == runs).then_some(bits)
}

/// The nodes of the canonical tree at a level.
fn nodes(keys: &[u32], bits: u32) -> Vec<u32> {
    let mut nodes: Vec<u32> = keys.iter().map(|key| key.checked_shr(bits).unwrap_or(0)).collect();
    nodes.dedup();
    nodes
}

/// The factors of stages over `keys`, the first of which takes so many bits.
fn factors(keys: &[u32], inside: u32) -> Vec<u32> {
    let mut factors = Vec::new();
    if inside > 0 {
        factors.push(power(inside));
    }
    let mut left = nodes(keys, inside);
    while left.len() > 1 && left.chunk_by(|a, b| a >> 1 == b >> 1).all(|pair| pair.len() == 2) {
        factors.push(2);
        left = nodes(&left, 1);
    }
    if let [first, .., last] = left[..] {
        factors.push(power(u32::BITS - (first ^ last).leading_zeros()));
    }
    factors
}

/// A factor that takes so many bits; the last one takes what is left in any case.
fn power(bits: u32) -> u32 {
    1 << bits.min(u32::BITS - 1)
}

#[cfg(test)]
mod tests {
    use super::super::counted::tests::{busiest, large};
    use super::*;
    use crate::group::{FoldOrder, Group};

    fn on(hosts: &[u32]) -> Option<Vec<u32>> {
        let keys: Vec<u32> = (0..hosts.len() as u32).collect();
        host_bits(&keys, hosts).map(|inside| factors(&keys, inside))
    }

    #[test]
    fn pairs_are_made_as_far_as_there_is_another_for_each() {
        for (workers, expected) in [
            (2, &[2][..]),
            (3, &[4]),
            (4, &[2, 2]),
            (5, &[8]),
            (6, &[2, 4]),
            (7, &[8]),
            (12, &[2, 2, 4]),
            (16, &[2, 2, 2, 2]),
            (40, &[2, 2, 2, 8]),
        ] {
            let keys: Vec<u32> = (0..workers).collect();
            assert_eq!(factors(&keys, 0), expected, "{workers}");
        }
        assert_eq!(factors(&[0, 1, 6, 7], 0), [2, 4]);
        assert_eq!(factors(&[1, 2], 0), [4]);
        assert_eq!(factors(&[0, u32::MAX], 0), [1 << 31]);
    }

    #[test]
    fn the_busiest_link_carries_what_the_programs_say() {
        let even = |hosts: u32, each: u32| (0..hosts * each).map(|rank| rank / each).collect::<Vec<_>>();
        let layouts = (1..=33).map(|n| even(n, 1)).chain(
            [(2, 2), (3, 2), (2, 4), (5, 4), (6, 4), (7, 8), (8, 8), (3, 3), (2, 6), (9, 7), (4, 12)]
                .map(|(h, each)| even(h, each)),
        );
        let layouts = layouts.chain([vec![0, 0, 0, 1, 1, 2, 2, 2, 2, 2], vec![4, 4, 4, 4, 2, 2, 9, 9]]);
        for hosts in layouts {
            let group = Group::of_size(hosts.len() as u32);
            for collective in [Collective::AllReduce, Collective::ReduceScatter, Collective::AllGather] {
                for widening in [1, 2, 8] {
                    let request = Request { collective, widening, ..large(&group, &hosts) };
                    let ways = [Some(single(&request)), follow_hosts(&request)];
                    let ways = ways.iter().flatten().map(|way| match collective {
                        Collective::ReduceScatter => alike(way, way.scattered),
                        Collective::AllGather => alike(way, way.gathered),
                        _ => alike(way, way.scattered + way.gathered),
                    });
                    for stages in ways.chain([choose(&request)]) {
                        let (counted, _) = busiest(&request, &stages.algorithm);
                        assert_eq!(
                            stages.busiest, counted,
                            "{collective}, {widening}, {hosts:?}, {stages:?}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn hosts_that_differ_in_size_carry_what_is_reckoned_and_no_more_than_by_other_ways() {
        let sizes: [&[u32]; 9] = [
            &[4, 2],
            &[2, 2, 1],
            &[4, 4, 2],
            &[4, 4, 4, 2],
            &[3, 1],
            &[6, 6, 6, 2],
            &[12, 1],
            &[2, 1, 3],
            &[5, 1],
        ];
        for (sizes, order, widening) in sizes.into_iter().flat_map(|sizes| {
            FoldOrder::ALL.into_iter().flat_map(move |order| [1, 2].map(|widening| (sizes, order, widening)))
        }) {
            let hosts: Vec<u32> = (0..).zip(sizes).flat_map(|(host, m)| vec![host; *m as usize]).collect();
            let group = order.group(&hosts, &[]);
            let request = Request { widening, ..large(&group, &hosts) };
            let stages = choose(&request);
            assert_eq!(
                stages.busiest,
                busiest(&request, &stages.algorithm).0,
                "{sizes:?}, {order:?}, {stages:?}"
            );
            for other in [Algorithm::radix(vec![]), Algorithm::hierarchical()] {
                assert!(stages.busiest <= busiest(&request, &other).0, "{sizes:?}, {order:?}, {stages:?}");
            }
        }
    }

    #[test]
    fn the_busiest_link_of_many_hosts_in_pieces_carries_what_the_programs_say() {
        for (each, hosts) in [(11, 8), (3, 23), (13, 8), (5, 15)] {
            let hosts: Vec<u32> = (0..each * hosts).map(|rank| rank / each).collect();
            let group = Group::of_size(hosts.len() as u32);
            for collective in [Collective::AllReduce, Collective::ReduceScatter, Collective::AllGather] {
                let request = Request { collective, widening: 2, ..large(&group, &hosts) };
                let stages = hosts_in_pieces(&request).unwrap();
                assert_eq!(
                    stages.busiest,
                    busiest(&request, &stages.algorithm).0,
                    "{collective}, {each}, {hosts:?}"
                );
            }
        }
    }

    /// Hosts of three, five, six and seven workers, for whom a single stage would send all that they have.
    #[test]
    fn hosts_in_pieces_send_a_partial_sum_for_each() {
        for (sizes, hundredths) in [(&[3, 3][..], 150), (&[6, 6], 150), (&[5, 5, 5], 266), (&[7; 8], 350)] {
            let hosts: Vec<u32> = (0..).zip(sizes).flat_map(|(host, m)| vec![host; *m as usize]).collect();
            let group = Group::of_size(hosts.len() as u32);
            let request = large(&group, &hosts);
            let (before, stages) = (single(&request), choose(&request));
            assert_eq!(stages.algorithm, Algorithm::hierarchical());
            assert!(stages.why.contains("each host sums its") && stages.why.contains("partial sums"));
            assert_eq!(stages.busiest * 100 / u64::from(group.size()), hundredths, "{sizes:?}");
            assert!(stages.busiest < before.scattered + before.gathered, "{sizes:?}");
        }
    }

    #[test]
    fn hosts_are_followed_where_they_are_nodes() {
        assert_eq!(on(&[0, 0, 1, 1]), Some(vec![2, 2]));
        assert_eq!(on(&[0, 0, 0, 0, 1, 1, 1, 1]), Some(vec![4, 2]));
        assert_eq!(on(&[5, 5, 4, 4, 3, 3]), Some(vec![2, 4]));
        assert_eq!(on(&[0, 0, 0, 0, 1, 1]), Some(vec![4, 2]));
        assert_eq!(on(&[0, 0, 0, 0, 1, 1, 2, 2]), None, "two hosts in one node of four");
        assert_eq!(on(&[0, 0, 0, 1, 1, 1]), None, "three are no node");
        assert_eq!(on(&[0, 1, 0, 1]), None, "hosts in turn");
        assert_eq!(on(&[0, 1, 2, 3]), Some(vec![2, 2]));
    }
}
