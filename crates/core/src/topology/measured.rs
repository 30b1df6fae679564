//! Measured links: the ranks that measure at the same time, and the topology of their results.

use super::{LinkKind, NodeKind, Topology, TopologyError, TopologyLink, TopologyNode};
use alloc::{collections::BTreeMap, string::ToString, vec, vec::Vec};

/// The measurement of a link in one direction. Whole numbers travel between ranks and stay the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeasuredLink {
    /// How long an empty message takes.
    pub nanoseconds: u64,
    /// Bytes that arrive in a second; 0 if nothing was measured.
    pub bytes_per_second: u64,
}

/// Two ranks that measure the links between them.
pub type MeasuringPair = (u32, u32);

/// The pairs of ranks that measure, by rounds. No two pairs of a round share a rank. `hosts` has a number for each rank's host.
///
/// First the hosts measure with each other: each host's first rank stands for all of its ranks, because they share its cable.
/// Then the ranks of each host measure among themselves.
pub fn measuring_rounds(hosts: &[u32]) -> Vec<Vec<MeasuringPair>> {
    let members = members(hosts);
    let leaders: Vec<u32> = members.values().map(|ranks| ranks[0]).collect();
    let mut rounds = tournament(&leaders);
    let inside: Vec<_> = members.values().map(|ranks| tournament(ranks)).collect();
    let longest = inside.iter().map(Vec::len).max().unwrap_or(0);
    rounds.extend((0..longest).map(|round| {
        inside.iter().filter_map(|rounds| rounds.get(round)).flatten().copied().collect::<Vec<_>>()
    }));
    rounds
}

/// The ranks of each host, both in their order.
pub(super) fn members(hosts: &[u32]) -> BTreeMap<u32, Vec<u32>> {
    let mut members = BTreeMap::<u32, Vec<u32>>::new();
    (0..).zip(hosts).for_each(|(rank, host)| members.entry(*host).or_default().push(rank));
    members
}

/// Everybody meets everybody once, by the circle method: the first stays, the others move on by one place each round.
fn tournament(players: &[u32]) -> Vec<Vec<MeasuringPair>> {
    let mut circle: Vec<Option<u32>> = players.iter().copied().map(Some).collect();
    if circle.len() % 2 == 1 {
        // Its partner rests.
        circle.push(None);
    }
    let (places, mut rounds) = (circle.len(), vec![]);
    for _ in 1..if players.len() > 1 { places } else { 0 } {
        let pair = |at: usize| {
            let (one, other) = (circle[at]?, circle[places - 1 - at]?);
            Some((one.min(other), one.max(other)))
        };
        rounds.push((0..places / 2).filter_map(pair).collect());
        circle[1..].rotate_right(1);
    }
    rounds
}

/// The topology of ranks on these hosts, by measurement: `rows[to * ranks + from]` is the link from one rank to
/// another. Ranks of two hosts have the link that was measured between these hosts. The slowest link weighs 1.
///
/// # Errors
/// [`TopologyError::Whole`] if a pair of [`measuring_rounds`] was not measured.
pub fn measured_topology(hosts: &[u32], rows: &[MeasuredLink]) -> Result<Topology, TopologyError> {
    let (ranks, members) = (hosts.len(), members(hosts));
    let mut found = vec![];
    for (from, to) in (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to))) {
        if from == to {
            continue;
        }
        let stands_for = |rank: usize| match hosts[from] == hosts[to] {
            true => rank,
            false => members[&hosts[rank]][0] as usize,
        };
        let measured = rows.get(stands_for(to) * ranks + stands_for(from)).copied().unwrap_or_default();
        if measured.bytes_per_second == 0 {
            let problem = alloc::format!("the link from rank {from} to rank {to} was not measured");
            return Err(TopologyError::whole(problem, "measure again"));
        }
        found.push((from, to, measured));
    }
    let slowest = found.iter().map(|(_, _, link)| link.bytes_per_second).min().unwrap_or(1) as f64;
    let link = |(from, to, measured): (usize, usize, MeasuredLink)| TopologyLink {
        from,
        to,
        kind: LinkKind::Measured,
        bandwidth: rounded(measured.bytes_per_second as f64, 4) / 1e9,
        weight: rounded(measured.bytes_per_second as f64 / slowest, 2) as f32,
        latency: Some(rounded(measured.nanoseconds as f64, 3) / 1e3),
    };
    let node = |rank: usize| TopologyNode { name: rank.to_string(), kind: NodeKind::Rank, device: None };
    Topology::of_parts((0..ranks).map(node).collect(), found.into_iter().map(link).collect())
}

/// A number of so many digits: what is below them is noise.
fn rounded(number: f64, digits: i32) -> f64 {
    let least = (1..digits).fold(1.0, |least, _| 10.0 * least);
    let (mut up, mut down) = (1.0, 1.0);
    while number / down >= 10.0 * least {
        down *= 10.0;
    }
    while number > 0.0 && number * up < least && up < 1e9 {
        up *= 10.0;
    }
    nearest(number / down * up) * down / up
}

/// Without the standard library there is no `round`.
fn nearest(number: f64) -> f64 {
    (number + 0.5) as u64 as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;

    #[test]
    fn everybody_measures_with_everybody_once_and_with_one_at_a_time() {
        for ranks in 1..=17u32 {
            let hosts: Vec<u32> = (0..ranks).collect();
            let rounds = measuring_rounds(&hosts);
            assert_eq!(rounds.len() as u32, if ranks == 1 { 0 } else { ranks - 1 + ranks % 2 });
            let mut seen = BTreeSet::new();
            for round in rounds {
                let busy: BTreeSet<u32> = round.iter().flat_map(|(a, b)| [*a, *b]).collect();
                assert_eq!(busy.len(), 2 * round.len());
                assert!(round.into_iter().all(|pair| pair.0 < pair.1 && seen.insert(pair)));
            }
            assert_eq!(seen.len() as u32, ranks * (ranks - 1) / 2);
        }
    }

    #[test]
    fn one_rank_measures_for_its_host() {
        let rounds = measuring_rounds(&[0, 0, 1, 1]);
        assert_eq!(rounds, [vec![(0, 2)], vec![(0, 1), (2, 3)]]);
        let mut rows = vec![MeasuredLink::default(); 16];
        let measured = |bytes_per_second| MeasuredLink { nanoseconds: 12_345, bytes_per_second };
        for (from, to, speed) in [
            (0, 2, 12_500_000),
            (2, 0, 25_123_456),
            (0, 1, 9_000_000_000),
            (1, 0, 9_000_000_000),
            (2, 3, 8_000_000_000),
            (3, 2, 8_000_000_000),
        ] {
            rows[to * 4 + from] = measured(speed);
        }
        let topology = measured_topology(&[0, 0, 1, 1], &rows).unwrap();
        let link =
            |from, to| topology.links().iter().find(|link| (link.from, link.to) == (from, to)).unwrap();
        assert_eq!((link(1, 3).bandwidth, link(1, 3).weight), (0.0125, 1.0));
        assert_eq!((link(3, 0).bandwidth, link(3, 0).weight), (0.02512, 2.0));
        assert_eq!((link(0, 1).bandwidth, link(0, 1).weight), (9.0, 720.0));
        assert_eq!(link(2, 3).latency, Some(12.3));
        rows[1] = MeasuredLink::default();
        assert!(
            measured_topology(&[0, 0, 1, 1], &rows)
                .unwrap_err()
                .to_string()
                .contains("from rank 1 to rank 0")
        );
    }

    #[test]
    fn noise_is_cut_off() {
        for (number, digits, expected) in
            [(1.0, 2, 1.0), (1.04, 2, 1.0), (1.06, 2, 1.1), (9.96, 2, 10.0), (123.0, 2, 120.0), (0.0, 3, 0.0)]
        {
            assert!((rounded(number, digits) - expected).abs() < 1e-9, "{number} with {digits}");
        }
    }
}
