//! A group, as one of its ranks (or a reducer) sees it: who is in it, what its calls mean, where it stands.

use super::{
    farewell::Farewell,
    plans::Plans,
    told::{Told, call_of},
};
pub(crate) use super::{
    plans::Planned,
    settings::{Service, Settings},
};
use crate::{
    Error, Result,
    core::{
        prepare::Call,
        session::{
            Basis,
            control::Message,
            fence::{Admission, Check, Member, Phase},
            membership::MemberId,
        },
        wire::{Fingerprint, Header, digest},
    },
    engine::doom::Doom,
    execute::{
        issue::{PlanKey, WORLD_GROUP},
        script::Script,
    },
    observe::Observer,
    transport::{Broken, stats::Stats, ticket::OpKey},
};
use std::{
    collections::{BTreeSet, VecDeque},
    ops::Range,
    sync::Arc,
};

/// Operations by their numbers, ascending. Most come last, and most go first.
#[derive(Debug, Default)]
pub(crate) struct InProgress {
    all: VecDeque<(u64, OpKey)>,
    /// How many use reducers: ordinary ones, and urgent ones.
    pub(crate) with_reducers: [usize; 2],
}

impl InProgress {
    pub(crate) fn insert(&mut self, sequence: u64, key: OpKey) {
        match self.all.back() {
            Some((last, _)) if *last >= sequence => {
                let at = self.all.partition_point(|(earlier, _)| *earlier < sequence);
                self.all.insert(at, (sequence, key));
            }
            _ => self.all.push_back((sequence, key)),
        }
    }

    /// Returns whether it was there.
    pub(crate) fn remove(&mut self, sequence: u64, key: OpKey) -> bool {
        if self.all.front().is_some_and(|(_, first)| *first == key) {
            return self.all.pop_front().is_some();
        }
        let first = self.all.partition_point(|(earlier, _)| *earlier < sequence);
        let at = self.all.range(first..).position(|(_, running)| *running == key);
        at.and_then(|at| self.all.remove(first + at)).is_some()
    }

    /// The number of the oldest.
    pub(crate) fn first(&self) -> Option<u64> {
        self.all.front().map(|(sequence, _)| *sequence)
    }

    /// The one with this number.
    pub(crate) fn find(&self, sequence: u64) -> Option<OpKey> {
        let at = self.all.binary_search_by_key(&sequence, |(sequence, _)| *sequence).ok()?;
        Some(self.all[at].1)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &(u64, OpKey)> {
        self.all.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}

/// How far a group has come to its end.
#[derive(Debug, Default)]
pub(crate) struct Ending {
    /// Whether nothing more is called in it here.
    pub(crate) is_dropped: bool,
    /// Whether this rank has said that it takes no part any more.
    pub(crate) is_left: bool,
    /// Whether it has said that it aborts the group.
    pub(crate) is_aborted: bool,
    /// Staging memory of operations that failed: other ranks of the host may still read it.
    pub(crate) kept: Vec<Range<usize>>,
    /// Workers that have told a reducer that they take no part in it any more.
    pub(crate) dropped_by: BTreeSet<MemberId>,
    pub(crate) farewell: Farewell,
}

/// Whether a group's operations use reducers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Recovering {
    /// Those whose plan says so.
    #[default]
    No,
    /// One is lost: those that do stand still.
    StandsStill,
    /// None any more. From the operation of this number on the group's calls are another group's.
    Over { from: u64, next: u32 },
}

/// A group.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) settings: Settings,
    pub(crate) member: Member,
    pub(crate) ending: Ending,
    /// Operations that have begun and are not over, oldest first.
    pub(crate) running: InProgress,
    /// Set when the group cannot go on.
    pub(crate) lost: Option<Error>,
    /// Why operations that need reducers fail, once all ranks have agreed that one is lost.
    pub(crate) without_reducers: Option<Error>,
    /// Set when a member is gone that operations under way may not need any more.
    pub(crate) doom: Option<Doom>,
    /// While a fence is under way: the operations that do not move any more, from this one on.
    pub(crate) frozen: Option<u64>,
    /// A fence that is answered once the operations before the disputed one are complete.
    pub(crate) unanswered: Option<Message>,
    pub(crate) recovering: Recovering,
    told: Told,
    plans: Plans,
}

impl Group {
    pub(crate) fn new(settings: Settings, member: Member) -> Self {
        Self {
            plans: Plans::new(&settings),
            settings,
            member,
            ending: Ending::default(),
            running: InProgress::default(),
            lost: None,
            without_reducers: None,
            doom: None,
            frozen: None,
            unanswered: None,
            recovering: Recovering::No,
            told: Told::default(),
        }
    }

    /// Goes on where the hub has left a member of which nothing but its number was known.
    pub(crate) fn follow(&mut self, member: Member) {
        self.member = member.made(&self.member);
    }

    /// Whether this process is one of the group's reducers.
    pub(crate) fn reduces(&self) -> bool {
        self.settings.is_reducer(self.settings.me)
    }

    /// The generation that this process works in.
    pub(crate) fn generation(&self) -> u32 {
        if self.reduces() { self.told.generation } else { self.member.generation() }
    }

    /// The running operation with a sequence number.
    pub(crate) fn operation(&self, sequence: u64) -> Option<OpKey> {
        self.running.find(sequence)
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    /// Whether it waits for a decision of the hub.
    pub(crate) fn is_undecided(&self) -> bool {
        let stops = self.frozen.is_some() || self.unanswered.is_some();
        stops || self.member.phase() != Phase::Running || self.recovering == Recovering::StandsStill
    }

    /// Whether an operation must not move because of a fence.
    pub(crate) fn is_frozen(&self, sequence: u64) -> bool {
        self.frozen.is_some_and(|from| sequence >= from)
    }

    /// What to do with a frame, by its generation.
    pub(crate) fn admission(&self, header: &Header, reduces: bool) -> Admission {
        match (reduces, header.generation.cmp(&self.told.generation)) {
            (false, _) => self.member.admit(header.generation),
            (true, std::cmp::Ordering::Equal) => Admission::Accept,
            (true, _) => Admission::Discard,
        }
    }

    /// How a frame's rolling hash compares with what was issued here, or with what other workers have told.
    pub(crate) fn check(&self, header: &Header, reduces: bool) -> Check {
        if !reduces {
            return self.member.check(header.sequence, header.hash);
        }
        self.told.check(header)
    }

    /// A reducer remembers what the first worker to come says of an operation, and of those that run.
    pub(crate) fn note_told(&mut self, header: &Header, told: Fingerprint) {
        let Self { told: known, running, .. } = self;
        known.note(header, told, |sequence| running.find(sequence).is_some());
    }

    /// A worker tells a reducer what a plan was made from.
    pub(crate) fn told_plan(&mut self, worker: &str, theirs: &Basis) -> Result<(), Broken> {
        self.told.plan(worker, theirs, &self.plans, &self.settings)
    }

    /// Why a reducer does not take part in operations of a plan, if it does not.
    pub(crate) fn refused_plan(&self, plan: u64) -> Option<&str> {
        self.told.refused(plan)
    }

    /// A reducer's address, as its workers know it.
    pub(crate) fn own_address(&self) -> String {
        let Settings { parameters, .. } = &self.settings;
        let address = self.settings.own_reducer().and_then(|at| parameters.reducers.get(at));
        address.cloned().unwrap_or_default()
    }

    /// The generation that a reducer works in.
    pub(crate) fn told_generation(&self) -> u32 {
        self.told.generation
    }

    /// A reducer is told of a new generation.
    pub(crate) fn begin_generation(&mut self, generation: u32) {
        self.told = Told::of(generation);
    }

    /// Whether a member of the job is one of the group.
    pub(crate) fn has(&self, id: MemberId) -> bool {
        self.settings.seats.contains(&id)
    }

    /// What a call means here: chosen, generated, proved and compiled once.
    pub(crate) fn plan(&mut self, call: Call, observer: &mut Observer) -> Result<&mut Planned> {
        self.plan_at(None, call, observer).map(|(planned, _)| planned)
    }

    /// The same, without a search where it is known, and beside it the group's settings.
    pub(crate) fn plan_at(
        &mut self,
        key: Option<PlanKey>,
        call: Call,
        observer: &mut Observer,
    ) -> Result<(&mut Planned, &Settings)> {
        let Self { plans, settings, member, .. } = self;
        let planned = plans.recall(key, &call, observer, |plans| {
            let planned = plans.chosen(settings, call)?;
            member.planned(planned.fingerprint.plan, &planned.basis);
            Ok(planned)
        })?;
        Ok((planned, settings))
    }

    /// A plan that was made, unless it had to make room since.
    pub(crate) fn planned(&self, key: PlanKey) -> Option<&Planned> {
        self.plans.at(key)
    }

    /// What a call means, if it was prepared before and may run straight through, now that nothing else does.
    pub(crate) fn script(&self, call: &Call, links: u64) -> Option<(PlanKey, &Arc<Script>)> {
        let idle = self.running.is_empty() && self.frozen.is_none() && self.unanswered.is_none();
        let planned = self.plans.known(call).filter(|_| idle)?;
        Some((planned.key, planned.script(links)?))
    }

    /// An operation of this kind was completed.
    pub(crate) fn completed(&mut self, key: PlanKey) {
        self.plans.completed(key);
    }

    /// Adds up what was completed.
    pub(crate) fn count(&self, stats: &mut Stats) {
        self.plans.count(stats);
    }

    /// A reducer's plan for what a worker's fingerprint says.
    pub(crate) fn plan_as_told(
        &mut self,
        told: &Fingerprint,
        observer: &mut Observer,
    ) -> Result<(&mut Planned, &Settings)> {
        let call = call_of(told)?;
        let Self { plans, settings, told: known, .. } = self;
        let planned = plans.recall(None, &call, observer, |plans| {
            plans.made(settings, call, &known.algorithm(told.plan)?, String::new())
        })?;
        if planned.fingerprint.plan != told.plan {
            return Err(Error::unsupported("another plan than it had before"));
        }
        Ok((planned, settings))
    }
}

/// A group's number within its job. Two groups that meet have at least one rank in common, which notices if they collide.
pub(crate) fn number_of(name: &str, members: &[MemberId]) -> u32 {
    let mut bytes = name.as_bytes().to_vec();
    members.iter().for_each(|member| bytes.extend_from_slice(&member.number().to_le_bytes()));
    let hash = digest(&bytes);
    ((hash ^ hash >> 32) as u32).max(WORLD_GROUP + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{
        collective::Collective,
        element::{DType, ReduceOp},
        plan::Guidance,
        session::{Parameters, fence::REMEMBERED},
        wire::Kind,
    };

    const CALL: Call = Call::new(Collective::AllReduce, DType::F32, ReduceOp::Sum, 1000);

    /// Two workers and a reducer, as member `me` of these sees them.
    fn group(me: u32, parameters: Parameters) -> Group {
        let guidance = Arc::new(Guidance::of(&parameters).unwrap());
        let seats = [0, 1, 2].map(MemberId::new).into();
        let settings = Settings::new(7, 0, (seats, vec![0, 1], me), vec![0, 1], Arc::new(parameters));
        Group::new(Settings { guidance, ..settings }, Member::new(7, me, vec![0, 1]))
    }

    fn parameters() -> Parameters {
        Parameters {
            algorithm: Some("reduction_server".to_owned()),
            staging: 64 << 20,
            reducers: vec!["10.0.0.9:7070".to_owned()],
            ..Parameters::default()
        }
    }

    #[test]
    fn a_reducer_remembers_what_runs() {
        let mut group = group(2, parameters());
        let told = group.plan(CALL, &mut Observer::default()).unwrap().fingerprint;
        let header = |sequence| Header::new(Kind::Data, 7, 0, sequence);
        group.running.insert(3, OpKey { number: 0, place: 0 });
        let many = 2 * REMEMBERED as u64;
        (0..many).for_each(|sequence| group.note_told(&header(sequence), told));
        let known: Vec<u64> =
            (0..many).filter(|sequence| group.check(&header(*sequence), true) == Check::Match).collect();
        let expected = [3].into_iter().chain(many - REMEMBERED as u64 + 1..many);
        assert_eq!(known, expected.collect::<Vec<_>>());
    }

    #[test]
    fn a_reducer_takes_the_plan_that_it_is_told() {
        let (mut worker, mut reducer) = (group(0, parameters()), group(2, parameters()));
        let mut stats = Observer::default();
        let planned = worker.plan(CALL, &mut stats).unwrap();
        assert!(reducer.plan_as_told(&planned.fingerprint, &mut stats).is_err(), "it does not guess");
        reducer.told_plan("rank 0", &planned.basis).unwrap();
        assert_eq!(reducer.refused_plan(planned.fingerprint.plan), None);
        let (told, _) = reducer.plan_as_told(&planned.fingerprint, &mut stats).unwrap();
        assert_eq!((&told.basis, told.fingerprint), (&planned.basis, planned.fingerprint));
    }

    #[test]
    fn a_reducer_refuses_what_it_would_make_otherwise_and_says_how() {
        let basis = group(0, parameters()).plan(CALL, &mut Observer::default()).unwrap().basis.clone();
        type Change = fn(&mut Basis);
        let changes: [(&str, Change); 6] = [
            ("cutting constants", |basis| basis.cut.constants ^= 1),
            ("slice bytes", |basis| basis.cut.segment = 65536),
            ("staging bytes", |basis| basis.cut.staged += 1),
            ("workers", |basis| basis.workers += 1),
            ("epoch", |basis| basis.epoch += 1),
            ("topology", |basis| basis.machines.topology = Some(1)),
        ];
        for (name, change) in changes {
            let mut theirs = Basis::clone(&basis);
            change(&mut theirs);
            let mut reducer = group(2, parameters());
            reducer.told_plan("rank 1", &theirs).unwrap();
            let reason = reducer.refused_plan(theirs.digest()).unwrap().to_owned();
            let [ours, theirs] = [&*basis, &theirs].map(|basis| basis.value(name).unwrap());
            let expected = format!("otherwise than rank 1: {name} {ours} there and {theirs} at rank 1;");
            assert!(reason.contains(&expected), "{reason}");
        }
        let mut reducer = group(2, parameters());
        let unknown = Basis { algorithm: "butterfly".to_owned(), ..Basis::clone(&basis) };
        reducer.told_plan("rank 1", &unknown).unwrap();
        assert!(reducer.refused_plan(unknown.digest()).unwrap().contains("plan of rank 1: no algorithm"));
    }

    #[test]
    fn a_reducer_remembers_so_many_plans_and_no_more() {
        let basis = group(0, parameters()).plan(CALL, &mut Observer::default()).unwrap().basis.clone();
        let mut reducer = group(2, parameters());
        let mut tell = |epoch| reducer.told_plan("rank 0", &Basis { epoch, ..Basis::clone(&basis) });
        let told = (0..1000).take_while(|epoch| tell(*epoch).is_ok()).count();
        assert_eq!(told, 64);
        assert!(tell(0).is_ok(), "what it knows it may be told again");
        reducer.begin_generation(1);
        assert!(reducer.told_plan("rank 0", &basis).is_ok());
    }

    /// A change of membership makes plans of its own.
    #[test]
    fn plans_are_of_an_epoch() {
        let mut observer = Observer::default();
        let first = group(0, parameters()).plan(CALL, &mut observer).unwrap().fingerprint;
        let earlier = group(0, parameters());
        let settings = Settings { epoch: 1, ..earlier.settings };
        let mut later = Group::new(settings, earlier.member);
        let second = later.plan(CALL, &mut observer).unwrap();
        assert_eq!(first.difference(&second.fingerprint), ["plan"]);
        assert_eq!(second.basis.epoch, 1);
    }

    /// A plan's key finds it until another one has its place; then the call's plan is made again.
    #[test]
    fn a_plan_is_found_by_its_key() {
        let (mut group, mut observer) = (group(0, parameters()), Observer::default());
        let other = |more| Call { count: CALL.count + more, ..CALL };
        let key = group.plan(CALL, &mut observer).unwrap().key;
        let another = group.plan(other(1), &mut observer).unwrap().key;
        group.completed(key);
        assert_eq!(group.planned(key).map(|planned| planned.call), Some(CALL));
        assert_eq!(group.plan_at(Some(key), CALL, &mut observer).unwrap().0.key, key);
        let mut others = 1;
        while group.planned(key).is_some() {
            others += 1;
            group.plan(other(others), &mut observer).unwrap();
        }
        assert!(group.planned(another).is_some(), "the oldest goes first");
        group.completed(key);
        let again = group.plan_at(Some(key), CALL, &mut observer).unwrap().0;
        assert_eq!((again.call, again.key.number), (CALL, key.number + others as u64 + 1));
        let mut stats = observer.counted();
        group.count(&mut stats);
        assert_eq!(stats.operations.values().sum::<u64>(), 1);
    }
}
