//! Messages from other ranks, checked against the schedule and noted, and the messages that are still needed from them.

use super::{Arrived, Execution, ExecutionProgress, Members, SegmentProgress, SegmentStep, tally::PeerFlow};
use crate::{
    codec::PREFIX_BYTES,
    prepare::{Head, Kind, Loc, Peer},
    schedule::ChunkRun,
    session::{lane::NotGranted, membership::MemberId},
};
use alloc::vec::Vec;
use core::ops::Range;

/// A message, as its sender describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageClaim {
    /// The sender: a position among [`Prepared::peers`](crate::prepare::Prepared::peers).
    pub peer: usize,
    /// Which of that rank's messages it is.
    pub index: u16,
    /// The segment.
    pub segment: u32,
    /// How many bytes it has.
    pub length: u32,
}

/// The place of a message that does not stay with its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessagePlace {
    /// At the place of its chunks in the output.
    Output(ChunkRun),
    /// At an offset of its segment's stage.
    Staged(usize),
}

/// A message that a rank that follows the schedule does not send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A message or word of a rank with which this one exchanges nothing in this operation.
    #[error("it sent a message of an operation in which the two ranks send each other nothing")]
    NoPart,
    /// A number that none of the rank's messages has.
    #[error("it sent a message that the schedule does not have")]
    NoMessage,
    /// A segment that is done, or that the rank was not allowed to begin.
    #[error("it sent a message of a segment that is over, or that it was not allowed to begin")]
    NoRoom,
    /// A length that the message cannot have.
    #[error("it sent a message whose length is not the schedule's")]
    Length,
    /// A message that has come.
    #[error("it sent a message twice")]
    Twice,
    /// A result whose place still holds its inputs.
    #[error("it sent a result before it had all data that the result overwrites")]
    TooEarly,
    /// An offer to put a result where the schedule has no answer to the message.
    #[error("it offered memory for a result that the schedule does not send to it")]
    NoAnswer,
    /// A message that is reported to be in the output, where the schedule has no result.
    #[error("it reported a result in the output, and the schedule has none there")]
    NoResult,
    /// A grant for segments that have not begun, or for fewer than before.
    #[error("{0}")]
    NotGranted(NotGranted),
    /// Word that all workers hold the result, for the second time or from a worker.
    #[error("it reported that all ranks have the result, which only a reducer does, and once")]
    StableTwice,
}

/// Messages that arrive.
impl Execution {
    /// The head for which a message is, after its description is checked against the schedule.
    ///
    /// # Errors
    /// If the schedule has no such message now.
    #[inline]
    pub fn expected(&self, message: &MessageClaim) -> Result<u32, Violation> {
        let MessageClaim { peer, index, segment, length } = *message;
        let prepared = &self.prepared;
        let peer = &prepared.peers[peer];
        let head = *peer.heads.get(usize::from(index)).ok_or(Violation::NoMessage)?;
        let finished = self.progress.finished;
        if segment < finished || segment >= finished + prepared.depth || segment >= peer.gives {
            return Err(Violation::NoRoom);
        }
        let wanted = &prepared.heads[head as usize];
        let bytes = prepared.bytes(wanted.run, segment, wanted.form);
        let fits = match wanted.form.is_coded() {
            true => (PREFIX_BYTES..=bytes).contains(&(length as usize)),
            false => length as usize == bytes,
        };
        if fits { Ok(head) } else { Err(Violation::Length) }
    }

    /// The head of a message that has not arrived.
    ///
    /// # Errors
    /// As [`expected`](Self::expected), and if it has.
    #[inline]
    pub fn awaited(&self, message: &MessageClaim) -> Result<u32, Violation> {
        let head = self.expected(message)?;
        if self.arrived(message.segment, head) == Arrived::No { Ok(head) } else { Err(Violation::Twice) }
    }

    /// Where a head's message goes. A result goes straight to its destination if no earlier step of the schedule has to
    /// finish first. Everything else goes to its place in this rank's staging memory.
    ///
    /// # Errors
    /// If it has no place there, and the one in the output is not free.
    pub fn landing(&self, segment: u32, head: u32) -> Result<MessagePlace, Violation> {
        let Head { step, offset, placed, .. } = self.prepared.heads[head as usize];
        let is_last = self.counts.waits[self.at(SegmentStep { segment, step })] == 1;
        // Where the user's buffer has the only copy of an input, half a result must not be in it when a reducer is lost.
        let may_be_redone = self.with_reducers && self.me.in_place && self.me.rules.keeps_input;
        let only_for_this = is_last && segment < self.progress.begun && !may_be_redone;
        // What only moves has a place that nothing else touches, whether the segment has begun here or not.
        let is_free = placed && !self.prepared.call.collective.folds();
        match self.prepared.steps[step as usize].kind {
            Kind::Recv { into: Loc::Output(run), .. } if only_for_this || is_free => {
                Ok(MessagePlace::Output(run))
            }
            _ if placed => Err(Violation::TooEarly),
            _ => Ok(MessagePlace::Staged(offset)),
        }
    }

    /// A head's message is here.
    ///
    /// # Errors
    /// If it cannot be at its reported place.
    #[inline]
    pub fn arrive(&mut self, segment: u32, head: u32, place: Arrived) -> Result<(), Violation> {
        let wanted = &self.prepared.heads[head as usize];
        if matches!(place, Arrived::Direct(_)) && !self.prepared.may_be_direct(wanted) {
            return Err(Violation::NoAnswer);
        }
        let step = wanted.step;
        let is_result = || {
            let taken = &self.prepared.steps[step as usize].kind;
            matches!(taken, Kind::Recv { into: Loc::Output(_), .. })
        };
        if place == Arrived::Placed && !is_result() {
            return Err(Violation::NoResult);
        }
        let at = self.stage(segment) * self.prepared.heads.len() + head as usize;
        self.counts.heads[at] = place;
        self.satisfied(SegmentStep { segment, step });
        Ok(())
    }

    /// Where a head's message is.
    #[inline]
    pub fn arrived(&self, segment: u32, head: u32) -> Arrived {
        self.counts.heads[self.stage(segment) * self.prepared.heads.len() + head as usize]
    }
}

/// What is still needed, and what is there if a rank is lost.
impl Execution {
    /// How far it is, once nothing is [ready](Self::next) any more.
    #[inline]
    pub fn progress(&self, members: &impl Members) -> ExecutionProgress {
        let unstable = self.me.rules.waits_for_stable && self.is_unstable();
        if self.progress.finished < self.prepared.segments || unstable {
            return ExecutionProgress::Running;
        }
        let read = self.flows().all(|(peer, flow)| {
            !self.keeps_slots_for(peer) || flow.window.done() == peer.takes || members.is_away(flow.member)
        });
        match (read, self.me.is_worker) {
            (true, _) => ExecutionProgress::Over,
            (false, true) => ExecutionProgress::Complete,
            (false, false) => ExecutionProgress::Running,
        }
    }

    /// Whether what was sent to a rank stays here until that says that it is done.
    fn keeps_slots_for(&self, peer: &Peer) -> bool {
        peer.sends > 0 && ((peer.shared && !self.prepared.eager) || !self.me.is_worker)
    }

    fn flows(&self) -> impl Iterator<Item = (&Peer, &PeerFlow)> {
        self.prepared.peers.iter().zip(&self.counts.flows)
    }

    /// The members whose message, grant or confirmation this rank still needs.
    pub fn missing(&self) -> impl Iterator<Item = MemberId> {
        let SegmentProgress { begun, finished, .. } = self.progress;
        let waits_for_room = finished == begun && begun < self.prepared.segments;
        let waiting = self.flows().enumerate().filter(move |(at, (peer, flow))| {
            self.has_unheard_before(begun, peer)
                || waits_for_room && !peer.heads.is_empty()
                || self.is_blocked_on(*at)
                || !flow.stable
        });
        waiting.map(|(_, (_, flow))| flow.member)
    }

    /// Whether a message from a peer is still needed to complete, or the report that it has room for one. Messages that
    /// have arrived suffice for segments that have not begun, too: the peer can have been ahead, and have left since.
    pub fn needs(&self, at: usize) -> bool {
        let (peer, flow) = (&self.prepared.peers[at], &self.counts.flows[at]);
        let lacks_room = self.progress.begun < peer.takes && !flow.window.has_room(peer.takes - 1);
        self.is_blocked_on(at)
            || !flow.stable
            || peer.sends > 0 && lacks_room
            || self.has_unheard_before(self.prepared.segments, peer)
    }

    /// Whether a message of a segment below `end` has not come from a rank.
    fn has_unheard_before(&self, end: u32, peer: &Peer) -> bool {
        let finished = self.progress.finished;
        let has_come = |segment, head| {
            segment < finished + self.prepared.depth && self.arrived(segment, head) != Arrived::No
        };
        (finished..end.min(peer.gives)).any(|segment| !peer.heads.iter().all(|head| has_come(segment, *head)))
    }

    /// Whether reducers have not reported yet that all workers hold the whole result. Until then it needs each of them.
    #[inline]
    pub fn is_unstable(&self) -> bool {
        self.counts.flows.iter().any(|flow| !flow.stable)
    }

    /// Whether a peer is not done.
    pub fn involves(&self, peer: usize) -> bool {
        self.counts.flows[peer].window.done() < self.prepared.segments
    }

    /// Whether a message waits to be sent to a peer.
    pub fn is_blocked_on(&self, peer: usize) -> bool {
        let to = |lane: u32| self.prepared.lanes[lane as usize].peer as usize;
        self.counts.blocked.iter().any(|message| to(message.lane) == peer)
    }

    /// With reducers it counts which results are in their places: others may be missing when a reducer is lost.
    #[inline]
    pub(super) fn note_result(&mut self, SegmentStep { segment, step }: SegmentStep) {
        if !self.with_reducers || !self.me.is_worker {
            return;
        }
        if let Some(chunk) = self.prepared.result_of(step) {
            let at = self.stage(segment) * self.prepared.chunks() as usize + chunk as usize;
            self.counts.results[at] = true;
        }
    }

    /// The segments of each chunk whose result is in its place.
    pub fn held(&self) -> Vec<Vec<Range<u32>>> {
        let SegmentProgress { finished, begun, .. } = self.progress;
        let chunks = self.prepared.chunks() as usize;
        let held = |chunk: usize, segment: u32| {
            segment < finished
                || self.counts.results.get(self.stage(segment) * chunks + chunk).is_some_and(|held| *held)
        };
        let of_chunk = |chunk: usize| {
            let mut runs: Vec<Range<u32>> = Vec::new();
            for segment in (0..begun).filter(|segment| held(chunk, *segment)) {
                match runs.last_mut() {
                    Some(last) if last.end == segment => last.end += 1,
                    _ => runs.push(segment..segment + 1),
                }
            }
            runs
        };
        (0..chunks).map(of_chunk).collect()
    }
}
