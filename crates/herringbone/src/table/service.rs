//! A server of tables: a thread that reads requests from all connections, and answers them.

use super::{
    link::{MessageLink, ReceivedPayload},
    tables::{Reply, ReplyContent, TableCaller, TableSummary, Tables},
};
use crate::{
    config::WaitLimits,
    core::session::{
        Refusal, Role,
        handshake::{Claim, Identity},
    },
    fabric::{
        acceptor,
        greet::{self, GreetError},
    },
    sys::doorbell::Bell,
    transport::Broken,
};
use rustix::event::epoll;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io,
    mem::MaybeUninit,
    net::TcpStream,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// How tables are kept.
#[derive(Clone, Copy, Debug)]
pub struct TableOptions {
    /// How many bytes they may take up, with what waits for the end of a step.
    pub memory_bytes: u64,
    /// How long the others wait for a worker whose connection has ended without a goodbye; then they go on without it. `None`: until
    /// it is back.
    pub patience: Option<Duration>,
}

impl Default for TableOptions {
    /// Half of this machine's memory, and ten seconds.
    fn default() -> Self {
        let machine = rustix::system::sysinfo();
        let memory = machine.totalram.saturating_mul(u64::from(machine.mem_unit.max(1)));
        Self { memory_bytes: memory / 2, patience: Some(Duration::from_secs(10)) }
    }
}

/// After this many bytes in line on a connection no more rows are read for it.
const QUEUED_BYTES: usize = 1 << 20;
/// How many connections there may be.
const CONNECTIONS: usize = 4096;
/// How many events one look may find.
const EVENTS: usize = 64;
/// The bell's number, which is no connection's.
const BELL: u64 = 0;
/// The longest sleep.
const NAP: Duration = Duration::from_millis(50);

/// A thread that serves tables.
pub(crate) struct TableService {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    incarnation: u64,
    arrivals: Mutex<Vec<Arrival>>,
    summaries: Mutex<Vec<TableSummary>>,
    bell: Bell,
    is_over: AtomicBool,
}

/// A worker that has proved itself.
struct Arrival {
    link: MessageLink,
    who: Identity,
}

impl TableService {
    /// Starts it.
    pub(crate) fn start(options: TableOptions, incarnation: u64) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            incarnation,
            arrivals: Mutex::default(),
            summaries: Mutex::default(),
            bell: Bell::new()?,
            is_over: AtomicBool::new(false),
        });
        let mut serving = Serving::new(options, shared.clone())?;
        let thread = std::thread::Builder::new().name("hb-tables".to_owned()).spawn(move || serving.run())?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Lets a worker in that has proved itself.
    pub(crate) fn admit(&self, mut stream: TcpStream, claim: Claim) -> Result<(), GreetError> {
        let who = claim.hello().identity;
        if who.role != Role::Worker {
            greet::refuse(&mut stream, claim, &Refusal::Unexpected { role: who.role, rank: who.rank });
            return Ok(());
        }
        let own = Identity {
            role: Role::TableServer,
            job: who.job,
            rank: 0,
            world: 1,
            incarnation: self.shared.incarnation,
        };
        let keys = greet::welcome(&mut stream, claim, own)?.keys;
        let link = acceptor::into_link(stream, keys, WaitLimits::default().patience)?;
        lock(&self.shared.arrivals).push(Arrival { link: MessageLink::of_server(link), who });
        self.shared.bell.ring()?;
        Ok(())
    }

    /// What there is to tell of its tables.
    pub(crate) fn summaries(&self) -> Vec<TableSummary> {
        lock(&self.shared.summaries).clone()
    }
}

impl Drop for TableService {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        // It looks by itself, too.
        let _rung = self.shared.bell.ring();
        if let Some(thread) = lock(&self.thread).take() {
            // A thread that panicked has nothing left to say.
            let _ended = thread.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the thread has.
struct Serving {
    shared: Arc<Shared>,
    patience: Option<Duration>,
    poller: OwnedFd,
    tables: Tables,
    connections: BTreeMap<u64, Connection>,
    next: u64,
    away: Vec<Away>,
}

struct Connection {
    link: MessageLink,
    caller: TableCaller,
    /// What it is to be told once what is in line has left.
    replies: VecDeque<Reply>,
    /// Whether the poller says when the socket takes something.
    awaits_room: bool,
}

/// A worker whose connection has ended without a goodbye.
struct Away {
    since: Instant,
    table: u32,
    worker: u32,
    life: u64,
}

impl Serving {
    fn new(options: TableOptions, shared: Arc<Shared>) -> io::Result<Self> {
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&poller, shared.bell.fd(), epoll::EventData::new_u64(BELL), epoll::EventFlags::IN)?;
        Ok(Self {
            shared,
            patience: options.patience,
            poller,
            tables: Tables::new(options.memory_bytes),
            connections: BTreeMap::new(),
            next: BELL + 1,
            away: Vec::new(),
        })
    }

    fn run(&mut self) {
        let mut summed_up = Instant::now();
        while !self.shared.is_over.load(Ordering::SeqCst) {
            for number in self.sleep() {
                if number == BELL {
                    // What it rang for is looked at now.
                    let _drained = self.shared.bell.drain();
                    self.take_arrivals();
                } else {
                    self.serve(number);
                }
            }
            self.give_up_those_away();
            if summed_up.elapsed() >= NAP {
                summed_up = Instant::now();
                *lock(&self.shared.summaries) = self.tables.summaries();
            }
        }
    }

    /// The connections that are ready.
    fn sleep(&self) -> Vec<u64> {
        let mut room = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS];
        let limit = rustix::time::Timespec { tv_sec: 0, tv_nsec: NAP.as_nanos() as i64 };
        // An interrupted sleep is a short one.
        epoll::wait(&self.poller, &mut room[..], Some(&limit))
            .map(|(events, _)| events.iter().map(|event| event.data.u64()).collect())
            .unwrap_or_default()
    }

    fn take_arrivals(&mut self) {
        let arrivals = std::mem::take(&mut *lock(&self.shared.arrivals));
        for Arrival { link, who } in arrivals {
            let number = self.next;
            let watched = link.fd().map(|fd| {
                epoll::add(&self.poller, fd, epoll::EventData::new_u64(number), epoll::EventFlags::IN)
            });
            // Who is not watched is let go, and calls again.
            if self.connections.len() < CONNECTIONS && matches!(watched, Some(Ok(()))) {
                self.next += 1;
                let caller = TableCaller::new(number, who.incarnation);
                let (replies, awaits_room) = (VecDeque::new(), false);
                self.connections.insert(number, Connection { link, caller, replies, awaits_room });
            }
        }
    }

    fn serve(&mut self, number: u64) {
        let mut replies = Vec::new();
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let mut received = Vec::new();
        let result = connection.link.receive(&mut received);
        for ReceivedPayload { number, payload } in received {
            self.tables.serve(&mut connection.caller, number, payload, &mut replies);
        }
        let mut to_write = BTreeSet::from([number]);
        if let Err(reason) = result {
            self.end(number, &reason, &mut replies);
        }
        self.hand_out(replies, &mut to_write);
        while let Some(number) = to_write.pop_first() {
            self.write(number, &mut to_write);
        }
    }

    fn hand_out(&mut self, replies: Vec<Reply>, to_write: &mut BTreeSet<u64>) {
        let mut left = VecDeque::from(replies);
        while let Some(reply) = left.pop_front() {
            if let Some(connection) = self.connections.get_mut(&reply.connection) {
                to_write.insert(reply.connection);
                connection.replies.push_back(reply);
            } else if let Some(table) = self.tables.forget(&reply.content) {
                let mut more = Vec::new();
                self.tables.advance(table, &mut more);
                left.extend(more);
            }
        }
    }

    /// Writes what a connection is to be told, as far as its socket takes it.
    fn write(&mut self, number: u64, to_write: &mut BTreeSet<u64>) {
        let mut more = Vec::new();
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let written = loop {
            while connection.link.queued() < QUEUED_BYTES
                && let Some(reply) = connection.replies.pop_front()
            {
                connection.link.send(reply.number, self.tables.payload(&reply.content));
                if let ReplyContent::Rows { table, .. } = reply.content {
                    self.tables.advance(table, &mut more);
                }
            }
            match connection.link.flush() {
                Ok(true) if !connection.replies.is_empty() => {}
                written => break written,
            }
        };
        match written {
            Ok(is_flushed) => self.await_room(number, !is_flushed),
            Err(reason) => self.end(number, &reason, &mut more),
        }
        self.hand_out(more, to_write);
    }

    fn await_room(&mut self, number: u64, wanted: bool) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        if connection.awaits_room == wanted {
            return;
        }
        connection.awaits_room = wanted;
        let mut flags = epoll::EventFlags::IN;
        flags.set(epoll::EventFlags::OUT, wanted);
        if let Some(fd) = connection.link.fd() {
            // A socket that the poller does not know any more is found to be broken.
            let _gone = epoll::modify(&self.poller, fd, epoll::EventData::new_u64(number), flags);
        }
    }

    /// A connection is over.
    fn end(&mut self, number: u64, reason: &Broken, replies: &mut Vec<Reply>) {
        let Some(connection) = self.connections.remove(&number) else { return };
        if let Some(fd) = connection.link.fd() {
            // The descriptor closes right after this.
            let _gone = epoll::delete(&self.poller, fd);
        }
        if !matches!(reason, Broken::Closed | Broken::Io(_)) {
            crate::log::warn("tables", format_args!("a worker's connection was closed: {reason}"));
        }
        let life = connection.caller.life;
        for (table, worker) in self.tables.disconnect(&connection.caller) {
            self.away.push(Away { since: Instant::now(), table, worker, life });
        }
        for reply in connection.replies {
            if let Some(table) = self.tables.forget(&reply.content) {
                self.tables.advance(table, replies);
            }
        }
    }

    /// The others go on without workers that have not come back.
    fn give_up_those_away(&mut self) {
        let Some(patience) = self.patience else { return };
        let late: Vec<Away> = self.away.extract_if(.., |away| away.since.elapsed() >= patience).collect();
        let mut replies = Vec::new();
        for Away { table, worker, life, .. } in late {
            if self.tables.is_away(table, worker) {
                self.tables.leave(table, worker, life);
                self.tables.advance(table, &mut replies);
            }
        }
        let mut to_write = BTreeSet::new();
        self.hand_out(replies, &mut to_write);
        while let Some(number) = to_write.pop_first() {
            self.write(number, &mut to_write);
        }
    }
}
