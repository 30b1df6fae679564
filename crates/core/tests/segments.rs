//! What the proof promises about deadlock, tried: random schedules that `verify` accepts never deadlock, however many
//! segments they are cut into and however few messages a lane holds.
//!
//! The schedules are noise around a group of one worker, whose all-reduce is only to finish its own input. What they
//! fold does not matter; who waits for whom does.

use herringbone_core::{
    algorithm::{Algorithm, Layout},
    collective::Collective,
    group::Group,
    schedule::{Cut, Form, Origin, Place, Program, ProgramBuilder, Rank, Schedule, Source, Step},
    session::turns::{Line, Turns, arrivals, numbered},
    verify::{Verified, VerifyError, verify},
};
use std::collections::BTreeMap;

/// How a schedule is executed.
#[derive(Clone, Copy, Debug)]
struct Execution {
    segments: usize,
    /// How many messages a lane holds.
    credit: usize,
    /// Whether a rank's steps run strictly in program order, rather than as soon as conflicts allow.
    in_order: bool,
    /// Whether a send puts a segment on all its lanes at once, rather than on each as soon as it has room.
    at_once: bool,
    /// Whether a rank's messages go in turns.
    in_turns: bool,
    /// Whether turns have to be cleared.
    cleared: bool,
}

impl Execution {
    const CUT: Execution = Execution {
        segments: 5,
        credit: 1,
        in_order: false,
        at_once: false,
        in_turns: false,
        cleared: false,
    };
    const SERIAL: Execution = Execution { segments: 1, in_order: true, at_once: true, ..Self::CUT };
    /// A lap: there is room for all of its segments.
    const TURNS: Execution = Execution { credit: usize::MAX, in_turns: true, ..Self::CUT };
    const CLEARED: Execution = Execution { cleared: true, ..Self::TURNS };
}

/// One direction between two ranks: the steps that send on it and those that receive, and how many segments they have
/// sent and received so far.
#[derive(Default)]
struct Lane {
    sends: Vec<usize>,
    receives: Vec<usize>,
    sent: usize,
    taken: usize,
}

/// A step, as far as waiting goes.
struct Node {
    /// Earlier steps of the rank that conflict with it.
    conflicts: Vec<usize>,
    reads: Vec<Place>,
    writes: Option<Place>,
    sends: Vec<Rank>,
    /// Per receiver: the number of the turn.
    turns: Vec<u32>,
    receives: Vec<Rank>,
    /// Segments done, but for sends: what they have done is on their lanes.
    done: usize,
}

struct Simulation {
    execution: Execution,
    ranks: Vec<Vec<Node>>,
    /// Per rank: its turns, and whose it is.
    turns: Vec<(Turns, Line)>,
    lanes: BTreeMap<(Rank, Rank), Lane>,
}

impl Simulation {
    /// Whether a schedule completes.
    fn completes(schedule: &Schedule, execution: Execution) -> bool {
        let mut simulation = Self { execution, ranks: Vec::new(), turns: Vec::new(), lanes: BTreeMap::new() };
        for rank in 0..schedule.ranks() {
            simulation.add(rank, &schedule.program(rank));
        }
        while simulation.sweep() {}
        let last = execution.segments - 1;
        let done = |(rank, nodes): (usize, &Vec<Node>)| {
            (0..nodes.len()).all(|step| simulation.is_done(rank, step, last))
        };
        simulation.ranks.iter().enumerate().all(done)
    }

    fn add(&mut self, rank: Rank, program: &Program) {
        let mut nodes: Vec<Node> = Vec::new();
        let mut turns = Turns::default();
        let mut numbers = numbered(program).into_iter();
        for (at, step) in program.steps().iter().enumerate() {
            let mut node = node(program, step);
            node.conflicts = (0..at).filter(|earlier| nodes[*earlier].conflicts_with(&node)).collect();
            for to in &node.sends {
                self.lanes.entry((rank, *to)).or_default().sends.push(at);
            }
            node.turns = numbers.by_ref().take(node.sends.len()).map(|(_, number)| number).collect();
            node.sends.iter().zip(&node.turns).for_each(|(to, number)| turns.add(*to, *number));
            for from in &node.receives {
                self.lanes.entry((*from, rank)).or_default().receives.push(at);
            }
            nodes.push(node);
        }
        self.ranks.push(nodes);
        let line = Line::new(&turns, self.execution.segments as u32, self.execution.segments as u32);
        self.turns.push((turns, line));
    }

    /// Lets every step go as far as it can; whether any went.
    fn sweep(&mut self) -> bool {
        let mut moved = false;
        for rank in 0..self.ranks.len() {
            for step in 0..self.ranks[rank].len() {
                moved |= if self.ranks[rank][step].sends.is_empty() {
                    self.run(rank, step)
                } else {
                    self.send(rank, step)
                };
            }
        }
        moved
    }

    /// A segment of a step is done; of a send, when it has been taken everywhere.
    fn is_done(&self, rank: usize, step: usize, segment: usize) -> bool {
        let node = &self.ranks[rank][step];
        let taken = |to: &Rank| {
            let lane = &self.lanes[&(rank as Rank, *to)];
            let at = lane.sends.iter().position(|send| *send == step).expect("the lane has its sends");
            lane.taken > at * self.execution.segments + segment
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
        if self.execution.in_order {
            return step == 0 || self.is_over(rank, step - 1);
        }
        self.ranks[rank][step].conflicts.iter().all(|earlier| self.is_done(rank, *earlier, segment))
    }

    fn send(&mut self, rank: usize, step: usize) -> bool {
        let segments = self.execution.segments;
        let room = |to: &Rank| {
            let lane = &self.lanes[&(rank as Rank, *to)];
            let turn = lane.sends.get(lane.sent / segments) == Some(&step);
            turn && lane.sent - lane.taken < self.execution.credit
                && self.may_go(rank, step, lane.sent % segments)
        };
        let Node { sends: to, turns, .. } = &self.ranks[rank][step];
        let whose = self.turns[rank].1.turn().number;
        let has_turn = |number: &u32| !self.execution.in_turns || *number == whose;
        let is_clear = |to: &Rank| !self.execution.cleared || self.clears(*to, rank as Rank, whose);
        let may = to.iter().zip(turns).filter(|(to, number)| room(to) && has_turn(number) && is_clear(to));
        let ready: Vec<Rank> = may.map(|(to, _)| *to).collect();
        if ready.is_empty() || (self.execution.at_once && ready.len() < to.len()) {
            return false;
        }
        for to in ready {
            self.lanes.get_mut(&(rank as Rank, to)).unwrap().sent += 1;
            let (turns, line) = &mut self.turns[rank];
            line.pass(turns);
        }
        true
    }

    /// Whether a rank has all that others than `sender` send to it in earlier turns. What was sent is there.
    fn clears(&self, rank: Rank, sender: Rank, number: u32) -> bool {
        let others = (0..self.ranks.len()).filter(|other| *other != sender as usize);
        others.into_iter().all(|other| {
            let (_, line) = &self.turns[other];
            let mut lanes = self.ranks[other].iter().flat_map(|node| node.sends.iter().zip(&node.turns));
            lanes.all(|(to, turn)| {
                *to != rank || *turn >= number || *turn < line.turn().number || line.is_over()
            })
        })
    }

    fn run(&mut self, rank: usize, step: usize) -> bool {
        let node = &self.ranks[rank][step];
        let segment = node.done;
        let arrived = |from: &Rank| {
            let lane = &self.lanes[&(*from, rank as Rank)];
            let turn = lane.receives.get(lane.taken / self.execution.segments) == Some(&step);
            turn && lane.sent > lane.taken
        };
        let ready = segment < self.execution.segments && node.receives.iter().all(arrived);
        if !ready || !self.may_go(rank, step, segment) {
            return false;
        }
        for from in &node.receives {
            self.lanes.get_mut(&(*from, rank as Rank)).unwrap().taken += 1;
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
        Step::Copy { from, into } => {
            reads.push(from);
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
    Node { conflicts: vec![], reads, writes, sends, turns: vec![], receives, done: 0 }
}

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.below(at + 1));
        }
    }
}

/// What a rank is to do, in some order.
enum Item {
    Send(Vec<Rank>),
    Receive(Rank),
}

/// A random schedule of one worker and some reducers.
fn noise(seed: u64) -> Schedule {
    let mut random = Random(seed);
    let ranks = 2 + random.below(3);
    let slots = 1 + random.below(4);
    let mut items: Vec<Vec<Item>> = (0..ranks).map(|_| Vec::new()).collect();
    for _ in 0..2 + random.below(7) {
        let mut order: Vec<Rank> = (0..ranks as Rank).collect();
        random.shuffle(&mut order);
        let receivers = 1 + random.below(ranks.min(3) - 1);
        let to = order[1..=receivers].to_vec();
        to.iter().for_each(|to| items[*to as usize].push(Item::Receive(order[0])));
        items[order[0] as usize].push(Item::Send(to));
    }
    let programs = items.into_iter().enumerate().map(|(rank, mut items)| {
        random.shuffle(&mut items);
        let mut program = ProgramBuilder::new();
        let slots: Vec<Place> = (0..slots).map(|_| program.slot(Form::Acc)).collect();
        fill(&mut program, rank, ranks, &slots);
        write(&mut program, &items, &slots, &mut random);
        if rank == 0 {
            program.fold(0, &[(0, Origin::At(Place::User(0)))], Place::User(0), true);
        }
        program.build()
    });
    Schedule::listed(1, Cut::Even { chunks: 1 }, programs.collect())
}

/// Gives every slot of every rank a value.
fn fill(program: &mut ProgramBuilder, rank: usize, ranks: usize, slots: &[Place]) {
    for slot in slots {
        if rank == 0 {
            program.fold(0, &[(0, Origin::At(Place::User(0)))], *slot, false);
            program.send(*slot, 1..ranks as Rank);
        } else {
            program.recv(0, 0, *slot);
        }
    }
}

fn write(program: &mut ProgramBuilder, items: &[Item], slots: &[Place], random: &mut Random) {
    let mut heads: Vec<Rank> = Vec::new();
    for (at, item) in items.iter().enumerate() {
        let (slot, other) = (slots[random.below(slots.len())], slots[random.below(slots.len())]);
        match item {
            Item::Send(to) => {
                program.send(slot, to.iter().copied());
            }
            Item::Receive(lane) => {
                heads.push(*lane);
                let joined = matches!(items.get(at + 1), Some(Item::Receive(next)) if !heads.contains(next));
                if joined && random.below(2) == 0 {
                    continue;
                }
                if heads.len() == 1 && random.below(2) == 0 {
                    program.recv(*lane, 0, slot);
                } else {
                    let first = Source { from: Origin::At(other), merges: 0 };
                    let rest = heads.iter().map(|lane| Source {
                        from: Origin::Head { lane: *lane, form: Form::Acc },
                        merges: 1,
                    });
                    program.fold_shaped(0, core::iter::once(first).chain(rest), slot, false);
                }
                heads.clear();
            }
        }
    }
}

/// Whether a schedule's turns may be cleared.
fn are_cleared(schedule: &Verified) -> bool {
    arrivals(schedule, 0, usize::MAX).is_some()
}

#[test]
fn what_is_proved_never_deadlocks() {
    let (mut proved, mut proved_serial, mut refused) = (0, 0, 0);
    let mut serial_only = [0, 0];
    let (mut lost_at_once, mut lost_in_turns, mut proved_in_order) = (0, 0, 0);
    let (mut proved_cleared, mut lost_cleared) = (0, 0);
    for seed in 0..8000 {
        let schedule = noise(seed);
        let serial = [1, 2].map(|credit| Execution { credit, ..Execution::SERIAL });
        let serial = serial.map(|execution| Simulation::completes(&schedule, execution));
        let cut = [1, 2].map(|credit| Execution { credit, ..Execution::CUT });
        let cut = cut.map(|execution| Simulation::completes(&schedule, execution));
        let at_once = Execution { at_once: true, ..Execution::CUT };
        let at_once = Simulation::completes(&schedule, at_once);
        let in_turns = Simulation::completes(&schedule, Execution::TURNS);
        let cleared = Simulation::completes(&schedule, Execution::CLEARED);
        match verify(schedule, Collective::AllReduce, &Group::of_size(1)) {
            Ok(schedule) => {
                assert_eq!(cut, [true; 2], "seed {seed} deadlocks\n{}", schedule.schedule());
                assert_eq!(schedule.serial(), serial[0], "seed {seed}\n{}", schedule.schedule());
                assert!(in_turns || !schedule.sends_in_order(), "seed {seed}\n{}", schedule.schedule());
                proved_in_order += usize::from(schedule.sends_in_order());
                let clears = schedule.sends_in_order() && are_cleared(&schedule);
                assert!(cleared || !clears, "seed {seed}\n{}", schedule.schedule());
                proved_cleared += usize::from(clears);
                lost_cleared += usize::from(in_turns && !cleared);
                proved += 1;
                lost_in_turns += usize::from(!in_turns);
                proved_serial += usize::from(serial[0]);
                lost_at_once += usize::from(!at_once);
            }
            Err(VerifyError::Deadlock { .. }) => {
                refused += 1;
                for credit in 0..2 {
                    serial_only[credit] += usize::from(serial[credit] && !cut[credit]);
                }
            }
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }
    println!("{proved} proved, {proved_serial} of them serial; {refused} refused as deadlocks");
    println!("serial with 1, 2 messages a lane, but no longer when cut: {serial_only:?}");
    println!(
        "proved, but not for executors that hold back a send until all its lanes have room: {lost_at_once}"
    );
    assert!(proved_serial > 2000 && proved > proved_serial + 1000 && refused > 2000);
    println!("proved to send in order: {proved_in_order}; not to complete in turns: {lost_in_turns}");
    println!("turns may be cleared: {proved_cleared}; deadlocked by it: {lost_cleared}");
    assert!(proved_cleared > 100 && lost_cleared > 0);
    assert!(serial_only.iter().all(|schedules| *schedules > 500) && lost_at_once > 0 && lost_in_turns > 0);
}

/// Rank 0 may only overwrite s0 once rank 1 has taken it, and rank 1 may only take it once something has come that
/// rank 0 sends after overwriting it. In program order a lane that holds the one message hides this; of a message
/// that is cut, no lane need hold all.
#[test]
fn a_proof_of_program_order_would_not_do() {
    let text = "schedule workers=1 reducers=3 cut=even:1
        rank 0
            slots acc acc acc
            fold c0 s0 = u0
            send s0 -> 1 2
            send s0 -> 1            # taken by rank 1 last
            recv c0 s0 <- 2
            recv c0 s1 <- 2         # all of the message before it has been received
            send s1 -> 3
            finish c0 u0 = u0
        rank 1
            slots acc
            recv c0 s0 <- 0
            recv c0 s0 <- 3
            recv c0 s0 <- 0
        rank 2
            slots acc
            recv c0 s0 <- 0
            send s0 -> 0
            send s0 -> 0
        rank 3
            slots acc
            recv c0 s0 <- 0
            send s0 -> 1";
    let schedule = Schedule::parse(text).unwrap();
    assert!(Simulation::completes(&schedule, Execution::SERIAL));
    assert!(!Simulation::completes(&schedule, Execution::CUT));
    let refused = verify(schedule, Collective::AllReduce, &Group::of_size(1));
    assert!(matches!(refused, Err(VerifyError::Deadlock { .. })), "{refused:?}");
}

/// More than is proved of every schedule: the library's also complete if a send waits until all its lanes have room,
/// as where one write in shared memory has many readers, or if messages go in turns, as over links.
#[test]
fn the_librarys_sends_may_go_to_all_at_once_or_in_turns() {
    let collectives = [
        Collective::AllReduce,
        Collective::Reduce { root: 1 },
        Collective::Broadcast { root: 1 },
        Collective::ReduceScatter,
        Collective::AllGather,
        Collective::Barrier,
    ];
    let algorithms = Algorithm::all().map(|algorithm| algorithm.to_string());
    let others = [
        "radix(2,2,2)",
        "radix(4,2)",
        "radix(16;2,2,2)",
        "hierarchical(radix,doubling)",
        "hierarchical(radix,reduction_server)",
    ];
    let others = others.map(String::from);
    let (mut tried, mut cleared) = (0, 0);
    for workers in 2..=12 {
        let hosts: Vec<u32> = (0..workers).map(|rank| rank / 2).collect();
        let layout = Layout { reducers: 2, hosts: &hosts };
        for name in algorithms.iter().chain(&others) {
            let algorithm: Algorithm = name.parse().unwrap();
            for collective in collectives {
                let schedule = algorithm.schedule(collective, &Group::of_size(workers), &layout);
                let Ok(schedule) = schedule else { continue };
                let at_once = [1, 2].map(|credit| Execution { credit, at_once: true, ..Execution::CUT });
                let verified = verify(schedule, collective, &Group::of_size(workers)).unwrap();
                let clears = are_cleared(&verified).then_some(Execution::CLEARED);
                for execution in at_once.into_iter().chain([Execution::TURNS]).chain(clears) {
                    let completes = Simulation::completes(verified.schedule(), execution);
                    assert!(completes, "{name} {collective} {workers} {execution:?}");
                }
                (tried, cleared) = (tried + 1, cleared + usize::from(clears.is_some()));
            }
        }
    }
    println!("{tried} schedules, {cleared} of them with turns that are cleared");
    assert!(tried > 200 && cleared > 50, "{tried}, {cleared}");
}
