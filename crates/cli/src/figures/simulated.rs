//! Proven schedules, simulated on the machines of a figure.

use crate::{failure::Failure, layout};
use herringbone::{
    Algorithm, Collective, FoldOrder, ReduceOp,
    core::{
        algorithm::{Layout, cost::Cost},
        element::DType,
        group::Group,
        plan::{
            PriceBasis, Request,
            predicted::{Unpriced, machine, predicted},
            price,
        },
        prepare::{Call, Sizing},
        simulate::{Calibration, Costs, Overhead, Prediction, SECOND, Workload, estimate},
        verify::{Verified, verify},
    },
    parse_algorithm,
};
use std::fmt::Display;

/// The most messages that a simulation goes through.
pub(super) const MOST_MESSAGES: u64 = 400_000;

/// What an operation takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Took {
    pub(super) seconds: f64,
    /// It was priced, and not simulated.
    pub(super) is_price: bool,
}

/// SimulatedCalls of an operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct SimulatedCalls {
    /// The bytes of each buffer.
    pub(super) bytes: u64,
    pub(super) operations: u32,
    /// How many run at once at most.
    pub(super) at_once: u32,
    /// The bytes of a segment; 0: as in a job with default settings.
    pub(super) segment_bytes: usize,
}

/// An operation: an algorithm's schedule, which is proved.
pub(super) struct ProvenOperation {
    algorithm: Algorithm,
    /// The host of each rank.
    hosts: Vec<u32>,
    reducers: u32,
    group: Group,
    pub(super) verified: Verified,
}

impl ProvenOperation {
    /// By an algorithm as `verify` names it, among ranks on these hosts, a number for each rank.
    ///
    /// # Errors
    /// If it has no schedule for these ranks and reducers.
    pub(super) fn new(
        name: &str,
        collective: Collective,
        hosts: Vec<u32>,
        reducers: u32,
    ) -> Result<Self, Failure> {
        let group = FoldOrder::Ranks.group(&hosts, &[]);
        let algorithm = parse_algorithm(name).map_err(unusable)?;
        let reducers = if algorithm.needs_reducers() { reducers } else { 0 };
        let layout = Layout { reducers, hosts: &hosts, links: None };
        let schedule = algorithm.schedule(collective, &group, &layout).map_err(unusable)?;
        let verified = verify(schedule, collective, &group).map_err(unusable)?;
        Ok(Self { algorithm, hosts, reducers, group, verified })
    }

    /// An all-reduce among ranks that have a host each.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(super) fn all_reduce(name: &str, ranks: u32, reducers: u32) -> Result<Self, Failure> {
        Self::new(name, Collective::AllReduce, layout::hosts(ranks, 1), reducers)
    }

    /// How long it takes with a buffer of this many bytes of f32, cut as in a job with default settings.
    ///
    /// # Errors
    /// If there is no such time.
    pub(super) fn took(&self, bytes: u64, known: &Calibration) -> Result<Took, Failure> {
        let request = self.request(bytes);
        let basis = PriceBasis { known, sizing: sizing(&self.hosts)? };
        match predicted(MOST_MESSAGES, &request, &self.algorithm, &self.verified, basis) {
            Ok(simulated) => Ok(Took { seconds: simulated.total() as f64 / SECOND as f64, is_price: false }),
            Err(why @ Unpriced::TooManyMessages { .. }) => {
                let nanoseconds = price(&request, &self.algorithm, basis).ok_or_else(|| unusable(why))?;
                Ok(Took { seconds: nanoseconds as f64 / 1e9, is_price: true })
            }
            Err(why) => Err(unusable(why)),
        }
    }

    fn count(bytes: u64) -> usize {
        usize::try_from(bytes / 4).unwrap_or(usize::MAX)
    }

    fn request(&self, bytes: u64) -> Request<'_> {
        let (collective, count) = (self.verified.collective(), Self::count(bytes));
        Request {
            reducers: self.reducers,
            hosts: &self.hosts,
            ..Request::of_elements(collective, DType::F32, ReduceOp::Sum, count, &self.group)
        }
    }

    /// What several such calls take, one after the other or at once, all of them simulated.
    ///
    /// # Errors
    /// If there is no such time.
    pub(super) fn calls(&self, calls: &SimulatedCalls, known: &Calibration) -> Result<Prediction, Failure> {
        let request = self.request(calls.bytes);
        let call = Call::new(request.collective, DType::F32, ReduceOp::Sum, Self::count(calls.bytes));
        let sizing = Sizing {
            segment_bytes: calls.segment_bytes,
            most_staged: calls.segment_bytes.max(Workload::STAGED),
            ..sizing(&self.hosts)?
        };
        let work = Workload {
            operations: calls.operations,
            at_once: calls.at_once,
            ..Workload::of_one(&self.verified, call, sizing)
        };
        let rig = machine(&request, known, self.verified.schedule().reducers());
        estimate(MOST_MESSAGES, &work, &rig).map_err(unusable)
    }

    /// What it costs in messages, bytes and rounds.
    pub(super) fn cost(&self) -> Cost {
        self.verified.cost()
    }
}

/// How a job of default settings cuts its calls, whatever the environment of this process says.
///
/// # Errors
/// None; [`WorkerMachines`](crate::training::WorkerMachines) asks for the type.
pub(super) fn sizing(hosts: &[u32]) -> Result<Sizing, Failure> {
    let hosts = Sizing::distinct(hosts);
    Ok(Sizing { hosts, shared: hosts == 1, segment_bytes: 0, most_staged: Workload::STAGED })
}

/// A failure of inputs that leave nothing to compute.
pub(super) fn unusable(why: impl Display) -> Failure {
    Failure::Usage { problem: why.to_string(), hint: "change the figure's inputs" }
}

/// Machines on which nothing costs time but what leaves and enters their ports, all of whose bytes are payload.
pub(super) fn ports_alone(bytes_per_second: f64) -> Calibration {
    let free = Overhead { each: 0, rate: 0 };
    let port = (bytes_per_second.round() as u64).max(1);
    Calibration {
        costs: Costs {
            send: free,
            receive: free,
            here: free,
            fold: free,
            copy: free,
            call: 0,
            wake: 0,
            payload_per_mille: 1000,
            ..Costs::DEFAULT
        },
        port,
        reducer_port: port,
        latency: 0,
        shared_cores: 0,
    }
}
