//! A server of tables: a thread that serves workers and other servers, and threads that call other servers.

use super::{
    connections::{Reach, connect_once},
    link::MessageLink,
    serving::{FoundAnswer, Serving},
    tables::TableSummary,
};
use crate::{
    Error, Result,
    config::WaitLimits,
    core::{
        session::{
            Refusal, Role,
            handshake::{Claim, Identity},
        },
        table::replication::{SERVERS_MOST, ServerLife},
    },
    fabric::{
        acceptor,
        greet::{self, GreetError},
    },
    sys::doorbell::Bell,
};
use std::{
    collections::BTreeSet,
    io,
    net::{SocketAddr, TcpStream, ToSocketAddrs, UdpSocket},
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

/// How tables are kept.
#[derive(Clone, Debug)]
pub struct TableOptions {
    /// How many bytes they may take up, with what waits for the end of a step.
    pub memory_bytes: u64,
    /// How long the others wait for a worker whose connection has ended without a goodbye; then they go on without it. `None`: until
    /// it is back.
    pub patience: Option<Duration>,
    /// Where snapshots are written, and read: a directory that all servers see, or copies of one. `None`: there are none.
    pub data: Option<PathBuf>,
    /// The servers that have copies of each other's ranges. `None`: this server has none, and no copies of its own.
    pub group: Option<TableGroup>,
}

/// Servers that have copies of each other's ranges.
#[derive(Clone, Debug)]
pub struct TableGroup {
    /// All servers, each `host:port`, as workers name them in `HERRINGBONE_TABLES`: the same list on all of them.
    pub servers: Vec<String>,
    /// Which of them this one is, counted from 0.
    pub place: u32,
    /// How many copies each range is to have beside the one at its owner: fewer than there are servers.
    pub replicas: u32,
}

impl TableGroup {
    /// The group of the server that listens at an address of this machine.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) if that is not one of `servers`, or could be several of them.
    pub fn at(listen: SocketAddr, servers: Vec<String>, replicas: u32) -> Result<Self> {
        let is_here = |address: SocketAddr| {
            // An address of this machine can be bound.
            listen.ip() == address.ip()
                || listen.ip().is_unspecified() && UdpSocket::bind((address.ip(), 0)).is_ok()
        };
        let is_this = |server: &str| {
            let addresses = server.to_socket_addrs().map(Vec::from_iter).unwrap_or_default();
            addresses.into_iter().any(|address| address.port() == listen.port() && is_here(address))
        };
        let places: Vec<u32> =
            (0..).zip(&servers).filter(|(_, server)| is_this(server)).map(|(place, _)| place).collect();
        match *places {
            [place] => Ok(Self { servers, place, replicas }),
            _ => {
                let problem =
                    format!("{listen} is not one of {}: say which place it has, from 0", servers.join(", "));
                Err(Error::config("servers", problem))
            }
        }
    }

    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) if there can be no such group.
    pub(crate) fn check(&self) -> Result<()> {
        let count = self.servers.len() as u32;
        let wrong = |problem: String| Err(Error::config("servers", problem));
        if count < 2 || count > SERVERS_MOST {
            return wrong(format!(
                "{count} servers with copies of each other's ranges: name 2 to {SERVERS_MOST}"
            ));
        }
        if self.place >= count {
            return wrong(format!("this server's place is {}, and {count} are named, from 0", self.place));
        }
        if self.replicas >= count {
            return wrong(format!(
                "{} copies on {count} servers: at most {} have room",
                self.replicas,
                count - 1
            ));
        }
        Ok(())
    }
}

impl Default for TableOptions {
    /// Half of this machine's memory, and ten seconds.
    fn default() -> Self {
        let machine = rustix::system::sysinfo();
        let memory = machine.totalram.saturating_mul(u64::from(machine.mem_unit.max(1)));
        Self { memory_bytes: memory / 2, patience: Some(Duration::from_secs(10)), data: None, group: None }
    }
}

/// Between two calls of a server that is not there.
const AGAIN: Duration = Duration::from_millis(100);

/// The threads that serve tables.
pub(crate) struct TableService {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Among how many servers it is, and where.
    place: u32,
    servers: u32,
}

/// What the threads of a server share.
pub(super) struct Shared {
    incarnation: u64,
    pub(super) arrivals: Mutex<Vec<Arrival>>,
    pub(super) summaries: Mutex<Vec<TableSummary>>,
    /// The servers that there is a connection with.
    pub(super) linked: Mutex<BTreeSet<u32>>,
    /// What threads have found that write to disk.
    pub(super) found: Mutex<Vec<FoundAnswer>>,
    pub(super) bell: Bell,
    pub(super) is_over: AtomicBool,
}

/// One that has proved itself.
pub(super) struct Arrival {
    pub(super) link: MessageLink,
    pub(super) who: Identity,
}

impl TableService {
    /// Starts them. `token` is that of the group's servers.
    pub(crate) fn start(options: &TableOptions, incarnation: u64, token: Option<String>) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            incarnation,
            arrivals: Mutex::default(),
            summaries: Mutex::default(),
            linked: Mutex::default(),
            found: Mutex::default(),
            bell: Bell::new()?,
            is_over: AtomicBool::new(false),
        });
        let mut serving = Serving::new(options, incarnation, shared.clone())?;
        let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(name.to_owned()).spawn(work)
        };
        let mut threads = vec![spawn("hb-tables", Box::new(move || serving.run()))?];
        let (place, servers) =
            options.group.as_ref().map_or((0, 1), |group| (group.place, group.servers.len() as u32));
        for (server, address) in (0..place).zip(options.group.iter().flat_map(|group| &group.servers)) {
            let identity =
                Identity { role: Role::TableServer, job: 0, rank: place, world: servers, incarnation };
            let reach = Reach { token: token.clone(), identity };
            let (shared, address) = (shared.clone(), address.clone());
            threads.push(spawn(
                "hb-table-peers",
                Box::new(move || shared.keep_calling(server, &address, &reach)),
            )?);
        }
        Ok(Self { shared, threads: Mutex::new(threads), place, servers })
    }

    /// Lets a worker in that has proved itself, or another server of the group.
    pub(crate) fn admit(&self, mut stream: TcpStream, claim: Claim) -> std::result::Result<(), GreetError> {
        let who = claim.hello().identity;
        let is_peer = who.role == Role::TableServer
            && who.world == self.servers
            && (self.place + 1..self.servers).contains(&who.rank);
        if who.role == Role::TableServer && !is_peer {
            let problem = format!(
                "a server at place {} of {} calls the one at place {} of {}: give all the same list of servers",
                who.rank, who.world, self.place, self.servers
            );
            let refusal = Refusal::Unusable { setting: "servers".to_owned(), problem };
            greet::refuse(&mut stream, claim, &refusal);
            return Ok(());
        }
        if who.role != Role::Worker && !is_peer {
            greet::refuse(&mut stream, claim, &Refusal::Unexpected { role: who.role, rank: who.rank });
            return Ok(());
        }
        let own = Identity {
            role: Role::TableServer,
            job: who.job,
            rank: self.place,
            world: self.servers,
            incarnation: self.shared.incarnation,
        };
        let keys = greet::welcome(&mut stream, claim, own)?.keys;
        let link = acceptor::into_link(stream, keys, WaitLimits::default().patience)?;
        let link = if is_peer { MessageLink::of_peer(link) } else { MessageLink::of_server(link) };
        self.shared.arrive(Arrival { link, who })?;
        Ok(())
    }

    /// What there is to tell of its tables.
    pub(crate) fn summaries(&self) -> Vec<TableSummary> {
        lock(&self.shared.summaries).clone()
    }
}

impl Shared {
    fn arrive(&self, arrival: Arrival) -> io::Result<()> {
        lock(&self.arrivals).push(arrival);
        self.bell.ring()
    }

    /// Calls a server whenever there is no connection with it.
    fn keep_calling(&self, server: u32, address: &str, reach: &Reach) {
        let mut told = String::new();
        while !self.is_over.load(Ordering::SeqCst) {
            if !lock(&self.linked).contains(&server) {
                match connect_once(address, reach, Some(server)) {
                    Ok((link, there)) => {
                        let process = ServerLife { server, life: there.incarnation };
                        lock(&self.linked).insert(process.server);
                        if self.arrive(Arrival { link: MessageLink::of_peer(link), who: there }).is_err() {
                            return;
                        }
                    }
                    Err(error) if error.may_pass() => {}
                    Err(error) => {
                        let problem = error.to_string();
                        if problem != told {
                            crate::log::warn("tables", format_args!("the server at {address}: {problem}"));
                            told = problem;
                        }
                    }
                }
            }
            std::thread::sleep(AGAIN);
        }
    }
}

impl Drop for TableService {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        // It looks by itself, too.
        let _rung = self.shared.bell.ring();
        for thread in lock(&self.threads).drain(..) {
            // A thread that panicked has nothing left to say.
            let _ended = thread.join();
        }
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
