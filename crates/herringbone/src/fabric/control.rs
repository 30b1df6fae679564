//! The control thread: hears of deaths and disagreements, makes links, and keeps time. It moves no data.
//!
//! A [`Watch`] decides; the thread has the connections and the clock.

use super::{
    Job,
    acceptor::Acceptor,
    command::{Command, Commands, pass_on},
    connection::Connection,
    links, reducers,
    wire_up::Mapping,
};
use crate::{
    clock::Moment,
    core::{
        group::Rank,
        session::{
            control::Message,
            fence::Directed,
            membership::MemberId,
            watch::{Effect, GroupEvent, RankPatience, TICK, Watch},
        },
    },
    engine::Engine,
    log::{Level, LogRecord},
    node::Node,
    sys::{fork::Guarded, pidfd::Pidfd},
};
use rustix::event::epoll;
use std::{
    collections::BTreeMap,
    mem::MaybeUninit,
    net::TcpListener,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixListener,
    },
    sync::Arc,
    time::{Duration, Instant},
};

/// How long rank 0 stays for the others when it leaves.
pub(crate) const LAST_OUT: Duration = Duration::from_secs(10);

const BELL: u64 = 0;
const PORT: u64 = 1;
const SEGMENTS: u64 = 2;
const CONNECTIONS: u64 = 16;
const LIVES: u64 = 1 << 40;

/// What the control thread starts with.
pub(crate) struct Start {
    pub(crate) job: Job,
    pub(crate) node: Arc<Node>,
    pub(crate) commands: Arc<Commands>,
    /// To all others on rank 0, to rank 0 elsewhere.
    pub(crate) connections: BTreeMap<Rank, Connection>,
    pub(crate) listener: Option<TcpListener>,
    pub(crate) segments: Option<Guarded<UnixListener>>,
    pub(crate) mapping: Arc<Mapping>,
    /// How long rank 0 stays for the others when it leaves.
    pub(crate) linger: Duration,
    /// Reducers that the settings name and that did not answer.
    pub(crate) away: Vec<String>,
}

/// The control thread's state.
pub(crate) struct Control {
    job: Job,
    node: Arc<Node>,
    commands: Arc<Commands>,
    poller: OwnedFd,
    connections: BTreeMap<Rank, Connection>,
    port: Option<Acceptor<Guarded<TcpListener>>>,
    segments: Option<Acceptor<Guarded<UnixListener>>>,
    mapping: Arc<Mapping>,
    lives: BTreeMap<MemberId, Guarded<Pidfd>>,
    watch: Watch,
}

impl Control {
    /// Prepares the thread's state; everything that can fail fails here.
    pub(crate) fn new(start: Start) -> std::io::Result<Self> {
        let Start { job, node, commands, connections, listener, segments, mapping, linger, away } = start;
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let watch = |fd: &dyn AsFd, key| {
            epoll::add(&poller, fd.as_fd(), epoll::EventData::new_u64(key), epoll::EventFlags::IN)
        };
        watch(&commands.bell.fd(), BELL)?;
        let who = format!("rank {}", job.rank);
        let listener = listener.map(Guarded::new).transpose()?;
        let port = listener.map(|port| Acceptor::new(&who, port, &job.token, job.policy())).transpose()?;
        let segments =
            segments.map(|socket| Acceptor::new(&who, socket, &job.token, job.policy())).transpose()?;
        if let Some(port) = &port {
            watch(&port.fd(), PORT)?;
        }
        if let Some(segments) = &segments {
            watch(&segments.fd(), SEGMENTS)?;
        }
        for (rank, connection) in &connections {
            watch(&connection.fd, CONNECTIONS + u64::from(*rank))?;
        }
        let peers = connections.keys().copied();
        let patience = RankPatience { silence: job.patience, linger };
        let mut watch = Watch::new(job.rank, job.roster.clone(), peers, patience, now());
        away.into_iter().for_each(|address| watch.name_reducer(address));
        Ok(Self {
            watch,
            job,
            node,
            commands,
            poller,
            connections,
            port,
            segments,
            mapping,
            lives: BTreeMap::new(),
        })
    }

    /// Runs until the fabric is closed.
    pub(crate) fn run(mut self) {
        let mut ticked = Instant::now();
        while !self.is_finished() {
            let mut room = [const { MaybeUninit::<epoll::Event>::uninit() }; 64];
            // A tick that is late counts as time in which this process did not run.
            let left = TICK.saturating_sub(ticked.elapsed());
            let timeout = rustix::time::Timespec { tv_sec: 0, tv_nsec: left.as_nanos() as i64 };
            // An interrupted wait is a short one.
            if let Ok((events, _)) = epoll::wait(&self.poller, &mut room[..], Some(&timeout)) {
                let keys: Vec<u64> = events.iter().map(|event| event.data.u64()).collect();
                keys.into_iter().for_each(|key| self.serve(key));
            }
            for command in self.commands.take() {
                self.execute(command);
            }
            if ticked.elapsed() >= TICK {
                ticked = Instant::now();
                self.admit_callers();
                self.admit_locals();
                self.node.tick();
                self.watch.tick(now());
                self.apply_effects();
            }
        }
    }

    fn serve(&mut self, key: u64) {
        match key {
            BELL => drop(self.commands.bell.drain()),
            PORT => self.admit_callers(),
            SEGMENTS => self.admit_locals(),
            key if key >= LIVES => self.ended(MemberId::new((key - LIVES) as u32)),
            key => self.receive((key - CONNECTIONS) as Rank),
        }
    }

    fn admit_callers(&mut self) {
        let Some(port) = &mut self.port else { return };
        for (caller, claim) in port.serve() {
            let (job, node, commands) = (self.job.clone(), self.node.clone(), self.commands.clone());
            port.spawn_handler(caller, claim, move |stream, claim| {
                links::admit(&job, &node, &commands, stream, claim)
            });
        }
    }

    fn admit_locals(&mut self) {
        let Some(segments) = &mut self.segments else { return };
        for (caller, claim) in segments.serve() {
            let (job, node) = (self.job.clone(), self.node.clone());
            let (mapping, commands) = (self.mapping.clone(), self.commands.clone());
            segments.spawn_handler(caller, claim, move |stream, claim| {
                links::admit_local(&job, &node, &mapping, &commands, stream, claim)
            });
        }
    }

    fn receive(&mut self, rank: Rank) {
        let Some(connection) = self.connections.get_mut(&rank) else { return };
        let (mut messages, mut open) = connection.receive();
        if open && !connection.flush() {
            // It has closed its end meanwhile. What it said last may be that it leaves.
            messages.extend(connection.receive().0);
            open = false;
        }
        let is_cut = connection.is_cut;
        if connection.take_heard() {
            self.watch.heard(rank, now());
        }
        for message in messages {
            self.watch.message(rank, message);
            self.apply_effects();
        }
        if !open {
            match is_cut {
                true => self.watch.cut_off(rank),
                false => self.watch.unreachable(rank),
            }
            self.apply_effects();
        }
    }

    /// Does what the watch wants done.
    fn apply_effects(&mut self) {
        while let Some(effect) = self.watch.next_effect() {
            match effect {
                Effect::Send(Directed { to, message }) => {
                    let connection = self.connections.get_mut(&to);
                    let is_broken = connection.is_some_and(|connection| !connection.send(&message));
                    if is_broken && message == Message::Heartbeat {
                        // Other messages are sent while some are being read, and what was said last may be that it leaves.
                        self.receive(to);
                    }
                }
                Effect::Disconnect(rank) => drop(self.connections.remove(&rank)),
                Effect::Connect(endpoint) => {
                    links::make(&self.job, &self.node, &self.mapping, &self.commands, endpoint);
                }
                Effect::Probe(address) => reducers::look_for(&self.job, &self.commands, address),
                Effect::Members(roster) => {
                    self.tell_engine(|engine| engine.renew(&roster));
                    self.job.roster = roster;
                }
                Effect::Answer { group, answer } => self.commands.answer(group, answer),
                Effect::Log { warns, peer, line } => crate::log::of_rank(self.job.rank, warns, peer, line),
                Effect::Groups(event) => {
                    self.log_departure(&event);
                    self.tell_engine(|engine| engine.take(event));
                }
            }
        }
    }

    /// Others leave at about the time at which this rank does: only rank 0 has to do with them then.
    fn log_departure(&self, event: &GroupEvent) {
        if let GroupEvent::PeerLeft(worker) = event
            && (!self.watch.leaves() || self.watch.hub().is_some())
        {
            let (who, peer) = (format!("rank {}", self.job.rank), self.job.roster.name(*worker));
            LogRecord::new(Level::Info, &who)
                .peer(&peer)
                .say(self.node.with(|engine| engine.describe_departure(*worker)));
        }
    }

    /// Has the engine do something, and the watch see at once to what the engine asks for then.
    fn tell_engine(&mut self, what: impl FnOnce(&mut Engine)) {
        let events = self.node.asked(what);
        events.into_iter().for_each(|event| pass_on(event, &mut self.watch, Moment::now()));
    }

    fn ended(&mut self, local: MemberId) {
        let ended = self.lives.get(&local).is_some_and(|life| life.has_ended().unwrap_or(true));
        if ended
            && self.lives.remove(&local).is_some()
            && let Some(rank) = self.job.roster.rank_of(local)
        {
            // What it said last may say that it left in order.
            self.receive(rank);
            self.watch.ended(rank, self.node.with(|engine| engine.runtime.links.has_said_goodbye(local)));
            self.apply_effects();
        }
    }

    fn execute(&mut self, command: Command) {
        match command {
            Command::Event(event) => pass_on(event, &mut self.watch, Moment::now()),
            Command::Watch(local, life) => self.look_after(local, life),
            Command::Greeted { address, life } => self.watch.greeted(&address, life, now()),
            Command::Close { lingers } => {
                self.node.with(|engine| engine.say_goodbye());
                self.watch.leave(lingers, now());
            }
        }
        self.apply_effects();
    }

    fn look_after(&mut self, local: MemberId, life: Pidfd) {
        let Ok(life) = Guarded::new(life) else { return };
        let key = epoll::EventData::new_u64(LIVES + u64::from(local.number()));
        if epoll::add(&self.poller, &life, key, epoll::EventFlags::IN).is_ok() {
            self.lives.insert(local, life);
        }
    }

    fn is_finished(&mut self) -> bool {
        let unsent = |connection: &mut Connection| connection.flush() && connection.full;
        let unsent = self.watch.leaves() && self.connections.values_mut().any(unsent);
        let finished = self.watch.has_left(unsent, now());
        self.apply_effects();
        finished
    }
}

/// The time, as a watch is told it.
fn now() -> Duration {
    Moment::now().since_start()
}
