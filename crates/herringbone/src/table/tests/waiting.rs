//! Pulls that wait at a server.

use super::{Server, ServerOptions, Servers, TableOptions, problem, run_shared, status_of, sync};
use crate::core::table::{TableError, TableSpec};
use std::{net::SocketAddr, sync::Arc};

#[test]
fn pulls_that_wait_take_up_memory_until_they_are_answered() {
    let tables = Some(TableOptions { memory_bytes: 240_000, ..TableOptions::default() });
    let options = ServerOptions { tables, ..ServerOptions::new(SocketAddr::from(([127, 0, 0, 1], 0))) };
    let server = Arc::new(Server::bind(options).unwrap());
    let servers =
        Servers { running: vec![run_shared(&server)], addresses: vec![server.address().to_string()] };
    let spec = TableSpec { sparse: true, ..sync(10_000, 1) };
    let tables = [0, 1].map(|rank| servers.worker(rank, 2).table("t", spec.clone()).unwrap());
    tables[0].push(&[7], &[1.0_f32], false).unwrap();
    let keys: Vec<u64> = (0..10_000).collect();
    let used = || status_of(&server).used;
    let pull = || {
        let mut rows = vec![0.0_f32; keys.len()];
        tables[0].pull(&keys, &mut rows).map(|()| rows[7])
    };
    // The connection remembers the list, which takes up memory, too.
    let before = used();
    std::thread::scope(|scope| {
        let waits = scope.spawn(pull);
        while used() < before + 150_000 {
            std::thread::yield_now();
        }
        let error = pull().unwrap_err();
        assert_eq!(problem(&error), TableError::Full { limit: 240_000 });
        tables[1].end_step().unwrap();
        assert_eq!(waits.join().unwrap().unwrap(), 1.0);
    });
    assert_eq!(pull().unwrap(), 1.0, "what was answered takes up nothing");
    assert!(used() < before + 81_000, "{before}, {}", used());
}
