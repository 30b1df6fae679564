//! One rank in one operation: an [`Execution`] whose steps and messages take the simulator's time.

use crate::{
    execution::{
        Arrived, Execution, ExecutionProgress, Members, MessageClaim, MessagePlace, Participant, Rules,
        SegmentMessage, SegmentProgress, SegmentStep, SendDecision, Signal, Tally, Violation,
    },
    prepare::{Kind, Prepared},
    session::membership::MemberId,
};
use alloc::{collections::VecDeque, sync::Arc, vec::Vec};

/// What a member does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// A step of a segment.
    Step(SegmentStep),
    /// One message of a send.
    Message(SegmentMessage),
}

/// What a member tells another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Notice {
    /// To whom: a position among its peers; where it is heard, from whom.
    pub(super) peer: u32,
    pub(super) signal: Signal,
}

/// Members whose links never close and whose slots are always free. Each has its rank for its identity.
#[derive(Clone, Debug, Default)]
struct IdealPeers(Vec<(MemberId, Signal)>);

impl Members for IdealPeers {
    fn is_away(&self, _: MemberId) -> bool {
        false
    }

    fn is_crowded(&self, _: MemberId) -> bool {
        false
    }

    fn take_slot(&mut self, _: MemberId) -> bool {
        true
    }

    fn tell(&mut self, member: MemberId, signal: Signal) {
        self.0.push((member, signal));
    }
}

#[derive(Clone, Debug)]
pub(super) struct SimulatedMember {
    execution: Execution,
    has_started: bool,
    /// Messages that may go, before the next step.
    going: VecDeque<SegmentMessage>,
    peers: IdealPeers,
}

impl SimulatedMember {
    /// `is_mapped` says whether local ranks find the user's buffer.
    pub(super) fn new(
        prepared: Arc<Prepared>,
        me: u32,
        is_mapped: bool,
        rules: Rules,
        ids: &[MemberId],
    ) -> Self {
        let is_worker = !prepared.is_reducer(me);
        let me = Participant {
            is_worker,
            in_place: true,
            ahead: prepared.ahead(prepared.wanted_bytes(is_mapped)),
            rules,
        };
        let execution = Execution::new(prepared, me, ids, Tally::default());
        Self { execution, has_started: false, going: VecDeque::new(), peers: IdealPeers::default() }
    }

    pub(super) fn prepared(&self) -> &Arc<Prepared> {
        self.execution.prepared()
    }

    /// Issues the operation.
    pub(super) fn start(&mut self) {
        self.has_started = true;
        self.execution.start(&mut self.peers);
        self.advance();
    }

    /// What it has told since this was last asked.
    pub(super) fn take_notices(&mut self) -> Vec<Notice> {
        let notice = |(member, signal)| {
            let peer = self.execution.peer(member)?;
            Some(Notice { peer: peer as u32, signal })
        };
        core::mem::take(&mut self.peers.0).into_iter().filter_map(notice).collect()
    }

    /// Whether this rank's part is over and its caller goes on.
    pub(super) fn is_complete(&self) -> bool {
        self.execution.progress(&self.peers) != ExecutionProgress::Running
    }

    pub(super) fn next(&mut self) -> Option<Unit> {
        let message = self.going.pop_front().map(Unit::Message);
        message.or_else(|| self.execution.next().map(Unit::Step))
    }

    /// What has come up at a position among all that can be done now.
    pub(super) fn take(&mut self, at: usize) -> Option<Unit> {
        match at.checked_sub(self.going.len()) {
            None => self.going.remove(at).map(Unit::Message),
            Some(at) => self.execution.take(at).map(Unit::Step),
        }
    }

    /// How much can be done now.
    pub(super) fn ready(&self) -> usize {
        self.going.len() + self.execution.ready()
    }

    pub(super) fn segment_progress(&self) -> SegmentProgress {
        self.execution.segment_progress()
    }

    /// A step is done, but for the messages of a send.
    pub(super) fn step(&mut self, ready: SegmentStep) {
        let prepared = self.execution.prepared().clone();
        if let Kind::Send(send) = &prepared.steps[ready.step as usize].kind {
            self.execution.sends(ready);
            send.lanes.clone().for_each(|lane| self.offer(SegmentMessage { ready, lane }));
        } else {
            self.execution.complete(ready);
        }
        self.advance();
    }

    fn offer(&mut self, message: SegmentMessage) {
        match self.execution.offer(message, &mut self.peers) {
            SendDecision::Go { .. } => self.going.push_back(message),
            SendDecision::Needless => {
                self.execution.handed_over(message.ready, 1);
            }
            SendDecision::Later => {}
        }
    }

    /// A message has left: its source is needed no more.
    pub(super) fn has_left(&mut self, message: SegmentMessage) {
        self.execution.handed_over(message.ready, 1);
        self.advance();
    }

    /// Ends and begins segments, if nothing else is to be done.
    fn advance(&mut self) {
        if self.has_started && self.ready() == 0 {
            self.execution.advance(&mut self.peers);
        }
    }

    /// Another member has told something.
    ///
    /// # Errors
    /// If that makes no sense.
    pub(super) fn receive(&mut self, notice: Notice) -> Result<(), Violation> {
        self.execution.receive_signal(notice.peer as usize, notice.signal, &mut self.peers)?;
        for message in self.execution.take_blocked() {
            self.offer(message);
        }
        if self.has_started {
            self.execution.begin(&self.peers);
        }
        self.advance();
        Ok(())
    }

    /// A message is there: what waits for it may go on.
    ///
    /// # Errors
    /// If its place is not free.
    pub(super) fn arrive(&mut self, segment: u32, head: u32) -> Result<(), Violation> {
        let prepared = self.execution.prepared();
        let wanted = &prepared.heads[head as usize];
        if !self.execution.is_mirrored() {
            let length = prepared.bytes(wanted.run, segment, wanted.form) as u32;
            let (peer, index) = (wanted.peer as usize, wanted.index);
            self.execution.awaited(&MessageClaim { peer, index, segment, length })?;
        }
        let place = match prepared.peers[wanted.peer as usize].shared {
            true => Arrived::At(0),
            false => match self.execution.landing(segment, head)? {
                MessagePlace::Output(_) => Arrived::Placed,
                MessagePlace::Staged(_) => Arrived::Staged,
            },
        };
        self.execution.arrive(segment, head, place)
    }

    /// Whether a message went straight to where it belongs.
    pub(super) fn is_placed(&self, segment: u32, head: u32) -> bool {
        self.execution.arrived(segment, head) == Arrived::Placed
    }
}
