//! Tables that servers do not have any more, and that are opened again.

use super::{RemoteTable, Servers, TableOptions, problem, sync};
use crate::core::table::{TableError, TableSpec};

#[test]
fn a_table_that_was_dropped_is_another_one_when_it_is_opened_again() {
    let servers = Servers::start(2);
    let (worker, other) = (servers.worker(0, 2), servers.worker(1, 2));
    let open = || (worker.table("t", sync(6, 1)).unwrap(), other.table("t", sync(6, 1)).unwrap());
    let (first, second) = open();
    first.push_range(0, &[1.0_f32; 6], false).unwrap();
    second.push_range(0, &[2.0_f32; 6], false).unwrap();
    worker.drop_table("t").unwrap();
    let error = second.push_range(0, &[2.0_f32; 6], false).unwrap_err();
    assert_eq!(problem(&error), TableError::Unknown);
    let (first, second) = open();
    assert_eq!((first.step(), second.step()), (0, 0));
    first.push_range(0, &[10.0_f32; 6], false).unwrap();
    second.push_range(0, &[20.0_f32; 6], false).unwrap();
    let mut rows = [0.0_f32; 6];
    first.pull_range(0, &mut rows).unwrap();
    assert_eq!(rows, [30.0; 6]);
}

fn first_row(table: &RemoteTable) -> f32 {
    let mut row = [0.0_f32];
    table.pull_range(0, &mut row).unwrap();
    row[0]
}

#[test]
fn the_next_job_waits_for_all_its_workers_though_they_had_left() {
    let servers = Servers::start(2);
    let first: Vec<f32> = servers.with_workers(2, &sync(6, 1), |_, table| {
        table.push_range(0, &[1.0_f32; 6], false).unwrap();
        first_row(table)
    });
    assert_eq!(first, [2.0; 2]);
    let (early, late) = (servers.worker(0, 2), servers.worker(1, 2));
    let early_table = early.table("t", sync(6, 1)).unwrap();
    (0..3).for_each(|_| early_table.push_range(0, &[10.0_f32; 6], false).unwrap());
    let late_table = late.table("t", sync(6, 1)).unwrap();
    assert_eq!(late_table.step(), 1, "it begins where the other one began");
    (0..3).for_each(|_| late_table.push_range(0, &[100.0_f32; 6], false).unwrap());
    assert_eq!((first_row(&early_table), first_row(&late_table)), (332.0, 332.0));
}

#[test]
fn servers_in_another_order_are_refused() {
    let servers = Servers::start(2);
    let table = servers.worker(0, 2).table("t", sync(6, 1)).unwrap();
    let mut addresses = servers.addresses.clone();
    addresses.reverse();
    let reversed = Servers { running: Vec::new(), addresses };
    let error = reversed.worker(1, 2).table("t", sync(6, 1)).unwrap_err();
    assert_eq!(problem(&error), TableError::Differs { what: "order of servers".to_owned() });
    let whole = servers.worker(1, 2).table("t", sync(6, 1)).unwrap();
    whole.push_range(0, &[1.0_f32; 6], false).unwrap();
    table.push_range(0, &[1.0_f32; 6], false).unwrap();
    assert_eq!(first_row(&whole), 2.0);
}

#[test]
fn a_table_that_has_lost_a_range_is_not_taken_for_a_whole_one() {
    let spec = TableSpec::new(6, 1);
    for lost in 0..2 {
        let mut servers = Servers::start(2);
        servers.worker(0, 1).table("t", spec.clone()).unwrap().push_range(0, &[1.0_f32; 6], false).unwrap();
        servers.start_anew(lost, &TableOptions::default());
        for _ in 0..2 {
            let error = servers.worker(0, 1).table("t", spec.clone()).unwrap_err();
            assert!(error.to_string().contains("has lost its rows"), "{error}");
        }
        let worker = servers.worker(0, 1);
        worker.drop_table("t").unwrap();
        let table = worker.table("t", spec.clone()).unwrap();
        table.push_range(0, &[3.0_f32; 6], false).unwrap();
        let mut rows = [0.0_f32; 6];
        table.pull_range(0, &mut rows).unwrap();
        assert_eq!(rows, [3.0; 6]);
    }
}

#[test]
fn workers_that_open_at_once_make_one_table() {
    for servers in [1, 3] {
        let servers = Servers::start(servers);
        for name in ["a", "b", "c", "d"] {
            let open = |rank| servers.worker(rank, 4).table(name, sync(30, 1)).unwrap();
            std::thread::scope(|scope| {
                let opened: Vec<_> = (0..4).map(|rank| scope.spawn(move || open(rank))).collect();
                for table in opened.into_iter().map(|opened| opened.join().unwrap()).collect::<Vec<_>>() {
                    table.push_range(0, &[1.0_f32; 30], false).unwrap();
                }
            });
        }
    }
}
