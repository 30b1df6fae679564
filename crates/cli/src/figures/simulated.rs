//! Schedules that are proved, and what the simulator says of them on machines of a figure.

use crate::failure::Failure;
use herringbone::{
    Collective, FoldOrder, ReduceOp,
    core::{
        algorithm::Layout,
        element::DType,
        group::Group,
        plan::{
            PriceBasis, Request,
            predicted::{Unpriced, predicted},
            price,
        },
        prepare::Sizing,
        simulate::{Calibration, Costs, Overhead, SECOND, Workload},
        verify::{Verified, verify},
    },
    parse_algorithm,
};
use std::fmt::Display;

/// The most messages that a simulation goes through.
const MOST_MESSAGES: u64 = 400_000;

/// What an operation takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Took {
    pub(super) seconds: f64,
    /// It was priced, and not simulated.
    pub(super) is_price: bool,
}

/// An operation among ranks on hosts of their own: an algorithm's schedule, which is proved.
pub(super) struct Operation {
    name: String,
    ranks: u32,
    reducers: u32,
    group: Group,
    pub(super) verified: Verified,
}

impl Operation {
    /// By an algorithm as `verify` names it.
    ///
    /// # Errors
    /// If it has no schedule for so many ranks and reducers.
    pub(super) fn new(
        name: &str,
        collective: Collective,
        ranks: u32,
        reducers: u32,
    ) -> Result<Self, Failure> {
        let hosts: Vec<u32> = (0..ranks).collect();
        let group = FoldOrder::Ranks.group(&hosts, &[]);
        let algorithm = parse_algorithm(name).map_err(unusable)?;
        let reducers = if algorithm.needs_reducers() { reducers } else { 0 };
        let schedule =
            algorithm.schedule(collective, &group, &Layout { reducers, hosts: &hosts, links: None });
        let verified = verify(schedule.map_err(unusable)?, collective, &group).map_err(unusable)?;
        Ok(Self { name: name.to_owned(), ranks, reducers, group, verified })
    }

    /// An all-reduce.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(super) fn all_reduce(name: &str, ranks: u32, reducers: u32) -> Result<Self, Failure> {
        Self::new(name, Collective::AllReduce, ranks, reducers)
    }

    /// How long it takes with a buffer of so many bytes of f32, as a job of default settings cuts it.
    ///
    /// # Errors
    /// If there is no such time.
    pub(super) fn took(&self, bytes: u64, known: &Calibration) -> Result<Took, Failure> {
        let hosts: Vec<u32> = (0..self.ranks).collect();
        let count = usize::try_from(bytes / 4).unwrap_or(usize::MAX);
        let collective = self.verified.collective();
        let request = Request {
            reducers: self.reducers,
            hosts: &hosts,
            ..Request::of_elements(collective, DType::F32, ReduceOp::Sum, count, &self.group)
        };
        let sizing = Sizing {
            hosts: self.ranks,
            shared: self.ranks == 1,
            segment_bytes: 0,
            most_staged: Workload::STAGED,
        };
        let basis = PriceBasis { known, sizing };
        let algorithm = parse_algorithm(&self.name).map_err(unusable)?;
        match predicted(MOST_MESSAGES, &request, &algorithm, &self.verified, basis) {
            Ok(simulated) => Ok(Took { seconds: simulated.total() as f64 / SECOND as f64, is_price: false }),
            Err(why @ Unpriced::TooManyMessages { .. }) => {
                let nanoseconds = price(&request, &algorithm, basis).ok_or_else(|| unusable(why))?;
                Ok(Took { seconds: nanoseconds as f64 / 1e9, is_price: true })
            }
            Err(why) => Err(unusable(why)),
        }
    }
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
