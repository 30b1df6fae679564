//! A job of real watches, a real hub and real group states, without engines. What happens to them comes in any order: messages take
//! as long as they like, processes end, hang, leave and abort, links break where some see it and others do not, and calls differ.
//!
//! In place of engines there are [operations](worker) of one message per rank, which go through a reducer if there is one.

mod checks;
mod reducer;
mod scenario;
mod worker;

use crate::{a_roster, simulation::Rng};
use herringbone_core::{
    group::Rank,
    session::{
        GroupRules,
        control::Message,
        membership::{MemberId, Roster},
        recovery::{LostReducer, Suspect},
        watch::TICK,
    },
};
use proptest::{
    prelude::*,
    test_runner::{RngAlgorithm, TestRng, TestRunner},
};
use reducer::Reducer;
use scenario::{Scenario, Trouble, any_scenario};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};
use worker::{Frame, State, Worker};

/// After so long without trouble nobody waits for anything.
const LIMIT: Duration = Duration::from_secs(60);
/// After so long it is known what went wrong.
const KNOWN: Duration = Duration::from_secs(8);
/// For so long messages may be on their way while time passes.
const DELAY: Duration = Duration::from_secs(1);

/// A process, or one of its threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    /// The control thread of a rank.
    Control(Rank),
    /// The engine of a rank.
    Engine(Rank),
    /// A reducer, by its place.
    Reducer(usize),
}

/// What is on its way.
#[derive(Clone, Debug)]
enum Parcel {
    Control(Message),
    /// The other end of a control connection was closed.
    Closed,
    /// A message of an operation.
    Data(Frame),
    /// A data link broke. Whether this end has seen damage.
    Broken(bool),
    /// From an engine to its control thread: a link broke.
    LinkBroke(MemberId, bool),
}

/// All that is on its way. Each pipe keeps its order.
#[derive(Debug, Default)]
struct Pipes(BTreeMap<(End, End), VecDeque<Parcel>>);

impl Pipes {
    fn send(&mut self, from: End, to: End, parcel: Parcel) {
        self.0.entry((from, to)).or_default().push_back(parcel);
    }

    fn take(&mut self, from: End, to: End) -> Option<Parcel> {
        self.0.get_mut(&(from, to))?.pop_front()
    }
}

/// What is the same for all.
#[derive(Debug)]
struct Job {
    scenario: Scenario,
    rules: GroupRules,
    roster: Arc<Roster>,
    now: Duration,
    pipes: Pipes,
}

impl Job {
    fn member(&self, end: End) -> MemberId {
        match end {
            End::Control(rank) | End::Engine(rank) => self.roster.worker(rank).unwrap().id,
            End::Reducer(at) => self.roster.reducers().nth(at).unwrap().id,
        }
    }

    /// That a group has lost a reducer, for the hub.
    fn suspect(&self, group: u32, at: usize) -> Message {
        let reducer = self.roster.reducers().nth(at).unwrap();
        let lost =
            LostReducer { id: reducer.id, address: reducer.address.clone(), reason: "gone".to_owned() };
        Message::Suspect(Suspect { group, members: (0..self.scenario.workers).collect(), lost })
    }

    fn reducer_at(&self, id: MemberId) -> Option<usize> {
        self.roster.reducers().position(|reducer| reducer.id == id)
    }
}

/// What every rank is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Make the calls of the program.
    Calls,
    /// Make one more, when all that went wrong is known.
    OneMore,
    /// Close the group.
    Close,
}

struct World {
    job: Job,
    rng: Rng,
    workers: Vec<Worker>,
    reducers: Vec<Reducer>,
    troubles: VecDeque<(u32, Trouble)>,
    phase: Phase,
    /// When nothing was on its way last.
    idle: Duration,
    /// When trouble began last.
    troubled: Duration,
}

impl World {
    fn new(scenario: Scenario, rules: GroupRules) -> Self {
        let names: Vec<String> = (0..scenario.reducers).map(|reducer| format!("reducer {reducer}")).collect();
        let (roster, rng) = (a_roster(scenario.workers, &names), Rng(scenario.seed));
        let mut troubles = scenario.troubles.clone();
        troubles.sort_by_key(|(when, _)| *when);
        let mut job = Job { rules, roster, now: Duration::ZERO, pipes: Pipes::default(), scenario };
        let workers = (0..job.scenario.workers).map(|rank| Worker::new(rank, &mut job)).collect();
        let reducers = (0..job.scenario.reducers).map(Reducer::new).collect();
        let (idle, troubled, phase) = (Duration::ZERO, Duration::ZERO, Phase::Calls);
        Self { job, rng, workers, reducers, troubles: troubles.into(), phase, idle, troubled }
    }

    fn run(scenario: Scenario, rules: GroupRules) -> Result<(), String> {
        let mut world = Self::new(scenario, rules);
        let phases: &[Phase] = match world.job.scenario.closes_at_once {
            true => &[Phase::Calls],
            false => &[Phase::Calls, Phase::OneMore, Phase::Close],
        };
        for &phase in phases {
            (world.phase, world.troubled) = (phase, world.job.now);
            world.workers.iter_mut().for_each(|worker| worker.begin(phase, &mut world.job));
            world.go_on()?;
            world.check(phase)?;
        }
        Ok(())
    }

    fn has_time_for_more(&self) -> bool {
        self.job.now < self.troubled + LIMIT
    }

    /// Goes on until nothing is left to do, or nothing has come of it for long.
    fn go_on(&mut self) -> Result<(), String> {
        for step in 0_u32.. {
            if step > 200_000 {
                return Err("it goes round in a circle".to_owned());
            }
            if self.phase == Phase::Calls
                && self.troubles.front().is_some_and(|(when, _)| *when <= step)
                && let Some((_, trouble)) = self.troubles.pop_front()
            {
                self.troubled = self.job.now;
                self.happen(trouble);
            }
            let hears = |end: &End| match end {
                End::Control(rank) | End::Engine(rank) => self.workers[*rank as usize].runs(),
                End::Reducer(at) => self.reducers[*at].runs,
            };
            let pipes = self.job.pipes.0.iter().filter(|((_, to), pipe)| !pipe.is_empty() && hears(to));
            let busy: Vec<(End, End)> = pipes.map(|(ends, _)| *ends).collect();
            let callers: Vec<usize> =
                (0..self.workers.len()).filter(|at| self.workers[*at].may_call(&self.job)).collect();
            if busy.is_empty() {
                self.idle = self.job.now;
            }
            let time = busy.is_empty() && callers.is_empty()
                || self.job.now < self.idle + DELAY && self.rng.one_in(40);
            if time {
                let are_done = self.workers.iter().all(|worker| worker.is_done(&self.job));
                if busy.is_empty()
                    && self.troubles_are_over()
                    && are_done
                    && self.job.now >= self.troubled + KNOWN
                {
                    return Ok(());
                }
                if !self.has_time_for_more() && self.troubles_are_over() {
                    return Err(self.who_waits());
                }
                self.job.now += TICK;
                self.workers.iter_mut().for_each(|worker| worker.tick(&mut self.job));
            } else if !callers.is_empty() && (busy.is_empty() || self.rng.one_in(3)) {
                let at = callers[self.rng.below(callers.len() as u64) as usize];
                self.workers[at].call(&mut self.job);
            } else {
                let (from, to) = busy[self.rng.below(busy.len() as u64) as usize];
                self.deliver(from, to);
            }
        }
        Ok(())
    }

    fn troubles_are_over(&self) -> bool {
        self.phase != Phase::Calls || self.troubles.is_empty()
    }

    fn deliver(&mut self, from: End, to: End) {
        let Some(parcel) = self.job.pipes.take(from, to) else { return };
        match to {
            End::Control(rank) => self.workers[rank as usize].control(from, parcel, &mut self.job),
            End::Engine(rank) => self.workers[rank as usize].data(from, parcel, &mut self.job),
            End::Reducer(at) => self.reducers[at].data(parcel, &mut self.job),
        }
    }

    fn happen(&mut self, trouble: Trouble) {
        let job = &mut self.job;
        let workers = job.scenario.workers;
        let rank = |number: u32| number % workers;
        match trouble {
            Trouble::Kill(which) => {
                let dead = rank(which);
                if self.workers[dead as usize].runs() {
                    self.workers[dead as usize].ends(State::Dead, job);
                }
            }
            Trouble::Hang(which) => {
                let hung = &mut self.workers[rank(which) as usize];
                if hung.runs() {
                    hung.state = State::Hung;
                }
            }
            Trouble::KillReducer { which, seen_by } if !self.reducers.is_empty() => {
                let at = which as usize % self.reducers.len();
                if std::mem::take(&mut self.reducers[at].runs) {
                    let sees = |rank: &Rank| seen_by >> rank & 1 == 1;
                    let mut ranks: Vec<Rank> = (0..workers).collect();
                    if ranks.iter().any(sees) {
                        ranks.retain(sees);
                    }
                    for rank in ranks {
                        job.pipes.send(End::Reducer(at), End::Engine(rank), Parcel::Broken(false));
                    }
                }
            }
            Trouble::KillReducer { .. } => {}
            Trouble::Break { one, other, seen_by_both, damaged } => {
                let (one, other) = (rank(one), rank(other));
                if one != other {
                    for (from, to) in [(one, other), (other, one)] {
                        job.pipes.0.remove(&(End::Engine(from), End::Engine(to)));
                    }
                    job.pipes.send(End::Engine(one), End::Engine(other), Parcel::Broken(damaged));
                    if seen_by_both {
                        job.pipes.send(End::Engine(other), End::Engine(one), Parcel::Broken(false));
                    }
                }
            }
            Trouble::Leave { which, with_job } => self.workers[rank(which) as usize].leave(with_job, job),
            Trouble::Abort(which) => self.workers[rank(which) as usize].abort(job),
            Trouble::Mistake(which) => self.workers[rank(which) as usize].mistakes += 1,
            Trouble::Pause(which) => self.workers[rank(which) as usize].pauses(job),
        }
    }
}

fn tested(scenario: Scenario, rules: GroupRules) -> Result<(), TestCaseError> {
    World::run(scenario, rules).map_err(TestCaseError::fail)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    /// * Nobody waits for ever, once all that was on its way has come.
    /// * All ranks learn why a call has failed on one of them, and whoever has called something else.
    /// * Who is gone is named on all ranks that are left, in their next call at the latest.
    /// * A lost reducer costs no call.
    #[test]
    fn a_job_comes_through_all_that_happens_to_it(scenario in any_scenario()) {
        tested(scenario, GroupRules::DEFAULT)?;
    }
}

/// Each rule, what breaks it, and whether that is found here. The others are about what lies in memory: an engine has to break them,
/// and the simulator finds that.
const PLANTED: [(&str, GroupRules, bool); 10] = [
    ("stands_still", GroupRules { stands_still: false, ..GroupRules::DEFAULT }, true),
    ("says_calls", GroupRules { says_calls: false, ..GroupRules::DEFAULT }, true),
    ("compares_calls", GroupRules { compares_calls: false, ..GroupRules::DEFAULT }, true),
    ("counts_calls", GroupRules { counts_calls: false, ..GroupRules::DEFAULT }, true),
    ("says_aborts", GroupRules { says_aborts: false, ..GroupRules::DEFAULT }, true),
    ("keeps_early", GroupRules { keeps_early: false, ..GroupRules::DEFAULT }, false),
    ("redoes_in_order", GroupRules { redoes_in_order: false, ..GroupRules::DEFAULT }, false),
    ("times_redone", GroupRules { times_redone: 2, ..GroupRules::DEFAULT }, false),
    ("uses_holders", GroupRules { uses_holders: false, ..GroupRules::DEFAULT }, false),
    ("ends_redone", GroupRules { ends_redone: false, ..GroupRules::DEFAULT }, false),
];

#[test]
fn rules_that_are_broken_are_found() {
    for (name, rules, is_found) in PLANTED {
        let cases = if is_found { 5_000 } else { 20 };
        let config = ProptestConfig {
            cases,
            max_shrink_iters: 0,
            failure_persistence: None,
            ..ProptestConfig::default()
        };
        let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
        let found = runner.run(&any_scenario(), |scenario| tested(scenario, rules));
        assert_eq!(found.is_err(), is_found, "{name}: {found:?}");
    }
}
