//! Reducers: processes that fold for the workers of one or more jobs, and keep nothing between operations.
//!
//! A reducer runs the same schedules on the same engine as a worker; only nobody issues operations here: a worker's
//! first message says what to do. Each job has an engine, a thread and memory of its own, so jobs take turns as the
//! system's threads do, and one job's trouble is not another's.

use crate::{
    Error, Result,
    config::check_exposure,
    core::session::{
        Refusal, Role,
        control::{Dispute, Message},
        handshake::{Claim, Identity, Policy, Purpose, Versions},
        membership::{MEMBERS, MemberId, Process, Roster, RosterError},
    },
    engine::{Engine, control::SIGN_OF_LIFE, outbox::Event},
    execute::staging::Staging,
    fabric::{
        door::{self, Door},
        greet::{self, GreetError},
    },
    node::{Node, Surroundings},
    sys::{doorbell::Bell, fork::Guarded, segment::Segment},
    transport::{
        Broken,
        endpoint::{Endpoints, Link},
        layout::Layout,
    },
};
use rustix::event::{PollFd, PollFlags};
use std::{
    collections::BTreeMap,
    fmt, io,
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// How often the listener looks whether it is to stop.
const LOOK: Duration = Duration::from_millis(50);
/// How long a job without connections is kept.
const EMPTY: Duration = Duration::from_secs(2);

/// How a reducer is run.
#[derive(Clone)]
pub struct ServerOptions {
    /// Where to listen; port 0 takes any free one.
    pub listen: SocketAddr,
    /// The token of the jobs to serve; without one only loopback is served.
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
    listener: Guarded<TcpListener>,
    address: SocketAddr,
    shared: Arc<Shared>,
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

/// What a server has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerStats {
    /// Jobs that are being served.
    pub jobs: usize,
    /// Jobs that were served since the start, those included.
    pub served: u64,
    /// Payload bytes received from workers of present jobs.
    pub received: u64,
    /// Payload bytes sent to workers of present jobs.
    pub sent: u64,
}

struct Shared {
    token: Vec<u8>,
    options: ServerOptions,
    incarnation: u64,
    stop: Arc<AtomicBool>,
    jobs: Mutex<Jobs>,
}

#[derive(Default)]
struct Jobs {
    present: BTreeMap<u64, Arc<Job>>,
    served: u64,
    past: (u64, u64),
}

struct Job {
    node: Arc<Node>,
    roster: Roster,
    connections: AtomicUsize,
    quiet: Mutex<Instant>,
}

impl Server {
    /// Begins to listen.
    ///
    /// # Errors
    /// [`ErrorKind::Auth`](crate::ErrorKind::Auth) without a token on an address that is not loopback;
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if the address cannot be listened at.
    pub fn bind(options: ServerOptions) -> Result<Self> {
        let token = options.token.clone().filter(|token| !token.is_empty());
        check_exposure(options.listen, token.is_some())?;
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
        listener.set_nonblocking(true).map_err(at)?;
        let address = listener.local_addr().map_err(at)?;
        let shared = Shared {
            token: token.unwrap_or_default().into_bytes(),
            incarnation: greet::random_number().map_err(at)?,
            stop: Arc::default(),
            jobs: Mutex::default(),
            options: options.clone(),
        };
        Ok(Self { listener: Guarded::new(listener).map_err(at)?, address, shared: Arc::new(shared) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A handle that ends [`run`](Self::run).
    pub fn stop(&self) -> Stop {
        Stop(self.shared.stop.clone())
    }

    /// What it has done so far.
    pub fn stats(&self) -> ServerStats {
        self.shared.stats()
    }

    /// Serves jobs until it is stopped. Operations under way are cut off then: their workers get an error that names this reducer.
    pub fn run(&self) {
        let door = Door::new(&format!("reducer {}", self.address));
        let timeout = rustix::time::Timespec { tv_sec: 0, tv_nsec: LOOK.as_nanos() as i64 };
        let mut shown = Instant::now();
        while !self.shared.stop.load(Ordering::SeqCst) {
            let mut waiting = [PollFd::new(&*self.listener, PollFlags::IN)];
            // An interrupted wait is a short one.
            let _woken = rustix::event::poll(&mut waiting, Some(&timeout));
            door::accept_all(&self.listener, |stream| {
                let shared = self.shared.clone();
                let policy = Policy { versions: Versions::CURRENT, job: None, world: None };
                let admit = move |stream, claim| shared.admit(stream, claim);
                door.enter(stream, &self.shared.token, policy, admit);
            });
            self.shared.forget_finished();
            if shown.elapsed() >= SIGN_OF_LIFE {
                shown = Instant::now();
                self.shared.show_life();
            }
        }
        for job in self.shared.jobs().present.values() {
            job.node.close();
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Shared {
    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn admit(self: &Arc<Self>, mut stream: TcpStream, claim: Claim) -> Result<(), GreetError> {
        let who = claim.hello().identity;
        if claim.hello().purpose != Purpose::Data || who.role != Role::Worker || who.world as usize >= MEMBERS
        {
            greet::refuse(&mut stream, claim, &Refusal::Unexpected { role: who.role, rank: who.rank });
            return Ok(());
        }
        match self.job(who) {
            Ok(job) => self.connect(&job, who, claim, stream),
            Err(refusal) => {
                greet::refuse(&mut stream, claim, &refusal);
                Ok(())
            }
        }
    }

    fn connect(
        &self,
        job: &Arc<Job>,
        who: Identity,
        claim: Claim,
        mut stream: TcpStream,
    ) -> Result<(), GreetError> {
        let own =
            Identity { role: Role::Reducer, job: who.job, rank: 0, world: 1, incarnation: self.incarnation };
        let Some(worker) = job.roster.worker(who.rank).map(|worker| worker.id) else {
            greet::refuse(&mut stream, claim, &Refusal::Unexpected { role: who.role, rank: who.rank });
            return Ok(());
        };
        greet::welcome(&mut stream, claim, own)?;
        let link = door::into_link(stream)?;
        job.connections.fetch_add(1, Ordering::SeqCst);
        job.node.with(|engine| engine.connect(worker, Link::Tcp(link)));
        job.node.wake();
        Ok(())
    }

    /// The job that a worker belongs to; begun if this is its first worker here.
    fn job(self: &Arc<Self>, who: Identity) -> Result<Arc<Job>, Refusal> {
        let mut jobs = self.jobs();
        if let Some(job) = jobs.present.get(&who.job) {
            return match job.roster.world() {
                world if world == who.world => Ok(job.clone()),
                ours => Err(Refusal::World { rank: who.rank, ours, theirs: who.world }),
            };
        }
        let no_room = |what: &str| Refusal::NoRoom { what: what.to_owned(), limit: self.options.jobs as u64 };
        if jobs.present.len() >= self.options.jobs {
            return Err(no_room("the number of jobs"));
        }
        let job = Job::begin(who.world, self.options.staging_bytes, who.job, Arc::downgrade(self))
            .map_err(|_| no_room("the memory for jobs"))?;
        jobs.present.insert(who.job, job.clone());
        jobs.served += 1;
        Ok(job)
    }

    fn forget_finished(&self) {
        let mut jobs = self.jobs();
        let over: Vec<u64> =
            jobs.present.iter().filter(|(_, job)| job.is_over()).map(|(number, _)| *number).collect();
        for number in over {
            if let Some(job) = jobs.present.remove(&number) {
                let (received, sent) = job.moved();
                jobs.past = (jobs.past.0 + received, jobs.past.1 + sent);
                job.node.close();
            }
        }
    }

    fn show_life(&self) {
        // What comes of it may need the jobs, too.
        let jobs: Vec<Arc<Job>> = self.jobs().present.values().cloned().collect();
        jobs.iter().for_each(|job| job.node.with(Engine::show_life));
    }

    fn stats(&self) -> ServerStats {
        let jobs = self.jobs();
        let (mut received, mut sent) = jobs.past;
        for job in jobs.present.values() {
            let moved = job.moved();
            (received, sent) = (received + moved.0, sent + moved.1);
        }
        ServerStats { jobs: jobs.present.len(), served: jobs.served, received, sent }
    }
}

impl Job {
    fn begin(world: u32, staging: usize, number: u64, server: Weak<Shared>) -> io::Result<Arc<Self>> {
        let layout = Layout { mates: 0, pool: staging, heap: 0 };
        let segment = Segment::create("herringbone-reducer", layout.bytes()).map_err(io::Error::other)?;
        let pool = layout.pool_at()..layout.bytes();
        let (roster, me) = known_members(world).map_err(io::Error::other)?;
        let engine = Engine::new(me, Endpoints::new(&roster), Staging::new(Arc::new(segment), pool), true);
        let bell = Arc::new(Bell::new()?);
        let surroundings = Box::new(OfJob { number, server });
        let node = Node::new(engine, bell, usize::MAX, surroundings)?;
        let job = Arc::new(Self {
            node,
            roster,
            connections: AtomicUsize::new(0),
            quiet: Mutex::new(Instant::now()),
        });
        let driven = job.node.clone();
        std::thread::Builder::new().name("hb-reduce".to_owned()).spawn(move || driven.drive_for_ever())?;
        Ok(job)
    }

    /// Whether all workers have gone, for a while.
    fn is_over(&self) -> bool {
        let mut quiet = self.quiet.lock().unwrap_or_else(PoisonError::into_inner);
        if self.connections.load(Ordering::SeqCst) > 0 {
            *quiet = Instant::now();
        }
        quiet.elapsed() >= EMPTY
    }

    fn moved(&self) -> (u64, u64) {
        let stats = self.node.stats();
        (stats.workers_tcp.received, stats.workers_tcp.sent)
    }
}

/// The members of a job as far as a reducer knows them: the workers, by their identities, and itself. Where they are is no
/// matter here, since they call.
pub(crate) fn known_members(world: u32) -> Result<(Roster, MemberId), RosterError> {
    let worker = |_| Process { address: String::new(), host: 0, incarnation: 0 };
    let workers = Roster::founded((0..world).map(worker).collect(), &[])?;
    workers.with_joined(Role::Reducer, "this reducer".to_owned(), None, None)
}

/// A job's engine speaks to the server, and to the workers.
struct OfJob {
    number: u64,
    server: Weak<Shared>,
}

impl Surroundings for OfJob {
    fn handle(&self, events: Vec<Event>) {
        let Some(server) = self.server.upgrade() else { return };
        let Some(job) = server.jobs().present.get(&self.number).cloned() else { return };
        for event in events {
            if let Event::Broken { endpoint, reason } = &event {
                let who = format!("reducer, job {:016x}", self.number);
                let name = job.roster.name(*endpoint);
                let what = format_args!("{name} is gone: {reason}");
                match reason {
                    Broken::Closed | Broken::Io(_) => crate::log::info(&who, what),
                    // It hears only that its connection was closed.
                    Broken::Corrupt | Broken::Protocol(_) | Broken::Silent(_) => crate::log::warn(&who, what),
                }
                job.connections.fetch_sub(1, Ordering::SeqCst);
            }
            job.node.with(|engine| heed(engine, event));
        }
    }
}

/// Does what a reducer's engine asks for: it has no hub, so it tells a worker what went wrong.
pub(crate) fn heed(engine: &mut Engine, event: Event) {
    match event {
        Event::Broken { endpoint, .. } => engine.drop_operations_with(endpoint),
        Event::Dispute { group, generation, cause } => {
            let Some(state) = engine.groups.get(group) else { return };
            let members = state.settings.ranks.clone();
            let is_up = |member: &MemberId| engine.links.endpoints[*member].is_up();
            let lowest = state.settings.members().iter().copied().find(is_up);
            let dispute = Message::Dispute(Dispute { group, generation, members, cause });
            if let Some(lowest) = lowest {
                engine.say(lowest, &dispute);
            }
        }
        Event::Want(_) | Event::ToHub(_) | Event::Control { .. } => {}
    }
}
