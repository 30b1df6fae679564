//! A group, as one of its ranks (or a reducer) sees it: who is in it, what its calls mean, where it stands.

use crate::core::group::Group as FoldGroup;
use crate::{
    Error, Result,
    core::{
        algorithm::{Algorithm, Layout},
        collective::Collective,
        element::{DType, ReduceOp},
        group::{FoldOrder, Rank},
        plan,
        schedule::Program,
        session::{
            control::Message,
            fence::{Admission, Check, Member, REMEMBERED},
        },
        verify::{Verified, verify},
        wire::{Fingerprint, Header, digest},
    },
    engine::doom::Doom,
    execute::{
        cutting,
        issue::WORLD_GROUP,
        prepare,
        program::{Call, Prepared, Sizing},
        script::Script,
    },
    observe::Observer,
    transport::{stats::Stats, ticket::OpKey},
};
use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

/// Plans that are kept; a program that uses more kinds of calls makes them anew.
const PLANS_KEPT: usize = 4096;

/// What makes a group: the same on all its ranks, except `me`.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) id: u32,
    /// The endpoints of the roster: workers by rank, then reducers.
    pub(crate) roster: Vec<u32>,
    pub(crate) workers: u32,
    /// My position in the roster.
    pub(crate) me: Rank,
    /// The host of each worker.
    pub(crate) hosts: Vec<u32>,
    pub(crate) order: FoldOrder,
    /// The same number for workers between whom messages go through memory.
    pub(crate) memories: Vec<u32>,
    pub(crate) sizing: Sizing,
    pub(crate) forced: Option<Algorithm>,
    pub(crate) timeout: Duration,
}

impl Settings {
    /// The workers, by their numbers in the job.
    pub(crate) fn members(&self) -> &[u32] {
        &self.roster[..self.workers as usize]
    }

    /// What was called, as errors show it.
    pub(super) fn named(&self, called: Fingerprint) -> Fingerprint {
        called.in_job(self.members())
    }
}

/// What workers have told a reducer.
#[derive(Debug, Default)]
struct Told {
    generation: u32,
    history: VecDeque<(u64, u64, Fingerprint)>,
}

/// One kind of call, planned and proved.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) algorithm: String,
    /// The number by which the observer knows its name.
    pub(crate) number: u32,
    pub(crate) why: String,
    pub(crate) fingerprint: Fingerprint,
    /// The endpoints that it exchanges messages with.
    pub(crate) partners: Vec<u32>,
    pub(crate) with_reducers: bool,
    /// How many operations of this kind were completed.
    completed: u64,
    verified: Arc<Verified>,
    program: Program,
    pub(crate) call: Call,
    prepared: Option<(u64, Arc<Prepared>)>,
    /// For operations that may run straight through.
    script: Option<Arc<Script>>,
}

/// A group.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) settings: Settings,
    pub(crate) member: Member,
    /// Whether nothing more is called in it here.
    pub(crate) is_dropped: bool,
    /// Workers that have told a reducer that they take no part in it any more.
    pub(crate) dropped_by: BTreeSet<u32>,
    /// Operations that have been issued and are not over, oldest first.
    pub(crate) running: VecDeque<(u64, OpKey)>,
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
    told: Told,
    fold: FoldGroup,
    plans: Vec<Planned>,
    by_call: HashMap<Call, usize>,
    /// The plan that was asked for last: training asks for the same again and again.
    recent: usize,
    /// The plan that goes next when there are too many.
    oldest: usize,
    proofs: HashMap<(Collective, String), Arc<Verified>>,
}

impl Group {
    pub(crate) fn new(settings: Settings, member: Member) -> Self {
        Self {
            fold: settings.order.group(&settings.hosts),
            settings,
            member,
            is_dropped: false,
            dropped_by: BTreeSet::new(),
            running: VecDeque::new(),
            lost: None,
            without_reducers: None,
            doom: None,
            frozen: None,
            unanswered: None,
            told: Told::default(),
            plans: Vec::new(),
            by_call: HashMap::new(),
            recent: 0,
            oldest: 0,
            proofs: HashMap::new(),
        }
    }

    /// Goes on where the hub has left a member of which nothing but its number was known.
    pub(crate) fn follow(&mut self, member: Member) {
        let workers = self.settings.members();
        self.member = member.among(workers.to_vec());
    }

    /// Whether this process is one of the group's reducers.
    pub(crate) fn reduces(&self) -> bool {
        self.settings.me >= self.settings.workers
    }

    /// The generation that this process works in.
    pub(crate) fn generation(&self) -> u32 {
        if self.reduces() { self.told.generation } else { self.member.generation() }
    }

    /// The running operation with a sequence number.
    pub(crate) fn operation(&self, sequence: u64) -> Option<OpKey> {
        self.running.iter().find(|(at, _)| *at == sequence).map(|(_, key)| *key)
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost.is_some()
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
        match self.told.history.iter().find(|(sequence, ..)| *sequence == header.sequence) {
            Some((_, hash, _)) if *hash == header.hash => Check::Match,
            Some(_) => Check::Differs,
            None => Check::NotYet,
        }
    }

    /// A reducer remembers what the first worker to come says of an operation, and of those that run.
    pub(crate) fn note_told(&mut self, header: &Header, told: Fingerprint) {
        if self.told.history.len() >= REMEMBERED {
            // Few run at once, so what is over is found soon.
            let is_over = |(sequence, ..): &(u64, u64, Fingerprint)| self.operation(*sequence).is_none();
            let over = self.told.history.iter().position(is_over);
            over.and_then(|over| self.told.history.remove(over));
        }
        self.told.history.push_back((header.sequence, header.hash, told));
    }

    /// The generation that a reducer works in.
    pub(crate) fn told_generation(&self) -> u32 {
        self.told.generation
    }

    /// A reducer is told of a new generation.
    pub(crate) fn begin_generation(&mut self, generation: u32) {
        self.told = Told { generation, history: VecDeque::new() };
    }

    /// The position of an endpoint in the roster.
    pub(crate) fn rank_of(&self, endpoint: u32) -> Option<Rank> {
        self.settings.roster.iter().position(|at| *at == endpoint).map(|rank| rank as Rank)
    }

    /// What a call means here: chosen, generated, proved and compiled once.
    pub(crate) fn plan(&mut self, call: Call, observer: &mut Observer) -> Result<&mut Planned> {
        match self.known(&call) {
            Some(at) => self.recent = at,
            None => {
                let planned = self.chosen(call)?;
                self.keep(planned, observer);
            }
        }
        Ok(&mut self.plans[self.recent])
    }

    fn known(&self, call: &Call) -> Option<usize> {
        match self.plans.get(self.recent) {
            Some(planned) if planned.call == *call => Some(self.recent),
            _ => self.by_call.get(call).copied(),
        }
    }

    /// What a call means, if it was prepared before and may run straight through, now that nothing else does.
    pub(crate) fn script(&self, call: &Call, links: u64) -> Option<&Arc<Script>> {
        let idle = self.running.is_empty() && self.frozen.is_none() && self.unanswered.is_none();
        let planned = self.known(call).filter(|_| idle).map(|at| &self.plans[at])?;
        planned.is_prepared(links).and(planned.script.as_ref())
    }

    fn keep(&mut self, mut planned: Planned, observer: &mut Observer) {
        planned.number = observer.number_of(&planned.algorithm);
        self.recent = if self.plans.len() < PLANS_KEPT { self.plans.len() } else { self.oldest };
        self.by_call.insert(planned.call, self.recent);
        match self.plans.get_mut(self.recent) {
            None => self.plans.push(planned),
            Some(place) => {
                let gone = std::mem::replace(place, planned);
                self.by_call.remove(&gone.call);
                observer.stats.completed(gone.call.collective.name(), &gone.algorithm, gone.completed);
                self.oldest = (self.oldest + 1) % PLANS_KEPT;
            }
        }
    }

    /// An operation of this kind was completed.
    pub(crate) fn completed(&mut self, call: &Call) {
        if let Some(at) = self.known(call) {
            self.plans[at].completed += 1;
        }
    }

    /// Adds up what was completed.
    pub(crate) fn count(&self, stats: &mut Stats) {
        for planned in &self.plans {
            stats.completed(planned.call.collective.name(), &planned.algorithm, planned.completed);
        }
    }

    fn chosen(&mut self, call: Call) -> Result<Planned> {
        let reducers = self.settings.roster.len() as u32 - self.settings.workers;
        let Call { collective, dtype, op, count } = call;
        let choice = plan::choose(&plan::Request {
            reducers,
            hosts: &self.settings.hosts,
            forced: self.settings.forced.as_ref(),
            ..plan::Request::of_elements(collective, dtype, op, count, &self.fold)
        })
        .map_err(Error::unsupported)?;
        self.planned(call, &choice.algorithm, choice.why)
    }

    /// A reducer's plan for what a worker's fingerprint says.
    pub(crate) fn plan_as_told(
        &mut self,
        told: &Fingerprint,
        observer: &mut Observer,
    ) -> Result<&mut Planned> {
        let call = call_of(told)?;
        match self.known(&call) {
            Some(at) => self.recent = at,
            None => {
                let algorithm = self.told_algorithm(&call, told)?;
                let planned = self.planned(call, &algorithm, String::new())?;
                self.keep(planned, observer);
            }
        }
        let planned = &mut self.plans[self.recent];
        if planned.fingerprint.plan != told.plan {
            return Err(Error::unsupported("another plan than it had before"));
        }
        Ok(planned)
    }

    /// Which of the algorithms that reducers take part in a worker means.
    fn told_algorithm(&self, call: &Call, told: &Fingerprint) -> Result<Algorithm> {
        let chosen = [Algorithm::ReductionServer, Algorithm::hosts_and_reducers()];
        let plan =
            |algorithm: &Algorithm| fingerprint(call, &algorithm.to_string(), self.settings.sizing).plan;
        let meant = chosen.into_iter().chain(self.settings.forced.clone()).find(|one| plan(one) == told.plan);
        meant.ok_or_else(|| Error::unsupported("an operation that does not concern reducers"))
    }

    fn planned(&mut self, call: Call, algorithm: &Algorithm, why: String) -> Result<Planned> {
        let verified = self.proof(call.collective, algorithm)?;
        let program = verified.schedule().program(self.settings.me).into_owned();
        let partners = prepare::partners(&program);
        let with_reducers = partners.iter().any(|rank| *rank >= self.settings.workers);
        let partners = partners.iter().map(|rank| self.settings.roster[*rank as usize]).collect();
        let algorithm = algorithm.to_string();
        Ok(Planned {
            fingerprint: fingerprint(&call, &algorithm, self.settings.sizing),
            algorithm,
            number: 0,
            why,
            partners,
            with_reducers,
            completed: 0,
            verified,
            program,
            call,
            prepared: None,
            script: None,
        })
    }

    fn proof(&mut self, collective: Collective, algorithm: &Algorithm) -> Result<Arc<Verified>> {
        let key = (collective, algorithm.to_string());
        if let Some(verified) = self.proofs.get(&key) {
            return Ok(verified.clone());
        }
        let reducers = self.settings.roster.len() as u32 - self.settings.workers;
        let layout = Layout { reducers, hosts: &self.settings.hosts };
        let schedule = algorithm.schedule(collective, &self.fold, &layout).map_err(Error::unsupported)?;
        let verified = verify(schedule, collective, &self.fold).map_err(|error| {
            Error::unsupported(format!("the schedule of {algorithm} is wrong, a bug: {error}"))
        })?;
        let verified = Arc::new(verified);
        self.proofs.insert(key, verified.clone());
        Ok(verified)
    }
}

impl Planned {
    /// The program compiled for links as they are, if it is (`links` counts their changes).
    pub(crate) fn is_prepared(&self, links: u64) -> Option<&Arc<Prepared>> {
        self.prepared.as_ref().filter(|(made_for, _)| *made_for == links).map(|(_, prepared)| prepared)
    }

    /// Compiles rank `me`'s program, as [`prepare`](prepare::prepare) says.
    pub(crate) fn prepare(
        &mut self,
        me: Rank,
        sizing: (Sizing, &[u32]),
        links: u64,
        shared: impl Fn(u32) -> bool,
    ) -> Arc<Prepared> {
        let Self { verified, program, call, .. } = self;
        let prepared = Arc::new(prepare::prepare(verified, program, me, *call, sizing, shared));
        self.script = Script::of(&prepared, &self.partners).filter(|_| self.verified.serial()).map(Arc::new);
        self.prepared = Some((links, prepared.clone()));
        prepared
    }
}

/// A group's number within its job. Two groups that meet have at least one rank in common, which notices if they collide.
pub(crate) fn number_of(name: &str, members: &[u32]) -> u32 {
    let mut bytes = name.as_bytes().to_vec();
    members.iter().for_each(|member| bytes.extend_from_slice(&member.to_le_bytes()));
    let hash = digest(&bytes);
    ((hash ^ hash >> 32) as u32).max(WORLD_GROUP + 1)
}

fn fingerprint(call: &Call, algorithm: &str, sizing: Sizing) -> Fingerprint {
    let (code, root) = (call.collective.code(), call.collective.root().unwrap_or(0));
    let plan =
        digest(format!("{algorithm} {}", cutting::constants()).as_bytes()) ^ sizing.segment_bytes as u64;
    let folds = call.collective.folds();
    Fingerprint {
        sequence: 0,
        collective: code,
        dtype: call.dtype.code(),
        op: if folds { call.op.code() } else { 0 },
        order: 0,
        root,
        count: call.count as u64,
        plan,
        priority: 0,
    }
}

fn call_of(told: &Fingerprint) -> Result<Call> {
    let unknown = || Error::unsupported(format!("an operation that this version does not know: {told}"));
    Ok(Call {
        collective: Collective::from_code(told.collective, told.root).ok_or_else(unknown)?,
        dtype: DType::from_code(told.dtype).ok_or_else(unknown)?,
        op: ReduceOp::from_code(told.op).ok_or_else(unknown)?,
        count: usize::try_from(told.count).map_err(|_| unknown())?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::wire::Kind;

    #[test]
    fn a_reducer_remembers_what_runs() {
        let sizing = Sizing { hosts: 1, shared: false, segment_bytes: 0, most_staged: usize::MAX };
        let (hosts, memories, timeout) = (vec![0], vec![0], Duration::from_secs(1));
        let (id, roster, workers, me, forced) = (7, vec![0, 1], 1, 1, None);
        let order = FoldOrder::Ranks;
        let settings = Settings { id, roster, workers, me, hosts, order, memories, sizing, forced, timeout };
        let mut group = Group::new(settings, Member::new(id, 1, vec![1]));
        let call = Call { collective: Collective::AllReduce, dtype: DType::F32, op: ReduceOp::Sum, count: 1 };
        let told = fingerprint(&call, "reduction_server", sizing);
        let header = |sequence| Header::new(Kind::Data, id, 0, sequence);
        group.running.push_back((3, OpKey { number: 0, place: 0 }));
        let many = 2 * REMEMBERED as u64;
        (0..many).for_each(|sequence| group.note_told(&header(sequence), told));
        let known: Vec<u64> =
            (0..many).filter(|sequence| group.check(&header(*sequence), true) == Check::Match).collect();
        let expected = [3].into_iter().chain(many - REMEMBERED as u64 + 1..many);
        assert_eq!(known, expected.collect::<Vec<_>>());
    }
}
