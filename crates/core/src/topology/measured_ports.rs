//! Measured ports: the ranks that measure with each other, and the ports of their results.

use super::{Port, Ports, TopologyError, measured::members};
use alloc::{vec, vec::Vec};

/// The most hosts that measure with each other. Further hosts measure in blocks of their own at the same time, so the
/// time does not grow with their number.
pub const MOST_IN_BLOCK: usize = 16;

/// How often each turn is repeated. A disturbance of one of them does not disturb the others.
pub const TURN_REPEATS: usize = 2;

/// Of how many parts of a turn the first two do not count: they take what a token bucket has saved, and what TCP needs to begin.
const PARTS: u64 = 8;
const UNCOUNTED: u64 = 2;

/// Bytes that have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortArrival {
    /// Nanoseconds after the turn's beginning.
    pub at: u64,
    /// How many.
    pub bytes: u64,
}

/// The results of a rank that measured for its host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortFindings {
    /// Bytes/s from all others of its block at once.
    pub into: u64,
    /// Bytes/s from each host of its block, by place, in each of the turns in which that sent to all others at once.
    pub parts: [[u64; MOST_IN_BLOCK]; TURN_REPEATS],
    /// How long an empty message takes from or to the others, at most.
    pub nanoseconds: u64,
}

/// The first rank of each host, in blocks that measure at the same time: as equal in size as possible, of at most
/// [`MOST_IN_BLOCK`]. Neighbours are in different blocks, if there are several. Empty for one host.
pub fn measuring_blocks(hosts: &[u32]) -> Vec<Vec<u32>> {
    let leaders: Vec<u32> = members(hosts).values().map(|ranks| ranks[0]).collect();
    if leaders.len() < 2 {
        return vec![];
    }
    let blocks = leaders.len().div_ceil(MOST_IN_BLOCK);
    (0..blocks).map(|block| leaders.iter().copied().skip(block).step_by(blocks).collect()).collect()
}

/// The rates of the counted parts of a turn that took `length` nanoseconds, in bytes/s. A part lasts from the last
/// arrival before it to its own last one. Parts shorter than half of the nominal length are left out, so that a burst
/// after a pause, as on a busy machine, is never a rate by itself.
pub fn steady_rates(arrivals: &[PortArrival], length: u64) -> Vec<u64> {
    let part = (length / PARTS).max(1);
    let mut sorted = arrivals.to_vec();
    sorted.sort_by_key(|arrival| arrival.at);
    let mut rates = Vec::new();
    let mut from = sorted.partition_point(|arrival| arrival.at < UNCOUNTED * part);
    let mut began = if from > 0 { sorted[from - 1].at } else { 0 };
    for number in UNCOUNTED..PARTS {
        let to = sorted.partition_point(|arrival| arrival.at < (number + 1) * part);
        if to == from {
            continue;
        }
        let (end, bytes) = (sorted[to - 1].at, sorted[from..to].iter().map(|arrival| arrival.bytes));
        if end - began >= part / 2 {
            let rate = u128::from(bytes.sum::<u64>()) * 1_000_000_000 / u128::from(end - began);
            rates.push(u64::try_from(rate).unwrap_or(u64::MAX));
        }
        (from, began) = (to, end);
    }
    rates
}

/// The rate of the counted parts of a turn together, in bytes/s; 0 if nothing has arrived. The rates of flows that
/// share an uplink add up to its rate, even if one flow gets more at times.
pub fn mean_rate(arrivals: &[PortArrival], length: u64) -> u64 {
    let part = (length / PARTS).max(1);
    let (uncounted, counted): (Vec<PortArrival>, Vec<PortArrival>) = arrivals
        .iter()
        .filter(|arrival| arrival.at < length)
        .partition(|arrival| arrival.at < UNCOUNTED * part);
    let latest = |arrivals: &[PortArrival]| arrivals.iter().map(|arrival| arrival.at).max();
    let began = latest(&uncounted).unwrap_or(0);
    let bytes: u64 = counted.iter().map(|arrival| arrival.bytes).sum();
    let Some(time) = latest(&counted).map(|end| end - began).filter(|time| *time > 0) else { return 0 };
    u64::try_from(u128::from(bytes) * 1_000_000_000 / u128::from(time)).unwrap_or(u64::MAX)
}

/// The middle one of some rates, 0 of none: disturbances in half of the measurements hardly change it.
pub fn median_rate(mut rates: Vec<u64>) -> u64 {
    rates.sort_unstable();
    rates.get(rates.len() / 2).copied().unwrap_or(0)
}

/// The ports of ranks on these hosts, by the findings of the first rank of each host. `found` has an entry for each
/// rank; only the ranks in [`measuring_blocks`] are used.
///
/// # Errors
/// [`TopologyError::Whole`] if a port was not measured, or there are too many ranks.
pub fn measured_ports(hosts: &[u32], found: &[PortFindings]) -> Result<Option<Ports>, TopologyError> {
    let blocks = measuring_blocks(hosts);
    if blocks.is_empty() {
        return Ok(None);
    }
    let (mut of_ranks, mut nanoseconds) = (vec![Port::default(); hosts.len()], 0);
    let all = vec![PortFindings::default(); hosts.len()];
    let found = if found.len() == hosts.len() { found } else { &all };
    for block in &blocks {
        for (place, leader) in block.iter().enumerate() {
            let own = &found[*leader as usize];
            // Flows that share a port are not equally fast in each turn: only those of one turn add up to what it carries.
            let in_turn = |turn: usize| {
                let others = block.iter().filter(|other| *other != leader);
                others.map(|other| found[*other as usize].parts[turn][place]).fold(0u64, u64::saturating_add)
            };
            let out = (0..TURN_REPEATS).map(in_turn).max().unwrap_or(0);
            if own.into == 0 || out == 0 {
                let problem = alloc::format!("the port of rank {leader}'s host was not measured");
                return Err(TopologyError::whole(problem, "measure again"));
            }
            of_ranks[*leader as usize] = Port { out, into: own.into };
            nanoseconds = nanoseconds.max(own.nanoseconds);
        }
    }
    Ok(Some(Ports::new(of_ranks, nanoseconds)?.shared(hosts)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_host_is_in_one_block_with_others() {
        assert!(measuring_blocks(&[3, 3, 3]).is_empty());
        assert_eq!(measuring_blocks(&[0, 0, 1, 1, 2]), [[0, 2, 4]]);
        for hosts in 2..=100u32 {
            let blocks = measuring_blocks(&(0..hosts).collect::<Vec<_>>());
            let sizes: Vec<usize> = blocks.iter().map(Vec::len).collect();
            assert!(sizes.iter().all(|size| (2..=MOST_IN_BLOCK).contains(size)), "{sizes:?}");
            let mut all: Vec<u32> = blocks.concat();
            all.sort_unstable();
            assert_eq!(all, (0..hosts).collect::<Vec<_>>());
        }
        assert_eq!(measuring_blocks(&(0..17).collect::<Vec<_>>())[0], [0, 2, 4, 6, 8, 10, 12, 14, 16]);
    }

    /// A message of 100 bytes each microsecond is 100 MB/s.
    fn steady(length: u64) -> Vec<PortArrival> {
        (1..=length / 1000).map(|at| PortArrival { at: at * 1000, bytes: 100 }).collect()
    }

    #[test]
    fn a_steady_stream_has_its_rate_whatever_a_bucket_lets_through_first() {
        let mut arrivals = steady(800_000);
        assert_eq!(steady_rates(&arrivals, 800_000), [100_000_000; 6]);
        arrivals.insert(0, PortArrival { at: 10, bytes: 1 << 30 });
        assert_eq!(steady_rates(&arrivals, 800_000), [100_000_000; 6]);
        // Few messages: two in each part and a half.
        let few: Vec<PortArrival> =
            (1..=12).map(|at| PortArrival { at: at * 66_000, bytes: 6_600 }).collect();
        assert_eq!(median_rate(steady_rates(&few, 800_000)), 100_000_000);
        assert_eq!((median_rate(steady_rates(&[], 800_000)), median_rate(vec![5, 1])), (0, 5));
    }

    /// Two flows of a link that take turns have its rate together.
    #[test]
    fn flows_of_a_link_add_up_to_its_rate() {
        let turns =
            |odd: u64| steady(800_000).into_iter().filter(move |arrival| arrival.at / 20_000 % 2 == odd);
        let [one, other] = [0, 1].map(|odd| mean_rate(&turns(odd).collect::<Vec<_>>(), 800_000));
        assert!((95_000_000..=105_000_000).contains(&(one + other)), "{one} and {other}");
        assert_eq!((mean_rate(&steady(1_600_000), 800_000), mean_rate(&[], 800_000)), (100_000_000, 0));
    }

    /// A thread that sleeps finds all that came meanwhile at once.
    #[test]
    fn a_busy_machine_gives_no_rate_above_the_port() {
        for (from, to) in [(300_000, 420_000), (50_000, 390_000), (250_000, 299_000), (200_000, 700_000)] {
            let stalled: Vec<PortArrival> = steady(800_000)
                .into_iter()
                .map(|arrival| PortArrival {
                    at: if (from..to).contains(&arrival.at) { to } else { arrival.at },
                    ..arrival
                })
                .collect();
            let rate = median_rate(steady_rates(&stalled, 800_000));
            assert!((90_000_000..=110_000_000).contains(&rate), "{from} to {to}: {rate}");
            assert!(steady_rates(&stalled, 800_000).iter().all(|rate| *rate < 1_000_000_000));
        }
    }

    /// In one turn most of a port goes to one host, in the next to another one, as where a part of the way is crowded.
    #[test]
    fn flows_of_different_turns_do_not_add_up() {
        let mut found = vec![PortFindings { into: 9_000_000, ..PortFindings::default() }; 3];
        for (receiver, rates) in [(1, [7_000_000, 3_000_000]), (2, [3_000_000, 6_000_000])] {
            (0..TURN_REPEATS).for_each(|turn| found[receiver].parts[turn][0] = rates[turn]);
        }
        for (receiver, place) in [(0, 1), (0, 2)] {
            found[receiver].parts[0][place] = 9_000_000;
        }
        let ports = measured_ports(&[0, 1, 2], &found).unwrap().unwrap();
        assert_eq!(ports.port(0), Port { out: 10_000_000, into: 9_000_000 });
    }

    #[test]
    fn ports_are_what_all_others_found_together() {
        let hosts = [0, 0, 1, 2];
        let mut found = vec![PortFindings::default(); 4];
        let finding = |into, parts: [u64; 3], nanoseconds| {
            let mut all = PortFindings { into, nanoseconds, ..PortFindings::default() };
            all.parts[0][..3].copy_from_slice(&parts);
            all
        };
        found[0] = finding(9_000, [0, 2_000, 3_000], 40);
        found[2] = finding(8_000, [5_000, 0, 4_000], 70);
        found[3] = finding(7_000, [6_000, 1_000, 0], 60);
        let ports = measured_ports(&hosts, &found).unwrap().unwrap();
        let port = |out, into| Port { out, into };
        assert_eq!(
            [0, 1, 2, 3].map(|rank| ports.port(rank)),
            [port(11_000, 9_000), port(11_000, 9_000), port(3_000, 8_000), port(7_000, 7_000)]
        );
        assert_eq!(ports.nanoseconds(), 70);
        found[3] = PortFindings::default();
        let error = measured_ports(&hosts, &found).unwrap_err().to_string();
        assert_eq!(error, "the port of rank 3's host was not measured; measure again");
        assert_eq!(measured_ports(&[1, 1], &found[..2]), Ok(None));
    }
}
