//! Tables that servers do not have any more, and that are opened again.

use super::{Servers, problem, sync};
use crate::core::table::TableError;

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
