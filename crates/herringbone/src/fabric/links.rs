//! Making links, and letting others make theirs. The lower of two ranks calls; workers call reducers.

use super::{
    Job, acceptor,
    answer::Inquiry,
    command::{Command, Commands},
    decline::{self, Meeting},
    dial, election,
    greet::{self, GreetError},
    owner, reducers,
    wire_up::Mapping,
};
use crate::{
    config::check_exposure,
    core::session::{
        Refusal, Role,
        control::Message,
        formation::{JobName, Join},
        handshake::{Claim, Expected, Keys, Purpose},
        membership::MemberId,
    },
    node::Node,
    sys::{peer, socket},
    transport::endpoint::Link,
};
use std::{
    io,
    net::TcpStream,
    os::unix::net::UnixStream,
    sync::Arc,
    time::{Duration, Instant},
};

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
const LOCAL_PAUSE: Duration = Duration::from_millis(2);
const ATTEMPT: Duration = Duration::from_secs(5);
/// After how long somebody who does not answer is worth a line.
const WORTH_A_WARNING: Duration = Duration::from_secs(2);
/// How long another worker may be unreachable before the link is given up.
const WORKER_PATIENCE: Duration = Duration::from_secs(10);
/// And a reducer, which has answered rank 0 before it became a member.
const REDUCER_PATIENCE: Duration = Duration::from_secs(3);

/// How long a member may take to leave that calls anew already.
const GOODBYE: Duration = Duration::from_millis(200);

/// Begins to make a link, on a thread of its own.
pub(crate) fn make(
    job: &Job,
    node: &Arc<Node>,
    mapping: &Arc<Mapping>,
    commands: &Arc<Commands>,
    endpoint: MemberId,
) {
    let (job, node, mapping, commands) = (job.clone(), node.clone(), mapping.clone(), commands.clone());
    let spawned = std::thread::Builder::new().name("herringbone-link".to_owned()).spawn({
        let (job, node) = (job.clone(), node.clone());
        move || {
            let result = if mapping.reaches(endpoint) {
                share(&job, &node, &mapping, &commands, endpoint).or_else(|error| {
                    mapping.explain_lack(&job, endpoint, &error);
                    call(&job, &node, endpoint)
                })
            } else {
                call(&job, &node, endpoint)
            };
            if let Err(error) = result {
                no_link(&job, &node, endpoint, error.to_string());
            }
        }
    });
    if let Err(error) = spawned {
        no_link(&job, &node, endpoint, error.to_string());
    }
}

/// A link could not be made.
fn no_link(job: &Job, node: &Node, endpoint: MemberId, problem: String) {
    let name = job.roster.name(endpoint);
    crate::log::of_rank(
        job.rank,
        true,
        job.roster.rank_of(endpoint),
        format_args!("no link to {name}: {problem}"),
    );
    node.with(|engine| engine.no_link(endpoint, problem));
}

/// Whether the link is still wanted, and by whom it was not made in the meantime.
fn is_wanted(node: &Node, endpoint: MemberId) -> bool {
    node.with(|engine| matches!(engine.runtime.links.endpoints[endpoint].link, Link::Wanted))
}

/// Shares memory with a local rank.
fn share(
    job: &Job,
    node: &Arc<Node>,
    mapping: &Mapping,
    commands: &Commands,
    local: MemberId,
) -> Result<(), GreetError> {
    let incarnation = job.incarnation_of(local).ok_or(GreetError::Protocol("nothing is known of it"))?;
    let mut stream = connect_soon(job.segment_socket(local, incarnation).as_bytes())?;
    check_owner(peer::peer_owner(&stream)?.user, rustix::process::geteuid().as_raw())?;
    stream.set_nonblocking(false)?;
    let expected =
        Expected { role: Role::Worker, rank: job.roster.rank_of(local), incarnation: Some(incarnation) };
    greet::greet(&mut stream, job.hello(Purpose::Segment), expected, &job.token)?;
    connect_local(job, node, mapping, commands, local, &mut stream)
}

/// Whether a local rank of a user answers a process of another: it would only see its call end.
fn check_owner(local: u32, own: u32) -> Result<(), GreetError> {
    if owner::may_call(own, local) {
        return Ok(());
    }
    Err(GreetError::Unshared(format!(
        "it is user {local}'s and this process is user {own}'s: run both as one user"
    )))
}

/// Connects to a local rank's socket, which it opens a moment after it has heard of the world.
fn connect_soon(name: &[u8]) -> io::Result<UnixStream> {
    let began = Instant::now();
    loop {
        match socket::connect_abstract(name) {
            // It is not there yet, or more call it than may wait.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::WouldBlock)
                    && began.elapsed() < ATTEMPT =>
            {
                std::thread::sleep(LOCAL_PAUSE);
            }
            result => return result,
        }
    }
}

fn connect_local(
    job: &Job,
    node: &Arc<Node>,
    mapping: &Mapping,
    commands: &Commands,
    local: MemberId,
    stream: &mut UnixStream,
) -> Result<(), GreetError> {
    let life = peer::peer_pidfd(&*stream);
    let link = mapping.exchange(job, local, stream)?;
    node.with(|engine| engine.connect(local, link));
    node.wake();
    if let Ok(life) = life {
        commands.send(Command::Watch(local, life));
    }
    Ok(())
}

/// Connects to a worker or a reducer over TCP, trying again while it is not there.
fn call(job: &Job, node: &Arc<Node>, endpoint: MemberId) -> Result<(), GreetError> {
    let member = job.roster.member(endpoint).ok_or(GreetError::Protocol("it is no member of the job"))?;
    let expected =
        Expected { role: member.role, rank: job.roster.rank_of(endpoint), incarnation: member.incarnation };
    let address = &member.address;
    let patience = if member.role == Role::Reducer { REDUCER_PATIENCE } else { WORKER_PATIENCE };
    let (began, mut pause, mut warned) = (Instant::now(), FIRST_PAUSE, false);
    loop {
        let error = match attempt(job, address, expected) {
            Ok((stream, keys)) => {
                let link = acceptor::into_link(stream, keys, job.patience)?;
                node.with(|engine| {
                    // A member that was given up meanwhile may answer late: it is another one by now.
                    if !matches!(engine.runtime.links.endpoints[endpoint].link, Link::Wanted) {
                        return;
                    }
                    engine.connect(endpoint, Link::Tcp(link));
                    if member.role == Role::Reducer {
                        let name = job.name().unwrap_or_default().to_owned();
                        engine.send_control(endpoint, &Message::JobName(name));
                    }
                    if let Some(hub) = job.roster.worker(0).filter(|hub| hub.id == job.me)
                        && member.role == Role::Reducer
                    {
                        engine.send_control(endpoint, &Message::Hub { address: hub.address.clone() });
                    }
                });
                node.wake();
                return Ok(());
            }
            Err(error) => error,
        };
        if !error.may_pass() || began.elapsed() >= patience {
            return Err(error);
        }
        if !is_wanted(node, endpoint) {
            return Ok(());
        }
        if began.elapsed() >= WORTH_A_WARNING && !warned {
            warned = true;
            let who = format!("rank {}", job.rank);
            let what =
                format_args!("no process answers at {address} yet ({error}); this process keeps trying");
            crate::log::warn(&who, what);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn attempt(job: &Job, address: &str, expected: Expected) -> Result<(TcpStream, Keys), GreetError> {
    let mut stream =
        dial::dial(address, job.from, |there| check_exposure(there, str::from_utf8(&job.token).ok()))?;
    let keys = greet::greet(&mut stream, job.hello(Purpose::Data), expected, &job.token)?.keys;
    Ok((stream, keys))
}

/// Lets another worker make a link.
pub(crate) fn admit(
    job: &Job,
    node: &Arc<Node>,
    commands: &Commands,
    mut stream: TcpStream,
    claim: Claim,
) -> Result<(), GreetError> {
    let (who, purpose) = (claim.hello().identity, claim.hello().purpose);
    if purpose == Purpose::Enlist {
        return reducers::enlist(job, commands, stream, claim);
    }
    if purpose == Purpose::Election {
        return election::admit(job, commands, stream, claim);
    }
    if purpose == Purpose::Decline {
        // It is in the log, and the job continues.
        let _why = decline::receive(stream, claim, job.identity())?.end_of(Meeting::Again, &job.names);
        return Ok(());
    }
    if purpose == Purpose::Status {
        return Inquiry::new(stream, claim).answer_of_worker(job, node);
    }
    let member = job.roster.worker(who.rank).filter(|_| who.role == Role::Worker);
    let caller = match (purpose, member) {
        (Purpose::Data, Some(member))
            if member.incarnation == Some(who.incarnation) && member.id < job.me =>
        {
            // One that could not share memory calls so, whatever this end has made of that.
            let is_tcp = |link: &Link| matches!(link, Link::Tcp(_));
            if has_link(node, member.id, is_tcp) { Err(one_link(who.rank)) } else { Ok(member.id) }
        }
        // Its next world forms at this address, once this one has closed: it calls again if nobody answers.
        (Purpose::Join, Some(member)) if leaves(node, member.id) => {
            commands.note_newcomer(who.rank);
            return Ok(());
        }
        // It asks for the hub, and tells its job's names only to that.
        (Purpose::Join, Some(_)) if job.rank == 0 => return refuse_to_join(job, stream, claim),
        (Purpose::Join, Some(member)) => Err(Refusal::DuplicateRank {
            rank: who.rank,
            first: member.address.clone(),
            second: stream.peer_addr().map(|address| address.to_string()).unwrap_or_default(),
        }),
        _ => Err(Refusal::Unexpected { role: who.role, rank: who.rank }),
    };
    let caller = match caller {
        Ok(caller) => caller,
        Err(refusal) => {
            greet::refuse(&mut stream, claim, &refusal);
            return Ok(());
        }
    };
    let keys = greet::welcome(&mut stream, claim, job.identity())?.keys;
    let link = acceptor::into_link(stream, keys, job.patience)?;
    node.with(|engine| engine.connect(caller, Link::Tcp(link)));
    node.wake();
    Ok(())
}

/// Tells a process that joins late, as a rank of a world that has formed, why it is not admitted.
fn refuse_to_join(job: &Job, mut stream: TcpStream, claim: Claim) -> Result<(), GreetError> {
    let second = stream.peer_addr()?.to_string();
    let mut channel = greet::channel(greet::welcome(&mut stream, claim, job.identity())?);
    let Message::Join(Join { rank, job: names, .. }) =
        greet::receive(&mut stream, &mut channel, Instant::now() + greet::DEADLINE)?
    else {
        return Err(GreetError::Protocol("it did not ask to join"));
    };
    let first = job.roster.worker(rank).map(|member| member.address.clone()).unwrap_or_default();
    let taken = Refusal::DuplicateRank { rank, first, second };
    let refusal = JobName::check(rank, &job.names, &names).err().unwrap_or(taken);
    greet::send(&mut stream, &mut channel, &Message::Refuse(refusal))
}

/// Whether a member has left, or does so at once: its goodbye may come after the first call of its next life.
fn leaves(node: &Node, member: MemberId) -> bool {
    let until = Instant::now() + GOODBYE;
    loop {
        if node.with(|engine| engine.has_gone(member)) {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(GOODBYE / 20);
    }
}

/// Lets a local rank share memory. One that fails here calls over TCP instead.
pub(crate) fn admit_local(
    job: &Job,
    node: &Arc<Node>,
    mapping: &Mapping,
    commands: &Commands,
    mut stream: UnixStream,
    claim: Claim,
) -> Result<(), GreetError> {
    let who = claim.hello().identity;
    let local = job.roster.worker(who.rank).map(|member| member.id);
    let local = local.filter(|local| {
        mapping.reaches(*local)
            && *local < job.me
            && claim.hello().purpose == Purpose::Segment
            && job.incarnation_of(*local) == Some(who.incarnation)
    });
    let local = match local {
        Some(local) if has_link(node, local, |link| matches!(link, Link::Tcp(_) | Link::Shm(_))) => {
            Err(one_link(who.rank))
        }
        Some(local) => Ok(local),
        None => Err(Refusal::Unexpected { role: who.role, rank: who.rank }),
    };
    let local = match local {
        Ok(local) => local,
        Err(refusal) => {
            greet::refuse(&mut stream, claim, &refusal);
            return Ok(());
        }
    };
    greet::welcome(&mut stream, claim, job.identity())?;
    connect_local(job, node, mapping, commands, local, &mut stream)
        .inspect_err(|error| mapping.explain_lack(job, local, error))
}

/// Whether there is such a link to a member.
fn has_link(node: &Node, member: MemberId, which: impl Fn(&Link) -> bool) -> bool {
    node.with(|engine| which(&engine.runtime.links.endpoints[member].link))
}

/// A member that calls a second time has to wait until its first link is over here: it would take that one's place.
fn one_link(rank: u32) -> Refusal {
    Refusal::NoRoom { what: format!("the number of links to rank {rank}"), limit: 1 }
}
