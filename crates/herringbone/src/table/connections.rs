//! A worker's connections to the servers of its tables, and the thread that reads from them.

use super::{
    calls::{CallFailure, TableCall},
    link::{MessageLink, ReceivedPayload},
};
use crate::{
    Error, ErrorKind, Result,
    config::{WaitLimits, check_exposure},
    core::{
        session::{
            Role,
            handshake::{Expected, Hello, Identity, Purpose, Versions},
        },
        table::{TableAnswer, TableError, TableRequest},
    },
    fabric::{
        acceptor, dial,
        greet::{self, GreetError},
    },
    sys::doorbell::Bell,
    transport::tcp::TcpLink,
};
use rustix::event::epoll;
use std::{
    collections::BTreeMap,
    fmt,
    mem::MaybeUninit,
    ops::Range,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Between two calls of a server that is not there yet.
const AGAIN: Duration = Duration::from_millis(100);
/// How many events one look may find.
const EVENTS: usize = 64;
/// The bell's number, which is no server's.
const BELL: u64 = u64::MAX;
/// The longest sleep.
const NAP: Duration = Duration::from_millis(100);
/// How long the last words to servers may take.
const GOODBYE: Duration = Duration::from_secs(1);

/// How a worker reaches the servers of its tables.
#[derive(Clone)]
pub(super) struct Reach {
    pub(super) servers: Vec<String>,
    pub(super) token: Option<String>,
    pub(super) rank: u32,
    pub(super) workers: u32,
    /// How long a call may take.
    pub(super) timeout: Duration,
}

/// The connections to all servers.
pub(super) struct Connections {
    pub(super) reach: Reach,
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    servers: Vec<Mutex<Connection>>,
    poller: OwnedFd,
    bell: Bell,
    is_over: AtomicBool,
}

struct Connection {
    server: u32,
    /// `None` once it is lost.
    link: Option<MessageLink>,
    /// Why it was lost.
    lost: String,
    /// The number of the last request.
    last: u64,
    open: BTreeMap<u64, Open>,
    awaits_room: bool,
}

/// A request without an answer.
struct Open {
    call: Arc<TableCall>,
    /// Where rows go.
    place: Range<usize>,
}

impl Connections {
    pub(super) fn open(reach: Reach) -> Result<Arc<Self>> {
        let at = |error| Error::io("connecting to servers of tables", error);
        let incarnation = greet::random_number().map_err(at)?;
        let deadline = Instant::now() + reach.timeout;
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|error| at(error.into()))?;
        let bell = Bell::new().map_err(at)?;
        epoll::add(&poller, bell.fd(), epoll::EventData::new_u64(BELL), epoll::EventFlags::IN)
            .map_err(|error| at(error.into()))?;
        let mut servers = Vec::new();
        for (server, address) in (0..).zip(&reach.servers) {
            let link = MessageLink::of_worker(connect(address, &reach, incarnation, deadline)?);
            if let Some(fd) = link.fd() {
                let data = epoll::EventData::new_u64(u64::from(server));
                epoll::add(&poller, fd, data, epoll::EventFlags::IN).map_err(|error| at(error.into()))?;
            }
            servers.push(Mutex::new(Connection {
                server,
                link: Some(link),
                lost: String::new(),
                last: 0,
                open: BTreeMap::new(),
                awaits_room: false,
            }));
        }
        let shared = Arc::new(Shared { servers, poller, bell, is_over: AtomicBool::new(false) });
        let reading = shared.clone();
        let thread = std::thread::Builder::new().name("hb-tables".to_owned()).spawn(move || reading.read());
        let thread = Mutex::new(Some(thread.map_err(at)?));
        Ok(Arc::new(Self { reach, shared, thread }))
    }

    /// Sends a request; rows that answer it go to a place in the call's.
    pub(super) fn send(
        &self,
        server: u32,
        request: &TableRequest,
        values: &[u8],
        call: &Arc<TableCall>,
        place: Range<usize>,
    ) {
        call.opens();
        let head = request.encode();
        let connection = &mut *self.shared.connection(server);
        let mut payload = match head {
            Ok(head) => head,
            Err(error) => return call.lost(server, &error.to_string()),
        };
        payload.extend_from_slice(values);
        let Some(link) = &mut connection.link else {
            let reason = connection.lost.clone();
            return call.lost(server, &reason);
        };
        connection.last += 1;
        link.send(connection.last, payload);
        connection.open.insert(connection.last, Open { call: call.clone(), place });
        self.shared.write(connection);
    }

    /// Waits for all answers to a call.
    ///
    /// # Errors
    /// The first that has come, or [`ErrorKind::Timeout`].
    pub(super) fn wait(&self, operation: &'static str, table: &str, call: &TableCall) -> Result<()> {
        let Reach { timeout, rank, servers, .. } = &self.reach;
        if !call.wait(*timeout) {
            let missing = self.shared.unanswered(call).into_iter();
            let missing =
                missing.map(|server| format!("the server of tables at {}", servers[server])).collect();
            let kind = ErrorKind::Timeout { rank: *rank, after: *timeout, missing };
            return Err(Error::new(kind).about(*rank, operation));
        }
        let error = match call.failure() {
            None => return Ok(()),
            Some(CallFailure::Refused { server, problem }) => {
                refused(table, &servers[server as usize], problem)
            }
            Some(CallFailure::Lost { server, reason }) => {
                let address = servers[server as usize].clone();
                Error::new(ErrorKind::TableServerLost { address, reason })
            }
        };
        Err(error.about(*rank, operation))
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        let began = Instant::now();
        while self.shared.servers.iter().any(|server| has_more(&lock(server))) && began.elapsed() < GOODBYE {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.shared.is_over.store(true, Ordering::SeqCst);
        // It looks by itself, too.
        let _rung = self.shared.bell.ring();
        if let Some(thread) = lock(&self.thread).take() {
            // A thread that panicked has nothing left to say.
            let _ended = thread.join();
        }
    }
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections").field("servers", &self.reach.servers).finish_non_exhaustive()
    }
}

/// Whether a connection has requests that are not answered.
fn has_more(connection: &Connection) -> bool {
    connection.link.is_some() && !connection.open.is_empty()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn connection(&self, server: u32) -> MutexGuard<'_, Connection> {
        lock(&self.servers[server as usize])
    }

    /// The servers that have not answered a call.
    fn unanswered(&self, call: &TableCall) -> Vec<usize> {
        let has = |connection: &Mutex<Connection>| {
            lock(connection).open.values().any(|open| std::ptr::eq(Arc::as_ptr(&open.call), call))
        };
        (0..self.servers.len()).filter(|server| has(&self.servers[*server])).collect()
    }

    /// Reads answers until it is over.
    fn read(&self) {
        while !self.is_over.load(Ordering::SeqCst) {
            let mut room = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS];
            let limit = rustix::time::Timespec { tv_sec: 0, tv_nsec: NAP.as_nanos() as i64 };
            // An interrupted sleep is a short one.
            let ready: Vec<u64> = epoll::wait(&self.poller, &mut room[..], Some(&limit))
                .map(|(events, _)| events.iter().map(|event| event.data.u64()).collect())
                .unwrap_or_default();
            for number in ready {
                match u32::try_from(number) {
                    Ok(server) => self.serve(&mut self.connection(server)),
                    // What it rang for is looked at in each turn.
                    Err(_) => drop(self.bell.drain()),
                }
            }
        }
    }

    fn serve(&self, connection: &mut Connection) {
        let Connection { server, link, open, .. } = connection;
        let Some(socket) = link else { return };
        let mut received = Vec::new();
        let result = socket.receive(&mut received);
        for ReceivedPayload { number, payload } in received {
            let Some(Open { call, place }) = open.remove(&number) else { continue };
            match TableAnswer::decode(&payload) {
                Ok((answer, rows)) => call.answered(*server, answer, rows, place),
                Err(problem) => call.answered(*server, TableAnswer::Refused(problem), &[], place),
            }
        }
        match result {
            Ok(()) => self.write(connection),
            Err(reason) => self.lose(connection, &reason.to_string()),
        }
    }

    /// Writes what the socket takes.
    fn write(&self, connection: &mut Connection) {
        let Some(link) = &mut connection.link else { return };
        let is_flushed = match link.flush() {
            Ok(is_flushed) => is_flushed,
            Err(reason) => return self.lose(connection, &reason.to_string()),
        };
        if connection.awaits_room == is_flushed {
            connection.awaits_room = !is_flushed;
            let mut flags = epoll::EventFlags::IN;
            flags.set(epoll::EventFlags::OUT, !is_flushed);
            if let Some(fd) = link.fd() {
                let data = epoll::EventData::new_u64(u64::from(connection.server));
                // A socket that the poller does not know any more is found to be broken.
                let _gone = epoll::modify(&self.poller, fd, data, flags);
            }
        }
    }

    fn lose(&self, connection: &mut Connection, reason: &str) {
        if let Some(link) = connection.link.take()
            && let Some(fd) = link.fd()
        {
            // The descriptor closes right after this.
            let _gone = epoll::delete(&self.poller, fd);
        }
        connection.lost = reason.to_owned();
        for (_, Open { call, .. }) in std::mem::take(&mut connection.open) {
            call.lost(connection.server, reason);
        }
    }
}

/// Calls a server until it answers, or time is up.
fn connect(address: &str, reach: &Reach, incarnation: u64, deadline: Instant) -> Result<TcpLink> {
    loop {
        match connect_once(address, reach, incarnation) {
            Ok(link) => return Ok(link),
            Err(error) if error.may_pass() && Instant::now() + AGAIN < deadline => std::thread::sleep(AGAIN),
            Err(error) => return Err(error.at(&format!("the server of tables at {address}"))),
        }
    }
}

fn connect_once(address: &str, reach: &Reach, incarnation: u64) -> std::result::Result<TcpLink, GreetError> {
    let token = reach.token.as_deref().filter(|token| !token.is_empty());
    let mut stream = dial::dial(address, None, |there| check_exposure(there, token))?;
    let identity =
        Identity { role: Role::Worker, job: 0, rank: reach.rank, world: reach.workers, incarnation };
    let hello = Hello { identity, purpose: Purpose::Table, versions: Versions::CURRENT };
    let expected = Expected { role: Role::TableServer, rank: None, incarnation: None };
    let token = token.unwrap_or_default().as_bytes();
    let keys = greet::greet(&mut stream, hello, expected, token)?.keys;
    acceptor::into_link(stream, keys, WaitLimits::default().patience)
}

/// The error of a table, found out at a server, or here if that is empty.
pub(super) fn refused(table: &str, server: &str, problem: TableError) -> Error {
    Error::new(ErrorKind::Table { table: table.to_owned(), server: server.to_owned(), problem })
}
