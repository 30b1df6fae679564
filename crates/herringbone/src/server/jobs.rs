//! The jobs that a reducer serves: each with an engine, a thread and memory of its own.

use super::journal::{JobNews, JobSummary, WorkerEnd};
use crate::{
    clock::Moment,
    config::{WaitLimits, settings},
    core::session::{
        Refusal, Role,
        control::Message,
        handshake::{Claim, Identity, Purpose},
        membership::{MEMBERS, MemberId},
        status::JobStatus,
    },
    engine::{Engine, outbox::Event, rules::EngineRules, status::job_status},
    execute::staging::Staging,
    fabric::{
        acceptor,
        answer::{Inquiry, ReducerAnswer},
        greet::{self, GreetError},
        recorder::{self, FlightRecorder},
        reducers,
    },
    node::{EventHandler, Node},
    observe::Sink,
    sys::{doorbell::Bell, segment::Segment},
    table::TableService,
    timeline::{JobTimeline, TimelineMember, TimelineOwner},
    transport::{
        Broken,
        endpoint::{Endpoint, Endpoints, Link},
        layout::Layout,
        stats::Moved,
    },
};
use std::{
    collections::BTreeMap,
    io,
    net::TcpStream,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// How long a job without connections is kept.
const EMPTY: Duration = Duration::from_secs(2);

/// The counters of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerStats {
    /// Jobs that are being served.
    pub jobs: usize,
    /// Jobs that were served since the start, including these.
    pub served: u64,
    /// Payload bytes received from workers of present jobs.
    pub received: u64,
    /// Payload bytes sent to workers of present jobs.
    pub sent: u64,
}

/// How a server stands at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerFigures {
    /// Its counters, without the traffic of jobs that are left out.
    pub stats: ServerStats,
    /// The jobs that it serves.
    pub jobs: Vec<ServedFigures>,
    /// How many jobs are left out, because other threads have their engines for 0.4 s on end.
    pub busy: usize,
}

/// A job, as one of its reducers sees it at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServedFigures {
    /// Its number.
    pub job: u64,
    /// How many workers it has, by their report.
    pub world: u32,
    /// The address of its rank 0, which knows all members, as far as the reducer knows it.
    pub hub: Option<String>,
    /// How it stands here.
    pub status: JobStatus,
    /// Payload bytes that were exchanged with its workers.
    pub moved: Moved,
    /// Bytes of staging memory that operations have now.
    pub staged: u64,
    /// Bytes of staging memory.
    pub staging: u64,
}

/// The jobs of a reducer. Their lock is held for moments only, and no engine's lock is waited for under it.
pub(super) struct Jobs {
    /// How many there may be at once.
    most: usize,
    /// Bytes of staging memory of each.
    staging: usize,
    incarnation: u64,
    /// Whether workers are told to go on without this reducer.
    drains: AtomicBool,
    table: Mutex<Table>,
    /// What each job's engine tells, from its beginning.
    sinks: Mutex<Vec<Box<MakeSink>>>,
}

/// Makes a sink for the job of a number.
pub(super) type MakeSink = dyn Fn(u64) -> Box<dyn Sink> + Send + Sync;

#[derive(Default)]
struct Table {
    present: BTreeMap<u64, Arc<Job>>,
    /// How many jobs were served, and what has moved for those that are over.
    past: ServerStats,
}

struct Job {
    node: Arc<Node>,
    world: u32,
    connections: AtomicUsize,
    quiet: Mutex<Instant>,
    /// Who the workers are that have called.
    callers: Mutex<BTreeMap<u32, Caller>>,
    /// What the journal has not told yet.
    news: Mutex<JobNews>,
    /// Whether a thread waits for the engine, to show its workers that it lives.
    shows_life: AtomicBool,
    timeline: Mutex<Option<JobTimeline>>,
    /// Writes what its engine has done last when a worker is lost.
    recorder: Arc<FlightRecorder>,
}

/// A worker that has called. Within a job it has one life: a process that is started again is of another job.
struct Caller {
    incarnation: u64,
    address: String,
    /// Whether it is being let in.
    enters: bool,
}

impl Jobs {
    /// None, and room for so many.
    pub(super) fn new(most: usize, staging: usize, incarnation: u64) -> Self {
        let (drains, table, sinks) = (AtomicBool::new(false), Mutex::default(), Mutex::default());
        Self { most, staging, incarnation, drains, table, sinks }
    }

    /// Has the engines of jobs that come from now on tell what happens.
    pub(super) fn listen(&self, make: Box<MakeSink>) {
        self.sinks.lock().unwrap_or_else(PoisonError::into_inner).push(make);
    }

    fn new_sinks(&self, job: u64) -> Vec<Box<dyn Sink>> {
        let sinks = self.sinks.lock().unwrap_or_else(PoisonError::into_inner);
        sinks.iter().map(|make| make(job)).collect()
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn present(&self) -> Vec<Arc<Job>> {
        self.table().present.values().cloned().collect()
    }

    /// Lets a worker in that has proved itself, or tells it why not.
    pub(super) fn admit(self: &Arc<Self>, mut stream: TcpStream, claim: Claim) -> Result<(), GreetError> {
        let who = claim.hello().identity;
        match claim.hello().purpose {
            Purpose::Greeting => return self.greet(stream, claim),
            Purpose::Enlist => return self.tell_hubs(stream, claim),
            _ => {}
        }
        if claim.hello().purpose != Purpose::Data || who.role != Role::Worker || who.world as usize >= MEMBERS
        {
            greet::refuse(&mut stream, claim, &Refusal::Unexpected { role: who.role, rank: who.rank });
            return Ok(());
        }
        let address = stream.peer_addr().map(|address| address.to_string()).unwrap_or_default();
        let job = match self.job(who) {
            Ok(job) => job,
            Err(refusal) => {
                greet::refuse(&mut stream, claim, &refusal);
                return Ok(());
            }
        };
        let entered = match job.begin_entry(who, address.clone()) {
            Ok(()) => {
                let entered = self.connect(&job, who, claim, stream);
                job.end_entry(who.rank);
                if matches!(entered, Ok(true)) {
                    job.news().arrived.push((who.rank, address));
                }
                entered
            }
            Err(refusal) => {
                greet::refuse(&mut stream, claim, &refusal);
                Ok(false)
            }
        };
        if !matches!(entered, Ok(true)) {
            job.connections.fetch_sub(1, Ordering::SeqCst);
        }
        entered.map(drop)
    }

    fn identity(&self, job: u64) -> Identity {
        identity(job, 1, self.incarnation)
    }

    /// Somebody wants to know whether this is a reducer that it could use.
    fn greet(&self, mut stream: TcpStream, claim: Claim) -> Result<(), GreetError> {
        if self.table().present.len() >= self.most {
            greet::refuse(&mut stream, claim, &self.no_room("the number of jobs"));
            return Ok(());
        }
        greet::welcome(&mut stream, claim, self.identity(0)).map(drop)
    }

    fn no_room(&self, what: &str) -> Refusal {
        Refusal::NoRoom { what: what.to_owned(), limit: self.most as u64 }
    }

    /// Tells another reducer where the hubs of the jobs are.
    fn tell_hubs(&self, mut stream: TcpStream, claim: Claim) -> Result<(), GreetError> {
        let mut channel = greet::channel(greet::welcome(&mut stream, claim, self.identity(0))?);
        reducers::receive_address(&mut stream, &mut channel)?;
        let hubs = self
            .present()
            .into_iter()
            .filter_map(|job| job.node.with(|engine| engine.runtime.links.hub.clone()));
        greet::send(&mut stream, &mut channel, &Message::Enlisted { hubs: hubs.collect() })
    }

    /// Tells the workers of all jobs that nothing more is begun here.
    pub(super) fn say_goodbye(&self) {
        self.drains.store(true, Ordering::SeqCst);
        self.present().iter().for_each(|job| job.node.with(|engine| engine.broadcast_control(&Message::Bye)));
    }

    /// Whether there are jobs that have not gone on without this reducer.
    pub(super) fn are_needed(&self) -> bool {
        let is_needed = |job: &Arc<Job>| {
            let connections = job.connections.load(Ordering::SeqCst);
            connections > 0 && job.node.with(|engine| engine.has_groups())
        };
        self.present().iter().any(is_needed)
    }

    /// What there is to tell of the present jobs.
    pub(super) fn summaries(&self) -> BTreeMap<u64, JobSummary> {
        let present: Vec<(u64, Arc<Job>)> =
            self.table().present.iter().map(|(number, job)| (*number, job.clone())).collect();
        let summary = |(number, job): (u64, Arc<Job>)| {
            let news = std::mem::take(&mut *job.news());
            let (received, sent) = job.moved();
            let (name, operations) = job
                .node
                .with(|engine| (engine.runtime.links.job.clone(), engine.runtime.out.observer.next()));
            (number, JobSummary { name, world: job.world, operations, received, sent, news })
        };
        present.into_iter().map(summary).collect()
    }

    /// How it stands, with the present jobs whose engines are free for a moment soon.
    pub(super) fn figures(&self) -> ServerFigures {
        let (present, past) = {
            let table = self.table();
            let of = |(number, job): (&u64, &Arc<Job>)| (*number, job.clone());
            (table.present.iter().map(of).collect::<Vec<_>>(), table.past)
        };
        let until = Instant::now() + recorder::PATIENCE;
        let figures = |(number, job): &(u64, Arc<Job>)| {
            recorder::soon(&job.node, until, |engine| {
                let staging = &engine.runtime.ops.staging;
                ServedFigures {
                    job: *number,
                    world: job.world,
                    hub: engine.runtime.links.hub.clone(),
                    status: job_status(engine, 1),
                    moved: engine.counted().workers_tcp,
                    staged: staging.in_use() as u64,
                    staging: staging.bytes() as u64,
                }
            })
        };
        let jobs: Vec<ServedFigures> = present.iter().filter_map(figures).collect();
        let mut stats = ServerStats { jobs: present.len(), ..past };
        for job in &jobs {
            stats.received += job.moved.received;
            stats.sent += job.moved.sent;
        }
        ServerFigures { stats, busy: present.len() - jobs.len(), jobs }
    }

    /// Answers who asks how this process stands: with its jobs, and the tables that it keeps beside, if it does.
    pub(super) fn answer(
        &self,
        stream: TcpStream,
        claim: Claim,
        tables: Option<&TableService>,
    ) -> Result<(), GreetError> {
        let own = self.identity(claim.hello().identity.job);
        Inquiry::new(stream, claim).answer_of_reducer(own, || {
            let table = self.table();
            let of = |(number, job): (&u64, &Arc<Job>)| (*number, job.world, job.node.clone());
            let (present, served) = (table.present.iter().map(of).collect(), table.past.served);
            let tables = Box::new(|| tables.map(|tables| tables.status().unwrap_or_default()));
            ReducerAnswer { served, present, tables }
        })
    }

    /// Returns whether there is a link now.
    fn connect(
        &self,
        job: &Job,
        who: Identity,
        claim: Claim,
        mut stream: TcpStream,
    ) -> Result<bool, GreetError> {
        let worker = MemberId::new(who.rank);
        let is_up =
            job.node.with(|engine| engine.runtime.links.endpoints.get(worker).is_some_and(Endpoint::is_up));
        if is_up {
            // A caller whose first call took too long calls again: once the first is over here, it is let in.
            let what = format!("the number of connections of rank {}", who.rank);
            greet::refuse(&mut stream, claim, &Refusal::NoRoom { what, limit: 1 });
            return Ok(false);
        }
        let keys = greet::welcome(&mut stream, claim, self.identity(who.job))?.keys;
        let link = acceptor::into_link(stream, keys, WaitLimits::default().patience)?;
        job.node.with(|engine| {
            engine.runtime.links.endpoints.meet(&[worker]);
            engine.connect(worker, Link::Tcp(link));
        });
        job.node.wake();
        Ok(true)
    }

    /// The job that a worker belongs to, with one more connection; begun if this is its first worker here.
    fn job(self: &Arc<Self>, who: Identity) -> Result<Arc<Job>, Refusal> {
        let mut table = self.table();
        if let Some(job) = table.present.get(&who.job) {
            if job.world != who.world {
                return Err(Refusal::World { rank: who.rank, ours: job.world, theirs: who.world });
            }
            job.connections.fetch_add(1, Ordering::SeqCst);
            return Ok(job.clone());
        }
        if table.present.len() >= self.most {
            return Err(self.no_room("the number of jobs"));
        }
        let job = Job::begin(who.world, self.staging, who.job, Arc::downgrade(self))
            .map_err(|_| self.no_room("the memory for jobs"))?;
        table.present.insert(who.job, job.clone());
        table.past.served += 1;
        Ok(job)
    }

    pub(super) fn forget_finished(&self) {
        let over = |table: &Table| -> Vec<(u64, Arc<Job>)> {
            let over = table.present.iter().filter(|(_, job)| job.is_over());
            over.map(|(number, job)| (*number, job.clone())).collect()
        };
        let finished = over(&self.table());
        for (number, job) in finished {
            let (received, sent) = job.moved();
            let mut table = self.table();
            // A worker may have called meanwhile.
            if job.is_over() && table.present.remove(&number).is_some() {
                table.past.received += received;
                table.past.sent += sent;
                drop(table);
                job.end();
            }
        }
    }

    /// Shows the workers of all jobs that this process lives. One job's engine that is busy keeps no other's workers waiting.
    pub(super) fn show_life(&self) {
        for job in self.present() {
            let shown = job.node.with_if_free(Engine::show_life).is_some();
            if shown || job.shows_life.swap(true, Ordering::SeqCst) {
                continue;
            }
            let waiting = job.clone();
            let spawned = std::thread::Builder::new().name("hb-reduce-life".to_owned()).spawn(move || {
                waiting.node.with(Engine::show_life);
                waiting.shows_life.store(false, Ordering::SeqCst);
            });
            if spawned.is_err() {
                job.shows_life.store(false, Ordering::SeqCst);
            }
        }
    }

    pub(super) fn stats(&self) -> ServerStats {
        let (present, past) = {
            let table = self.table();
            (table.present.values().cloned().collect::<Vec<_>>(), table.past)
        };
        let all = ServerStats { jobs: present.len(), ..past };
        present.iter().map(|job| job.moved()).fold(all, |all, (received, sent)| ServerStats {
            received: all.received + received,
            sent: all.sent + sent,
            ..all
        })
    }

    /// Does something with the engine of a job.
    #[cfg(test)]
    pub(super) fn with_engine<R>(&self, number: u64, f: impl FnOnce(&mut Engine) -> R) -> R {
        let job = self.table().present[&number].clone();
        job.node.with(f)
    }

    pub(super) fn close(&self) {
        self.present().iter().for_each(|job| job.end());
    }
}

impl Job {
    /// Begins with one connection, of the worker that has called. What it costs does not depend on what that claims.
    fn begin(world: u32, staging: usize, number: u64, jobs: Weak<Jobs>) -> io::Result<Arc<Self>> {
        let layout = Layout { locals: 0, pool: staging, heap: 0 };
        let segment = Segment::create("herringbone-reducer", layout.bytes()).map_err(io::Error::other)?;
        let pool = layout.pool_at()..layout.bytes();
        let (endpoints, me) = Endpoints::of_reducer(world);
        let engine =
            Engine::new(me, endpoints, Staging::new(Arc::new(segment), pool), true, EngineRules::DEFAULT);
        let bell = Arc::new(Bell::new()?);
        let (sinks, incarnation) =
            jobs.upgrade().map_or_else(Default::default, |jobs| (jobs.new_sinks(number), jobs.incarnation));
        let node = Node::new(engine, bell, usize::MAX, Box::new(JobEvents { number, jobs }))?;
        node.with(|engine| {
            for sink in sinks {
                engine.runtime.out.observer.listen(sink, Moment::exact);
            }
        });
        let recorder = FlightRecorder::of(identity(number, world, incarnation));
        recorder.attach(&node);
        let timeline = settings::timeline_folder().and_then(|folder| timeline(&node, folder, number, world));
        let job = Arc::new(Self {
            node,
            world,
            connections: AtomicUsize::new(1),
            quiet: Mutex::new(Instant::now()),
            callers: Mutex::default(),
            news: Mutex::default(),
            shows_life: AtomicBool::new(false),
            timeline: Mutex::new(timeline),
            recorder,
        });
        let driven = job.node.clone();
        std::thread::Builder::new().name("hb-reduce".to_owned()).spawn(move || driven.drive_for_ever())?;
        Ok(job)
    }

    /// Its thread and its timeline end.
    fn end(&self) {
        self.node.close();
        let timeline = self.timeline.lock().unwrap_or_else(PoisonError::into_inner).take();
        timeline.into_iter().for_each(JobTimeline::stop);
    }

    fn callers(&self) -> MutexGuard<'_, BTreeMap<u32, Caller>> {
        self.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn news(&self) -> MutexGuard<'_, JobNews> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How a worker's connection has ended: with a goodbye, because this reducer `drains`, or with the worker.
    fn end_of(&self, worker: MemberId, reason: &Broken, drains: bool) -> WorkerEnd {
        let (said_bye, departure) = self.node.with(|engine| {
            let endpoint = &engine.runtime.links.endpoints[worker];
            (endpoint.drains, engine.describe_departure(worker))
        });
        let is_quiet = matches!(reason, Broken::Closed | Broken::Io(_));
        let rank = worker.number();
        let line = match reason {
            _ if said_bye && is_quiet => departure,
            _ if drains && is_quiet => format!("rank {rank} continues without this reducer"),
            Broken::Closed => format!("rank {rank} is lost: its connection has ended without a goodbye"),
            _ => format!("rank {rank} is lost: {reason}"),
        };
        WorkerEnd { rank, in_order: is_quiet && (said_bye || drains), line }
    }

    /// A worker calls from `address`: it has to be the one that has called before, if any has, and to come alone.
    fn begin_entry(&self, who: Identity, address: String) -> Result<(), Refusal> {
        let Identity { rank, incarnation, .. } = who;
        let mut callers = self.callers();
        let caller = callers.entry(rank).or_insert_with(|| Caller {
            incarnation,
            address: address.clone(),
            enters: false,
        });
        if caller.incarnation != incarnation {
            let first = caller.address.clone();
            return Err(Refusal::DuplicateRank { rank, first, second: address });
        }
        if std::mem::replace(&mut caller.enters, true) {
            let what = format!("the number of calls at once of rank {rank}");
            return Err(Refusal::NoRoom { what, limit: 1 });
        }
        Ok(())
    }

    fn end_entry(&self, rank: u32) {
        if let Some(caller) = self.callers().get_mut(&rank) {
            caller.enters = false;
        }
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

/// This reducer in a job of so many workers.
fn identity(job: u64, world: u32, incarnation: u64) -> Identity {
    Identity { role: Role::Reducer, job, rank: 0, world, incarnation }
}

/// Has a timeline written of what a job's engine does here.
fn timeline(node: &Node, folder: PathBuf, job: u64, world: u32) -> Option<JobTimeline> {
    let owner = TimelineOwner { job, me: TimelineMember::reducer(0), world, members: BTreeMap::new() };
    match JobTimeline::start_later(folder, owner) {
        Ok((timeline, sink)) => {
            node.with(|engine| engine.runtime.out.observer.listen(sink, Moment::exact));
            Some(timeline)
        }
        Err(error) => {
            let who = format!("reducer, job {job:016x}");
            crate::log::warn(&who, format_args!("this job has no timeline: {error}"));
            None
        }
    }
}

/// A job's engine speaks to the server, and to the workers.
struct JobEvents {
    number: u64,
    jobs: Weak<Jobs>,
}

impl EventHandler for JobEvents {
    fn handle(&self, events: Vec<Event>) {
        let Some(jobs) = self.jobs.upgrade() else { return };
        let Some(job) = jobs.table().present.get(&self.number).cloned() else { return };
        for event in events {
            match event {
                Event::Broken { endpoint, reason } => {
                    let end = job.end_of(endpoint, &reason, jobs.drains.load(Ordering::SeqCst));
                    if !end.in_order {
                        // What it has not sent is known now alone: the others leave its groups soon.
                        job.recorder.failed();
                    }
                    job.news().departed.push(end);
                    job.connections.fetch_sub(1, Ordering::SeqCst);
                }
                // A reducer asks for no links, has no hub, and hears of no failure but that a worker is lost.
                Event::Want(_) | Event::ToHub(_) | Event::Failed => {}
            }
        }
    }
}
