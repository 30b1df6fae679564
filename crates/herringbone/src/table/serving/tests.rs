//! Servers of a group in one thread, which turn when a test has them do so.

use super::{
    Serving,
    state::{FoundRecord, RestoreJob},
};
use crate::{
    core::{
        session::{
            Role,
            handshake::{Identity, Keys},
        },
        table::{ImageHead, ImageRecord, OptimizerKind, OptimizerSpec, TableSpec, replication::EpochId},
    },
    sys::fork::Guarded,
    table::{
        TableGroup, TableOptions,
        link::MessageLink,
        optimizers::OwnOptimizers,
        shared::{ServiceShared, TableArrival, lock},
    },
    transport::tcp::TcpLink,
};
use std::{
    collections::BTreeMap,
    os::unix::net::UnixStream,
    sync::{
        Arc,
        mpsc::{SyncSender, sync_channel},
    },
    time::{Duration, Instant},
};

mod away;
mod client;
mod known_keys;

/// A server that a test turns.
struct Turned {
    serving: Serving,
    who: Identity,
}

impl Turned {
    fn start(place: u32, servers: u32, incarnation: u64) -> Self {
        let shared = Arc::new(ServiceShared::new(incarnation).unwrap());
        let names = (0..servers).map(|server| format!("server-{server}:7070")).collect();
        let group = Some(TableGroup { servers: names, place, replicas: 1 });
        let options = TableOptions { memory_bytes: 1 << 30, group, ..TableOptions::default() };
        let who = Identity { role: Role::TableServer, job: 0, rank: place, world: servers, incarnation };
        Self { serving: Serving::new(&options, OwnOptimizers::default(), incarnation, shared).unwrap(), who }
    }

    fn arrive(&self, who: Identity, socket: UnixStream) {
        let link = MessageLink::of_peer(link_of(socket));
        lock(&self.serving.shared.arrivals).push(TableArrival { link, who });
        self.serving.shared.bell.ring().unwrap();
    }

    /// Time passes here, of which the other servers know nothing.
    fn age(&mut self, seconds: u32) {
        for _ in 0..seconds {
            self.serving.group.as_mut().unwrap().began -= Duration::from_secs(1);
            self.serving.look_after_group();
        }
    }

    /// The epoch that it is in, if it misses nobody there.
    fn epoch(&self) -> Option<EpochId> {
        let node = &self.serving.group.as_ref()?.node;
        node.settled().filter(|_| node.is_active()).map(|settled| settled.epoch.id)
    }

    fn owns(&self, range: u32) -> bool {
        self.serving.executes(range)
    }

    fn is_restoring(&self, range: u32) -> bool {
        self.serving.shards.get(&range).is_some_and(|shard| shard.tables.is_restoring(None))
    }

    /// Whether all copies have what was executed in a range.
    fn is_settled(&self, range: u32) -> bool {
        let progress = self.serving.group.as_ref().and_then(|group| group.node.progress(range));
        progress.is_some_and(|progress| progress.settled == progress.executed)
    }
}

fn link_of(socket: UnixStream) -> TcpLink {
    socket.set_nonblocking(true).unwrap();
    TcpLink::new(Guarded::new(socket.into()).unwrap(), Keys::default())
}

fn connect(one: &Turned, other: &Turned) {
    let (here, there) = UnixStream::pair().unwrap();
    one.arrive(other.who, here);
    other.arrive(one.who, there);
}

/// Turns servers until something is so.
fn until(servers: &mut BTreeMap<u32, Turned>, what: &str, is_so: impl Fn(&BTreeMap<u32, Turned>) -> bool) {
    let began = Instant::now();
    while !is_so(servers) {
        let state: Vec<_> = servers.iter().map(|(place, server)| (place, server.epoch())).collect();
        assert!(began.elapsed() < Duration::from_secs(20), "{what}: {state:?}");
        servers.values_mut().for_each(|server| server.serving.turn());
    }
}

/// Servers in one epoch, each with its range.
fn group(count: u32) -> BTreeMap<u32, Turned> {
    let mut servers: BTreeMap<u32, Turned> =
        (0..count).map(|place| (place, Turned::start(place, count, 10 + u64::from(place)))).collect();
    for one in 0..count {
        (one + 1..count).for_each(|other| connect(&servers[&one], &servers[&other]));
    }
    until(&mut servers, "all own their ranges", |servers| {
        servers.iter().all(|(place, server)| server.owns(*place) && server.epoch() == servers[&0].epoch())
    });
    servers
}

/// A table of range 0 is restored at a server, as far as its head, and at its copy. The snapshot's other records may follow.
fn restore(servers: &mut BTreeMap<u32, Turned>, at: u32, copy: u32) -> SyncSender<FoundRecord> {
    let (to, found) = sync_channel(1);
    let job = RestoreJob { range: 0, connection: u64::MAX, number: 1, id: None, has_begun: false, found };
    servers.get_mut(&at).unwrap().serving.disk.restores.push(job);
    let head = ImageHead {
        name: "t".into(),
        number: 0,
        spec: TableSpec::new(30, 2),
        optimizer: OptimizerSpec::of(OptimizerKind::Add),
        range: 0,
        ranges: 3,
        version: 0,
        began_at: 0,
        birth: None,
        not_numbers: 0,
    };
    to.send(FoundRecord::Record(ImageRecord::Head(Box::new(head)).encode().unwrap())).unwrap();
    until(servers, "the copy is restored, too", |servers| {
        servers[&copy].is_restoring(0) && servers[&at].is_settled(0)
    });
    to
}

#[test]
fn a_restore_whose_server_is_killed_ends_and_the_group_goes_on() {
    let mut servers = group(3);
    let _more = restore(&mut servers, 0, 1);
    servers.remove(&0);
    until(&mut servers, "all of the range is at its next copy", |servers| {
        servers[&1].owns(0)
            && servers[&1].is_settled(0)
            && servers[&2].serving.group.as_ref().unwrap().node.progress(0).is_some()
            && servers[&1].epoch() == servers[&2].epoch()
    });
    assert!(!servers[&1].is_restoring(0) && !servers[&2].is_restoring(0));
    // The copy takes what comes next, so it has all that came before.
    let _more = restore(&mut servers, 1, 2);
}

#[test]
fn of_two_processes_in_one_place_the_first_stays() {
    let mut servers = group(2);
    let before = servers[&0].epoch();
    // Under a number that is no place.
    servers.insert(2, Turned::start(1, 2, 99));
    for _ in 0..5 {
        connect(&servers[&0], &servers[&2]);
        until(&mut servers, "the second one has no connection", |servers| {
            lock(&servers[&2].serving.shared.arrivals).is_empty()
                && servers[&2].serving.connections.is_empty()
                && servers[&0].serving.connections.len() == 1
        });
    }
    assert_eq!((servers[&0].epoch(), servers[&1].epoch(), servers[&2].epoch()), (before, before, None));
    assert!(servers[&0].owns(0) && servers[&1].owns(1));
}

#[test]
fn a_process_whose_place_another_one_has_taken_does_not_go_on_alone() {
    let mut servers = group(2);
    let before = servers[&0].epoch();
    let stopped = servers.remove(&1).unwrap();
    let first = servers.get_mut(&0).unwrap();
    // What the stopped one had said is read.
    (0..5).for_each(|_| first.serving.turn());
    first.age(6);
    servers.insert(2, Turned::start(1, 2, 99));
    connect(&servers[&0], &servers[&2]);
    until(&mut servers, "both go on", |servers| {
        servers[&0].epoch() > before && servers[&2].owns(1) && servers[&0].epoch() == servers[&2].epoch()
    });
    servers.insert(1, stopped);
    // It wakes up, and hears that its connection is over.
    until(&mut servers, "it knows", |servers| servers[&1].serving.connections.is_empty());
    let woke = Instant::now();
    until(&mut servers, "it has looked for others", |_| woke.elapsed() > Duration::from_millis(600));
    assert!(!servers[&1].owns(0) && !servers[&1].owns(1) && servers[&1].epoch().is_none());
}
