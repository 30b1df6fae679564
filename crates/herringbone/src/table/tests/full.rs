//! Servers that are full, or hold more than they should.

use super::{Server, ServerOptions, Servers, groups, problem, sync};
use crate::{
    Error,
    core::table::{Consistency, TableError, TableSpec},
    table::{RemoteTable, TableOptions},
};

const LIMIT: u64 = 1 << 20;

/// Servers with one copy of each range, and this much memory for tables.
fn start(count: u32) -> Servers {
    let addresses = groups::addresses(count);
    let run = |place| {
        let options = groups::options(&addresses, place, 1, None);
        let tables = options.tables.clone().map(|tables| TableOptions { memory_bytes: LIMIT, ..tables });
        super::run(Server::bind(ServerOptions { tables, ..options }).unwrap())
    };
    Servers { running: (0..count).map(run).collect(), addresses: addresses.clone() }
}

pub(super) fn sparse(consistency: Consistency) -> TableSpec {
    TableSpec { sparse: true, consistency, ..TableSpec::new(30_000, 16) }
}

pub(super) fn push_ones(table: &RemoteTable, first: u64, rows: usize, more: bool) -> Result<(), Error> {
    table.push_range(first, &vec![1.0_f32; rows * 16], more)
}

pub(super) fn first_element(table: &RemoteTable, key: u64) -> f32 {
    let mut row = [0.0_f32; 16];
    table.pull(&[key], &mut row).unwrap();
    row[0]
}

/// A server that has copies of other ranges holds more than its limit.
#[test]
fn what_needs_no_memory_is_not_refused_by_a_server_that_is_above_its_limit() {
    for consistency in [Consistency::Async, Consistency::Sync] {
        let servers = start(3);
        let worker = servers.worker(0, 1);
        let table = worker.table("t", sparse(consistency)).unwrap();
        let parts = (0..7000).chain(20_000..26_000).step_by(1000);
        parts.for_each(|first| push_ones(&table, first, 1000, false).unwrap());
        let error = push_ones(&table, 5, 7001, false).unwrap_err();
        assert_eq!(problem(&error), TableError::Full { limit: LIMIT }, "the server of range 0 is full");
        // The end of the step goes to the server that is full, too.
        push_ones(&table, 10_000, 10, false).unwrap();
        let ended = table.step();
        table.end_step().unwrap();
        assert_eq!(table.step(), ended + 1);
        assert_eq!(first_element(&table, 10_000), 1.0);
        if consistency == Consistency::Async {
            push_ones(&table, 0, 1, false).unwrap();
            assert_eq!(first_element(&table, 0), 2.0, "a row that is there needs no memory");
        }
        assert!(worker.table("other", sync(3, 1)).is_err(), "a table of dense rows needs memory");
        worker.table("rows", sparse(consistency)).unwrap();
    }
}
