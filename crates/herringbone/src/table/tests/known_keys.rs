//! Lists of keys that go once, and then by their numbers: the bytes that they take, and rows that are right all the same.

use super::{Server, ServerOptions, Servers, groups};
use crate::{
    Config, Rendezvous, Transport,
    core::table::TableSpec,
    table::{ParameterServer, RemoteTable, TableOptions},
};
use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Carries the connections of workers to a server, and counts what the workers send.
struct Relay {
    address: String,
    sent: Arc<AtomicU64>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Relay {
    fn to(server: String) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (sent, streams) = (Arc::<AtomicU64>::default(), Arc::<Mutex<Vec<TcpStream>>>::default());
        let relay = Self { address, sent: sent.clone(), streams: streams.clone() };
        std::thread::spawn(move || {
            while let Ok((worker, _)) = listener.accept() {
                let server = TcpStream::connect(&server).unwrap();
                [&worker, &server].iter().for_each(|stream| stream.set_nodelay(true).unwrap());
                let copies = [worker.try_clone().unwrap(), server.try_clone().unwrap()];
                streams.lock().unwrap().extend(copies);
                let (answers, answered) = (server.try_clone().unwrap(), worker.try_clone().unwrap());
                let sent = sent.clone();
                std::thread::spawn(move || carry(worker, server, &sent));
                std::thread::spawn(move || carry(answers, answered, &AtomicU64::new(0)));
            }
        });
        relay
    }

    fn cut(&self) {
        for stream in self.streams.lock().unwrap().drain(..) {
            // It may have ended by itself.
            let _ended = stream.shutdown(Shutdown::Both);
        }
    }

    /// How many bytes workers send meanwhile.
    fn counts(&self, work: impl FnOnce()) -> u64 {
        let before = self.sent.load(Ordering::SeqCst);
        work();
        self.sent.load(Ordering::SeqCst) - before
    }

    fn worker(&self) -> ParameterServer {
        let config = Config::new(0, 1, Rendezvous::Tcp(String::new())).timeout(Duration::from_secs(20));
        ParameterServer::connect(&config.transport(Transport::Tcp), std::slice::from_ref(&self.address))
            .unwrap()
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, count: &AtomicU64) {
    let mut room = vec![0; 1 << 16];
    while let Ok(length @ 1..) = from.read(&mut room) {
        count.fetch_add(length as u64, Ordering::SeqCst);
        if to.write_all(&room[..length]).is_err() {
            break;
        }
    }
    // The other end hears it, if it is there.
    let _ended = to.shutdown(Shutdown::Both);
}

/// A table of one element a row, and what its rows are to be.
struct Checked {
    table: Arc<RemoteTable>,
    rows: Vec<f32>,
}

impl Checked {
    fn new(worker: &ParameterServer, rows: usize) -> Self {
        let table = worker.table("t", TableSpec::new(rows as u64, 1)).unwrap();
        Self { table, rows: vec![0.0; rows] }
    }

    /// Adds a number to the rows of a list, and pulls them.
    fn push(&mut self, keys: &[u64], number: f32) {
        self.table.push(keys, &vec![number; keys.len()], false).unwrap();
        keys.iter().for_each(|key| self.rows[*key as usize] += number);
        let mut pulled = vec![0.0_f32; keys.len()];
        self.table.pull(keys, &mut pulled).unwrap();
        assert!(pulled.iter().zip(keys).all(|(row, key)| *row == self.rows[*key as usize]));
    }

    fn check_all(&self) {
        let mut pulled = vec![0.0_f32; self.rows.len()];
        self.table.pull_range(0, &mut pulled).unwrap();
        assert!(pulled == self.rows, "each push counts once, and changes its own rows");
    }
}

/// A list of keys below `rows`: no two numbers have the same.
fn list(number: u64, count: u64, rows: u64) -> Vec<u64> {
    let stride = rows / (count + 1);
    (0..count).map(|at| at * stride + number % stride).collect()
}

#[test]
fn the_second_push_of_a_list_sends_a_third_of_the_first() {
    let servers = Servers::start(1);
    let relay = Relay::to(servers.addresses[0].clone());
    let worker = relay.worker();
    let table = worker.table("t", TableSpec::new(1_000_000, 1)).unwrap();
    let (keys, mut rows) = (list(7, 1000, 1_000_000), vec![0.0_f32; 1000]);
    let push = || table.push(&keys, &[1.0_f32; 1000], false).unwrap();
    let (first, second) = (relay.counts(push), relay.counts(push));
    assert!((12_000..12_300).contains(&first) && (4000..4300).contains(&second), "{first} and {second}");
    let pull = relay.counts(|| table.pull(&keys, &mut rows).unwrap());
    assert!(pull < 300 && rows == [2.0; 1000], "{pull}");
    // Another table has the same numbers.
    let other = worker.table("other", TableSpec::new(1_000_000, 1)).unwrap();
    assert!(relay.counts(|| other.pull(&keys, &mut rows).unwrap()) < 300 && rows == [0.0; 1000]);
    // One key is another one.
    let mut others = keys.clone();
    others[500] += 1;
    assert!(relay.counts(|| table.pull(&others, &mut rows).unwrap()) > 8000);
    assert!(rows[500] == 0.0 && rows.iter().filter(|row| **row == 2.0).count() == 999);
}

#[test]
fn lists_that_others_have_taken_the_place_of_change_the_right_rows() {
    let servers = Servers::start(2);
    let mut table = Checked::new(&servers.worker(0, 1), 600_000);
    for round in 0..2 {
        (0..300).for_each(|number| table.push(&list(number, 140, 600_000), (number + 1) as f32));
        (0..14).for_each(|number| table.push(&list(number, 40_000, 600_000), (number + round) as f32));
    }
    table.check_all();
}

#[test]
fn a_connection_that_is_cut_begins_with_whole_lists() {
    // Its worker has ten seconds to come back.
    let tables = Some(TableOptions { memory_bytes: 1 << 30, ..TableOptions::default() });
    let options = ServerOptions { tables, ..ServerOptions::new(SocketAddr::from(([127, 0, 0, 1], 0))) };
    let server = Server::bind(options).unwrap();
    let relay = Relay::to(server.address().to_string());
    let _servers = Servers { addresses: Vec::new(), running: vec![super::run(server)] };
    let mut table = Checked::new(&relay.worker(), 10_000);
    std::thread::scope(|scope| {
        let cutting = scope.spawn(|| {
            for _ in 0..4 {
                std::thread::sleep(Duration::from_millis(120));
                relay.cut();
            }
        });
        let mut number = 0;
        while !cutting.is_finished() || number < 50 {
            table.push(&list(number % 7, 100, 10_000), 1.0);
            number += 1;
        }
    });
    table.check_all();
}

#[test]
fn lists_are_right_while_ranges_change_their_servers() {
    let mut servers = groups::start(3, 1, None);
    let mut table = Checked::new(&servers.worker(0, 1), 10_000);
    let push_for = |table: &mut Checked, time: Duration| {
        let began = Instant::now();
        (0..).take_while(|_| began.elapsed() < time).for_each(|number| {
            table.push(&list(number % 5, 300, 10_000), 1.0);
        });
    };
    push_for(&mut table, Duration::from_millis(50));
    let (stop, thread) = servers.running.remove(0);
    stop.stop();
    thread.into_iter().for_each(|thread| drop(thread.join()));
    push_for(&mut table, Duration::from_millis(200));
    // It comes back, and gets its ranges again.
    let again = Server::bind(groups::options(&servers.addresses, 0, 1, None)).unwrap();
    servers.running.push(super::run(again));
    push_for(&mut table, Duration::from_millis(1500));
    table.check_all();
}
