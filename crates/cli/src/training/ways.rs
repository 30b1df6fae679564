//! The ways to sum that are compared, and what the sum of a bucket costs by each.

use super::worker::summed_as;
use crate::{failure::Failure, layout};
use herringbone::{
    Algorithm, Collective, FoldOrder, ReduceOp,
    core::{
        algorithm::Layout,
        codec::Codec,
        element::DType,
        group::Group,
        plan::{Request, predicted::predicted},
        prepare::Sizing,
        simulate::{Calibration, Prediction, Resource},
        topology::Wiring,
        training::{Bucket, BucketCost},
        verify::{Verified, verify},
    },
    parse_algorithm,
};
use std::collections::BTreeMap;

/// What the parameter server is called.
pub(super) const PARAMETER_SERVER: &str = "parameter_server";
/// Those that `all` means: each family once.
pub(super) const USUAL: [&str; 7] =
    ["ring", "tree", "double_tree", "reduction_server", "sharded", "star", PARAMETER_SERVER];

/// A way to sum gradients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Way {
    /// As the user calls it.
    pub(super) name: String,
    algorithm: Algorithm,
    /// Workers push all of a bucket before they pull any of it.
    is_pushed_first: bool,
}

impl Way {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let name = text.trim().to_owned();
        let is_pushed_first = name == PARAMETER_SERVER;
        let algorithm = match is_pushed_first {
            true => Algorithm::ReductionServer,
            false => parse_algorithm(&name)
                .map_err(|error| format!("{error}; or {PARAMETER_SERVER}, which is no algorithm of a sum"))?,
        };
        Ok(Self { name, algorithm, is_pushed_first })
    }

    pub(super) fn needs_reducers(&self) -> bool {
        self.algorithm.needs_reducers()
    }

    /// The algorithm whose messages this codec shortens.
    fn coded(&self, codec: Codec) -> Result<Algorithm, String> {
        match codec {
            Codec::Plain => Ok(self.algorithm.clone()),
            _ if self.is_pushed_first => {
                Err("parameters are pulled, and codecs are for gradients".to_owned())
            }
            _ => Ok(self.algorithm.plain().clone().coded()),
        }
    }
}

/// The machines that workers are on.
#[derive(Clone, Debug)]
pub(super) struct Machines {
    pub(super) constants: Calibration,
    pub(super) wiring: Wiring,
    pub(super) per_host: u32,
    /// As many as workers unless said.
    pub(super) reducers: Option<u32>,
    pub(super) sizing: fn(&[u32]) -> Result<Sizing, Failure>,
}

/// The costs of buckets by one way, among so many workers. Each length is simulated once.
pub(super) struct BucketCosts<'a> {
    machines: &'a Machines,
    way: &'a Way,
    codec: Codec,
    pub(super) reducers: u32,
    group: Group,
    hosts: Vec<u32>,
    sizing: Sizing,
    verified: Verified,
    /// By type and bytes.
    found: BTreeMap<(u32, u64), BucketCost>,
}

impl<'a> BucketCosts<'a> {
    /// Makes and proves the schedule.
    ///
    /// # Errors
    /// Why this way is none for so many workers; or a setting that cannot be used.
    pub(super) fn new(
        machines: &'a Machines,
        way: &'a Way,
        codec: Codec,
        workers: u32,
    ) -> Result<Result<Self, String>, Failure> {
        let hosts = layout::hosts(workers, machines.per_host.min(workers));
        let sizing = (machines.sizing)(&hosts)?;
        let group = FoldOrder::Ranks.group(&hosts, &[]);
        let reducers = if way.needs_reducers() { machines.reducers.unwrap_or(workers) } else { 0 };
        let links = machines.wiring.links.as_ref();
        let made = || {
            let layout = Layout { reducers, hosts: &hosts, links };
            let schedule = way.coded(codec)?.schedule(Collective::AllReduce, &group, &layout);
            let schedule = schedule.map_err(|why| why.to_string())?;
            verify(schedule, Collective::AllReduce, &group).map_err(|why| why.to_string())
        };
        let made = made();
        let found = BTreeMap::new();
        Ok(made.map(|verified| Self {
            machines,
            way,
            codec,
            reducers,
            group,
            hosts,
            sizing,
            verified,
            found,
        }))
    }

    /// What the sum of a bucket costs.
    ///
    /// # Errors
    /// Why it has no time.
    pub(super) fn of(&mut self, bucket: &Bucket) -> Result<BucketCost, String> {
        let key = (bucket.kind, bucket.bytes);
        if let Some(known) = self.found.get(&key) {
            return Ok(*known);
        }
        let dtype = summed_as(bucket.kind);
        if self.codec != Codec::Plain && dtype != DType::F32 {
            return Err(format!("codecs are for f32, and gradients are {dtype}"));
        }
        let count = usize::try_from(bucket.bytes.div_ceil(dtype.bytes() as u64)).unwrap_or(usize::MAX);
        let request = Request {
            reducers: self.reducers,
            hosts: &self.hosts,
            codec: self.codec,
            links: self.machines.wiring.links.as_ref(),
            ports: self.machines.wiring.ports.as_ref(),
            ..Request::of_elements(Collective::AllReduce, dtype, ReduceOp::Sum, count, &self.group)
        };
        let simulated = predicted(&request, &self.verified, &self.machines.constants, self.sizing);
        let simulated = simulated.map_err(|why| why.to_string())?;
        let cost = cost(&simulated, self.way.is_pushed_first);
        self.found.insert(key, cost);
        Ok(cost)
    }

    /// How many were made.
    pub(super) fn simulations(&self) -> usize {
        self.found.len()
    }
}

/// What a simulation of an all-reduce costs. Its segments follow each other, so that one is pushed while another is pulled. Where all is
/// pushed before any is pulled, the busiest port carries its bytes twice, one way after the other.
fn cost(simulated: &Prediction, is_pushed_first: bool) -> BucketCost {
    let time = simulated.total();
    let busy = simulated.busiest().map_or(0, |used| used.busy).min(time);
    if !is_pushed_first {
        return BucketCost { time, busy };
    }
    let is_thread = |place: &Resource| matches!(place, Resource::Thread(_));
    let ports = simulated.used.iter().filter(|used| !is_thread(&used.place)).map(|used| used.busy);
    let twice = ports.max().unwrap_or(0).saturating_mul(2);
    BucketCost { time: (time - busy).saturating_add(busy.max(twice)), busy }
}

#[cfg(test)]
mod tests {
    use super::*;
    use herringbone::core::simulate::Used;

    fn simulated(thread: u64, port: u64, total: u64) -> Prediction {
        let used = |place, busy| Used { place, busy, bytes: 0 };
        Prediction {
            finished: vec![total],
            used: vec![used(Resource::Thread(0), thread), used(Resource::Out(0), port)],
            messages: 1,
            by_symmetry: false,
            staged: 0,
        }
    }

    #[test]
    fn what_is_pushed_before_it_is_pulled_takes_its_port_twice() {
        let costs = |thread, port| {
            [false, true].map(|is_pushed_first| cost(&simulated(thread, port, 100), is_pushed_first))
        };
        let of = |time, busy| BucketCost { time, busy };
        assert_eq!(costs(10, 80), [of(100, 80), of(180, 80)]);
        // A thread pushes and pulls in one row anyway.
        assert_eq!(costs(90, 30), [of(100, 90), of(100, 90)]);
        assert_eq!(costs(50, 30), [of(100, 50), of(110, 50)]);
    }

    #[test]
    fn the_parameter_server_is_a_way_beside_all_algorithms() {
        assert!(Way::parse(" parameter_server").unwrap().needs_reducers());
        assert_eq!(Way::parse("sharded").unwrap().algorithm, Algorithm::radix(vec![]));
        assert!(Way::parse("rung").unwrap_err().contains("parameter_server"));
        for name in USUAL {
            assert_eq!(Way::parse(name).unwrap().name, name);
        }
    }
}
