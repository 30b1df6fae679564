//! Letting connections in: each handshake on a short-lived thread, only so many at a time, strangers logged once.
//!
//! A connection that says nothing costs its caller nothing. So it may wait only as long as nobody else wants its place:
//! when all places are taken, the oldest one that is silent has to go, of the address that has most of those.

use super::greet::{self, GreetError, Stream};
use crate::core::session::handshake::{Claim, HandshakeError, Policy};
use rustix::event::{PollFd, PollFlags};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    io::{self, Read, Write},
    net::{IpAddr, Shutdown, TcpStream},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// How many connections may be in their handshake at once.
const PENDING: usize = 64;
/// How many threads there may be: those that were sent away need a moment to notice.
const THREADS: usize = 2 * PENDING;
/// After this a connection that has begun to speak counts as silent, too.
const STALLED: Duration = Duration::from_millis(500);
/// How many strangers' addresses are remembered, to be logged once each.
const STRANGERS: usize = 256;

/// A limit on handshakes under way, and a memory of strangers.
#[derive(Clone, Debug)]
pub(crate) struct Door {
    who: Arc<str>,
    threads: Arc<AtomicUsize>,
    pending: Arc<Mutex<Pending>>,
    strangers: Arc<Mutex<BTreeSet<IpAddr>>>,
}

/// Who has not proved itself yet, numbered in the order of coming.
#[derive(Debug, Default)]
struct Pending {
    guests: BTreeMap<u64, Arc<Guest>>,
    came: u64,
}

/// A connection that has not proved itself yet.
#[derive(Debug)]
struct Guest {
    stream: TcpStream,
    from: Option<IpAddr>,
    /// When it last said something.
    heard: Mutex<Option<Instant>>,
}

impl Guest {
    fn is_silent(&self) -> bool {
        let heard = *self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let at_once = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut unread = [PollFd::new(&self.stream, PollFlags::IN)];
        heard.is_none_or(|at| at.elapsed() >= STALLED)
            && matches!(rustix::event::poll(&mut unread, Some(&at_once)), Ok(0))
    }
}

impl Read for &Guest {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let got = (&self.stream).read(into)?;
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        Ok(got)
    }
}

impl Write for &Guest {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&self.stream).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        (&self.stream).flush()
    }
}

impl Stream for &Guest {
    fn limit(&self, limit: Duration) -> io::Result<()> {
        self.stream.limit(limit)
    }
}

impl Door {
    /// `who` is what this process is called in its log.
    pub(crate) fn new(who: &str) -> Self {
        Self { who: who.into(), threads: Arc::default(), pending: Arc::default(), strangers: Arc::default() }
    }

    /// Hears a new connection's claim, and lets `admit` judge it, on a thread of its own. Where too many are pending and
    /// all of them speak, the connection is dropped.
    pub(crate) fn enter(
        &self,
        stream: TcpStream,
        token: &[u8],
        policy: Policy,
        admit: impl FnOnce(TcpStream, Claim) -> Result<(), GreetError> + Send + 'static,
    ) {
        let from = stream.peer_addr().map(|address| address.ip()).ok();
        let guest = Arc::new(Guest { stream, from, heard: Mutex::default() });
        let Some(number) = self.place(guest.clone()) else { return };
        let (door, token) = (self.clone(), token.to_vec());
        let spawned = std::thread::Builder::new().name("herringbone-door".to_owned()).spawn(move || {
            let heard = door.hear(number, guest, &token, policy);
            let result = heard.and_then(|(stream, claim)| admit(stream, claim));
            if let (Err(error), Some(from)) = (result, from) {
                door.turned_away(from, &error);
            }
            door.threads.fetch_sub(1, Ordering::SeqCst);
        });
        if spawned.is_err() {
            self.pending().guests.remove(&number);
            self.threads.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// A place for a guest, and for its thread.
    fn place(&self, guest: Arc<Guest>) -> Option<u64> {
        let mut pending = self.pending();
        if self.threads.load(Ordering::SeqCst) >= THREADS {
            return None;
        }
        if pending.guests.len() >= PENDING {
            pending.evict()?;
        }
        self.threads.fetch_add(1, Ordering::SeqCst);
        pending.came += 1;
        let number = pending.came;
        pending.guests.insert(number, guest);
        Some(number)
    }

    /// Hears a guest's claim. Whoever has made one is no longer pending, and its connection is the caller's.
    fn hear(
        &self,
        number: u64,
        guest: Arc<Guest>,
        token: &[u8],
        policy: Policy,
    ) -> Result<(TcpStream, Claim), GreetError> {
        let blocking = guest.stream.set_nonblocking(false).map_err(GreetError::Io);
        let claim = blocking.and_then(|()| greet::examine(&mut &*guest, token, policy));
        self.pending().guests.remove(&number);
        let guest = Arc::into_inner(guest).ok_or(GreetError::Closed)?;
        Ok((guest.stream, claim?))
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn turned_away(&self, from: IpAddr, error: &GreetError) {
        let notable = matches!(
            error,
            GreetError::Handshake(HandshakeError::NotHerringbone(_) | HandshakeError::Refusing(_))
                | GreetError::Handshake(HandshakeError::Malformed { .. } | HandshakeError::TooLong { .. })
                | GreetError::Late
        );
        let mut strangers = self.strangers.lock().unwrap_or_else(PoisonError::into_inner);
        if notable && strangers.len() < STRANGERS && strangers.insert(from) {
            crate::log::warn(
                &self.who,
                format_args!("a connection from {from} was dropped: {error} (said once per address)"),
            );
        }
    }
}

impl Pending {
    /// Sends the oldest silent guest away, of the address that has most of them.
    fn evict(&mut self) -> Option<()> {
        let silent: Vec<_> = self.guests.iter().filter(|(_, guest)| guest.is_silent()).collect();
        let mut crowds = BTreeMap::<_, usize>::new();
        silent.iter().for_each(|(_, guest)| *crowds.entry(guest.from).or_default() += 1);
        let oldest = silent.into_iter().min_by_key(|(_, guest)| Reverse(crowds[&guest.from]));
        let number = *oldest?.0;
        let guest = self.guests.remove(&number)?;
        // Its thread reads the end, also where the connection has ended by itself.
        let _ended = guest.stream.shutdown(Shutdown::Both);
        Some(())
    }
}

/// Accepts what is waiting at a listener.
pub(crate) fn accept_all(listener: &std::net::TcpListener, mut each: impl FnMut(TcpStream)) {
    while let Ok((stream, _)) = listener.accept() {
        each(stream);
    }
}

/// Prepares an admitted connection for frames.
pub(crate) fn into_link(stream: TcpStream) -> Result<crate::transport::tcp::TcpLink, GreetError> {
    crate::sys::socket::tune_tcp(&stream, SILENCE)?;
    stream.set_nonblocking(true)?;
    Ok(crate::transport::tcp::TcpLink::new(crate::sys::fork::Guarded::new(stream.into())?))
}

/// How long unacknowledged data may hang before the kernel gives a connection up.
pub(crate) const SILENCE: Duration = Duration::from_secs(6);

const _: () = assert!(greet::DEADLINE.as_secs() < SILENCE.as_secs());

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::session::{
        Role,
        handshake::{Expected, Hello, Identity, Purpose, Versions},
    };
    use std::{
        net::TcpListener,
        sync::mpsc::{Receiver, channel},
    };

    const TOKEN: &[u8] = b"a token";

    fn identity(rank: u32) -> Identity {
        Identity { role: Role::Worker, job: 1, rank, world: 1000, incarnation: 1 }
    }

    /// A door that says who came through it, and a call to it from an address of loopback.
    struct House {
        door: Door,
        listener: TcpListener,
        sender: std::sync::mpsc::Sender<u32>,
        came: Receiver<u32>,
    }

    impl House {
        fn new() -> Self {
            let (sender, came) = channel();
            Self {
                door: Door::new("a test"),
                listener: TcpListener::bind("127.0.0.1:0").unwrap(),
                sender,
                came,
            }
        }

        fn call(&self, from: &str) -> TcpStream {
            let there = self.listener.local_addr().unwrap().to_string();
            let stream = crate::fabric::links::dial(&there, Some(from.parse().unwrap()), |_| Ok(())).unwrap();
            let (accepted, _) = self.listener.accept().unwrap();
            let sender = self.sender.clone();
            let policy = Policy { versions: Versions::CURRENT, job: None, world: None };
            self.door.enter(accepted, TOKEN, policy, move |mut stream, claim| {
                let rank = claim.hello().identity.rank;
                greet::welcome(&mut stream, claim, identity(0))?;
                sender.send(rank).unwrap();
                Ok(())
            });
            stream
        }

        /// A rank's call, to the end of its handshake.
        fn rank(&self, from: &str, rank: u32) -> Result<(), GreetError> {
            let hello =
                Hello { identity: identity(rank), purpose: Purpose::Join, versions: Versions::CURRENT };
            let expected = Expected { role: Role::Worker, rank: Some(0), incarnation: None };
            greet::greet(&mut self.call(from), hello, expected, TOKEN)?;
            assert_eq!(self.came.recv().unwrap(), rank);
            Ok(())
        }
    }

    /// Whether the other side has hung up.
    fn is_over(stream: &TcpStream) -> bool {
        stream.limit(Duration::from_millis(1)).unwrap();
        matches!(stream.peek(&mut [0]), Ok(0))
    }

    #[test]
    fn silent_connections_make_room_for_ranks() {
        let house = House::new();
        let silent: Vec<TcpStream> = (0..PENDING + 10).map(|_| house.call("127.0.0.1")).collect();
        for rank in 1..5 {
            house.rank("127.0.0.1", rank).unwrap();
        }
        let (gone, there) = silent.split_at(11);
        assert!(gone.iter().all(is_over), "the oldest go");
        assert!(!there.iter().any(is_over), "one place is enough for ranks that come one by one");
    }

    #[test]
    fn the_address_with_most_silent_connections_loses_one() {
        let house = House::new();
        let single = house.call("127.0.0.2");
        let many: Vec<TcpStream> = (1..PENDING).map(|_| house.call("127.0.0.3")).collect();
        house.rank("127.0.0.2", 1).unwrap();
        assert!(!is_over(&single), "the oldest, but the only one of its address");
        assert!(is_over(&many[0]) && !many[1..].iter().any(is_over));
    }

    #[test]
    fn who_speaks_is_not_silent_for_a_while() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut caller = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let guest = Guest { stream, from: None, heard: Mutex::default() };
        assert!(guest.is_silent());
        caller.write_all(&[0xa8]).unwrap();
        assert!(!guest.is_silent(), "there is something to read");
        (&guest).read_exact(&mut [0]).unwrap();
        *guest.heard.lock().unwrap() = Instant::now().checked_add(Duration::from_secs(60));
        assert!(!guest.is_silent(), "it was read just now");
        *guest.heard.lock().unwrap() = Instant::now().checked_sub(STALLED);
        assert!(guest.is_silent());
    }
}
