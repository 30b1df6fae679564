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
    session::turns::{Heard, Line, Sending, Turns, Words, arrivals, numbered},
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
    /// How many segments are in flight.
    lap: usize,
}

impl Execution {
    const CUT: Execution =
        Execution { segments: 5, credit: 1, in_order: false, at_once: false, in_turns: false, lap: 5 };
    const SERIAL: Execution = Execution { segments: 1, in_order: true, at_once: true, ..Self::CUT };
    /// A lap: there is room for all of its segments.
    const TURNS: Execution = Execution { credit: usize::MAX, in_turns: true, ..Self::CUT };
    const LAPS: Execution = Execution { lap: 2, ..Self::TURNS };

    /// The message of that number on a lane: which of so many sends, and which segment. Those of a lap go send by send.
    fn message(self, number: usize, sends: usize) -> (usize, usize) {
        let first = number / (self.lap * sends) * self.lap;
        let in_lap = self.lap.min(self.segments.saturating_sub(first)).max(1);
        let rest = number % (self.lap * sends);
        (rest / in_lap, first + rest % in_lap)
    }

    /// The number of a message on its lane.
    fn number(self, send: usize, segment: usize, sends: usize) -> usize {
        let first = segment / self.lap * self.lap;
        let in_lap = self.lap.min(self.segments - first);
        first * sends + send * in_lap + segment - first
    }
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
    /// Per rank: the turns in which it sends, and how far it is.
    sending: Vec<(Turns, Sending)>,
    /// The same of receiving, if turns have to be cleared, and what each rank has heard of which.
    receiving: Vec<(Turns, Line)>,
    heard: BTreeMap<(Rank, Rank), Heard>,
    /// Ranks with the same host share memory: their messages have no turns.
    hosts: Vec<u32>,
    lanes: BTreeMap<(Rank, Rank), Lane>,
}

impl Simulation {
    /// Whether a schedule completes.
    fn completes(schedule: &Schedule, execution: Execution) -> bool {
        Self::new(schedule, execution, (0..schedule.ranks()).collect()).run_to_the_end()
    }

    /// Whether a schedule completes whose turns are cleared; nothing if they cannot be.
    fn completes_cleared(schedule: &Verified, execution: Execution, hosts: &[u32]) -> Option<bool> {
        let mut simulation = Self::new(schedule.schedule(), execution, hosts.to_vec());
        for rank in 0..schedule.ranks() {
            let turns = arrivals(schedule, rank, usize::MAX)?;
            let turns = turns.without(|from| simulation.are_mates(rank, from));
            let line = Line::new(&turns, execution.segments as u32, execution.lap as u32);
            simulation.receiving.push((turns, line));
        }
        for rank in 0..schedule.ranks() {
            let (turns, line) = &simulation.receiving[rank as usize];
            simulation.say(rank, line.welcome(turns));
        }
        Some(simulation.run_to_the_end())
    }

    fn new(schedule: &Schedule, execution: Execution, hosts: Vec<u32>) -> Self {
        let mut simulation = Self {
            execution,
            ranks: Vec::new(),
            sending: Vec::new(),
            receiving: Vec::new(),
            heard: BTreeMap::new(),
            hosts,
            lanes: BTreeMap::new(),
        };
        for rank in 0..schedule.ranks() {
            simulation.add(rank, &schedule.program(rank));
        }
        simulation
    }

    fn run_to_the_end(mut self) -> bool {
        while self.sweep() {}
        (0..self.ranks.len()).all(|rank| self.has_ended(rank, self.execution.segments - 1))
    }

    /// Whether a rank is done with a segment.
    fn has_ended(&self, rank: usize, segment: usize) -> bool {
        (0..self.ranks[rank].len()).all(|step| self.is_done(rank, step, segment))
    }

    fn are_mates(&self, one: Rank, other: Rank) -> bool {
        self.hosts.get(one as usize).is_some_and(|host| self.hosts.get(other as usize) == Some(host))
    }

    fn say(&mut self, rank: Rank, words: Words) {
        if let Some((to, turn)) = words.clear {
            self.heard.entry((to, rank)).or_default().clear = Some(turn);
        }
        if let Some((to, turn)) = words.taken {
            self.heard.entry((to, rank)).or_default().taken = Some(turn);
        }
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
            let over_links = node.sends.iter().zip(&node.turns).filter(|(to, _)| !self.are_mates(rank, **to));
            over_links.for_each(|(to, number)| turns.add(*to, *number));
            for from in &node.receives {
                self.lanes.entry((*from, rank)).or_default().receives.push(at);
            }
            nodes.push(node);
        }
        self.ranks.push(nodes);
        let line = Line::new(&turns, self.execution.segments as u32, self.execution.lap as u32);
        self.sending.push((turns, Sending::new(line)));
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
            lane.taken > self.execution.number(at, segment, lane.sends.len())
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

    /// Whether a rank may begin a segment: those to whom it sends are done, as it is, with the one a lap before.
    fn has_begun(&self, rank: usize, segment: usize) -> bool {
        let Some(before) = segment.checked_sub(self.execution.lap) else { return true };
        let mut receivers = self.ranks[rank].iter().flat_map(|node| &node.sends);
        self.has_ended(rank, before) && receivers.all(|to| self.has_ended(*to as usize, before))
    }

    fn may_go(&self, rank: usize, step: usize, segment: usize) -> bool {
        if !self.has_begun(rank, segment) {
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
        let Node { sends: to, turns, .. } = &self.ranks[rank][step];
        let has_turn = |to: &Rank, number: u32| {
            let lane = &self.lanes[&(rank as Rank, *to)];
            let (_, segment) = self.execution.message(lane.sent, lane.sends.len());
            !self.execution.in_turns
                || self.are_mates(rank as Rank, *to)
                || self.has_turn(rank, number, segment)
        };
        let may = to.iter().zip(turns).filter(|(to, number)| room(to) && has_turn(to, **number));
        let ready: Vec<Rank> = may.map(|(to, _)| *to).collect();
        if ready.is_empty() || (self.execution.at_once && ready.len() < to.len()) {
            return false;
        }
        // In turns one message may end what another one had.
        let at_most = if self.execution.in_turns { 1 } else { ready.len() };
        for to in ready.into_iter().take(at_most) {
            self.lanes.get_mut(&(rank as Rank, to)).unwrap().sent += 1;
            if !self.are_mates(rank as Rank, to) {
                self.has_left(rank, to);
            }
        }
        true
    }

    /// Whether it is a message's turn.
    fn has_turn(&self, rank: usize, number: u32, segment: usize) -> bool {
        let (turns, sending) = &self.sending[rank];
        let turn = sending.line.turn();
        let heard = |of: Rank| Some(self.heard.get(&(rank as Rank, of)).copied().unwrap_or_default());
        (turn.lap as usize, turn.number) == (segment / self.execution.lap, number)
            && (self.receiving.is_empty() || sending.awaited(turns, heard).is_none())
    }

    /// A message over a link has left, and is there.
    fn has_left(&mut self, rank: usize, to: Rank) {
        let (turns, sending) = &mut self.sending[rank];
        sending.left(turns);
        if let Some((turns, line)) = self.receiving.get_mut(to as usize) {
            let words = line.came(turns);
            self.say(to, words);
        }
    }

    fn run(&mut self, rank: usize, step: usize) -> bool {
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

#[test]
fn what_is_proved_never_deadlocks() {
    let (mut proved, mut proved_serial, mut refused) = (0, 0, 0);
    let mut serial_only = [0, 0];
    let (mut lost_at_once, mut lost_in_turns, mut proved_in_order) = (0, 0, 0);
    let mut proved_cleared = 0;
    for seed in 0..8000 {
        let schedule = noise(seed);
        let serial = [1, 2].map(|credit| Execution { credit, ..Execution::SERIAL });
        let serial = serial.map(|execution| Simulation::completes(&schedule, execution));
        let cut = [1, 2].map(|credit| Execution { credit, ..Execution::CUT });
        let cut = cut.map(|execution| Simulation::completes(&schedule, execution));
        let at_once = Execution { at_once: true, ..Execution::CUT };
        let at_once = Simulation::completes(&schedule, at_once);
        let in_turns = Simulation::completes(&schedule, Execution::TURNS);
        match verify(schedule, Collective::AllReduce, &Group::of_size(1)) {
            Ok(schedule) => {
                assert_eq!(cut, [true; 2], "seed {seed} deadlocks\n{}", schedule.schedule());
                assert_eq!(schedule.serial(), serial[0], "seed {seed}\n{}", schedule.schedule());
                assert!(in_turns || !schedule.sends_in_order(), "seed {seed}\n{}", schedule.schedule());
                proved_in_order += usize::from(schedule.sends_in_order());
                let laps = Simulation::completes(schedule.schedule(), Execution::LAPS);
                assert!(laps || !schedule.sends_in_order(), "seed {seed}\n{}", schedule.schedule());
                if schedule.sends_in_order() {
                    let cleared = Simulation::completes_cleared(&schedule, Execution::LAPS, &[]);
                    assert_ne!(cleared, Some(false), "seed {seed}\n{}", schedule.schedule());
                    proved_cleared += usize::from(cleared.is_some());
                }
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
    println!("turns may be cleared: {proved_cleared}");
    assert!(proved_cleared > 100);
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
                for execution in at_once.into_iter().chain([Execution::TURNS, Execution::LAPS]) {
                    let completes = Simulation::completes(verified.schedule(), execution);
                    assert!(completes, "{name} {collective} {workers} {execution:?}");
                }
                for hosts in [&[][..], &hosts] {
                    let completes = Simulation::completes_cleared(&verified, Execution::LAPS, hosts);
                    assert_ne!(
                        completes,
                        Some(false),
                        "{name} {collective} {workers} cleared, hosts {hosts:?}"
                    );
                    cleared += usize::from(completes.is_some());
                }
                tried += 1;
            }
        }
    }
    println!("{tried} schedules, {cleared} of them with turns that are cleared");
    assert!(tried > 200 && cleared > 50, "{tried}, {cleared}");
}
