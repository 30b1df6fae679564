//! Another process, as an engine sees it: its link, and the credits and frames owed on it.

use crate::{
    clock::Moment,
    core::{
        group::Rank,
        session::{
            control::Message,
            lane::{Credits, EAGER_SLOTS, SHARED_SLOTS},
            membership::{MemberId, Roster},
        },
        wire::{Header, Kind},
    },
    sys::{segment::Segment, span::Span},
    transport::{
        Broken, Outgoing, Payload,
        frame::{Frame, Incoming, Next, Wanted},
        shm::{ShmLink, Source},
        tcp::{Memory, TcpLink},
        ticket::{OpKey, Token},
    },
};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    ops::{Index, IndexMut, Range},
    sync::Arc,
    time::Duration,
};

/// How messages travel to an endpoint.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "one each for a few endpoints, and a box would be in every message's way"
)]
pub(crate) enum Link {
    /// Nobody has needed it yet.
    None,
    /// It is being made.
    Wanted,
    Shm(ShmLink),
    Tcp(TcpLink),
    /// It is broken, or its process is gone; what that process left in shared memory can still be read.
    Lost {
        reason: String,
        left: Option<Arc<Segment>>,
    },
}

/// The facts that a reducer has received about a group.
#[derive(Debug)]
pub(crate) struct Introduced {
    pub(crate) generation: u32,
    /// The digests of the plans that were told in it.
    pub(crate) plans: BTreeSet<u64>,
}

/// How many workers of a job a reducer makes room for before it has met them.
const FIRST: u32 = 64;

/// The members of a job, as an engine sees them: by identity.
#[derive(Debug)]
pub(crate) struct Endpoints {
    /// Those of the lowest numbers: all members, but for a reducer.
    first: Vec<Endpoint>,
    others: Option<Others>,
}

/// The workers that a reducer has met after the first one. A false claim of the job's size costs no memory.
#[derive(Debug)]
struct Others {
    met: BTreeMap<MemberId, Endpoint>,
    /// How many workers the job is said to have.
    workers: u32,
}

impl Endpoints {
    /// The members of a roster, whose identities lie close together; those that are not in it any more have no links.
    pub(crate) fn new(roster: &Roster) -> Self {
        let ids = roster.members().last().map_or(0, |last| last.id.number() + 1);
        let endpoint = |id| Endpoint::of_member(roster, id);
        Self { first: (0..ids).map(MemberId::new).map(endpoint).collect(), others: None }
    }

    /// The members of a later epoch: there are more, and some may be gone. Returns those that are.
    pub(crate) fn renew(&mut self, roster: &Roster) -> Vec<MemberId> {
        let known = self.first.len() as u32;
        let ids = roster.members().last().map_or(0, |last| last.id.number() + 1);
        let endpoint = |id| Endpoint::of_member(roster, id);
        self.first.extend((known..ids).map(MemberId::new).map(endpoint));
        self.ids().filter(|id| roster.member(*id).is_none()).collect()
    }

    /// What a reducer knows of a job that is said to have so many workers, before it has met any; and who it is itself.
    /// Where workers are is no matter to it, since they call.
    pub(crate) fn of_reducer(workers: u32) -> (Self, MemberId) {
        let own = MemberId::new(workers);
        let met = [(own, Endpoint::new("this reducer".to_owned(), None))].into();
        let first = (0..workers.min(FIRST)).map(Endpoint::of_worker).collect();
        (Self { first, others: Some(Others { met, workers }) }, own)
    }

    /// A reducer meets workers, or hears of them. Nothing else is a worker's identity.
    pub(crate) fn meet(&mut self, workers: &[MemberId]) {
        let Some(others) = &mut self.others else { return };
        for id in workers.iter().filter(|id| (FIRST..others.workers).contains(&id.number())) {
            others.met.entry(*id).or_insert_with(|| Endpoint::of_worker(id.number()));
        }
    }

    pub(crate) fn get(&self, id: MemberId) -> Option<&Endpoint> {
        self.first.get(id.index()).or_else(|| self.others.as_ref()?.met.get(&id))
    }

    pub(crate) fn get_mut(&mut self, id: MemberId) -> Option<&mut Endpoint> {
        let others = self.others.as_mut();
        self.first.get_mut(id.index()).or_else(|| others?.met.get_mut(&id))
    }

    /// The worker of a rank.
    pub(crate) fn worker(&self, rank: Rank) -> Option<&Endpoint> {
        self.iter().find(|endpoint| endpoint.rank == Some(rank))
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = MemberId> + use<> {
        let met = match &self.others {
            None => Vec::new(),
            Some(others) => others.met.keys().copied().collect(),
        };
        let first = self.first.len();
        let id = move |at: usize| if at < first { MemberId::new(at as u32) } else { met[at - first] };
        (0..first + self.others.as_ref().map_or(0, |others| others.met.len())).map(id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Endpoint> {
        self.first.iter().chain(self.others.iter().flat_map(|others| others.met.values()))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Endpoint> {
        let others = self.others.iter_mut().flat_map(|others| others.met.values_mut());
        self.first.iter_mut().chain(others)
    }

    #[cold]
    fn beyond(&self, id: MemberId) -> &Endpoint {
        let met = self.others.as_ref().and_then(|others| others.met.get(&id));
        met.expect("a member that this process knows")
    }

    #[cold]
    fn beyond_mut(&mut self, id: MemberId) -> &mut Endpoint {
        let met = self.others.as_mut().and_then(|others| others.met.get_mut(&id));
        met.expect("a member that this process knows")
    }
}

impl Index<MemberId> for Endpoints {
    type Output = Endpoint;

    #[inline]
    fn index(&self, id: MemberId) -> &Endpoint {
        match self.first.get(id.index()) {
            Some(endpoint) => endpoint,
            None => self.beyond(id),
        }
    }
}

impl IndexMut<MemberId> for Endpoints {
    #[inline]
    fn index_mut(&mut self, id: MemberId) -> &mut Endpoint {
        if id.index() < self.first.len() { &mut self.first[id.index()] } else { self.beyond_mut(id) }
    }
}

/// A worker or a reducer that this process exchanges messages with.
#[derive(Debug)]
pub(crate) struct Endpoint {
    /// What people call it: "rank 3", or a reducer's address.
    pub(crate) name: String,
    /// Where its process listens, of a worker that the roster has.
    pub(crate) address: Option<String>,
    pub(crate) link: Link,
    /// A worker's rank in the job; a reducer has none.
    pub(crate) rank: Option<Rank>,
    /// Groups that a reducer has been told of.
    pub(crate) introduced: BTreeMap<u32, Introduced>,
    credits: Credits,
    /// Operations that wait for eager slots there: urgent ones first, then in the order in which they began.
    in_line: BTreeSet<(Reverse<i32>, OpKey)>,
    /// Eager messages that lie here because their operation has not begun.
    pub(crate) parked: u16,
    /// Whether its process is gone for good.
    pub(crate) dead: bool,
    /// When it left in order: what it sent before still counts.
    pub(crate) left: Option<Moment>,
    /// Whether it has said goodbye: a reducer that drains, which finishes its operations and begins no more, or, at a reducer, a worker
    /// that leaves in order.
    pub(crate) drains: bool,
    /// For how long nothing has come from it while something was waited for.
    pub(crate) silence: Duration,
}

impl Endpoint {
    pub(crate) fn new(name: String, rank: Option<Rank>) -> Self {
        Self {
            name,
            address: None,
            link: Link::None,
            rank,
            introduced: BTreeMap::new(),
            credits: Credits::new(EAGER_SLOTS),
            in_line: BTreeSet::new(),
            parked: 0,
            dead: false,
            left: None,
            drains: false,
            silence: Duration::ZERO,
        }
    }

    fn of_member(roster: &Roster, id: MemberId) -> Self {
        let rank = roster.rank_of(id);
        let address = roster.member(id).filter(|_| rank.is_some()).map(|member| member.address.clone());
        Self { address, ..Self::new(roster.name(id), rank) }
    }

    /// A worker in a job's first epoch, in which identities are ranks.
    fn of_worker(rank: Rank) -> Self {
        Self::new(format!("rank {rank}"), Some(rank))
    }

    pub(crate) fn is_reducer(&self) -> bool {
        self.rank.is_none()
    }

    pub(crate) fn is_up(&self) -> bool {
        matches!(self.link, Link::Shm(_) | Link::Tcp(_))
    }

    pub(crate) fn is_lost(&self) -> bool {
        matches!(self.link, Link::Lost { .. })
    }

    /// Whether nothing can be sent to it any more, and nobody there waits for it.
    pub(crate) fn is_away(&self) -> bool {
        self.is_lost() || self.left.is_some() && !self.is_up()
    }

    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.link, Link::Shm(_))
    }

    /// A new link starts with all eager slots free.
    pub(crate) fn connect(&mut self, link: Link) {
        let slots = if matches!(link, Link::Shm(_)) { SHARED_SLOTS } else { EAGER_SLOTS };
        (self.link, self.credits) = (link, Credits::new(slots));
        self.introduced.clear();
        self.in_line.clear();
    }

    /// Ends the link; what lies in shared memory stays readable. Returns the link if it was one over a socket.
    pub(crate) fn lose(&mut self, reason: String) -> Option<Box<TcpLink>> {
        let left = match &self.link {
            Link::Shm(link) => Some(link.segment().clone()),
            Link::Lost { left, .. } => left.clone(),
            _ => None,
        };
        match std::mem::replace(&mut self.link, Link::Lost { reason, left }) {
            Link::Tcp(link) => Some(Box::new(link)),
            _ => None,
        }
    }

    /// Takes one of the eager slots at the receiver, for an operation of this priority.
    pub(crate) fn take_eager(&mut self, priority: i32) -> bool {
        self.credits.take(priority)
    }

    /// An operation has found no eager slot.
    pub(crate) fn wait_for_slot(&mut self, priority: i32, operation: OpKey) {
        self.in_line.insert((Reverse(priority), operation));
    }

    /// The first operation in line, if there is an eager slot for it.
    pub(crate) fn next_in_line(&mut self) -> Option<OpKey> {
        let (Reverse(priority), _) = *self.in_line.first()?;
        if !self.credits.has_any(priority) {
            return None;
        }
        self.in_line.pop_first().map(|(_, operation)| operation)
    }

    /// The receiver has emptied eager slots.
    pub(crate) fn returned(&mut self, credits: u16) -> bool {
        self.credits.returned(credits);
        credits > 0
    }

    /// The eager slot that a frame took is free again. Returns whether its sender was sent word of that.
    pub(crate) fn emptied(&mut self, eager: bool) -> bool {
        let tells = eager && self.credits.owe(self.parked);
        if tells {
            self.notice(Header::new(Kind::Credit, 0, 0, 0));
        }
        tells
    }

    /// Whether the sender may have an eager slot left here, if it sends what it may.
    pub(crate) fn has_slot(&self) -> bool {
        self.credits.has_slot(self.parked)
    }

    /// Whether the sender may be unable to send eager messages because of what is parked here.
    pub(crate) fn is_crowded(&self) -> bool {
        self.credits.is_crowded(self.parked)
    }

    /// Sends a frame without payload, ahead of data.
    pub(crate) fn notice(&mut self, mut header: Header) {
        match &mut self.link {
            Link::Shm(link) => {
                header.credits = self.credits.settle();
                link.send(&Frame::new(&header, None));
            }
            Link::Tcp(link) => {
                let (fingerprint, payload) = (None, Payload::None);
                link.send(Outgoing { header, fingerprint, payload, priority: 0, done: None }, true);
            }
            _ => {}
        }
    }

    /// Sends a message through shared memory.
    pub(crate) fn send_shared(&mut self, frame: &mut Frame<'_>, index: u16, eager: bool) {
        frame.address(index, eager, self.credits.settle());
        if let Link::Shm(link) = &mut self.link {
            link.send(frame);
        }
    }

    /// Wakes a local rank if it sleeps through what it was sent, or while it waits for room that was made; after
    /// [`doorbell::published`](crate::sys::doorbell::published). Returns whether the link has taken everything.
    pub(crate) fn announce(&mut self) -> bool {
        let Link::Shm(link) = &mut self.link else { return true };
        link.announce();
        link.is_flushed()
    }

    /// Puts a message in line for the socket.
    pub(crate) fn send_stream(&mut self, frame: Outgoing) {
        if let Link::Tcp(link) = &mut self.link {
            link.send(frame, false);
        }
    }

    /// Writes to the socket what it takes; see [`TcpLink::flush`]. A frame says which slots are empty when it leaves, so that
    /// no word of them is lost with a frame that never does.
    pub(crate) fn flush_stream(
        &mut self,
        memory: &mut impl Memory,
        done: impl FnMut(Token),
    ) -> Result<bool, Broken> {
        let Self { link, credits, .. } = self;
        match link {
            Link::Tcp(link) => link.flush(memory, || credits.settle(), done),
            _ => Ok(false),
        }
    }

    /// An operation has failed, whose staging memory is about to be given back: what has not been sent of it never will be, and
    /// takes up no slot there, and what is arriving goes nowhere.
    pub(crate) fn cancel(&mut self, operation: OpKey, staged: &Range<usize>, memory: &impl Memory) {
        if let Link::Tcp(link) = &mut self.link {
            let unsent = link.cancel(|token| token.op == operation, memory);
            self.credits.returned(unsent);
            link.divert(staged);
        }
    }

    /// The next frame of a local rank from a source, if there is one. It stays the next until it is taken.
    pub(crate) fn peek(&self, source: Source) -> Result<Option<Incoming>, Broken> {
        match &self.link {
            Link::Shm(link) => link.peek(source),
            _ => Ok(None),
        }
    }

    /// Where a local rank's message lies, if it is the next from one of its sources, and from which; an error if something
    /// else is. If found it counts as seen, and is to be taken; `owes` says whether its sender was sent word of that.
    pub(crate) fn find(&mut self, wanted: &Wanted, owes: &mut bool) -> Option<Result<(Source, usize), ()>> {
        let Link::Shm(link) = &self.link else { return None };
        // In this order: what is posted after something else was sent is seen after that.
        let posted = link.next_is(Source::Board, wanted);
        if let Next::Wanted { at, .. } = posted {
            return Some(Ok((Source::Board, at)));
        }
        let sent = link.next_is(Source::Lane, wanted);
        // And what was sent after something else was posted, after that.
        if let Next::Other = sent
            && let Next::Wanted { at, .. } = link.next_is(Source::Board, wanted)
        {
            return Some(Ok((Source::Board, at)));
        }
        match (sent, posted) {
            (Next::Wanted { at, eager, credits }, _) => {
                self.returned(credits);
                *owes |= self.emptied(eager);
                Some(Ok((Source::Lane, at)))
            }
            (Next::None, Next::None) => None,
            _ => Some(Err(())),
        }
    }

    /// Takes in the next frame of a local rank's lane if all it does is to return credits.
    pub(crate) fn take_credits(&mut self) -> bool {
        let Ok(Some((header, None))) = self.peek(Source::Lane) else { return false };
        let only_credits = header.kind == Kind::Credit;
        if only_credits {
            self.returned(header.credits);
            self.take(Source::Lane);
        }
        only_credits
    }

    /// Releases the next frame of a local rank from a source, with its payload.
    pub(crate) fn take(&mut self, source: Source) {
        if let Link::Shm(link) = &mut self.link {
            link.take(source);
        }
    }

    /// A local rank was sent something on the board: it is to be [announced](Self::announce).
    pub(crate) fn was_posted(&mut self) {
        if let Link::Shm(link) = &mut self.link {
            link.was_posted();
        }
    }

    /// A payload that lies with its sender.
    pub(crate) fn payload(&self, at: usize, bytes: usize) -> Option<Span<'_>> {
        match &self.link {
            Link::Shm(link) => link.payload(at, bytes),
            Link::Lost { left: Some(segment), .. } => {
                let end = at.checked_add(bytes)?;
                (end <= segment.len()).then(|| segment.span(at..end))
            }
            _ => None,
        }
    }
}

/// Puts a control message in line.
pub(crate) fn send_control(endpoint: &mut Endpoint, message: &Message) {
    if let Ok(bytes) = message.encode(crc32c::crc32c) {
        let mut header = Header::new(Kind::Control, 0, 0, 0);
        header.length = bytes.len() as u32;
        endpoint.send_stream(Outgoing {
            header,
            fingerprint: None,
            payload: Payload::Owned(bytes),
            priority: i32::MAX,
            done: None,
        });
    }
}
