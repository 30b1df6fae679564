//! Strangers at every port: they are dropped, and the job goes on.

use crate::world::{Over, Reducer, TOKEN, Watchdog, check_sums, each, rendezvous_address, through};
use herringbone::{Communicator, Config, Rendezvous};
use std::{
    collections::BTreeSet,
    fs,
    io::Write,
    net::{SocketAddr, TcpStream},
    sync::Mutex,
    time::{Duration, Instant},
};

/// Strangers that say nothing.
const IDLE: usize = 200;
/// How long a stranger waits at a port whose queue is full, which it is until the world has formed.
const CALL: Duration = Duration::from_millis(10);

/// Strangers that begin a greeting and do not end it.
const HALVES: usize = 300;
/// How long a rank's coming and its first operations may take. They take milliseconds, and who is kept out waits for a handshake's
/// limit of five seconds; what lies between is margin for a busy machine.
const PROMPT: Duration = Duration::from_secs(4);

/// What strangers say: other protocols, noise, and headers that promise more than there can be.
fn greetings() -> Vec<Vec<u8>> {
    let noise = (0..4096u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let client_hello = [&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3][..], &[0x5a; 506]].concat();
    let mut too_long = b"\xa8HRB".to_vec();
    too_long.extend([0xff; 60]);
    vec![
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
        b"SSH-2.0-OpenSSH_9.9\r\n".to_vec(),
        client_hello,
        noise,
        vec![0; 65_536],
        vec![0xff; 65_536],
        too_long,
        vec![0xa8],
    ]
}

/// Comes with everything at once; returns the connections, open.
fn besiege(address: SocketAddr) -> Vec<TcpStream> {
    let call = || TcpStream::connect_timeout(&address, CALL).ok();
    let mut open = Vec::new();
    for greeting in greetings() {
        let Some(mut stream) = call() else { continue };
        // The other side hangs up in the middle.
        let _cut = stream.write_all(&greeting);
        open.push(stream);
    }
    open.extend((0..IDLE).filter_map(|_| call()));
    for _ in 0..HALVES {
        let Some(mut stream) = call() else { break };
        let _cut = stream.write_all(b"\xa8HRB\x01\0");
        open.push(stream);
    }
    open
}

/// The ports at which this process listens.
fn own_ports() -> BTreeSet<SocketAddr> {
    let descriptors = fs::read_dir("/proc/self/fd").unwrap();
    let sockets: BTreeSet<String> = descriptors
        .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
        .filter_map(|target| Some(target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    let table = fs::read_to_string("/proc/self/net/tcp").unwrap();
    let listening = |line: &str| -> Option<SocketAddr> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (host, port) = fields.get(1)?.split_once(':')?;
        let host = u32::from_str_radix(host, 16).ok()?.swap_bytes();
        let is_own = *fields.get(3)? == "0A" && sockets.contains(*fields.get(9)?);
        is_own.then_some((host.to_be_bytes(), u16::from_str_radix(port, 16).ok()?).into())
    };
    table.lines().filter_map(listening).collect()
}

/// A world under siege, from before it forms; a process of its own, so that all ports in it are the world's.
pub(crate) fn siege() {
    let _watchdog = Watchdog::over("a world under siege");
    for over in Over::ALL {
        let reducer = (over == Over::Reducer).then(Reducer::start);
        let (meet, strangers) = (rendezvous_address(), Mutex::new(Vec::new()));
        let began = Instant::now();
        each(3, |rank| {
            let mut config = Config::new(rank, 3, Rendezvous::Tcp(meet.clone()));
            config = over.set(config).timeout(Duration::from_secs(30)).token(TOKEN);
            if let Some(reducer) = &reducer {
                config = through(config, &reducer.address);
            }
            if rank == 2 {
                // Rank 0 waits for this one and hears strangers meanwhile.
                std::thread::sleep(Duration::from_millis(300));
                own_ports().into_iter().for_each(|port| strangers.lock().unwrap().extend(besiege(port)));
            }
            let called = Instant::now();
            let comm = Communicator::connect(config).unwrap();
            check_sums(&comm);
            let took = called.elapsed();
            assert!(rank != 2 || took < PROMPT, "{over:?}: strangers held the doors for {took:?}");
            if rank == 1 {
                let ports = own_ports();
                assert!(ports.len() >= 3, "every rank has a port: {ports:?}");
                ports.into_iter().for_each(|port| strangers.lock().unwrap().extend(besiege(port)));
            }
            for round in 0..30 {
                check_sums(&comm);
                if rank == 1 {
                    drip(&strangers, round);
                }
            }
        });
        let took = began.elapsed();
        assert!(took < Duration::from_secs(20), "{over:?}: {took:?}, of which 15 s are margin");
    }
}

/// Strangers that were let be say one more byte.
fn drip(strangers: &Mutex<Vec<TcpStream>>, round: u8) {
    for stream in strangers.lock().unwrap().iter_mut() {
        // Most were hung up on.
        let _cut = stream.write(&[b"\xa8HRB"[usize::from(round) % 4]]);
    }
    std::thread::sleep(Duration::from_millis(10));
}

#[test]
fn strangers_at_every_port_disturb_nobody() {
    let _watchdog = Watchdog::over("the siege");
    assert!(crate::process::alone("siege"), "the process under siege did not end well");
}
