//! A server of tables: a thread that serves workers and other servers, and threads that call other servers.

use super::{
    link::MessageLink,
    options::TableOptions,
    own::OwnOptimizers,
    reach::{Reach, connect_once},
    serving::Serving,
    shared::{ServiceShared, TableArrival, lock},
};
use crate::{
    config::WaitLimits,
    core::{
        session::{
            Refusal, Role,
            handshake::{Claim, Identity},
            status::TableServerStatus,
        },
        table::replication::ServerLife,
    },
    fabric::{
        acceptor,
        greet::{self, GreetError},
    },
    sys::doorbell::Bell,
};
use std::{
    io,
    net::TcpStream,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc::channel,
    },
    thread::JoinHandle,
    time::Duration,
};

/// Between two calls of a server that is not there.
const AGAIN: Duration = Duration::from_millis(100);
/// How long who asks waits for the thread that has the tables.
const PATIENCE: Duration = Duration::from_millis(400);

/// The threads that serve tables.
pub(crate) struct TableService {
    shared: Arc<ServiceShared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Among how many servers it is, and where.
    place: u32,
    servers: u32,
}

impl TableService {
    /// Starts them. `token` is that of the group's servers.
    pub(crate) fn start(options: &TableOptions, incarnation: u64, token: Option<String>) -> io::Result<Self> {
        let optimizers = OwnOptimizers::new(&options.optimizers);
        let optimizers = optimizers.map_err(|wrong| io::Error::new(io::ErrorKind::InvalidInput, wrong.0))?;
        let shared = Arc::new(ServiceShared {
            incarnation,
            arrivals: Mutex::default(),
            inquiries: Mutex::default(),
            linked: Mutex::default(),
            found: Mutex::default(),
            bell: Bell::new()?,
            is_over: AtomicBool::new(false),
        });
        let mut serving = Serving::new(options, optimizers, incarnation, shared.clone())?;
        let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(name.to_owned()).spawn(work)
        };
        let mut threads = vec![spawn("hb-tables", Box::new(move || serving.run()))?];
        let (place, servers) =
            options.group.as_ref().map_or((0, 1), |group| (group.place, group.servers.len() as u32));
        for (server, address) in (0..place).zip(options.group.iter().flat_map(|group| &group.servers)) {
            let identity =
                Identity { role: Role::TableServer, job: 0, rank: place, world: servers, incarnation };
            let reach = Reach { token: token.clone(), identity };
            let (shared, address) = (shared.clone(), address.clone());
            threads.push(spawn(
                "hb-table-peers",
                Box::new(move || shared.keep_calling(server, &address, &reach)),
            )?);
        }
        Ok(Self { shared, threads: Mutex::new(threads), place, servers })
    }

    /// Lets a worker in that has proved itself, or another server of the group.
    pub(crate) fn admit(&self, mut stream: TcpStream, claim: Claim) -> Result<(), GreetError> {
        let who = claim.hello().identity;
        let is_peer = who.role == Role::TableServer
            && who.world == self.servers
            && (self.place + 1..self.servers).contains(&who.rank);
        if who.role == Role::TableServer && !is_peer {
            let problem = format!(
                "a server at place {} of {} calls the one at place {} of {}: give all the same list of servers",
                who.rank, who.world, self.place, self.servers
            );
            let refusal = Refusal::Unusable { setting: "servers".to_owned(), problem };
            greet::refuse(&mut stream, claim, &refusal);
            return Ok(());
        }
        if who.role != Role::Worker && !is_peer {
            greet::refuse(&mut stream, claim, &Refusal::Unexpected { role: who.role, rank: who.rank });
            return Ok(());
        }
        let own = Identity {
            role: Role::TableServer,
            job: who.job,
            rank: self.place,
            world: self.servers,
            incarnation: self.shared.incarnation,
        };
        let keys = greet::welcome(&mut stream, claim, own)?.keys;
        let link = acceptor::into_link(stream, keys, WaitLimits::default().patience)?;
        let link = if is_peer { MessageLink::of_peer(link) } else { MessageLink::of_server(link) };
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

    /// Calls a server whenever there is no connection with it.
    fn keep_calling(&self, server: u32, address: &str, reach: &Reach) {
        let mut before = String::new();
        while !self.is_over.load(Ordering::SeqCst) {
            if !lock(&self.linked).contains(&server) {
                match connect_once(address, reach, Some(server)) {
                    Ok((_, there)) if there.world != reach.identity.world => {
                        let problem = format!(
                            "it has {} servers in its list, and this one {}",
                            there.world, reach.identity.world
                        );
                        if problem != before {
                            crate::log::warn(
                                "tables",
                                format_args!(
                                    "the server at {address}: {problem}; give all the same --servers"
                                ),
                            );
                            before = problem;
                        }
                    }
                    Ok((link, there)) => {
                        let process = ServerLife { server, life: there.incarnation };
                        lock(&self.linked).insert(process.server);
                        if self.arrive(TableArrival { link: MessageLink::of_peer(link), who: there }).is_err()
                        {
                            return;
                        }
                    }
                    Err(error) if error.may_pass() => {}
                    Err(error) => {
                        let problem = error.to_string();
                        if problem != before {
                            crate::log::warn("tables", format_args!("the server at {address}: {problem}"));
                            before = problem;
                        }
                    }
                }
            }
            std::thread::sleep(AGAIN);
        }
    }
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
