//! A worker's connections to the servers of its tables, and the threads that read from them and renew them.

use super::{
    calls::{CallFailure, TableCall},
    link::MessageLink,
    mark::disagreement,
    reach::{Reach, connect_once},
    request_message::RequestMessage,
    shared::lock,
    ways::{RequestWays, Sent},
};
use crate::{
    Error, ErrorKind, Result,
    core::{
        session::{Role, handshake::Identity},
        table::{TableError, TableRequest},
    },
    fabric::greet,
    sys::{doorbell::Bell, fork, span::Span},
    transport::tcp::TcpLink,
};
use rustix::event::epoll;
use std::{
    collections::BTreeSet,
    fmt,
    mem::MaybeUninit,
    ops::Range,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Between two calls of a server that is not there.
const AGAIN: Duration = Duration::from_millis(100);
/// How many events one look may find.
const EVENTS: usize = 64;
/// The bell's number, which is no server's.
const BELL: u64 = u64::MAX;
/// The longest sleep.
const NAP: Duration = Duration::from_millis(100);
/// How long other servers with copies have to answer a worker that begins, once one has: the next calls find them.
const OTHERS: Duration = Duration::from_millis(300);
/// How long the last words to servers may take.
const GOODBYE: Duration = Duration::from_secs(1);

/// How a worker reaches the servers of its tables.
#[derive(Clone)]
pub(super) struct WorkerReach {
    pub(super) servers: Vec<String>,
    pub(super) token: Option<String>,
    pub(super) rank: u32,
    pub(super) workers: u32,
    /// Whether it goes on through shared memory with servers of its host.
    pub(super) shares: bool,
    /// How long a call may take.
    pub(super) timeout: Duration,
}

/// The connections to all servers.
pub(super) struct Connections {
    pub(super) reach: WorkerReach,
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Of forks of this process.
    born: u64,
}

struct Shared {
    servers: Vec<String>,
    reach: Reach,
    /// A server that answered first: the others are of its group.
    first: Identity,
    /// The servers that threads are calling.
    called: Mutex<BTreeSet<u32>>,
    ways: Mutex<RequestWays>,
    poller: OwnedFd,
    bell: Bell,
    is_over: AtomicBool,
}

impl Connections {
    pub(super) fn open(worker: WorkerReach) -> Result<Arc<Self>> {
        let at = |error| Error::io("connecting to table servers", error);
        let WorkerReach { servers, token, rank, workers, shares, timeout } = worker.clone();
        let incarnation = greet::random_number().map_err(at)?;
        let identity = Identity { role: Role::Worker, job: 0, rank, world: workers, incarnation };
        let reach = Reach { token, identity, shares };
        let (ways, links) = first_connections(&servers, &reach, Instant::now() + timeout)?;
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|error| at(error.into()))?;
        let bell = Bell::new().map_err(at)?;
        epoll::add(&poller, bell.fd(), epoll::EventData::new_u64(BELL), epoll::EventFlags::IN)
            .map_err(|error| at(error.into()))?;
        let is_over = AtomicBool::new(false);
        let (first, ways) = (links[0].there, Mutex::new(ways));
        let shared =
            Arc::new(Shared { servers, reach, first, called: Mutex::default(), ways, poller, bell, is_over });
        for FirstConnection { server, link, there } in links {
            shared.admit(server, link, &there);
        }
        let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(name.to_owned()).spawn(work).map_err(at)
        };
        let (reading, calling) = (shared.clone(), shared.clone());
        let threads = Mutex::new(vec![
            spawn("hb-tables", Box::new(move || reading.read()))?,
            spawn("hb-table-calls", Box::new(move || calling.renew()))?,
        ]);
        Ok(Arc::new(Self { reach: worker, shared, threads, born: fork::generation() }))
    }

    fn is_forked(&self) -> bool {
        fork::generation() != self.born
    }

    /// A forked child has none of the threads. Whoever has a lock to take asks before: a thread of the parent may have held it.
    ///
    /// # Errors
    /// [`ErrorKind::Forked`].
    pub(super) fn check_process(&self, operation: &'static str) -> Result<()> {
        match self.is_forked() {
            true => Err(Error::new(ErrorKind::Forked).about(self.reach.rank, operation)),
            false => Ok(()),
        }
    }

    /// Whether a server is lost for good, and its rows.
    pub(super) fn have_lost_one(&self) -> bool {
        lock(&self.shared.ways).has_lost_one()
    }

    #[cfg(test)]
    pub(super) fn set_patience(&self, patience: Duration) {
        lock(&self.shared.ways).set_patience(patience);
    }

    /// The next request gets at least this number.
    pub(super) fn next_number(&self) -> u64 {
        lock(&self.shared.ways).next_number()
    }

    /// Sends a request without values to whoever has a range.
    pub(super) fn ask(&self, range: u32, request: TableRequest, call: &Arc<TableCall>) {
        self.send(range, request, Span::of_shared(&[]), call, 0..0);
    }

    /// Sends a request to whoever has a range, with values; rows that answer it go to a place in the call's.
    pub(super) fn send(
        &self,
        range: u32,
        request: TableRequest,
        values: Span<'_>,
        call: &Arc<TableCall>,
        place: Range<usize>,
    ) {
        if self.is_forked() {
            return;
        }
        call.opens();
        let form = lock(&self.shared.ways).form(range, &request);
        let message = match RequestMessage::new(range, request, form, values) {
            Ok(message) => message,
            Err(error) => return call.lost(range, &error.to_string()),
        };
        let sent = lock(&self.shared.ways).send(Sent { range, call: call.clone(), place, message });
        sent.into_iter().for_each(|server| self.shared.write(&mut lock(&self.shared.ways), server));
    }

    /// Waits for all answers to a call.
    ///
    /// # Errors
    /// The first that has come, or [`ErrorKind::Timeout`]; [`ErrorKind::Forked`].
    pub(super) fn wait(&self, operation: &'static str, table: &str, call: &TableCall) -> Result<()> {
        self.check_process(operation)?;
        let WorkerReach { timeout, rank, servers, .. } = &self.reach;
        if !call.wait(*timeout) {
            let missing = lock(&self.shared.ways).unanswered(call).into_iter();
            let missing =
                missing.map(|server| format!("the table server at {}", servers[server as usize])).collect();
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
        if self.is_forked() {
            let threads = self.threads.get_mut().unwrap_or_else(PoisonError::into_inner);
            // They are the parent's, and so are the connections.
            return std::mem::forget(std::mem::take(threads));
        }
        let began = Instant::now();
        while lock(&self.shared.ways).has_more() && began.elapsed() < GOODBYE {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.shared.is_over.store(true, Ordering::SeqCst);
        // It looks by itself, too.
        let _rung = self.shared.bell.ring();
        for thread in lock(&self.threads).drain(..) {
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

impl Shared {
    /// Reads answers until it is over.
    fn read(&self) {
        while !self.is_over.load(Ordering::SeqCst) {
            let mut room = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS];
            let nap = lock(&self.ways).next_due().map_or(NAP, |due| due.min(NAP));
            let limit = rustix::time::Timespec { tv_sec: 0, tv_nsec: nap.as_nanos() as i64 };
            // An interrupted sleep is a short one.
            let ready: Vec<u64> = epoll::wait(&self.poller, &mut room[..], Some(&limit))
                .map(|(events, _)| events.iter().map(|event| event.data.u64()).collect())
                .unwrap_or_default();
            let mut ways = lock(&self.ways);
            for number in ready {
                match u32::try_from(number) {
                    Ok(server) => {
                        if let Err(reason) = ways.receive(server) {
                            self.lose(&mut ways, server, &reason);
                        }
                        self.write(&mut ways, server);
                    }
                    // What it rang for is looked at in each turn.
                    Err(_) => drop(self.bell.drain()),
                }
            }
            for server in ways.send_again() {
                self.write(&mut ways, server);
            }
        }
    }

    /// Has servers called that are not there, until it is over.
    fn renew(self: &Arc<Self>) {
        while !self.is_over.load(Ordering::SeqCst) {
            let absent = lock(&self.ways).absent();
            for server in absent {
                if lock(&self.called).insert(server) {
                    let shared = self.clone();
                    let call = move || shared.call(server);
                    let called = std::thread::Builder::new().name("hb-table-calls".to_owned()).spawn(call);
                    if called.is_err() {
                        // It is called in a later turn.
                        lock(&self.called).remove(&server);
                    }
                }
            }
            let mut ways = lock(&self.ways);
            ways.give_up_lost();
            for server in ways.doubt() {
                self.write(&mut ways, server);
            }
            drop(ways);
            std::thread::sleep(AGAIN);
        }
    }

    /// Calls a server, which may take its time to answer: nobody waits for it.
    fn call(&self, server: u32) {
        match connect_once(&self.servers[server as usize], &self.reach, None) {
            _ if self.is_over.load(Ordering::SeqCst) => {}
            Ok((link, there)) => match check_group(&self.servers, server, &there, &self.first) {
                Ok(()) => self.admit(server, link, &there),
                Err(error) => lock(&self.ways).is_other(server, &error.to_string()),
            },
            Err(error) => lock(&self.ways).is_away(server, &error),
        }
        lock(&self.called).remove(&server);
    }

    /// Takes a new connection.
    fn admit(&self, server: u32, link: TcpLink, there: &Identity) {
        let mut ways = lock(&self.ways);
        let link = MessageLink::of_worker(link);
        let watched = link.fd().map(|fd| {
            let data = epoll::EventData::new_u64(u64::from(server));
            epoll::add(&self.poller, fd, data, epoll::EventFlags::IN)
        });
        // One that is not watched is dropped, and called again.
        if let Some(Ok(())) = watched {
            ways.connected(server, link, there);
            // What waits for it goes again now.
            let _rung = self.bell.ring();
        }
    }

    /// Writes what the socket takes.
    fn write(&self, ways: &mut RequestWays, server: u32) {
        match ways.flush(server) {
            Ok(None) => {}
            Ok(Some(awaits_room)) => {
                let mut flags = epoll::EventFlags::IN;
                flags.set(epoll::EventFlags::OUT, awaits_room);
                if let Some(fd) = ways.link(server).and_then(|link| link.fd()) {
                    let data = epoll::EventData::new_u64(u64::from(server));
                    // A socket that the poller does not know any more is found to be broken.
                    let _gone = epoll::modify(&self.poller, fd, data, flags);
                }
            }
            Err(reason) => self.lose(ways, server, &reason),
        }
    }

    fn lose(&self, ways: &mut RequestWays, server: u32, reason: &str) {
        if let Some(fd) = ways.link(server).and_then(|link| link.fd()) {
            // The descriptor closes right after this.
            let _gone = epoll::delete(&self.poller, fd);
        }
        ways.lost(server, reason);
    }
}

struct FirstConnection {
    server: u32,
    link: TcpLink,
    there: Identity,
}

/// What came of calling a server.
struct FirstAnswer {
    server: u32,
    connected: Result<(TcpLink, Identity)>,
}

/// Calls all servers at once until they answer, or time is up. Of servers with copies one that answers is enough: the others have
/// a moment.
fn first_connections(
    servers: &[String],
    reach: &Reach,
    deadline: Instant,
) -> Result<(RequestWays, Vec<FirstConnection>)> {
    let is_over = Arc::new(AtomicBool::new(false));
    let (to, answers) = mpsc::channel();
    for (server, address) in (0..).zip(servers.iter().cloned()) {
        let (to, reach, is_over) = (to.clone(), reach.clone(), is_over.clone());
        let call = move || {
            let connected = first_connection(&address, &reach, deadline, &is_over);
            // Nobody waits for it any more if it cannot be sent.
            let _unheard = to.send(FirstAnswer { server, connected });
        };
        let spawned = std::thread::Builder::new().name("hb-table-calls".to_owned()).spawn(call);
        spawned.map_err(|error| Error::io("connecting to table servers", error))?;
    }
    let links = collect_first(servers, &answers);
    is_over.store(true, Ordering::SeqCst);
    let links = links?;
    let have_copies = links.iter().any(|link| link.there.world > 1);
    Ok((RequestWays::new(servers.len() as u32, have_copies), links))
}

fn collect_first(servers: &[String], answers: &mpsc::Receiver<FirstAnswer>) -> Result<Vec<FirstConnection>> {
    let mut links: Vec<FirstConnection> = Vec::new();
    let mut enough: Option<Instant> = None;
    while links.len() < servers.len() {
        let answer = match enough {
            // Each call has an end, and says so.
            None => answers.recv().map_err(|_| mpsc::RecvTimeoutError::Disconnected),
            Some(enough) => answers.recv_timeout(enough.saturating_duration_since(Instant::now())),
        };
        let Ok(FirstAnswer { server, connected }) = answer else { break };
        let (link, there) = connected?;
        check_group(servers, server, &there, links.first().map_or(&there, |link| &link.there))?;
        links.push(FirstConnection { server, link, there });
        if there.world > 1 {
            enough.get_or_insert_with(|| Instant::now() + OTHERS);
        }
    }
    Ok(links)
}

/// Calls a server until it answers, or time is up, or nobody waits for it.
fn first_connection(
    address: &str,
    reach: &Reach,
    deadline: Instant,
    is_over: &AtomicBool,
) -> Result<(TcpLink, Identity)> {
    loop {
        match connect_once(address, reach, None) {
            Err(error)
                if error.may_pass()
                    && Instant::now() + AGAIN < deadline
                    && !is_over.load(Ordering::SeqCst) =>
            {
                std::thread::sleep(AGAIN);
            }
            result => return result.map_err(|error| error.at(&format!("the table server at {address}"))),
        }
    }
}

/// Servers with copies have a list of each other, which has to be the worker's, and that of the first that answered; and either all
/// have copies, or none.
fn check_group(servers: &[String], server: u32, there: &Identity, first: &Identity) -> Result<()> {
    let Identity { rank, world, .. } = *there;
    let address = &servers[server as usize];
    let is_of_group = world as usize == servers.len() && rank == server;
    let problem = match (world > 1, first.world > 1) {
        (false, false) => return Ok(()),
        (true, true) if is_of_group && there.job == first.job => return Ok(()),
        (true, true) if is_of_group => disagreement(address, &servers[first.rank as usize]),
        (true, true) => format!(
            "{address} is at place {server} of {} here, but reports place {rank} of {world}: name the servers in the same \
             order as their own --servers",
            servers.len()
        ),
        (false, true) => {
            format!("{address} was started without --servers, and others with it: start it as the others")
        }
        (true, false) => {
            format!("{address} was started with --servers, and others without it: start all of them with it")
        }
    };
    Err(Error::config(crate::config::settings::TABLES.name, problem))
}

/// The error of a table, found out at a server, or here if that is empty.
pub(super) fn refused(table: &str, server: &str, problem: TableError) -> Error {
    Error::new(ErrorKind::Table { table: table.to_owned(), server: server.to_owned(), problem })
}
