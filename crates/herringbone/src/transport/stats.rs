//! Counts of operations, bytes and connections.

use crate::transport::endpoint::Endpoint;
use std::{collections::BTreeMap, time::Duration};

/// Counts since the communicator was formed; see [`Communicator::stats`](crate::Communicator::stats).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// Operations that were completed, by collective and algorithm.
    pub operations: BTreeMap<(&'static str, String), u64>,
    /// Operations that failed, and calls that did not become operations.
    pub failed: u64,
    /// Payload bytes exchanged with other workers through shared memory.
    pub workers_shm: Moved,
    /// Payload bytes exchanged with other workers over sockets.
    pub workers_tcp: Moved,
    /// Payload bytes exchanged with reducers (for a reducer: with workers), over sockets.
    pub reducers_tcp: Moved,
    /// Connections to other workers and to reducers that were made over sockets. One is made when an operation needs
    /// it. Every rank's connection with rank 0, which carries no data, is not counted.
    pub connections: u64,
    /// The largest number of operations that were under way at once.
    pub most_in_flight: u64,
    /// The most bytes of staging memory that operations had at once.
    pub most_staged: u64,
    /// How often plans have followed ports that became slow or fast; see `HERRINGBONE_REBALANCE`.
    pub rebalanced: u64,
    /// Time that callers spent waiting for operations, summed over threads. Each wait is taken by the kernel's last tick,
    /// up to 10 ms off; many are right on average.
    pub waiting: Duration,
    /// Time that operations were under way, summed over operations; by the kernel's last tick, too.
    pub in_flight: Duration,
}

/// Bytes in both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Bytes sent; a message for several ranks of one host's memory counts once for each.
    pub sent: u64,
    /// Bytes received.
    pub received: u64,
}

/// A number of bytes, for people: with two digits or more, in units of 1,000.
pub(crate) fn readable_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "kB", "MB", "GB", "TB", "PB"];
    let (mut amount, mut unit) = (bytes as f64, 0);
    while amount >= 999.5 && unit + 1 < UNITS.len() {
        (amount, unit) = (amount / 1000.0, unit + 1);
    }
    match unit > 0 && amount < 9.95 {
        true => format!("{amount:.1} {}", UNITS[unit]),
        false => format!("{amount:.0} {}", UNITS[unit]),
    }
}

impl Stats {
    fn with(&mut self, endpoint: &Endpoint) -> &mut Moved {
        match (endpoint.is_reducer(), endpoint.is_shared()) {
            (true, _) => &mut self.reducers_tcp,
            (false, true) => &mut self.workers_shm,
            (false, false) => &mut self.workers_tcp,
        }
    }

    pub(crate) fn sent(&mut self, to: &Endpoint, bytes: usize) {
        self.with(to).sent += bytes as u64;
    }

    pub(crate) fn received(&mut self, from: &Endpoint, bytes: usize) {
        self.with(from).received += bytes as u64;
    }

    /// All bytes in either direction.
    pub(crate) fn moved(&self) -> u64 {
        let ways = [self.workers_shm, self.workers_tcp, self.reducers_tcp];
        ways.iter().map(|way| way.sent + way.received).sum()
    }

    pub(crate) fn completed(&mut self, collective: &'static str, algorithm: &str, operations: u64) {
        if operations > 0 {
            *self.operations.entry((collective, algorithm.to_owned())).or_default() += operations;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::readable_bytes;

    #[test]
    fn bytes_are_readable() {
        let found = [0, 999, 1000, 9_949, 9_950, 24_000_000, 999_499_999, 1_300_000_000, u64::MAX]
            .map(readable_bytes);
        assert_eq!(
            found,
            ["0 B", "999 B", "1.0 kB", "9.9 kB", "10 kB", "24 MB", "999 MB", "1.3 GB", "18447 PB"]
        );
    }
}
