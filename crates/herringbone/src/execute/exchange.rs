//! What a running operation has to do with other ranks: messages that arrive, and what it still needs.

use super::{
    coding,
    operation::{Course, Operation},
    room::Flow,
};
use crate::{
    core::{
        codec::PREFIX_BYTES,
        prepare::{Head, Kind, Loc, Peer},
        session::membership::MemberId,
        wire::Header,
    },
    execute::{io::Io, issue::Queued, room::Arrived},
    transport::{Broken, Destination},
};
use std::ops::Range;

/// Messages that arrive: checked against the schedule, and noted.
impl Operation {
    /// Where the payload of an arriving message goes: a result straight to where it belongs if nothing that the schedule
    /// does before has to be waited for, everything else to its place in my staging memory.
    pub(crate) fn place(&self, endpoint: MemberId, header: &Header) -> Result<Destination, Broken> {
        let (head, _) = self.expected(endpoint, header)?;
        let at = self.stage(header.segment) * self.prepared.instrs.len() + head.instr as usize;
        let only_for_this =
            self.room.waits[at] == 1 && header.segment < self.course.begun && !self.may_be_redone();
        // What only moves has a place that nothing else touches, whether the segment has begun here or not.
        let is_free = head.placed && !self.prepared.call.collective.folds();
        Ok(match self.prepared.instrs[head.instr as usize].kind {
            Kind::Recv { into: Loc::Output(chunk), .. } if only_for_this || is_free => {
                Destination::User { op: self.key, range: self.prepared.output(chunk, header.segment) }
            }
            _ if head.placed => {
                return Err(Broken::Protocol("a result before all of what it is made of was sent"));
            }
            _ => Destination::Staged(self.stage_at(header.segment) + head.offset),
        })
    }

    /// Whether the user's buffer may be needed as it was: where it has the only copy of an input, half a result must not be in it
    /// when a reducer is lost.
    fn may_be_redone(&self) -> bool {
        #[cfg(any(test, feature = "simulator"))]
        if crate::planted::has(crate::planted::Plant::ReadIntoInput) {
            return false;
        }
        self.with_reducers() && self.lent.input.is_none()
    }

    /// The head that a frame is for, after all its numbers are checked against what the schedule says.
    fn expected(&self, endpoint: MemberId, header: &Header) -> Result<(&Head, usize), Broken> {
        let at = self.room.flows.iter().position(|flow| flow.endpoint == endpoint);
        let head = at.and_then(|at| self.prepared.peers[at].heads.get(header.index as usize));
        let Some(&head) = head else {
            return Err(Broken::Protocol("a message that the schedule does not have"));
        };
        let wanted = &self.prepared.heads[head as usize];
        if header.segment < self.course.finished
            || header.segment >= self.course.finished + self.prepared.depth
            || header.segment >= self.prepared.peers[wanted.peer as usize].gives
        {
            return Err(Broken::Protocol("a message outside its window"));
        }
        let bytes = self.prepared.bytes(wanted.chunk, header.segment, wanted.form);
        let fits = match wanted.form.is_coded() {
            true => (PREFIX_BYTES..=bytes).contains(&(header.length as usize)),
            false => header.length as usize == bytes,
        };
        if !fits {
            return Err(Broken::Protocol("a message of the wrong length"));
        }
        Ok((wanted, self.stage(header.segment) * self.prepared.heads.len() + head as usize))
    }

    /// Whether a message that has arrived is as its codec writes it, if it is coded.
    pub(crate) fn inspect(&self, endpoint: MemberId, header: &Header, io: &Io<'_>) -> Result<(), Broken> {
        let (_, at) = self.expected(endpoint, header)?;
        let head = at as u32 % self.prepared.heads.len() as u32;
        let wanted = &self.prepared.heads[head as usize];
        let Some(codec) = self.prepared.call.codec_of(wanted.form) else { return Ok(()) };
        let elements = self.prepared.elements(wanted.chunk, header.segment).len();
        let slot = self.message(header.segment, head, io);
        let slot = slot.ok_or(Broken::Protocol("a coded message outside its segment"))?;
        coding::check(codec, slot, header.length as usize, elements)
            .map_err(|problem| Broken::Coded { codec, problem })
    }

    /// What a message says of the length of its part, and what this rank expects, if these differ.
    pub(crate) fn disagrees(&self, endpoint: MemberId, header: &Header) -> Option<(u64, u64)> {
        if !self.prepared.is_uneven() {
            return None;
        }
        let at = self.room.flows.iter().position(|flow| flow.endpoint == endpoint)?;
        let head = *self.prepared.peers[at].heads.get(header.index as usize)?;
        let expected = self.prepared.whole(self.prepared.heads[head as usize].chunk).len() as u64;
        (header.whole != expected).then_some((header.whole, expected))
    }

    /// A message is here: `fetch` says where, given its place in my staging memory.
    pub(crate) fn arrive(
        &mut self,
        endpoint: MemberId,
        header: &Header,
        fetch: impl FnOnce(usize) -> Result<Arrived, Broken>,
    ) -> Result<(), Broken> {
        let (head, at) = self.expected(endpoint, header)?;
        if self.room.heads[at] != Arrived::No {
            return Err(Broken::Protocol("a message that came before"));
        }
        let (instr, offset) = (head.instr, head.offset);
        let arrived = fetch(self.stage_at(header.segment) + offset)?;
        if matches!(arrived, Arrived::Direct(_)) && !self.prepared.may_be_direct(head) {
            return Err(Broken::Protocol("a place for a result that may lie on what it is made of"));
        }
        self.room.heads[at] = arrived;
        self.satisfied(header.segment, instr);
        Ok(())
    }
}

/// What is there when a reducer is lost.
impl Operation {
    /// With reducers it counts which results are in their places: others may be missing when a reducer is lost.
    #[inline]
    pub(super) fn note_result(&mut self, segment: u32, instr: u32) {
        if !self.with_reducers() || !self.is_workers() {
            return;
        }
        if let Some(chunk) = self.prepared.result_of(instr) {
            let at = self.stage(segment) * self.prepared.chunks() as usize + chunk as usize;
            self.room.results[at] = true;
        }
    }

    /// The segments of each chunk whose result is in its place.
    pub(crate) fn held(&self) -> Vec<Vec<Range<u32>>> {
        let Course { finished, begun, .. } = self.course;
        let chunks = self.prepared.chunks() as usize;
        let held = |chunk: usize, segment: u32| {
            segment < finished
                || self.room.results.get(self.stage(segment) * chunks + chunk).is_some_and(|held| *held)
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

    /// Its call and its buffers, to be done in another way.
    pub(crate) fn taken_back(&mut self) -> Option<Queued> {
        let (input, output) = self.buffers().map(|(input, output)| (input.clone(), output.clone()))?;
        let completion = self.caller.completion.take()?;
        let touches = self.release_buffers();
        Some(Queued {
            id: self.id,
            call: self.prepared.call,
            parts: None,
            fed: self.lent.fed.clone(),
            lacks: None,
            buffers: Some((input, output)),
            completion: Some(completion),
            issued: self.caller.issued,
            timeout: self.caller.timeout,
            given_up: false,
            order: self.id.number,
            touches,
        })
    }
}

/// What is still needed of other ranks: for errors, losses and leaves.
impl Operation {
    /// The endpoints that have not sent, granted or confirmed what this operation needs of them.
    pub(crate) fn missing(&self) -> Vec<MemberId> {
        let waits_for_room =
            self.course.finished == self.course.begun && self.course.begun < self.prepared.segments;
        let waiting = |(peer, flow): &(&Peer, &Flow)| {
            self.has_unheard_before(self.course.begun, peer)
                || waits_for_room && !peer.heads.is_empty()
                || self.is_blocked_on(flow.endpoint)
                || !flow.stable
        };
        let peers = self.prepared.peers.iter().zip(&self.room.flows);
        peers.filter(waiting).map(|(_, flow)| flow.endpoint).collect()
    }

    /// Whether a message from an endpoint is still needed to complete, or word that it has room for one. What has come is enough
    /// for segments that have not begun, too: the endpoint may have been ahead, and have left since.
    pub(crate) fn needs(&self, endpoint: MemberId) -> bool {
        let (begun, segments) = (self.course.begun, self.prepared.segments);
        let lacks_room = |flow: &Flow, takes: u32| begun < takes && !flow.window.has_room(takes - 1);
        self.is_blocked_on(endpoint)
            || self.prepared.peers.iter().zip(&self.room.flows).any(|(peer, flow)| {
                flow.endpoint == endpoint
                    && (!flow.stable
                        || peer.sends > 0 && lacks_room(flow, peer.takes)
                        || self.has_unheard_before(segments, peer))
            })
    }

    /// Whether a message of a segment below `end` has not come from a rank.
    fn has_unheard_before(&self, end: u32, peer: &Peer) -> bool {
        let finished = self.course.finished;
        let has_come = |segment, head| {
            segment < finished + self.prepared.depth && self.arrived(segment, head) != Arrived::No
        };
        (finished..end.min(peer.gives)).any(|segment| !peer.heads.iter().all(|head| has_come(segment, *head)))
    }

    /// Whether reducers have not said yet that all workers hold the whole result: until then it needs each of them.
    pub(crate) fn is_unstable(&self) -> bool {
        self.room.flows.iter().any(|flow| !flow.stable)
    }

    /// Whether an endpoint takes part and is not done.
    pub(crate) fn involves(&self, endpoint: MemberId) -> bool {
        self.room
            .flows
            .iter()
            .any(|flow| flow.endpoint == endpoint && flow.window.done() < self.prepared.segments)
    }

    /// Whether something waits to be sent to an endpoint.
    pub(crate) fn is_blocked_on(&self, endpoint: MemberId) -> bool {
        let to = |lane: u32| self.room.flows[self.prepared.lanes[lane as usize].peer as usize].endpoint;
        self.room.blocked.iter().any(|unsent| to(unsent.lane) == endpoint)
    }
}
