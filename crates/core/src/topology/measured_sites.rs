//! Measured uplinks: who sends to whom while a site receives or sends, and the sites of what they found.

use super::{Port, Sites, TopologyError, measured::members};
use alloc::{format, vec, vec::Vec};

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

/// The sites of ranks, from what each rank has received in each turn of [`site_flows`], in bytes/s. If these came several times, one time after
/// the other, that counts in which most came: what disturbs a turn makes an uplink slower, not faster.
///
/// # Errors
/// [`TopologyError::Whole`] where nothing has come through an uplink, or the sites are none.
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
    use super::*;
    use alloc::string::ToString;

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
}
