//! One rank in one operation: what the executor counts, without data. Each rule is one of the executor's, so the comments
//! there say why.

use crate::{
    prepare::{Kind, Loc, Peer, Prepared},
    session::lane::Window,
};
use alloc::{collections::VecDeque, sync::Arc, vec, vec::Vec};

/// How many grants are given for as many segments as are in flight at the least.
const GRANTS_PER_WINDOW: u32 = 4;
/// In memory segments begin in lots of this part of what is in flight.
const LOTS_PER_WINDOW: u32 = 4;

/// A message to one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PendingSend {
    pub(super) segment: u32,
    pub(super) instr: u32,
    pub(super) lane: u32,
}

/// What a member does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// An instruction of a segment.
    Step { segment: u32, instr: u32 },
    /// One message of a send.
    Message(PendingSend),
}

/// What a member tells another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// To a position among its peers: how many segments it is done with.
    Grant { peer: u32, segments: u32 },
    /// A reducer, to a worker: all workers hold the result.
    Stable { peer: u32 },
}

#[derive(Clone, Debug)]
pub(super) struct SimulatedMember {
    pub(super) prepared: Arc<Prepared>,
    is_worker: bool,
    with_reducers: bool,
    has_started: bool,
    /// Segments that have begun, that are done, and of which others know that they are.
    course: (u32, u32, u32),
    ahead: u32,
    /// How many segments begin at once at the least.
    lot: u32,
    counts: Counts,
    windows: Vec<Window>,
    stable: Vec<bool>,
    queue: VecDeque<Unit>,
    /// Messages that their receivers have not granted.
    blocked: Vec<PendingSend>,
}

/// What is counted per stage: of each instruction what it waits for, how many are left, of each send the messages that have not
/// left, of each head whether its message went straight to where it belongs.
#[derive(Clone, Debug)]
struct Counts {
    waits: Vec<u16>,
    left: Vec<u32>,
    undelivered: Vec<u16>,
    placed: Vec<bool>,
}

impl SimulatedMember {
    /// `is_mapped` says whether host-mates find the user's buffer, `lot` how many segments begin at once if not as many as
    /// executors say.
    pub(super) fn new(prepared: Arc<Prepared>, me: u32, is_mapped: bool, lot: Option<u32>) -> Self {
        let is_worker = !prepared.is_reducer(me);
        let with_reducers = !is_worker || prepared.peers.iter().any(|peer| prepared.is_reducer(peer.rank));
        let stages = prepared.depth as usize;
        let ahead = prepared.ahead(is_mapped);
        let usual = if prepared.is_in_memory() { (ahead / LOTS_PER_WINDOW).max(1) } else { 1 };
        let window = |peer: &Peer| {
            let open = prepared.is_reducer(peer.rank) || !is_worker || (peer.shared && !prepared.eager);
            Window::new(ahead, open)
        };
        Self {
            is_worker,
            with_reducers,
            has_started: false,
            course: (0, 0, 0),
            ahead,
            lot: lot.unwrap_or(usual),
            counts: Counts {
                waits: (0..stages).flat_map(|_| prepared.waits.iter().copied()).collect(),
                left: vec![prepared.instrs.len() as u32; stages],
                undelivered: vec![0; stages * prepared.instrs.len()],
                placed: vec![false; stages * prepared.heads.len()],
            },
            windows: prepared.peers.iter().map(window).collect(),
            stable: prepared
                .peers
                .iter()
                .map(|peer| !(prepared.is_reducer(peer.rank) && is_worker))
                .collect(),
            queue: VecDeque::new(),
            blocked: Vec::new(),
            prepared,
        }
    }

    /// Issues the operation; returns what to tell others.
    pub(super) fn start(&mut self) -> Vec<Notice> {
        self.has_started = true;
        let prepared = self.prepared.clone();
        let invited = |peer: &Peer| {
            self.is_worker
                && !prepared.eager
                && !peer.heads.is_empty()
                && !peer.shared
                && !prepared.is_reducer(peer.rank)
        };
        let numbered = (0..).zip(&prepared.peers).filter(|(_, peer)| invited(peer));
        let notices = numbered.map(|(peer, _)| Notice::Grant { peer, segments: 0 }).collect();
        self.begin_segments();
        notices
    }

    /// Whether this rank's part is over and its caller goes on.
    pub(super) fn is_complete(&self) -> bool {
        self.course.1 == self.prepared.segments && self.stable.iter().all(|stable| *stable)
    }

    pub(super) fn next(&mut self) -> Option<Unit> {
        self.queue.pop_front()
    }

    /// What has come up at a position among all that can be done now.
    pub(super) fn take(&mut self, at: usize) -> Option<Unit> {
        self.queue.remove(at)
    }

    /// How much can be done now.
    pub(super) fn ready(&self) -> usize {
        self.queue.len()
    }

    /// Segments that have begun, and that are done.
    pub(super) fn course(&self) -> (u32, u32) {
        (self.course.0, self.course.1)
    }

    pub(super) fn has_work(&self) -> bool {
        !self.queue.is_empty()
    }

    fn stage(&self, segment: u32) -> usize {
        (segment % self.prepared.depth) as usize
    }

    fn at(&self, segment: u32, instr: u32) -> usize {
        self.stage(segment) * self.prepared.instrs.len() + instr as usize
    }

    fn begin_segments(&mut self) {
        let (segments, lot) = (self.prepared.segments, self.lot);
        let (begun, finished, _) = self.course;
        if !self.has_started || segments.min(begun + lot) > finished + self.ahead {
            return;
        }
        while self.course.0 < segments && self.course.0 < self.course.1 + self.ahead {
            let segment = self.course.0;
            let mut flows = self.prepared.peers.iter().zip(&self.windows);
            if !flows.all(|(peer, window)| peer.sends == 0 || window.has_room(segment)) {
                return;
            }
            self.course.0 += 1;
            let stage = self.stage(segment) * self.prepared.instrs.len();
            for instr in 0..self.prepared.instrs.len() {
                if self.counts.waits[stage + instr] == 0 {
                    self.queue.push_back(Unit::Step { segment, instr: instr as u32 });
                }
            }
        }
    }

    /// A step is done, but for the messages of a send. Returns what to tell others.
    pub(super) fn step(&mut self, segment: u32, instr: u32) -> Vec<Notice> {
        let prepared = self.prepared.clone();
        if let Kind::Send(send) = &prepared.instrs[instr as usize].kind {
            let at = self.at(segment, instr);
            self.counts.undelivered[at] = send.lanes.len() as u16;
            for lane in send.lanes.clone().rev() {
                self.offer(PendingSend { segment, instr, lane });
            }
            return Vec::new();
        }
        self.complete(segment, instr)
    }

    /// A message goes if there is room at its receiver.
    fn offer(&mut self, unsent: PendingSend) {
        let lane = self.prepared.lanes[unsent.lane as usize];
        if !self.windows[lane.peer as usize].is_open() && !self.prepared.eager {
            self.blocked.push(unsent);
            return;
        }
        // What may go goes before the next step.
        self.queue.push_front(Unit::Message(unsent));
    }

    /// A message has left: its source is needed no more.
    pub(super) fn has_left(&mut self, unsent: PendingSend) -> Vec<Notice> {
        let at = self.at(unsent.segment, unsent.instr);
        self.counts.undelivered[at] -= 1;
        match self.counts.undelivered[at] {
            0 => self.complete(unsent.segment, unsent.instr),
            _ => Vec::new(),
        }
    }

    fn offer_last(&mut self, unsent: PendingSend) {
        if self.windows[self.prepared.lanes[unsent.lane as usize].peer as usize].is_open() {
            self.queue.push_back(Unit::Message(unsent));
        } else {
            self.blocked.push(unsent);
        }
    }

    fn complete(&mut self, segment: u32, instr: u32) -> Vec<Notice> {
        let prepared = self.prepared.clone();
        for next in prepared.instrs[instr as usize].next.clone() {
            self.satisfied(segment, prepared.next[next as usize]);
        }
        let stage = self.stage(segment);
        self.counts.left[stage] -= 1;
        if self.counts.left[stage] == 0 { self.advance() } else { Vec::new() }
    }

    fn satisfied(&mut self, segment: u32, instr: u32) {
        let at = self.at(segment, instr);
        self.counts.waits[at] -= 1;
        if self.counts.waits[at] == 0 && segment < self.course.0 {
            self.queue.push_back(Unit::Step { segment, instr });
        }
    }

    fn advance(&mut self) -> Vec<Notice> {
        let Self { prepared, .. } = self;
        let prepared = prepared.clone();
        while self.course.1 < self.course.0 && self.counts.left[self.stage(self.course.1)] == 0 {
            self.course.1 += 1;
            let next = self.course.1 - 1 + prepared.depth;
            if next < prepared.segments {
                let (stage, instrs) = (self.stage(next), prepared.instrs.len());
                self.counts.waits[stage * instrs..][..instrs].copy_from_slice(&prepared.waits);
                self.counts.placed[stage * prepared.heads.len()..][..prepared.heads.len()].fill(false);
                self.counts.left[stage] = instrs as u32;
            }
        }
        let (_, finished, granted) = self.course;
        let worth_a_grant = (prepared.lead / GRANTS_PER_WINDOW).max(1);
        let is_over = finished == prepared.segments;
        let mut notices = Vec::new();
        if finished - granted >= worth_a_grant || finished > granted && is_over {
            self.course.2 = finished;
            for (at, peer) in (0..).zip(&prepared.peers) {
                let in_place = peer.shared && !prepared.eager;
                let ends = granted < peer.gives && finished >= peer.gives;
                let last = ends && (in_place || (self.is_worker && self.with_reducers));
                if !peer.heads.is_empty() && (last || granted + prepared.lead < peer.gives) {
                    notices.push(Notice::Grant { peer: at, segments: finished.min(peer.gives) });
                }
            }
        }
        self.begin_segments();
        notices.extend(self.stability());
        notices
    }

    /// What a reducer says when all workers have granted everything.
    fn stability(&self) -> Vec<Notice> {
        let segments = self.prepared.segments;
        let all = self.course.1 == segments && self.windows.iter().all(|window| window.done() == segments);
        if self.is_worker || !all {
            return Vec::new();
        }
        (0..self.windows.len() as u32).map(|peer| Notice::Stable { peer }).collect()
    }

    /// A grant, or word that the operation is stable, from a position among the peers.
    pub(super) fn hear(&mut self, peer: u32, granted: Option<u32>) -> Vec<Notice> {
        match granted {
            Some(segments) => {
                let window = &mut self.windows[peer as usize];
                // Grants may overtake each other in a simulation whose ranks are all one.
                let _ = window.grant(segments.max(window.done()), self.course.0.max(segments));
            }
            None => self.stable[peer as usize] = true,
        }
        for unsent in core::mem::take(&mut self.blocked) {
            self.offer_last(unsent);
        }
        self.begin_segments();
        self.stability()
    }

    /// A message is there: what waits for it may go on.
    pub(super) fn arrive(&mut self, segment: u32, head: u32) {
        let prepared = self.prepared.clone();
        let wanted = &prepared.heads[head as usize];
        let at = self.at(segment, wanted.instr);
        let result =
            matches!(prepared.instrs[wanted.instr as usize].kind, Kind::Recv { into: Loc::Output(_), .. });
        let only_for_this = self.counts.waits[at] == 1 && segment < self.course.0 && !self.with_reducers;
        let stage = self.stage(segment) * prepared.heads.len();
        let over_link = !prepared.peers[wanted.peer as usize].shared;
        self.counts.placed[stage + head as usize] = over_link && (wanted.placed || result && only_for_this);
        self.satisfied(segment, wanted.instr);
    }

    /// Whether a message went straight to where it belongs.
    pub(super) fn is_placed(&self, segment: u32, head: u32) -> bool {
        self.counts.placed[self.stage(segment) * self.prepared.heads.len() + head as usize]
    }
}
