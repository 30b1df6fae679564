//! Ports are seen to become slow and fast again while a job runs, and plans change rarely: simulated hosts with noise, bursts of other
//! jobs, ranks that call late, and rates that flap.

#[path = "random/mod.rs"]
#[allow(dead_code, reason = "other tests use more of it")]
mod random;

use herringbone_core::topology::{HostFlow, INTERVALS, PortChange, PortSpeeds, PortWatch};
use random::Rng;

const HOSTS: u32 = 4;
/// Bytes/s of a port.
const RATE: f64 = 62.5e6;
/// Bytes of a buffer.
const BUFFER: f64 = 4e6;
const SEEDS: u64 = 50;

/// Hosts that all-reduce a buffer again and again, each pair directly.
struct Hosts {
    rng: Rng,
    watch: PortWatch,
    /// How much each host owns of the buffer.
    owned: [f64; HOSTS as usize],
    /// By how many percent flows may look slower than they are.
    noise: u64,
}

impl Hosts {
    fn new(seed: u64, noise: u64) -> Self {
        let owned = [1.0 / f64::from(HOSTS); HOSTS as usize];
        Self { rng: Rng(seed), watch: PortWatch::new(0..HOSTS), owned, noise }
    }

    /// What goes between the hosts while they all-reduce so many times with ports of these rates.
    fn flows(&mut self, rates: &[f64; HOSTS as usize], times: f64) -> Vec<HostFlow> {
        let pairs = (0..HOSTS).flat_map(|from| (0..HOSTS).map(move |to| (from, to)));
        let pairs: Vec<(u32, u32)> = pairs.filter(|(from, to)| from != to).collect();
        // A chunk goes to its owner, and its sum comes back from there.
        let bytes =
            |from: u32, to: u32| times * BUFFER * (self.owned[from as usize] + self.owned[to as usize]);
        let mut left = pairs;
        let mut flows = Vec::new();
        // The port that takes longest limits its flows, and takes a little of what the others have left.
        while let Some((host, busy)) = slowest(&left, rates, bytes) {
            let own = left.extract_if(.., |(from, to)| [*from, *to].contains(&host));
            flows.extend(own.map(|(from, to)| {
                let microseconds = (1e6 * busy) as u64;
                HostFlow { from, to, bytes: bytes(from, to) as u64, microseconds }
            }));
        }
        let noisy = |flow: HostFlow| {
            let more = flow.microseconds * self.rng.below(self.noise + 1) / 100;
            HostFlow { microseconds: flow.microseconds + more, ..flow }
        };
        flows.into_iter().map(noisy).collect()
    }

    fn interval(&mut self, rates: &[f64; HOSTS as usize]) -> Option<PortChange> {
        let flows = self.flows(rates, 4.0);
        let change = self.watch.interval(&flows)?;
        let filled = change.speeds.values().map(|speeds| if speeds.out < 1000 { 0.0 } else { 1.0 });
        let filled: Vec<f64> = filled.collect();
        let sum: f64 = filled.iter().sum::<f64>().max(1.0);
        self.owned = std::array::from_fn(|host| filled[host] / sum);
        Some(change)
    }

    /// In which of so many intervals plans change.
    fn changes(&mut self, intervals: u64, rates: impl Fn(u64) -> [f64; HOSTS as usize]) -> Vec<u64> {
        (0..intervals).filter(|at| self.interval(&rates(*at)).is_some()).collect()
    }

    fn slow(&self) -> Vec<u32> {
        let held = self.watch.held().iter();
        held.filter(|(_, speeds)| **speeds != PortSpeeds::WHOLE).map(|(host, _)| *host).collect()
    }
}

/// The host whose port takes longest for these flows, out or in, and how many seconds.
fn slowest(
    left: &[(u32, u32)],
    rates: &[f64; HOSTS as usize],
    bytes: impl Fn(u32, u32) -> f64,
) -> Option<(u32, f64)> {
    let busy = |host: u32| -> f64 {
        let own = left.iter().filter(|(from, _)| *from == host);
        own.map(|(from, to)| bytes(*from, *to)).sum::<f64>() / rates[host as usize]
    };
    let hosts = (0..HOSTS).map(|host| (host, busy(host)));
    hosts.max_by(|a, b| a.1.total_cmp(&b.1)).filter(|_| !left.is_empty())
}

fn with_slow(host: usize, parts: f64) -> [f64; HOSTS as usize] {
    let mut rates = [RATE; HOSTS as usize];
    rates[host] *= parts;
    rates
}

#[test]
fn a_slow_port_changes_plans_once_and_a_fast_one_once_more() {
    for seed in 0..SEEDS {
        let mut hosts = Hosts::new(seed, 40);
        assert_eq!(hosts.changes(50, |_| [RATE; HOSTS as usize]), [], "seed {seed}");
        let host = hosts.rng.below(HOSTS.into()) as usize;
        let changes = hosts.changes(50, |_| with_slow(host, 0.2));
        assert_eq!(changes, [INTERVALS as u64 - 1], "seed {seed}, host {host}: {:?}", hosts.watch.held());
        assert_eq!(hosts.slow(), [host as u32], "seed {seed}");
        let PortSpeeds { out, into } = hosts.watch.held()[&(host as u32)];
        assert!([out, into].iter().all(|speed| (80..=350).contains(speed)), "seed {seed}: {out} and {into}");
        let changes = hosts.changes(50, |_| [RATE; HOSTS as usize]);
        // It owns nothing, so nothing fills it: one direction may look fast a little later than the other.
        assert_eq!(changes[0], INTERVALS as u64 - 1, "seed {seed}");
        assert!(changes.len() <= 2, "seed {seed}: {changes:?}");
        assert_eq!(hosts.slow(), [], "seed {seed}");
    }
}

#[test]
fn several_slow_ports_are_found_at_once() {
    for seed in 0..SEEDS {
        let mut hosts = Hosts::new(seed, 30);
        let changes = hosts.changes(50, |_| [RATE, RATE / 5.0, RATE, RATE / 8.0]);
        // Once the fast ports own all of a buffer they are filled, and look faster than before.
        assert!(changes.len() <= 2 && hosts.slow() == [1, 3], "seed {seed}: {changes:?}, {:?}", hosts.slow());
    }
}

/// One or two slow intervals, whatever slows them, are no slow port.
#[test]
fn bursts_of_other_jobs_change_nothing() {
    for seed in 0..SEEDS {
        let (mut hosts, mut bursts) = (Hosts::new(seed, 40), Rng(seed));
        let mut at = 0;
        while at < 300 {
            let (host, length) =
                (bursts.below(HOSTS.into()) as usize, 1 + bursts.below(INTERVALS as u64 - 1));
            let rates = with_slow(host, 0.05 + bursts.below(50) as f64 / 100.0);
            let quiet = [RATE; HOSTS as usize];
            assert_eq!(hosts.changes(length, |_| rates), [], "seed {seed}, interval {at}");
            assert_eq!(hosts.changes(1, |_| quiet), [], "seed {seed}, interval {at}");
            at += length + 1;
        }
    }
}

/// Who calls late makes intervals long, and keeps no port busy.
#[test]
fn a_rank_that_calls_late_is_no_slow_port() {
    for seed in 0..SEEDS {
        let mut hosts = Hosts::new(seed, 40);
        for at in 0..100 {
            let times = 1.0 + hosts.rng.below(8) as f64;
            let flows = hosts.flows(&[RATE; HOSTS as usize], times);
            // It sends its own part in pieces with pauses between: that takes none of the time in which bytes are on their way.
            assert_eq!(hosts.watch.interval(&flows), None, "seed {seed}, interval {at}");
        }
    }
}

/// A rate that flaps within an interval looks like its mean; one that flaps from interval to interval changes nothing; one that flaps
/// more slowly changes plans ever more rarely.
#[test]
fn rates_that_flap_change_plans_rarely() {
    for seed in 0..SEEDS {
        let intervals = 2000;
        for period in [2, 4, 6, 8, 12, 20, 40] {
            let mut hosts = Hosts::new(seed, 40);
            let rates =
                |at: u64| if at % period < period / 2 { [RATE; HOSTS as usize] } else { with_slow(1, 0.2) };
            let changes = hosts.changes(intervals, rates);
            let limit = match period / 2 {
                lasts if lasts < INTERVALS as u64 => 0,
                lasts if lasts > 16 => intervals.div_ceil(lasts),
                _ => 8 + intervals / 64,
            } as usize;
            assert!(changes.len() <= limit, "seed {seed}, period {period}: {} changes", changes.len());
            let waits: Vec<u64> = changes.windows(2).map(|pair| pair[1] - pair[0]).collect();
            assert!(waits.iter().all(|wait| *wait >= 4), "seed {seed}, period {period}: {waits:?}");
        }
    }
}

/// Any numbers at all.
#[test]
fn noise_changes_plans_no_more_often_than_is_allowed() {
    for seed in 0..SEEDS {
        let (mut watch, mut rng) = (PortWatch::new(0..HOSTS), Rng(seed));
        let mut changes = 0;
        for _ in 0..1000 {
            let flows: Vec<HostFlow> = (0..rng.below(20))
                .map(|_| {
                    let [from, to] = [0, 0].map(|_: u32| rng.below(6) as u32);
                    let (bytes, microseconds) =
                        (rng.below(1 << (rng.0 % 40)), rng.below(1 << ((rng.0 >> 8) % 40)));
                    HostFlow { from, to, bytes, microseconds }
                })
                .collect();
            if let Some(change) = watch.interval(&flows) {
                changes += 1;
                assert_eq!(change.speeds.len(), HOSTS as usize);
                let speeds = change.speeds.values().flat_map(|port| [port.out, port.into]);
                assert!(speeds.into_iter().all(|speed| (1..=1000).contains(&speed)), "seed {seed}");
            }
        }
        assert!(changes <= 8 + 1000 / 64, "seed {seed}: {changes}");
    }
}
