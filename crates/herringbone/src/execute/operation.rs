//! A running operation: its segments in flight, and the one step function that runs its instructions.

use super::prepare::{Peer, Prepared};
use crate::{
    core::{
        session::{
            fence::{WAITING_AGAIN_MILLISECONDS, WAITING_MILLISECONDS},
            lane::Window,
        },
        wire::{Fingerprint, Header, Kind as FrameKind},
    },
    engine::{endpoint::Endpoint, stats::Stats},
    execute::staging::Staging,
    sys::region::Region,
    transport::Broken,
    work::Completion,
};
use std::{
    collections::VecDeque,
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

/// An operation's place in the engine's table. A key is not used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OpKey {
    pub(crate) index: u32,
    pub(crate) version: u32,
}

/// An instruction of a segment of an operation: what a transport reports back on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) op: OpKey,
    pub(crate) segment: u32,
    pub(crate) instr: u32,
}

/// Where a message that has arrived lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrived {
    No,
    /// In its place in my staging memory.
    Staged,
    /// At an offset of the sender's segment.
    At(usize),
}

/// What one other rank has told of an operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    pub(super) endpoint: u32,
    /// What it has granted.
    pub(super) window: Window,
    /// Whether it, a reducer, has said that all workers hold the result; true of others.
    stable: bool,
}

/// What an operation needs of the engine while it runs.
pub(crate) struct Io<'a> {
    pub(crate) endpoints: &'a mut [Endpoint],
    pub(crate) staging: &'a Staging,
    pub(crate) stats: &'a mut Stats,
}

/// What an operation is and where it runs; see [`Operation::start`].
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) group: u32,
    pub(crate) generation: u32,
    pub(crate) hash: u64,
    pub(crate) fingerprint: Fingerprint,
}

impl Identity {
    /// Whether both are the same operation.
    pub(crate) fn is(&self, other: &Self) -> bool {
        let what = |id: &Self| (id.group, id.generation, id.fingerprint.sequence);
        what(self) == what(other)
    }
}

/// A running operation.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) key: OpKey,
    pub(crate) id: Identity,
    pub(crate) prepared: Arc<Prepared>,
    pub(crate) completion: Option<Arc<Completion>>,
    pub(crate) timeout: Duration,
    /// How often the hub was told that this rank waits.
    told_hub: u32,
    pub(crate) issued: Instant,
    pub(crate) memory: Range<usize>,
    /// The user's buffers; the input is `None` when it is the output. Reducers have neither.
    pub(super) input: Option<Region>,
    pub(super) output: Option<Region>,
    is_worker: bool,
    with_reducers: bool,
    pub(super) flows: Vec<Flow>,
    /// Segments that have begun, and those that are done, counted from the first.
    begun: u32,
    finished: u32,
    /// Per stage and instruction: what it still waits for. Per stage and head: what has arrived. And so on.
    waits: Vec<u16>,
    pub(super) unsent: Vec<u16>,
    pub(super) heads: Vec<Arrived>,
    left: Vec<u32>,
    ready: VecDeque<(u32, u32)>,
    pub(super) blocked: Vec<(u32, u32, u32)>,
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
    pub(crate) fn new(
        key: OpKey,
        id: Identity,
        prepared: Arc<Prepared>,
        buffers: Option<(Region, Region)>,
        issued: Instant,
    ) -> Self {
        let (input, output, is_worker) = match buffers {
            Some((input, output)) => ((!input.same_start(&output)).then_some(input), Some(output), true),
            None => (None, None, false),
        };
        Self {
            key,
            id,
            prepared,
            completion: None,
            timeout: Duration::MAX,
            told_hub: 0,
            issued,
            memory: 0..0,
            input,
            output,
            is_worker,
            with_reducers: !is_worker,
            flows: Vec::new(),
            begun: 0,
            finished: 0,
            waits: Vec::new(),
            unsent: Vec::new(),
            heads: Vec::new(),
            left: Vec::new(),
            ready: VecDeque::new(),
            blocked: Vec::new(),
        }
    }

    /// Whether reducers take part.
    pub(crate) fn with_reducers(&self) -> bool {
        self.with_reducers
    }

    /// Begins: all links are up, `memory` is this operation's staging memory.
    pub(crate) fn start(&mut self, memory: Range<usize>, roster: &[u32], io: &mut Io<'_>) {
        let prepared = self.prepared.clone();
        let stages = prepared.depth() as usize;
        self.memory = memory;
        self.waits = vec![0; stages * prepared.instrs.len()];
        self.unsent = vec![0; stages * prepared.instrs.len()];
        self.heads = vec![Arrived::No; stages * prepared.heads.len()];
        self.left = vec![0; stages];
        for peer in &prepared.peers {
            let endpoint = roster[peer.rank as usize];
            let reducer = peer.rank >= prepared.workers;
            self.with_reducers |= reducer;
            let open = reducer || !self.is_worker || (peer.shared && !prepared.inline);
            let window = Window::new(prepared.depth(), open);
            self.flows.push(Flow { endpoint, window, stable: !(reducer && self.is_worker) });
        }
        if !prepared.eager {
            self.open(|peer| !peer.shared && peer.rank < prepared.workers, io);
        }
        (0..prepared.depth()).for_each(|segment| self.arm(segment));
        self.begin_segments(io);
    }

    /// Allows ranks to send me this operation's messages.
    fn open(&self, which: impl Fn(&Peer) -> bool, io: &mut Io<'_>) {
        for (peer, flow) in self.prepared.peers.iter().zip(&self.flows) {
            if self.is_worker && !peer.heads.is_empty() && which(peer) {
                io.endpoints[flow.endpoint as usize].notice(self.grant());
            }
        }
    }

    /// An endpoint has used up its eager slots here: messages of operations that are running need none.
    pub(crate) fn open_to(&self, endpoint: u32, io: &mut Io<'_>) {
        if let Some(at) = self.flows.iter().position(|flow| flow.endpoint == endpoint) {
            let rank = self.prepared.peers[at].rank;
            self.open(|peer| peer.rank == rank && self.prepared.eager, io);
        }
    }

    pub(super) fn header(&self, kind: FrameKind, segment: u32) -> Header {
        let mut header = Header::new(kind, self.id.group, self.id.generation, self.id.fingerprint.sequence);
        (header.segment, header.hash) = (segment, self.id.hash);
        header
    }

    fn grant(&self) -> Header {
        self.header(FrameKind::Grant, self.finished)
    }

    pub(super) fn stage(&self, segment: u32) -> usize {
        (segment % self.prepared.depth()) as usize
    }

    pub(super) fn stage_at(&self, segment: u32) -> usize {
        self.memory.start + self.stage(segment) * self.prepared.stage_bytes
    }

    /// Begins segments for which there is a free stage, here and with everyone that I send to.
    fn begin_segments(&mut self, io: &Io<'_>) {
        let depth = self.prepared.depth();
        while self.begun < self.prepared.segments && self.begun < self.finished + depth {
            let room = self.prepared.peers.iter().zip(&self.flows).all(|(peer, flow)| {
                peer.sends == 0
                    || flow.window.has_room(self.begun)
                    || io.endpoints[flow.endpoint as usize].is_away()
            });
            if !room {
                return;
            }
            let segment = self.begun;
            self.begun += 1;
            let stage = self.stage(segment) * self.prepared.instrs.len();
            for instr in 0..self.prepared.instrs.len() {
                if self.waits[stage + instr] == 0 {
                    self.ready.push_back((segment, instr as u32));
                }
            }
        }
    }

    /// Makes a stage ready for a segment: from now on its messages may arrive.
    fn arm(&mut self, segment: u32) {
        let prepared = self.prepared.clone();
        let stage = self.stage(segment);
        let instrs = prepared.instrs.len();
        self.waits[stage * instrs..][..instrs].copy_from_slice(&prepared.waits);
        self.heads[stage * prepared.heads.len()..][..prepared.heads.len()].fill(Arrived::No);
        self.left[stage] = instrs as u32;
    }

    /// Runs what can run.
    pub(crate) fn run(&mut self, io: &mut Io<'_>) -> Progress {
        loop {
            while let Some((segment, instr)) = self.ready.pop_front() {
                if self.step(segment, instr, io) {
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
        if self.finished < segments || self.flows.iter().any(|flow| !flow.stable) {
            return Progress::Running;
        }
        let read = self.prepared.peers.iter().zip(&self.flows).all(|(peer, flow)| {
            !self.keeps_slots_for(peer)
                || flow.window.done() == segments
                || io.endpoints[flow.endpoint as usize].is_away()
        });
        match (read, self.is_worker) {
            (true, _) => Progress::Over,
            (false, true) => Progress::Complete,
            (false, false) => Progress::Running,
        }
    }

    /// Whether what I sent stays here until that rank says that it is done.
    fn keeps_slots_for(&self, peer: &Peer) -> bool {
        peer.sends > 0 && ((peer.shared && !self.prepared.inline) || !self.is_worker)
    }

    /// Moves the window over finished segments and tells the others. Returns whether there is more to run.
    fn advance(&mut self, io: &mut Io<'_>) -> bool {
        let before = self.finished;
        while self.finished < self.begun && self.left[self.stage(self.finished)] == 0 {
            self.finished += 1;
            let next = self.finished - 1 + self.prepared.depth();
            if next < self.prepared.segments {
                self.arm(next);
            }
        }
        if self.finished > before {
            self.tell(before, io);
        }
        self.begin_segments(io);
        !self.ready.is_empty()
    }

    fn tell(&mut self, before: u32, io: &mut Io<'_>) {
        let (depth, segments) = (self.prepared.depth(), self.prepared.segments);
        for (peer, flow) in self.prepared.peers.iter().zip(&self.flows) {
            let in_place = peer.shared && !self.prepared.inline;
            let last = self.finished == segments && (in_place || (self.is_worker && self.with_reducers));
            if !peer.heads.is_empty() && (last || before + depth < segments) {
                io.endpoints[flow.endpoint as usize].notice(self.grant());
            }
        }
    }

    /// A grant, or word that an operation is stable.
    pub(crate) fn told(&mut self, endpoint: u32, header: &Header, io: &mut Io<'_>) -> Result<(), Broken> {
        let Some(flow) = self.flows.iter_mut().find(|flow| flow.endpoint == endpoint) else {
            return Err(Broken::Protocol("word of an operation in which it has no part"));
        };
        match header.kind {
            FrameKind::Grant => {
                let granted = flow.window.grant(header.segment, self.begun);
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
            && self.finished == segments
            && self.flows.iter().all(|flow| flow.window.done() == segments)
        {
            for flow in &self.flows {
                io.endpoints[flow.endpoint as usize].notice(self.header(FrameKind::Stable, segments));
            }
        }
    }

    /// Tries again what could not be sent.
    pub(crate) fn retry(&mut self, io: &mut Io<'_>) {
        for (segment, instr, lane) in std::mem::take(&mut self.blocked) {
            if self.send_lane(segment, instr, lane, io) {
                self.handed_over(segment, instr);
            }
        }
    }

    /// Where the payload of an arriving message goes.
    pub(crate) fn place(&self, endpoint: u32, header: &Header) -> Result<usize, Broken> {
        let (head, _) = self.expected(endpoint, header)?;
        Ok(self.stage_at(header.segment) + self.prepared.heads[head as usize].offset)
    }

    /// The head that a frame is for, after all its numbers are checked against what the schedule says.
    fn expected(&self, endpoint: u32, header: &Header) -> Result<(u32, usize), Broken> {
        let at = self.flows.iter().position(|flow| flow.endpoint == endpoint);
        let head = at.and_then(|at| self.prepared.peers[at].heads.get(header.index as usize));
        let Some(&head) = head else {
            return Err(Broken::Protocol("a message that the schedule does not have"));
        };
        if header.segment < self.finished || header.segment >= self.finished + self.prepared.depth() {
            return Err(Broken::Protocol("a message outside its window"));
        }
        let wanted = &self.prepared.heads[head as usize];
        if header.length as usize != self.prepared.bytes(wanted.chunk, header.segment, wanted.form) {
            return Err(Broken::Protocol("a message of the wrong length"));
        }
        Ok((head, self.stage(header.segment) * self.prepared.heads.len() + head as usize))
    }

    /// A message has arrived.
    pub(crate) fn arrive(&mut self, endpoint: u32, header: &Header, arrived: Arrived) -> Result<(), Broken> {
        let (head, at) = self.expected(endpoint, header)?;
        if self.heads[at] != Arrived::No {
            return Err(Broken::Protocol("a message that came before"));
        }
        self.heads[at] = arrived;
        self.satisfied(header.segment, self.prepared.heads[head as usize].instr);
        Ok(())
    }

    fn satisfied(&mut self, segment: u32, instr: u32) {
        let waits = &mut self.waits
            [(segment % self.prepared.depth()) as usize * self.prepared.instrs.len() + instr as usize];
        *waits -= 1;
        if *waits == 0 && segment < self.begun {
            self.ready.push_back((segment, instr));
        }
    }

    fn complete(&mut self, segment: u32, instr: u32) {
        let prepared = self.prepared.clone();
        for next in prepared.instrs[instr as usize].next.clone() {
            self.satisfied(segment, prepared.next[next as usize]);
        }
        let stage = self.stage(segment);
        self.left[stage] -= 1;
    }

    /// A message was handed to the kernel, or copied to where its receivers find it.
    pub(crate) fn handed_over(&mut self, segment: u32, instr: u32) {
        let at = self.stage(segment) * self.prepared.instrs.len() + instr as usize;
        self.unsent[at] -= 1;
        if self.unsent[at] == 0 {
            self.complete(segment, instr);
        }
    }

    /// The endpoints that have not sent, granted or confirmed what this operation needs of them.
    pub(crate) fn missing(&self) -> Vec<u32> {
        let waiting = |at: usize, flow: &Flow| {
            let unheard = (self.finished..self.begun.max(self.finished + 1).min(self.prepared.segments)).any(
                |segment| {
                    segment >= self.begun && !self.prepared.peers[at].heads.is_empty()
                        || self.prepared.peers[at].heads.iter().any(|head| {
                            segment < self.begun
                                && self.heads
                                    [self.stage(segment) * self.prepared.heads.len() + *head as usize]
                                    == Arrived::No
                        })
                },
            );
            let unsent = self
                .blocked
                .iter()
                .any(|(_, _, lane)| self.prepared.lanes[*lane as usize].peer as usize == at);
            unheard || unsent || !flow.stable
        };
        let flows = self.flows.iter().enumerate();
        flows.filter(|(at, flow)| waiting(*at, flow)).map(|(_, flow)| flow.endpoint).collect()
    }

    /// Whether a message or word from an endpoint is still needed to complete.
    pub(crate) fn needs(&self, endpoint: u32) -> bool {
        self.flows.iter().enumerate().any(|(at, flow)| {
            flow.endpoint == endpoint
                && (!flow.stable || {
                    let heads = &self.prepared.peers[at].heads;
                    !heads.is_empty()
                        && (self.begun < self.prepared.segments
                            || (self.finished..self.begun).any(|segment| {
                                let base = self.stage(segment) * self.prepared.heads.len();
                                heads.iter().any(|head| self.heads[base + *head as usize] == Arrived::No)
                            }))
                })
        })
    }

    /// Whether an endpoint takes part and is not done.
    pub(crate) fn involves(&self, endpoint: u32) -> bool {
        self.flows.iter().any(|flow| flow.endpoint == endpoint && flow.window.done() < self.prepared.segments)
    }

    /// Whether something waits to be sent to an endpoint.
    pub(crate) fn is_blocked_on(&self, endpoint: u32) -> bool {
        let to = |lane: u32| self.flows[self.prepared.lanes[lane as usize].peer as usize].endpoint;
        self.blocked.iter().any(|(_, _, lane)| to(*lane) == endpoint)
    }

    /// Whether, after waiting for `waited`, it is time to tell the hub (again): the how-manieth time it is.
    pub(crate) fn tells_hub(&mut self, waited: Duration) -> Option<u32> {
        let due = WAITING_MILLISECONDS + WAITING_AGAIN_MILLISECONDS * u64::from(self.told_hub);
        let tells = waited >= Duration::from_millis(due);
        self.told_hub += u32::from(tells);
        tells.then(|| self.told_hub - 1)
    }

    /// Gives the user's buffers back.
    pub(crate) fn release_buffers(&mut self) {
        (self.input, self.output) = (None, None);
    }
}
