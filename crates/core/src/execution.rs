//! One rank in one operation: the steps that it can do now, the events that it waits for, and its signals to the other
//! ranks.
//!
//! An [`Execution`] runs a [`Prepared`] program and has no data, no memory and no links. It decides which step of each
//! segment can run ([`next`](Execution::next)), whether a message can be sent ([`offer`](Execution::offer)), and where
//! an arriving message belongs ([`landing`](Execution::landing)). Its driver does the work and reports what is done.
//! Three drivers share these rules. The executor has memory and links, the [simulator](crate::simulate) has costs and a
//! clock, and the test of deadlocks is an adversary that chooses which rank continues.
//!
//! Segments follow each other as [`lane`](crate::session::lane) describes. That module also explains why no rank waits
//! forever.

mod peers;
mod rules;
mod segments;
mod tally;

pub use peers::{MessageClaim, MessagePlace, Violation};
pub use rules::Rules;
pub use tally::{Arrived, SegmentMessage, SegmentStep, Tally};

use crate::{
    prepare::Prepared,
    session::{lane::Window, membership::MemberId},
};
use alloc::{sync::Arc, vec::Vec};
use tally::{Delivery, PeerFlow};

/// Where messages are read where they lie, segments begin in lots of this part of what is in flight: a rank that shares
/// its core then has more to do in its turn.
const LOTS_PER_WINDOW: u32 = 4;

/// What a step that has run waits for: more than ever comes.
const NEVER: u16 = u16::MAX;

/// The members of a job, as an operation sees them.
pub trait Members {
    /// Whether messages to a member are dropped, because its link is closed for good: it needs none any more.
    fn is_away(&self, member: MemberId) -> bool;
    /// Whether a member might have no eager slot left here.
    fn is_crowded(&self, member: MemberId) -> bool;
    /// Takes one of a member's eager slots. If there is none, this operation queues for one: its
    /// [blocked](Execution::take_blocked) messages are tried again.
    fn take_slot(&mut self, member: MemberId) -> bool;
    /// Tells a member something.
    fn tell(&mut self, member: MemberId, signal: Signal);
}

/// The signals between ranks in addition to messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// How many segments the sender of this is done with. The first one also reports that it has begun.
    Grant(u32),
    /// A reducer reports that all workers hold the whole result.
    Stable,
}

/// The decision about a message that is offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendDecision {
    /// It goes now.
    Go {
        /// In an eager slot.
        eager: bool,
    },
    /// Its receiver does not need it.
    Needless,
    /// It waits among the [blocked](Execution::take_blocked) ones.
    Later,
}

/// How far an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecutionProgress {
    /// It continues.
    Running,
    /// The user can have it back; others can still read its slots.
    Complete,
    /// No rank needs it any more.
    Over,
}

/// How a rank takes part in an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Participant {
    /// Whether it is a worker: a reducer has no buffers, and no rank waits for its end.
    pub is_worker: bool,
    /// Whether the result overwrites the only copy of the input.
    pub in_place: bool,
    /// How many segments it has in flight at most: as many as its memory holds.
    pub ahead: u32,
    /// The rules that it follows.
    pub rules: Rules,
}

/// How far an operation is, in segments that are counted from the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentProgress {
    /// The number of segments that have begun.
    pub begun: u32,
    /// The number of segments that are done.
    pub finished: u32,
    /// How many finished ones the others know of.
    granted: u32,
}

/// One rank in one operation.
#[derive(Clone, Debug)]
pub struct Execution {
    prepared: Arc<Prepared>,
    me: Participant,
    with_reducers: bool,
    /// How many segments begin at once at the least.
    lot: u32,
    progress: SegmentProgress,
    counts: Tally,
}

/// Construction.
impl Execution {
    /// An execution that has not [started](Self::start). Its messages can arrive. `ids` are the members of the group,
    /// workers first.
    #[inline]
    pub fn new(prepared: Arc<Prepared>, me: Participant, ids: &[MemberId], counts: Tally) -> Self {
        let with_reducers = !me.is_worker || prepared.peers.iter().any(|peer| prepared.is_reducer(peer.rank));
        let usual = if prepared.is_in_memory() { (me.ahead / LOTS_PER_WINDOW).max(1) } else { 1 };
        let mut execution = Self {
            lot: me.rules.lot.unwrap_or(usual),
            progress: SegmentProgress { begun: 0, finished: 0, granted: 0 },
            me,
            with_reducers,
            prepared,
            counts,
        };
        execution.reserve(ids);
        (0..execution.prepared.depth).for_each(|segment| execution.arm(segment));
        execution
    }

    /// How many bytes an execution of a program counts in.
    pub(crate) fn counting_bytes(prepared: &Prepared) -> u64 {
        let of_step = size_of::<u16>() + size_of::<Delivery>();
        let in_stage = prepared.steps.len() * of_step + prepared.heads.len() * size_of::<Arrived>();
        let flows = prepared.peers.len() * size_of::<PeerFlow>();
        (size_of::<Self>() + flows) as u64 + in_stage as u64 * u64::from(prepared.depth)
    }

    /// Makes room for what is counted.
    #[inline]
    fn reserve(&mut self, ids: &[MemberId]) {
        let Self { prepared, counts, me: Participant { is_worker, ahead, rules, .. }, with_reducers, .. } =
            self;
        let width = rules.window.unwrap_or(*ahead);
        let stages = prepared.depth as usize;
        counts.waits.resize(stages * prepared.steps.len(), 0);
        counts.deliveries.resize(stages * prepared.steps.len(), Delivery::default());
        counts.heads.resize(stages * prepared.heads.len(), Arrived::No);
        counts.left.resize(stages, 0);
        if *with_reducers && *is_worker {
            counts.results.resize(stages * prepared.chunks() as usize, false);
        }
        counts.flows.extend(prepared.peers.iter().map(|peer| {
            let reducer = prepared.is_reducer(peer.rank);
            let open = reducer || !*is_worker || (peer.shared && !prepared.eager);
            let window = Window::new(width, open);
            let stable = !(reducer && *is_worker);
            PeerFlow { member: ids[peer.rank as usize], window, stable, invited: false }
        }));
    }

    /// The memory of its counts, empty.
    #[inline]
    pub fn into_counts(self) -> Tally {
        self.counts.emptied()
    }

    /// The program.
    #[inline]
    pub fn prepared(&self) -> &Arc<Prepared> {
        &self.prepared
    }

    /// The members that it exchanges messages with, as [`Prepared::peers`] has them.
    #[inline]
    pub fn members(&self) -> impl Iterator<Item = MemberId> {
        self.counts.flows.iter().map(|flow| flow.member)
    }

    /// The position of a member among them.
    #[inline]
    pub fn peer(&self, member: MemberId) -> Option<usize> {
        self.members().position(|other| other == member)
    }

    /// The member at a position among them.
    #[inline]
    pub fn member(&self, peer: u32) -> MemberId {
        self.counts.flows[peer as usize].member
    }

    /// Whether this rank has data in it, and its caller waits for the end.
    #[inline]
    pub fn is_worker(&self) -> bool {
        self.me.is_worker
    }

    /// Whether reducers take part.
    #[inline]
    pub fn with_reducers(&self) -> bool {
        self.with_reducers
    }

    /// Whether one simulated rank stands for all.
    pub fn is_mirrored(&self) -> bool {
        self.me.rules.is_mirrored
    }

    /// How far it is.
    #[inline]
    pub fn segment_progress(&self) -> SegmentProgress {
        self.progress
    }
}

/// Steps.
impl Execution {
    /// A step that can run now.
    #[expect(clippy::should_implement_trait, reason = "what it gives is to be reported as done")]
    #[inline]
    pub fn next(&mut self) -> Option<SegmentStep> {
        self.counts.ready.pop_front()
    }

    /// The steps that can run now, in no particular order.
    pub fn ready(&self) -> usize {
        self.counts.ready.len()
    }

    /// One of them, by its position.
    pub fn take(&mut self, at: usize) -> Option<SegmentStep> {
        self.counts.ready.remove(at)
    }

    /// A step has run; a send, when all its messages are [handed over](Self::handed_over).
    #[inline]
    pub fn complete(&mut self, ready: SegmentStep) {
        self.note_result(ready);
        let SegmentStep { segment, step } = ready;
        for next in self.prepared.steps[step as usize].next.clone() {
            self.satisfied(SegmentStep { segment, step: self.prepared.next[next as usize] });
        }
        let stage = self.stage(segment);
        self.counts.left[stage] -= 1;
    }

    #[inline]
    fn satisfied(&mut self, ready: SegmentStep) {
        let at = self.at(ready);
        let waits = &mut self.counts.waits[at];
        *waits -= 1;
        if *waits == 0 && ready.segment < self.progress.begun {
            self.counts.ready.push_back(ready);
        }
    }

    /// A send begins: each of its messages is to be [offered](Self::offer).
    #[inline]
    pub fn sends(&mut self, ready: SegmentStep) {
        let at = self.at(ready);
        let left = self.prepared.send(ready.step).lanes.len() as u16;
        self.counts.deliveries[at] = Delivery { left, checksum: None };
    }

    /// Asks whether a message can be sent. If it can, or need not be, it is to be [handed over](Self::handed_over).
    #[inline]
    pub fn offer(&mut self, message: SegmentMessage, members: &mut impl Members) -> SendDecision {
        let at = self.prepared.lanes[message.lane as usize].peer as usize;
        let PeerFlow { member, window, .. } = self.counts.flows[at];
        if message.ready.segment >= self.prepared.peers[at].takes || members.is_away(member) {
            return SendDecision::Needless;
        }
        if window.is_open() {
            return SendDecision::Go { eager: false };
        }
        if self.prepared.eager && members.take_slot(member) {
            return SendDecision::Go { eager: true };
        }
        self.counts.blocked.push(message);
        SendDecision::Later
    }

    /// The messages that could not be sent when they were offered, to be offered again.
    #[inline]
    pub fn take_blocked(&mut self) -> Vec<SegmentMessage> {
        core::mem::take(&mut self.counts.blocked)
    }

    /// `messages` of a send's messages no longer need their source: the kernel has them, or their links are not needed
    /// any more. Returns whether the send is complete.
    #[inline]
    pub fn handed_over(&mut self, ready: SegmentStep, messages: u16) -> bool {
        let at = self.at(ready);
        let left = &mut self.counts.deliveries[at].left;
        *left -= messages;
        let is_complete = *left == 0;
        if is_complete {
            self.complete(ready);
        }
        is_complete
    }

    /// The place for the checksum of the data in a send's messages.
    pub fn checksum(&mut self, ready: SegmentStep) -> &mut Option<u32> {
        let at = self.at(ready);
        &mut self.counts.deliveries[at].checksum
    }
}
