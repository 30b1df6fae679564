//! Servers that have copies of each other's ranges, as they run, and their workers.

use super::{Servers, TableOptions, sync};
use crate::{
    Config, Error, ErrorKind, Rendezvous,
    core::table::TableSpec,
    server::{Server, ServerOptions},
    table::{ParameterServer, TableGroup, snapshot::SnapshotSet},
};
use std::{
    net::TcpListener,
    path::PathBuf,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    time::Duration,
};

/// Addresses that were free a moment ago.
fn addresses(count: u32) -> Vec<String> {
    let bound: Vec<TcpListener> = (0..count).map(|_| TcpListener::bind(("127.0.0.1", 0)).unwrap()).collect();
    bound.iter().map(|listener| listener.local_addr().unwrap().to_string()).collect()
}

/// How a server of a group is run.
fn options(servers: &[String], place: u32, replicas: u32, data: Option<PathBuf>) -> ServerOptions {
    let group = Some(TableGroup { servers: servers.to_vec(), place, replicas });
    let tables = TableOptions { memory_bytes: 1 << 30, group, data, ..TableOptions::default() };
    let listen = servers[place as usize].parse().unwrap();
    ServerOptions { tables: Some(tables), ..ServerOptions::new(listen) }
}

fn start(count: u32, replicas: u32, data: Option<PathBuf>) -> Servers {
    let addresses = addresses(count);
    let running = (0..count)
        .map(|place| super::run(Server::bind(options(&addresses, place, replicas, data.clone())).unwrap()))
        .collect();
    Servers { running, addresses }
}

/// A directory that is gone in the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("herringbone-groups-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

#[test]
fn all_ranges_of_a_snapshot_are_of_one_step_while_workers_push() {
    let scratch = Scratch::new();
    let servers = start(4, 0, Some(scratch.0.clone()));
    let table = servers.worker(0, 1).table("t", sync(40, 2)).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    table.push_range(0, &[1.0_f32; 80], false).unwrap();
                }
            });
        }
        for _ in 0..20 {
            let id = table.snapshot().inspect_err(|_| is_over.store(true, Ordering::SeqCst)).unwrap();
            let found = SnapshotSet::find(&scratch.0, "t").unwrap();
            let is_whole = found.refused.is_empty() && found.set.is_some_and(|set| set.id == id);
            is_over.fetch_or(!is_whole, Ordering::SeqCst);
            assert!(is_whole, "{:?}", found.refused);
        }
        is_over.store(true, Ordering::SeqCst);
    });
}

#[test]
fn servers_with_and_without_a_list_of_each_other_are_no_parameter_server() {
    let alone = Servers::start(1);
    let addresses = [alone.addresses.clone(), addresses(1)].concat();
    let with_list = super::run(Server::bind(options(&addresses, 1, 1, None)).unwrap());
    let _servers = Servers { running: vec![with_list], addresses: addresses.clone() };
    let connect = |addresses: &[String]| -> Error {
        let config = Config::new(0, 1, Rendezvous::Tcp(String::new())).timeout(Duration::from_secs(20));
        ParameterServer::connect(&config, addresses).unwrap_err()
    };
    let reversed: Vec<String> = addresses.iter().rev().cloned().collect();
    for (addresses, problem) in [(&addresses, "was started with --servers"), (&reversed, "place")] {
        let error = connect(addresses);
        assert!(matches!(error.kind(), ErrorKind::Config { .. }), "{error}");
        assert!(error.to_string().contains(problem), "{error}");
    }
}

#[test]
fn a_range_that_nobody_has_any_more_is_lost_before_the_time_is_up() {
    let mut servers = start(3, 0, None);
    let connected = servers.worker(0, 1).with_patience(Duration::from_millis(400));
    let table = connected.table("t", TableSpec::new(30, 1)).unwrap();
    table.push_range(0, &[1.0_f32; 30], false).unwrap();
    let (stop, thread) = servers.running.remove(0);
    stop.stop();
    thread.into_iter().for_each(|thread| drop(thread.join()));
    let error = table.push(&[0], &[1.0_f32], true).unwrap_err();
    let ErrorKind::TableServerLost { address, reason } = error.kind() else { panic!("{error}") };
    assert_eq!(*address, servers.addresses[0]);
    assert!(reason.contains("no copy of it is left"), "{reason}");
    let mut row = [0.0_f32];
    table.pull(&[29], &mut row).unwrap();
    assert_eq!(row, [1.0], "others go on");
}
