//! How a world forms: rank 0 gathers the others.
//!
//! Every rank sends its settings in a [`Join`]. Rank 0 admits the rank or refuses it with a reason. When all ranks have
//! joined, each gets the same [roster](Roster) and the same [`Parameters`]. If ranks' settings can differ, the result
//! does not depend on the order in which they join. The staging pool and the segment are the smallest of all ranks. The
//! fold order, the algorithm, the transport and the reducers are rank 0's, and another rank either sets none or the
//! same.

use super::{
    basis::Difference,
    codec::{Malformed, Reader, Writer},
    membership::{MEMBERS, Process, Roster},
    parameters::{CUTTING, FileText, Measuring, Parameters, PlanText, TREE_BOUND},
    refusal::Refusal,
};
use crate::{
    group::{FoldOrder, Rank},
    topology::{RoundTrips, TopologyError, Wiring},
};
use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
    format,
    string::{String, ToString},
    sync::Arc,
    vec::Vec,
};
use core::fmt;

/// The parameters that a rank asks the world to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The staging pool of a process, in bytes.
    pub staging: u64,
    /// The most bytes of a segment over the whole buffer; `u64::MAX` if others decide.
    pub segment: u64,
    /// The source of fold keys, if it is not left to rank 0, or by rank 0 to the default.
    pub order: Option<FoldOrder>,
    /// The algorithm, if the choice is not left to the planner.
    pub algorithm: Option<String>,
    /// The transport, if it is forced.
    pub transport: Option<String>,
    /// The addresses of the reducers.
    pub reducers: Vec<String>,
    /// A digest of the constants by which its build cuts messages.
    pub cutting: u64,
    /// Its knowledge of the links between all ranks, and of their hosts' ports.
    pub wiring: Wiring,
    /// Whether the ranks are to measure the links, and to follow their hosts' ports.
    pub measuring: Measuring,
    /// Up to how many elements one tree carries the whole buffer, if it is not left to rank 0, or by rank 0 to the default.
    pub tree_bound: Option<u64>,
    /// Rules for algorithms, each as a text; none if they are left to rank 0.
    pub plan: Vec<String>,
    /// The numbers of the machines' constants; none if they are left to rank 0.
    pub calibration: Vec<u64>,
}

/// The name that a launcher or a user gives the job of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobName {
    /// The variable that has it.
    pub source: String,
    /// Its value.
    pub name: String,
}

/// A rank's request to take part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Join {
    /// The rank in its settings.
    pub rank: Rank,
    /// Its process.
    pub process: Process,
    /// The number of ranks in its settings.
    pub world: u32,
    /// Its settings.
    pub settings: Box<Settings>,
    /// The names of its job, in the order in which their sources count.
    pub job: Vec<JobName>,
    /// The name of its host, which a topology can use.
    pub host_name: String,
}

/// A rank's word that it does not come, because it cannot use a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decline {
    /// The names of its job, as in a [`Join`]; none if it cannot read them.
    pub job: Vec<JobName>,
    /// The setting.
    pub setting: String,
    /// The problem, and how to fix it.
    pub problem: String,
}

/// A world: its members and its parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Formed {
    /// The job: a random number, which keeps jobs with the same token apart.
    pub job: u64,
    /// Everybody.
    pub roster: Roster,
    /// The parameters of all.
    pub parameters: Parameters,
}

/// How far a formation has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// This many ranks are missing; see [`Formation::missing`].
    Waiting(u32),
    /// All ranks are there; see [`Formation::found`].
    Complete,
}

/// Rank 0's view of a world that forms.
#[derive(Clone, Debug)]
pub struct Formation {
    world: u32,
    /// What rank 0 decides. Its sizes count as any other rank's.
    decided: Parameters,
    joined: BTreeMap<Rank, Joined>,
    /// Where reducers should listen, and none does yet.
    absent: BTreeSet<String>,
}

#[derive(Clone, Debug)]
struct Joined {
    process: Process,
    from: String,
    staging: u64,
    segment: u64,
    job: Vec<JobName>,
    host_name: String,
    /// To rank 0, in microseconds; 0 if it is not known.
    round_trip: u32,
}

impl JobName {
    /// The names that show that two ranks are in different jobs: the names from the first source that both know, if
    /// they differ. If both know no common source, nothing is shown.
    pub fn differ<'a>(ours: &'a [Self], theirs: &'a [Self]) -> Option<(&'a Self, &'a Self)> {
        let same = |our: &'a Self| theirs.iter().find(|their| their.source == our.source);
        let (our, their) = ours.iter().find_map(|our| Some((our, same(our)?)))?;
        (our.name != their.name).then_some((our, their))
    }

    /// Whether a rank with the names `theirs` is allowed to meet one with the names `ours`.
    ///
    /// # Errors
    /// If they are of two jobs.
    pub fn check(rank: Rank, ours: &[Self], theirs: &[Self]) -> Result<(), Refusal> {
        let refusal = |(ours, theirs): (&Self, &Self)| Refusal::OtherJob {
            rank,
            ours: ours.to_string(),
            theirs: theirs.to_string(),
        };
        Self::differ(ours, theirs).map_or(Ok(()), |pair| Err(refusal(pair)))
    }

    fn write(&self, to: &mut Writer) {
        to.text("the source of a job's name", &self.source);
        to.text("a job's name", &self.name);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self { source: from.text()?, name: from.text()? })
    }
}

impl fmt::Display for JobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.source, self.name)
    }
}

impl Formation {
    /// Begins with rank 0 itself, whose word counts.
    ///
    /// # Errors
    /// If its rank is not one of its world's, or there are more members than a roster takes.
    pub fn new(own: Join) -> Result<Self, Refusal> {
        let Join { rank, process, world, settings, job, host_name } = own;
        check_rank(rank, world)?;
        let decided = settings.over(&Parameters { tree_bound: TREE_BOUND, ..Parameters::default() });
        if world as usize + decided.reducers.len() > MEMBERS {
            return Err(Refusal::NoRoom { what: "the number of members".into(), limit: MEMBERS as u64 });
        }
        let Settings { staging, segment, .. } = *settings;
        let from = process.address.clone();
        let joined = Joined { from, process, staging, segment, job, host_name, round_trip: 0 };
        Ok(Self { world, decided, joined: [(rank, joined)].into(), absent: BTreeSet::new() })
    }

    /// A rank comes, over a connection from the address `from`. The same process can come again: its last message is
    /// used.
    ///
    /// # Errors
    /// A reason to send back; the formation is as before.
    pub fn join(&mut self, join: Join, from: &str) -> Result<Progress, Refusal> {
        let Join { rank, process, world, settings, job, host_name } = join;
        for there in self.joined.values() {
            JobName::check(rank, &there.job, &job)?;
        }
        if world != self.world {
            return Err(Refusal::World { rank, ours: self.world, theirs: world });
        }
        check_rank(rank, world)?;
        if let Some(there) = self.joined.get(&rank)
            && there.process.incarnation != process.incarnation
        {
            return Err(Refusal::DuplicateRank { rank, first: there.from.clone(), second: from.into() });
        }
        if let Some(difference) = self.decided.difference(&settings.over(&self.decided)).into_iter().next() {
            return Err(refusal(rank, difference));
        }
        let Settings { staging, segment, .. } = *settings;
        let from = from.into();
        let joined = Joined { process, from, staging, segment, job, host_name, round_trip: 0 };
        self.joined.insert(rank, joined);
        Ok(self.progress())
    }

    /// The names of the job, as the lowest rank that has any knows them.
    pub fn job(&self) -> &[JobName] {
        self.joined.values().map(|there| &there.job[..]).find(|job| !job.is_empty()).unwrap_or_default()
    }

    /// A rank that had come is gone, and might come again as another process.
    pub fn withdraw(&mut self, rank: Rank, incarnation: u64) {
        if self.joined.get(&rank).is_some_and(|there| there.process.incarnation == incarnation) {
            self.joined.remove(&rank);
        }
    }

    /// How long a rank's messages take to rank 0 and back, in microseconds.
    pub fn measured(&mut self, rank: Rank, microseconds: u32) {
        if let Some(joined) = self.joined.get_mut(&rank) {
            joined.round_trip = microseconds;
        }
    }

    /// The ranks that have not come yet, ascending; shown with [`Ranks`](super::Ranks).
    pub fn missing(&self) -> Vec<Rank> {
        (0..self.world).filter(|rank| !self.joined.contains_key(rank)).collect()
    }

    /// How far it has come.
    pub fn progress(&self) -> Progress {
        match self.world - self.joined.len() as u32 {
            0 => Progress::Complete,
            missing => Progress::Waiting(missing),
        }
    }

    /// The addresses of the reducers that rank 0 knows.
    pub fn reducers(&self) -> &[String] {
        &self.decided.reducers
    }

    /// The world is to be founded without a reducer: it does not answer.
    pub fn leave_out(&mut self, reducer: &str) {
        self.absent.insert(reducer.into());
    }

    /// The contents of the files that rank 0's plan names, in the order of its rules.
    pub fn give(&mut self, files: Arc<[FileText]>) {
        self.decided.plan.files = files;
    }

    /// Finds the places of the ranks in rank 0's topology, whose nodes have these names. Either node i is rank i, or
    /// each rank's host is a node.
    ///
    /// # Errors
    /// [`TopologyError::Whole`] if neither holds.
    pub fn place(&mut self, nodes: &[String]) -> Result<(), TopologyError> {
        let hosts: Vec<&str> = self.joined.values().map(|there| &there.host_name[..]).collect();
        self.decided.wiring = core::mem::take(&mut self.decided.wiring).placed(nodes, &hosts)?;
        Ok(())
    }

    /// The world in its first epoch, once it is complete.
    pub fn found(&self, job: u64) -> Option<Formed> {
        if self.progress() != Progress::Complete {
            return None;
        }
        let smallest = |size: fn(&Joined) -> u64| self.joined.values().map(size).min();
        let preferred = smallest(|joined| joined.segment)?;
        let mut parameters = Parameters {
            staging: smallest(|joined| joined.staging)?,
            segment: if preferred == u64::MAX { 0 } else { preferred },
            reducers: self
                .decided
                .reducers
                .iter()
                .filter(|address| !self.absent.contains(*address))
                .cloned()
                .collect(),
            ..self.decided.clone()
        };
        let workers = self.joined.values().map(|joined| joined.process.clone()).collect();
        let roster = Roster::founded(workers, &parameters.reducers).ok()?;
        let hosts = roster.hosts();
        let round_trips: Vec<u32> = self.joined.values().map(|joined| joined.round_trip).collect();
        parameters.wiring.round_trips = RoundTrips::new(&round_trips, &hosts);
        let ports = parameters.wiring.ports.as_ref();
        // Of each host one rank's port may be all that is known.
        let shared = ports.filter(|ports| ports.size() == hosts.len()).map(|ports| ports.shared(&hosts));
        if let Some(ports) = shared {
            parameters.wiring.ports = Some(ports);
        }
        Some(Formed { job, roster, parameters })
    }
}

fn check_rank(rank: Rank, world: u32) -> Result<(), Refusal> {
    if rank < world { Ok(()) } else { Err(Refusal::RankOutOfRange { rank, world }) }
}

/// Why a rank that differs so is not let in.
fn refusal(rank: Rank, difference: Difference) -> Refusal {
    let Difference { name, ours, theirs } = difference;
    if name == CUTTING {
        return Refusal::Build { rank, ours, theirs };
    }
    Refusal::Setting { rank, name: name.into(), ours: quoted(&ours), theirs: quoted(&theirs) }
}

impl Settings {
    /// What a rank with these settings would decide where it leaves to others what is decided already. Sizes are no
    /// matter of opinion: the smallest count.
    fn over(&self, decided: &Parameters) -> Parameters {
        let Self { order, algorithm, transport, reducers, cutting, tree_bound, plan, calibration, .. } = self;
        let (wiring, at_start) = match (self.wiring.is_unknown(), self.measuring.at_start) {
            (true, false) => (decided.wiring.clone(), decided.measuring.at_start),
            (is_unknown, _) => (self.wiring.clone(), is_unknown),
        };
        let while_running = self.measuring.while_running || decided.measuring.while_running;
        Parameters {
            order: order.unwrap_or(decided.order),
            algorithm: algorithm.clone().or_else(|| decided.algorithm.clone()),
            transport: transport.clone().or_else(|| decided.transport.clone()),
            reducers: if reducers.is_empty() { decided.reducers.clone() } else { reducers.clone() },
            cutting: *cutting,
            wiring,
            measuring: Measuring { at_start, while_running },
            tree_bound: tree_bound.unwrap_or(decided.tree_bound),
            plan: match plan.is_empty() {
                true => decided.plan.clone(),
                false => PlanText { rules: plan.clone(), files: decided.plan.files.clone() },
            },
            calibration: if calibration.is_empty() {
                decided.calibration.clone()
            } else {
                calibration.clone()
            },
            ..*decided
        }
    }

    fn write(&self, to: &mut Writer) {
        to.u64(self.staging);
        to.u64(self.segment);
        to.option(self.order.as_ref(), |to, order| to.u8(order.code()));
        to.option(self.algorithm.as_ref(), |to, name| to.text("an algorithm's name", name));
        to.option(self.transport.as_ref(), |to, name| to.text("a transport's name", name));
        to.list("the list of reducers", &self.reducers, |to, address| {
            to.text("a reducer's address", address);
        });
        to.u64(self.cutting);
        to.wiring(&self.wiring);
        self.measuring.write(to);
        to.option(self.tree_bound.as_ref(), |to, bound| to.u64(*bound));
        to.list("the rules of a plan", &self.plan, |to, rule| to.text("a rule of a plan", rule));
        to.list("the constants of machines", &self.calibration, |to, number| to.u64(*number));
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (staging, segment, order) = (from.u64()?, from.u64()?, from.option(Reader::fold_order)?);
        let (algorithm, transport) = (from.option(Reader::text)?, from.option(Reader::text)?);
        let (reducers, cutting) = (from.list(Reader::text)?, from.u64()?);
        let (wiring, measuring, tree_bound) =
            (from.wiring()?, Measuring::read(from)?, from.option(Reader::u64)?);
        let (plan, calibration) = (from.list(Reader::text)?, from.list(Reader::u64)?);
        Ok(Self {
            staging,
            segment,
            order,
            algorithm,
            transport,
            reducers,
            cutting,
            wiring,
            measuring,
            tree_bound,
            plan,
            calibration,
        })
    }
}

/// A setting as a refusal shows it: short enough to be sent.
fn quoted(value: &str) -> String {
    const SHOWN: usize = 60;
    match value.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("\"{}...\"", &value[..end]),
        None => format!("\"{value}\""),
    }
}

impl Decline {
    pub(super) fn write(&self, to: &mut Writer) {
        to.list("the names of a job", &self.job, |to, name| name.write(to));
        to.cut_text(&self.setting);
        to.cut_text(&self.problem);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self { job: from.list(JobName::read)?, setting: from.text()?, problem: from.text()? })
    }
}

impl Join {
    pub(super) fn write(&self, to: &mut Writer) {
        to.u32(self.rank);
        self.process.write(to);
        to.u32(self.world);
        self.settings.write(to);
        to.list("the names of a job", &self.job, |to, name| name.write(to));
        to.text("a host's name", &self.host_name);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (rank, process, world) = (from.u32()?, Process::read(from)?, from.u32()?);
        let (settings, job, host_name) =
            (Box::new(Settings::read(from)?), from.list(JobName::read)?, from.text()?);
        Ok(Self { rank, process, world, settings, job, host_name })
    }
}
