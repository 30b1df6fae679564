//! Putting a process's parts together.

use crate::{
    Communicator, Error, Result,
    config::{Config, Transport, check_sizes, settings},
    core::{
        group::{FoldObstacle, FoldOrder},
        plan::{
            Guidance,
            files::{self, FileProblem},
        },
        schedule::Schedule,
        session::{self, Measuring, Parameters, membership::MemberId},
        topology::{LinkMatrix, Wiring},
        verify::VerifyError,
    },
    engine::{Engine, group, rules::EngineRules},
    execute::{issue::WORLD_GROUP, staging::Staging},
    fabric::{
        Fabric, Job, Shared,
        command::{Commands, ToControl},
        connection::Connection,
        control::{Control, LAST_OUT, Start},
        formation::World,
        recorder::FlightRecorder,
        wire_up::Mapping,
    },
    measure::{LinkMeasurement, PortMeasurement, SiteMeasurement},
    node::Node,
    sys::{
        doorbell::Bell,
        fork::Guarded,
        heap::Heap,
        segment::{self, Segment},
        socket,
    },
    transport::{
        endpoint::Endpoints,
        layout::{self, Layout},
    },
};
use std::{
    collections::BTreeMap,
    fmt, io,
    net::TcpListener,
    os::unix::net::UnixListener,
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

/// A communicator over a world that has formed, by `config`; `origin` is the first configuration of the process.
pub(crate) fn over(config: &Config, origin: &Config, world: World) -> Result<Communicator> {
    put_together(config, origin, world).map_err(|error| error.at(config.rank))
}

fn put_together(config: &Config, origin: &Config, world: World) -> Result<Communicator> {
    let World { formed, token, incarnation, listener, from, connections, away, names } = world;
    let session::formation::Formed { job: id, roster, parameters } = formed;
    let me = roster.worker(config.rank).map(|worker| worker.id);
    let me = me.ok_or_else(|| Error::rendezvous("this rank is not in the roster"))?;
    let (rank, roster, patience) = (config.rank, Arc::new(roster), config.waits.patience);
    let job = Job { id, me, rank, roster, incarnation, token, from, names, patience };
    crate::log::set_job(&job.name().map_or_else(|| format!("{id:016x}"), str::to_owned));
    let transport = match parameters.transport.as_deref() {
        Some("shm") => Some(Transport::Shm),
        Some("tcp") => Some(Transport::Tcp),
        _ => None,
    };
    let guidance = Guidance::of(&parameters).map_err(|(name, problem)| Error::config(name, problem))?;
    let shared = Shared {
        parameters: Arc::new(parameters),
        guidance: Arc::new(guidance),
        transport,
        timeout: config.waits.timeout,
        manual_progress: config.manual_progress,
    };
    check_possible(&job, &shared)?;
    let staging = shared.parameters.staging as usize;
    // Each rank's own two sizes fit; the smallest of all ranks need not.
    check_sizes(staging, shared.parameters.segment as usize)?;
    let parts = Components::new(&job, shared.transport != Some(Transport::Tcp), staging);
    let parts = parts.map_err(|error| Error::io("preparing shared memory", error))?;
    let segments = match job.locals().len() {
        1 => None,
        _ => Some(
            socket::listen_abstract(job.segment_socket(job.me, job.incarnation).as_bytes())
                .and_then(Guarded::new)
                .map_err(|error| Error::io("listening for local ranks", error))?,
        ),
    };
    let origin = Some(Arc::new(origin.clone()));
    let join_points = JoinPoints { listener: Some(listener), segments, linger: LAST_OUT, away, origin };
    // Of a key that was drawn for this job nobody else knows.
    let (rank, is_drawn) = (job.rank, config.token.is_none() && !job.token.is_empty());
    let fabric = assemble(job, shared, parts, connections, join_points);
    let fabric = fabric.map_err(|error| Error::io("starting the threads of this rank", error))?;
    let comm = whole(with_measured_links(fabric)?);
    if let Some(address) = comm.address().filter(|_| rank == 0) {
        let before = if is_drawn { "start every rank with one HERRINGBONE_TOKEN, then ask " } else { "" };
        let what = format_args!("how the job stands: {before}herringbone status {address}");
        crate::log::info("rank 0", what);
    }
    Ok(comm)
}

/// Starts a process's threads.
pub(crate) fn assemble(
    job: Job,
    shared: Shared,
    parts: Components,
    connections: BTreeMap<u32, Connection>,
    join_points: JoinPoints,
) -> io::Result<Arc<Fabric>> {
    let Components { mapping, engine } = parts;
    let (commands, mapping) = (Commands::new()?, Arc::new(mapping));
    let recorder = join_points.origin.is_some().then(|| FlightRecorder::of(job.identity()));
    let to_control = Box::new(ToControl { commands: commands.clone(), recorder: recorder.clone() });
    let node = Node::new(engine, mapping.bell.clone(), mapping.locals.len(), to_control)?;
    if let Some(recorder) = recorder {
        recorder.attach(&node);
    }
    let control = Control::new(Start {
        job: job.clone(),
        node: node.clone(),
        commands: commands.clone(),
        connections,
        listener: join_points.listener,
        segments: join_points.segments,
        mapping,
        linger: join_points.linger,
        away: join_points.away,
    })?;
    let name = format!("hb-control-{}", job.rank);
    let mut threads = vec![std::thread::Builder::new().name(name).spawn(move || control.run())?];
    if !shared.manual_progress {
        threads.push(node.drive_in_background(format!("hb-drive-{}", job.rank))?);
    }
    let rank = job.rank;
    let fabric = Fabric::new(job, node, commands, shared, join_points.origin, threads);
    crate::log::info(&format!("rank {rank}"), &fabric);
    Ok(fabric)
}

/// The group of all ranks.
pub(crate) fn whole(fabric: Arc<Fabric>) -> Communicator {
    let (rank, timeout) = (fabric.job.rank, fabric.settings.timeout);
    let members = fabric.job.roster.workers().map(|worker| worker.id).collect();
    let comm = Communicator::group(fabric, WORLD_GROUP, rank, members, timeout);
    if let Some(folder) = settings::timeline_folder()
        && let Err(error) = comm.start_timeline(&folder)
    {
        crate::log::of_rank(rank, true, None, format_args!("this rank writes no timeline: {}", error.kind()));
    }
    comm
}

/// Has the ranks measure their ports and links if they are to, in a group of its own, before the group of all ranks makes a plan.
fn with_measured_links(mut fabric: Arc<Fabric>) -> Result<Arc<Fabric>> {
    if !fabric.settings.parameters.measuring.at_start {
        return Ok(fabric);
    }
    let rank = fabric.job.rank;
    let members: Vec<MemberId> = fabric.job.roster.workers().map(|worker| worker.id).collect();
    let number = group::number_of("the measured links", &members);
    let comm = Communicator::group(fabric.clone(), number, rank, members, fabric.settings.timeout);
    let wiring = measured(&comm, &format!("rank {rank}"))?;
    drop(comm);
    let held = || {
        Error::unsupported("a group uses the links before they are measured; this is a bug, please report it")
    };
    let settings = &mut Arc::get_mut(&mut fabric).ok_or_else(held)?.settings;
    let measuring = Measuring { at_start: false, ..settings.parameters.measuring };
    let round_trips = settings.parameters.wiring.round_trips.clone();
    let wiring = Wiring { round_trips, ..wiring };
    let parameters = Parameters { wiring, measuring, ..Parameters::clone(&settings.parameters) };
    settings.parameters = Arc::new(parameters);
    Ok(fabric)
}

/// Measures the ports of all hosts and, of as few ranks as a matrix has, the links. Rank 0 says for how long, and what it found.
fn measured(comm: &Communicator, who: &str) -> Result<Wiring> {
    let say = |what: fmt::Arguments<'_>| {
        if comm.rank() == 0 {
            crate::log::note(who, what);
        }
    };
    let (ports, links) = (PortMeasurement::of(comm), LinkMeasurement::of(comm).ok());
    let limit = ports.limit() + links.as_ref().map_or(Duration::ZERO, LinkMeasurement::limit);
    let (turns, rounds) = (ports.turns(), links.as_ref().map_or(0, LinkMeasurement::rounds));
    let seconds = limit.as_secs_f64();
    say(format_args!(
        "the ranks measure their links in {rounds} rounds and their hosts' ports in {turns} turns, {seconds:.1} s at most"
    ));
    let began = Instant::now();
    let hosts = ports.hosts().to_vec();
    let mut ports = ports.run(|_turn| {})?;
    let wrong = |error| Error::config(settings::TOPOLOGY.name, error);
    let topology = links.map(|links| links.run(|_round| {})).transpose()?;
    let links = topology.as_ref().map(LinkMatrix::of).transpose().map_err(wrong)?;
    if let (Some(found), Some(links)) = (&ports, &links) {
        ports = Some(found.at_least(links, &hosts));
    }
    let range = |rates: &mut dyn Iterator<Item = f64>| {
        rates.fold((f64::MAX, 0.0), |(least, most): (f64, f64), rate| (rate.min(least), rate.max(most)))
    };
    let seconds = began.elapsed().as_secs_f64();
    if let Some(topology) = topology.as_ref().filter(|topology| !topology.links().is_empty()) {
        let (least, most) = range(&mut topology.links().iter().map(|link| link.bandwidth));
        say(format_args!("measured in {seconds:.1} s: links carry {least} to {most} GB/s"));
    }
    if let Some(ports) = &ports {
        let rates = (0..ports.size()).flat_map(|rank| [ports.port(rank).out, ports.port(rank).into]);
        let (least, most) = range(&mut rates.map(|rate| rate as f64 / 1e9));
        say(format_args!("measured in {seconds:.1} s: ports carry {least:.4} to {most:.4} GB/s"));
    }
    if let (Some(found), Some(known)) = (&ports, &links)
        && let Some(sites) = SiteMeasurement::of(comm, found, known, &hosts)
    {
        let (turns, seconds) = (sites.turns(), sites.limit().as_secs_f64());
        say(format_args!(
            "hosts form sites, whose uplinks are measured in {turns} turns, {seconds:.1} s at most"
        ));
        let sites = sites.run(|_turn| {})?;
        let count = sites.uplinks().len();
        let rates = sites.uplinks().iter().flat_map(|uplink| [uplink.out, uplink.into]);
        let (least, most) = range(&mut rates.map(|rate| rate as f64 / 1e9));
        say(format_args!("{count} sites: uplinks carry {least:.4} to {most:.4} GB/s"));
        ports = Some(found.clone().with_sites(sites).map_err(wrong)?.at_least(known, &hosts));
    }
    Ok(Wiring { links, ports, ..Wiring::default() })
}

fn check_possible(job: &Job, shared: &Shared) -> Result<()> {
    if shared.transport == Some(Transport::Shm) && job.locals().len() < job.roster.world() as usize {
        let locals = job.roster.locals(job.me);
        let elsewhere = job.roster.workers().find(|worker| !locals.contains(&worker.id));
        let elsewhere = job.roster.name(elsewhere.map_or(job.me, |worker| worker.id));
        let problem = format!("shm: {elsewhere} does not share this host's memory; leave it out, or use tcp");
        return Err(Error::config("HERRINGBONE_TRANSPORT", problem));
    }
    check_order(job, &shared.parameters)?;
    check_files(job, shared)?;
    let (known, world) = (shared.parameters.wiring.size(), job.roster.world());
    if let Some(known) = known.filter(|known| *known != world as usize) {
        let problem = format!(
            "the topology of rank 0 has {known} ranks and the job {world}; use a topology with a node for each rank, in their order"
        );
        return Err(Error::config(settings::TOPOLOGY.name, problem));
    }
    let forced = shared.guidance.forced.as_ref().filter(|_| job.roster.world() > 1);
    let lacks_reducers = job.roster.reducers().next().is_none();
    if let Some(forced) = forced.filter(|forced| lacks_reducers && forced.needs_reducers()) {
        let problem = format!("{forced} needs reducers: set HERRINGBONE_REDUCERS=host:port,... on rank 0");
        return Err(Error::config("HERRINGBONE_ALGORITHM", problem));
    }
    if let Some(forced) = forced.filter(|_| job.rank == 0)
        && let Some(reason) = job.unsupported(forced, &shared.parameters)
    {
        let what = format_args!("the forced {forced} cannot be used, so sizes decide: {reason}");
        crate::log::warn("rank 0", what);
    }
    Ok(())
}

/// Whether the ranks lie so that their hosts, or sites, can be added first.
fn check_order(job: &Job, parameters: &Parameters) -> Result<()> {
    let hosts = job.roster.hosts();
    let ranks: Vec<u32> = (0..job.roster.world()).collect();
    let order = parameters.order;
    let Some(obstacle) = order.obstacle(&hosts, &parameters.wiring.sites_of(&ranks)) else { return Ok(()) };
    let apart = |rank: u32, what: &str| {
        format!(
            "the order of {} needs consecutive ranks on each {what}, but other ranks lie between rank {rank} and the others of \
             its {what}. Number the ranks {what} by {what}, or leave the order out",
            order.name()
        )
    };
    let problem = match obstacle {
        FoldObstacle::Host(rank) => apart(rank, "host"),
        FoldObstacle::Site(rank) => apart(rank, "site"),
        FoldObstacle::NoSites => String::from(
            "the order of sites needs a topology on rank 0 that names them, because results must not depend on a measurement. \
             Set HERRINGBONE_TOPOLOGY to a file with \"sites\", such as one that herringbone topo --measure --json has written",
        ),
    };
    Err(Error::config(settings::FOLD_ORDER.name, problem))
}

/// Logs which schedules of files a group of so many ranks leaves out, because they are of another number.
pub(crate) fn say_left_out(guidance: &Guidance, size: u32) {
    let schedules = guidance.rules.files().filter_map(|file| Some((file.path(), file.known()?.workers())));
    for (path, of) in schedules.filter(|(_, of)| *of != size) {
        let what = format_args!(
            "{path}: its schedule is of {of} ranks, and {size} continue: they take the usual choice in its place"
        );
        crate::log::warn("rank 0", what);
    }
}

/// Whether the schedules of files keep the order of sums. Those of another number of ranks are left out, and rank 0 says so.
fn check_files(job: &Job, shared: &Shared) -> Result<()> {
    let Shared { parameters, guidance, .. } = shared;
    let (hosts, world) = (job.roster.hosts(), job.roster.world());
    let ranks: Vec<u32> = (0..world).collect();
    let sites = parameters.wiring.sites_of(&ranks);
    if job.rank == 0 {
        say_left_out(guidance, world);
    }
    for file in guidance.rules.files() {
        let path = file.path();
        if file.known().map_or(0, Schedule::workers) != world {
            continue;
        }
        let order = parameters.order;
        let group = order.group(&hosts, &sites);
        let wrong = |what: String| Err(Error::config(settings::PLAN.name, format_args!("{path}: {what}")));
        match files::follows(file, &group) {
            Ok(true) => continue,
            // Of chunks that lie side by side the proof says more about the order.
            Err(error) if !matches!(error, VerifyError::SideBySide { .. }) => {
                return wrong(FileProblem::from(error).to_string());
            }
            _ => {}
        }
        let others: Vec<&str> = files::orders_of(file, &hosts, &sites).map(FoldOrder::name).collect();
        let instead = match &others[..] {
            [] => String::from("search for one that keeps the order of sums"),
            names => format!("set HERRINGBONE_FOLD_ORDER={} on rank 0", names.join(" or ")),
        };
        return wrong(format!(
            "its sums are not added in the order of {}, the job's; {instead}",
            order.name()
        ));
    }
    Ok(())
}

/// A process's memory and engine, before it has threads.
pub(crate) struct Components {
    pub(crate) mapping: Mapping,
    pub(crate) engine: Engine,
}

/// Where others come in, how long rank 0 stays for them, the reducers that may come, and how all of it comes about again.
pub(crate) struct JoinPoints {
    pub(crate) listener: Option<TcpListener>,
    pub(crate) segments: Option<Guarded<UnixListener>>,
    pub(crate) linger: Duration,
    pub(crate) away: Vec<String>,
    /// What the process was first started with, unless its ranks are threads.
    pub(crate) origin: Option<Arc<Config>>,
}

/// How large a heap of users' buffers is: as the machine's memory, because it takes memory only where it is used. Where a
/// process may have less address space (`ulimit -v`), it is half of what is left beside the other segments of the host, of
/// which each process maps all.
fn heap_bytes(locals: usize, beside: usize) -> usize {
    let info = rustix::system::sysinfo();
    let memory = (info.totalram as usize).saturating_mul(info.mem_unit as usize);
    match segment::address_space_left() {
        Some(left) => memory.min((left / locals).saturating_sub(beside) / 2),
        None => memory,
    }
}

impl Components {
    pub(crate) fn new(job: &Job, allowed: bool, staging: usize) -> io::Result<Self> {
        let locals = job.locals();
        let mut layout = Layout { locals: locals.len(), pool: staging, heap: 0 };
        layout.heap = heap_bytes(locals.len(), layout.bytes()).next_multiple_of(rustix::param::page_size());
        let segment = Segment::create("herringbone", layout.bytes()).or_else(|_| {
            // Less address space than memory: then there is none for users' buffers.
            layout.heap = 0;
            Segment::create("herringbone", layout.bytes())
        });
        let segment = segment.map_err(io::Error::other)?;
        layout::stamp(&segment, layout, job.id, job.me, job.incarnation);
        let segment = Arc::new(segment);
        let pool = layout.pool_at()..layout.pool_at() + staging;
        let heap = Heap::new(segment.clone(), layout.heap_at()..layout.bytes());
        let staging = Staging::new(segment.clone(), pool);
        let mut engine =
            Engine::new(job.me, Endpoints::new(&job.roster), staging, false, EngineRules::DEFAULT);
        engine.runtime.ops.heap = Some(heap);
        let (bell, lacks) = (Arc::new(Bell::new()?), AtomicBool::new(false));
        let mapping = Mapping { segment, bell, layout, locals, allowed, lacks };
        Ok(Self { mapping, engine })
    }
}
