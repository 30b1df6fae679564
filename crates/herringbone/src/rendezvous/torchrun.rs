//! The store that torchrun's agent keeps, which is torch's `TCPStore`, in the protocol of its clients: numbers in the
//! machine's order of bytes, keys and values behind their length.
//!
//! Source: torch/csrc/distributed/c10d/TCPStore.cpp, of torch 2.4 and later, whose store runs on libuv.

use super::{Store, StoreError};
use std::{
    io::{self, Read, Write},
    net::{TcpStream, ToSocketAddrs},
    time::{Duration, Instant},
};

/// What a client says first.
const MAGIC: u32 = 0x3C85_F7CE;
/// How long the agent may take to answer, where it has nothing to wait for.
const ANSWER: Duration = Duration::from_secs(30);
/// The longest value that is one of ours.
const VALUE_BYTES: u64 = 1 << 16;
/// torch's clients put it in front of every key.
const PREFIX: &str = "/";

/// The kinds of request, by their numbers in the protocol.
#[derive(Clone, Copy)]
enum Query {
    Validate = 0,
    Set = 1,
    Get = 3,
    Wait = 6,
    Ping = 13,
}

/// torchrun's store, at `address`, with keys of this job's attempt.
pub(crate) struct TorchrunStore {
    address: String,
    attempt: String,
}

impl TorchrunStore {
    /// The store at a `host:port`. What ranks of other attempts write is not seen.
    pub(crate) fn new(address: impl Into<String>, attempt: impl Into<String>) -> Self {
        Self { address: address.into(), attempt: attempt.into() }
    }

    fn key(&self, key: &str) -> String {
        format!("{PREFIX}herringbone/{}/{key}", self.attempt)
    }

    fn failed(&self, error: io::Error) -> StoreError {
        if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) {
            return StoreError::Timeout;
        }
        let what = format_args!(
            "torchrun's store at {} does not answer as torch's do; HERRINGBONE_STORE=host:port, a free port of rank 0's \
             machine, needs no store",
            self.address
        );
        StoreError::of(what, error)
    }
}

impl Store for TorchrunStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        let send = || {
            let mut client = Client::connect(&self.address)?;
            client.send(Query::Set, &[&counted(self.key(key).as_bytes()), &counted(value)])?;
            // Setting has no answer of its own.
            client.ping()
        };
        send().map_err(|error| self.failed(error))
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, StoreError> {
        let deadline = Instant::now() + timeout;
        let key = counted(self.key(key).as_bytes());
        let ask = || {
            let mut client = Client::connect(&self.address)?;
            client.send(Query::Wait, &[&1_u64.to_ne_bytes(), &key])?;
            client.patience(deadline.saturating_duration_since(Instant::now()))?;
            if client.read::<1>()? != [0] {
                return Err(io::Error::other("it stopped waiting for a key"));
            }
            client.patience(ANSWER)?;
            client.send(Query::Get, &[&key])?;
            let length = u64::from_ne_bytes(client.read()?);
            if length > VALUE_BYTES {
                return Err(io::Error::other(format!("a value of {length} bytes")));
            }
            let mut value = vec![0; length as usize];
            client.0.read_exact(&mut value)?;
            Ok(value)
        };
        ask().map_err(|error| self.failed(error))
    }
}

/// Bytes behind their number.
fn counted(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_ne_bytes(), bytes].concat()
}

struct Client(TcpStream);

impl Client {
    /// Connects, and checks that the other end is such a store.
    fn connect(address: &str) -> io::Result<Self> {
        let mut last = io::Error::other("no such host");
        for address in address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, ANSWER) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    let mut client = Self(stream);
                    client.patience(ANSWER)?;
                    client.send(Query::Validate, &[&MAGIC.to_ne_bytes()])?;
                    client.ping()?;
                    return Ok(client);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn patience(&self, patience: Duration) -> io::Result<()> {
        self.0.set_read_timeout(Some(patience.max(Duration::from_millis(1))))
    }

    fn send(&mut self, query: Query, parts: &[&[u8]]) -> io::Result<()> {
        self.0.write_all(&[&[query as u8][..], &parts.concat()].concat())
    }

    fn read<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// It answers with the same number, when it has done all that was asked before.
    fn ping(&mut self) -> io::Result<()> {
        let number = std::process::id().to_ne_bytes();
        self.send(Query::Ping, &[&number])?;
        if self.read()? == number { Ok(()) } else { Err(io::Error::other("a ping came back as another one")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{net::TcpListener, thread};

    /// Answers one connection with these bytes after it has sent so many; returns what it sent.
    fn server(script: Vec<(usize, Vec<u8>)>) -> (String, thread::JoinHandle<Vec<Vec<u8>>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let serve = move || {
            let (mut stream, _) = listener.accept().unwrap();
            let answered = script.into_iter().map(|(bytes, answer)| {
                let mut heard = vec![0; bytes];
                stream.read_exact(&mut heard).unwrap();
                stream.write_all(&answer).unwrap();
                heard
            });
            answered.collect()
        };
        (address, thread::spawn(serve))
    }

    fn hello() -> (usize, Vec<u8>) {
        (10, std::process::id().to_ne_bytes().to_vec())
    }

    /// As torch 2.15 says it, recorded.
    #[test]
    fn requests_are_those_of_torchs_client() {
        let key = "/herringbone/a/hub/0";
        let (address, thread) = server(vec![hello(), (1 + 8 + key.len() + 8 + 2 + 5, hello().1)]);
        TorchrunStore::new(address, "a").set("hub/0", b"me").unwrap();
        let ping = [&[13][..], &std::process::id().to_ne_bytes()].concat();
        let [validate, set] = <[Vec<u8>; 2]>::try_from(thread.join().unwrap()).unwrap();
        assert_eq!(validate, [&[0, 0xce, 0xf7, 0x85, 0x3c][..], &ping].concat());
        let lengths = [[20, 0, 0, 0, 0, 0, 0, 0], [2, 0, 0, 0, 0, 0, 0, 0]];
        assert_eq!(set, [&[1][..], &lengths[0], key.as_bytes(), &lengths[1], b"me", &ping].concat());
    }

    #[test]
    fn a_key_is_waited_for_and_then_read() {
        let length = 8 + "/herringbone/a/hub/0".len();
        let value = [&2_u64.to_ne_bytes()[..], b"me"].concat();
        let (address, thread) = server(vec![hello(), (1 + 8 + length, vec![0]), (1 + length, value)]);
        assert_eq!(TorchrunStore::new(address, "a").get("hub/0", ANSWER).unwrap(), b"me");
        thread.join().unwrap();
    }

    #[test]
    fn a_key_that_does_not_come_is_late_and_a_stranger_is_named() {
        let length = 8 + "/herringbone/a/hub/0".len();
        let (address, thread) = server(vec![hello(), (1 + 8 + length, vec![]), (1, vec![])]);
        let store = TorchrunStore::new(address, "a");
        assert_eq!(store.get("hub/0", Duration::from_millis(20)), Err(StoreError::Timeout));
        assert!(thread.join().is_err(), "nothing more came");
        let (address, thread) = server(vec![(10, b"HTTP".to_vec())]);
        let error = TorchrunStore::new(&address, "a").set("hub/0", b"").unwrap_err().to_string();
        assert!(error.contains(&address) && error.contains("HERRINGBONE_STORE=host:port"), "{error}");
        thread.join().unwrap();
    }
}
