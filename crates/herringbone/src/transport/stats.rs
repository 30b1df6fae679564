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
    /// Connections to other workers and to reducers that were made over sockets. One is made where an operation needs it;
    /// the one that every rank keeps with rank 0, on which no data goes, is not counted.
    pub connections: u64,
    /// The largest number of operations that were under way at once.
    pub most_in_flight: u64,
    /// The most bytes of staging memory that operations had at once.
    pub most_staged: u64,
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
