//! Reducers: processes that fold for the workers of one or more jobs, and keep nothing between operations.
//!
//! A reducer runs the same schedules on the same engine as a worker; only nobody issues operations here: a worker's
//! first message says what to do. Each job has an engine, a thread and memory of its own, so jobs take turns as the
//! system's threads do, and one job's trouble is not another's.

mod jobs;
#[cfg(test)]
mod tests;

pub use jobs::ServerStats;
#[cfg(any(test, feature = "simulator"))]
pub(crate) use jobs::heed;

use crate::{
    Error, Result,
    config::check_exposure,
    core::session::handshake::{Policy, Versions},
    engine::control::SIGN_OF_LIFE,
    fabric::{door::Door, greet},
    sys::fork::Guarded,
};
use jobs::Jobs;
use rustix::event::{PollFd, PollFlags};
use std::{
    fmt, io,
    net::{SocketAddr, TcpListener},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// How often the listener looks whether it is to stop.
const LOOK: Duration = Duration::from_millis(50);

/// How a reducer is run.
#[derive(Clone)]
pub struct ServerOptions {
    /// Where to listen; port 0 takes any free one.
    pub listen: SocketAddr,
    /// The token of the jobs to serve; without one, or with one of fewer than 16 characters, only loopback is served.
    pub token: Option<String>,
    /// How many jobs are served at once.
    pub jobs: usize,
    /// Bytes of staging memory per job. An operation of N workers takes N + 1 messages of up to 48 KiB, ten deep, unless
    /// the job sets `HERRINGBONE_SLICE_BYTES`.
    pub staging_bytes: usize,
}

impl ServerOptions {
    /// The defaults: 64 jobs of up to 1 GiB, used only as far as operations need it.
    pub fn new(listen: SocketAddr) -> Self {
        Self { listen, token: None, jobs: 64, staging_bytes: 1 << 30 }
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
    door: Mutex<Door<Guarded<TcpListener>>>,
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    jobs: Arc<Jobs>,
}

/// Tells a running server to stop, from any thread or a signal's handler thread.
#[derive(Clone, Debug)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Ends [`Server::run`] within a tenth of a second.
    pub fn stop(&self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Server {
    /// Begins to listen.
    ///
    /// # Errors
    /// [`ErrorKind::Auth`](crate::ErrorKind::Auth) without a token, or with a short one, on an address that is not loopback;
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if the address cannot be listened at.
    pub fn bind(options: ServerOptions) -> Result<Self> {
        let token = options.token.clone().filter(|token| !token.is_empty());
        check_exposure(options.listen, token.as_deref())?;
        let at = |error: io::Error| {
            let used = error.kind() == io::ErrorKind::AddrInUse;
            let hint = if used {
                " (somebody listens there already: take another port, or 0 for a free one)"
            } else {
                ""
            };
            Error::io(format_args!("listening at {}{hint}", options.listen), error)
        };
        let listener = TcpListener::bind(options.listen).map_err(at)?;
        let address = listener.local_addr().map_err(at)?;
        let jobs = Jobs::new(options.jobs, options.staging_bytes, greet::random_number().map_err(at)?);
        let (who, token) = (format!("reducer {address}"), token.unwrap_or_default());
        let policy = Policy { versions: Versions::CURRENT, job: None, world: None };
        let listener = Guarded::new(listener).map_err(at)?;
        let door = Door::new(&who, listener, token.as_bytes(), policy).map_err(at)?;
        Ok(Self { door: Mutex::new(door), address, stop: Arc::default(), jobs: Arc::new(jobs) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A handle that ends [`run`](Self::run).
    pub fn stop(&self) -> Stop {
        Stop(self.stop.clone())
    }

    /// What it has done so far.
    pub fn stats(&self) -> ServerStats {
        self.jobs.stats()
    }

    /// Serves jobs until it is stopped. Operations under way are cut off then: their workers get an error that names this reducer.
    pub fn run(&self) {
        std::thread::scope(|scope| {
            // Whoever calls is heard, whatever keeps the jobs' engines busy.
            scope.spawn(|| self.keep_house());
            self.let_in();
        });
        self.jobs.close();
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    fn let_in(&self) {
        let mut door = self.door.lock().unwrap_or_else(PoisonError::into_inner);
        let timeout = rustix::time::Timespec { tv_sec: 0, tv_nsec: LOOK.as_nanos() as i64 };
        while !self.is_stopped() {
            let mut waiting = [PollFd::from_borrowed_fd(door.fd(), PollFlags::IN)];
            // An interrupted wait is a short one.
            let _woken = rustix::event::poll(&mut waiting, Some(&timeout));
            for arrival in door.serve() {
                let jobs = self.jobs.clone();
                door.let_in(arrival, move |stream, claim| jobs.admit(stream, claim));
            }
        }
    }

    /// Shows workers that it lives, and forgets jobs that are over.
    fn keep_house(&self) {
        let mut shown = Instant::now();
        while !self.is_stopped() {
            std::thread::sleep(LOOK);
            self.jobs.forget_finished();
            if shown.elapsed() >= SIGN_OF_LIFE {
                shown = Instant::now();
                self.jobs.show_life();
            }
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}
