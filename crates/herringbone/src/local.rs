//! Ranks that are threads.

use crate::{
    Communicator, Error, Result,
    assembly::{Components, JoinPoints, assemble, whole},
    config::{Config, WaitLimits},
    core::session::{
        Measuring, Parameters, TREE_BOUND,
        control::ControlChannel,
        handshake::Keys,
        membership::{Member, Process, Roster},
    },
    core::{plan::Guidance, prepare::cutting},
    fabric::{Job, Shared, connection::Connection, greet},
};
use std::{collections::BTreeMap, io, os::unix::net::UnixStream, sync::Arc, time::Duration};

/// How long rank 0 stays for the others when it leaves: they may wait for what it decides. One thread may close all of them, one
/// after the other, so it is not for long.
const LINGER: Duration = Duration::from_millis(50);

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
/// [`ErrorKind::Io`](crate::ErrorKind::Io) if the system has no room for the ranks' memory and connections; [`ErrorKind::Config`](crate::ErrorKind::Config) for a size of 0.
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
    if config.trees.measuring.at_start {
        let problem = "ranks that are threads share one memory, and have no links to measure; leave it out";
        return Err(Error::config("HERRINGBONE_TOPOLOGY", problem));
    }
    if let Some(known) = config.trees.wiring.size().filter(|known| *known != config.world as usize) {
        let problem =
            format!("a topology of {known} ranks and {} ranks as threads; use one of as many", config.world);
        return Err(Error::config("HERRINGBONE_TOPOLOGY", problem));
    }
    let random = || greet::random_number().map_err(|error| Error::io("drawing a random number", error));
    let (id, size) = (random()?, config.world);
    let process = |_| Ok(Process { address: String::new(), host: 0, incarnation: random()? });
    let processes = (0..size).map(process).collect::<Result<Vec<_>>>()?;
    let roster = Roster::founded(processes, &[]).map_err(|error| Error::config("ranks as threads", error))?;
    let tree_bound = config.trees.bound.unwrap_or(TREE_BOUND);
    let parameters = Parameters {
        order: config.fold_order.unwrap_or_default(),
        algorithm: config.guidance.forced.as_ref().map(ToString::to_string),
        transport: None,
        segment: config.segment_bytes as u64,
        staging: config.staging_bytes as u64,
        reducers: Vec::new(),
        cutting: cutting::digest(),
        wiring: config.trees.wiring.clone(),
        measuring: Measuring::default(),
        tree_bound,
        plan: config.plan_text(),
        calibration: config.guidance.numbers(),
    };
    let shared = Shared {
        parameters: Arc::new(parameters),
        guidance: Arc::new(Guidance { tree_bound: Some(tree_bound), ..config.guidance.clone() }),
        transport: None,
        timeout: config.waits.timeout,
        manual_progress: config.manual_progress,
    };
    assemble_local(id, roster, |_| shared.clone())
        .map_err(|error| Error::io("starting ranks as threads", error))
}

/// Communicators of all workers of a roster; `shared` says what groups of each have in common. All take rank 0's staging.
pub(crate) fn assemble_local(
    id: u64,
    roster: Roster,
    shared: impl Fn(u32) -> Shared,
) -> io::Result<Vec<Communicator>> {
    let roster = Arc::new(roster);
    let job = |(rank, worker): (u32, &Member)| {
        let (from, token) = (None, Vec::new());
        let (roster, incarnation) = (roster.clone(), worker.incarnation.unwrap_or_default());
        let (names, patience) = (Vec::new(), WaitLimits::default().patience);
        Job { id, me: worker.id, rank, roster, incarnation, token, from, names, patience }
    };
    let jobs: Vec<Job> = (0..).zip(roster.workers()).map(job).collect();
    let mut parts = Vec::new();
    let staging = shared(0).parameters.staging as usize;
    for job in &jobs {
        parts.push(Components::new(job, true, staging)?);
    }
    let shown: Vec<_> =
        parts.iter().map(|part| (part.mapping.segment.clone(), part.mapping.bell.clone())).collect();
    let mut connections: Vec<BTreeMap<u32, Connection>> = jobs.iter().map(|_| BTreeMap::new()).collect();
    for rank in 1..jobs.len() as u32 {
        let (hub, member) = UnixStream::pair()?;
        let channel = || ControlChannel::new(crc32c::crc32c, Keys::default());
        connections[0].insert(rank, Connection::new(hub.into(), channel())?);
        connections[rank as usize].insert(0, Connection::new(member.into(), channel())?);
    }
    let mut communicators = Vec::new();
    for ((job, mut part), connections) in jobs.into_iter().zip(parts).zip(connections) {
        let shown = roster.workers().map(|worker| worker.id).zip(&shown);
        for (other, (segment, bell)) in shown.filter(|(other, _)| *other != job.me) {
            if let Some(link) = part.mapping.link(&job, other, segment.clone(), bell.clone()) {
                part.engine.connect(other, link);
            }
        }
        let join_points =
            JoinPoints { listener: None, segments: None, linger: LINGER, away: Vec::new(), origin: None };
        let shared = shared(job.rank);
        communicators.push(whole(assemble(job, shared, part, connections, join_points)?));
    }
    Ok(communicators)
}
