//! The engine: groups, operations and links of one process, driven by whoever waits.
//!
//! It is one data structure without threads or blocking calls: [`Engine::turn`] moves what can move and returns. The
//! [`node`](crate::node) around it decides which thread does that, and when to sleep.

pub(crate) mod begin;
mod buffers;
mod disband;
pub(crate) mod doom;
mod early;
pub(crate) mod failure;
pub(crate) mod group;
pub(crate) mod inbox;
mod leave;
pub(crate) mod links;
pub(crate) mod refused;
pub(crate) mod silence;
pub(crate) mod spread;
pub(crate) mod straight;
pub(crate) mod table;

use crate::{
    Error, ErrorKind, Result,
    clock::Moment,
    completion::Completion,
    core::session::{
        Cause,
        control::{Introduction, Message},
        fence::Member,
    },
    execute::{
        io::Io,
        issue::{Identity, Queued},
        operation::Progress,
        program::{Call, Sizing},
        staging::Staging,
        straight::{Notes, Straight},
    },
    sys::heap::Heap,
    transport::{Broken, endpoint::Endpoint, layout, shm::Board, stats::Stats, ticket::OpKey},
};
use early::Early;
use group::Group;
use spread::{Elsewhere, Spread};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    os::fd::OwnedFd,
    sync::Arc,
    time::{Duration, Instant},
};
use table::Table;

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
    /// The numbers of groups that are gone.
    forgotten: BTreeSet<u32>,
    /// What the hub has said of groups that this rank has not made yet.
    unmade: BTreeMap<u32, Member>,
    pub(crate) staging: Staging,
    /// Where users' buffers may lie so that host-mates can reach them; reducers have none.
    pub(crate) heap: Option<Arc<Heap>>,
    pub(crate) stats: Stats,
    pub(crate) events: Vec<Event>,
    /// Whether this is a reducer: operations begin when a worker's first message comes.
    pub(crate) reduces: bool,
    ops: Table,
    /// An operation that its waiter runs straight through; then there is no other.
    straight: Option<Straight>,
    notes: Notes,
    /// What is written once for all host-mates.
    board: Board,
    pub(crate) spread: Spread,
    /// Operations that wait for links, memory or their turn, in the order in which they were issued.
    queue: VecDeque<Queued>,
    early: Early,
    /// Counts changes of links, so that programs are compiled for the links there are.
    links: u64,
    linked: Vec<u32>,
    poller: Arc<OwnedFd>,
    sockets: usize,
    finished: bool,
    /// When time was last looked at.
    ticked: Instant,
}

impl Engine {
    pub(crate) fn new(
        me: u32,
        endpoints: Vec<Endpoint>,
        staging: Staging,
        poller: Arc<OwnedFd>,
        reduces: bool,
    ) -> Self {
        let spread = Spread::new(layout::seat(staging.segment()));
        Self {
            me,
            endpoints,
            groups: BTreeMap::new(),
            forgotten: BTreeSet::new(),
            unmade: BTreeMap::new(),
            staging,
            heap: None,
            stats: Stats::default(),
            events: Vec::new(),
            reduces,
            ops: Table::default(),
            straight: None,
            notes: Notes::default(),
            board: Board::default(),
            spread,
            queue: VecDeque::new(),
            early: Early::default(),
            links: 0,
            linked: Vec::new(),
            poller,
            sockets: 0,
            finished: false,
            ticked: Instant::now(),
        }
    }

    /// Whether nobody waits for anything here, nor for what is still in line for a link.
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty()
            && self.ops.iter().all(|operation| operation.completion.is_none())
            && !self.has_backlog()
    }

    /// Whether operations finished since this was last asked.
    pub(crate) fn take_finished(&mut self) -> bool {
        std::mem::take(&mut self.finished)
    }

    /// Adds a group and hands it what came for it before.
    pub(crate) fn add_group(&mut self, mut group: Group) {
        let id = group.settings.id;
        if let Some(member) = self.unmade.remove(&id) {
            group.follow(member);
        }
        group.doom = self.doomed_by(group.settings.members());
        self.groups.insert(id, group);
        let early = self.early.take_group(id);
        self.redeliver(early);
    }

    /// Runs an operation as far as it can, and ends it if that was all.
    pub(crate) fn run(&mut self, key: OpKey) {
        let Some(operation) = self.ops.get_mut(key) else { return };
        let (number, sequence) = (operation.id.group, operation.id.fingerprint.sequence);
        if self.groups.get(&number).is_none_or(|group| group.is_frozen(sequence)) {
            return;
        }
        let mut io = Io { endpoints: &mut self.endpoints, staging: &self.staging, stats: &mut self.stats };
        let progress = operation.run(&mut io);
        if progress != Progress::Running && operation.completion.is_some() {
            let completion = operation.completion.take();
            operation.release_buffers();
            let (id, call, issued) = (operation.id, operation.prepared.call, operation.issued);
            self.conclude(&id, &call, completion, Ok(()), issued);
        }
        match progress {
            Progress::Running => {}
            Progress::Complete => self.forget_if_over(number),
            Progress::Over => self.end(key),
        }
    }

    /// Forgets an operation and frees its memory.
    pub(crate) fn end(&mut self, key: OpKey) {
        let Some(operation) = self.ops.remove(key) else { return };
        if let Some(group) = self.groups.get_mut(&operation.id.group) {
            let at = group.running.iter().position(|(_, running)| *running == key);
            at.and_then(|at| group.running.remove(at));
        }
        let number = operation.id.group;
        self.staging.give_back(operation.memory.clone());
        self.ops.recycle(operation.into_room());
        self.forget_if_over(number);
    }

    /// What moved where, up to now.
    pub(crate) fn counted(&self) -> Stats {
        let mut stats = self.stats.clone();
        self.groups.values().for_each(|group| group.count(&mut stats));
        stats
    }

    /// Tells whoever waits for an operation how it ended.
    fn conclude(
        &mut self,
        id: &Identity,
        call: &Call,
        completion: Option<Arc<Completion>>,
        result: Result<()>,
        issued: Moment,
    ) {
        let Some(group) = self.groups.get_mut(&id.group) else { return };
        let result = result.map_err(|error| error.about(self.me, group.settings.named(id.fingerprint)));
        match &result {
            Ok(()) => {
                group.completed(call);
                self.stats.in_flight += issued.elapsed();
                group.member.complete(id.fingerprint.sequence);
            }
            Err(_) => self.stats.failed += 1,
        }
        self.report_if_due(id.group);
        if let Some(completion) = completion {
            completion.finish(result);
            self.finished = true;
        }
    }

    /// Moves what can move. Returns whether anything did.
    pub(crate) fn turn(&mut self) -> bool {
        self.look_at_sockets() | self.turn_without_look()
    }

    /// [`turn`](Self::turn), but for what sockets have to say: before and after a sleep, which tells that.
    pub(crate) fn turn_without_look(&mut self) -> bool {
        let mut moved = false;
        let mut at = 0;
        while let Some(&index) = self.linked.get(at) {
            moved |= self.receive_shared(index);
            at += 1;
        }
        if !self.queue.is_empty() {
            self.start_queued();
        }
        moved | self.flush()
    }

    /// The calling thread is about to wait for host-mates or others; elsewhere, if this says so.
    pub(crate) fn about_to_wait(&mut self) -> Option<Elsewhere> {
        self.spread.wait(self.me)
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
        let forced = told.forced.as_deref().map(str::parse).transpose();
        let forced = forced.map_err(|_| Broken::Protocol("an algorithm that is not known here"))?;
        let workers = told.members.len() as u32;
        let mut roster = told.members.clone();
        roster.resize((workers + told.reducers) as usize, self.me);
        let settings = group::Settings {
            id: told.group,
            roster,
            workers,
            me: workers + told.reducer,
            hosts: told.hosts.clone(),
            order: told.order,
            memories: told.hosts.clone(),
            sizing: Sizing {
                hosts: Sizing::distinct(&told.hosts),
                shared: false,
                segment_bytes: told.segment as usize,
                most_staged: told.most_staged as usize,
            },
            forced,
            timeout: Duration::MAX,
        };
        let mut group = Group::new(settings, Member::new(told.group, self.me, told.members.clone()));
        group.begin_generation(told.generation);
        self.groups.insert(told.group, group);
        Ok(())
    }
}
