//! Ranks that are threads.

use crate::{
    Communicator, Error, Result,
    assembly::{Doors, Parts, assemble},
    config::Config,
    core::session::{control::Decoder, formation::Member},
    fabric::{Job, Shared, connection::Connection, greet},
};
use std::{collections::BTreeMap, io, os::unix::net::UnixStream, time::Duration};

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
    let random = || greet::random_number().map_err(|error| Error::io("drawing a random number", error));
    let (id, size) = (random()?, config.world);
    let members: Result<Vec<_>> = (0..size)
        .map(|rank| {
            let incarnation = random()?;
            Ok(Member { rank, address: String::new(), host: 0, incarnation })
        })
        .collect();
    let members = members?;
    assemble_local(&config, id, members).map_err(|error| Error::io("starting ranks as threads", error))
}

fn assemble_local(config: &Config, id: u64, members: Vec<Member>) -> io::Result<Vec<Communicator>> {
    let shared = Shared {
        order: config.fold_order.unwrap_or_default(),
        forced: config.algorithm.clone(),
        transport: None,
        timeout: config.timeout,
        segment_bytes: config.segment_bytes,
        manual_progress: config.manual_progress,
    };
    let job = |rank: u32| Job {
        id,
        rank,
        world: config.world,
        incarnation: members[rank as usize].incarnation,
        token: Vec::new(),
        from: None,
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
        communicators.push(assemble(job, shared.clone(), part, connections, doors)?);
    }
    Ok(communicators)
}
