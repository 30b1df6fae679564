//! The group states of a group and its hub, in whatever order things happen: ranks that make the group late, calls that differ, ranks
//! that give up, close, abort or die, a reducer that is lost, the hub's death.

use crate::{a_hub, call};
use herringbone_core::{
    session::{
        Cause, GroupRules,
        control::{Death, Message},
        fence::{Check, Directed, Issued, Member, NotIssued},
        group_state::{Departure, GroupState, Output, Outputs},
        hub::Hub,
        membership::MemberId,
        recovery::{Calls, LostReducer, Resume, Suspect},
    },
    wire::Fingerprint,
};
use proptest::{
    collection::vec,
    prelude::*,
    test_runner::{TestRng, TestRunner},
};
use std::collections::{BTreeMap, VecDeque};

const GROUP: u32 = 5;

/// What comes to a rank by way of rank 0.
#[derive(Debug)]
enum Packet {
    Hub(Message),
    Dead(u32),
}

/// What happens next, to some rank.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// A rank that has not made the group makes it.
    Make,
    Call,
    CallOther,
    /// A rank's oldest operation goes on, as far as it can.
    GoOn,
    ToHub,
    FromHub,
    GiveUp,
    Close {
        waits: bool,
    },
    Abort,
    Die,
    LoseReducer,
}

#[derive(Default)]
struct Out(Vec<Output>);

impl Outputs for Out {
    fn put(&mut self, group: u32, output: Output) {
        assert_eq!(group, GROUP);
        self.0.push(output);
    }
}

struct Process {
    state: GroupState,
    is_alive: bool,
    is_made: bool,
    /// Ranks whose deaths it has heard of before it made the group.
    dead: Vec<u32>,
    running: VecDeque<Issued>,
    to_hub: VecDeque<Message>,
    from_hub: VecDeque<Packet>,
    waits: bool,
    /// Calls that took a number.
    counted: u64,
}

/// The ranks of a group.
#[derive(Clone, Copy, Debug)]
struct Ranks {
    count: u32,
    /// The number of the first call, which is not 0 in a group that goes on for another one.
    first: u64,
    /// Those whose bit is set make the group later.
    late: u32,
}

struct World {
    ranks: Ranks,
    hub: Hub,
    processes: Vec<Process>,
    /// The hashes of operations, by generation and number, and who issued them.
    issued: BTreeMap<(u32, u64), BTreeMap<u32, u64>>,
}

impl World {
    fn new(ranks: Ranks, rules: GroupRules) -> Self {
        let members: Vec<u32> = (0..ranks.count).collect();
        let process = |rank| Process {
            state: GroupState::of_worker(Member::new(GROUP, rank, Vec::new())).with_rules(rules),
            is_alive: true,
            is_made: false,
            dead: Vec::new(),
            running: VecDeque::new(),
            to_hub: VecDeque::new(),
            from_hub: VecDeque::new(),
            waits: false,
            counted: ranks.first,
        };
        let processes = members.iter().map(|rank| process(*rank)).collect();
        let mut hub = a_hub();
        hub.receive(0, Message::GroupInfo { group: GROUP, generation: 0, members });
        let mut world = Self { ranks, hub, processes, issued: BTreeMap::new() };
        (0..ranks.count).filter(|rank| ranks.late >> rank & 1 == 0).for_each(|rank| world.make(rank));
        world
    }

    /// A rank makes the group, of which it may have heard before.
    fn make(&mut self, rank: u32) {
        let Ranks { count, first, .. } = self.ranks;
        let process = &mut self.processes[rank as usize];
        if std::mem::replace(&mut process.is_made, true) {
            return;
        }
        let made = Member::new(GROUP, rank, (0..count).collect()).starting_at(first);
        let known = std::mem::replace(&mut process.state, GroupState::of_reducer(GROUP, 0));
        process.state = known.made(GroupState::of_worker(made));
        let dead = std::mem::take(&mut process.dead);
        dead.into_iter().for_each(|dead| self.lose(rank, dead));
        if let Some(resume) = self.processes[rank as usize].state.take_early_resume() {
            self.with(rank, |state, _| state.resume(&resume));
        }
    }

    fn alive(&self) -> Vec<u32> {
        let ranks = 0..self.processes.len() as u32;
        ranks.filter(|rank| self.processes[*rank as usize].is_alive).collect()
    }

    /// Does something with a state, and then what it wants done.
    fn with<R>(&mut self, rank: u32, f: impl FnOnce(&mut GroupState, &mut Out) -> R) -> R {
        let mut out = Out::default();
        let process = &mut self.processes[rank as usize];
        let result = f(&mut process.state, &mut out);
        for output in out.0 {
            match output {
                Output::Tell(message) => process.to_hub.push_back(message),
                Output::TellWorker(..) => panic!("it is no reducer"),
                Output::Fail(_) | Output::Settled(_) => process.running.clear(),
                Output::After(_) => process.waits = true,
                Output::Leave => {}
            }
        }
        self.leave(rank);
        result
    }

    /// A rank that has closed the group leaves it as soon as it may.
    fn leave(&mut self, rank: u32) {
        let Process { state, running, to_hub, .. } = &mut self.processes[rank as usize];
        if state.is_closed() && !state.has_left() && running.is_empty() {
            let mut out = Out::default();
            let departure = state.leave(true, &mut out);
            assert_eq!(state.has_left(), departure != Departure::Stays);
            to_hub.extend(out.0.into_iter().filter_map(|output| match output {
                Output::Tell(message) => Some(message),
                _ => None,
            }));
        }
    }

    fn direct(&mut self, messages: Vec<Directed>) {
        for Directed { to, message } in messages {
            self.processes[to as usize].from_hub.push_back(Packet::Hub(message));
        }
    }

    fn happen(&mut self, event: Event, rank: u32) {
        let Process { is_alive, is_made, .. } = self.processes[rank as usize];
        let needs_no_group = matches!(event, Event::Make | Event::ToHub | Event::FromHub | Event::Die);
        if !is_alive || !is_made && !needs_no_group {
            return;
        }
        match event {
            Event::Make => self.make(rank),
            Event::Call => self.call(rank, call()),
            Event::CallOther => self.call(rank, Fingerprint { count: 1001, ..call() }),
            Event::GoOn => drop(self.go_on(rank)),
            Event::ToHub => drop(self.hub_hears(rank)),
            Event::FromHub => drop(self.hears_hub(rank)),
            Event::GiveUp => self.give_up(rank),
            Event::Close { waits } if !self.processes[rank as usize].state.is_closed() => {
                self.with(rank, |state, out| {
                    if waits {
                        state.await_close_check();
                    }
                    state.close(out);
                });
            }
            Event::Abort if !self.processes[rank as usize].state.has_left() => {
                self.processes[rank as usize].running.clear();
                self.with(rank, |state, out| state.abort(true, out));
            }
            Event::Close { .. } | Event::Abort => {}
            Event::Die => self.die(rank),
            Event::LoseReducer => {
                let id = MemberId::new(99);
                let lost = LostReducer { id, address: "a:1".to_owned(), reason: "gone".to_owned() };
                let members = (0..self.processes.len() as u32).collect();
                let suspect = Message::Suspect(Suspect { group: GROUP, members, lost });
                self.processes[rank as usize].to_hub.push_back(suspect);
            }
        }
    }

    /// Whether a rank goes on with calls in this group.
    fn calls(&self, rank: u32) -> bool {
        let Process { state, is_alive, is_made, .. } = &self.processes[rank as usize];
        *is_alive && *is_made && !state.is_closed() && state.successor().is_none()
    }

    fn call(&mut self, rank: u32, called: Fingerprint) {
        if !self.calls(rank) {
            return;
        }
        let issued = self.with(rank, |state, out| state.issue(called, false, out));
        let process = &mut self.processes[rank as usize];
        match issued {
            Ok(issued) => {
                let Issued { generation, hash, fingerprint } = issued;
                assert_eq!((generation, fingerprint.sequence), (process.state.generation(), process.counted));
                process.counted += 1;
                process.running.push_back(issued);
                self.issued.entry((generation, fingerprint.sequence)).or_default().insert(rank, hash);
            }
            Err(NotIssued::Counted(issued, _)) => {
                assert_eq!(issued.fingerprint.sequence, process.counted);
                process.counted += 1;
            }
            Err(NotIssued::Failed(_)) => assert!(process.state.failure().is_some()),
            Err(NotIssued::Frozen) => {}
        }
    }

    /// A rank's oldest operation ends if all ranks have come to it, and is disputed if one has called something else. Returns
    /// whether anything came of it.
    fn go_on(&mut self, rank: u32) -> bool {
        let Process { state, running, .. } = &self.processes[rank as usize];
        let Some(Issued { generation, hash, fingerprint }) = running.front().copied() else { return false };
        assert_eq!(generation, state.generation(), "a new generation begins with nothing under way");
        let sequence = fingerprint.sequence;
        let others = &self.issued[&(generation, sequence)];
        if let Some(differs) = others.values().copied().find(|other| *other != hash) {
            assert_eq!(state.check(sequence, differs), Check::Differs);
            let phase = state.member().map(Member::phase);
            self.with(rank, |state, out| state.dispute_frame(sequence, rank, out));
            return self.processes[rank as usize].state.member().map(Member::phase) != phase;
        }
        let ends = others.len() == self.processes.len() && state.may_run(sequence, false);
        if ends {
            self.processes[rank as usize].running.pop_front();
            self.with(rank, |state, out| {
                state.complete(sequence, true, out);
                state.ended(out);
            });
        }
        ends
    }

    fn hub_hears(&mut self, rank: u32) -> bool {
        let Some(message) = self.processes[rank as usize].to_hub.pop_front() else { return false };
        if self.processes[0].is_alive {
            let messages = self.hub.receive(rank, message);
            self.direct(messages);
        }
        true
    }

    fn hears_hub(&mut self, rank: u32) -> bool {
        let process = &mut self.processes[rank as usize];
        let Some(packet) = process.from_hub.pop_front() else { return false };
        match packet {
            Packet::Dead(dead) if !process.is_made => process.dead.push(dead),
            Packet::Hub(Message::Resume(resume)) if !process.is_made => {
                assert!(process.state.resume_early(resume), "it was asked before");
            }
            Packet::Dead(dead) => self.lose(rank, dead),
            Packet::Hub(Message::Recover { .. }) => {
                self.with(rank, |state, out| state.suspend(Vec::new(), out));
            }
            Packet::Hub(Message::Resume(resume)) => {
                let is_new = self.with(rank, |state, _| state.resume(&resume));
                assert!(is_new, "the hub decides once");
            }
            Packet::Hub(message) if process.is_made => {
                self.with(rank, |state, out| state.receive(&message, out));
            }
            Packet::Hub(message) => {
                drop(self.with(rank, |state, out| state.receive_early(&message, true, out)))
            }
        }
        true
    }

    fn lose(&mut self, rank: u32, dead: u32) {
        if dead == 0 {
            self.with(rank, |state, out| state.lose_hub(out));
        }
        if !self.with(rank, |state, out| state.lose(dead, "it died", out)) {
            return;
        }
        let needs = |issued: &Issued| {
            let others = &self.issued[&(issued.generation, issued.fingerprint.sequence)];
            !others.contains_key(&dead)
        };
        let running = &self.processes[rank as usize].running;
        let needing: Vec<u64> =
            running.iter().filter(|issued| needs(issued)).map(|issued| issued.fingerprint.sequence).collect();
        if !needing.is_empty() {
            let running = &mut self.processes[rank as usize].running;
            running.retain(|issued| !needing.contains(&issued.fingerprint.sequence));
            self.with(rank, |state, out| state.fail_needing(needing, out));
        }
    }

    /// A rank has waited in its oldest operation for its timeout.
    fn give_up(&mut self, rank: u32) {
        let Some(Issued { fingerprint: operation, .. }) =
            self.processes[rank as usize].running.front().copied()
        else {
            return;
        };
        let cause = Cause::Timeout { rank, operation, milliseconds: 1, waiting_for: Vec::new() };
        self.with(rank, |state, out| state.dispute(cause, out));
    }

    fn die(&mut self, rank: u32) {
        if self.alive().len() < 3 {
            return;
        }
        let process = &mut self.processes[rank as usize];
        (process.is_alive, process.running) = (false, VecDeque::new());
        for other in self.alive() {
            self.processes[other as usize].from_hub.push_back(Packet::Dead(rank));
        }
        if self.processes[0].is_alive {
            // What it said before is heard.
            while self.hub_hears(rank) {}
            let messages = self.hub.lose(rank, &Death::Exited);
            self.direct(messages);
        }
    }

    /// Lets all messages arrive and everything end, as if time passed whenever nothing moves.
    fn come_to_the_end(&mut self) {
        self.alive().into_iter().for_each(|rank| self.make(rank));
        for _ in 0..1000 {
            let alive = self.alive();
            let step = |world: &mut Self, rank: u32| {
                world.go_on(rank) | world.hub_hears(rank) | world.hears_hub(rank)
            };
            if alive.iter().fold(false, |moved, rank| moved | step(self, *rank)) {
                continue;
            }
            let Some(rank) = alive.into_iter().find(|rank| self.time_passes(*rank)) else { return };
            self.leave(rank);
        }
        panic!("it does not come to its end");
    }

    /// Time passes for a rank that can do nothing else. Returns whether it had waited for that.
    fn time_passes(&mut self, rank: u32) -> bool {
        let process = &mut self.processes[rank as usize];
        if std::mem::take(&mut process.waits) {
            self.with(rank, |state, out| state.time_has_passed(out));
        } else if !process.running.is_empty() {
            self.give_up(rank);
            return !self.processes[rank as usize].to_hub.is_empty();
        } else {
            return false;
        }
        true
    }

    /// What holds once nothing moves any more.
    fn check(&self) {
        let alive: Vec<&Process> = self.processes.iter().filter(|process| process.is_alive).collect();
        for Process { state, running, counted, .. } in &alive {
            assert!(
                state.replaced().is_none_or(|(from, _)| *counted <= from),
                "more calls than were told: {state:?}"
            );
            assert!(running.is_empty(), "something is still under way: {state:?}");
            assert!(state.has_left() || !state.is_closed(), "it cannot leave: {state:?}");
            assert!(state.is_closed() || state.is_over() || !state.is_fenced(), "it is fenced: {state:?}");
        }
        let of_group = |process: &&&Process| {
            let Process { state, .. } = process;
            state.failure().is_none() && !state.is_closed()
        };
        let whole: Vec<&GroupState> = alive.iter().filter(of_group).map(|process| &process.state).collect();
        for (one, next) in whole.iter().zip(whole.iter().skip(1)) {
            assert_eq!(one.generation(), next.generation());
            assert_eq!(one.replaced(), next.replaced());
        }
    }
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        5 => Just(Event::Make),
        20 => Just(Event::Call),
        1 => Just(Event::CallOther),
        20 => Just(Event::GoOn),
        20 => Just(Event::ToHub),
        20 => Just(Event::FromHub),
        1 => Just(Event::GiveUp),
        1 => any::<bool>().prop_map(|waits| Event::Close { waits }),
        1 => Just(Event::Abort),
        1 => Just(Event::Die),
        1 => Just(Event::LoseReducer),
    ]
}

/// The ranks, and what happens to which of them.
fn run() -> impl Strategy<Value = (Ranks, Vec<(Event, u32)>)> {
    let late = prop_oneof![Just(0), 0u32..16];
    let ranks = (2u32..5, prop_oneof![Just(0), 1u64..4], late);
    let ranks = ranks.prop_map(|(count, first, late)| Ranks { count, first, late });
    (ranks, vec((event(), 0u32..5), 0..120))
}

/// Has all of this happen in a group that follows these rules, and checks what has come of it.
fn comes_into_step(ranks: Ranks, events: Vec<(Event, u32)>, rules: GroupRules) {
    let mut world = World::new(ranks, rules);
    let ranks = ranks.count;
    for (event, rank) in events {
        world.happen(event, rank % ranks);
    }
    world.come_to_the_end();
    world.check();
    // If nobody is gone, all make the same number of calls.
    if (0..ranks).all(|rank| world.calls(rank)) {
        let most = world.processes.iter().map(|process| process.counted).max().unwrap_or_default();
        for _ in 0..=most {
            for rank in 0..ranks {
                if world.processes[rank as usize].counted <= most {
                    world.call(rank, call());
                }
            }
        }
        world.come_to_the_end();
        world.check();
        let counted: Vec<u64> = world.processes.iter().map(|process| process.counted).collect();
        let is_over = world.processes.iter().any(|process| process.state.failure().is_some());
        assert!(is_over || counted.iter().all(|calls| *calls == most + 1), "{counted:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn whatever_happens_a_group_comes_back_into_step_or_is_over((ranks, events) in run()) {
        comes_into_step(ranks, events, GroupRules::DEFAULT);
    }
}

/// Else what the test above checks would be of no use.
#[test]
fn a_rank_that_calls_after_it_has_said_how_many_calls_it_has_made_is_found() {
    let rules = GroupRules { stands_still: false, ..GroupRules::DEFAULT };
    let config =
        ProptestConfig { max_shrink_iters: 0, failure_persistence: None, ..ProptestConfig::with_cases(2000) };
    let rng = TestRng::deterministic_rng(config.rng_algorithm);
    let found = TestRunner::new_with_rng(config, rng).run(&run(), |(ranks, events)| {
        comes_into_step(ranks, events, rules);
        Ok(())
    });
    assert!(found.is_err());
}

/// Else a rank that makes a group late, after two changes of its reducers, would make its calls in a group that the others have
/// left, and all would wait.
#[test]
fn a_group_that_was_asked_about_before_it_was_made_begins_with_its_own_first_call() {
    let mut out = Out::default();
    let mut known = GroupState::of_worker(Member::new(GROUP, 1, Vec::new()));
    known.suspend(Vec::new(), &mut out);
    let calls = Calls { generation: 0, next: 3, hashes: Vec::new() };
    let (lost, gained, operations) = (Vec::new(), vec![MemberId::new(9)], Vec::new());
    let resume = Resume { group: GROUP, calls, lost, gained, operations };
    assert!(known.resume_early(resume.clone()));
    let made = Member::new(GROUP, 1, vec![0, 1]).starting_at(3);
    let mut made = known.made(GroupState::of_worker(made));
    assert_eq!(made.take_early_resume(), Some(resume.clone()));
    assert!(made.resume(&resume));
    assert_eq!((made.next(), made.successor().is_some()), (3, true), "it calls nothing in it");
}

/// Else the numbers of its calls would go back, where nobody lives who could tell the hub how far they had come.
#[test]
fn a_group_whose_members_all_made_it_late_goes_on_with_its_own_first_call() {
    let made = Member::new(GROUP, 1, vec![0, 1]).starting_at(3);
    let mut made = GroupState::of_worker(Member::new(GROUP, 1, Vec::new())).made(GroupState::of_worker(made));
    let (calls, gained) = (Calls::default(), vec![MemberId::new(9)]);
    let resume = Resume { group: GROUP, calls, lost: Vec::new(), gained, operations: Vec::new() };
    assert!(made.resume(&resume));
    assert_eq!(made.replaced().map(|(from, _)| from), Some(3));
}

/// Else a rank that needs nothing of the lost one would wait for others that know of the loss and have left since.
#[test]
fn a_rank_that_knows_of_a_loss_gives_up_some_time_after_the_hub_has_left() {
    let mut out = Out::default();
    let mut state = GroupState::of_worker(Member::new(GROUP, 1, vec![0, 1, 2]));
    state.issue(call(), false, &mut out).unwrap();
    assert!(state.lose(2, "it died", &mut out));
    state.lose_hub(&mut out);
    assert!(matches!(out.0[..], [Output::After(_)]), "{:?}", out.0);
    assert!(!state.is_over());
    state.time_has_passed(&mut out);
    assert!(state.is_over());
}
