//! Servers that have copies of each other's ranges, as they run, and their workers.

use super::{Server, ServerOptions, Servers, TableOptions, sync};
use crate::{
    Config, Error, ErrorKind, Rendezvous,
    core::table::{TableError, TableSpec},
    table::{ParameterServer, TableGroup, snapshot::SnapshotSet},
};
use std::{
    net::TcpListener,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

/// Addresses that were free a moment ago.
pub(super) fn addresses(count: u32) -> Vec<String> {
    let bound: Vec<TcpListener> = (0..count).map(|_| TcpListener::bind(("127.0.0.1", 0)).unwrap()).collect();
    bound.iter().map(|listener| listener.local_addr().unwrap().to_string()).collect()
}

/// How a server of a group is run.
pub(super) fn options(servers: &[String], place: u32, replicas: u32, data: Option<PathBuf>) -> ServerOptions {
    let group = Some(TableGroup { servers: servers.to_vec(), place, replicas });
    let tables = TableOptions { memory_bytes: 1 << 30, group, data, ..TableOptions::default() };
    let listen = servers[place as usize].parse().unwrap();
    ServerOptions { tables: Some(tables), ..ServerOptions::new(listen) }
}

pub(super) fn start(count: u32, replicas: u32, data: Option<PathBuf>) -> Servers {
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
    for addresses in [&addresses, &reversed] {
        let error = connect(addresses);
        assert!(matches!(error.kind(), ErrorKind::Config { .. }), "{error}");
        assert!(error.to_string().contains("--servers"), "{error}");
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

/// Why a server cannot be started.
fn unstarted(options: ServerOptions) -> String {
    let error = Server::bind(options).expect_err("it cannot be started");
    assert!(matches!(error.kind(), ErrorKind::Config { .. }), "{error}");
    error.to_string()
}

#[test]
fn a_list_with_a_server_twice_and_a_directory_that_cannot_be_written_are_told_at_the_start() {
    let free = addresses(2);
    let twice = [free.clone(), free[..1].to_vec()].concat();
    assert!(unstarted(options(&twice, 1, 1, None)).contains("is named twice"));
    let found = TableGroup::at(free[0].parse().unwrap(), twice, 1).unwrap_err();
    assert!(found.to_string().contains("is named twice"), "{found}");
    let port = free[0].rsplit_once(':').unwrap().1;
    let by_names = [free[0].clone(), format!("localhost:{port}")];
    let found = TableGroup::at(free[0].parse().unwrap(), by_names.to_vec(), 1).unwrap_err().to_string();
    for problem in [unstarted(options(&by_names, 0, 1, None)), found] {
        assert!(problem.contains(&format!("{} and localhost:{port} are both", free[0])), "{problem}");
    }
    let unknown = [free[0].clone(), "nobody.invalid:7070".to_owned(), "nobody.invalid:7071".to_owned()];
    drop(Server::bind(options(&unknown, 0, 1, None)).unwrap());
    let mut without_memory = options(&free, 1, 1, None);
    without_memory.tables.as_mut().unwrap().memory_bytes = 0;
    assert!(unstarted(without_memory).contains("the limit for tables is 0 bytes: raise it"));
    let scratch = Scratch::new();
    let file = scratch.0.join("file");
    std::fs::write(&file, "").unwrap();
    assert!(unstarted(options(&free, 1, 1, Some(file))).contains("cannot be written"));
    drop(Server::bind(options(&free, 1, 1, Some(scratch.0.join("a/b")))).unwrap());
    assert_eq!(std::fs::read_dir(scratch.0.join("a/b")).unwrap().count(), 0);
}

#[test]
fn servers_whose_lists_or_copies_differ_are_told_what_differs() {
    let listed = addresses(3);
    let (mut other, mut turned) = (listed.clone(), listed.clone());
    other[2].clone_from(&addresses(1)[0]);
    turned.swap(1, 2);
    let refusal = |servers: &[String], place, replicas| {
        let calling = TableGroup { servers: servers.to_vec(), place, replicas };
        let server = super::run(Server::bind(options(&listed, 0, 1, None)).unwrap());
        let running = Servers { running: vec![server], addresses: listed.clone() };
        let refused =
            crate::table::service::call_as(&calling, &running.addresses[0]).unwrap_err().to_string();
        drop(running);
        refused
    };
    for (servers, place, replicas, problem) in [
        (&other, 1, 1, "names other servers"),
        (&turned, 1, 1, "in another order"),
        (&listed, 1, 2, "keeps 2 copies of each range, and this one 1"),
        (&listed[..2].to_vec(), 1, 1, "has 2 servers, and this one's has 3"),
        (&listed, 0, 1, "a --place of its own"),
    ] {
        let refused = refusal(servers, place, replicas);
        assert!(refused.contains(problem), "{refused}");
    }
}

#[test]
fn a_second_process_of_a_place_is_told_so_and_a_worker_finds_groups_that_differ() {
    let servers = start(2, 1, None);
    let table = servers.worker(0, 1).table("t", TableSpec::new(30, 1)).unwrap();
    table.push_range(0, &[1.0_f32; 30], false).unwrap();
    let second = TableGroup { servers: servers.addresses.clone(), place: 1, replicas: 1 };
    let refused = crate::table::service::call_as(&second, &servers.addresses[0]).unwrap_err().to_string();
    assert!(refused.contains("place 1 of --servers has another process"), "{refused}");
    // The last one is of a group whose other servers are elsewhere.
    let mut elsewhere = addresses(2);
    elsewhere[0].clone_from(&addresses(1)[0]);
    let _other = Servers {
        running: vec![super::run(Server::bind(options(&elsewhere, 1, 1, None)).unwrap())],
        addresses: elsewhere.clone(),
    };
    let config = Config::new(0, 1, Rendezvous::Tcp(String::new())).timeout(Duration::from_secs(20));
    let mixed = [servers.addresses[0].clone(), elsewhere[1].clone()];
    let error = ParameterServer::connect(&config, &mixed).unwrap_err();
    assert!(error.to_string().contains("different lists of servers"), "{error}");
}

#[test]
fn a_worker_neither_begins_nor_ends_with_a_wait_for_a_server_that_does_not_answer() {
    let listed = addresses(3);
    let running = (0..2).map(|place| super::run(Server::bind(options(&listed, place, 1, None)).unwrap()));
    let _servers = Servers { running: running.collect(), addresses: listed.clone() };
    // The kernel takes calls for it, as it does for a process that was stopped.
    let _mute = TcpListener::bind(&*listed[2]).unwrap();
    let config = Config::new(0, 1, Rendezvous::Tcp(String::new())).timeout(Duration::from_secs(3));
    let connected = ParameterServer::connect(&config, &listed).unwrap();
    // It is being called.
    std::thread::sleep(Duration::from_millis(300));
    let began = Instant::now();
    drop(connected);
    assert!(began.elapsed() < Duration::from_secs(3), "a handshake has five seconds");
}

/// An owner does not know how much memory its copies have, so these take what it has taken: else a push that a worker was told of
/// would be lost with the owner.
#[test]
fn a_copy_goes_beyond_its_memory_and_takes_nothing_more_of_its_own() {
    let (listed, limit) = (addresses(2), 20_000);
    let bound = (0..2).map(|place| {
        let mut options = options(&listed, place, 1, None);
        if place == 1 {
            options.tables.as_mut().unwrap().memory_bytes = limit;
        }
        Arc::new(Server::bind(options).unwrap())
    });
    let mut bound: Vec<Arc<Server>> = bound.collect();
    let running = bound.iter().map(super::run_shared).collect();
    let mut servers = Servers { running, addresses: listed };
    let worker = servers.worker(0, 1);
    let table = worker.table("t", TableSpec { sparse: true, ..TableSpec::new(2000, 16) }).unwrap();
    let ones = vec![1.0_f32; 1000 * 16];
    table.push_range(0, &ones, false).unwrap();
    let status = super::status_of(&bound[1]);
    assert!(status.used > status.limit && status.limit == limit, "{status:?}");
    let error = table.push(&[1999], &ones[..16], false).unwrap_err();
    assert_eq!(super::problem(&error), TableError::Full { limit });
    // The copy has all, and serves it.
    let (stop, thread) = servers.running.remove(0);
    stop.stop();
    thread.into_iter().for_each(|thread| drop(thread.join()));
    drop(bound.remove(0));
    let mut rows = vec![0.0_f32; ones.len()];
    table.pull_range(0, &mut rows).unwrap();
    assert_eq!(rows, ones);
    table.push(&[0], &ones[..16], false).unwrap();
    let error = table.push(&[1999], &ones[..16], false).unwrap_err();
    assert_eq!(super::problem(&error), TableError::Full { limit });
}
