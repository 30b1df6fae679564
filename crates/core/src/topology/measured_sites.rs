//! Measured sites: the hosts that form some, the flows that measure an uplink, and its rate.

use super::{LinkMatrix, MOST_SITES, Port, Ports, Sites, TopologyError, measured::members};
use alloc::{format, vec, vec::Vec};

/// The site of each rank, by measurement. Two hosts are in one site if the link between them carries at least half of
/// the rate of the ports at its ends, both ways. `hosts` has a number for each rank's host. `None` unless that makes
/// several sites, at least one with several hosts. If hosts A and B, and B and C, are near each other, A and C have to
/// be, too.
///
/// Rates that are off by a fifth change nothing if links between sites carry at most 0.3 of a port.
pub fn found_sites(ports: &Ports, links: &LinkMatrix, hosts: &[u32]) -> Option<Vec<u8>> {
    if [ports.size(), links.size()] != [hosts.len(); 2] {
        return None;
    }
    let first = |host: u32| hosts.iter().position(|other| *other == host).expect("a host has a rank");
    let mut leaders: Vec<usize> = hosts.iter().map(|host| first(*host)).collect();
    leaders.sort_unstable();
    leaders.dedup();
    let carries = |from: usize, to: usize| {
        let rate = (links.speed(from, to) * 1e9) as u64;
        rate.saturating_mul(2) >= ports.limit(from, to)
    };
    let near = |one: usize, other: usize| one == other || carries(one, other) && carries(other, one);
    // The site of each leader is that of the first one that is near it.
    let place = |leader: usize| leaders.iter().position(|other| near(*other, leader)).unwrap_or(0);
    let of_leaders: Vec<usize> = leaders.iter().map(|leader| place(*leader)).collect();
    let pairs = (0..leaders.len()).flat_map(|one| (0..one).map(move |other| (one, other)));
    let is_site = |(one, other): (usize, usize)| {
        near(leaders[one], leaders[other]) == (of_leaders[one] == of_leaders[other])
    };
    let mut firsts = of_leaders.clone();
    firsts.sort_unstable();
    firsts.dedup();
    let is_level = (2..=MOST_SITES).contains(&firsts.len()) && firsts.len() < leaders.len();
    if !is_level || !pairs.into_iter().all(is_site) {
        return None;
    }
    let number = |host: &u32| {
        let leader = leaders.binary_search(&first(*host)).ok()?;
        firsts.binary_search(&of_leaders[leader]).ok().map(|site| site as u8)
    };
    hosts.iter().map(number).collect()
}

/// A flow of messages while a site's uplink is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SiteFlow {
    /// The rank that sends.
    pub sender: u32,
    /// The rank that receives, in another site.
    pub receiver: u32,
}

/// The flows of each turn: of site 0 inwards, of site 1 inwards, and so on, then of each outwards, if there are more than two sites. The
/// first rank of each host stands for its host, and each of them has a flow. `hosts` and `of_ranks` have the numbers of each rank's host and site.
pub fn site_flows(of_ranks: &[u8], hosts: &[u32]) -> Vec<Vec<SiteFlow>> {
    let leaders: Vec<u32> = members(hosts).values().map(|ranks| ranks[0]).collect();
    let count = of_ranks.iter().max().map_or(0, |most| *most + 1);
    let turn = |site: u8, is_into: bool| {
        let (own, others): (Vec<u32>, Vec<u32>) =
            leaders.iter().partition(|leader| of_ranks[**leader as usize] == site);
        let flows = if own.is_empty() || others.is_empty() { 0 } else { own.len().max(others.len()) };
        let flow = |at: usize| {
            let (own, other) = (own[at % own.len()], others[at % others.len()]);
            match is_into {
                true => SiteFlow { sender: other, receiver: own },
                false => SiteFlow { sender: own, receiver: other },
            }
        };
        (0..flows).map(flow).collect::<Vec<SiteFlow>>()
    };
    // Of two sites the uplink of one carries out what that of the other carries in.
    let ways: &[bool] = if count == 2 { &[true] } else { &[true, false] };
    ways.iter().flat_map(|is_into| (0..count).map(|site| turn(site, *is_into))).collect()
}

/// The sites of ranks, from the data that each rank has received in each turn of [`site_flows`], in bytes/s. If several
/// measurements are given, one after the other, the largest value is used: a disturbance in a turn makes an uplink
/// slower, not faster.
///
/// # Errors
/// [`TopologyError::Whole`] if nothing has come through an uplink, or the sites are invalid.
pub fn measured_sites(of_ranks: Vec<u8>, found: &[&[u64]]) -> Result<Sites, TopologyError> {
    let count = of_ranks.iter().max().map_or(0, |most| usize::from(*most) + 1);
    let turns = if count == 2 { 2 } else { 2 * count };
    let all = found.iter().map(|row| row.len()).max().unwrap_or(0);
    let total = |turn: usize| -> u64 {
        let at_once = |turn: usize| {
            let rates = found.iter().map(|row| row.get(turn).copied().unwrap_or(0));
            rates.fold(0, u64::saturating_add)
        };
        (turn..all).step_by(turns.max(1)).map(at_once).max().unwrap_or(0)
    };
    let mut uplinks = vec![Port::default(); count];
    for (site, uplink) in uplinks.iter_mut().enumerate() {
        let out = if count == 2 { 1 - site } else { count + site };
        *uplink = Port { out: total(out), into: total(site) };
        if uplink.out == 0 || uplink.into == 0 {
            let rank = of_ranks.iter().position(|own| usize::from(*own) == site).unwrap_or(0);
            let problem = format!("the uplink of rank {rank}'s site was not measured");
            return Err(TopologyError::whole(problem, "measure again"));
        }
    }
    Sites::new(of_ranks, uplinks)
}

#[cfg(test)]
mod tests {
    use super::super::random::SplitMix;
    use super::*;
    use alloc::string::ToString;

    fn uplink(out: u64, into: u64) -> Port {
        Port { out, into }
    }

    #[test]
    fn all_hosts_of_a_site_measure_at_once() {
        let flow = |sender, receiver| SiteFlow { sender, receiver };
        let two = site_flows(&[0, 0, 0, 1, 1, 1], &[0, 0, 1, 2, 3, 4]);
        assert_eq!(two, [vec![flow(3, 0), flow(4, 2), flow(5, 0)], vec![flow(0, 3), flow(2, 4), flow(0, 5)]]);
        let of_ranks = [0, 0, 1, 1, 1, 2];
        let three = site_flows(&of_ranks, &[0, 1, 2, 3, 4, 5]);
        assert_eq!(three.len(), 6);
        for (turn, flows) in three.iter().enumerate() {
            let (site, is_into) = ((turn % 3) as u8, turn < 3);
            for SiteFlow { sender, receiver } in flows {
                let [from, to] = [sender, receiver].map(|rank| of_ranks[*rank as usize]);
                assert!(from != to && if is_into { to == site } else { from == site }, "{flows:?}");
            }
            let busy = |rank: &u32| flows.iter().any(|flow| flow.sender == *rank || flow.receiver == *rank);
            assert!((0..6).all(|rank| busy(&rank)), "{flows:?}");
        }
    }

    #[test]
    fn uplinks_are_what_all_receivers_found_together() {
        let of_ranks = vec![0, 0, 1, 1];
        let found: [&[u64]; 4] = [&[3_000, 0], &[4_000, 0], &[0, 1_000], &[0, 1_000]];
        let sites = measured_sites(of_ranks.clone(), &found).unwrap();
        assert_eq!(sites.uplinks(), [Port { out: 2_000, into: 7_000 }, Port { out: 7_000, into: 2_000 }]);
        let twice: [&[u64]; 4] =
            [&[3_000, 0, 9_000, 0], &[4_000, 0, 1_000, 0], &[0, 1_000, 0, 0], &[0, 1_000, 0, 0]];
        let sites = measured_sites(of_ranks.clone(), &twice).unwrap();
        assert_eq!(sites.uplinks()[0], Port { out: 2_000, into: 10_000 });
        let nothing: [&[u64]; 4] = [&[0, 0]; 4];
        let error = measured_sites(of_ranks, &nothing).unwrap_err().to_string();
        assert!(error.contains("the uplink of rank 0's site was not measured"), "{error}");
        let three: [&[u64]; 3] =
            [&[1_000, 0, 0, 0, 2_000, 0], &[0, 3_000, 0, 4_000, 0, 0], &[0, 0, 5_000, 0, 0, 6_000]];
        let sites = measured_sites(vec![0, 1, 2], &three).unwrap();
        assert_eq!(sites.uplinks()[1], Port { out: 2_000, into: 3_000 });
    }

    /// Rates as they would be measured of hosts in these sites, each off by up to a fifth: `part` of a port between sites.
    fn measured(sites: &[u8], hosts: &[u32], part: f64, seed: u64) -> (Ports, LinkMatrix) {
        let mut chance = SplitMix::new(seed);
        let mut noisy = |rate: f64| rate * (0.8 + 0.4 * chance.below(1001) as f64 / 1000.0);
        let rates: Vec<f64> =
            (0..=*hosts.iter().max().unwrap()).map(|host| 0.05 * f64::from(host % 3 + 1)).collect();
        let host = |rank: usize| hosts[rank] as usize;
        let ports: Vec<Port> = (0..hosts.len())
            .map(|rank| Port::of_gigabytes(noisy(rates[host(rank)]), noisy(rates[host(rank)])))
            .collect();
        let mut link = |from: usize, to: usize| match (host(from) == host(to), sites[from] == sites[to]) {
            (true, _) => 5.0,
            (false, near) => {
                let port = rates[host(from)].min(rates[host(to)]);
                noisy(if near { port } else { part * 0.05 })
            }
        };
        let rows: Vec<Vec<f32>> =
            (0..hosts.len()).map(|from| (0..hosts.len()).map(|to| link(from, to) as f32).collect()).collect();
        (Ports::new(ports, 0).unwrap().shared(hosts), LinkMatrix::of_weights(&rows).unwrap())
    }

    #[test]
    fn sites_are_found_in_what_was_measured_whatever_the_noise() {
        let shapes: [(&[u8], &[u32]); 6] = [
            (&[0, 0, 0, 1, 1, 1], &[0, 1, 2, 3, 4, 5]),
            (&[0, 1, 0, 1, 0, 1], &[0, 1, 2, 3, 4, 5]),
            (&[0, 0, 0, 0, 1, 1, 1, 1], &[0, 0, 1, 1, 2, 2, 3, 3]),
            (&[0, 0, 1, 1, 2, 2, 2], &[0, 1, 2, 3, 4, 5, 6]),
            (&[0, 0, 0, 1], &[0, 1, 2, 3]),
            (&[0, 0, 0, 0, 0, 1, 1, 2, 2, 2, 2], &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        ];
        for (sites, hosts) in shapes {
            for seed in 0..200 {
                let part = 0.3 / (1 + seed % 7) as f64;
                let (ports, links) = measured(sites, hosts, part, seed);
                assert_eq!(found_sites(&ports, &links, hosts).as_deref(), Some(sites), "{seed}");
                // One switch: no sites.
                let (ports, links) = measured(&vec![0; hosts.len()], hosts, 1.0, seed);
                assert_eq!(found_sites(&ports, &links, hosts), None, "{seed}");
            }
        }
    }

    #[test]
    fn what_is_no_level_makes_no_sites() {
        let hosts = [0, 1, 2];
        // Each host far from each other, and a host that is near two that are far from each other.
        let far = LinkMatrix::uniform(3, 0.1);
        let ports = Ports::uniform(3, uplink(1_000_000_000, 1_000_000_000));
        assert_eq!(found_sites(&ports, &far, &hosts), None);
        let row = |from: usize| (0..3).map(|to| if from + to == 2 { 0.1 } else { 1.0 }).collect::<Vec<f32>>();
        let chain = LinkMatrix::of_weights(&[row(0), row(1), row(2)]).unwrap();
        assert_eq!(found_sites(&ports, &chain, &hosts), None);
        assert_eq!(found_sites(&ports, &far, &[0, 1]), None);
    }
}
