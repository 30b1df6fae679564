//! The settings of a group: the same on all its ranks, except for the number of this rank.

use crate::{
    config::Transport,
    core::{
        algorithm::Algorithm,
        group::{Group as FoldGroup, Rank},
        plan::Guidance,
        prepare::Sizing,
        session::{Parameters, control::Introduction, membership::MemberId},
        topology::Wiring,
        wire::Fingerprint,
    },
    observe::OperationPurpose,
};
use std::{borrow::Cow, fmt, sync::Arc, time::Duration};

/// Of a nanosecond.
const PICOSECONDS: u64 = 1000;

/// What makes a group: the same on all its ranks, except `me`.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) id: u32,
    /// The roster's epoch.
    pub(crate) epoch: u64,
    /// Its members in the order of a schedule's ranks: workers, then reducers.
    pub(crate) ids: Vec<MemberId>,
    /// My place among them.
    pub(crate) me: Rank,
    /// The rank of each worker in the job: what people call it.
    pub(crate) ranks: Vec<Rank>,
    /// The host of each worker.
    pub(crate) hosts: Vec<u32>,
    /// What rank 0 has decided.
    pub(crate) parameters: Arc<Parameters>,
    pub(crate) sums: SumOrder,
    pub(crate) sizing: Sizing,
    /// What decides the choice of algorithms beside sizes; reducers are told which one is taken.
    pub(crate) guidance: Arc<Guidance>,
    pub(crate) timeout: Duration,
    /// What it does for another group, if no program calls it.
    pub(crate) serves: Option<Service>,
}

/// How a group's sums come about.
#[derive(Clone, Debug)]
pub(crate) struct SumOrder {
    /// In which order they are folded, and by what averages divide.
    pub(crate) fold: Arc<FoldGroup>,
    /// Whether they follow that order whatever is forced, because what the inputs are sums of may lie otherwise another time.
    pub(crate) is_of_shards: bool,
}

/// What a group does for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    /// It carries long messages from the first of its two ranks to the second.
    Messages(Rank, Rank),
    /// It carries what the first of its two ranks tells the second of messages, with the short ones.
    Records(Rank, Rank),
    /// It finishes what a lost reducer has left.
    Remains,
    /// In it ranks agree about named operations. Ranks watch for the next call of this very group, so it must never get a successor:
    /// it takes no reducers, now or later.
    Agreement,
}

/// A call as errors show it.
pub(crate) enum Named {
    Call(Fingerprint),
    /// A part of a message.
    Message {
        bytes: u64,
        from: Rank,
        to: Rank,
    },
    /// One agreement about named operations.
    Agreement(u64),
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Named::Call(called) => called.fmt(f),
            Named::Message { bytes, from, to } => {
                write!(f, "message of {bytes} bytes from rank {from} to rank {to}")
            }
            Named::Agreement(sequence) => write!(f, "agreement {sequence} about named operations"),
        }
    }
}

impl Settings {
    /// Those of a group that takes `parameters`, where nothing is forced and no operation has a timeout.
    pub(crate) fn new(
        id: u32,
        epoch: u64,
        ids: Vec<MemberId>,
        ranks: Vec<Rank>,
        me: Rank,
        hosts: Vec<u32>,
        parameters: Arc<Parameters>,
    ) -> Self {
        let sizing = Sizing {
            hosts: Sizing::distinct(&hosts),
            shared: Sizing::distinct(&memories(&parameters, &hosts)) == 1,
            segment_bytes: parameters.segment as usize,
            most_staged: Sizing::most_staged(parameters.staging as usize),
        };
        let (guidance, timeout, serves) = (Arc::default(), Duration::MAX, None);
        let fold = parameters.order.group(&hosts, &parameters.wiring.sites_of(&ranks));
        let sums = SumOrder { fold: Arc::new(fold), is_of_shards: false };
        Self { id, epoch, ids, me, ranks, hosts, parameters, sums, sizing, guidance, timeout, serves }
    }

    /// Of a group whose sums are folded in the order of shards, if it is one.
    pub(crate) fn of_shards(self, shards: Option<Arc<FoldGroup>>) -> Self {
        let sums = shards.map(|fold| SumOrder { fold, is_of_shards: true });
        Self { sums: sums.unwrap_or_else(|| self.sums.clone()), ..self }
    }

    /// The same number for workers between whom messages go through memory.
    pub(crate) fn memories(&self) -> Cow<'_, [u32]> {
        memories(&self.parameters, &self.hosts)
    }

    /// Of a group in which ranks agree, which are called rarely: each rank sends to each other one at once, so a rank that calls
    /// wakes all that [watch](crate::engine::Engine::watch).
    pub(crate) fn agreeing(self) -> Self {
        let guidance = Guidance { forced: Some(Algorithm::OneShot), ..Guidance::default() };
        let ids = self.members().to_vec();
        Self { guidance: Arc::new(guidance), ids, serves: Some(Service::Agreement), ..self }
    }

    /// Those of a group as a worker tells a reducer of it, whose identity is `own`.
    pub(crate) fn of_introduction(
        introduction: &Introduction,
        own: MemberId,
        ranks: Vec<Rank>,
        parameters: Arc<Parameters>,
    ) -> Self {
        let workers = introduction.members.len();
        let mut ids = introduction.members.clone();
        // Reducers say nothing to each other.
        ids.resize(workers + introduction.reducers as usize, own);
        let Introduction { group, epoch, reducer, ref hosts, .. } = *introduction;
        let me = workers as Rank + reducer;
        let fold = introduction.fold.clone();
        let settings = Self::new(group, epoch, ids, ranks, me, hosts.clone(), parameters);
        Self { sums: SumOrder { fold: Arc::new(fold), is_of_shards: false }, ..settings }
    }

    /// What is known of the links between its workers, and of their hosts' ports.
    pub(crate) fn wiring(&self) -> Wiring {
        self.parameters.wiring.among(&self.ranks)
    }

    /// What decides the choice of algorithms, with what is known of the ways between these workers' hosts.
    pub(crate) fn guided(&self) -> Guidance {
        let nanoseconds = self.parameters.wiring.round_trips.nanoseconds(&self.ranks);
        let latency = nanoseconds.map(|time| time.saturating_mul(PICOSECONDS));
        Guidance { latency, ..Guidance::clone(&self.guidance) }
    }

    /// The workers.
    pub(crate) fn members(&self) -> &[MemberId] {
        &self.ids[..self.ranks.len()]
    }

    /// How many workers there are.
    pub(crate) fn workers(&self) -> u32 {
        self.ranks.len() as u32
    }

    /// Whether a place is a reducer's.
    pub(crate) fn is_reducer(&self, place: Rank) -> bool {
        place >= self.workers()
    }

    /// The reducers, in the order in which schedules number them.
    pub(crate) fn servers(&self) -> &[MemberId] {
        &self.ids[self.ranks.len()..]
    }

    /// Which of the reducers this process is, if it is one.
    pub(crate) fn own_reducer(&self) -> Option<usize> {
        self.me.checked_sub(self.workers()).map(|reducer| reducer as usize)
    }

    /// How many reducers there are.
    pub(crate) fn reducers(&self) -> u32 {
        self.servers().len() as u32
    }

    /// Why an operation of it that has this root runs here.
    #[inline]
    pub(super) fn purpose(&self, root: Rank) -> OperationPurpose {
        match self.serves {
            Some(Service::Messages(..)) if root == self.me => OperationPurpose::Sends,
            Some(Service::Messages(..)) => OperationPurpose::Receives,
            Some(Service::Records(..)) => OperationPurpose::Announces,
            Some(Service::Remains | Service::Agreement) => OperationPurpose::Serves,
            None => OperationPurpose::Called,
        }
    }

    /// What was called, as errors show it.
    pub(super) fn named(&self, called: Fingerprint) -> Named {
        match self.serves {
            Some(Service::Messages(from, to) | Service::Records(from, to)) => {
                Named::Message { bytes: called.count, from, to }
            }
            Some(Service::Agreement) => Named::Agreement(called.sequence),
            Some(Service::Remains) | None => Named::Call(called.in_job(&self.ranks)),
        }
    }
}

fn memories<'a>(parameters: &Parameters, hosts: &'a [u32]) -> Cow<'a, [u32]> {
    match parameters.transport.as_deref() {
        Some(name) if name == Transport::Tcp.name() => (0..hosts.len() as u32).collect(),
        _ => Cow::Borrowed(hosts),
    }
}
