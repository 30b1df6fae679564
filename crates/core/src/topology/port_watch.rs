//! When plans are to take ports as they are seen: not for one slow call, and not again and again.
//!
//! A [`PortWatch`] is given the traffic between hosts in one interval after the other. It keeps the speeds that plans
//! use, and changes them only if a port is twice or half as fast in [`INTERVALS`] consecutive intervals. After a change
//! it waits. If changes follow each other soon, each wait is twice as long as the last one, as routers damp routes that
//! flap (RFC 2439). So a rate that flaps changes plans more and more rarely.

use super::port_speeds::{HostFlow, SeenPort, SeenRate, seen_ports};
use alloc::{
    collections::{BTreeMap, VecDeque},
    vec::Vec,
};

/// Speeds are in so many parts of the fastest port's.
const WHOLE: u16 = 1000;
/// A port that counts as fast as the fastest is slow below this speed, and a slow one is fast from the other one on. Both are far below
/// the whole, because a port that nothing fills looks slower than it is: one that owns nothing of a buffer, by half.
const SLOW_BELOW: u16 = 350;
const FAST_FROM: u16 = 450;
/// A speed is another one if it is at least so many times as much as plans use, or at most one part of as many.
const DIFFERS: u32 = 2;
/// A port must have another speed in this many consecutive intervals.
pub const INTERVALS: usize = 3;
/// So many intervals pass after a change before the next one, at the least and at the most.
const LEAST_WAIT: u32 = 4;
const MOST_WAIT: u32 = 64;
/// A change that comes within so many waits of the last one makes the wait twice as long.
const SOON: u32 = 4;

/// The speeds of a host's port, in thousandths of the fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortSpeeds {
    /// From the host.
    pub out: u16,
    /// To the host.
    pub into: u16,
}

impl PortSpeeds {
    /// As fast as the fastest.
    pub const WHOLE: Self = Self { out: WHOLE, into: WHOLE };
}

/// The ports of hosts that plans should use from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortChange {
    /// The rate of the fastest port, in bytes/s, as far as it was seen.
    pub fastest: u64,
    /// The speed of each host's port.
    pub speeds: BTreeMap<u32, PortSpeeds>,
}

/// One way of a host's port, as it was seen lately.
#[derive(Clone, Debug, Default)]
struct Recent {
    /// In the last intervals in which it was another speed than plans take it for, faster in each or slower in each.
    speeds: VecDeque<u16>,
}

/// Decides when plans take ports for faster or slower than before.
#[derive(Clone, Debug)]
pub struct PortWatch {
    held: BTreeMap<u32, PortSpeeds>,
    recent: BTreeMap<u32, [Recent; 2]>,
    /// How many intervals pass before the next change.
    wait: u32,
    /// How many were to pass after the last one.
    last_wait: u32,
    /// How many have passed since the last one.
    since: u32,
}

impl PortWatch {
    /// Watches these hosts, numbered as in [`HostFlow`]. Plans take their ports as equal.
    pub fn new(hosts: impl IntoIterator<Item = u32>) -> Self {
        let held = hosts.into_iter().map(|host| (host, PortSpeeds::WHOLE)).collect();
        Self { held, recent: BTreeMap::new(), wait: 0, last_wait: LEAST_WAIT, since: u32::MAX }
    }

    /// An interval has passed with this traffic between the hosts. Other hosts can be at one end of a flow: their
    /// traffic goes through the ports of these.
    pub fn interval(&mut self, flows: &[HostFlow]) -> Option<PortChange> {
        let seen = seen_ports(flows);
        let of_hosts = || self.held.keys().filter_map(|host| seen.get(host));
        let rates = of_hosts().flat_map(|port| [port.out, port.into]).flatten();
        let fastest = rates.map(|rate| rate.bytes_per_second).max()?;
        self.since = self.since.saturating_add(1);
        for (host, held) in &self.held {
            let SeenPort { out, into } = seen.get(host).copied().unwrap_or_default();
            let recent = self.recent.entry(*host).or_default();
            for ((recent, held), seen) in recent.iter_mut().zip([held.out, held.into]).zip([out, into]) {
                if let Some(SeenRate { bytes_per_second, is_bound }) = seen {
                    recent.add(held, speed(bytes_per_second, fastest), is_bound);
                }
            }
        }
        let is_due = |recent: &[Recent; 2]| recent.iter().any(|way| way.speeds.len() >= INTERVALS);
        self.wait = self.wait.saturating_sub(1);
        (self.wait == 0 && self.recent.values().any(is_due)).then(|| self.change(fastest))
    }

    /// The speeds that plans use.
    pub fn held(&self) -> &BTreeMap<u32, PortSpeeds> {
        &self.held
    }

    fn change(&mut self, fastest: u64) -> PortChange {
        for (host, [out, into]) in &mut self.recent {
            let Some(held) = self.held.get_mut(host) else { continue };
            for (recent, held) in [(out, &mut held.out), (into, &mut held.into)] {
                // The other direction of a port, and the other ports, follow a little later than the first.
                *held = recent.median().filter(|_| recent.speeds.len() + 1 >= INTERVALS).unwrap_or(*held);
                recent.speeds.clear();
            }
        }
        let is_soon = self.since <= SOON * self.last_wait;
        let wait = if is_soon { 2 * self.last_wait } else { self.last_wait / 2 };
        self.last_wait = wait.clamp(LEAST_WAIT, MOST_WAIT);
        (self.wait, self.since) = (self.last_wait, 0);
        PortChange { fastest, speeds: self.held.clone() }
    }
}

impl Recent {
    /// It was this speed, or at least this one if that `is_bound`, where plans take it for `held`.
    fn add(&mut self, held: u16, seen: u16, is_bound: bool) {
        let fast_from = if held == WHOLE { SLOW_BELOW } else { FAST_FROM };
        let seen = if seen >= fast_from { WHOLE } else { seen };
        let is_slower = is_another(seen, held);
        let is_faster = is_another(held, seen);
        if is_bound && is_slower {
            return;
        }
        // An interval in which the speed changes is neither what was before nor what comes.
        let goes_on =
            self.speeds.back().is_none_or(|last| !is_another(*last, seen) && !is_another(seen, *last));
        if !goes_on || !(is_faster || is_slower) {
            self.speeds.clear();
        }
        if is_faster || is_slower {
            self.speeds.push_back(seen);
            if self.speeds.len() > INTERVALS {
                self.speeds.pop_front();
            }
        }
    }

    fn median(&self) -> Option<u16> {
        let mut speeds: Vec<u16> = self.speeds.iter().copied().collect();
        speeds.sort_unstable();
        speeds.get(speeds.len() / 2).copied()
    }
}

/// Whether a speed is so much below a higher one that it is another one.
fn is_another(speed: u16, higher: u16) -> bool {
    DIFFERS * u32::from(speed) <= u32::from(higher)
}

/// In parts of the fastest.
fn speed(rate: u64, fastest: u64) -> u16 {
    let fastest = u128::from(fastest.max(1));
    let parts = (u128::from(WHOLE) * u128::from(rate) + fastest / 2) / fastest;
    parts.clamp(1, WHOLE.into()) as u16
}
