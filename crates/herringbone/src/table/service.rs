//! A table server: a thread that serves workers and other servers, and threads that call other servers.

use super::{
    link::MessageLink,
    optimizers::OwnOptimizers,
    options::{TableGroup, TableOptions},
    reach::{Reach, connect_once},
    serving::Serving,
    shared::{ServiceShared, TableArrival, lock},
};
use crate::{
    config::{Transport, WaitLimits},
    core::session::{
        Refusal, Role,
        handshake::{Claim, Identity},
        status::TableServerStatus,
    },
    fabric::{
        acceptor,
        greet::{self, GreetError},
        same_host,
    },
};
use std::{
    io,
    net::TcpStream,
    sync::{Arc, Mutex, atomic::Ordering, mpsc::channel},
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Between two calls of a server that is not there.
const AGAIN: Duration = Duration::from_millis(100);
/// How long who asks waits for the thread that has the tables.
const PATIENCE: Duration = Duration::from_millis(400);
/// Between two calls of a server that refuses this one, after some: somebody has to do something first.
const REFUSED: Duration = Duration::from_secs(5);

/// The threads that serve tables.
pub(crate) struct TableService {
    shared: Arc<ServiceShared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The servers that it is among.
    group: Option<TableGroup>,
    /// Whether it shares memory with workers on its host.
    shares: bool,
}

impl TableService {
    /// Starts them. `token` is that of the group's servers.
    pub(crate) fn start(options: &TableOptions, incarnation: u64, token: Option<String>) -> io::Result<Self> {
        let optimizers = OwnOptimizers::new(&options.optimizers);
        let optimizers = optimizers.map_err(|wrong| io::Error::new(io::ErrorKind::InvalidInput, wrong.0))?;
        let shared = Arc::new(ServiceShared::new(incarnation)?);
        let mut serving = Serving::new(options, optimizers, incarnation, shared.clone())?;
        let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(name.to_owned()).spawn(work)
        };
        let mut threads = vec![spawn("hb-tables", Box::new(move || serving.run()))?];
        if let Some(group) = &options.group {
            for server in 0..group.place {
                let identity = own_identity(group, incarnation);
                let reach = Reach { token: token.clone(), identity, shares: false };
                let (shared, group) = (shared.clone(), group.clone());
                let call = move || shared.keep_calling(server, &group, &reach);
                threads.push(spawn("hb-table-peers", Box::new(call))?);
            }
        }
        Ok(Self {
            shared,
            threads: Mutex::new(threads),
            group: options.group.clone(),
            shares: Transport::shares(options.transport),
        })
    }

    /// Why a server that calls is not let in, if it is not.
    fn objection(&self, who: &Identity) -> Option<String> {
        let Some(group) = &self.group else {
            return Some("this server was started without --servers: start all of them with it".to_owned());
        };
        let taken = || lock(&self.shared.heard).get(&who.rank).is_some_and(|life| *life != who.incarnation);
        let rank = who.rank;
        if let Some(difference) = group.difference(&Identity { world: who.world.max(2), ..*who }) {
            Some(difference)
        } else if rank == group.place {
            Some(format!(
                "it is at place {rank} of --servers, like this one: give each server a --place of its own"
            ))
        } else if !(group.place..group.servers.len() as u32).contains(&rank) {
            Some(format!(
                "it is at place {rank}, and calls place {}: servers call only earlier places",
                group.place
            ))
        } else if taken() {
            Some(format!("place {rank} of --servers has another process, which lives: end it, or this one"))
        } else {
            None
        }
    }

    /// Lets a worker in that has proved itself, or another server of the group.
    pub(crate) fn admit(&self, mut stream: TcpStream, claim: Claim) -> Result<(), GreetError> {
        let who = claim.hello().identity;
        let is_peer = who.role == Role::TableServer;
        if let Some(problem) = is_peer.then(|| self.objection(&who)).flatten() {
            greet::refuse(&mut stream, claim, &Refusal::Unusable { setting: "servers".to_owned(), problem });
            return Ok(());
        }
        if who.role != Role::Worker && !is_peer {
            greet::refuse(&mut stream, claim, &Refusal::Unexpected { role: who.role, rank: who.rank });
            return Ok(());
        }
        let incarnation = self.shared.incarnation;
        let alone = Identity { role: Role::TableServer, job: who.job, rank: 0, world: 1, incarnation };
        let own = self.group.as_ref().map_or(alone, |group| own_identity(group, incarnation));
        let keys = greet::welcome(&mut stream, claim, own)?.keys;
        let patience = WaitLimits::default().patience;
        let link = match is_peer {
            true => MessageLink::of_peer(acceptor::into_link(stream, keys, patience)?),
            false => MessageLink::of_server(same_host::welcome_link(stream, keys, patience, self.shares)?),
        };
        self.shared.arrive(TableArrival { link, who })?;
        Ok(())
    }

    /// How it stands; `None` if its thread was busy all the time.
    pub(crate) fn status(&self) -> Option<TableServerStatus> {
        let (sender, answer) = channel();
        lock(&self.shared.inquiries).push(sender);
        self.shared.bell.ring().ok()?;
        answer.recv_timeout(PATIENCE).ok()
    }
}

impl ServiceShared {
    fn arrive(&self, arrival: TableArrival) -> io::Result<()> {
        lock(&self.arrivals).push(arrival);
        self.bell.ring()
    }

    /// Calls a server whenever there is no connection with it. One that refuses this one is called less and less often, and
    /// people are told once why.
    fn keep_calling(&self, server: u32, group: &TableGroup, reach: &Reach) {
        let address = &group.servers[server as usize];
        let (mut warned, mut pause) = (String::new(), AGAIN);
        while !self.is_over.load(Ordering::SeqCst) {
            let is_linked = lock(&self.linked).contains(&server);
            let called = (!is_linked).then(|| connect_once(address, reach, Some(server)));
            let problem = match called {
                None => None,
                Some(Ok((link, there))) => match group.difference(&there) {
                    None => {
                        lock(&self.linked).insert(server);
                        let arrival = TableArrival { link: MessageLink::of_peer(link), who: there };
                        if self.arrive(arrival).is_err() {
                            return;
                        }
                        None
                    }
                    difference => difference,
                },
                Some(Err(error)) => (!error.may_pass()).then(|| error.to_string()),
            };
            pause = if problem.is_some() { (2 * pause).min(REFUSED) } else { AGAIN };
            if let Some(problem) = problem.filter(|problem| *problem != warned) {
                crate::log::warn("tables", format_args!("the server at {address}: {problem}"));
                warned = problem;
            }
            self.rest(pause);
        }
    }

    /// Sleeps, unless it is over.
    fn rest(&self, pause: Duration) {
        let began = Instant::now();
        while began.elapsed() < pause && !self.is_over.load(Ordering::SeqCst) {
            std::thread::sleep(AGAIN.min(pause.saturating_sub(began.elapsed())));
        }
    }
}

/// What a server of a group says of itself.
fn own_identity(group: &TableGroup, incarnation: u64) -> Identity {
    let (rank, world) = (group.place, group.servers.len() as u32);
    Identity { role: Role::TableServer, job: group.mark(), rank, world, incarnation }
}

impl Drop for TableService {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        // It looks by itself, too.
        let _rung = self.shared.bell.ring();
        for thread in lock(&self.threads).drain(..) {
            // A thread that panicked has nothing left to say.
            let _ended = thread.join();
        }
    }
}

/// Calls a table server as another one of a group would, and ends the connection.
#[cfg(test)]
pub(super) fn call_as(group: &TableGroup, address: &str) -> Result<(), GreetError> {
    let reach = Reach { token: None, shares: false, identity: own_identity(group, 1) };
    connect_once(address, &reach, None).map(drop)
}
