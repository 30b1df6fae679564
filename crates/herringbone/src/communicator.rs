//! Communicators: what programs call.

use crate::{
    Error, ErrorKind, Result,
    config::{Config, Transport},
    core::{
        algorithm::Algorithm,
        collective::Collective,
        element::{DType, Element, ReduceOp},
        session::{
            control::{Decoder, Message},
            fence::Member,
        },
        wire::digest,
    },
    engine::{
        Engine, Issue,
        endpoint::Endpoint,
        group::{Group, Settings},
        stats::Stats,
    },
    execute::{
        prepare::{Call, Sizing},
        staging::Staging,
    },
    fabric::{
        Commands, Fabric, Job, ToControl,
        control::{Command, Connection, Control, LAST_OUT, Start},
        formation::{self, World},
        greet,
        wire_up::Mapping,
    },
    node::Node,
    sys::{
        doorbell::Bell,
        fork::Guarded,
        plain::Plain,
        region::{Owned, Region},
        segment::Segment,
        socket,
    },
    transport::shm::{self, Layout},
    work::Pending,
};
use rustix::event::epoll;
use std::{
    collections::BTreeMap,
    fmt, io,
    net::TcpListener,
    os::unix::net::UnixStream,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// The number of the group of all ranks.
const WORLD_GROUP: u32 = 0;

/// What all groups of a fabric have in common.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    pub(crate) forced: Option<Algorithm>,
    pub(crate) transport: Option<Transport>,
    pub(crate) timeout: Duration,
    pub(crate) segment_bytes: usize,
}

/// One rank's handle on a group: every collective is a method of it, and every member has to call the same one.
///
/// Operations of one communicator are matched between ranks by the order in which they are issued. A communicator may
/// be used from several threads as long as all ranks issue the same order. Dropping the last handle of a fabric says
/// goodbye to the others.
///
/// Results do not depend on the message's size, the algorithm, the transport or the number of reducers: every element
/// is folded in the order of the group's canonical tree (see [`core::group`](crate::core::group)).
#[derive(Clone)]
pub struct Communicator {
    fabric: Arc<Fabric>,
    group: Arc<GroupHandle>,
}

struct GroupHandle {
    number: u32,
    rank: u32,
    members: Vec<u32>,
    timeout: Mutex<Duration>,
    fabric: std::sync::Weak<Fabric>,
}

impl Drop for GroupHandle {
    fn drop(&mut self) {
        if let Some(fabric) = self.fabric.upgrade()
            && !fabric.is_forked()
        {
            let closed = Error::new(ErrorKind::Closed);
            fabric.node.with(|engine| engine.close_group(self.number, &closed));
        }
    }
}

/// A request as the engine takes it, with buffers that it may keep; see [`Communicator::submit`].
#[derive(Clone, Debug)]
pub struct Request {
    /// What to do.
    pub collective: Collective,
    /// The elements' type; collectives that do not fold move bytes ([`DType::U8`]).
    pub dtype: DType,
    /// How elements are folded; of no matter to collectives that do not fold.
    pub op: ReduceOp,
    /// How many elements: of the whole buffer, or of one rank's part for reduce_scatter and all_gather.
    pub count: usize,
    /// The input. May be the output.
    pub input: Region,
    /// The output.
    pub output: Region,
    /// How long it may take; the communicator's timeout if absent.
    pub timeout: Option<Duration>,
}

/// A running operation that owns its buffer; see [`Communicator::all_reduce_async`].
#[must_use = "the result comes with wait"]
pub struct Work<T: Plain> {
    pending: Pending,
    buffer: Owned<T>,
}

impl<T: Plain> Work<T> {
    /// Waits for the result.
    ///
    /// # Errors
    /// Those of the operation. The buffer is lost then: its content is undefined.
    pub fn wait(self) -> Result<Vec<T>> {
        self.pending.wait()?;
        Ok(self.buffer.take())
    }

    /// Whether the operation is over.
    pub fn is_done(&self) -> bool {
        self.pending.is_done()
    }
}

impl Communicator {
    /// Joins the job that the environment describes; see [`Config`] for the variables. A process without any is a job of one.
    ///
    /// # Errors
    /// [`ErrorKind::Config`], [`ErrorKind::Rendezvous`] or [`ErrorKind::Auth`].
    pub fn from_env() -> Result<Self> {
        Self::connect(Config::from_env()?)
    }

    /// Joins the job that `config` describes; returns when all ranks are there.
    ///
    /// # Errors
    /// As [`from_env`](Self::from_env).
    pub fn connect(config: Config) -> Result<Self> {
        config.check().map_err(|error| error.at(config.rank))?;
        let world = formation::form(&config)?;
        let rank = config.rank;
        Self::over(&config, world).map_err(|error| error.at(rank))
    }

    fn over(config: &Config, world: World) -> Result<Self> {
        let World { roster, token, incarnation, listener, connections } = world;
        let job = Job {
            id: roster.job,
            rank: config.rank,
            world: config.world,
            incarnation,
            token,
            members: roster.members,
            reducers: roster.settings.reducers,
        };
        let transport = match roster.settings.transport.as_deref() {
            Some("shm") => Some(Transport::Shm),
            Some("tcp") => Some(Transport::Tcp),
            _ => None,
        };
        let forced = roster.settings.algorithm.as_deref().map(str::parse).transpose();
        let shared = Shared {
            forced: forced.map_err(|error| Error::config("HERRINGBONE_ALGORITHM", error))?,
            transport,
            timeout: config.timeout,
            segment_bytes: if roster.settings.segment == u64::MAX {
                0
            } else {
                roster.settings.segment as usize
            },
        };
        check_possible(&job, &shared)?;
        let staging = roster.settings.staging as usize;
        let parts = Parts::new(&job, shared.transport != Some(Transport::Tcp), staging);
        let parts = parts.map_err(|error| Error::io("preparing shared memory", error))?;
        let segments = match job.mates().len() {
            1 => None,
            _ => Some(
                socket::listen_abstract(job.segment_socket(job.rank).as_bytes())
                    .and_then(Guarded::new)
                    .map_err(|error| Error::io("listening for host-mates", error))?,
            ),
        };
        let doors = Doors { listener: Some(listener), segments, linger: LAST_OUT };
        Self::assemble(job, shared, parts, connections, doors).map_err(|error| Error::io("starting", error))
    }

    fn assemble(
        job: Job,
        shared: Shared,
        parts: Parts,
        connections: BTreeMap<u32, Connection>,
        doors: Doors,
    ) -> io::Result<Self> {
        let Parts { mapping, engine, poller } = parts;
        let (commands, mapping) = (Commands::new()?, Arc::new(mapping));
        let to_control = Box::new(ToControl(commands.clone()));
        let node = Node::new(engine, poller, mapping.bell.clone(), mapping.mates.len(), to_control)?;
        let control = Control::new(Start {
            job: job.clone(),
            node: node.clone(),
            commands: commands.clone(),
            connections,
            listener: doors.listener,
            segments: doors.segments,
            mapping,
            linger: doors.linger,
        })?;
        let name = format!("hb-control-{}", job.rank);
        let threads = vec![
            std::thread::Builder::new().name(name).spawn(move || control.run())?,
            node.drive_in_background(format!("hb-drive-{}", job.rank))?,
        ];
        let members = (0..job.world).collect();
        let (rank, timeout) = (job.rank, shared.timeout);
        let fabric = Fabric::new(job, node, commands, shared, threads);
        crate::log::info(&format!("rank {rank}"), format_args!("{}", Described(&fabric)));
        Ok(Self::group(fabric, WORLD_GROUP, rank, members, timeout))
    }

    /// Makes a group known to the engine and to the hub.
    fn group(fabric: Arc<Fabric>, number: u32, rank: u32, members: Vec<u32>, timeout: Duration) -> Self {
        let job = &fabric.job;
        let hosts = job.hosts();
        let hosts: Vec<u32> = members.iter().map(|member| hosts[*member as usize]).collect();
        let one_host = hosts.iter().all(|host| *host == hosts[0]);
        let sizing = Sizing {
            shared: one_host && fabric.settings.transport != Some(Transport::Tcp),
            segment_bytes: fabric.settings.segment_bytes,
        };
        let reducers = (0..job.reducers.len() as u32).map(|reducer| job.world + reducer);
        let settings = Settings {
            id: number,
            roster: members.iter().copied().chain(reducers).collect(),
            workers: members.len() as u32,
            me: rank,
            hosts,
            sizing,
            forced: fabric.settings.forced.clone(),
            timeout,
        };
        if rank == 0 {
            let message = Message::GroupInfo { group: number, generation: 0, members: members.clone() };
            fabric.commands.send(Command::ToHub(message));
        }
        let member = Member::new(number, job.rank, members.clone());
        fabric.node.with(|engine| engine.add_group(Group::new(settings, member)));
        let weak = Arc::downgrade(&fabric);
        let group = GroupHandle { number, rank, members, timeout: Mutex::new(timeout), fabric: weak };
        Self { fabric, group: Arc::new(group) }
    }

    /// A communicator of some of this one's ranks, in ascending order. Only they call this, each with the same name and
    /// ranks, and each name once per set of ranks.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if the ranks make no group with this rank in it, or the name was used.
    pub fn subgroup(&self, name: &str, ranks: &[u32]) -> Result<Self> {
        self.check_usable()?;
        let wrong = |problem: &str| Error::config("ranks of a group", problem).at(self.rank());
        if !ranks.is_sorted_by(|a, b| a < b) || ranks.iter().any(|rank| *rank >= self.size()) {
            return Err(wrong("they have to ascend and to be ranks of the group that they are taken from"));
        }
        let Some(rank) = ranks.iter().position(|rank| *rank == self.rank()) else {
            return Err(wrong("this rank is not one of them: only members form a group"));
        };
        let members: Vec<u32> = ranks.iter().map(|rank| self.group.members[*rank as usize]).collect();
        let number = group_number(name, &members);
        if self.fabric.node.with(|engine| engine.groups.contains_key(&number)) {
            return Err(wrong(
                "there is such a group with this name already: give every group a name of its own",
            ));
        }
        let timeout = *self.group.timeout.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Self::group(self.fabric.clone(), number, rank as u32, members, timeout))
    }

    /// This process's rank in the group.
    pub fn rank(&self) -> u32 {
        self.group.rank
    }

    /// How many ranks the group has.
    pub fn size(&self) -> u32 {
        self.group.members.len() as u32
    }

    /// How long an operation may take from now on, where the call itself does not say.
    pub fn set_timeout(&self, timeout: Duration) {
        *self.group.timeout.lock().unwrap_or_else(PoisonError::into_inner) = timeout;
    }

    /// Folds `buffer` over all ranks; every rank ends with the result in it.
    ///
    /// # Errors
    /// See [`ErrorKind`]; the buffer's content is undefined then.
    pub fn all_reduce<T: Element + Plain>(&self, buffer: &mut [T], op: ReduceOp) -> Result<()> {
        let count = buffer.len();
        Region::lend(buffer, |buffer| {
            self.run(Collective::AllReduce, T::DTYPE, op, count, buffer.clone(), buffer.clone())
        })
    }

    /// Folds `input` over all ranks into every rank's `output`; the input stays as it is.
    ///
    /// # Errors
    /// [`ErrorKind::BufferSize`] if the two differ in length; else see [`ErrorKind`].
    pub fn all_reduce_into<T: Element + Plain>(
        &self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
    ) -> Result<()> {
        self.lent(Collective::AllReduce, T::DTYPE, op, input.len(), input, output)
    }

    /// Folds `buffer` over all ranks in the background; the result comes with [`Work::wait`].
    ///
    /// # Errors
    /// If the operation cannot be issued; see [`ErrorKind`].
    pub fn all_reduce_async<T: Element + Plain>(&self, buffer: Vec<T>, op: ReduceOp) -> Result<Work<T>> {
        let count = buffer.len();
        let buffer = Region::own(buffer);
        let region = buffer.region().clone();
        let pending = self.submit(Request {
            collective: Collective::AllReduce,
            dtype: T::DTYPE,
            op,
            count,
            input: region.clone(),
            output: region,
            timeout: None,
        })?;
        Ok(Work { pending, buffer })
    }

    /// Folds `input` over all ranks into `output` on rank `root`; the others' output is not touched.
    ///
    /// # Errors
    /// See [`ErrorKind`]. The output has to be as long as the input on every rank.
    pub fn reduce<T: Element + Plain>(
        &self,
        input: &[T],
        output: &mut [T],
        root: u32,
        op: ReduceOp,
    ) -> Result<()> {
        self.lent(Collective::Reduce { root }, T::DTYPE, op, input.len(), input, output)
    }

    /// Copies `buffer` from rank `root` to all others.
    ///
    /// # Errors
    /// See [`ErrorKind`].
    pub fn broadcast<T: Plain>(&self, buffer: &mut [T], root: u32) -> Result<()> {
        let bytes = size_of_val(buffer);
        Region::lend(buffer, |buffer| {
            let collective = Collective::Broadcast { root };
            self.run(collective, DType::U8, ReduceOp::Sum, bytes, buffer.clone(), buffer.clone())
        })
    }

    /// Folds `input` over all ranks and leaves rank r the r-th part of the result.
    ///
    /// # Errors
    /// [`ErrorKind::BufferSize`] unless the input is [`size`](Self::size) times as long as the output; else see [`ErrorKind`].
    pub fn reduce_scatter<T: Element + Plain>(
        &self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
    ) -> Result<()> {
        self.lent(Collective::ReduceScatter, T::DTYPE, op, output.len(), input, output)
    }

    /// Gathers every rank's `input`, in rank order, into every rank's `output`.
    ///
    /// # Errors
    /// [`ErrorKind::BufferSize`] unless the output is [`size`](Self::size) times as long as the input; else see [`ErrorKind`].
    pub fn all_gather<T: Plain>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        self.lent(Collective::AllGather, DType::U8, ReduceOp::Sum, size_of_val(input), input, output)
    }

    /// Returns when all ranks have called it.
    ///
    /// # Errors
    /// See [`ErrorKind`].
    pub fn barrier(&self) -> Result<()> {
        let nothing = Region::zeroed(0);
        self.run(Collective::Barrier, DType::U8, ReduceOp::Sum, 0, nothing.clone(), nothing)
    }

    fn lent<T: Plain>(
        &self,
        collective: Collective,
        dtype: DType,
        op: ReduceOp,
        count: usize,
        input: &[T],
        output: &mut [T],
    ) -> Result<()> {
        Region::lend_shared(input, |input| {
            Region::lend(output, |output| {
                self.run(collective, dtype, op, count, input.clone(), output.clone())
            })
        })
    }

    fn run(
        &self,
        collective: Collective,
        dtype: DType,
        op: ReduceOp,
        count: usize,
        input: Region,
        output: Region,
    ) -> Result<()> {
        let request = Request { collective, dtype, op, count, input, output, timeout: None };
        self.issue(request, true)?.wait()
    }

    /// Issues an operation on regions and returns at once. The regions must not be touched until it is over.
    ///
    /// # Errors
    /// If the operation cannot be issued; see [`ErrorKind`].
    pub fn submit(&self, request: Request) -> Result<Pending> {
        self.issue(request, false)
    }

    /// Issues an operation on regions and waits for it.
    ///
    /// # Errors
    /// See [`ErrorKind`].
    pub fn execute(&self, request: Request) -> Result<()> {
        self.issue(request, true)?.wait()
    }

    fn issue(&self, request: Request, waits: bool) -> Result<Pending> {
        self.check_usable()?;
        self.check_request(&request).map_err(|error| error.at(self.rank()))?;
        let Request { collective, dtype, op, count, input, output, timeout } = request;
        let timeout =
            timeout.unwrap_or_else(|| *self.group.timeout.lock().unwrap_or_else(PoisonError::into_inner));
        let call = Call { collective, dtype, op, count };
        let issue = Issue { group: self.group.number, call, input, output, timeout: Some(timeout) };
        self.fabric.node.submit(issue, waits)
    }

    fn check_usable(&self) -> Result<()> {
        if self.fabric.is_forked() {
            return Err(Error::new(ErrorKind::Forked).at(self.rank()));
        }
        Ok(())
    }

    fn check_request(&self, request: &Request) -> Result<()> {
        let Request { collective, dtype, count, input, output, .. } = request;
        if let Some(root) = collective.root().filter(|root| *root >= self.size()) {
            return Err(Error::unsupported(format_args!(
                "{} from root {root}: the group has ranks 0 to {}",
                collective.name(),
                self.size() - 1
            )));
        }
        let bytes = |elements: usize| elements.saturating_mul(dtype.bytes());
        let sizes = [
            ("the input", bytes(collective.input_elements(self.size(), *count)), input.len()),
            ("the output", bytes(collective.output_elements(self.size(), *count)), output.len()),
        ];
        for (buffer, expected, actual) in sizes {
            if expected != actual {
                return Err(Error::new(ErrorKind::BufferSize { buffer, expected, actual }));
            }
        }
        if !output.is_writable() {
            return Err(Error::unsupported("the output can only be read"));
        }
        Ok(())
    }

    /// What moved where, since the communicator's fabric was formed; of all its groups together.
    pub fn stats(&self) -> Stats {
        self.fabric.node.with(|engine| engine.stats.clone())
    }

    /// How this rank takes part, in a line.
    pub fn describe(&self) -> String {
        Described(&self.fabric).to_string()
    }

    /// Which algorithm an all-reduce of `count` elements uses, and why.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if there is none.
    pub fn explain(&self, collective: Collective, dtype: DType, count: usize) -> Result<String> {
        let call = Call { collective, dtype, op: ReduceOp::Sum, count };
        self.fabric.node.with(|engine| {
            let group =
                engine.groups.get_mut(&self.group.number).ok_or_else(|| Error::new(ErrorKind::Closed))?;
            group.plan(call).map(|planned| format!("{}: {}", planned.algorithm, planned.why))
        })
    }

    /// Fails everything that is under way in this group, here, and everything that is called later.
    pub fn abort(&self) {
        if !self.fabric.is_forked() {
            let closed = Error::new(ErrorKind::Closed);
            self.fabric.node.with(|engine| engine.close_group(self.group.number, &closed));
        }
    }

    /// Leaves the job in order: says goodbye once what was sent is on its way. Operations called later fail. Dropping
    /// the last handle does the same.
    pub fn close(&self) {
        self.fabric.close();
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Communicator")
            .field("rank", &self.rank())
            .field("size", &self.size())
            .finish_non_exhaustive()
    }
}

/// A group's number within its job. Two groups that meet have at least one rank in common, which notices if they collide.
fn group_number(name: &str, members: &[u32]) -> u32 {
    let mut bytes = name.as_bytes().to_vec();
    members.iter().for_each(|member| bytes.extend_from_slice(&member.to_le_bytes()));
    let hash = digest(&bytes);
    ((hash ^ hash >> 32) as u32).max(WORLD_GROUP + 1)
}

fn check_possible(job: &Job, shared: &Shared) -> Result<()> {
    if shared.transport == Some(Transport::Shm) && job.mates().len() < job.world as usize {
        let elsewhere = (0..job.world).find(|rank| !job.mates().contains(rank)).unwrap_or_default();
        let problem =
            format!("shm: rank {elsewhere} does not share this host's memory; leave it out, or use tcp");
        return Err(Error::config("HERRINGBONE_TRANSPORT", problem));
    }
    if shared.forced == Some(Algorithm::ReductionServer) && job.reducers.is_empty() && job.world > 1 {
        let problem = "reduction_server needs reducers: set HERRINGBONE_REDUCERS=host:port,... on rank 0";
        return Err(Error::config("HERRINGBONE_ALGORITHM", problem));
    }
    Ok(())
}

/// A process's memory and engine, before it has threads.
struct Parts {
    mapping: Mapping,
    engine: Engine,
    poller: Arc<std::os::fd::OwnedFd>,
}

struct Doors {
    listener: Option<TcpListener>,
    segments: Option<Guarded<std::os::unix::net::UnixListener>>,
    linger: Duration,
}

impl Parts {
    fn new(job: &Job, allowed: bool, staging: usize) -> io::Result<Self> {
        let mates = job.mates();
        let layout = Layout { mates: mates.len(), pool: staging };
        let segment = Segment::create("herringbone", layout.bytes()).map_err(io::Error::other)?;
        shm::stamp(&segment, job.id, job.rank, job.incarnation);
        let segment = Arc::new(segment);
        let pool = layout.pool_at()..layout.bytes();
        let endpoints = (0..job.world + job.reducers.len() as u32)
            .map(|endpoint| Endpoint::new(job.name(endpoint), endpoint >= job.world))
            .collect();
        let poller = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let engine =
            Engine::new(job.rank, endpoints, Staging::new(segment.clone(), pool), poller.clone(), false);
        let mapping = Mapping { segment, bell: Arc::new(Bell::new()?), layout, mates, allowed };
        Ok(Self { mapping, engine, poller })
    }
}

struct Described<'a>(&'a Fabric);

impl fmt::Display for Described<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fabric { job, settings, .. } = self.0;
        write!(f, "rank {} of {}, {} on this host", job.rank, job.world, job.mates().len())?;
        write!(f, ", {} reducers", job.reducers.len())?;
        if let Some(algorithm) = &settings.forced {
            write!(f, ", {algorithm} forced")?;
        }
        if let Some(transport) = settings.transport {
            write!(f, ", {} forced", transport.name())?;
        }
        write!(f, ", timeout {} s", settings.timeout.as_secs_f64())
    }
}

/// `size` communicators in this process, for a thread each: the same engine over the same shared-memory protocol,
/// without rendezvous. For tests, and for programs whose ranks are threads.
///
/// ```
/// # fn main() -> Result<(), herringbone::Error> {
/// use herringbone::ReduceOp;
/// let ranks = herringbone::local(3)?;
/// std::thread::scope(|scope| {
///     for comm in ranks {
///         scope.spawn(move || {
///             let mut values = [comm.rank() as f32, 1.0];
///             comm.all_reduce(&mut values, ReduceOp::Sum).unwrap();
///             assert_eq!(values, [3.0, 3.0]);
///         });
///     }
/// });
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`ErrorKind::Io`] if the system has no room for the ranks' memory and connections; [`ErrorKind::Config`] for a size of 0.
pub fn local(size: u32) -> Result<Vec<Communicator>> {
    local_with(Config::new(0, size, crate::Rendezvous::Tcp(String::new())))
}

/// As [`local`], with the algorithm, timeout and sizes of a configuration; its world is the number of ranks.
///
/// # Errors
/// As [`local`]; reducers are refused, since they are other processes.
pub fn local_with(config: Config) -> Result<Vec<Communicator>> {
    config.check()?;
    if !config.reducers.is_empty() {
        return Err(Error::config("HERRINGBONE_REDUCERS", "ranks that are threads use no reducers"));
    }
    let random = || greet::random_number().map_err(|error| Error::io("drawing a random number", error));
    let (id, size) = (random()?, config.world);
    let members: Result<Vec<_>> = (0..size)
        .map(|rank| {
            let incarnation = random()?;
            Ok(crate::core::session::formation::Member { rank, address: String::new(), host: 0, incarnation })
        })
        .collect();
    let members = members?;
    assemble_local(&config, id, members).map_err(|error| Error::io("starting ranks as threads", error))
}

fn assemble_local(
    config: &Config,
    id: u64,
    members: Vec<crate::core::session::formation::Member>,
) -> io::Result<Vec<Communicator>> {
    let shared = Shared {
        forced: config.algorithm.clone(),
        transport: None,
        timeout: config.timeout,
        segment_bytes: config.segment_bytes,
    };
    let job = |rank: u32| Job {
        id,
        rank,
        world: config.world,
        incarnation: members[rank as usize].incarnation,
        token: Vec::new(),
        members: members.clone(),
        reducers: Vec::new(),
    };
    let mut parts = Vec::new();
    for rank in 0..config.world {
        parts.push(Parts::new(&job(rank), true, config.staging_bytes)?);
    }
    let shown: Vec<_> =
        parts.iter().map(|part| (part.mapping.segment.clone(), part.mapping.bell.clone())).collect();
    let mut connections: Vec<BTreeMap<u32, Connection>> =
        (0..config.world).map(|_| BTreeMap::new()).collect();
    for rank in 1..config.world {
        let (hub, member) = UnixStream::pair()?;
        let decoder = || Decoder::new(crc32c::crc32c);
        connections[0].insert(rank, Connection::new(hub.into(), decoder())?);
        connections[rank as usize].insert(0, Connection::new(member.into(), decoder())?);
    }
    let mut communicators = Vec::new();
    for ((rank, mut part), connections) in (0..).zip(parts).zip(connections) {
        let job = job(rank);
        for (other, (segment, bell)) in (0..).zip(&shown).filter(|(other, _)| *other != rank) {
            if let Some(link) = part.mapping.link(&job, other, segment.clone(), bell.clone()) {
                part.engine.connect(other, link);
            }
        }
        let doors = Doors { listener: None, segments: None, linger: Duration::ZERO };
        communicators.push(Communicator::assemble(job, shared.clone(), part, connections, doors)?);
    }
    Ok(communicators)
}
