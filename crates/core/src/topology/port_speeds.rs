//! The speeds of hosts' ports, from the traffic of connections while a job runs.
//!
//! A connection reports two facts about an interval: how many bytes have reached its other end, and for how long any of
//! its bytes were on their way. Time in which a rank had nothing to send, or no room at its receiver, is not included.
//! So a rank that calls late looks no slower than another one. A flow is limited by the port of one of its two hosts,
//! and the flows of a slow port are all slow. So ports are treated like links that share bandwidth max-min fairly
//! (Bertsekas and Gallager, *Data Networks*, 6.5.2). The first is the port whose fastest flow is the slowest: it limits
//! its flows, and the sum of their rates is its rate. The rates of its flows are then subtracted at their other ends,
//! and the next port is examined without them. A port whose flows are all limited elsewhere is at least as fast as
//! their sum.
//!
//! A port with a flow to one host only shows nothing: either end can limit the flow.

use alloc::{collections::BTreeMap, vec::Vec};

/// The traffic from one host to another in an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostFlow {
    /// The sender's host, by any number.
    pub from: u32,
    /// The receiver's.
    pub to: u32,
    /// How many bytes have reached the other end.
    pub bytes: u64,
    /// For how many microseconds at least one was on its way.
    pub microseconds: u64,
}

/// The rate of a host's port each way; `None` if an interval shows nothing about a way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeenPort {
    /// From the host.
    pub out: Option<SeenRate>,
    /// To the host.
    pub into: Option<SeenRate>,
}

/// How fast one way of a port looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenRate {
    /// The rate of its flows together while they were busy, in bytes/s.
    pub bytes_per_second: u64,
    /// Whether other ports limit all of its flows: then it can be faster, however slow they are.
    pub is_bound: bool,
}

/// Flows of fewer bytes say nothing: they are answers and small calls.
const LEAST_BYTES: u64 = 64 << 10;

/// One way of a host's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Way {
    host: u32,
    into: bool,
}

/// All connections from one host to another: they share both ports, so they are busy at the same time.
#[derive(Clone, Copy, Debug)]
struct Pair {
    ends: [Way; 2],
    bytes: u64,
    microseconds: u64,
}

impl Pair {
    /// In bytes/s.
    fn rate(&self) -> u64 {
        rate(self.bytes, self.microseconds)
    }
}

fn rate(bytes: u64, microseconds: u64) -> u64 {
    let rate = u128::from(bytes) * 1_000_000 / u128::from(microseconds.max(1));
    u64::try_from(rate).unwrap_or(u64::MAX)
}

/// The ports of all hosts with traffic between them. Flows within a host show nothing about its port.
///
/// ```
/// use herringbone_core::topology::{HostFlow, seen_ports};
///
/// // Three hosts of 60 MB/s; what goes to and from host 2 takes five times as long.
/// let flow = |from, to| {
///     let microseconds = if from == 2 || to == 2 { 500_000 } else { 100_000 };
///     HostFlow { from, to, bytes: 3_000_000, microseconds }
/// };
/// let pairs = [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)];
/// let seen = seen_ports(&pairs.map(|(from, to)| flow(from, to)));
/// let rate = |host| seen[&host].out.map(|rate| rate.bytes_per_second);
/// assert_eq!([0, 2].map(rate), [Some(36_000_000), Some(12_000_000)]);
/// ```
pub fn seen_ports(flows: &[HostFlow]) -> BTreeMap<u32, SeenPort> {
    let mut left = pairs(flows);
    let mut ways: BTreeMap<Way, WayState> = BTreeMap::new();
    for way in left.iter().flat_map(|pair| pair.ends) {
        ways.entry(way).or_default().peers += 1;
    }
    ways.retain(|_, state| state.peers > 1);
    let mut seen: BTreeMap<u32, SeenPort> = BTreeMap::new();
    let mut note = |way: Way, rate: SeenRate| {
        let port = seen.entry(way.host).or_default();
        *(if way.into { &mut port.into } else { &mut port.out }) = Some(rate);
    };
    loop {
        let fastest = |way: &Way| left.iter().filter(|pair| pair.ends.contains(way)).map(Pair::rate).max();
        let slowest = ways.keys().filter_map(|way| Some((fastest(way)?, *way))).min();
        let Some(way) = slowest.map(|(_, way)| way) else { break };
        let own: Vec<Pair> = left.extract_if(.., |pair| pair.ends.contains(&way)).collect();
        if let Some(state) = ways.remove(&way) {
            let busy = own.iter().map(|pair| pair.microseconds).max().unwrap_or(0);
            let all = own.iter().chain(&state.limited);
            note(way, SeenRate { bytes_per_second: together(all, busy), is_bound: false });
        }
        for (pair, end) in own.iter().flat_map(|pair| pair.ends.map(|end| (pair, end))) {
            ways.get_mut(&end).into_iter().for_each(|state| state.limited.push(*pair));
        }
    }
    for (way, state) in ways {
        let busy = state.limited.iter().map(|pair| pair.microseconds).min().unwrap_or(0);
        note(way, SeenRate { bytes_per_second: together(state.limited.iter(), busy), is_bound: true });
    }
    seen
}

/// A way that has not been looked at yet.
#[derive(Debug, Default)]
struct WayState {
    /// How many hosts its flows go to, or come from.
    peers: usize,
    /// Its flows that are limited at their other ends.
    limited: Vec<Pair>,
}

/// What flows carry together, in bytes/s, in so many microseconds in which all of them are busy, or have been.
fn together<'a>(flows: impl Iterator<Item = &'a Pair>, busy: u64) -> u64 {
    let in_time = |pair: &Pair| {
        let whole = pair.microseconds.max(1);
        let bytes = u128::from(pair.bytes) * u128::from(busy.clamp(1, whole)) / u128::from(whole);
        u64::try_from(bytes).unwrap_or(u64::MAX)
    };
    rate(flows.map(in_time).fold(0, u64::saturating_add), busy)
}

/// The flows between hosts that say something, one for each two hosts.
fn pairs(flows: &[HostFlow]) -> Vec<Pair> {
    let mut pairs: BTreeMap<[Way; 2], Pair> = BTreeMap::new();
    for HostFlow { from, to, bytes, microseconds } in flows.iter().filter(|flow| flow.from != flow.to) {
        let ends = [Way { host: *from, into: false }, Way { host: *to, into: true }];
        let pair = pairs.entry(ends).or_insert(Pair { ends, bytes: 0, microseconds: 0 });
        pair.bytes = pair.bytes.saturating_add(*bytes);
        pair.microseconds = pair.microseconds.max(*microseconds);
    }
    pairs.into_values().filter(|pair| pair.bytes >= LEAST_BYTES).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In MB and milliseconds.
    fn flow(from: u32, to: u32, bytes: f64, milliseconds: u64) -> HostFlow {
        HostFlow { from, to, bytes: (bytes * 1e6) as u64, microseconds: milliseconds * 1000 }
    }

    fn megabits(rate: Option<SeenRate>) -> u64 {
        rate.unwrap().bytes_per_second * 8 / 1_000_000
    }

    /// Four hosts of 500 Mbit/s, the last one 100, in `radix(2,2)`: bytes and times as Linux 6.18 has counted them.
    #[test]
    fn one_slow_port_of_four_is_found_by_flows_as_they_were() {
        let flows = [
            flow(0, 1, 16.78, 552),
            flow(0, 2, 8.39, 364),
            flow(1, 0, 16.64, 476),
            flow(1, 3, 8.36, 1472),
            flow(2, 0, 8.39, 280),
            flow(2, 3, 16.78, 2104),
            flow(3, 1, 8.39, 1628),
            flow(3, 2, 16.74, 2132),
        ];
        let seen = seen_ports(&flows);
        assert_eq!([seen[&3].out, seen[&3].into].map(megabits), [94, 95]);
        for host in 0..3 {
            let found = [seen[&host].out, seen[&host].into].map(megabits);
            assert!(found.iter().all(|rate| (230..500).contains(rate)), "{host}: {found:?}");
        }
        let equal = [
            flow(0, 1, 16.78, 416),
            flow(0, 2, 8.39, 404),
            flow(1, 0, 16.43, 448),
            flow(1, 3, 8.39, 392),
            flow(2, 0, 8.39, 424),
            flow(2, 3, 16.62, 416),
            flow(3, 1, 8.39, 404),
            flow(3, 2, 16.47, 440),
        ];
        for (host, port) in seen_ports(&equal) {
            let found = [port.out, port.into].map(megabits);
            assert!(found.iter().all(|rate| (440..500).contains(rate)), "{host}: {found:?}");
        }
    }

    /// The ports are those of three hosts, and of one that only receives slowly.
    #[test]
    fn a_port_may_be_slow_in_one_direction() {
        let flows: Vec<HostFlow> = (0..4)
            .flat_map(|from| (0..4).map(move |to| (from, to)))
            .filter(|(from, to)| from != to)
            .map(|(from, to)| flow(from, to, 10.0, if to == 3 { 2000 } else { 400 }))
            .collect();
        let seen = seen_ports(&flows);
        assert_eq!(megabits(seen[&3].into), 120);
        assert_eq!(megabits(seen[&3].out), 600);
        assert!((0..3).all(|host| megabits(seen[&host].out) > 400 && megabits(seen[&host].into) > 400));
    }

    #[test]
    fn one_flow_says_nothing_of_its_ends() {
        assert!(seen_ports(&[]).is_empty());
        let ring = [flow(0, 1, 9.0, 100), flow(1, 2, 9.0, 900), flow(2, 0, 9.0, 100)];
        assert!(seen_ports(&ring).is_empty());
        let pair = [flow(0, 1, 9.0, 100), flow(1, 0, 9.0, 900)];
        assert!(seen_ports(&pair).is_empty());
        let inside = [flow(0, 0, 9.0, 100), flow(1, 1, 9.0, 900)];
        assert!(seen_ports(&inside).is_empty());
        let answers = [flow(0, 1, 0.01, 100), flow(0, 2, 0.01, 100), flow(1, 2, 9.0, 100)];
        assert!(seen_ports(&answers).is_empty());
    }

    #[test]
    fn connections_of_the_ranks_of_two_hosts_count_together() {
        let of = |ranks: u32| -> Vec<HostFlow> {
            let all =
                (0..3).flat_map(|from| (0..3).map(move |to| (from, to))).filter(|(from, to)| from != to);
            let each = all.flat_map(|pair| (0..ranks).map(move |_| pair));
            let slow = |from, to| from == 2 || to == 2;
            each.map(|(from, to)| {
                flow(from, to, 8.0 / f64::from(ranks), if slow(from, to) { 1000 } else { 100 })
            })
            .collect()
        };
        assert_eq!(seen_ports(&of(1)), seen_ports(&of(4)));
    }

    #[test]
    fn any_numbers_make_some_rate() {
        let worst = [0, 1, u64::MAX];
        for (bytes, microseconds) in worst.iter().flat_map(|bytes| worst.map(|time| (*bytes, time))) {
            let flow = |to| HostFlow { from: 0, to, bytes, microseconds };
            drop(seen_ports(&[flow(1), flow(2), flow(1)]));
        }
    }
}
