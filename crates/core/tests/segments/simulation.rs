//! A model of execution: who waits for whom, without any data.

use herringbone_core::{
    schedule::{Origin, Place, Program, Rank, Schedule, Step},
    session::lane::Window,
};
use std::collections::{BTreeMap, BTreeSet};

/// How a schedule is executed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Execution {
    pub(crate) segments: usize,
    /// How many messages a lane holds.
    pub(crate) credit: usize,
    /// Whether a rank's steps run strictly in program order, rather than as soon as conflicts allow.
    pub(crate) in_order: bool,
    /// Whether a send puts a segment on all its lanes at once, rather than on each as soon as it has room.
    pub(crate) at_once: bool,
    /// Whether a send is done when its messages have left, as over links, and not only when they have been taken.
    pub(crate) leaves: bool,
    /// How many segments are in flight.
    pub(crate) window: usize,
    /// Whether a rank waits for the grants of its receivers before it begins a segment, and not only until it has ended
    /// one itself.
    pub(crate) granted: bool,
}

impl Execution {
    pub(crate) const CUT: Execution = Execution {
        segments: 5,
        credit: 1,
        in_order: false,
        at_once: false,
        leaves: false,
        window: 5,
        granted: true,
    };
    pub(crate) const SERIAL: Execution =
        Execution { segments: 1, in_order: true, at_once: true, ..Self::CUT };
    /// A window of two segments over links: there is room for all messages of both.
    pub(crate) const WINDOWS: Execution =
        Execution { credit: usize::MAX, leaves: true, window: 2, ..Self::CUT };

    /// The message of that number on a lane: which of so many sends, and which segment. Those of a window go send by send.
    fn message(self, number: usize, sends: usize) -> (usize, usize) {
        let first = number / (self.window * sends) * self.window;
        let in_window = self.window.min(self.segments.saturating_sub(first)).max(1);
        let rest = number % (self.window * sends);
        (rest / in_window, first + rest % in_window)
    }

    /// The number of a message on its lane.
    fn number(self, send: usize, segment: usize, sends: usize) -> usize {
        let first = segment / self.window * self.window;
        let in_window = self.window.min(self.segments - first);
        first * sends + send * in_window + segment - first
    }
}

/// One direction between two ranks: the steps that send on it and those that receive, and how many segments they have
/// sent and received so far.
struct Lane {
    sends: Vec<usize>,
    receives: Vec<usize>,
    sent: usize,
    taken: usize,
    /// The segments that the receiver has granted.
    window: Window,
    /// The receiver's slots with messages that it has not taken: which send, and which of the segments in flight.
    occupied: BTreeSet<(usize, usize)>,
}

impl Lane {
    fn new(execution: Execution) -> Self {
        let window = Window::new(execution.window as u32, true);
        Self { sends: vec![], receives: vec![], sent: 0, taken: 0, window, occupied: BTreeSet::new() }
    }
}

/// A step, as far as waiting goes.
struct Node {
    /// Earlier steps of the rank that conflict with it.
    conflicts: Vec<usize>,
    reads: Vec<Place>,
    writes: Option<Place>,
    sends: Vec<Rank>,
    receives: Vec<Rank>,
    /// Segments done, but for sends: what they have done is on their lanes.
    done: usize,
}

pub(crate) struct Simulation {
    execution: Execution,
    ranks: Vec<Vec<Node>>,
    lanes: BTreeMap<(Rank, Rank), Lane>,
    /// Per rank: how many segments it has begun, and how many it has ended.
    courses: Vec<(u32, u32)>,
    /// How many messages came to a slot that was occupied.
    overwritten: usize,
}

impl Simulation {
    /// Whether a schedule completes.
    pub(crate) fn completes(schedule: &Schedule, execution: Execution) -> bool {
        let mut simulation = Self::new(schedule, execution);
        simulation.run();
        assert_eq!(simulation.overwritten, 0, "slots that were occupied\n{schedule}");
        (0..simulation.ranks.len())
            .all(|rank| (0..execution.segments).all(|segment| simulation.has_ended(rank, segment)))
    }

    /// How many messages come to a slot whose message before has not been taken.
    pub(crate) fn overwrites(schedule: &Schedule, execution: Execution) -> usize {
        let mut simulation = Self::new(schedule, execution);
        simulation.run();
        simulation.overwritten
    }

    fn new(schedule: &Schedule, execution: Execution) -> Self {
        let courses = vec![(0, 0); schedule.ranks() as usize];
        let (ranks, lanes) = (Vec::new(), BTreeMap::new());
        let mut simulation = Self { execution, ranks, lanes, courses, overwritten: 0 };
        for rank in 0..schedule.ranks() {
            simulation.add(rank, &schedule.program(rank));
        }
        simulation
    }

    /// Lets every rank go as far as it can before the next one: so they are as far apart as they can be.
    fn run(&mut self) {
        let mut moved = true;
        while moved {
            moved = false;
            for rank in 0..self.ranks.len() {
                while self.advance(rank) || self.sweep(rank) {
                    moved = true;
                }
            }
        }
    }

    /// Ends and begins segments, and grants those that have ended. Whether there were any.
    fn advance(&mut self, rank: usize) -> bool {
        let (mut begun, mut ended) = self.courses[rank];
        while ended < begun && self.has_ended(rank, ended as usize) {
            ended += 1;
        }
        let has_room = |((from, _), lane): (&(Rank, Rank), &Lane)| {
            *from as usize != rank || !self.execution.granted || lane.window.has_room(begun)
        };
        let (segments, window) = (self.execution.segments as u32, self.execution.window as u32);
        begun += u32::from(begun < segments.min(ended + window) && self.lanes.iter().all(has_room));
        let moved = self.courses[rank] != (begun, ended);
        self.courses[rank] = (begun, ended);
        for ((from, to), lane) in &mut self.lanes {
            if *to as usize == rank {
                let granted = lane.window.grant(ended, self.courses[*from as usize].0);
                granted.expect("a segment ends when all its messages have been sent");
            }
        }
        moved
    }

    /// Whether a rank is done with a segment.
    fn has_ended(&self, rank: usize, segment: usize) -> bool {
        (0..self.ranks[rank].len()).all(|step| self.is_done(rank, step, segment))
    }

    fn add(&mut self, rank: Rank, program: &Program) {
        let mut nodes: Vec<Node> = Vec::new();
        for (at, step) in program.steps().iter().enumerate() {
            let mut node = node(program, step);
            node.conflicts = (0..at).filter(|earlier| nodes[*earlier].conflicts_with(&node)).collect();
            for to in &node.sends {
                self.lane((rank, *to)).sends.push(at);
            }
            for from in &node.receives {
                self.lane((*from, rank)).receives.push(at);
            }
            nodes.push(node);
        }
        self.ranks.push(nodes);
    }

    fn lane(&mut self, ends: (Rank, Rank)) -> &mut Lane {
        self.lanes.entry(ends).or_insert_with(|| Lane::new(self.execution))
    }

    /// Lets every step of a rank go on; whether any went.
    fn sweep(&mut self, rank: usize) -> bool {
        let mut moved = false;
        for step in 0..self.ranks[rank].len() {
            moved |= if self.ranks[rank][step].sends.is_empty() {
                self.receive(rank, step)
            } else {
                self.send(rank, step)
            };
        }
        moved
    }

    /// A segment of a step is done; of a send, when it has been taken everywhere, or has left: then what receivers have is a copy.
    fn is_done(&self, rank: usize, step: usize, segment: usize) -> bool {
        let node = &self.ranks[rank][step];
        let taken = |to: &Rank| {
            let lane = &self.lanes[&(rank as Rank, *to)];
            let at = lane.sends.iter().position(|send| *send == step).expect("the lane has its sends");
            let gone = if self.execution.leaves { lane.sent } else { lane.taken };
            gone > self.execution.number(at, segment, lane.sends.len())
        };
        if node.sends.is_empty() { node.done > segment } else { node.sends.iter().all(taken) }
    }

    /// In program order, a send is over when its messages are on their lanes.
    fn is_over(&self, rank: usize, step: usize) -> bool {
        let node = &self.ranks[rank][step];
        let sent = |to: &Rank| {
            let lane = &self.lanes[&(rank as Rank, *to)];
            let at = lane.sends.iter().position(|send| *send == step).expect("the lane has its sends");
            lane.sent > at
        };
        if node.sends.is_empty() { node.done > 0 } else { node.sends.iter().all(sent) }
    }

    fn may_go(&self, rank: usize, step: usize, segment: usize) -> bool {
        if segment >= self.courses[rank].0 as usize {
            return false;
        }
        if self.execution.in_order {
            return step == 0 || self.is_over(rank, step - 1);
        }
        self.ranks[rank][step].conflicts.iter().all(|earlier| self.is_done(rank, *earlier, segment))
    }

    fn send(&mut self, rank: usize, step: usize) -> bool {
        let room = |to: &Rank| {
            let lane = &self.lanes[&(rank as Rank, *to)];
            let (send, segment) = self.execution.message(lane.sent, lane.sends.len());
            lane.sent < lane.sends.len() * self.execution.segments
                && lane.sends[send] == step
                && lane.sent - lane.taken < self.execution.credit
                && self.may_go(rank, step, segment)
        };
        let to = &self.ranks[rank][step].sends;
        let ready: Vec<Rank> = to.iter().copied().filter(room).collect();
        if ready.is_empty() || (self.execution.at_once && ready.len() < to.len()) {
            return false;
        }
        for to in ready {
            let (execution, lane) = (self.execution, self.lane((rank as Rank, to)));
            let (send, segment) = execution.message(lane.sent, lane.sends.len());
            lane.sent += 1;
            let is_free = lane.occupied.insert((send, segment % execution.window));
            self.overwritten += usize::from(!is_free);
        }
        true
    }

    fn receive(&mut self, rank: usize, step: usize) -> bool {
        let node = &self.ranks[rank][step];
        let segment = node.done;
        let arrived = |from: &Rank| {
            let lane = &self.lanes[&(*from, rank as Rank)];
            let (receive, _) = self.execution.message(lane.taken, lane.receives.len());
            lane.sent > lane.taken && lane.receives[receive] == step
        };
        let ready = segment < self.execution.segments && node.receives.iter().all(arrived);
        if !ready || !self.may_go(rank, step, segment) {
            return false;
        }
        for from in &node.receives {
            let lane = self.lanes.get_mut(&(*from, rank as Rank)).expect("a lane of this step");
            let (send, segment) = self.execution.message(lane.taken, lane.receives.len());
            lane.occupied.remove(&(send, segment % self.execution.window));
            lane.taken += 1;
        }
        self.ranks[rank][step].done += 1;
        true
    }
}

impl Node {
    fn conflicts_with(&self, later: &Node) -> bool {
        let touches = |node: &Node, place| node.writes == Some(place) || node.reads.contains(&place);
        self.writes.is_some_and(|place| touches(later, place))
            || later.writes.is_some_and(|place| touches(self, place))
    }
}

fn node(program: &Program, step: &Step) -> Node {
    let (mut reads, mut receives) = (Vec::new(), Vec::new());
    let (writes, sends) = match *step {
        Step::Send { from, to } => {
            reads.push(from);
            (None, program.lanes(to).to_vec())
        }
        Step::Recv { lane, into, .. } => {
            receives.push(lane);
            (Some(into), vec![])
        }
        Step::Copy { from, into } | Step::Encode { from, into } => {
            reads.push(from);
            (Some(into), vec![])
        }
        Step::Decode { from, into, .. } => {
            match from {
                Origin::At(place) => reads.push(place),
                Origin::Head { lane, .. } => receives.push(lane),
            }
            (Some(into), vec![])
        }
        Step::Fold { from, into, .. } => {
            for source in program.sources(from) {
                match source.from {
                    Origin::At(place) => reads.push(place),
                    Origin::Head { lane, .. } => receives.push(lane),
                }
            }
            (Some(into), vec![])
        }
    };
    Node { conflicts: vec![], reads, writes, sends, receives, done: 0 }
}
