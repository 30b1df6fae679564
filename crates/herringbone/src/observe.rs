//! The events of this rank: counted, kept for the last operations, and passed to listeners.
//!
//! The engine reports every event once to its [`Observer`]. Without listeners nothing is allocated or formatted: an
//! event then costs a comparison, and no clock is read.

mod alarm;
mod event;
mod messages;
mod recent;

pub(crate) use alarm::FailureAlarm;
pub use event::{ListenerId, OperationId, OperationPurpose, Sink, StepKind, StepWork, TraceEvent};
pub(crate) use messages::{EndedMessage, MessagePost};
pub use recent::{OperationState, OperationTimes, Recent};

use crate::{
    Error, Result,
    clock::Moment,
    completion::Completion,
    core::{
        execution::SegmentStep,
        group::Rank,
        session::{
            Cause,
            flight::{FlightGroup, FlightOperation},
            membership::MemberId,
        },
    },
    execute::issue::{Identity, WORLD_GROUP},
    transport::{
        endpoint::Endpoint,
        stats::{Moved, Stats},
    },
};
use messages::MessageRing;
use recent::{Entry, Ring};
use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// More names of groups than this are kept only of groups with recent operations.
const NAMES: usize = 2048;

/// What an engine tells of all that happens.
#[derive(Debug, Default)]
pub(crate) struct Observer {
    /// The moment at which the engine was called.
    pub(crate) now: Moment,
    pub(crate) stats: Stats,
    /// Payload bytes by link, as far as there were any: at the number of the other end's identity.
    links: Vec<Moved>,
    /// The time that operations were under way, in nanoseconds, summed over operations.
    in_flight: u64,
    recent: Ring,
    messages: MessageRing,
    /// Told of failures of which somebody wants to read.
    pub(crate) alarm: FailureAlarm,
    /// What had moved through shared memory when the last straight run began: what moves until it ends is its own.
    before_straight: Moved,
    algorithms: Vec<String>,
    groups: BTreeMap<u32, GroupNote>,
    audience: Option<Box<Audience>>,
    /// How many have joined the audience so far.
    joined: u64,
}

/// What programs call a group.
#[derive(Clone, Debug, Default)]
struct GroupNote {
    name: String,
    /// What the program calls it, if that is something else, and what it says of it.
    called: String,
    description: String,
    /// Its ranks in the job, once it was made; none of one that serves another.
    ranks: Vec<Rank>,
    /// Whether it is there.
    is_open: bool,
}

/// Reads the clock that events are told by.
pub(crate) type ExactClock = fn() -> Moment;

/// Those who listen, and for whom operations wait that they know of.
#[derive(Debug)]
struct Audience {
    clock: ExactClock,
    listeners: Vec<Listener>,
    waiting: BTreeMap<u64, Vec<MemberId>>,
}

#[derive(Debug)]
struct Listener {
    id: ListenerId,
    sink: Box<dyn Sink>,
}

impl Audience {
    #[cold]
    #[inline(never)]
    fn tell<'a>(&mut self, event: impl FnOnce() -> TraceEvent<'a>) {
        self.tell_at((self.clock)(), event);
    }

    #[cold]
    #[inline(never)]
    fn tell_at<'a>(&mut self, moment: Moment, event: impl FnOnce() -> TraceEvent<'a>) {
        let (moment, event) = (moment.since_start(), event());
        self.listeners.iter_mut().for_each(|listener| listener.sink.event(moment, &event));
    }

    #[cold]
    fn notify_wait(&mut self, id: &Identity, endpoints: Vec<MemberId>) {
        if self.waiting.get(&id.number) != Some(&endpoints) {
            self.tell(|| TraceEvent::Waited { operation: operation(id), endpoints: &endpoints });
            self.waiting.insert(id.number, endpoints);
        }
    }

    #[cold]
    fn notify_end(&mut self, id: &Identity, result: &Result<()>) {
        self.waiting.remove(&id.number);
        self.tell(|| TraceEvent::Ended { operation: operation(id), result });
    }
}

/// What a group is called that has no name.
fn unnamed(group: u32) -> Cow<'static, str> {
    match group {
        WORLD_GROUP => Cow::Borrowed("world"),
        number => Cow::Owned(format!("group {number}")),
    }
}

fn operation(id: &Identity) -> OperationId {
    OperationId { group: id.group, generation: id.generation, sequence: id.fingerprint.sequence }
}

impl Observer {
    /// Tells everything to this sink, too, from now on, by the clock of the first who listens.
    pub(crate) fn listen(&mut self, sink: Box<dyn Sink>, clock: ExactClock) -> ListenerId {
        let id = ListenerId(self.joined);
        self.joined += 1;
        let empty = || Box::new(Audience { clock, listeners: Vec::new(), waiting: BTreeMap::new() });
        let audience = self.audience.get_or_insert_with(empty);
        // Whoever joins hears for whom operations wait already.
        audience.waiting.clear();
        audience.listeners.push(Listener { id, sink });
        id
    }

    /// Tells a sink nothing any more. Returns it, if it has listened until now.
    pub(crate) fn dismiss(&mut self, id: ListenerId) -> Option<Box<dyn Sink>> {
        let listeners = &mut self.audience.as_mut()?.listeners;
        let at = listeners.iter().position(|listener| listener.id == id)?;
        let listener = listeners.remove(at);
        self.audience = self.audience.take().filter(|audience| !audience.listeners.is_empty());
        Some(listener.sink)
    }

    #[inline]
    fn tell<'a>(&mut self, event: impl FnOnce() -> TraceEvent<'a>) {
        if let Some(audience) = &mut self.audience {
            audience.tell(event);
        }
    }

    /// The exact moment, if somebody listens.
    #[inline]
    pub(crate) fn watch(&self) -> Option<Moment> {
        self.audience.as_ref().map(|audience| (audience.clock)())
    }

    /// The number of the operation that is issued next.
    #[inline]
    pub(crate) fn next(&self) -> u64 {
        self.recent.issued()
    }

    /// An operation was issued, which has the [`next`](Self::next) number.
    // Inlined it would copy the call's fields one by one.
    #[inline(never)]
    pub(crate) fn issued(&mut self, id: &Identity, algorithm: u32, purpose: OperationPurpose) {
        self.recent.add(id, algorithm, self.now);
        if let Some(audience) = &mut self.audience {
            let group = match self.groups.get(&id.group) {
                Some(note) => Cow::Borrowed(note.name.as_str()),
                None => unnamed(id.group),
            };
            let algorithm = self.algorithms.get(algorithm as usize).map_or("", String::as_str);
            let call = &id.fingerprint;
            audience.tell(|| TraceEvent::Issued {
                operation: operation(id),
                call,
                group: &group,
                algorithm,
                purpose,
            });
        }
    }

    /// A call became no operation.
    pub(crate) fn refused(&mut self) {
        self.stats.failed += 1;
    }

    /// An operation's program begins to run, while so many are under way.
    pub(crate) fn began(&mut self, id: &Identity, under_way: usize) {
        self.stats.most_in_flight = self.stats.most_in_flight.max(under_way as u64);
        if let Some(entry) = self.recent.get_mut(id.number) {
            (entry.state, entry.began) = (OperationState::Running, Some(self.now));
        }
        self.tell(|| TraceEvent::Began { operation: operation(id) });
    }

    /// An operation began as it was issued, and is the only one that is under way. What it does is not looked for until it
    /// [ends or goes on in another way](Self::left_straight).
    #[inline]
    pub(crate) fn began_straight(&mut self, id: &Identity) {
        self.before_straight = self.stats.workers_shm;
        self.stats.most_in_flight = self.stats.most_in_flight.max(1);
        self.tell(|| TraceEvent::Began { operation: operation(id) });
    }

    /// A straight run is over, or its operation goes on in another way.
    #[inline]
    pub(crate) fn left_straight(&mut self, id: &Identity) {
        let (before, now) = (self.before_straight, self.stats.workers_shm);
        if let Some(entry) = self.recent.get_mut(id.number) {
            (entry.state, entry.began) = (OperationState::Running, Some(entry.issued));
            entry.moved = Moved { sent: now.sent - before.sent, received: now.received - before.received };
        }
    }

    /// A step of a segment ran, which began at a moment that was [watched](Self::watch).
    #[inline]
    pub(crate) fn step(
        &mut self,
        id: &Identity,
        ran: SegmentStep,
        began: Option<Moment>,
        work: impl FnOnce() -> StepWork,
    ) {
        let (Some(began), Some(audience)) = (began, &mut self.audience) else { return };
        let SegmentStep { segment, step } = ran;
        audience.tell(move || {
            let (operation, began) = (operation(id), began.since_start());
            TraceEvent::Step { operation, segment, step, work: work(), began }
        });
    }

    /// What moved on the link to an endpoint.
    #[inline]
    fn link(&mut self, endpoint: MemberId) -> &mut Moved {
        if endpoint.index() >= self.links.len() {
            self.reserve(endpoint);
        }
        &mut self.links[endpoint.index()]
    }

    /// Room is taken for those with whom something is exchanged: an identity is below [`MEMBERS`](crate::core::session::membership::MEMBERS) wherever there is a link.
    #[cold]
    fn reserve(&mut self, endpoint: MemberId) {
        self.links.resize(endpoint.index() + 1, Moved::default());
    }

    /// What moved on the link to an endpoint, up to now.
    pub(crate) fn moved_with(&self, endpoint: MemberId) -> Moved {
        self.links.get(endpoint.index()).copied().unwrap_or_default()
    }

    /// A message is given to a link: said before it can be read, so that nobody takes in what was not sent yet.
    #[inline]
    pub(crate) fn sent(
        &mut self,
        id: &Identity,
        segment: u32,
        to: MemberId,
        endpoint: &Endpoint,
        bytes: usize,
    ) {
        self.stats.sent(endpoint, bytes);
        self.link(to).sent += bytes as u64;
        if let Some(entry) = self.recent.get_mut(id.number) {
            entry.moved.sent += bytes as u64;
        }
        self.tell(|| TraceEvent::Sent { operation: operation(id), endpoint: to, segment, bytes });
    }

    /// A message of a straight run is given to a local rank, which can read it from `moment` on, if somebody listens.
    #[inline]
    pub(crate) fn sent_straight(
        &mut self,
        id: &Identity,
        endpoint: MemberId,
        bytes: usize,
        moment: Option<Moment>,
    ) {
        self.stats.workers_shm.sent += bytes as u64;
        self.link(endpoint).sent += bytes as u64;
        if let (Some(audience), Some(moment)) = (&mut self.audience, moment) {
            let event = move || TraceEvent::Sent { operation: operation(id), endpoint, segment: 0, bytes };
            audience.tell_at(moment, event);
        }
    }

    /// A message was taken in.
    #[inline]
    pub(crate) fn received(
        &mut self,
        id: &Identity,
        segment: u32,
        from: MemberId,
        endpoint: &Endpoint,
        bytes: usize,
    ) {
        self.stats.received(endpoint, bytes);
        self.link(from).received += bytes as u64;
        if let Some(entry) = self.recent.get_mut(id.number) {
            entry.moved.received += bytes as u64;
        }
        self.tell(|| TraceEvent::Received { operation: operation(id), endpoint: from, segment, bytes });
    }

    /// A message of a local rank was taken in for a straight run.
    #[inline]
    pub(crate) fn received_straight(&mut self, id: &Identity, endpoint: MemberId, bytes: usize) {
        self.stats.workers_shm.received += bytes as u64;
        self.link(endpoint).received += bytes as u64;
        self.tell(move || TraceEvent::Received { operation: operation(id), endpoint, segment: 0, bytes });
    }

    /// An operation cannot go on without these.
    #[inline]
    pub(crate) fn waited(&mut self, id: &Identity, endpoints: impl FnOnce() -> Vec<MemberId>) {
        if let Some(audience) = &mut self.audience {
            audience.notify_wait(id, endpoints());
        }
    }

    /// An operation that was issued at some moment has ended.
    #[inline]
    pub(crate) fn ended(&mut self, id: &Identity, issued: Moment, result: &Result<()>) {
        let state = match result {
            Ok(()) => {
                self.in_flight += self.now.nanoseconds_since(issued);
                OperationState::Done
            }
            Err(error) => {
                self.stats.failed += 1;
                self.alarm.failed(id.group, id.generation, error);
                OperationState::Failed(error.kind().name())
            }
        };
        self.over(id, state, result);
    }

    /// An operation is over on a reducer, which counts none.
    pub(crate) fn reduced(&mut self, id: &Identity, result: Result<(), &Error>) {
        let state = result
            .map_or_else(|error| OperationState::Failed(error.kind().name()), |()| OperationState::Done);
        self.over(id, state, &result.map_err(Error::clone));
    }

    #[inline]
    fn over(&mut self, id: &Identity, state: OperationState, result: &Result<()>) {
        if let Some(entry) = self.recent.get_mut(id.number) {
            (entry.state, entry.ended) = (state, self.now);
        }
        if let Some(audience) = &mut self.audience {
            audience.notify_end(id, result);
        }
    }

    /// Nothing has come from these for long.
    pub(crate) fn suspected(&mut self, endpoints: impl FnOnce() -> Vec<MemberId>, silent: Duration) {
        if let Some(audience) = &mut self.audience {
            for endpoint in endpoints() {
                audience.tell(|| TraceEvent::Suspected { endpoint, silent });
            }
        }
    }

    /// A process has ended, or cannot be reached any more.
    pub(crate) fn lost(&mut self, endpoint: MemberId, reason: &str) {
        self.tell(|| TraceEvent::Lost { endpoint, reason });
    }

    /// A worker has told this reducer of a group.
    pub(crate) fn introduced(&mut self, group: u32, reducer: u32) {
        self.tell(|| TraceEvent::Introduced { group, reducer });
    }

    /// A group begins a generation.
    pub(crate) fn fenced(&mut self, group: u32, generation: u32, cause: &Cause) {
        self.tell(|| TraceEvent::Fenced { group, generation, cause });
    }

    /// Plans of a group take ports for something else from an operation on.
    pub(crate) fn rebalanced(&mut self, group: u32, from: u64, why: &str) {
        self.stats.rebalanced += 1;
        self.tell(|| TraceEvent::Rebalanced { group, from, why });
    }

    /// Keeps the name of an algorithm. Returns its number.
    pub(crate) fn number_of(&mut self, algorithm: &str) -> u32 {
        let known = self.algorithms.iter().position(|name| name == algorithm);
        known.unwrap_or_else(|| {
            self.algorithms.push(algorithm.to_owned());
            self.algorithms.len() - 1
        }) as u32
    }

    /// Keeps the name of a group.
    pub(crate) fn name_group(&mut self, number: u32, name: &str) {
        self.note(number).name = name.to_owned();
    }

    /// Keeps what the program calls a group, and says of it.
    pub(crate) fn describe_group(&mut self, number: u32, called: &str, description: &str) {
        let note = self.note(number);
        (note.called, note.description) = (called.to_owned(), description.to_owned());
    }

    /// Keeps who is in a group that programs call.
    pub(crate) fn note_ranks(&mut self, number: u32, ranks: &[Rank]) {
        let note = self.note(number);
        (note.ranks, note.is_open) = (ranks.to_vec(), true);
    }

    /// A group is not there any more. What is known of it is kept as long as one of the last operations or messages was its.
    pub(crate) fn group_is_gone(&mut self, number: u32) {
        if let Some(note) = self.groups.get_mut(&number) {
            note.is_open = false;
        }
    }

    fn note(&mut self, number: u32) -> &mut GroupNote {
        if self.groups.len() >= NAMES {
            let operations = self.recent.iter().map(|entry| entry.group);
            let recent: BTreeSet<u32> = operations.chain(self.messages.groups()).collect();
            self.groups.retain(|number, note| note.is_open || recent.contains(number));
        }
        self.groups
            .entry(number)
            .or_insert_with(|| GroupNote { name: unnamed(number).into_owned(), ..GroupNote::default() })
    }

    /// Groups that go on for another one have its name.
    pub(crate) fn inherit_name(&mut self, of: u32, numbers: [u32; 2]) {
        let known = GroupNote { ranks: Vec::new(), is_open: false, ..self.note(of).clone() };
        for number in numbers {
            *self.note(number) = known.clone();
        }
    }

    /// What was counted, without operations of kinds that groups still count.
    pub(crate) fn counted(&self) -> Stats {
        Stats { in_flight: Duration::from_nanos(self.in_flight), ..self.stats.clone() }
    }

    /// The name of a group.
    pub(crate) fn name_of(&self, group: u32) -> String {
        self.groups.get(&group).map_or_else(|| unnamed(group).into_owned(), |note| note.name.clone())
    }

    /// A group as others are told of it: its name and description, and its ranks if programs call it.
    pub(crate) fn noted(&self, group: u32) -> FlightGroup {
        let GroupNote { name, called, description, ranks, .. } = self
            .groups
            .get(&group)
            .cloned()
            .unwrap_or_else(|| GroupNote { name: unnamed(group).into_owned(), ..GroupNote::default() });
        let name = if called.is_empty() { name } else { called };
        FlightGroup { group, name, description, ranks, over: None, failure: None }
    }

    /// Whether programs call a group, as far as is known.
    pub(crate) fn is_called(&self, group: u32) -> bool {
        self.groups.get(&group).is_some_and(|note| !note.ranks.is_empty())
    }

    /// A message was posted. Returns its number.
    pub(crate) fn posted(&mut self, post: MessagePost, completion: Arc<Completion>) -> u64 {
        self.messages.add(post, completion, self.recent.issued(), self.now)
    }

    /// How many messages were posted.
    pub(crate) fn messages_posted(&self) -> u64 {
        self.messages.posted()
    }

    /// A message has a number between its two ranks.
    pub(crate) fn message_is(&mut self, number: u64, peer: Rank, sequence: u64) {
        self.messages.is(number, peer, sequence);
    }

    /// An operation carries a message.
    pub(crate) fn message_carried(&mut self, number: u64, operation: u64) {
        self.messages.carried(number, operation);
    }

    /// A message that no operation has carried is over.
    pub(crate) fn message_ended(&mut self, ended: EndedMessage, result: &Result<()>) {
        let EndedMessage { number, receives, issued } = ended;
        self.tell(|| TraceEvent::Delivered { receives, issued: issued.since_start(), result });
        let of = self.messages.ended(number, self.now);
        if let Some((error, (group, generation))) = result.as_ref().err().zip(of) {
            self.alarm.failed(group, generation, error);
        }
    }

    /// The last operations and messages as others are told of them, in the order in which they were called. Operations of these
    /// groups are left out.
    pub(crate) fn flight(&self, leaves_out: impl Fn(u32) -> bool) -> Vec<FlightOperation> {
        let algorithm =
            |entry: &Entry| self.algorithms.get(entry.algorithm as usize).map_or("", String::as_str);
        let mut messages = self.messages.flight(&self.recent).into_iter().peekable();
        let mut called = Vec::new();
        for (number, entry) in (self.recent.first()..).zip(self.recent.iter()) {
            while let Some((_, message)) = messages.next_if(|(after, _)| *after <= number) {
                called.push(message);
            }
            if !leaves_out(entry.group) {
                called.push(entry.flight(number, algorithm(entry)));
            }
        }
        called.extend(messages.map(|(_, message)| message));
        called
    }

    /// The last operations, oldest first.
    pub(crate) fn recent(&self) -> Vec<Recent> {
        let shown = |entry: &Entry| {
            entry.shown(self.now, self.name_of(entry.group), self.algorithms.get(entry.algorithm as usize)?)
        };
        self.recent.iter().filter_map(shown).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Else an operation that hangs in such a group is missing from every flight record.
    #[test]
    fn groups_that_are_there_stay_known_however_many_have_been() {
        let mut observer = Observer::default();
        observer.note_ranks(0, &[0, 1]);
        for number in 1..=2 * NAMES as u32 {
            observer.note_ranks(number, &[0, 1]);
            observer.group_is_gone(number);
        }
        assert!(observer.is_called(0));
        assert!(!observer.is_called(1), "it is gone, and had no operation");
        assert!(observer.groups.len() <= NAMES);
        observer.inherit_name(0, [9000, 9001]);
        assert!(!observer.is_called(9000), "it is not made yet");
    }
}
