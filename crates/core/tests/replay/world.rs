//! Ranks, their group, and how processes end.

use crate::{
    Rng,
    program::{Ending, Op, Place, Program, Undisturbed, Variables},
};
use herringbone_core::replay::{
    CheckpointOffer, Kept, ReplayCall, ReplayError, ReplayGlobal, ReplayItem, ReplayMember, ReplayPart,
    ReplayPayload, ReplayPoint, ReplayRules, ReplaySettings, ReplayStanding, ReplayStep,
};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    rc::Rc,
};

type Bytes = Rc<Vec<u64>>;

fn kept(values: Vec<u64>) -> Kept<Bytes> {
    Kept { bytes: 8 * values.len() as u64, data: Rc::new(values) }
}

/// When a process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Moment {
    BeforeACall,
    InACall,
    AfterACall,
    InTheExchange,
    InATransfer,
    InTheOffer,
    AtTheBarrier,
    WhileTheGroupForms,
    AfterACheckpoint,
    AtTheEnd,
}

const MOMENTS: [Moment; 10] = [
    Moment::BeforeACall,
    Moment::InACall,
    Moment::AfterACall,
    Moment::InTheExchange,
    Moment::InATransfer,
    Moment::InTheOffer,
    Moment::AtTheBarrier,
    Moment::WhileTheGroupForms,
    Moment::AfterACheckpoint,
    Moment::AtTheEnd,
];

/// A process ends here, as in RABIT's mock engine: at a call of a rank's so manyth process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Crash {
    rank: u32,
    point: ReplayPoint,
    trial: u32,
    moment: Moment,
}

/// How a world ends.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct End {
    /// Whether all came to their end; else what a rank needed was lost.
    pub(super) is_whole: bool,
    pub(super) deaths: u64,
    pub(super) replayed: u64,
    pub(super) moments: BTreeSet<Moment>,
}

/// What a rank gives to a collective.
#[derive(Clone, Debug)]
enum Given {
    Standing(Vec<u8>),
    Offer(CheckpointOffer),
    Nothing,
    Numbers(Vec<u64>),
}

#[derive(Clone, Debug)]
struct Collective {
    /// Of a call of the program.
    op: Option<Op>,
    given: Vec<Option<Given>>,
}

/// A group from its formation until it is formed anew.
#[derive(Debug)]
struct Epoch {
    collectives: Vec<Collective>,
    /// How many each rank has begun.
    begun: Vec<usize>,
    mail: BTreeMap<(u32, u32), VecDeque<Bytes>>,
    is_broken: bool,
    /// Who has, or holds, all that the others have.
    are_level: BTreeSet<u32>,
    /// What some rank had the result of as it formed.
    level: Option<ReplayPoint>,
    bootstraps: usize,
}

#[derive(Debug)]
enum Doing {
    /// Its program comes to its next call.
    Begin,
    /// It is in a call.
    Step,
    Forming,
    Waiting(usize),
    Moving(Vec<u32>),
    /// It has ended, and its successor starts after so many turns.
    Ended(u64),
    /// It has come to the end of its program.
    Left,
}

struct Process {
    trial: u32,
    member: ReplayMember<Bytes>,
    variables: Variables,
    place: Place,
    input: Vec<u64>,
    has_prepared: bool,
    doing: Doing,
}

pub(super) struct World {
    rng: Rng,
    program: Program,
    undisturbed: Undisturbed,
    settings: ReplaySettings,
    processes: Vec<Process>,
    epoch: Epoch,
    crashes: Vec<Crash>,
    /// How many processes may still end at any time.
    deaths_left: u64,
    each: u64,
    /// Whose processes have ended since all ranks were level.
    ended: BTreeSet<u32>,
    lost: Option<(ReplayError, u32)>,
    end: End,
}

impl World {
    pub(super) fn new(seed: u64, rules: ReplayRules) -> Self {
        let mut rng = Rng(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) + 1);
        let program = Program::draw(&mut rng);
        let size = program.size;
        let settings = ReplaySettings {
            global_replica: 1 + rng.below(5) as u32,
            local_replica: 1 + rng.below(3) as u32,
            rules,
        };
        let crash = |rng: &mut Rng| Crash {
            rank: rng.below(u64::from(size)) as u32,
            point: ReplayPoint { version: rng.below(4) as u32, call: rng.below(5) },
            trial: rng.below(3) as u32,
            moment: MOMENTS[rng.below(10) as usize],
        };
        let crashes = (0..rng.below(16)).map(|_| crash(&mut rng)).collect();
        let (deaths_left, each) = (rng.below(5), 20 + rng.below(200));
        let start = |rank: u32| start(rank, size, settings, 0);
        Self {
            undisturbed: Undisturbed::of(&program),
            processes: (0..size).map(start).collect(),
            epoch: Epoch::new(size, None, 0),
            program,
            settings,
            crashes,
            deaths_left,
            each,
            ended: BTreeSet::new(),
            lost: None,
            end: End::default(),
            rng,
        }
    }

    pub(super) fn run(mut self) -> Result<End, String> {
        for _ in 0..200_000 {
            let all_ended = self.processes.iter().all(|process| matches!(process.doing, Doing::Left));
            let stuck = self.has_left() && self.processes.iter().all(Process::waits_for_who_has_left);
            if all_ended || stuck || self.lost.is_some() {
                return self.ended();
            }
            let rank = self.rng.below(u64::from(self.program.size)) as u32;
            self.turn(rank)?;
            self.form();
        }
        Err(format!("it hangs: {:?}", self.processes.iter().map(Process::shown).collect::<Vec<_>>()))
    }

    /// Checks how it ended.
    fn ended(mut self) -> Result<End, String> {
        if let Some((error, rank)) = self.lost.take() {
            return match &error {
                ReplayError::Lost { item, .. } if self.may_be_lost(item) => Ok(self.end),
                _ => Err(format!("rank {rank}: {error}; {:?} have ended", self.ended)),
            };
        }
        for (rank, process) in (0_u32..).zip(&self.processes) {
            let expected = self.undisturbed.ends[rank as usize];
            let ends = (process.variables.model, process.variables.local);
            if process.place == Place::End && ends != (expected.model, expected.local) {
                return Err(format!("rank {rank} ends with other models than undisturbed"));
            }
        }
        self.end.is_whole = true;
        Ok(self.end)
    }

    /// Whether all processes that have to keep something have ended since all ranks were level.
    fn may_be_lost(&self, item: &ReplayItem) -> bool {
        let size = self.program.size;
        let has_to_keep = |rank: u32| match item {
            ReplayItem::Global { .. } | ReplayItem::Bootstrap(_) => true,
            ReplayItem::Local { owner, .. } => (rank + size - owner) % size <= self.settings.local_replica,
            ReplayItem::Result(point) => {
                let round = u64::from((size / self.settings.global_replica).max(1));
                u64::from(rank) % round == point.call % round
            }
        };
        (0..size).filter(|rank| has_to_keep(*rank)).all(|rank| self.ended.contains(&rank))
    }

    fn has_left(&self) -> bool {
        self.processes.iter().any(|process| matches!(process.doing, Doing::Left))
    }

    /// All are there: the group is formed.
    fn form(&mut self) {
        if self.has_left() {
            let waits = |process: &&mut Process| {
                matches!(process.doing, Doing::Forming) && process.place == Place::Finalize
            };
            for process in self.processes.iter_mut().filter(waits) {
                assert!(process.member.may_leave(), "it may need those who have left");
                process.member.leave();
                process.doing = Doing::Step;
            }
        }
        if !self.processes.iter().all(|process| matches!(process.doing, Doing::Forming)) {
            return;
        }
        let standings: Vec<_> = self.processes.iter().map(|process| process.member.standing()).collect();
        let reached = standings.iter().filter_map(|standing| {
            let position = standing.position.as_ref()?;
            Some(ReplayPoint { version: position.version, call: position.calls })
        });
        let bootstraps = standings.iter().map(|standing| standing.bootstrap.len()).max();
        self.epoch = Epoch::new(self.program.size, reached.max(), bootstraps.unwrap_or(0));
        for process in &mut self.processes {
            process.member.formed();
            process.doing = Doing::Step;
        }
    }

    /// Whether a rank's process ends at this moment; it does so at once.
    fn ends(&mut self, rank: u32, moment: Moment) -> bool {
        let process = &self.processes[rank as usize];
        let here = Crash { rank, point: process.member.point(), trial: process.trial, moment };
        let is_planned = self.crashes.contains(&here);
        let is_chance = self.deaths_left > 0 && self.rng.one_in(self.each);
        if self.has_left() || !(is_planned || is_chance) {
            return false;
        }
        self.deaths_left -= u64::from(is_chance && !is_planned);
        self.kill(rank);
        self.end.moments.insert(moment);
        if self.deaths_left > 0 && self.rng.one_in(3) {
            self.deaths_left -= 1;
            let other = self.rng.below(u64::from(self.program.size)) as u32;
            self.kill(other);
        }
        true
    }

    fn kill(&mut self, rank: u32) {
        if !matches!(self.processes[rank as usize].doing, Doing::Ended(_)) {
            self.end.deaths += 1;
            self.ended.insert(rank);
            self.processes[rank as usize].doing = Doing::Ended(self.rng.below(30));
            self.epoch.is_broken = true;
        }
    }

    fn turn(&mut self, rank: u32) -> Result<(), String> {
        let process = &mut self.processes[rank as usize];
        match process.doing {
            Doing::Ended(0) => *process = start(rank, self.program.size, self.settings, process.trial + 1),
            Doing::Ended(ref mut turns) => *turns -= 1,
            Doing::Left => {}
            Doing::Forming => {
                self.ends(rank, Moment::WhileTheGroupForms);
            }
            Doing::Begin => {
                if !self.ends(rank, Moment::BeforeACall) {
                    self.begin(rank)?;
                }
            }
            Doing::Step => self.step(rank)?,
            Doing::Waiting(at) => self.wait(rank, at)?,
            Doing::Moving(_) => self.move_on(rank),
        }
        Ok(())
    }

    /// A rank's program makes its next call.
    fn begin(&mut self, rank: u32) -> Result<(), String> {
        let process = &mut self.processes[rank as usize];
        let size = self.program.size;
        let call = match process.place {
            Place::Join => ReplayCall::Join,
            Place::Load => ReplayCall::Load,
            Place::Finalize => ReplayCall::Finalize,
            Place::End => {
                process.doing = Doing::Left;
                return Ok(());
            }
            Place::Checkpoint { version } => {
                let ending = self.program.versions[version as usize].1;
                process.variables.improve(rank, ending);
                let global = match ending {
                    Ending::Lazy => ReplayGlobal::Lazy,
                    _ => ReplayGlobal::Stored(kept(vec![process.variables.model])),
                };
                let local =
                    (ending == Ending::Local).then(|| kept(vec![process.variables.local; 1 + rank as usize]));
                ReplayCall::Checkpoint { global, local }
            }
            place @ (Place::Bootstrap(_) | Place::Call { .. }) => {
                let op = self.program.op(place).unwrap();
                let at = match place {
                    Place::Bootstrap(at) => self.program.bootstrap[at].0,
                    _ => 9,
                };
                process.has_prepared = false;
                ReplayCall::Collective {
                    bytes: op.result_bytes(size),
                    proves_all: op.proves_all(size),
                    kind: op.kind(),
                    place: at,
                }
            }
        };
        process.doing = Doing::Step;
        process.member.begin(call).map_err(|error| format!("rank {rank}: {error}"))
    }

    fn step(&mut self, rank: u32) -> Result<(), String> {
        let process = &mut self.processes[rank as usize];
        let step = match process.member.step() {
            Ok(step) => step,
            Err(error) => return Err(format!("rank {rank}: {error}")),
        };
        match step {
            ReplayStep::Regroup => process.doing = Doing::Forming,
            ReplayStep::Exchange => {
                let standing = process.member.standing().to_bytes().unwrap();
                self.give(rank, None, Given::Standing(standing));
                self.ends(rank, Moment::InTheExchange);
            }
            ReplayStep::Transfer(parts) => {
                let mut from = Vec::new();
                for part in parts {
                    match part {
                        ReplayPart::Send { to, payload } => {
                            let values = match payload {
                                ReplayPayload::Kept(kept) => kept.data,
                                ReplayPayload::Lazy => Rc::new(vec![process.variables.model]),
                            };
                            self.epoch.mail.entry((rank, to)).or_default().push_back(values);
                        }
                        ReplayPart::Receive { from: sender, .. } => from.push(sender),
                    }
                }
                process.doing = Doing::Moving(from);
                self.ends(rank, Moment::InATransfer);
            }
            ReplayStep::Run => self.run_call(rank)?,
            ReplayStep::Offer(offer) => {
                let offer = CheckpointOffer::from_bytes(&offer.to_bytes());
                self.give(rank, None, Given::Offer(offer));
                self.ends(rank, Moment::InTheOffer);
            }
            ReplayStep::Meet => {
                let is_end = process.place == Place::Finalize;
                self.give(rank, None, Given::Nothing);
                self.ends(rank, if is_end { Moment::AtTheEnd } else { Moment::AtTheBarrier });
            }
            ReplayStep::Replayed(kept) => {
                self.end.replayed += 1;
                if process.has_prepared && self.rng.one_in(2) {
                    self.ends(rank, Moment::InACall);
                }
                self.returned(rank, &kept.data)?;
            }
            ReplayStep::Done => self.done(rank),
        }
        Ok(())
    }

    /// A rank begins a collective of its group.
    fn give(&mut self, rank: u32, op: Option<Op>, given: Given) {
        let at = self.epoch.begun[rank as usize];
        self.epoch.begun[rank as usize] += 1;
        if self.epoch.collectives.len() <= at {
            let given = vec![None; self.program.size as usize];
            self.epoch.collectives.push(Collective { op, given });
        }
        assert_eq!(self.epoch.collectives[at].op, op, "rank {rank} makes another call than the others");
        self.epoch.collectives[at].given[rank as usize] = Some(given);
        self.processes[rank as usize].doing = Doing::Waiting(at);
    }

    /// A call that nobody replays: its input is prepared once, however often it runs.
    fn run_call(&mut self, rank: u32) -> Result<(), String> {
        let process = &mut self.processes[rank as usize];
        let (place, op) = (process.place, self.program.op(process.place).unwrap());
        let is_known = match place {
            Place::Bootstrap(at) => at < self.epoch.bootstraps,
            _ => self.epoch.level.is_some_and(|level| process.member.point() < level),
        };
        if is_known {
            return Err(format!("rank {rank} runs {place:?}, whose result a live rank has"));
        }
        if !process.has_prepared {
            process.input = process.variables.input(rank, op);
            process.has_prepared = true;
        }
        let input = process.input.clone();
        self.give(rank, Some(op), Given::Numbers(input));
        self.ends(rank, Moment::InACall);
        Ok(())
    }

    fn wait(&mut self, rank: u32, at: usize) -> Result<(), String> {
        let collective = &self.epoch.collectives[at];
        let is_there = match collective.op {
            Some(Op::Broadcast { root, .. }) => collective.given[root as usize].is_some(),
            Some(op) if op.result_bytes(self.program.size) == 0 => true,
            _ => collective.given.iter().all(Option::is_some),
        };
        let is_broken = self.epoch.is_broken;
        if is_broken && (!is_there || self.rng.one_in(2)) {
            self.lose(rank);
        } else if is_there {
            self.take(rank, at)?;
        }
        Ok(())
    }

    fn lose(&mut self, rank: u32) {
        let process = &mut self.processes[rank as usize];
        process.member.lost();
        process.doing = Doing::Step;
    }

    /// A collective of the group is over on a rank.
    fn take(&mut self, rank: u32, at: usize) -> Result<(), String> {
        let Collective { op, given } = self.epoch.collectives[at].clone();
        let process = &mut self.processes[rank as usize];
        process.doing = Doing::Step;
        let result = match (op, &given[rank as usize]) {
            (Some(op), _) => {
                let numbers = |given: Option<Given>| match given {
                    Some(Given::Numbers(numbers)) => Some(numbers),
                    _ => None,
                };
                let inputs: Vec<_> = given.into_iter().map(numbers).collect();
                let nothing = op.result_bytes(self.program.size) == 0;
                let result = if nothing { Vec::new() } else { op.result(&inputs).unwrap() };
                process.member.ran(kept(result.clone()));
                return self.returned(rank, &result);
            }
            (None, Some(Given::Standing(_))) => {
                let standing = |given: &Option<Given>| match given {
                    Some(Given::Standing(bytes)) => ReplayStanding::from_bytes(bytes).unwrap(),
                    _ => panic!("rank {rank} exchanges, and others do not"),
                };
                process.member.decided(&given.iter().map(standing).collect::<Vec<_>>())
            }
            (None, Some(Given::Offer(_))) => {
                let offer = |given: &Option<Given>| match given {
                    Some(Given::Offer(offer)) => *offer,
                    _ => panic!("rank {rank} is in a checkpoint, and others are not"),
                };
                process.member.offered(&given.iter().map(offer).collect::<Vec<_>>())
            }
            _ => {
                process.member.met();
                Ok(())
            }
        };
        if let Err(error) = result {
            self.lost = Some((error, rank));
        }
        Ok(())
    }

    fn move_on(&mut self, rank: u32) {
        let Doing::Moving(from) = &self.processes[rank as usize].doing else { return };
        let count = |sender: &u32| from.iter().filter(|other| *other == sender).count();
        let arrived = |sender: &u32| self.epoch.mail.get(&(*sender, rank)).map_or(0, VecDeque::len);
        let are_there = from.iter().all(|sender| arrived(sender) >= count(sender));
        let from = from.clone();
        if self.epoch.is_broken && (!are_there || self.rng.one_in(2)) {
            self.lose(rank);
        } else if are_there {
            let mut take =
                |sender: &u32| self.epoch.mail.get_mut(&(*sender, rank)).unwrap().pop_front().unwrap();
            let messages = from.iter().map(|sender| kept(take(sender).to_vec())).collect();
            self.processes[rank as usize].member.moved(messages);
            self.processes[rank as usize].doing = Doing::Step;
            self.epoch.are_level.insert(rank);
            if self.epoch.are_level.len() == self.processes.len() && !self.epoch.is_broken {
                self.ended.clear();
            }
        }
    }

    /// A call of the program returns its result.
    fn returned(&mut self, rank: u32, result: &[u64]) -> Result<(), String> {
        let process = &mut self.processes[rank as usize];
        let place = process.place;
        if self.undisturbed.results[&place] != result {
            return Err(format!("rank {rank} gets a wrong result of {place:?}"));
        }
        process.variables.learn(result, matches!(place, Place::Call { .. }));
        process.place = self.program.next(place);
        if !matches!(process.doing, Doing::Ended(_)) {
            process.doing = Doing::Begin;
        }
        self.ends(rank, Moment::AfterACall);
        Ok(())
    }

    fn done(&mut self, rank: u32) {
        let process = &mut self.processes[rank as usize];
        process.doing = Doing::Begin;
        match process.place {
            Place::Load => {
                let version = process.member.version();
                process.place = self.program.loaded(version);
                let (global, local) = process.member.loaded();
                if let Some(ReplayGlobal::Stored(global)) = global {
                    process.variables.model = global.data[0];
                }
                process.variables.local = local.map_or(0, |local| local.data[0]);
            }
            Place::Checkpoint { .. } => {
                process.variables.begin_version();
                process.place = self.program.next(process.place);
                self.ends(rank, Moment::AfterACheckpoint);
            }
            place => process.place = self.program.next(place),
        }
    }
}

impl Process {
    /// Whether it cannot go on because others have come to their end.
    fn waits_for_who_has_left(&self) -> bool {
        let is_new = matches!(self.doing, Doing::Forming) && self.place != Place::Finalize;
        is_new || matches!(self.doing, Doing::Left)
    }

    fn shown(&self) -> String {
        format!("{:?} at {:?} ({:?})", self.doing, self.place, self.member.point())
    }
}

impl Epoch {
    fn new(size: u32, level: Option<ReplayPoint>, bootstraps: usize) -> Self {
        Self {
            collectives: Vec::new(),
            begun: vec![0; size as usize],
            mail: BTreeMap::new(),
            is_broken: false,
            are_level: BTreeSet::new(),
            level,
            bootstraps,
        }
    }
}

fn start(rank: u32, size: u32, settings: ReplaySettings, trial: u32) -> Process {
    let mut member = ReplayMember::new(rank, size, settings);
    member.begin(ReplayCall::Join).unwrap();
    Process {
        trial,
        member,
        variables: Variables::default(),
        place: Place::Join,
        input: Vec::new(),
        has_prepared: false,
        doing: Doing::Forming,
    }
}
