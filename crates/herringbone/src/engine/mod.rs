//! The engine: groups, operations and links of one process, driven by whoever waits.
//!
//! It is one data structure without threads or blocking calls: [`Engine::turn`] moves what can move and returns. The
//! [`node`](crate::node) around it decides which thread does that, and when to sleep.

pub(crate) mod endpoint;
pub(crate) mod failure;
pub(crate) mod group;
pub(crate) mod inbox;
mod leave;
mod links;
pub(crate) mod stats;
pub(crate) mod table;

use crate::{
    Error, ErrorKind, Result,
    core::{
        session::{
            Cause,
            control::{Introduction, Message},
            fence::{Member, NotIssued},
        },
        wire::Fingerprint,
    },
    execute::{
        operation::{Identity, Io, OpKey, Operation, Progress, Token},
        prepare::{Call, Sizing},
        staging::Staging,
    },
    sys::region::Region,
    transport::Broken,
    work::Completion,
};
use endpoint::{Endpoint, Link};
use group::Group;
use inbox::Parked;
use stats::Stats;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    os::fd::OwnedFd,
    sync::Arc,
    time::{Duration, Instant},
};
use table::Table;

/// How many operations of a group may use reducers at once: what bounds a reducer's memory.
pub(crate) const REDUCER_OPERATIONS: usize = 4;
/// How many groups of a job a reducer takes part in.
const REDUCER_GROUPS: usize = 256;

/// What the engine asks of its surroundings.
#[derive(Debug)]
pub(crate) enum Event {
    /// A link to this endpoint is needed.
    Want(u32),
    /// A link broke.
    Broken { endpoint: u32, reason: Broken },
    /// A group has to be fenced.
    Dispute { group: u32, generation: u32, cause: Cause },
    /// Something to tell the hub.
    ToHub(Message),
    /// A control message came on a data link.
    Control { bytes: Vec<u8> },
}

/// Groups, operations and links of one process.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) me: u32,
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) groups: BTreeMap<u32, Group>,
    pub(crate) staging: Staging,
    pub(crate) stats: Stats,
    pub(crate) events: Vec<Event>,
    /// Whether this is a reducer: operations begin when a worker's first message comes.
    pub(crate) reduces: bool,
    ops: Table,
    /// Operations that wait for links, memory or their turn, in the order in which they were issued.
    queue: VecDeque<Queued>,
    parked: Vec<Parked>,
    /// Counts changes of links, so that programs are compiled for the links there are.
    links: u64,
    linked: Vec<u32>,
    poller: Arc<OwnedFd>,
    sockets: usize,
    tokens: Vec<Token>,
    finished: bool,
}

/// Why an operation was not issued.
#[derive(Debug)]
pub(crate) enum Refused {
    /// A fence is under way.
    Frozen,
    Failed(Error),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Refused::Failed(error)
    }
}

/// A request for an operation, with its buffers.
#[derive(Clone, Debug)]
pub(crate) struct Issue {
    pub(crate) group: u32,
    pub(crate) call: Call,
    pub(crate) input: Region,
    pub(crate) output: Region,
    pub(crate) timeout: Option<Duration>,
}

/// An operation that was issued and has not started.
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) id: Identity,
    pub(crate) call: Call,
    buffers: Option<(Region, Region)>,
    pub(crate) completion: Option<Arc<Completion>>,
    pub(crate) issued: Instant,
    pub(crate) timeout: Duration,
    /// Whether a fence was called for because it cannot start.
    given_up: bool,
}

/// Whether a queued operation can start.
enum Start {
    Now(std::ops::Range<usize>, Arc<crate::execute::prepare::Prepared>),
    Later,
    Never(Error),
}

impl Engine {
    pub(crate) fn new(
        me: u32,
        endpoints: Vec<Endpoint>,
        staging: Staging,
        poller: Arc<OwnedFd>,
        reduces: bool,
    ) -> Self {
        Self {
            me,
            endpoints,
            groups: BTreeMap::new(),
            staging,
            stats: Stats::default(),
            events: Vec::new(),
            reduces,
            ops: Table::default(),
            queue: VecDeque::new(),
            parked: Vec::new(),
            links: 0,
            linked: Vec::new(),
            poller,
            sockets: 0,
            tokens: Vec::new(),
            finished: false,
        }
    }

    /// Whether nobody waits for anything here.
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.ops.iter().all(|operation| operation.completion.is_none())
    }

    /// Whether operations finished since this was last asked.
    pub(crate) fn take_finished(&mut self) -> bool {
        std::mem::take(&mut self.finished)
    }

    /// Adds a group and hands it what came for it before.
    pub(crate) fn add_group(&mut self, group: Group) {
        let id = group.settings.id;
        self.groups.insert(id, group);
        self.redeliver(|header| header.group == id);
    }

    /// Issues an operation and lets it run as far as it can.
    ///
    /// # Errors
    /// [`Refused::Frozen`] while a fence is under way: to be tried again after its decision.
    pub(crate) fn issue(&mut self, issue: &Issue) -> Result<Arc<Completion>, Refused> {
        let result = self.try_issue(issue);
        self.stats.failed += u64::from(matches!(result, Err(Refused::Failed(_))));
        result
    }

    fn try_issue(&mut self, issue: &Issue) -> Result<Arc<Completion>, Refused> {
        let group = self.groups.get_mut(&issue.group).ok_or_else(|| Error::new(ErrorKind::Closed))?;
        let me = group.settings.me;
        let planned = group.plan(issue.call).map_err(|error| error.at(me))?;
        let mut fingerprint = planned.fingerprint;
        fingerprint.sequence = group.member.next();
        if let Some(error) = &group.lost {
            return Err(error.about(me, fingerprint).into());
        }
        if let Some(doom) = &group.doom {
            let error = doom.error.about(me, fingerprint);
            let cause = Cause::PeerLost { ranks: doom.ranks.clone() };
            self.call_for_fence(issue.group, cause);
            return Err(error.into());
        }
        let issued = group.member.issue(fingerprint).map_err(|reason| match reason {
            NotIssued::Frozen => Refused::Frozen,
            NotIssued::Failed(failed) => failure::error(&failed.cause).about(me, fingerprint).into(),
        })?;
        let (hash, generation) = (issued.hash, issued.generation);
        let completion = Arc::new(Completion::default());
        let id = Identity { group: issue.group, generation, hash, fingerprint };
        self.queue.push_back(Queued {
            id,
            call: issue.call,
            buffers: Some((issue.input.clone(), issue.output.clone())),
            completion: Some(completion.clone()),
            issued: Instant::now(),
            timeout: issue.timeout.unwrap_or(group.settings.timeout),
            given_up: false,
        });
        self.check_parked(issue.group, fingerprint.sequence, hash);
        self.start_queued();
        self.flush();
        Ok(completion)
    }

    /// A reducer begins the operation that a worker's first message announces.
    pub(crate) fn begin_told(
        &mut self,
        group: u32,
        generation: u32,
        hash: u64,
        told: Fingerprint,
    ) -> Result<OpKey, Broken> {
        let nonsense = |_| Broken::Protocol("an operation that makes no sense");
        let group_state =
            self.groups.get_mut(&group).ok_or(Broken::Protocol("a group that was not introduced"))?;
        if group_state.running.len() >= 2 * REDUCER_OPERATIONS {
            return Err(Broken::Protocol("more operations at once than were agreed"));
        }
        let call = group_state.plan_as_told(&told).map_err(nonsense)?.call;
        let prepared = group_state.prepared(call, self.links, |_| false).map_err(nonsense)?;
        let memory = self
            .staging
            .take(prepared.staging_bytes())
            .ok_or(Broken::Protocol("more than its share of memory"))?;
        let queued = Queued {
            id: Identity { group, generation, hash, fingerprint: told },
            call,
            buffers: None,
            completion: None,
            issued: Instant::now(),
            timeout: Duration::MAX,
            given_up: false,
        };
        Ok(self.start(queued, memory, prepared))
    }

    /// Starts what can start, in order within each group.
    pub(crate) fn start_queued(&mut self) {
        let mut stuck: BTreeSet<u32> = BTreeSet::new();
        let mut at = 0;
        while at < self.queue.len() {
            let group = self.queue[at].id.group;
            if stuck.contains(&group) {
                at += 1;
                continue;
            }
            match self.can_start(at) {
                Start::Later => {
                    stuck.insert(group);
                    at += 1;
                }
                Start::Now(memory, prepared) => {
                    let Some(queued) = self.queue.remove(at) else { return };
                    let (sequence, generation) = (queued.id.fingerprint.sequence, queued.id.generation);
                    let key = self.start(queued, memory, prepared);
                    self.redeliver(|header| {
                        (header.group, header.sequence, header.generation) == (group, sequence, generation)
                    });
                    self.run(key);
                    self.fail_if_any_departed(key);
                }
                Start::Never(error) => {
                    let Some(queued) = self.queue.remove(at) else { return };
                    self.not_started(queued, &error);
                }
            }
        }
    }

    fn can_start(&mut self, at: usize) -> Start {
        let Queued { id, call, .. } = &self.queue[at];
        let Some(group) = self.groups.get_mut(&id.group) else {
            return Start::Never(Error::new(ErrorKind::Closed));
        };
        let busy =
            group.running.iter().filter(|(_, key)| self.ops.get(*key).is_some_and(Operation::with_reducers));
        let busy = busy.count();
        let planned = match group.plan(*call) {
            Ok(planned) => planned,
            Err(error) => return Start::Never(error),
        };
        let (partners, with_reducers) = (planned.partners.clone(), planned.with_reducers);
        let endpoints: Vec<u32> = partners.iter().map(|rank| group.settings.roster[*rank as usize]).collect();
        let (mut up, mut lost) = (true, None);
        for endpoint in endpoints {
            match &self.endpoints[endpoint as usize].link {
                Link::Lost { .. } if self.endpoints[endpoint as usize].is_reducer => {
                    lost = Some(self.endpoints[endpoint as usize].name.clone());
                }
                _ if self.endpoints[endpoint as usize].left.is_some() => {}
                Link::Lost { .. } if self.endpoints[endpoint as usize].dead => up = false,
                Link::None | Link::Lost { .. } => {
                    self.endpoints[endpoint as usize].link = Link::Wanted;
                    self.events.push(Event::Want(endpoint));
                    up = false;
                }
                Link::Wanted => up = false,
                Link::Shm(_) | Link::Tcp(_) | Link::Busy => {}
            }
        }
        if let Some(address) = lost {
            self.give_up(at, address);
            return Start::Later;
        }
        if !up || (with_reducers && busy >= REDUCER_OPERATIONS) {
            return Start::Later;
        }
        let roster = group.settings.roster.clone();
        let shared = |rank: u32| self.endpoints[roster[rank as usize] as usize].is_shared();
        let prepared = match group.prepared(*call, self.links, shared) {
            Ok(prepared) => prepared,
            Err(error) => return Start::Never(error),
        };
        let bytes = prepared.staging_bytes();
        match self.staging.take(bytes) {
            Some(memory) => Start::Now(memory, prepared),
            None if bytes > self.staging.bytes() => Start::Never(Error::config(
                "HERRINGBONE_STAGING_BYTES",
                format_args!("this operation needs {bytes} bytes of staging memory; raise it on every rank"),
            )),
            None => Start::Later,
        }
    }

    /// An operation's reducer is gone: it fails with everybody's, by a fence, so that nobody is told twice.
    fn give_up(&mut self, at: usize, address: String) {
        let group = self.queue[at].id.group;
        if !std::mem::replace(&mut self.queue[at].given_up, true) {
            self.call_for_fence(group, Cause::ReducerLost { address });
        }
    }

    /// An operation that can never start fails.
    fn not_started(&mut self, queued: Queued, error: &Error) {
        if let Some(group) = self.groups.get_mut(&queued.id.group) {
            group.member.fail(queued.id.fingerprint.sequence);
        }
        self.conclude(&queued.id, &queued.call, queued.completion, Err(error.clone()), queued.issued);
    }

    fn start(
        &mut self,
        queued: Queued,
        memory: std::ops::Range<usize>,
        prepared: Arc<crate::execute::prepare::Prepared>,
    ) -> OpKey {
        let key = self.ops.reserve();
        let mut operation = Operation::new(key, queued.id, prepared, queued.buffers, queued.issued);
        (operation.completion, operation.timeout) = (queued.completion, queued.timeout);
        let Some(group) = self.groups.get_mut(&operation.id.group) else { return key };
        group.running.push_back((operation.id.fingerprint.sequence, key));
        let roster = group.settings.roster.clone();
        self.introduce(operation.id.group, &roster);
        let mut io = Io { endpoints: &mut self.endpoints, staging: &self.staging, stats: &mut self.stats };
        operation.start(memory, &roster, &mut io);
        let crowded: Vec<u32> =
            roster.iter().copied().filter(|at| self.endpoints[*at as usize].is_crowded()).collect();
        let mut io = Io { endpoints: &mut self.endpoints, staging: &self.staging, stats: &mut self.stats };
        crowded.into_iter().for_each(|endpoint| operation.open_to(endpoint, &mut io));
        self.ops.insert(operation);
        self.stats.most_in_flight = self.stats.most_in_flight.max(self.ops.len() as u64);
        key
    }

    /// Runs an operation as far as it can, and ends it if that was all.
    pub(crate) fn run(&mut self, key: OpKey) {
        let Some(operation) = self.ops.get_mut(key) else { return };
        let sequence = operation.id.fingerprint.sequence;
        if self.groups.get(&operation.id.group).is_none_or(|group| group.is_frozen(sequence)) {
            return;
        }
        let mut io = Io { endpoints: &mut self.endpoints, staging: &self.staging, stats: &mut self.stats };
        let progress = operation.run(&mut io);
        if progress != Progress::Running && operation.completion.is_some() {
            let completion = operation.completion.take();
            operation.release_buffers();
            let (id, call, issued) = (operation.id.clone(), operation.prepared.call, operation.issued);
            self.conclude(&id, &call, completion, Ok(()), issued);
        }
        if progress == Progress::Over {
            self.end(key);
        }
    }

    /// Forgets an operation and frees its memory.
    pub(crate) fn end(&mut self, key: OpKey) {
        let Some(operation) = self.ops.remove(key) else { return };
        if let Some(group) = self.groups.get_mut(&operation.id.group) {
            group.running.retain(|(_, running)| *running != key);
        }
        for endpoint in &mut self.endpoints {
            if let Link::Tcp(link) = &mut endpoint.link {
                link.cancel(|token| token.op == key);
                link.divert(&operation.memory);
            }
        }
        self.staging.give_back(operation.memory.clone());
    }

    /// Tells whoever waits for an operation how it ended.
    fn conclude(
        &mut self,
        id: &Identity,
        call: &Call,
        completion: Option<Arc<Completion>>,
        result: Result<()>,
        issued: Instant,
    ) {
        let Some(group) = self.groups.get_mut(&id.group) else { return };
        match &result {
            Ok(()) => {
                let (collective, algorithm) = group.names(call);
                self.stats.completed(collective, algorithm, issued.elapsed());
                group.member.complete(id.fingerprint.sequence);
            }
            Err(_) => self.stats.failed += 1,
        }
        self.report_if_due(id.group);
        let Some(group) = self.groups.get(&id.group) else { return };
        if let Some(completion) = completion {
            completion.finish(result.map_err(|error| error.about(group.settings.me, id.fingerprint)));
            self.finished = true;
        }
    }

    /// Moves what can move. Returns whether anything did.
    pub(crate) fn turn(&mut self) -> bool {
        let mut moved = false;
        let mut at = 0;
        while let Some(&index) = self.linked.get(at) {
            moved |= self.receive_shared(index);
            at += 1;
        }
        moved |= self.receive_sockets();
        if !self.queue.is_empty() {
            self.start_queued();
        }
        moved | self.flush()
    }

    /// A reducer is told of a group, or of its next generation.
    pub(crate) fn join_group(&mut self, told: &Introduction) -> Result<(), Broken> {
        let known = self.groups.get(&told.group).map(Group::told_generation);
        if known.is_some_and(|generation| generation >= told.generation) {
            return Ok(());
        }
        if known.is_some() {
            self.close_group(told.group, &Error::new(ErrorKind::Closed));
            self.groups.remove(&told.group);
        }
        if self.groups.len() >= REDUCER_GROUPS || told.members.iter().any(|member| *member >= self.me) {
            return Err(Broken::Protocol("more groups than a reducer takes, or members that cannot be"));
        }
        let workers = told.members.len() as u32;
        let mut roster = told.members.clone();
        roster.resize((workers + told.reducers) as usize, self.me);
        let settings = group::Settings {
            id: told.group,
            roster,
            workers,
            me: workers + told.reducer,
            hosts: Vec::new(),
            sizing: Sizing { shared: false, segment_bytes: told.segment as usize },
            forced: None,
            timeout: Duration::MAX,
        };
        let mut group = Group::new(settings, Member::new(told.group, self.me, told.members.clone()));
        group.begin_generation(told.generation);
        self.groups.insert(told.group, group);
        Ok(())
    }
}
