//! Workers whose connections are cut.

use super::client::{TurnedClient, pull};
use crate::{
    core::table::{KeyForm, TableAnswer},
    table::TableOptions,
};
use std::time::{Duration, Instant};

#[test]
fn a_worker_that_is_cut_off_twice_has_all_its_time_to_come_back_both_times() {
    let patience = Duration::from_millis(200);
    let options = TableOptions { memory_bytes: 1 << 30, patience: Some(patience), ..TableOptions::default() };
    let mut client = TurnedClient::start(&options);
    let table = client.open();
    let first = Instant::now();
    client.call_again();
    client.turn_until(|_| first.elapsed() > patience - Duration::from_millis(10));
    client.hang_up();
    let second = Instant::now();
    client.turn_until(|_| first.elapsed() > patience);
    client.call_again();
    let answer = client.ask(&pull(table, 0..3), KeyForm::Whole, &[]);
    assert!(answer == TableAnswer::Rows || second.elapsed() >= patience, "{answer:?}");
}
