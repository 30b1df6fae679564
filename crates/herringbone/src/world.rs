//! A world of several engines in one thread and in virtual time, for tests.
//!
//! Its processes have real engines with memory of their own, and the workers' control threads' [`Watch`]es. What is between
//! them is [virtual](crate::transport::tcp::virtual_link). Nothing sleeps; time goes from one event to the next. Everything
//! that happens follows from the seed. The [`simulation`] makes worlds of any kind from seeds.
#![cfg_attr(not(test), allow(dead_code, reason = "some of it is for tests only"))]

mod aborts;
mod calls;
#[cfg(test)]
mod close_checks;
#[cfg(test)]
mod counted;
mod event;
mod events;
mod exact;
mod exit;
#[cfg(test)]
mod faults;
mod groups;
mod machine;
mod mistakes;
mod network;
mod partitions;
#[cfg(test)]
mod planted;
pub(crate) mod plants;
mod reducers;
#[cfg(test)]
mod returning;
pub mod simulation;
mod trace;
mod transitions;
mod trouble;

use crate::{
    clock::Moment,
    config::WaitLimits,
    core::{
        algorithm::Algorithm,
        group::{Group as FoldGroup, Rank},
        plan::Guidance,
        session::{
            Parameters, Role,
            control::Message,
            fence::Member,
            membership::{MemberId, Process, Roster},
            watch::{RankPatience, TICK, Watch},
        },
    },
    engine::{
        Engine,
        control::SIGN_OF_LIFE,
        group::{Group, Settings},
    },
    execute::{issue::WORLD_GROUP, staging::Staging},
    fabric::control::LAST_OUT,
    sys::segment::Segment,
    transport::{
        endpoint::Endpoints,
        layout::Layout,
        tcp::virtual_link::{LinkConditions, PipeEnd, Rng, VirtualClock},
    },
};
use event::WorldEvent;
use machine::{Machine, QueuedCall};
use network::Network;
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use trace::Trace;

const POOL_BYTES: usize = 4 << 20;
const REDUCER_BYTES: usize = 64 << 20;

/// What a world is like.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) workers: u32,
    pub(crate) reducers: u32,
    pub(crate) conditions: LinkConditions,
    pub(crate) forced: Option<Algorithm>,
    pub(crate) segment_bytes: usize,
    pub(crate) timeout: Duration,
    /// How long a rank may be silent.
    pub(crate) patience: Duration,
    /// Whose sums its groups of all workers make, if they make sums of shards.
    pub(crate) shards: Option<Arc<FoldGroup>>,
}

impl Setup {
    /// Workers and reducers with good links between them.
    pub(crate) fn of(workers: u32, reducers: u32) -> Self {
        let timeout = Duration::from_secs(60);
        let forced = (reducers > 0).then_some(Algorithm::ReductionServer);
        let patience = WaitLimits::default().patience;
        Self {
            workers,
            reducers,
            conditions: LinkConditions::default(),
            forced,
            segment_bytes: 0,
            timeout,
            patience,
            shards: None,
        }
    }

    /// How all workers' sums are folded.
    #[cfg(test)]
    pub(crate) fn fold(&self) -> FoldGroup {
        self.shards
            .as_ref()
            .map_or_else(|| FoldGroup::of_size(self.workers), |shards| FoldGroup::clone(shards))
    }
}

/// What a test does.
type Act = Box<dyn FnOnce(&mut VirtualWorld)>;

/// More steps than this take no world to its end: something goes round in a circle.
const STEPS: u64 = 5_000_000;

/// What is yet to happen.
#[derive(Default)]
struct EventQueue {
    pending: BTreeMap<(Moment, u64), WorldEvent>,
    numbered: u64,
    acts: BTreeMap<u64, Act>,
    /// When threads look again next.
    looks: BTreeMap<usize, Moment>,
}

/// Processes, what is between them, and what is yet to happen.
pub(crate) struct VirtualWorld {
    pub(crate) setup: Setup,
    pub(crate) seed: u64,
    pub(crate) rng: Rng,
    pub(crate) clock: VirtualClock,
    pub(crate) roster: Arc<Roster>,
    /// Its members by their numbers: workers, then reducers. Those that have ended are gone.
    pub(crate) machines: Vec<Option<Machine>>,
    events: EventQueue,
    pub(crate) network: Network,
    /// Groups and their ranks; the first is that of all.
    pub(crate) groups: Vec<(u32, Vec<Rank>)>,
    pub(crate) trace: Trace,
    steps: u64,
    /// How often each machine was started.
    lives: BTreeMap<usize, u64>,
}

/// The member whose machine this is.
fn member_at(at: usize) -> MemberId {
    MemberId::new(at as u32)
}

fn staging(bytes: usize) -> Staging {
    let layout = Layout { locals: 1, pool: bytes, heap: 0 };
    let segment = Segment::create("virtual-world", layout.bytes()).expect("memory");
    Staging::new(Arc::new(segment), layout.pool_at()..layout.pool_at() + layout.pool)
}

/// A group as its member `rank` makes it.
fn group(setup: &Setup, roster: &Roster, number: u32, ranks: &[Rank], rank: Rank) -> Group {
    let Setup { forced, segment_bytes, timeout, shards, .. } = setup.clone();
    let parameters = Parameters {
        algorithm: forced.as_ref().map(ToString::to_string),
        segment: segment_bytes as u64,
        staging: POOL_BYTES as u64,
        reducers: roster.reducers().map(|reducer| reducer.address.clone()).collect(),
        ..Parameters::default()
    };
    let members = ranks.iter().map(|rank| member_at(*rank as usize));
    let ids: Vec<MemberId> = members.chain(roster.reducers().map(|reducer| reducer.id)).collect();
    let me = ranks.iter().position(|other| *other == rank).expect("a member") as Rank;
    let settings = Settings::new(number, 0, ids, ranks.to_vec(), me, ranks.to_vec(), Arc::new(parameters));
    let settings =
        Settings { guidance: Arc::new(Guidance { forced, ..Guidance::default() }), timeout, ..settings };
    let settings = settings.of_shards(shards.filter(|shards| shards.size() as usize == ranks.len()));
    Group::new(settings, Member::new(number, rank, ranks.to_vec()))
}

impl VirtualWorld {
    pub(crate) fn new(setup: Setup, seed: u64) -> Self {
        let names: Vec<String> = (0..setup.reducers).map(|reducer| format!("reducer {reducer}")).collect();
        let process = |rank: u32| Process { address: String::new(), host: rank.into(), incarnation: 1 };
        let roster = Roster::founded((0..setup.workers).map(process).collect(), &names).unwrap();
        let mut world = Self {
            seed,
            roster: Arc::new(roster),
            rng: Rng(seed),
            clock: VirtualClock::default(),
            machines: Vec::new(),
            events: EventQueue::default(),
            network: Network::between(setup.workers as usize),
            groups: vec![(WORLD_GROUP, (0..setup.workers).collect())],
            trace: Trace::default(),
            steps: 0,
            lives: BTreeMap::new(),
            setup,
        };
        let roster = world.roster.clone();
        for (rank, worker) in (0..).zip(roster.workers()) {
            let machine = world.worker(rank, worker.id);
            world.machines.push(Some(machine));
            world.after(TICK, WorldEvent::Tick(worker.id.index()));
        }
        for reducer in roster.reducers() {
            let machine = world.reducer();
            world.machines.push(Some(machine));
            world.after(SIGN_OF_LIFE, WorldEvent::SignOfLife(reducer.id.index()));
        }
        world
    }

    fn worker(&self, rank: Rank, id: MemberId) -> Machine {
        let (endpoints, rules) = (Endpoints::new(&self.roster), plants::rules());
        let mut engine = Engine::new(id, endpoints, staging(POOL_BYTES), false, rules);
        let (number, members) = &self.groups[0];
        engine.at(self.clock.now()).add_group(group(&self.setup, &self.roster, *number, members, rank));
        let peers: Vec<u32> = if rank == 0 { (1..self.setup.workers).collect() } else { vec![0] };
        let patience = RankPatience { silence: self.setup.patience, linger: LAST_OUT };
        let mut watch =
            Watch::new(rank, self.roster.clone(), peers, patience, self.clock.now().since_start());
        if rank == 0 {
            let info = Message::GroupInfo { group: *number, generation: 0, members: members.clone() };
            transitions::to_hub(&watch, &info);
            watch.tell_hub(info);
        }
        Machine::new(engine, Some(watch), self.roster.clone())
    }

    fn reducer(&self) -> Machine {
        let (endpoints, own) = Endpoints::of_reducer(self.setup.workers);
        let engine = Engine::new(own, endpoints, staging(REDUCER_BYTES), true, plants::rules());
        Machine::new(engine, None, self.roster.clone())
    }

    /// How long the world has run.
    pub(crate) fn now(&self) -> Duration {
        self.clock.passed()
    }

    /// The machine of a rank or reducer that has not ended.
    pub(crate) fn machine(&mut self, at: usize) -> &mut Machine {
        self.machines[at].as_mut().expect("it runs")
    }

    /// All workers that have not ended.
    pub(crate) fn workers(&mut self) -> impl Iterator<Item = (u32, &mut Machine)> {
        let workers = self.setup.workers as usize;
        let machines = self.machines.iter_mut().take(workers).enumerate();
        machines.filter_map(|(rank, machine)| Some((rank as u32, machine.as_mut()?)))
    }

    /// Has something happen after a while.
    pub(crate) fn after(&mut self, delay: Duration, event: WorldEvent) {
        self.events.numbered += 1;
        self.events.pending.insert((self.clock.now() + delay, self.events.numbered), event);
    }

    /// Has the test do something after a while.
    pub(crate) fn later(&mut self, delay: Duration, act: impl FnOnce(&mut Self) + 'static) {
        let number = self.events.numbered;
        self.events.acts.insert(number, Box::new(act));
        self.after(delay, WorldEvent::Done(number));
    }

    /// Has these ranks make a call next, and at once if nothing is before it.
    pub(crate) fn call(&mut self, ranks: impl IntoIterator<Item = u32>, queued: &QueuedCall) {
        for rank in ranks {
            self.machine(rank as usize).program.push_back(queued.clone());
            self.settle(rank as usize);
        }
    }

    /// Runs until this holds, but not beyond a time. Returns whether it does.
    pub(crate) fn run_until(&mut self, limit: Duration, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        while !done(self) {
            self.steps += 1;
            if self.now() >= limit || self.steps > STEPS || !self.step() {
                return false;
            }
        }
        true
    }

    /// Runs until all workers that have not ended and do not hang have made their calls, and these have ended.
    pub(crate) fn run_to_the_end(&mut self, limit: Duration) -> bool {
        self.run_until(limit, |world| world.workers().all(|(_, worker)| worker.is_hung || worker.is_done()))
    }

    /// Whether some group has lost a reducer, and goes on without.
    pub(crate) fn has_recovered(&self) -> bool {
        let of = |machine: &Machine| {
            let closed = machine.exit.closed.iter().any(|closed| closed.has_recovered);
            closed || self.groups.iter().any(|(number, _)| machine.engine.current(*number) != *number)
        };
        self.machines.iter().flatten().any(of)
    }

    /// Runs for a while.
    pub(crate) fn run_for(&mut self, time: Duration) {
        let until = self.now() + time;
        self.after(time, WorldEvent::Nothing);
        self.run_until(until, |world| world.now() >= until);
    }

    /// What happens next. Returns whether there was anything.
    fn step(&mut self) -> bool {
        let links = self.machines.iter().flatten().flat_map(|machine| machine.pipes.values());
        let moved = links.filter_map(|pipe| pipe.link.next()).min();
        let happens = self.events.pending.keys().next().map(|(at, _)| *at);
        let Some(next) = moved.into_iter().chain(happens).min() else { return false };
        self.clock.set(next.max(self.clock.now()));
        while let Some(entry) = self.events.pending.first_entry()
            && entry.key().0 <= next
        {
            let event = entry.remove();
            self.trace.note(self.clock.passed(), &event);
            self.handle(event);
        }
        let machines = self.machines.len();
        let first = self.rng.below(machines as u64) as usize;
        for at in (0..machines).map(|at| (at + first) % machines) {
            if self.machines[at].as_ref().is_some_and(Machine::is_ready) {
                self.trace.add(self.clock.passed(), &at);
                self.settle(at);
            }
        }
        true
    }

    /// The first machine's end of the link to the second, if there is one.
    pub(crate) fn link(&self, one: usize, other: usize) -> Option<PipeEnd> {
        let one = self.machines[one].as_ref()?;
        let address = self.roster.member(member_at(other)).map(|member| &member.address);
        // A reducer that came back is another member at the same address.
        let back = one.roster.reducers().find(|reducer| Some(&reducer.address) == address);
        one.pipes.get(&back.map_or(member_at(other), |reducer| reducer.id)).cloned()
    }

    /// The machine of a member, as another one knows it.
    pub(super) fn machine_of(&self, member: MemberId, known_at: usize) -> usize {
        let roster = self.machines[known_at].as_ref().map_or(&self.roster, |machine| &machine.roster);
        let address = roster.member(member).filter(|of| of.role == Role::Reducer).map(|of| &of.address);
        let at = address.and_then(|address| self.reducer_at(address));
        at.unwrap_or(member.index())
    }

    /// The machine of the reducer that listens at an address.
    pub(super) fn reducer_at(&self, address: &str) -> Option<usize> {
        self.roster.reducers().find(|reducer| reducer.address == address).map(|reducer| reducer.id.index())
    }

    /// All that is wrong with the results that there are.
    pub(crate) fn problems(&mut self) -> Vec<String> {
        let mut problems = Vec::new();
        for (_, worker) in self.workers() {
            problems.extend(worker.called.iter_mut().filter_map(|called| called.wrong.take()));
        }
        problems
    }
}
