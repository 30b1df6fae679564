//! The network of a process: a port, connections to the other processes, and the control thread that watches them.
//!
//! A world is a star for control (every rank is connected to rank 0, the hub) and has whatever links its schedules need
//! for data. The lower of two ranks makes a link when an operation first needs it.

pub(crate) mod acceptor;
pub(crate) mod answer;
mod arrival;
pub(crate) mod command;
pub(crate) mod connection;
pub(crate) mod control;
pub(crate) mod decline;
pub(crate) mod dial;
pub(crate) mod election;
mod enter;
pub(crate) mod formation;
pub(crate) mod greet;
mod hub_address;
pub(crate) mod links;
mod owner;
mod pending_connections;
pub(crate) mod recorder;
pub(crate) mod reducers;
pub(crate) mod same_host;
pub(crate) mod wire_up;

use crate::{
    Error, Result,
    clock::Moment,
    completion::Completion,
    config::{Config, Transport},
    core::{
        algorithm::{Algorithm, Layout, Unsupported},
        collective::Collective,
        group::Rank,
        plan::Guidance,
        session::{
            Parameters, Role,
            formation::JobName,
            handshake::{Hello, Identity, Policy, Purpose, Versions},
            membership::{MemberId, Roster},
        },
    },
    engine::Engine,
    execute::issue::WORLD_GROUP,
    node::{FLUSH, Node},
    observe::ListenerId,
    timeline::{JobTimeline, MeasureClocks, TimelineMember, TimelineOwner},
};
use command::{Command, Commands};
use std::{
    fmt,
    net::IpAddr,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// How long a rank that leaves groups waits for others to confirm its calls in them.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The facts about a job that all parts of a process use.
#[derive(Clone)]
pub(crate) struct Job {
    pub(crate) id: u64,
    /// This process.
    pub(crate) me: MemberId,
    pub(crate) rank: Rank,
    pub(crate) roster: Arc<Roster>,
    pub(crate) incarnation: u64,
    pub(crate) token: Vec<u8>,
    /// The address that data links are called from; the system's choice if none.
    pub(crate) from: Option<IpAddr>,
    /// What launchers call it, as far as this process knows.
    pub(crate) names: Vec<JobName>,
    /// How long another rank may be silent.
    pub(crate) patience: Duration,
}

impl Job {
    pub(crate) fn identity(&self) -> Identity {
        Identity {
            role: Role::Worker,
            job: self.id,
            rank: self.rank,
            world: self.roster.world(),
            incarnation: self.incarnation,
        }
    }

    pub(crate) fn hello(&self, purpose: Purpose) -> Hello {
        Hello { identity: self.identity(), purpose, versions: Versions::CURRENT }
    }

    pub(crate) fn policy(&self) -> Policy {
        Policy { versions: Versions::CURRENT, job: Some(self.id), world: Some(self.roster.world()) }
    }

    /// What launchers or users call it, if they do.
    pub(crate) fn name(&self) -> Option<&str> {
        self.names.first().map(|name| &*name.name)
    }

    /// The workers of my host, with mine, ascending: those that claim to share its memory.
    pub(crate) fn locals(&self) -> Vec<MemberId> {
        self.roster.locals(self.me)
    }

    /// Of whom a timeline of this process is.
    fn timeline_owner(&self) -> TimelineOwner {
        let workers = (0..).zip(self.roster.workers());
        let workers = workers.map(|(rank, worker)| (worker.id, TimelineMember::rank(rank, worker.id)));
        let reducers = (0..).zip(self.roster.reducers());
        let reducers = reducers.map(|(number, reducer)| (reducer.id, TimelineMember::reducer(number)));
        TimelineOwner {
            job: self.id,
            me: TimelineMember::rank(self.rank, self.me),
            world: self.roster.world(),
            members: workers.chain(reducers).collect(),
        }
    }

    /// The life of a worker.
    pub(crate) fn incarnation_of(&self, worker: MemberId) -> Option<u64> {
        self.roster.member(worker)?.incarnation
    }

    /// Why the hosts cannot take a forced algorithm, if they cannot: then sizes decide.
    pub(crate) fn unsupported(&self, forced: &Algorithm, parameters: &Parameters) -> Option<Unsupported> {
        let hosts = self.roster.hosts();
        let ranks: Vec<Rank> = (0..hosts.len() as Rank).collect();
        let group = parameters.order.group(&hosts, &parameters.wiring.sites_of(&ranks));
        let layout = Layout {
            reducers: self.roster.reducers().count() as u32,
            hosts: &hosts,
            links: parameters.wiring.links.as_ref(),
        };
        let reason = forced.schedule(Collective::AllReduce, &group, &layout).err()?;
        reason.is_layout().then_some(reason)
    }

    /// The name of the socket at which a worker of a life hands out its segment, scoped by the network namespace.
    pub(crate) fn segment_socket(&self, worker: MemberId, incarnation: u64) -> String {
        format!("herringbone/{:016x}/{}/{incarnation:016x}", self.id, worker.number())
    }
}

/// What all groups of a fabric have in common.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    /// What rank 0 has decided.
    pub(crate) parameters: Arc<Parameters>,
    /// What of it decides the choice of algorithms, and the transport that it forces.
    pub(crate) guidance: Arc<Guidance>,
    pub(crate) transport: Option<Transport>,
    pub(crate) timeout: Duration,
    pub(crate) manual_progress: bool,
}

/// A process's place in a world.
pub(crate) struct Fabric {
    pub(crate) job: Job,
    pub(crate) node: Arc<Node>,
    pub(crate) commands: Arc<Commands>,
    pub(crate) settings: Shared,
    /// What the process was first started with, unless its ranks are threads.
    pub(crate) origin: Option<Arc<Config>>,
    /// The group whose end is the job's.
    whole: Arc<AtomicU32>,
    /// Whether it has ended so that the job can form anew.
    is_dissolving: AtomicBool,
    threads: Mutex<Vec<JoinHandle<()>>>,
    timeline: Mutex<Option<RunningTimeline>>,
    timelines_start: Mutex<()>,
}

/// A timeline that is written of what the engine tells.
struct RunningTimeline {
    timeline: JobTimeline,
    listener: ListenerId,
}

impl Fabric {
    pub(crate) fn new(
        job: Job,
        node: Arc<Node>,
        commands: Arc<Commands>,
        settings: Shared,
        origin: Option<Arc<Config>>,
        threads: Vec<JoinHandle<()>>,
    ) -> Arc<Self> {
        let (whole, is_dissolving) = (Arc::new(AtomicU32::new(WORLD_GROUP)), AtomicBool::new(false));
        let threads = Mutex::new(threads);
        let (timeline, timelines_start) = (Mutex::default(), Mutex::default());
        Arc::new(Self {
            job,
            node,
            commands,
            settings,
            origin,
            whole,
            is_dissolving,
            threads,
            timeline,
            timelines_start,
        })
    }

    /// Has a timeline written from now on, in place of the one that was, if any.
    ///
    /// # Errors
    /// If its file cannot be written.
    pub(crate) fn start_timeline(&self, folder: &Path, measure: Option<MeasureClocks>) -> Result<()> {
        // One call at a time: of two that overlap one listener would stay for ever.
        let _turn = self.timelines_start.lock().unwrap_or_else(PoisonError::into_inner);
        self.stop_timeline();
        let started = JobTimeline::start(folder, self.job.timeline_owner(), measure);
        let failed = |error| {
            let what =
                format_args!("{}: {error}; choose a folder that this process can write", folder.display());
            Error::config("the folder of a timeline", what).at(self.job.rank)
        };
        let (timeline, sink) = started.map_err(failed)?;
        let listener = self.node.with(|engine| engine.runtime.out.observer.listen(sink, Moment::exact));
        *self.running_timeline() = Some(RunningTimeline { timeline, listener });
        Ok(())
    }

    /// Ends the timeline, if one is written.
    pub(crate) fn stop_timeline(&self) {
        let running = self.running_timeline().take();
        let Some(RunningTimeline { timeline, listener }) = running.filter(|_| !self.is_forked()) else {
            return;
        };
        self.node.with(|engine| engine.runtime.out.observer.dismiss(listener));
        timeline.stop();
    }

    /// A step of the program begins, for the timeline.
    pub(crate) fn mark_step(&self) {
        if let Some(running) = &*self.running_timeline() {
            running.timeline.mark_step();
        }
    }

    fn running_timeline(&self) -> MutexGuard<'_, Option<RunningTimeline>> {
        self.timeline.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The job's end is that of another group from now on, if it was that of `group`.
    pub(crate) fn hand_on(&self, group: u32, to: u32) {
        // Another group's end is not the job's.
        let _other = self.whole.compare_exchange(group, to, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// The number of that group, for those that only look at it.
    pub(crate) fn whole(&self) -> &Arc<AtomicU32> {
        &self.whole
    }

    /// Whether the end of a group is that of the job.
    pub(crate) fn is_whole(&self, group: u32) -> bool {
        self.whole.load(Ordering::SeqCst) == group
    }

    /// Whether this is a child of the process that formed the fabric.
    pub(crate) fn is_forked(&self) -> bool {
        self.node.is_forked()
    }

    /// Leaves in order: lets operations end that all ranks have issued, finds out whether these have made the same calls, says goodbye
    /// once what was sent is on its way, and ends the threads.
    ///
    /// # Errors
    /// An operation that was complete here has failed elsewhere, and no call has learnt of it.
    pub(crate) fn close(&self) -> Result<()> {
        self.leave(Engine::close_all_groups)
    }

    /// Leaves in order. `close` ends the groups, and returns what to wait for.
    fn leave(&self, close: impl FnOnce(&mut Engine) -> Vec<Arc<Completion>>) -> Result<()> {
        if self.is_forked() {
            return Ok(());
        }
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        if threads.is_empty() {
            return Ok(());
        }
        let (who, seconds) = (format!("rank {}", self.job.rank), FLUSH.as_secs());
        let ends = self.node.with(close);
        let unfinished = self.node.see_to_the_end();
        let close_check = if unfinished.is_none() { CLOSE_TIMEOUT } else { Duration::ZERO };
        let said = self.wait_for_close_checks(&ends, close_check);
        if let Some((count, name)) = unfinished {
            let others = if count == 1 { String::new() } else { format!(" and {} more", count - 1) };
            crate::log::warn(
                &who,
                format_args!(
                    "leaving before {name}{others} ended here, because nothing moved for {seconds} s: make every rank call the same \
                     operations before it leaves"
                ),
            );
        }
        self.node.with(Engine::end_all_groups);
        if !self.node.flush_out() {
            crate::log::warn(
                &who,
                format_args!(
                    "leaving although other ranks have not read all data sent to them, and read nothing for {seconds} s"
                ),
            );
        }
        self.end(&mut threads, true);
        said
    }

    /// Waits until all ranks have confirmed what this one has called in groups that it closes.
    ///
    /// # Errors
    /// An operation that was complete here has failed elsewhere.
    pub(crate) fn check_before_close(&self, ends: &[Arc<Completion>]) -> Result<()> {
        self.wait_for_close_checks(ends, CLOSE_TIMEOUT)
    }

    /// For so long in all. Of several errors all but the first are warnings.
    fn wait_for_close_checks(&self, ends: &[Arc<Completion>], limit: Duration) -> Result<()> {
        let began = Instant::now();
        for end in ends {
            self.node.wait(end, Some(limit.saturating_sub(began.elapsed())));
        }
        self.node.with(|engine| engine.end_close_checks(ends));
        let mut errors = ends.iter().filter_map(|end| end.result()?.err());
        let first = errors.next();
        for error in errors {
            let what = format!("at the end of a group: {}", error.kind());
            crate::log::warn(&format!("rank {}", self.job.rank), what);
        }
        first.map_or(Ok(()), Err)
    }

    /// Leaves at once, so that the job can form anew.
    pub(crate) fn dissolve(&self) {
        self.is_dissolving.store(true, Ordering::SeqCst);
        self.abandon();
    }

    pub(crate) fn is_dissolving(&self) -> bool {
        self.is_dissolving.load(Ordering::SeqCst)
    }

    /// Leaves at once: operations in flight fail, and no rank is waited for. The job re-forms.
    pub(crate) fn abandon(&self) {
        if self.is_forked() {
            return;
        }
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        if !threads.is_empty() {
            // In this order nothing is asked: what comes next is another group.
            self.node.with(Engine::end_all_groups);
            self.node.with(Engine::drop_all_groups);
            self.end(&mut threads, false);
        }
    }

    fn end(&self, threads: &mut Vec<JoinHandle<()>>, lingers: bool) {
        // While others can still be asked for their clocks.
        self.stop_timeline();
        self.commands.send(Command::Close { lingers });
        self.node.hang_up();
        self.node.close();
        for thread in threads.drain(..) {
            // A thread that panicked has nothing left to say.
            let _ended = thread.join();
        }
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        // Nobody waits for the others, nor sees an error: one that is known is a warning.
        let _nobody_waits = self.leave(|engine| {
            engine.drop_all_groups();
            Vec::new()
        });
    }
}

/// What people are told of it.
impl fmt::Display for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fabric { job, settings, .. } = self;
        let (here, world) = (job.locals().len(), job.roster.world() as usize);
        write!(f, "rank {} of {world}", job.rank)?;
        if let Some(name) = job.names.first() {
            write!(f, " of job {} (by {})", name.name, name.source)?;
        }
        write!(f, ", {here} on this host")?;
        if world > 1 {
            let by_tcp = settings.transport == Some(Transport::Tcp);
            f.write_str(match (here, by_tcp) {
                (_, true) | (1, _) => " and all messages by TCP",
                (here, _) if here == world => " by shared memory",
                _ => " by shared memory and the others by TCP",
            })?;
            let forced = settings.transport.map_or("", |_| " (forced)");
            f.write_str(forced)?;
        }
        self.write_plan(f, here == world)?;
        write!(f, ", timeout {} s", settings.timeout.as_secs_f64())?;
        let Versions { max: protocol, .. } = Versions::CURRENT;
        write!(f, "; herringbone {}, protocol {protocol}, job id {:016x}", env!("CARGO_PKG_VERSION"), job.id)
    }
}

impl Fabric {
    /// How sums are made: by which algorithm, in which order, with which reducers.
    fn write_plan(&self, f: &mut fmt::Formatter<'_>, is_one_host: bool) -> fmt::Result {
        let Fabric { job, settings, .. } = self;
        let taken = settings
            .guidance
            .forced
            .as_ref()
            .filter(|forced| job.unsupported(forced, &settings.parameters).is_none());
        match (&settings.guidance.forced, taken) {
            (_, Some(algorithm)) => write!(f, ", {algorithm} forced for all_reduce")?,
            (Some(algorithm), None) => write!(f, ", all_reduce by size and not by the forced {algorithm}")?,
            (None, None) => f.write_str(", all_reduce by size")?,
        }
        write!(f, ", sums in the order of {}", settings.parameters.order.name())?;
        let reducers: Vec<&str> = job.roster.reducers().map(|reducer| &*reducer.address).collect();
        match &reducers[..] {
            [] => return f.write_str(", no reducers"),
            [reducer] => write!(f, ", the reducer {reducer}")?,
            [first, ..] => write!(f, ", {} reducers ({first}, ...)", reducers.len())?,
        }
        let is_idle = is_one_host && taken.is_none();
        f.write_str(if is_idle { " that one host does not need" } else { "" })
    }
}
