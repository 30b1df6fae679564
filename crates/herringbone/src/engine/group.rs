//! A group, as one of its ranks (or a reducer) sees it: its members, the meaning of its calls, its state.

pub(crate) use super::{
    plans::Planned,
    settings::{Service, Settings},
};
use super::{
    plans::Plans,
    port_reports::PortReports,
    reducer::{call_of, compared},
};
use crate::{
    Error, Result,
    completion::Completion,
    core::{
        plan::Choice,
        prepare::Call,
        session::{
            Basis, Cause,
            fence::Member,
            group_state::{GroupState, TooManyPlans},
            membership::MemberId,
        },
        topology::Ports,
        wire::{Fingerprint, Header, digest},
    },
    execute::{
        issue::{PlanKey, WORLD_GROUP},
        script::Script,
    },
    observe::Observer,
    transport::{Broken, stats::Stats, ticket::OpKey},
};
use std::{collections::VecDeque, ops::Range, sync::Arc};

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

/// A group.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) settings: Settings,
    pub(crate) state: GroupState,
    /// Operations that have begun and are not over, oldest first.
    pub(crate) running: InProgress,
    /// Staging memory of operations that failed: other ranks of the host may still read it.
    pub(crate) kept: Vec<Range<usize>>,
    /// Somebody waits until this rank has left the group.
    pub(crate) close_check: Option<Arc<Completion>>,
    /// What the last decision is called here, if more is known of it than was decided.
    pub(crate) explained: Option<(Arc<Cause>, Error)>,
    /// What this process says of the ports of hosts, if plans follow them.
    pub(super) port_reports: Option<PortReports>,
    plans: Plans,
}

impl Group {
    /// A group of which this process is a worker.
    pub(crate) fn new(settings: Settings, member: Member) -> Self {
        Self::of(settings, GroupState::of_worker(member))
    }

    /// A group in which this process takes part so.
    pub(crate) fn of(settings: Settings, state: GroupState) -> Self {
        let (running, kept, close_check, explained) = (InProgress::default(), Vec::new(), None, None);
        let (plans, port_reports) = (Plans::new(&settings), PortReports::of(&settings));
        Self { plans, port_reports, settings, state, running, kept, close_check, explained }
    }

    /// The same, which takes the calls of another group: plans take ports as they do there.
    pub(super) fn succeeding(self, other: &Self) -> Self {
        Self { state: self.state.succeeding(&other.state), ..self }
    }

    /// Whether this process is one of the group's reducers.
    pub(crate) fn reduces(&self) -> bool {
        self.settings.is_reducer(self.settings.me)
    }

    /// The running operation with a sequence number.
    pub(crate) fn operation(&self, sequence: u64) -> Option<OpKey> {
        self.running.find(sequence)
    }

    /// A worker tells a reducer what a plan was made from. It is taken if the same is made of it here.
    pub(crate) fn take_plan(&mut self, worker: &str, theirs: &Basis) -> Result<(), Broken> {
        let Self { state, plans, settings, .. } = self;
        let Some(reducer) = state.reducer() else { return Ok(()) };
        let taken = reducer.plan(theirs.digest(), || compared(worker, theirs, plans, settings));
        taken.map_err(|TooManyPlans| Broken::Protocol("more plans than a reducer remembers"))
    }

    /// The first worker to come announces an operation to a reducer.
    pub(crate) fn announce(&mut self, header: &Header) {
        let Self { state, running, .. } = self;
        if let Some(reducer) = state.reducer() {
            reducer.announce(header.sequence, header.hash, |sequence| running.find(sequence).is_some());
        }
    }

    /// A reducer's address, as its workers know it.
    pub(crate) fn own_address(&self) -> String {
        let Settings { parameters, .. } = &self.settings;
        let address = self.settings.own_reducer().and_then(|at| parameters.reducers.get(at));
        address.cloned().unwrap_or_default()
    }

    /// Whether a member of the job is one of the group.
    pub(crate) fn has(&self, id: MemberId) -> bool {
        self.settings.ids.contains(&id)
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
        let Self { plans, settings, state, .. } = self;
        let planned = plans.recall(key, &call, observer, |plans| {
            let planned = plans.chosen(settings, call)?;
            state.planned(planned.fingerprint.plan, &planned.basis);
            Ok(planned)
        })?;
        Ok((planned, settings))
    }

    /// A plan that was made, unless it had to make room since.
    pub(crate) fn planned(&self, key: PlanKey) -> Option<&Planned> {
        self.plans.at(key)
    }

    /// Plans take other ports from the next call on, if that was agreed on.
    #[inline]
    pub(super) fn take_ports(&mut self) {
        if self.state.has_new_ports()
            && let Some(ports) = self.state.take_ports()
        {
            self.plans.take_ports(ports);
        }
    }

    /// What plans take the ports of hosts for, as a sentence, if they have followed them.
    pub(super) fn followed_ports(&self) -> Option<&str> {
        self.port_reports.as_ref()?.followed.as_deref()
    }

    /// What is chosen for a call with these ports, and with those that plans take now.
    pub(super) fn compared(&self, call: &Call, ports: &Ports) -> Option<[Choice; 2]> {
        self.plans.compared(&self.settings, call, ports)
    }

    /// What a call means, if it was prepared before and may run straight through, now that nothing else does.
    pub(crate) fn script(&self, call: &Call, links: u64) -> Option<(PlanKey, &Arc<Script>)> {
        let idle = self.running.is_empty() && !self.state.is_fenced() && !self.state.has_new_ports();
        let planned = self.plans.known(call).filter(|_| idle)?;
        Some((planned.key, planned.script(links)?))
    }

    /// An operation of this kind was completed. Returns whether something is to be said of the ports of hosts soon.
    pub(crate) fn completed(&mut self, key: PlanKey) -> bool {
        let planned = self.plans.completed(key);
        self.port_reports
            .as_mut()
            .is_some_and(|reports| planned.is_some_and(|planned| reports.count(planned)))
    }

    /// Adds up what was completed.
    pub(crate) fn count(&self, stats: &mut Stats) {
        self.plans.count(stats);
    }

    /// A reducer's plan for what a worker's fingerprint says.
    pub(crate) fn plan_as_sent(
        &mut self,
        sent: &Fingerprint,
        observer: &mut Observer,
    ) -> Result<(&mut Planned, &Settings)> {
        let call = call_of(sent)?;
        let Self { plans, settings, state, .. } = self;
        let planned = plans.recall(None, &call, observer, |plans| {
            let algorithm = state.reducer().and_then(|reducer| reducer.algorithm(sent.plan));
            let unknown = || Error::unsupported("an operation whose plan was not sent");
            plans.made(settings, call, algorithm.ok_or_else(unknown)?, String::new())
        })?;
        if planned.fingerprint.plan != sent.plan {
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
        session::{
            Parameters,
            control::Message,
            fence::{Check, REMEMBERED},
            rebalance::{PortOutcome, PortProposal},
        },
        topology::Port,
        wire::Kind,
    };
    use crate::engine::outbox::Outbox;

    const CALL: Call = Call::new(Collective::AllReduce, DType::F32, ReduceOp::Sum, 1000);

    /// Two workers and a reducer, as member `me` of these sees them.
    fn group(me: u32, parameters: Parameters) -> Group {
        let guidance = Arc::new(Guidance::of(&parameters).unwrap());
        let ids = [0, 1, 2].map(MemberId::new).into();
        let settings = Settings::new(7, 0, ids, vec![0, 1], me, vec![0, 1], Arc::new(parameters));
        let state = match settings.is_reducer(me) {
            true => GroupState::of_reducer(7, 0),
            false => GroupState::of_worker(Member::new(7, me, vec![0, 1])),
        };
        Group::of(Settings { guidance, ..settings }, state)
    }

    fn refused(reducer: &mut Group, plan: u64) -> Option<&str> {
        reducer.state.reducer().unwrap().refused(plan)
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
        let header = |sequence| Header::new(Kind::Data, 7, 0, sequence);
        group.running.insert(3, OpKey { number: 0, place: 0 });
        let many = 2 * REMEMBERED as u64;
        (0..many).for_each(|sequence| group.announce(&header(sequence)));
        let known: Vec<u64> =
            (0..many).filter(|sequence| group.state.check(*sequence, 0) == Check::Match).collect();
        let expected = [3].into_iter().chain(many - REMEMBERED as u64 + 1..many);
        assert_eq!(known, expected.collect::<Vec<_>>());
    }

    #[test]
    fn a_reducer_takes_the_plan_that_it_is_told() {
        let (mut worker, mut reducer) = (group(0, parameters()), group(2, parameters()));
        let mut stats = Observer::default();
        let planned = worker.plan(CALL, &mut stats).unwrap();
        assert!(reducer.plan_as_sent(&planned.fingerprint, &mut stats).is_err(), "it does not guess");
        reducer.take_plan("rank 0", &planned.basis).unwrap();
        assert_eq!(refused(&mut reducer, planned.fingerprint.plan), None);
        let (sent, _) = reducer.plan_as_sent(&planned.fingerprint, &mut stats).unwrap();
        assert_eq!((&sent.basis, sent.fingerprint), (&planned.basis, planned.fingerprint));
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
            reducer.take_plan("rank 1", &theirs).unwrap();
            let reason = refused(&mut reducer, theirs.digest()).unwrap().to_owned();
            let [ours, theirs] = [&*basis, &theirs].map(|basis| basis.value(name).unwrap());
            let expected = format!("otherwise than rank 1: {name} {ours} there and {theirs} at rank 1;");
            assert!(reason.contains(&expected), "{reason}");
        }
        let mut reducer = group(2, parameters());
        let unknown = Basis { algorithm: "butterfly".to_owned(), ..Basis::clone(&basis) };
        reducer.take_plan("rank 1", &unknown).unwrap();
        assert!(refused(&mut reducer, unknown.digest()).unwrap().contains("plan of rank 1: no algorithm"));
    }

    #[test]
    fn a_reducer_remembers_so_many_plans_and_no_more() {
        let basis = group(0, parameters()).plan(CALL, &mut Observer::default()).unwrap().basis.clone();
        let mut reducer = group(2, parameters());
        let mut tell = |epoch| reducer.take_plan("rank 0", &Basis { epoch, ..Basis::clone(&basis) });
        let known = (0..1000).take_while(|epoch| tell(*epoch).is_ok()).count();
        assert_eq!(known, 64);
        assert!(tell(0).is_ok(), "what it knows it may be told again");
        reducer.state = GroupState::of_reducer(7, 1);
        assert!(reducer.take_plan("rank 0", &basis).is_ok());
    }

    /// A change of membership makes plans of its own.
    #[test]
    fn plans_are_of_an_epoch() {
        let mut observer = Observer::default();
        let first = group(0, parameters()).plan(CALL, &mut observer).unwrap().fingerprint;
        let earlier = group(0, parameters());
        let settings = Settings { epoch: 1, ..earlier.settings };
        let mut later = Group::of(settings, earlier.state);
        let second = later.plan(CALL, &mut observer).unwrap();
        assert_eq!(first.difference(&second.fingerprint), ["plan"]);
        assert_eq!(second.basis.epoch, 1);
    }

    /// Calls that were issued keep their plans, and those from the agreed number on are planned with other ports. Hosts that look alike
    /// again are planned for as at the beginning.
    #[test]
    fn plans_follow_ports_from_the_agreed_call_on() {
        let mut observer = Observer::default();
        let ids = [0, 1, 2, 3].map(MemberId::new).into();
        let parameters = Parameters { staging: 64 << 20, ..Parameters::default() };
        let ranks = vec![0, 1, 2, 3];
        let settings = Settings::new(7, 0, ids, ranks.clone(), 1, ranks.clone(), Arc::new(parameters));
        let mut group = Group::new(settings, Member::new(7, 1, ranks));
        let call = Call { count: 1 << 20, ..CALL };
        let first = group.plan(call, &mut observer).unwrap();
        let (key, plain) = (first.key, first.fingerprint);
        let mut switch = |group: &mut Group, change, slow: u64| {
            let port = |rate| Port { out: rate, into: rate };
            let ports = Ports::new(vec![port(60_000), port(60_000), port(60_000), port(slow)], 0).unwrap();
            let mut out = Outbox::default();
            group.state.receive(&Message::PortProposal(PortProposal { group: 7, change, ports }), &mut out);
            let from = group.state.next() + 1;
            group.state.settle_ports(&PortOutcome { group: 7, change, from: Some(from) }).unwrap();
            group.take_ports();
            let before = group.plan(call, &mut observer).unwrap();
            let (planned, before) = (before.fingerprint, before.basis.algorithm.clone());
            group.state.issue(planned, false, &mut out).unwrap();
            group.take_ports();
            [before, group.plan(call, &mut observer).unwrap().basis.algorithm.clone()]
        };
        let by_shares = "weighted(radix,16x3,0)".to_owned();
        assert_eq!(switch(&mut group, 1, 12_000), ["radix(2,2)".to_owned(), by_shares.clone()]);
        assert_eq!(
            group.planned(key).map(|planned| planned.fingerprint),
            Some(plain),
            "issued calls keep it"
        );
        assert_eq!(switch(&mut group, 2, 60_000), [by_shares, "radix(2,2)".to_owned()]);
        let again = group.plan(call, &mut Observer::default()).unwrap();
        assert_eq!((again.fingerprint, again.key == key), (plain, false));
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
