//! Calls that fail in the middle of a step, and what other calls find then.

use super::{
    Servers,
    full::{first_element, push_ones, sparse},
    problem, sync,
};
use crate::{
    Config, Error, ErrorKind, Rendezvous,
    config::Transport,
    core::table::{Consistency, TableError},
    table::ParameterServer,
};
use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

/// A way to a server on which what goes there can be held up.
struct Way {
    address: String,
    is_held: Arc<AtomicBool>,
}

impl Way {
    fn to(server: &str) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let is_held = Arc::new(AtomicBool::new(false));
        let (server, held) = (server.to_owned(), is_held.clone());
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let far = TcpStream::connect(&server).unwrap();
                let (back, home) = (far.try_clone().unwrap(), near.try_clone().unwrap());
                let held = held.clone();
                std::thread::spawn(move || forward(near, far, &held));
                std::thread::spawn(move || forward(back, home, &AtomicBool::new(false)));
            }
        });
        Self { address, is_held }
    }

    fn hold(&self, is_held: bool) {
        self.is_held.store(is_held, Ordering::SeqCst);
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, is_held: &AtomicBool) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        while is_held.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        if to.write_all(&bytes[..count]).is_err() {
            return;
        }
    }
}

/// A worker that gives up soon.
fn hasty(addresses: &[String]) -> ParameterServer {
    let config = Config::new(0, 1, Rendezvous::Tcp(String::new())).timeout(Duration::from_millis(700));
    ParameterServer::connect(&config.transport(Transport::Tcp), addresses).unwrap()
}

fn assert_late(result: Result<(), Error>) {
    let error = result.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Timeout { .. }), "{error}");
}

#[test]
fn a_push_that_is_refused_after_its_time_is_up_leaves_the_table_usable() {
    for consistency in [Consistency::Async, Consistency::Sync] {
        let servers = Servers::with_memory(1, 1 << 20);
        let way = Way::to(&servers.addresses[0]);
        let worker = hasty(std::slice::from_ref(&way.address));
        let table = worker.table("t", sparse(consistency)).unwrap();
        push_ones(&table, 0, 10, false).unwrap();
        let filler = worker.table("filler", sparse(consistency)).unwrap();
        let full = (0..).find_map(|at| push_ones(&filler, at * 500, 500, false).err()).unwrap();
        assert_eq!(problem(&full), TableError::Full { limit: 1 << 20 });
        way.hold(true);
        assert_late(push_ones(&table, 20_000, 2000, false));
        way.hold(false);
        worker.drop_table("filler").unwrap();
        push_ones(&table, 0, 10, false).unwrap();
        assert_eq!((first_element(&table, 0), first_element(&table, 20_000), table.step()), (2.0, 0.0, 2));
    }
}

#[test]
fn a_push_of_a_sync_table_that_has_failed_does_not_count() {
    let servers = Servers::start(2);
    let way = Way::to(&servers.addresses[1]);
    let table = hasty(&[servers.addresses[0].clone(), way.address.clone()]).table("t", sync(4, 1)).unwrap();
    table.push_range(0, &[1.0_f32; 4], true).unwrap();
    way.hold(true);
    assert_late(table.push_range(0, &[10.0_f32; 4], false));
    way.hold(false);
    table.push_range(0, &[100.0_f32; 4], false).unwrap();
    let mut rows = [0.0_f32; 4];
    table.pull_range(0, &mut rows).unwrap();
    assert_eq!((rows, table.step()), ([101.0; 4], 1));
}

#[test]
fn a_step_that_may_have_ended_ends_on_all_servers_before_a_pull() {
    let servers = Servers::start(2);
    let way = Way::to(&servers.addresses[1]);
    let table = hasty(&[servers.addresses[0].clone(), way.address.clone()]).table("t", sync(4, 1)).unwrap();
    table.push_range(0, &[1.0_f32; 4], true).unwrap();
    way.hold(true);
    assert_late(table.end_step());
    assert_eq!(table.step(), 0, "not all servers have taken it");
    assert_late(table.pull_range(0, &mut [0.0_f32; 4]));
    way.hold(false);
    let mut rows = [0.0_f32; 4];
    table.pull_range(0, &mut rows).unwrap();
    assert_eq!((rows, table.step()), ([1.0; 4], 1));
}

/// One thread is refused again and again, because its rows need more memory than the servers have.
#[test]
fn pushes_of_other_threads_count_whatever_becomes_of_one_that_is_refused() {
    for (count, consistency) in
        [(1, Consistency::Async), (1, Consistency::Sync), (2, Consistency::Async), (2, Consistency::Sync)]
    {
        let servers = Servers::with_memory(count, 1 << 20);
        let table = servers.worker(0, 1).table("t", sparse(consistency)).unwrap();
        let ((first, rows), counted, is_over) = ((14_900, 200), AtomicU32::new(1), AtomicBool::new(false));
        push_ones(&table, first, rows, false).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    let error = push_ones(&table, 15_100, 14_900, false).unwrap_err();
                    assert_eq!(problem(&error), TableError::Full { limit: 1 << 20 });
                }
            });
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    table.pull(&[first, 15_000], &mut [0.0_f32; 32]).unwrap();
                }
            });
            for at in 0..40 {
                match push_ones(&table, first, rows, at % 4 != 0) {
                    Ok(()) => drop(counted.fetch_add(1, Ordering::SeqCst)),
                    Err(error) => assert_eq!(problem(&error), TableError::Full { limit: 1 << 20 }),
                }
            }
            is_over.store(true, Ordering::SeqCst);
        });
        table.end_step().unwrap();
        let mut pulled = vec![0.0_f32; rows * 16];
        table.pull_range(first, &mut pulled).unwrap();
        let counted = counted.into_inner() as f32;
        assert!(pulled.iter().all(|value| *value == counted), "{counted} pushes, and {pulled:?}");
    }
}
