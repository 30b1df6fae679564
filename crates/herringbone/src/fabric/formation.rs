//! Forming a world: everyone joins at rank 0, which answers with the roster.

use super::{
    acceptor::Acceptor,
    answer::Inquiry,
    connection::Connection,
    decline::{self, Declined, Meeting},
    enter::{OneWarning, enter},
    greet::{self, GreetError},
    hub_address::{self, OpenHub},
    reducers::Greetings,
};
use crate::{
    Error, ErrorKind, Result,
    config::{Config, check_exposure, host_name, settings},
    core::algorithm::Algorithm,
    core::prepare::cutting,
    core::session::{
        Ranks, Refusal, Role,
        control::{ControlChannel, Message},
        formation::{self, Formation, JobName, Join, Progress, Settings},
        handshake::{Claim, Hello, Identity, Policy, Purpose, Versions},
        membership::{MEMBERS, Process},
    },
    descriptors::raise_limit_of_descriptors,
    execute::issue::WORLD_GROUP,
    sys::{doorbell::Bell, socket::least_round_trip},
};
use rustix::event::{PollFd, PollFlags};
use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    os::fd::OwnedFd,
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

const PAUSE: Duration = Duration::from_millis(50);

/// A world that has formed.
pub(crate) struct World {
    pub(crate) formed: formation::Formed,
    pub(crate) token: Vec<u8>,
    pub(crate) incarnation: u64,
    pub(crate) listener: TcpListener,
    /// The address that data links are called from, if an interface is asked for.
    pub(crate) from: Option<IpAddr>,
    pub(crate) connections: BTreeMap<u32, Connection>,
    /// Reducers that the settings name and that did not answer, on rank 0.
    pub(crate) away: Vec<String>,
    /// What launchers call the job, as far as this process knows.
    pub(crate) names: Vec<JobName>,
}

/// Forms the world that `config` describes.
pub(crate) fn form(config: &Config, meeting: Meeting) -> Result<World> {
    raise_limit_of_descriptors();
    let deadline = Instant::now() + config.waits.timeout;
    if config.rank == 0 {
        return gather(config, meeting, hub_address::open_hub(config)?, deadline);
    }
    join(config, meeting, deadline)
}

/// As [`form`], on the new rank 0 of a job that has run before, which listens already.
pub(crate) fn form_at(config: &Config, listener: TcpListener, address: SocketAddr) -> Result<World> {
    let hub = OpenHub { listener, address, token: config.token.clone() };
    gather(config, Meeting::Again, hub, Instant::now() + config.waits.timeout)
}

fn drawn_number() -> Result<u64> {
    greet::random_number().map_err(|error| Error::io("drawing a random number", error))
}

/// What a rank says of itself.
fn own_join(config: &Config, incarnation: u64, address: SocketAddr) -> Join {
    let settings = Settings {
        staging: config.staging_bytes as u64,
        segment: if config.segment_bytes == 0 { u64::MAX } else { config.segment_bytes as u64 },
        order: config.fold_order,
        algorithm: config.guidance.forced.as_ref().map(ToString::to_string),
        transport: config.transport.map(|transport| transport.name().to_owned()),
        reducers: config.reducers.clone(),
        cutting: cutting::digest(),
        wiring: config.trees.wiring.clone(),
        measuring: config.trees.measuring,
        tree_bound: config.trees.bound,
        plan: config.guidance.rules.texts(),
        calibration: config.guidance.numbers(),
    };
    let host = crate::sys::socket::host_identity();
    let process = Process { address: address.to_string(), host, incarnation };
    let (job, host_name) = (config.job.clone(), host_name());
    Join { rank: config.rank, process, world: config.world, settings: Box::new(settings), job, host_name }
}

/// A rank that has proved itself and wants in.
type Applicant = (TcpStream, ControlChannel, Join, String);

/// What a rank has to say that has proved itself.
enum Caller {
    Joins(Box<Applicant>),
    Declines(Declined),
}

/// Rank 0's end of the ranks that have joined, by rank, with the life of each.
type Joined = BTreeMap<u32, (TcpStream, ControlChannel, u64)>;

/// What comes of the threads that hear what ranks say who have proved themselves.
#[derive(Clone)]
struct JoinQueue {
    sender: mpsc::Sender<Caller>,
    bell: Arc<Bell>,
}

/// Rank 0: lets everyone join.
fn gather(config: &Config, meeting: Meeting, hub: OpenHub, deadline: Instant) -> Result<World> {
    let OpenHub { listener, address, token } = hub;
    let incarnation = drawn_number()?;
    let from = config.local_address(address.ip()).map_err(|error| error.at(0))?;
    let token = token.unwrap_or_default().into_bytes();
    let prepared = |error| Error::io("preparing the port", error);
    let policy = Policy { versions: Versions::CURRENT, job: None, world: None };
    let mut acceptor = Acceptor::new("rank 0", listener, &token, policy).map_err(prepared)?;
    let mut formation = Formation::new(own_join(config, incarnation, address))
        .map_err(|refusal| Error::rendezvous(refusal).at(0))?;
    formation.give(config.plan_text().files);
    let identity = Identity { role: Role::Worker, job: 0, rank: 0, world: config.world, incarnation };
    let (sender, applicants) = mpsc::channel::<Caller>();
    let queue = JoinQueue { sender, bell: Arc::new(Bell::new().map_err(prepared)?) };
    let (mut joined, mut refused) = (Joined::new(), BTreeMap::<u32, String>::new());
    let (mut warning, began) = (OneWarning::of(0), Instant::now());
    let forced = config.world > 1 && config.guidance.forced.as_ref().is_some_and(Algorithm::needs_reducers);
    let greetings = Greetings::begin(formation.reducers(), from, &token, forced, deadline);
    while formation.progress() != Progress::Complete {
        for (caller, claim) in acceptor.serve() {
            if claim.hello().purpose == Purpose::Status {
                let missing = formation.missing();
                acceptor.spawn_handler(caller, claim, move |stream, claim| {
                    Inquiry::new(stream, claim).answer_of_forming(identity, missing)
                });
                continue;
            }
            let queue = queue.clone();
            acceptor.spawn_handler(caller, claim, move |stream, claim| {
                receive_join(stream, claim, identity, &queue)
            });
        }
        match applicants.try_recv() {
            // A second process of a rank that is there has no say.
            Ok(Caller::Declines(declined)) if joined.contains_key(&declined.rank) => {}
            Ok(Caller::Declines(declined)) => match declined.end_of(meeting, formation.job()) {
                Ok(refusal) => return Err(pass_on(config, acceptor, joined, &applicants, refusal)),
                Err((rank, why)) => {
                    refused.insert(rank, why);
                }
            },
            Ok(Caller::Joins(applicant)) => {
                if let Err((rank, why)) = take_in(&mut formation, &mut joined, *applicant) {
                    crate::log::warn("rank 0", format_args!("rank {rank} was refused: {why}"));
                    refused.insert(rank, format!("was refused: {why}"));
                }
            }
            Err(_) if Instant::now() >= deadline => {
                return Err(give_up(config, &formation, &mut joined, &refused));
            }
            Err(_) => {
                withdraw_the_gone(&mut formation, &mut joined);
                warning.say_after(began, || {
                    format!("waiting for {} of {}", Ranks(&formation.missing()), config.world)
                });
                wait(&acceptor, &queue.bell, deadline);
            }
        }
    }
    place(&mut formation, &mut joined, &config.trees.nodes)?;
    measure_round_trips(&mut formation, &joined);
    let away = leave_out(&mut formation, &mut joined, greetings.end(deadline), forced)?;
    let formed = formation
        .found(drawn_number()?)
        .ok_or_else(|| Error::rendezvous("the roster is incomplete").at(0))?;
    turn_away(&mut formation, &applicants);
    let connections = tell_all(joined, &formed, config.waits.patience)?;
    let (listener, names) = (acceptor.into_listener(), formation.job().to_vec());
    Ok(World { formed, token, incarnation, listener, from, connections, away, names })
}

/// Gives the formation the least round trip to each rank, as the kernel has measured it. A kernel that does not know leaves the plan to sizes.
fn measure_round_trips(formation: &mut Formation, joined: &Joined) {
    for (rank, (stream, ..)) in joined {
        let time = least_round_trip(stream).unwrap_or_default().as_micros();
        formation.measured(*rank, u32::try_from(time).unwrap_or(u32::MAX));
    }
}

/// Tells those that came too late that the world has formed without them.
fn turn_away(formation: &mut Formation, applicants: &mpsc::Receiver<Caller>) {
    for caller in applicants.try_iter() {
        if let Caller::Joins(applicant) = caller {
            let _refused = take_in(formation, &mut Joined::new(), *applicant);
        }
    }
}

/// Tells each rank the world that it is in.
fn tell_all(
    joined: Joined,
    formed: &formation::Formed,
    patience: Duration,
) -> Result<BTreeMap<u32, Connection>> {
    let mut connections = BTreeMap::new();
    for (rank, (mut stream, mut channel, _)) in joined {
        let formation::Formed { job, roster, parameters } = formed.clone();
        let messages = [
            Message::Roster { job, roster },
            Message::Parameters { group: WORLD_GROUP, parameters: Box::new(parameters) },
        ];
        let mut tell = |message| greet::send(&mut stream, &mut channel, message);
        messages.iter().try_for_each(&mut tell).map_err(|error| error.at(&format!("rank {rank}")))?;
        connections.insert(rank, connection(stream, channel, patience)?);
    }
    Ok(connections)
}

/// Finds the ranks among the nodes of the topology. Where they are not there, no rank gets a world.
fn place(formation: &mut Formation, joined: &mut Joined, nodes: &[String]) -> Result<()> {
    formation.place(nodes).map_err(|error| {
        let setting = settings::TOPOLOGY.name;
        let refusal = Refusal::Unusable { setting: setting.into(), problem: error.to_string() };
        refuse_all(joined, &refusal);
        Error::config(setting, error).at(0)
    })
}

fn refuse_all(joined: &mut Joined, refusal: &Refusal) {
    for (stream, channel, _) in joined.values_mut() {
        // Whoever does not hear it runs into its own timeout.
        let _unheard = greet::send(stream, channel, &Message::Refuse(refusal.clone()));
    }
}

/// Tells all ranks, those that come late, too, that one of them has a setting that it cannot use. Returns the error.
fn pass_on(
    config: &Config,
    acceptor: Acceptor<TcpListener>,
    mut joined: Joined,
    applicants: &mpsc::Receiver<Caller>,
    refusal: Refusal,
) -> Error {
    refuse_all(&mut joined, &refusal);
    let Refusal::UnusableAt { rank, setting, problem } = &refusal else { return Error::rendezvous(refusal) };
    let heard = joined.keys().copied().chain([*rank]).collect();
    // Some have been let in, and say only now that they want to join.
    let refuse = |caller| match caller {
        Caller::Declines(declined) => declined.rank,
        Caller::Joins(applicant) => {
            let (mut stream, mut channel, join, _) = *applicant;
            // It is refused whether or not it hears why.
            let _unheard = greet::send(&mut stream, &mut channel, &Message::Refuse(refusal.clone()));
            join.rank
        }
    };
    decline::answer(acceptor, config, &refusal, heard, || applicants.try_iter().map(refuse).collect());
    greet::unusable_at(*rank, setting, problem).at(0)
}

/// Founds the world without the reducers that cannot be used, which are called again later. Where they are forced it is an
/// error, on all ranks.
fn leave_out(
    formation: &mut Formation,
    joined: &mut Joined,
    away: Vec<(String, String)>,
    forced: bool,
) -> Result<Vec<String>> {
    if let Some((address, reason)) = away.first().filter(|_| forced) {
        let refusal = Refusal::NoReducer { address: address.clone(), reason: reason.clone() };
        refuse_all(joined, &refusal);
        return Err(Error::rendezvous(refusal).at(0));
    }
    for (address, reason) in &away {
        let what =
            format_args!("the reducer at {address} is not used, and is called again and again: {reason}");
        crate::log::warn("rank 0", what);
        formation.leave_out(address);
    }
    Ok(away.into_iter().map(|(address, _)| address).collect())
}

/// Lets a rank join, or tells it why not; then returns that as well.
fn take_in(
    formation: &mut Formation,
    joined: &mut Joined,
    (mut stream, mut channel, join, from): Applicant,
) -> Result<(), (u32, String)> {
    let (rank, life) = (join.rank, join.process.incarnation);
    match formation.join(join, &from) {
        Ok(_) => {
            joined.insert(rank, (stream, channel, life));
            Ok(())
        }
        Err(refusal) => {
            let why = refusal.to_string();
            // It is refused whether or not it hears why.
            let _unheard = greet::send(&mut stream, &mut channel, &Message::Refuse(refusal));
            Err((rank, why))
        }
    }
}

/// Sleeps until somebody calls or wants in, for a moment at most.
fn wait(acceptor: &Acceptor<TcpListener>, bell: &Bell, deadline: Instant) {
    let left = deadline.saturating_duration_since(Instant::now()).min(PAUSE);
    let limit = rustix::time::Timespec { tv_sec: 0, tv_nsec: i64::from(left.subsec_nanos()) };
    let mut waiting =
        [acceptor.fd(), bell.fd()].map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
    // An interrupted wait is a short one.
    let _woken = rustix::event::poll(&mut waiting, Some(&limit));
    let _rung = bell.drain();
}

fn connection(stream: TcpStream, channel: ControlChannel, patience: Duration) -> Result<Connection> {
    let prepared = crate::sys::socket::tune_tcp(&stream, super::acceptor::unacknowledged(patience));
    prepared
        .and_then(|()| Connection::new(OwnedFd::from(stream), channel))
        .map_err(|error| Error::io("preparing a connection", error))
}

fn receive_join(
    mut stream: TcpStream,
    claim: Claim,
    own: Identity,
    queue: &JoinQueue,
) -> Result<(), GreetError> {
    let from = stream.peer_addr()?.to_string();
    let caller = claim.hello().identity;
    if claim.hello().purpose == Purpose::Decline && caller.world == own.world {
        let declined = decline::receive(stream, claim, own)?;
        // Who has formed a world in the meantime has no use for it.
        let _unheard = queue.sender.send(Caller::Declines(declined));
        let _rung = queue.bell.ring();
        return Ok(());
    }
    if claim.hello().purpose != Purpose::Join {
        let Identity { role, rank, .. } = claim.hello().identity;
        greet::refuse(&mut stream, claim, &Refusal::Unexpected { role, rank });
        return Ok(());
    }
    let mut channel = greet::channel(greet::welcome(&mut stream, claim, own)?);
    match greet::receive(&mut stream, &mut channel, Instant::now() + greet::DEADLINE)? {
        Message::Join(join) => {
            let applicant = Box::new((stream, channel, join, from));
            if let Err(mpsc::SendError(Caller::Joins(applicant))) =
                queue.sender.send(Caller::Joins(applicant))
            {
                let (mut stream, mut channel, join, _) = *applicant;
                // Rank 0 has formed its world, or given up, in the meantime.
                let refusal = Refusal::Unexpected { role: Role::Worker, rank: join.rank };
                greet::send(&mut stream, &mut channel, &Message::Refuse(refusal))?;
            }
            // Rank 0 looks again soon in any case.
            let _rung = queue.bell.ring();
            Ok(())
        }
        _ => Err(GreetError::Protocol("it did not ask to join")),
    }
}

/// Ranks whose connection has ended may come again as other processes.
fn withdraw_the_gone(formation: &mut Formation, joined: &mut Joined) {
    joined.retain(|rank, (stream, _, life)| {
        let gone = stream.set_nonblocking(true).is_ok() && matches!(stream.peek(&mut [0]), Ok(0));
        let back = stream.set_nonblocking(false).is_ok();
        if gone || !back {
            formation.withdraw(*rank, *life);
        }
        back && !gone
    });
}

fn give_up(
    config: &Config,
    formation: &Formation,
    joined: &mut Joined,
    refused: &BTreeMap<u32, String>,
) -> Error {
    let missing = formation.missing();
    refuse_all(joined, &Refusal::Absent { missing: missing.clone() });
    let seconds = config.waits.timeout.as_secs_f64();
    let reasons = missing.iter().filter_map(|rank| Some((rank, refused.get(rank)?)));
    let mut advice: Vec<_> = reasons.map(|(rank, why)| format!("rank {rank} {why}")).collect();
    if advice.is_empty() {
        advice.push("look at their logs, or raise the timeout".to_owned());
    }
    Error::rendezvous(format_args!(
        "{} of {} did not come within {seconds} s; {}",
        Ranks(&missing),
        config.world,
        advice.join("; ")
    ))
    .at(0)
}

/// Every other rank: joins at rank 0. In a later meeting it tries again while rank 0 takes it for a second process of the rank, and
/// an error about another rank's settings is one of the meeting, which callers may repeat.
fn join(config: &Config, meeting: Meeting, deadline: Instant) -> Result<World> {
    loop {
        let may_try_again = meeting == Meeting::Again && Instant::now() + PAUSE < deadline;
        if let Some(world) = try_to_join(config, meeting, may_try_again, deadline)? {
            return Ok(world);
        }
        std::thread::sleep(PAUSE);
    }
}

/// An error of rank 0's, or one that it passes on.
fn of_others(error: Error, meeting: Meeting) -> Error {
    match (meeting, error.kind()) {
        (Meeting::Again, ErrorKind::Config { .. }) => Error::rendezvous(error.kind().seen()),
        _ => error,
    }
}

fn try_to_join(
    config: &Config,
    meeting: Meeting,
    may_try_again: bool,
    deadline: Instant,
) -> Result<Option<World>> {
    let incarnation = drawn_number()?;
    let identity =
        Identity { role: Role::Worker, job: 0, rank: config.rank, world: config.world, incarnation };
    let hello = Hello { identity, purpose: Purpose::Join, versions: Versions::CURRENT };
    let (mut stream, mut channel, (hub, token)) =
        enter(config, hello, deadline).map_err(|error| of_others(error, meeting).at(config.rank))?;
    let secret = token.clone().unwrap_or_default().into_bytes();
    let at = |error: std::io::Error| Error::io("preparing the port", error).at(config.rank);
    let usual = stream.local_addr().map_err(at)?.ip();
    let from = config.local_address(usual).map_err(|error| error.at(config.rank))?;
    let own = SocketAddr::new(from.unwrap_or(usual), 0);
    check_exposure(own, token.as_deref()).map_err(|error| error.at(config.rank))?;
    let listener = TcpListener::bind(own).map_err(at)?;
    let address = listener.local_addr().map_err(at)?;
    let join = own_join(config, incarnation, address);
    let problem = |error: GreetError| error.at(&format!("rank 0 at {hub}")).at(config.rank);
    greet::send(&mut stream, &mut channel, &Message::Join(join)).map_err(problem)?;
    let formed = match greet::receive(&mut stream, &mut channel, deadline + greet::DEADLINE) {
        Ok(Message::Roster { job, roster }) => {
            match greet::receive(&mut stream, &mut channel, deadline + greet::DEADLINE) {
                Ok(Message::Parameters { group: WORLD_GROUP, parameters }) => {
                    Ok(formation::Formed { job, roster, parameters: *parameters })
                }
                Ok(_) => Err(GreetError::Protocol("it did not send its parameters")),
                Err(error) => Err(error),
            }
        }
        Ok(Message::Refuse(Refusal::DuplicateRank { .. })) if may_try_again => return Ok(None),
        Ok(Message::Refuse(Refusal::UnusableAt { rank, setting, problem })) => {
            let error = greet::unusable_at(rank, &setting, &problem);
            return Err(of_others(error, meeting).at(config.rank));
        }
        Ok(Message::Refuse(refusal)) => return Err(Error::rendezvous(refusal).at(config.rank)),
        Ok(_) => Err(GreetError::Protocol("it sent another message than the protocol expects")),
        Err(GreetError::Late) => {
            let seconds = config.waits.timeout.as_secs_f64();
            let text = format!("not all ranks came within {seconds} s; rank 0's log names the missing ones");
            return Err(Error::rendezvous(text).at(config.rank));
        }
        Err(error) => Err(error),
    };
    let formed = formed.map_err(problem)?;
    check_formed(&formed, config, incarnation).map_err(problem)?;
    let connections = BTreeMap::from([(0, connection(stream, channel, config.waits.patience)?)]);
    let (away, names) = (Vec::new(), config.job.clone());
    Ok(Some(World { formed, token: secret, incarnation, listener, from, connections, away, names }))
}

/// Whether the world that rank 0 tells of is the one that this rank has joined.
fn check_formed(formed: &formation::Formed, config: &Config, incarnation: u64) -> Result<(), GreetError> {
    let formation::Formed { roster, parameters, .. } = formed;
    let own = roster.worker(config.rank).and_then(|worker| worker.incarnation);
    if roster.world() != config.world || own != Some(incarnation) {
        return Err(GreetError::Protocol("this rank is not in its roster"));
    }
    if !roster.reducers().map(|reducer| &reducer.address).eq(&parameters.reducers) {
        return Err(GreetError::Protocol("its roster has other reducers than its parameters"));
    }
    if roster.members().last().is_some_and(|last| last.id.index() >= MEMBERS) {
        return Err(GreetError::Protocol("its roster has identities beyond what a job gives out"));
    }
    if parameters.cutting != cutting::digest() {
        return Err(GreetError::Protocol(
            "its build cuts messages otherwise: install the same release everywhere",
        ));
    }
    Ok(())
}
