//! The control thread: hears of deaths and disagreements, makes links, and keeps time. It moves no data.

use super::{
    Job,
    command::{Command, Commands},
    connection::Connection,
    door,
    door::Door,
    links,
    wire_up::Mapping,
};
use crate::{
    core::{
        group::Rank,
        session::{
            Cause, Ranks,
            control::{Death, Decoder, Message},
            fence::{Directed, Hub},
        },
    },
    engine::outbox::Event,
    node::Node,
    sys::{fork::Guarded, pidfd::Pidfd},
    transport::Broken,
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

/// How often time is looked at.
const TICK: Duration = Duration::from_millis(100);
const HEARTBEAT: Duration = Duration::from_secs(1);
/// After this silence a rank is suspected, in a warning.
const SUSPECT: Duration = Duration::from_secs(3);
/// After this silence a rank is dead.
const DEAD: Duration = Duration::from_secs(6);
/// A pause between two looks at time that says that this process did not run.
const STOOD_STILL: Duration = Duration::from_secs(2);
/// How long a broken link between workers may be the first sign of a death.
const BROKEN_FOR: Duration = Duration::from_millis(500);
/// How long rank 0 stays for the others when it leaves.
pub(crate) const LAST_OUT: Duration = Duration::from_secs(10);

const BELL: u64 = 0;
const DOOR: u64 = 1;
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
}

/// The control thread's state.
pub(crate) struct Control {
    job: Job,
    node: Arc<Node>,
    commands: Arc<Commands>,
    poller: OwnedFd,
    connections: BTreeMap<Rank, Connection>,
    listener: Option<Guarded<TcpListener>>,
    segments: Option<Guarded<UnixListener>>,
    mapping: Arc<Mapping>,
    lives: BTreeMap<Rank, Guarded<Pidfd>>,
    door: Door,
    hub: Option<Hub>,
    gone: BTreeMap<Rank, bool>,
    broken: Vec<(u32, Instant)>,
    beat: Instant,
    /// When time was last looked at.
    ticked: Instant,
    closing: Option<Instant>,
    linger: Duration,
    /// Whether it was said that rank 0 waits for others to leave.
    lingers: bool,
}

impl Control {
    /// Prepares the thread's state; everything that can fail fails here.
    pub(crate) fn new(start: Start) -> std::io::Result<Self> {
        let Start { job, node, commands, connections, listener, segments, mapping, linger } = start;
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let watch = |fd: &dyn AsFd, key| {
            epoll::add(&poller, fd.as_fd(), epoll::EventData::new_u64(key), epoll::EventFlags::IN)
        };
        watch(&commands.bell.fd(), BELL)?;
        let listener = listener.map(Guarded::new).transpose()?;
        if let Some(listener) = &listener {
            listener.set_nonblocking(true)?;
            watch(listener, DOOR)?;
        }
        if let Some(segments) = &segments {
            watch(segments, SEGMENTS)?;
        }
        for (rank, connection) in &connections {
            watch(&connection.fd, CONNECTIONS + u64::from(*rank))?;
        }
        let door = Door::new(&format!("rank {}", job.rank));
        Ok(Self {
            hub: (job.rank == 0).then(Hub::new),
            job,
            node,
            commands,
            poller,
            connections,
            listener,
            segments,
            mapping,
            lives: BTreeMap::new(),
            door,
            gone: BTreeMap::new(),
            broken: Vec::new(),
            beat: Instant::now(),
            ticked: Instant::now(),
            closing: None,
            linger,
            lingers: false,
        })
    }

    /// Runs until the fabric is closed.
    pub(crate) fn run(mut self) {
        self.ticked = Instant::now();
        while !self.is_finished() {
            let mut room = [const { MaybeUninit::<epoll::Event>::uninit() }; 64];
            let timeout = rustix::time::Timespec { tv_sec: 0, tv_nsec: TICK.as_nanos() as i64 };
            // An interrupted wait is a short one.
            if let Ok((events, _)) = epoll::wait(&self.poller, &mut room[..], Some(&timeout)) {
                let keys: Vec<u64> = events.iter().map(|event| event.data.u64()).collect();
                keys.into_iter().for_each(|key| self.serve(key));
            }
            for command in self.commands.take() {
                self.obey(command);
            }
            if self.ticked.elapsed() >= TICK {
                self.tick(Instant::now());
            }
        }
    }

    fn serve(&mut self, key: u64) {
        match key {
            BELL => drop(self.commands.bell.drain()),
            DOOR => self.accept(),
            SEGMENTS => self.accept_mates(),
            key if key >= LIVES => self.ended((key - LIVES) as Rank),
            key => self.hear((key - CONNECTIONS) as Rank),
        }
    }

    fn accept(&self) {
        let Some(listener) = &self.listener else { return };
        door::accept_all(listener, |stream| {
            let (job, node) = (self.job.clone(), self.node.clone());
            let admit = move |stream, claim| links::admit(&job, &node, stream, claim);
            self.door.enter(stream, &self.job.token, self.job.policy(), admit);
        });
    }

    fn accept_mates(&self) {
        let Some(segments) = &self.segments else { return };
        while let Ok(stream) = crate::sys::socket::accept(segments) {
            links::admit_mate(&self.job, &self.node, &self.mapping, &self.commands, stream);
        }
    }

    fn hear(&mut self, rank: Rank) {
        let Some(connection) = self.connections.get_mut(&rank) else { return };
        let (messages, open) = connection.hear();
        let open = open && connection.flush();
        for message in messages {
            self.message(rank, message);
        }
        if !open && self.connections.remove(&rank).is_some() {
            self.died(rank, Death::Unreachable);
        }
    }

    fn message(&mut self, from: Rank, message: Message) {
        match message {
            Message::Heartbeat => {}
            Message::Bye => {
                self.connections.remove(&from);
                self.left(from);
            }
            Message::Dead { rank, death } => self.died(rank, death),
            Message::Leave { rank } => self.left(rank),
            Message::Fence { group, .. } => self.obey_hub(group, &message),
            Message::Decide(ref decision) => self.obey_hub(decision.group, &message),
            Message::Waiting(ref waiting) if self.hub.is_none() => self.obey_hub(waiting.group, &message),
            Message::Forget { group } if self.hub.is_none() => {
                self.node.with(|engine| engine.left_by_all(group));
            }
            message => self.at_hub(from, message),
        }
    }

    /// A message for the hub: dealt with here if this is it, else sent there.
    fn tell_hub(&mut self, message: Message) {
        if self.hub.is_some() {
            self.at_hub(self.job.rank, message);
        } else if let Some(connection) = self.connections.get_mut(&0) {
            connection.say(&message);
        }
    }

    fn at_hub(&mut self, from: Rank, message: Message) {
        if let Some(hub) = &mut self.hub {
            let directed = hub.receive(from, message);
            self.direct(directed);
        }
    }

    fn direct(&mut self, messages: Vec<Directed>) {
        for Directed { to, message } in messages {
            if to == self.job.rank {
                self.message_from_own_hub(message);
            } else if let Some(connection) = self.connections.get_mut(&to) {
                connection.say(&message);
            }
        }
    }

    fn message_from_own_hub(&mut self, message: Message) {
        match &message {
            Message::Fence { group, .. } => self.obey_hub(*group, &message),
            Message::Decide(decision) => self.obey_hub(decision.group, &message),
            Message::Waiting(waiting) => self.obey_hub(waiting.group, &message),
            Message::Forget { group } => self.node.with(|engine| engine.left_by_all(*group)),
            _ => {}
        }
    }

    fn obey_hub(&mut self, group: u32, message: &Message) {
        if let Some(answer) = self.node.with(|engine| engine.told_by_hub(group, message)) {
            self.tell_hub(answer);
        }
    }

    /// A rank has died, as far as anybody knows: everybody is told, once. By rank 0 also while it leaves: it stays to tell.
    fn died(&mut self, rank: Rank, death: Death) {
        let leaves = self.closing.is_some() && self.hub.is_none();
        if self.gone.contains_key(&rank) || rank == self.job.rank || leaves {
            return;
        }
        self.gone.insert(rank, true);
        self.connections.remove(&rank);
        crate::log::info(&format!("rank {}", self.job.rank), format_args!("rank {rank} is lost: {death}"));
        self.spread(rank, &Message::Dead { rank, death });
        let hub_is_gone = rank == 0 || self.is_alone();
        self.node.with(|engine| engine.lose(rank, &death.to_string(), hub_is_gone));
        if let Some(hub) = &mut self.hub {
            let directed = hub.lose(rank);
            self.direct(directed);
        }
    }

    /// Whether rank 0 is gone: nobody can say any more who lives.
    fn is_alone(&self) -> bool {
        self.hub.is_none() && self.connections.is_empty()
    }

    /// A rank has left in order.
    fn left(&mut self, rank: Rank) {
        if self.gone.contains_key(&rank) || rank == self.job.rank {
            return;
        }
        self.gone.insert(rank, false);
        self.spread(rank, &Message::Leave { rank });
        self.node.with(|engine| engine.leave(rank));
        if let Some(hub) = &mut self.hub {
            let directed = hub.leave(rank);
            self.direct(directed);
        }
    }

    /// The hub tells all others; anybody else tells the hub.
    fn spread(&mut self, about: Rank, message: &Message) {
        for (rank, connection) in &mut self.connections {
            if *rank != about {
                connection.say(message);
            }
        }
    }

    fn ended(&mut self, rank: Rank) {
        let ended = self.lives.get(&rank).is_some_and(|life| life.has_ended().unwrap_or(true));
        if ended && self.lives.remove(&rank).is_some() {
            // What it said last may say that it left in order.
            self.hear(rank);
            match self.node.with(|engine| engine.has_said_goodbye(rank)) {
                true => self.left(rank),
                false => self.died(rank, Death::Exited),
            }
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Event(event) => self.event(event),
            Command::ToHub(message) => self.tell_hub(message),
            Command::Watch(rank, life) => self.watch(rank, life),
            Command::NoLink { endpoint, problem } => self.no_link(endpoint, problem),
            Command::Close => self.close(),
        }
    }

    fn watch(&mut self, rank: Rank, life: Pidfd) {
        let Ok(life) = Guarded::new(life) else { return };
        let key = epoll::EventData::new_u64(LIVES + u64::from(rank));
        if epoll::add(&self.poller, &life, key, epoll::EventFlags::IN).is_ok() {
            self.lives.insert(rank, life);
        }
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Want(endpoint) => {
                links::make(&self.job, &self.node, &self.mapping, &self.commands, endpoint);
            }
            Event::Broken { endpoint, reason } => self.link_broke(endpoint, &reason),
            Event::Dispute { group, generation, cause } => {
                if let Some(dispute) = self.node.with(|engine| engine.dispute(group, generation, cause)) {
                    self.tell_hub(dispute);
                }
            }
            Event::ToHub(message) => self.tell_hub(message),
            Event::Control { bytes } => {
                let mut decoder = Decoder::new(crc32c::crc32c);
                decoder.push(&bytes);
                if let Ok(Some(message @ Message::Dispute(_))) = decoder.next_message() {
                    self.tell_hub(message);
                }
            }
        }
    }

    fn link_broke(&mut self, endpoint: u32, reason: &Broken) {
        let is_gone = self.gone.contains_key(&endpoint);
        if !is_gone && self.closing.is_none() {
            let name = self.job.name(endpoint);
            crate::log::info(
                &format!("rank {}", self.job.rank),
                format_args!("lost the link to {name}: {reason}"),
            );
        }
        if self.job.is_reducer(endpoint) {
            self.node.with(|engine| engine.reducer_lost(endpoint));
        } else if !is_gone {
            self.broken.push((endpoint, Instant::now()));
        }
    }

    fn no_link(&mut self, endpoint: u32, problem: String) {
        crate::log::warn(
            &format!("rank {}", self.job.rank),
            format_args!("no link to {}: {problem}", self.job.name(endpoint)),
        );
        self.node.with(|engine| engine.no_link(endpoint, problem));
        if self.job.is_reducer(endpoint) {
            self.node.with(|engine| engine.reducer_lost(endpoint));
        } else {
            self.broken.push((endpoint, Instant::now()));
        }
    }

    fn tick(&mut self, now: Instant) {
        let stood_still = now.duration_since(std::mem::replace(&mut self.ticked, now)).saturating_sub(TICK);
        if stood_still >= STOOD_STILL {
            self.excuse(stood_still, now);
        }
        self.node.tick();
        let late = self.broken.extract_if(.., |(_, since)| now.duration_since(*since) >= BROKEN_FOR);
        let late: Vec<u32> = late.map(|(endpoint, _)| endpoint).collect();
        for endpoint in late {
            if self.gone.contains_key(&endpoint) {
                continue;
            }
            if self.is_alone() {
                self.died(endpoint, Death::Unreachable);
                continue;
            }
            let cause = Cause::Corrupt { from: endpoint, to: self.job.rank };
            self.node.with(|engine| engine.dispute_all_with(endpoint, &cause));
        }
        if now.duration_since(self.beat) >= HEARTBEAT {
            self.beat = now;
            let broken: Vec<Rank> = self
                .connections
                .iter_mut()
                .filter_map(|(rank, connection)| (!connection.say(&Message::Heartbeat)).then_some(*rank))
                .collect();
            broken.into_iter().for_each(|rank| self.died(rank, Death::Unreachable));
        }
        self.listen_for_silence(now);
    }

    /// This process, or the whole machine, was stopped for a while: what others said meanwhile may be on its way yet.
    fn excuse(&mut self, stood_still: Duration, now: Instant) {
        crate::log::warn(
            &format!("rank {}", self.job.rank),
            format_args!(
                "this process stood still for {} s: others may have given it up",
                stood_still.as_secs()
            ),
        );
        for connection in self.connections.values_mut() {
            connection.heard = now.min(connection.heard + stood_still);
        }
    }

    fn listen_for_silence(&mut self, now: Instant) {
        let mut dead = Vec::new();
        for (rank, connection) in &mut self.connections {
            let silence = now.duration_since(connection.heard);
            if silence >= DEAD {
                dead.push((*rank, silence.as_millis() as u64));
            } else if silence >= SUSPECT && !connection.suspected {
                connection.suspected = true;
                let who = format!("rank {}", self.job.rank);
                crate::log::warn(
                    &who,
                    format_args!("rank {rank} has been silent for {} s", silence.as_secs()),
                );
            }
        }
        dead.into_iter().for_each(|(rank, milliseconds)| self.died(rank, Death::Silent { milliseconds }));
    }

    fn close(&mut self) {
        self.closing = Some(Instant::now());
        self.node.with(|engine| engine.say_goodbye());
        // Rank 0 leaves as a rank now and as the hub last.
        let goodbye = if self.hub.is_some() { Message::Leave { rank: self.job.rank } } else { Message::Bye };
        self.connections.values_mut().for_each(|connection| {
            connection.say(&goodbye);
        });
    }

    /// Rank 0 stays until the others have left, for a while; whoever leaves stays until its goodbye is sent.
    fn is_finished(&mut self) -> bool {
        let Some(since) = self.closing else { return false };
        let waits = match self.hub {
            Some(_) => !self.connections.is_empty(),
            None => self.connections.values_mut().any(|connection| connection.flush() && connection.full),
        };
        if waits && since.elapsed() < self.linger {
            if self.hub.is_some() && since.elapsed() >= SUSPECT && !std::mem::replace(&mut self.lingers, true)
            {
                let others: Vec<Rank> = self.connections.keys().copied().collect();
                let (others, most) = (Ranks(&others), self.linger.as_secs());
                let problem = format_args!(
                    "waiting for {others} to leave, for at most {most} s: they learn from rank 0 who is lost"
                );
                crate::log::warn("rank 0", problem);
            }
            return false;
        }
        if self.hub.is_some() {
            self.connections.values_mut().for_each(|connection| {
                connection.say(&Message::Bye);
            });
        }
        true
    }
}
