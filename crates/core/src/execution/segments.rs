//! Segments: which can begin, which are done, and which the others know to be done.

use super::{
    Arrived, Execution, Members, NEVER, Participant, PeerFlow, SegmentMessage, SegmentProgress, SegmentStep,
    Signal, Violation, tally::Delivery,
};
use crate::{prepare::Peer, session::membership::MemberId};

/// Segments.
impl Execution {
    /// Begins.
    #[inline]
    pub fn start(&mut self, members: &mut impl Members) {
        self.invite(members);
        self.begin(members);
    }

    /// Continues with a program of one segment whose first `done` steps have run in order. If the next step is a send,
    /// its messages are sent except on the lanes `unsent`, which wait. `has_come` tells which heads' messages are in
    /// staging memory.
    pub fn resume(
        &mut self,
        done: usize,
        unsent: &[u32],
        has_come: impl Fn(usize) -> bool,
        members: &mut impl Members,
    ) {
        let Self { prepared, counts, .. } = self;
        counts.left[0] = (prepared.steps.len() - done) as u32;
        let send = SegmentStep { segment: 0, step: done as u32 };
        counts.blocked.extend(unsent.iter().map(|lane| SegmentMessage { ready: send, lane: *lane }));
        let ran = done + usize::from(!unsent.is_empty());
        if ran > done {
            counts.deliveries[done] = Delivery { left: unsent.len() as u16, checksum: None };
        }
        for (at, head) in prepared.heads.iter().enumerate().filter(|(at, _)| has_come(*at)) {
            counts.heads[at] = Arrived::Staged;
            counts.waits[head.step as usize] -= 1;
        }
        for step in &prepared.steps[..done] {
            for next in step.next.clone() {
                counts.waits[prepared.next[next as usize] as usize] -= 1;
            }
        }
        counts.waits[..ran].fill(NEVER);
        self.start(members);
    }

    /// Allows the ranks that need it to send.
    #[inline]
    fn invite(&mut self, members: &mut impl Members) {
        let prepared = self.prepared.clone();
        if prepared.eager {
            self.open(|_, flow, members| members.is_crowded(flow.member), members);
        } else {
            self.open(|peer, _, _| !peer.shared && !prepared.is_reducer(peer.rank), members);
        }
    }

    /// A member has used up its eager slots here: messages of operations that are running need none.
    pub fn open_to(&mut self, crowded: MemberId, members: &mut impl Members) {
        if self.prepared.eager {
            self.open(|_, flow, _| flow.member == crowded, members);
        }
    }

    /// Allows ranks to send this operation's messages: once, because a rank keeps that until it begins the operation.
    #[inline]
    fn open<M: Members>(&mut self, which: impl Fn(&Peer, &PeerFlow, &M) -> bool, members: &mut M) {
        if !self.me.is_worker {
            return;
        }
        for (peer, flow) in self.prepared.peers.iter().zip(&mut self.counts.flows) {
            if !peer.heads.is_empty() && !flow.invited && which(peer, flow, members) {
                flow.invited = true;
                members.tell(flow.member, Signal::Grant(self.progress.finished.min(peer.gives)));
            }
        }
    }

    /// The stage of a segment, of as many as the window is deep.
    #[inline]
    pub(super) fn stage(&self, segment: u32) -> usize {
        let depth = self.prepared.depth;
        // Most operations have no more segments than stages; a division would be a good part of a small one's time.
        (if segment < depth { segment } else { segment % depth }) as usize
    }

    #[inline]
    pub(super) fn at(&self, SegmentStep { segment, step }: SegmentStep) -> usize {
        self.stage(segment) * self.prepared.steps.len() + step as usize
    }

    /// The stage of staging memory in which a segment lies, of as many as this rank has in flight.
    #[inline]
    pub fn slot(&self, segment: u32) -> usize {
        (if segment < self.me.ahead { segment } else { segment % self.me.ahead }) as usize
    }

    /// Begins segments for which there is a free stage, here and with all ranks that it sends to.
    #[inline]
    pub fn begin(&mut self, members: &impl Members) {
        let Self { prepared, counts, progress, me: Participant { ahead, .. }, .. } = self;
        let after_a_lot = prepared.segments.min(progress.begun + self.lot);
        if after_a_lot > progress.finished + *ahead {
            return;
        }
        while progress.begun < prepared.segments && progress.begun < progress.finished + *ahead {
            let segment = progress.begun;
            let room = prepared.peers.iter().zip(&counts.flows).all(|(peer, flow)| {
                peer.sends == 0
                    || segment >= peer.takes
                    || flow.window.has_room(segment)
                    || members.is_away(flow.member)
            });
            if !room {
                return;
            }
            progress.begun += 1;
            let depth = prepared.depth;
            let stage = (if segment < depth { segment } else { segment % depth }) as usize;
            let waits = &counts.waits[stage * prepared.steps.len()..][..prepared.steps.len()];
            let free = (0..).zip(waits).filter(|(_, waits)| **waits == 0);
            counts.ready.extend(free.map(|(step, _)| SegmentStep { segment, step }));
        }
    }

    /// Makes a stage ready for a segment: from now on its messages may arrive.
    #[inline]
    pub(super) fn arm(&mut self, segment: u32) {
        let stage = self.stage(segment);
        let Self { prepared, counts, .. } = self;
        let steps = prepared.steps.len();
        counts.waits[stage * steps..][..steps].copy_from_slice(&prepared.waits);
        counts.heads[stage * prepared.heads.len()..][..prepared.heads.len()].fill(Arrived::No);
        counts.left[stage] = steps as u32;
        let chunks = prepared.chunks() as usize;
        if let Some(results) = counts.results.get_mut(stage * chunks..(stage + 1) * chunks) {
            results.fill(false);
        }
        if prepared.is_uneven() {
            self.skip_ended_peers(segment);
        }
    }

    /// Waits for no message of a segment from ranks whose part has ended before.
    fn skip_ended_peers(&mut self, segment: u32) {
        let stage = self.stage(segment);
        let Self { prepared, counts, .. } = self;
        for peer in prepared.peers.iter().filter(|peer| segment >= peer.gives) {
            for head in &peer.heads {
                counts.heads[stage * prepared.heads.len() + *head as usize] = Arrived::Placed;
                let step = prepared.heads[*head as usize].step as usize;
                counts.waits[stage * prepared.steps.len() + step] -= 1;
            }
        }
    }

    /// Moves the window over finished segments and tells the others, once nothing is [ready](Self::next) any more. Returns
    /// whether there is more to run.
    #[inline]
    pub fn advance(&mut self, members: &mut impl Members) -> bool {
        let before = self.progress.finished;
        while self.progress.finished < self.progress.begun
            && self.counts.left[self.stage(self.progress.finished)] == 0
        {
            self.progress.finished += 1;
            let next = self.progress.finished - 1 + self.prepared.depth;
            if next < self.prepared.segments {
                self.arm(next);
            }
        }
        let SegmentProgress { finished, granted, .. } = self.progress;
        let worth_a_grant = match self.me.rules.grants_per_window {
            0 => self.prepared.segments,
            grants => (self.prepared.lead / grants).max(1),
        };
        let is_over = finished == self.prepared.segments;
        if finished - granted >= worth_a_grant || finished > granted && is_over {
            self.grant_finished(members);
        }
        if finished > before {
            self.tell_stable(members);
        }
        self.begin(members);
        !self.counts.ready.is_empty()
    }

    /// Grants what is finished. Not after every segment: others may begin as many as a window ahead of what they know, so
    /// all come to where the next grant is due without one, and no rank has less than the lead for a window.
    fn grant_finished(&mut self, members: &mut impl Members) {
        let finished = self.progress.finished;
        let before = core::mem::replace(&mut self.progress.granted, finished);
        for (peer, flow) in self.prepared.peers.iter().zip(&self.counts.flows) {
            let in_place = peer.shared && !self.prepared.eager;
            let ends = before < peer.gives && finished >= peer.gives;
            let last = ends && (in_place || (self.me.is_worker && self.with_reducers));
            if !peer.heads.is_empty() && (last || before + self.prepared.lead < peer.gives) {
                members.tell(flow.member, Signal::Grant(finished.min(peer.gives)));
            }
        }
    }

    /// A rank has sent a signal. The caller tries the [blocked](Self::take_blocked) messages again; then segments can
    /// [begin](Self::begin).
    ///
    /// # Errors
    /// If that makes no sense.
    #[inline]
    pub fn receive_signal(
        &mut self,
        peer: usize,
        signal: Signal,
        members: &mut impl Members,
    ) -> Result<(), Violation> {
        let flow = &mut self.counts.flows[peer];
        let before = flow.window.done();
        match signal {
            Signal::Grant(segments) if self.me.rules.is_mirrored => {
                let done = segments.max(before);
                flow.window.grant(done, done).map_err(Violation::NotGranted)?;
            }
            Signal::Grant(segments) => {
                // Of what a rank does not get it is never done.
                let begun = self.progress.begun.min(self.prepared.peers[peer].takes);
                flow.window.grant(segments, begun).map_err(Violation::NotGranted)?;
            }
            Signal::Stable if !flow.stable => flow.stable = true,
            Signal::Stable => return Err(Violation::StableTwice),
        }
        if self.counts.flows[peer].window.done() > before {
            self.tell_stable(members);
        }
        Ok(())
    }

    /// A reducer tells its workers when all of them hold the whole result.
    #[inline]
    fn tell_stable(&self, members: &mut impl Members) {
        let segments = self.prepared.segments;
        if !self.me.is_worker
            && self.progress.finished == segments
            && self.counts.flows.iter().all(|flow| flow.window.done() == segments)
        {
            self.counts.flows.iter().for_each(|flow| members.tell(flow.member, Signal::Stable));
        }
    }
}
