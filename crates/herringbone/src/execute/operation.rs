//! A running operation: its segments in flight, and the one step function that runs its instructions.

use super::{
    cache,
    room::{Delivery, Flow, Room},
};
use crate::core::wire::Kind as FrameKind;
use crate::{
    clock::Moment,
    completion::Completion,
    core::{
        prepare::{Peer, Prepared},
        session::{lane::Window, membership::MemberId},
        wire::Header,
    },
    execute::{
        io::Io,
        issue::{Identity, Queued, Touches},
        room::Arrived,
    },
    feedback::Fed,
    sys::region::Region,
    transport::{Broken, ticket::OpKey},
};
use std::{ops::Range, sync::Arc, time::Duration};

/// How many grants are given for as many segments as are in flight at the least.
const GRANTS_PER_WINDOW: u32 = 4;
/// Where messages are read where they lie, segments begin in lots of this part of what is in flight: a rank that shares
/// its core then has more to do in its turn.
const LOTS_PER_WINDOW: u32 = 4;

/// The call that an operation is for.
#[derive(Debug)]
pub(crate) struct Caller {
    /// How its end is told, until it is.
    pub(crate) completion: Option<Arc<Completion>>,
    pub(crate) timeout: Duration,
    pub(crate) issued: Moment,
}

/// The user's buffers. Reducers have none.
#[derive(Debug)]
pub(super) struct Lent {
    /// `None` when it is the output.
    pub(super) input: Option<Region>,
    pub(super) output: Option<Region>,
    /// Where in my segment the user's buffer lies.
    pub(super) mapped: Option<usize>,
    /// What is left of the tensor, if that is fed back.
    pub(super) fed: Option<Fed>,
    /// What others have to wait for.
    touches: Option<Touches>,
    /// Whether the results of the ranks of this host are more than a cache holds when the last comes.
    pub(super) outgrows_cache: bool,
}

/// How far an operation is, in segments that are counted from the first.
#[derive(Debug)]
pub(super) struct Course {
    /// How many I have in flight at most: as many as there is memory for.
    ahead: u32,
    /// How many of them begin at once at the least.
    lot: u32,
    /// Those that have begun.
    pub(super) begun: u32,
    /// Those that are done.
    pub(super) finished: u32,
    /// How many finished ones the others know of.
    granted: u32,
}

/// A running operation.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) key: OpKey,
    pub(crate) id: Identity,
    pub(crate) prepared: Arc<Prepared>,
    pub(crate) caller: Caller,
    pub(crate) memory: Range<usize>,
    pub(super) lent: Lent,
    pub(super) course: Course,
    pub(super) room: Room,
    is_worker: bool,
    with_reducers: bool,
}

/// What the engine does with an operation after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// It goes on.
    Running,
    /// The user can have it back; others may still read its slots.
    Complete,
    /// Nobody needs it any more.
    Over,
}

impl Operation {
    /// `mapped` is where host-mates find the user's buffer, if they do, `memory` its staging memory, `room` is empty.
    pub(crate) fn new(
        key: OpKey,
        queued: Queued,
        mapped: Option<usize>,
        prepared: Arc<Prepared>,
        memory: Range<usize>,
        (room, seats): (Room, &[MemberId]),
    ) -> Self {
        let (input, output, is_worker) = match queued.buffers {
            Some((input, output)) => ((!input.is_same(&output)).then_some(input), Some(output), true),
            None => (None, None, false),
        };
        let with_reducers = !is_worker || prepared.peers.iter().any(|peer| prepared.is_reducer(peer.rank));
        let ahead = match prepared.stage_bytes {
            0 => prepared.depth,
            bytes => (memory.len() / bytes) as u32,
        };
        let here = 1 + prepared.peers.iter().filter(|peer| peer.shared).count();
        let results = here * output.as_ref().map_or(0, Region::len);
        let outgrows_cache = results > cache::results_that_stay();
        let mut operation = Self {
            key,
            id: queued.id,
            caller: Caller { completion: queued.completion, timeout: queued.timeout, issued: queued.issued },
            memory,
            lent: Lent { input, output, mapped, fed: queued.fed, touches: queued.touches, outgrows_cache },
            course: Course {
                ahead,
                lot: if prepared.is_in_memory() { (ahead / LOTS_PER_WINDOW).max(1) } else { 1 },
                begun: 0,
                finished: 0,
                granted: 0,
            },
            is_worker,
            with_reducers,
            room,
            prepared,
        };
        operation.furnish(seats);
        operation
    }

    /// Whether host-mates may put results into the user's buffer.
    pub(crate) fn is_mapped(&self) -> bool {
        self.lent.mapped.is_some()
    }

    /// Its room, empty.
    pub(crate) fn into_room(self) -> Room {
        self.room.emptied()
    }

    /// Whether this rank has data in it, and its caller waits for the end.
    pub(crate) fn is_workers(&self) -> bool {
        self.is_worker
    }

    /// Whether reducers take part.
    pub(crate) fn with_reducers(&self) -> bool {
        self.with_reducers
    }

    /// The endpoints that it exchanges messages with.
    pub(crate) fn endpoints(&self) -> impl Iterator<Item = MemberId> {
        self.room.flows.iter().map(|flow| flow.endpoint)
    }

    /// Begins: all links are up.
    pub(crate) fn start(&mut self, io: &mut Io<'_>) {
        self.invite(io);
        (0..self.prepared.depth).for_each(|segment| self.arm(segment));
        self.begin_segments(io);
    }

    /// Makes room for what is counted.
    fn furnish(&mut self, seats: &[MemberId]) {
        let Self { prepared, room, course: Course { ahead, .. }, is_worker, .. } = self;
        let stages = prepared.depth as usize;
        room.waits.resize(stages * prepared.instrs.len(), 0);
        room.deliveries.resize(stages * prepared.instrs.len(), Delivery::default());
        room.heads.resize(stages * prepared.heads.len(), Arrived::No);
        room.left.resize(stages, 0);
        if self.with_reducers && *is_worker {
            room.results.resize(stages * prepared.chunks() as usize, false);
        }
        for peer in &prepared.peers {
            let endpoint = seats[peer.rank as usize];
            let reducer = prepared.is_reducer(peer.rank);
            let open = reducer || !*is_worker || (peer.shared && !prepared.eager);
            let window = Window::new(*ahead, open);
            let stable = !(reducer && *is_worker);
            room.flows.push(Flow { endpoint, window, stable, invited: false });
        }
    }

    /// Allows the ranks that need it to send.
    pub(super) fn invite(&mut self, io: &mut Io<'_>) {
        let prepared = self.prepared.clone();
        if prepared.eager {
            self.open(|_, endpoint, io| io.endpoints[endpoint].is_crowded(), io);
        } else {
            self.open(|peer, _, _| !peer.shared && !prepared.is_reducer(peer.rank), io);
        }
    }

    /// Allows ranks to send me this operation's messages: once, because a rank keeps that until it begins the operation.
    fn open(&mut self, which: impl Fn(&Peer, MemberId, &Io<'_>) -> bool, io: &mut Io<'_>) {
        let finished = self.course.finished;
        for (at, peer) in self.prepared.peers.iter().enumerate() {
            let Flow { endpoint, invited, .. } = self.room.flows[at];
            if self.is_worker && !peer.heads.is_empty() && !invited && which(peer, endpoint, io) {
                self.room.flows[at].invited = true;
                let grant = self.id.header(FrameKind::Grant, finished.min(peer.gives));
                io.endpoints[endpoint].notice(grant);
            }
        }
    }

    /// An endpoint has used up its eager slots here: messages of operations that are running need none.
    pub(crate) fn open_to(&mut self, crowded: MemberId, io: &mut Io<'_>) {
        if self.prepared.eager {
            self.open(|_, endpoint, _| endpoint == crowded, io);
        }
    }

    pub(super) fn header(&self, kind: FrameKind, segment: u32) -> Header {
        self.id.header(kind, segment)
    }

    pub(super) fn stage(&self, segment: u32) -> usize {
        let depth = self.prepared.depth;
        // Most operations have no more segments than stages; a division would be a good part of a small one's time.
        (if segment < depth { segment } else { segment % depth }) as usize
    }

    pub(super) fn stage_at(&self, segment: u32) -> usize {
        let stage = if segment < self.course.ahead { segment } else { segment % self.course.ahead };
        self.memory.start + stage as usize * self.prepared.stage_bytes
    }

    /// Begins segments for which there is a free stage, here and with everyone that I send to.
    pub(super) fn begin_segments(&mut self, io: &Io<'_>) {
        let after_a_lot = self.prepared.segments.min(self.course.begun + self.course.lot);
        if after_a_lot > self.course.finished + self.course.ahead {
            return;
        }
        while self.course.begun < self.prepared.segments
            && self.course.begun < self.course.finished + self.course.ahead
        {
            let room = self.prepared.peers.iter().zip(&self.room.flows).all(|(peer, flow)| {
                peer.sends == 0
                    || self.course.begun >= peer.takes
                    || flow.window.has_room(self.course.begun)
                    || io.endpoints[flow.endpoint].is_away()
            });
            if !room {
                return;
            }
            let segment = self.course.begun;
            self.course.begun += 1;
            let stage = self.stage(segment) * self.prepared.instrs.len();
            for instr in 0..self.prepared.instrs.len() {
                if self.room.waits[stage + instr] == 0 {
                    self.room.ready.push_back((segment, instr as u32));
                }
            }
        }
    }

    /// Makes a stage ready for a segment: from now on its messages may arrive.
    fn arm(&mut self, segment: u32) {
        let prepared = &self.prepared;
        let stage = self.stage(segment);
        let instrs = prepared.instrs.len();
        self.room.waits[stage * instrs..][..instrs].copy_from_slice(&prepared.waits);
        self.room.heads[stage * prepared.heads.len()..][..prepared.heads.len()].fill(Arrived::No);
        self.room.left[stage] = instrs as u32;
        let chunks = prepared.chunks() as usize;
        if let Some(results) = self.room.results.get_mut(stage * chunks..(stage + 1) * chunks) {
            results.fill(false);
        }
        if self.prepared.is_uneven() {
            self.excuse(segment);
        }
    }

    /// Waits for no message of a segment from ranks whose part has ended before.
    fn excuse(&mut self, segment: u32) {
        let stage = self.stage(segment);
        let prepared = &self.prepared;
        for peer in prepared.peers.iter().filter(|peer| segment >= peer.gives) {
            for head in &peer.heads {
                self.room.heads[stage * prepared.heads.len() + *head as usize] = Arrived::Placed;
                let instr = prepared.heads[*head as usize].instr as usize;
                self.room.waits[stage * prepared.instrs.len() + instr] -= 1;
            }
        }
    }

    /// Runs what can run.
    pub(crate) fn run(&mut self, io: &mut Io<'_>) -> Progress {
        let prepared = self.prepared.clone();
        loop {
            while let Some((segment, instr)) = self.room.ready.pop_front() {
                let complete = self.step(&prepared, segment, instr, io);
                io.observer.step(&self.id, segment, instr);
                if complete {
                    self.note_result(segment, instr);
                    self.complete(segment, instr);
                }
            }
            if !self.advance(io) {
                break;
            }
        }
        self.progress(io)
    }

    fn progress(&self, io: &Io<'_>) -> Progress {
        let segments = self.prepared.segments;
        let unstable = self.room.flows.iter().any(|flow| !flow.stable);
        #[cfg(any(test, feature = "simulator"))]
        let unstable = unstable && !crate::planted::has(crate::planted::Plant::CompleteEarly);
        if self.course.finished < segments || unstable {
            return Progress::Running;
        }
        let read = self.prepared.peers.iter().zip(&self.room.flows).all(|(peer, flow)| {
            !self.keeps_slots_for(peer)
                || flow.window.done() == peer.takes
                || io.endpoints[flow.endpoint].is_away()
        });
        match (read, self.is_worker) {
            (true, _) => Progress::Over,
            (false, true) => Progress::Complete,
            (false, false) => Progress::Running,
        }
    }

    /// Whether what I sent stays here until that rank says that it is done.
    fn keeps_slots_for(&self, peer: &Peer) -> bool {
        peer.sends > 0 && ((peer.shared && !self.prepared.eager) || !self.is_worker)
    }

    /// Moves the window over finished segments and tells the others. Returns whether there is more to run.
    fn advance(&mut self, io: &mut Io<'_>) -> bool {
        while self.course.finished < self.course.begun
            && self.room.left[self.stage(self.course.finished)] == 0
        {
            self.course.finished += 1;
            let next = self.course.finished - 1 + self.prepared.depth;
            if next < self.prepared.segments {
                self.arm(next);
            }
        }
        let worth_a_grant = (self.prepared.lead / GRANTS_PER_WINDOW).max(1);
        let is_over = self.course.finished == self.prepared.segments;
        if self.course.finished - self.course.granted >= worth_a_grant
            || self.course.finished > self.course.granted && is_over
        {
            self.grant_finished(io);
        }
        self.begin_segments(io);
        !self.room.ready.is_empty()
    }

    /// Grants what is finished. Not after every segment: others may begin as many as a window ahead of what they know, so
    /// all come to where the next grant is due without one, and no rank has less than the lead for a window.
    fn grant_finished(&mut self, io: &mut Io<'_>) {
        let before = std::mem::replace(&mut self.course.granted, self.course.finished);
        let (lead, finished) = (self.prepared.lead, self.course.finished);
        for (peer, flow) in self.prepared.peers.iter().zip(&self.room.flows) {
            let in_place = peer.shared && !self.prepared.eager;
            let ends = before < peer.gives && finished >= peer.gives;
            let last = ends && (in_place || (self.is_worker && self.with_reducers));
            if !peer.heads.is_empty() && (last || before + lead < peer.gives) {
                let grant = self.header(FrameKind::Grant, finished.min(peer.gives));
                io.endpoints[flow.endpoint].notice(grant);
            }
        }
    }

    /// A grant, or word that an operation is stable.
    pub(crate) fn hear(
        &mut self,
        endpoint: MemberId,
        header: &Header,
        io: &mut Io<'_>,
    ) -> Result<(), Broken> {
        let Some(flow) = self.room.flows.iter_mut().find(|flow| flow.endpoint == endpoint) else {
            return Err(Broken::Protocol("word of an operation in which it has no part"));
        };
        match header.kind {
            FrameKind::Grant => {
                let granted = flow.window.grant(header.segment, self.course.begun);
                granted.map_err(|_| Broken::Protocol("a grant for what was not sent"))?;
            }
            FrameKind::Stable if !flow.stable => flow.stable = true,
            _ => return Err(Broken::Protocol("word of an operation that makes no sense")),
        }
        self.tell_stable(io);
        self.retry(io);
        self.begin_segments(io);
        Ok(())
    }

    /// A reducer tells its workers when all of them hold the whole result.
    fn tell_stable(&self, io: &mut Io<'_>) {
        let segments = self.prepared.segments;
        if !self.is_worker
            && self.course.finished == segments
            && self.room.flows.iter().all(|flow| flow.window.done() == segments)
        {
            for flow in &self.room.flows {
                io.endpoints[flow.endpoint].notice(self.header(FrameKind::Stable, segments));
            }
        }
    }

    /// Tries again what could not be sent.
    pub(crate) fn retry(&mut self, io: &mut Io<'_>) {
        if self.room.blocked.is_empty() {
            return;
        }
        let prepared = self.prepared.clone();
        for unsent in std::mem::take(&mut self.room.blocked) {
            self.send_later(&prepared, unsent, io);
        }
    }

    pub(super) fn satisfied(&mut self, segment: u32, instr: u32) {
        let at = self.stage(segment) * self.prepared.instrs.len() + instr as usize;
        let waits = &mut self.room.waits[at];
        *waits -= 1;
        if *waits == 0 && segment < self.course.begun {
            self.room.ready.push_back((segment, instr));
        }
    }

    fn complete(&mut self, segment: u32, instr: u32) {
        for next in self.prepared.instrs[instr as usize].next.clone() {
            self.satisfied(segment, self.prepared.next[next as usize]);
        }
        let stage = self.stage(segment);
        self.room.left[stage] -= 1;
    }

    /// One of a send's messages needs its source no more: the kernel has it, or its link is of no use any more.
    pub(crate) fn delivered(&mut self, segment: u32, instr: u32) {
        let at = self.stage(segment) * self.prepared.instrs.len() + instr as usize;
        self.room.deliveries[at].left -= 1;
        if self.room.deliveries[at].left == 0 {
            self.complete(segment, instr);
        }
    }

    /// The user's buffers, until they are given back: input and output.
    pub(crate) fn buffers(&self) -> Option<(&Region, &Region)> {
        let output = self.lent.output.as_ref()?;
        Some((self.lent.input.as_ref().unwrap_or(output), output))
    }

    /// What it touches, until its buffers are given back.
    pub(crate) fn touches(&self) -> Option<&Touches> {
        self.lent.touches.as_ref()
    }

    /// Gives the user's buffers back. Returns what is not touched any more.
    pub(crate) fn release_buffers(&mut self) -> Option<Touches> {
        (self.lent.input, self.lent.output) = (None, None);
        self.lent.touches.take()
    }
}
