//! Reducers: processes that fold for the workers of one or more jobs, and keep nothing between operations.
//!
//! A reducer runs the same schedules on the same engine as a worker. But no operations are issued here: a worker's
//! first message describes the operation. Each job has an engine, a thread and memory of its own. So jobs take turns as
//! the system's threads do, and a problem of one job does not affect another.

mod enlist;
mod jobs;
mod journal;
#[cfg(test)]
mod tests;
mod view;

pub use jobs::{ServedFigures, ServerFigures, ServerStats};
pub use view::ServerView;

use crate::{
    Error, Result,
    config::check_exposure,
    core::session::{
        Refusal,
        handshake::{Claim, Policy, Purpose, Versions},
        status::TableServerStatus,
    },
    descriptors::raise_limit_of_descriptors,
    engine::control::SIGN_OF_LIFE,
    fabric::{
        acceptor::Acceptor,
        greet::{self, GreetError},
    },
    sys::fork::Guarded,
    table::{TableOptions, TableService},
};
use enlist::Enlisting;
use jobs::Jobs;
use journal::Journal;
use rustix::event::{PollFd, PollFlags};
use std::{
    fmt, io,
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// How often the listener looks whether it is to stop.
const LOOK: Duration = Duration::from_millis(50);
/// How long workers have to go on without a reducer that is told to end.
const DRAINED: Duration = Duration::from_secs(10);

/// How a reducer is run.
#[derive(Clone)]
pub struct ServerOptions {
    /// The address to listen at; port 0 takes any free one.
    pub listen: SocketAddr,
    /// The token of the jobs to serve; without one, or with one of fewer than 16 characters, only loopback is served.
    pub token: Option<String>,
    /// How many jobs are served at once.
    pub jobs: usize,
    /// Jobs to take part in though their settings do not name this reducer: the address of a job's rank 0 or of another of its
    /// reducers, as `host:port`. They are asked again and again, so the next job there has this reducer, too.
    pub join: Vec<String>,
    /// Bytes of staging memory per job. An operation of N workers takes N + 1 messages of up to 48 KiB, ten deep, unless
    /// the job sets `HERRINGBONE_SLICE_BYTES`.
    pub staging_bytes: usize,
    /// How this process keeps [tables](crate::table), if it does, in addition to being a reducer.
    pub tables: Option<TableOptions>,
}

impl ServerOptions {
    /// The defaults: 64 jobs of up to 1 GiB, used only as far as operations need it.
    pub fn new(listen: SocketAddr) -> Self {
        Self { listen, token: None, jobs: 64, join: Vec::new(), staging_bytes: 1 << 30, tables: None }
    }
}

impl fmt::Debug for ServerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerOptions")
            .field("listen", &self.listen)
            .field("jobs", &self.jobs)
            .finish_non_exhaustive()
    }
}

/// A reducer that listens.
pub struct Server {
    acceptor: Mutex<Acceptor<Guarded<TcpListener>>>,
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    beats: Arc<Beats>,
    jobs: Arc<Jobs>,
    enlisting: Enlisting,
    tables: Option<Arc<TableService>>,
    token: Arc<str>,
}

/// Tells a running server to stop, from any thread or a signal's handler thread.
#[derive(Clone, Debug)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Ends [`Server::run`] once the workers continue without it: they finish the operations under way.
    pub fn stop(&self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// How often the threads of a server have come round: each does several times a second.
#[derive(Debug, Default)]
struct Beats {
    callers: AtomicU64,
    /// Which waits for the engines of all jobs in turn.
    housekeeping: AtomicU64,
}

/// Tells from any thread how a server does.
#[derive(Clone)]
pub struct ServerPulse {
    beats: Arc<Beats>,
    jobs: Arc<Jobs>,
}

impl ServerPulse {
    /// A count of its threads' rounds: if it stands still for seconds, one of them hangs, or the engine of a job. This
    /// waits for none of them.
    pub fn beats(&self) -> u64 {
        let Beats { callers, housekeeping } = &*self.beats;
        callers.load(Ordering::Relaxed).min(housekeeping.load(Ordering::Relaxed))
    }

    /// Its counters. This waits for the engines of its jobs.
    pub fn stats(&self) -> ServerStats {
        self.jobs.stats()
    }
}

impl fmt::Debug for ServerPulse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerPulse").field("beats", &self.beats).finish_non_exhaustive()
    }
}

impl Server {
    /// Begins to listen.
    ///
    /// # Errors
    /// [`ErrorKind::Auth`](crate::ErrorKind::Auth) without a token, or with a short one, on an address that is not loopback;
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if the address cannot be listened at.
    pub fn bind(options: ServerOptions) -> Result<Self> {
        raise_limit_of_descriptors();
        let token = options.token.clone().filter(|token| !token.is_empty());
        check_exposure(options.listen, token.as_deref())?;
        let at = |error: io::Error| {
            let used = error.kind() == io::ErrorKind::AddrInUse;
            let hint = if used {
                " (another process listens there: pass another port, or 0 for a free one)"
            } else {
                ""
            };
            Error::io(format_args!("cannot listen at {}{hint}", options.listen), error)
        };
        let listener = TcpListener::bind(options.listen).map_err(at)?;
        let address = listener.local_addr().map_err(at)?;
        let incarnation = greet::random_number().map_err(at)?;
        let jobs = Jobs::new(options.jobs, options.staging_bytes, incarnation);
        let (who, token) = (format!("reducer {address}"), token.unwrap_or_default());
        let enlisting = Enlisting::new(options.join, address, incarnation, token.as_bytes());
        let policy = Policy { versions: Versions::CURRENT, job: None, world: None };
        let listener = Guarded::new(listener).map_err(at)?;
        let tables = options.tables.as_ref();
        tables.map_or(Ok(()), TableOptions::check)?;
        let tables = tables.map(|tables| TableService::start(tables, incarnation, options.token.clone()));
        let tables = tables.transpose().map_err(at)?.map(Arc::new);
        let acceptor = Acceptor::new(&who, listener, token.as_bytes(), policy).map_err(at)?;
        Ok(Self {
            acceptor: Mutex::new(acceptor),
            address,
            stop: Arc::default(),
            beats: Arc::default(),
            jobs: Arc::new(jobs),
            enlisting,
            tables,
            token: token.into(),
        })
    }

    /// Makes this process print on standard error which jobs come and go and how much it moves, as
    /// `HERRINGBONE_LOG=info` does. If that variable is set, its value wins.
    pub fn inform(&self) {
        crate::log::inform();
    }

    /// The address where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A handle that ends [`run`](Self::run).
    pub fn stop(&self) -> Stop {
        Stop(self.stop.clone())
    }

    /// A view of how it does, for a watchdog.
    pub fn pulse(&self) -> ServerPulse {
        ServerPulse { beats: self.beats.clone(), jobs: self.jobs.clone() }
    }

    /// The state of this server, for observers.
    pub fn view(&self) -> ServerView {
        ServerView::new(&self.jobs, self.tables.as_ref(), &self.stop, self.address, &self.token)
    }

    /// Its counters.
    pub fn stats(&self) -> ServerStats {
        self.jobs.stats()
    }

    /// The status of its tables; `None` if it keeps none, or was busy all the time.
    pub fn tables(&self) -> Option<TableServerStatus> {
        self.tables.as_deref().and_then(TableService::status)
    }

    /// Serves jobs until it is stopped. Then it drains: its workers learn of it, finish operations under way without
    /// it, and no operation fails. A worker that does not answer is waited for for ten seconds.
    pub fn run(&self) {
        let mut journal = Journal::new(format!("reducer {}", self.address));
        std::thread::scope(|scope| {
            // Whoever calls is heard, whatever keeps the jobs' engines busy.
            scope.spawn(|| self.housekeeping(&mut journal));
            scope.spawn(|| self.enlisting.run(|| self.is_stopped()));
            self.admit_callers();
        });
        self.drain(&mut journal);
        self.jobs.close();
    }

    /// Tells workers that it ends, and waits until they do without it.
    fn drain(&self, journal: &mut Journal) {
        let (began, mut shown) = (Instant::now(), Instant::now());
        self.jobs.say_goodbye();
        while self.jobs.are_needed() && began.elapsed() < DRAINED {
            std::thread::sleep(LOOK / 5);
            self.beat();
            journal.look(self.jobs.summaries());
            if shown.elapsed() >= SIGN_OF_LIFE {
                shown = Instant::now();
                self.jobs.show_life();
            }
        }
        journal.look(self.jobs.summaries());
    }

    fn beat(&self) {
        self.beats.housekeeping.fetch_add(1, Ordering::Relaxed);
        self.beats.callers.fetch_add(1, Ordering::Relaxed);
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    fn admit_callers(&self) {
        let mut acceptor = self.acceptor.lock().unwrap_or_else(PoisonError::into_inner);
        let timeout = rustix::time::Timespec { tv_sec: 0, tv_nsec: LOOK.as_nanos() as i64 };
        while !self.is_stopped() {
            let mut waiting = [PollFd::from_borrowed_fd(acceptor.fd(), PollFlags::IN)];
            // An interrupted wait is a short one.
            let _woken = rustix::event::poll(&mut waiting, Some(&timeout));
            self.beats.callers.fetch_add(1, Ordering::Relaxed);
            for (caller, claim) in acceptor.serve() {
                let (jobs, tables) = (self.jobs.clone(), self.tables.clone());
                acceptor.spawn_handler(caller, claim, move |stream, claim| match claim.hello().purpose {
                    Purpose::Table => admit_to_tables(tables.as_deref(), stream, claim),
                    Purpose::Status => jobs.answer(stream, claim, tables.as_deref()),
                    _ => jobs.admit(stream, claim),
                });
            }
        }
    }

    /// Shows workers that it lives, forgets jobs that are over, and says what it does.
    fn housekeeping(&self, journal: &mut Journal) {
        let mut shown = Instant::now();
        while !self.is_stopped() {
            std::thread::sleep(LOOK);
            self.jobs.forget_finished();
            journal.look(self.jobs.summaries());
            self.beats.housekeeping.fetch_add(1, Ordering::Relaxed);
            if shown.elapsed() >= SIGN_OF_LIFE {
                shown = Instant::now();
                self.jobs.show_life();
            }
        }
    }
}

/// Lets a worker in that has tables, if there are any here.
fn admit_to_tables(
    tables: Option<&TableService>,
    mut stream: TcpStream,
    claim: Claim,
) -> std::result::Result<(), GreetError> {
    match tables {
        Some(tables) => tables.admit(stream, claim),
        None => {
            let problem = "the process at this address is only a reducer; start it with --tables".to_owned();
            let refusal = Refusal::Unusable { setting: "HERRINGBONE_TABLES".to_owned(), problem };
            greet::refuse(&mut stream, claim, &refusal);
            Ok(())
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}
