//! What a process has besides its engine: a port, connections to the others, and a thread that watches over them.
//!
//! A world is a star for control (everyone to rank 0, the hub) and whatever its schedules need for data: links are made
//! when an operation first needs them, by the lower of the two ranks.

pub(crate) mod connection;
pub(crate) mod control;
pub(crate) mod door;
pub(crate) mod formation;
pub(crate) mod greet;
pub(crate) mod links;
pub(crate) mod wire_up;

use crate::{
    core::{
        algorithm::{Algorithm, Layout, Unsupported},
        collective::Collective,
        group::FoldOrder,
        session::{
            Role,
            handshake::{Hello, Identity, Policy, Purpose, Versions},
        },
    },
    engine::{Engine, Event},
    node::{FLUSH, Node, Surroundings},
    sys::doorbell::Bell,
};
use control::Command;
use std::{
    collections::VecDeque,
    fmt,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
};

/// What all parts of a process know of its job.
#[derive(Clone)]
pub(crate) struct Job {
    pub(crate) id: u64,
    pub(crate) rank: u32,
    pub(crate) world: u32,
    pub(crate) incarnation: u64,
    pub(crate) token: Vec<u8>,
    /// The address that data links are called from; the system's choice if none.
    pub(crate) from: Option<IpAddr>,
    pub(crate) members: Vec<crate::core::session::formation::Member>,
    pub(crate) reducers: Vec<String>,
}

impl Job {
    pub(crate) fn identity(&self) -> Identity {
        Identity {
            role: Role::Worker,
            job: self.id,
            rank: self.rank,
            world: self.world,
            incarnation: self.incarnation,
        }
    }

    pub(crate) fn hello(&self, purpose: Purpose) -> Hello {
        Hello { identity: self.identity(), purpose, versions: Versions::CURRENT }
    }

    pub(crate) fn policy(&self) -> Policy {
        Policy { versions: Versions::CURRENT, job: Some(self.id), world: Some(self.world) }
    }

    /// What people call an endpoint.
    pub(crate) fn name(&self, endpoint: u32) -> String {
        match endpoint.checked_sub(self.world) {
            None => format!("rank {endpoint}"),
            Some(reducer) => self.reducers[reducer as usize].clone(),
        }
    }

    /// The ranks of my host, ascending: those that claim to share its memory.
    pub(crate) fn mates(&self) -> Vec<u32> {
        let own = self.members[self.rank as usize].host;
        self.members.iter().filter(|member| member.host == own).map(|member| member.rank).collect()
    }

    /// The host of each rank, numbered in the order of their first ranks.
    pub(crate) fn hosts(&self) -> Vec<u32> {
        let mut seen: Vec<u64> = Vec::new();
        let number = |host: u64, seen: &mut Vec<u64>| {
            seen.iter().position(|at| *at == host).unwrap_or_else(|| {
                seen.push(host);
                seen.len() - 1
            }) as u32
        };
        self.members.iter().map(|member| number(member.host, &mut seen)).collect()
    }

    /// How hosts stand against a forced algorithm, if they do: then sizes decide.
    pub(crate) fn stands_against(&self, forced: &Algorithm, order: FoldOrder) -> Option<Unsupported> {
        let hosts = self.hosts();
        let group = order.group(&hosts);
        let layout = Layout { reducers: self.reducers.len() as u32, hosts: &hosts };
        let reason = forced.schedule(Collective::AllReduce, &group, &layout).err()?;
        reason.is_layout().then_some(reason)
    }

    /// The name of the socket at which a rank hands out its segment, scoped by the network namespace.
    pub(crate) fn segment_socket(&self, rank: u32) -> String {
        format!("herringbone/{:016x}/{rank}/{:016x}", self.id, self.members[rank as usize].incarnation)
    }
}

/// Work for the control thread, from any thread.
pub(crate) struct Commands {
    queue: Mutex<VecDeque<Command>>,
    pub(crate) bell: Bell,
}

impl Commands {
    pub(crate) fn new() -> std::io::Result<Arc<Self>> {
        Ok(Arc::new(Self { queue: Mutex::default(), bell: Bell::new()? }))
    }

    pub(crate) fn send(&self, command: Command) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).push_back(command);
        // The control thread looks ten times a second in any case.
        let _rung = self.bell.ring();
    }

    pub(crate) fn take(&self) -> VecDeque<Command> {
        std::mem::take(&mut *self.queue.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The engine's events become commands.
pub(crate) struct ToControl(pub(crate) Arc<Commands>);

impl Surroundings for ToControl {
    fn handle(&self, events: Vec<Event>) {
        events.into_iter().for_each(|event| self.0.send(Command::Event(event)));
    }
}

/// A process's place in a world.
pub(crate) struct Fabric {
    pub(crate) job: Job,
    pub(crate) node: Arc<Node>,
    pub(crate) commands: Arc<Commands>,
    pub(crate) settings: crate::communicator::Shared,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Fabric {
    pub(crate) fn new(
        job: Job,
        node: Arc<Node>,
        commands: Arc<Commands>,
        settings: crate::communicator::Shared,
        threads: Vec<JoinHandle<()>>,
    ) -> Arc<Self> {
        Arc::new(Self { job, node, commands, settings, threads: Mutex::new(threads) })
    }

    /// Whether this is a child of the process that formed the fabric.
    pub(crate) fn is_forked(&self) -> bool {
        self.node.is_forked()
    }

    /// Leaves in order: lets operations end that all ranks have issued, says goodbye once what was sent is on its way, and ends
    /// the threads.
    pub(crate) fn close(&self) {
        if self.is_forked() {
            return;
        }
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        if threads.is_empty() {
            return;
        }
        let (who, seconds) = (format!("rank {}", self.job.rank), FLUSH.as_secs());
        self.node.with(Engine::drop_all_groups);
        if let Some((count, name)) = self.node.see_to_the_end() {
            let others = if count == 1 { String::new() } else { format!(" and {} more", count - 1) };
            crate::log::warn(
                &who,
                format_args!(
                    "leaving before {name}{others} ended here, as nothing moved for {seconds} s: make every rank call the same \
                     operations before it leaves"
                ),
            );
        }
        self.node.with(Engine::abort_all_groups);
        if !self.node.flush_out() {
            crate::log::warn(
                &who,
                format_args!(
                    "leaving though others have not taken all that was sent to them, and nothing of it for {seconds} s"
                ),
            );
        }
        self.commands.send(Command::Close);
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
        self.close();
    }
}

/// What people are told of it.
impl fmt::Display for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fabric { job, settings, .. } = self;
        let (here, reducers) = (job.mates().len(), job.reducers.len());
        let s = if reducers == 1 { "" } else { "s" };
        write!(f, "rank {} of {}, {here} on this host, {reducers} reducer{s}", job.rank, job.world)?;
        let taken =
            settings.forced.as_ref().filter(|forced| job.stands_against(forced, settings.order).is_none());
        if reducers > 0 && here == job.world as usize && taken.is_none() {
            f.write_str(" that one host does not need")?;
        }
        match (&settings.forced, taken) {
            (_, Some(algorithm)) => write!(f, ", {algorithm} forced for all_reduce")?,
            (Some(algorithm), None) => write!(f, ", all_reduce by size and not by the forced {algorithm}")?,
            (None, None) => {}
        }
        if settings.order != FoldOrder::default() {
            write!(f, ", sums in the order of {}", settings.order.name())?;
        }
        if let Some(transport) = settings.transport {
            write!(f, ", {} forced", transport.name())?;
        }
        write!(f, ", timeout {} s", settings.timeout.as_secs_f64())
    }
}
