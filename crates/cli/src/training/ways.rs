//! The compared ways to sum, and the cost of a bucket's sum by each.

use super::worker::summed_as;
use crate::{failure::Failure, layout};
use herringbone::{
    Algorithm, Collective, FoldOrder, ReduceOp,
    core::{
        algorithm::Layout,
        codec::Codec,
        element::DType,
        group::{Group, Rank},
        plan::{
            Guidance, PriceBasis, Request,
            predicted::{Unpriced, predicted},
            price,
        },
        prepare::Sizing,
        simulate::{Calibration, Picoseconds, Prediction, Resource, duration},
        topology::Wiring,
        training::{Bucket, BucketCost, ComputingCores},
        verify::{Verified, verify},
    },
    parse_algorithm,
};
use std::collections::{BTreeMap, btree_map::Entry};

/// What the parameter server is called.
pub(crate) const PARAMETER_SERVER: &str = "parameter_server";
/// What a job's own choice is called.
pub(super) const CHOSEN: &str = "chosen";
/// The algorithms of `all`: each family once.
pub(crate) const USUAL: [&str; 8] =
    [CHOSEN, "ring", "tree", "double_tree", "reduction_server", "sharded", "star", PARAMETER_SERVER];

/// The most messages that a simulation goes through by default: tables have hundreds of simulations.
pub(crate) const MOST_MESSAGES: u64 = 100_000;

/// Picoseconds of a nanosecond.
const NANOSECOND: Picoseconds = 1000;

/// A way to sum gradients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SumWay {
    /// As the user calls it.
    pub(crate) name: String,
    /// `None`: the one that a job would choose for each bucket.
    algorithm: Option<Algorithm>,
    /// Workers push all of a bucket before they pull any of it.
    is_pushed_first: bool,
}

impl SumWay {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let name = text.trim().to_owned();
        let is_pushed_first = name == PARAMETER_SERVER;
        let algorithm = match name.as_str() {
            CHOSEN => None,
            PARAMETER_SERVER => Some(Algorithm::ReductionServer),
            _ => Some(parse_algorithm(&name).map_err(|error| {
                format!("{error}; or {PARAMETER_SERVER} or {CHOSEN}, which are not algorithms")
            })?),
        };
        Ok(Self { name, algorithm, is_pushed_first })
    }

    fn needs_reducers(&self) -> bool {
        self.algorithm.as_ref().is_some_and(Algorithm::needs_reducers)
    }

    /// Whether a job would choose the algorithm.
    pub(super) fn is_chosen(&self) -> bool {
        self.algorithm.is_none()
    }

    /// Whether it uses reducers, if there are some.
    pub(super) fn has_reducers(&self) -> bool {
        self.algorithm.as_ref().is_none_or(Algorithm::needs_reducers)
    }

    /// The number of reducers: by default as many as workers, and the job's reducers if the job chooses.
    fn reducers(&self, said: Option<u32>, workers: u32) -> u32 {
        match self.algorithm {
            None => said.unwrap_or(0),
            Some(_) if self.needs_reducers() => said.unwrap_or(workers),
            Some(_) => 0,
        }
    }

    /// Whether it has a form for this codec, whatever the number of workers.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn is_coded_by(&self, codec: Codec) -> Result<(), String> {
        let Some(algorithm) = self.coded(codec)? else { return Ok(()) };
        let layout = Layout { reducers: 1, ..Layout::default() };
        match algorithm.schedule(Collective::AllReduce, &Group::of_size(2), &layout) {
            Err(why) if codec != Codec::Plain => Err(why.to_string()),
            _ => Ok(()),
        }
    }

    /// The algorithm whose messages this codec shortens.
    fn coded(&self, codec: Codec) -> Result<Option<Algorithm>, String> {
        match codec {
            Codec::Plain => Ok(self.algorithm.clone()),
            _ if self.is_pushed_first => {
                Err("codecs are for gradients, but parameters are pulled".to_owned())
            }
            _ => Ok(self.algorithm.as_ref().map(|algorithm| algorithm.plain().clone().coded())),
        }
    }
}

/// The machines that workers are on.
#[derive(Clone, Debug)]
pub(crate) struct WorkerMachines {
    pub(crate) constants: Calibration,
    pub(crate) wiring: Wiring,
    pub(crate) per_host: u32,
    /// By default as many as workers.
    pub(crate) reducers: Option<u32>,
    pub(crate) sizing: fn(&[u32]) -> Result<Sizing, Failure>,
    /// Simulations go through no more messages; sums of more have prices.
    pub(crate) most_messages: u64,
    /// What a job chooses algorithms by.
    pub(crate) guidance: Guidance,
}

impl WorkerMachines {
    /// The cores of a computer, and all threads that compute on it, given its cores and the threads of one worker. One computer that plays all
    /// hosts has the cores that the constants say.
    pub(super) fn cores(&self, of_one: ComputingCores, workers: u32) -> ComputingCores {
        let (all, each) = match self.constants.shared_cores {
            0 => (of_one.all, self.per_host.min(workers)),
            shared => (shared, workers),
        };
        ComputingCores { all, threads: of_one.threads.saturating_mul(each) }
    }
}

/// What is known of an all-reduce.
#[derive(Clone, Debug)]
struct Known {
    algorithm: String,
    time: Picoseconds,
    /// For the busiest thread or port.
    busy: Picoseconds,
    /// For the busiest port or link.
    port: Picoseconds,
    /// For all threads of one computer together: the computer with most work.
    cores: Picoseconds,
    /// It was counted, and not simulated.
    is_price: bool,
}

/// An all-reduce: the algorithm or the choice, the codec, how many workers, and a bucket's type and bytes.
type Key = (String, String, u32, u32, u64);

/// What all-reduces take, each simulated once.
pub(crate) struct SumCosts<'a> {
    machines: &'a WorkerMachines,
    found: BTreeMap<Key, Known>,
}

/// What the sums of a step's buckets cost by one way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StepCosts {
    /// In the order of the buckets.
    pub(crate) buckets: Vec<BucketCost>,
    /// The algorithm of each.
    pub(crate) algorithms: Vec<String>,
    pub(crate) reducers: u32,
    /// Whether some were counted, and not simulated.
    pub(crate) has_prices: bool,
}

impl<'a> SumCosts<'a> {
    pub(crate) fn new(machines: &'a WorkerMachines) -> Self {
        Self { machines, found: BTreeMap::new() }
    }

    /// How many were found.
    pub(crate) fn count(&self) -> usize {
        self.found.len()
    }

    /// The cost of these buckets by `way` with this many workers.
    ///
    /// # Errors
    /// Why it has no time; or, as a failure, a setting that cannot be used.
    pub(crate) fn of(
        &mut self,
        way: &SumWay,
        codec: Codec,
        workers: u32,
        buckets: &[Bucket],
    ) -> Result<Result<StepCosts, String>, Failure> {
        let hosts = layout::hosts(workers, self.machines.per_host.min(workers));
        let sizing = (self.machines.sizing)(&hosts)?;
        let reducers = way.reducers(self.machines.reducers, workers);
        let algorithm = match way.coded(codec) {
            Ok(algorithm) => algorithm,
            Err(why) => return Ok(Err(why)),
        };
        let group = FoldOrder::Ranks.group(&hosts, &[]);
        let mut asking = Asking {
            machines: self.machines,
            algorithm,
            codec,
            reducers,
            group: &group,
            hosts: &hosts,
            sizing,
            verified: BTreeMap::new(),
        };
        let mut costs = StepCosts { reducers, ..StepCosts::default() };
        for bucket in buckets {
            // The parameter server takes the simulations of its algorithm.
            let name = asking.algorithm.as_ref().map_or_else(|| CHOSEN.to_owned(), Algorithm::to_string);
            let key = (name, codec.to_string(), workers, bucket.kind, bucket.bytes);
            let known = match self.found.entry(key) {
                Entry::Occupied(known) => known.get().clone(),
                Entry::Vacant(place) => match asking.known(bucket) {
                    Ok(known) => place.insert(known).clone(),
                    Err(why) => return Ok(Err(why)),
                },
            };
            costs.has_prices |= known.is_price;
            costs.buckets.push(known.cost(way.is_pushed_first));
            costs.algorithms.push(known.algorithm);
        }
        Ok(Ok(costs))
    }
}

/// All-reduces of one way with this many workers.
struct Asking<'a> {
    machines: &'a WorkerMachines,
    /// `None`: the one that a job would choose.
    algorithm: Option<Algorithm>,
    codec: Codec,
    reducers: u32,
    group: &'a Group,
    hosts: &'a [u32],
    sizing: Sizing,
    /// The schedules of algorithms for which simulations have asked.
    verified: BTreeMap<String, Verified>,
}

impl Asking<'_> {
    /// Simulates it; or counts its price, if there are too many messages.
    fn known(&mut self, bucket: &Bucket) -> Result<Known, String> {
        let dtype = summed_as(bucket.kind);
        if self.codec != Codec::Plain && dtype != DType::F32 {
            return Err(format!("codecs are for f32, but gradients are {dtype}"));
        }
        let links = self.machines.wiring.links.as_ref();
        let count = usize::try_from(bucket.bytes.div_ceil(dtype.bytes() as u64)).unwrap_or(usize::MAX);
        let request = Request {
            reducers: self.reducers,
            hosts: self.hosts,
            codec: self.codec,
            links,
            ports: self.machines.wiring.ports.as_ref(),
            ..Request::of_elements(Collective::AllReduce, dtype, ReduceOp::Sum, count, self.group)
        };
        let algorithm = match &self.algorithm {
            Some(algorithm) => algorithm.clone(),
            None => self.chosen(request, count)?,
        };
        let name = algorithm.to_string();
        let verified = match self.verified.entry(name.clone()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let layout = Layout { reducers: self.reducers, hosts: self.hosts, links };
                let schedule = algorithm.schedule(Collective::AllReduce, self.group, &layout);
                let schedule = schedule.map_err(|why| why.to_string())?;
                let verified = verify(schedule, Collective::AllReduce, self.group);
                place.insert(verified.map_err(|why| why.to_string())?)
            }
        };
        let basis = PriceBasis { known: &self.machines.constants, sizing: self.sizing };
        match predicted(self.machines.most_messages, &request, &algorithm, verified, basis) {
            Ok(simulated) => {
                let shared_cores = self.machines.constants.shared_cores;
                Ok(Known { algorithm: name, ..Known::of(&simulated, self.hosts, shared_cores) })
            }
            Err(why @ Unpriced::TooManyMessages { .. }) => {
                let time = price(&request, &algorithm, basis).ok_or_else(|| why.to_string())?;
                let time = time.saturating_mul(NANOSECOND);
                let port = self.port(bucket.bytes);
                Ok(Known { algorithm: name, time, busy: time, port, cores: 0, is_price: true })
            }
            Err(why) => Err(why.to_string()),
        }
    }
}

impl Asking<'_> {
    /// The algorithm that a job would choose.
    fn chosen(&self, request: Request<'_>, count: usize) -> Result<Algorithm, String> {
        // One host has no round trips.
        let has_one_host = self.hosts.iter().all(|host| *host == self.hosts[0]);
        let latency = self.machines.guidance.latency.filter(|_| !has_one_host);
        let guidance = Guidance { latency, ..self.machines.guidance.clone() };
        let forced = guidance.for_call(Collective::AllReduce, count, request.bytes);
        let request = Request { forced: forced.as_ref(), ..request };
        let choice = guidance.choose(&request, self.sizing).map_err(|why| why.to_string())?;
        Ok(choice.algorithm)
    }

    /// How long the busiest port carries a buffer one way, to reducers or from them: a host's, or a reducer's.
    fn port(&self, bytes: u64) -> Picoseconds {
        let Calibration { port, reducer_port, .. } = self.machines.constants;
        let (each, workers) = (u64::from(self.machines.per_host), self.hosts.len() as u64);
        let of_reducer = bytes.saturating_mul(workers) / u64::from(self.reducers.max(1));
        duration(bytes.saturating_mul(each), port).max(duration(of_reducer, reducer_port))
    }
}

impl Known {
    /// Among workers on these hosts; with `shared_cores` all of them, and all reducers, are on one computer with this many cores.
    fn of(simulated: &Prediction, hosts: &[u32], shared_cores: u32) -> Self {
        let is_thread = |place: &Resource| matches!(place, Resource::Thread(_));
        let ports = simulated.used.iter().filter(|used| !is_thread(&used.place)).map(|used| used.busy);
        let cores = of_computer(simulated, hosts, shared_cores > 0);
        // What one sum leaves of shared cores is what others have at the same time.
        let shared = if shared_cores > 0 { cores / u64::from(shared_cores) } else { 0 };
        Self {
            algorithm: String::new(),
            time: simulated.total(),
            busy: simulated.busiest().map_or(0, |used| used.busy).max(shared).min(simulated.total()),
            port: ports.max().unwrap_or(0),
            cores,
            is_price: false,
        }
    }

    fn cost(&self, is_pushed_first: bool) -> BucketCost {
        let Self { time, busy, port, cores, .. } = *self;
        match is_pushed_first {
            false => BucketCost { time, busy, cores },
            // Another bucket is pushed while this one is pulled, so each way of the port is busy once.
            true => BucketCost { time: pushed_first(time, busy, port), busy, cores },
        }
    }
}

/// What a sum takes if all of it is pushed before any is pulled. An all-reduce's segments follow each other, so that one is pushed while
/// another is pulled: it takes `time`. For `busy` of it the busiest place is busy, and for `port` the busiest port or link. Where
/// all is pushed before any is pulled, that port carries its bytes twice, one way after the other.
pub(crate) fn pushed_first(time: Picoseconds, busy: Picoseconds, port: Picoseconds) -> Picoseconds {
    time.saturating_sub(busy).saturating_add(busy.max(port.saturating_mul(2)))
}

/// For how long all threads of a computer are busy, together: the one of all ranks, or else the host of workers whose threads have most.
fn of_computer(simulated: &Prediction, hosts: &[u32], is_one: bool) -> Picoseconds {
    let computer = |rank: Rank| match (is_one, hosts.get(rank as usize)) {
        (true, _) => Some(0),
        (false, host) => host.copied(),
    };
    let mut busy = BTreeMap::<u32, Picoseconds>::new();
    for used in &simulated.used {
        let Resource::Thread(rank) = used.place else { continue };
        // One rank stands for all.
        let ranks = if simulated.by_symmetry { 0..hosts.len() as Rank } else { rank..rank + 1 };
        for computer in ranks.filter_map(computer) {
            let all = busy.entry(computer).or_default();
            *all = all.saturating_add(used.busy);
        }
    }
    busy.into_values().max().unwrap_or(0)
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
            [false, true].map(|is_pushed_first| {
                Known::of(&simulated(thread, port, 100), &[0], 0).cost(is_pushed_first)
            })
        };
        let of = |time, busy, cores| BucketCost { time, busy, cores };
        assert_eq!(costs(10, 80), [of(100, 80, 10), of(180, 80, 10)]);
        // A thread pushes and pulls in one row anyway.
        assert_eq!(costs(90, 30), [of(100, 90, 90), of(100, 90, 90)]);
        assert_eq!(costs(50, 30), [of(100, 50, 50), of(110, 50, 50)]);
    }

    #[test]
    fn a_sum_takes_the_cores_of_all_threads_of_a_computer() {
        let thread = |rank, busy| Used { place: Resource::Thread(rank), busy, bytes: 0 };
        let mut found = simulated(10, 80, 100);
        let cores = |found: &Prediction, hosts: &[u32], shared| {
            let Known { busy, cores, .. } = Known::of(found, hosts, shared);
            (busy, cores)
        };
        // One rank stands for three; two are on one host.
        found.by_symmetry = true;
        assert_eq!(cores(&found, &[0, 0, 1], 0), (80, 20));
        assert_eq!(cores(&found, &[0, 0, 1], 2), (80, 30));
        // Three workers, and a reducer on a host of its own.
        found.used = vec![thread(0, 50), thread(1, 60), thread(2, 90), thread(3, 70)];
        found.by_symmetry = false;
        assert_eq!(cores(&found, &[0, 0, 1], 0), (90, 110));
        // On one computer of two cores all of them take at least 135.
        assert_eq!(cores(&found, &[0, 0, 1], 2), (100, 270));
    }

    #[test]
    fn the_parameter_server_is_a_way_beside_all_algorithms() {
        assert!(SumWay::parse(" parameter_server").unwrap().needs_reducers());
        assert_eq!(SumWay::parse("sharded").unwrap().algorithm, Some(Algorithm::radix(vec![])));
        assert!(SumWay::parse("rung").unwrap_err().contains("parameter_server"));
        for name in USUAL {
            assert_eq!(SumWay::parse(name).unwrap().name, name);
        }
    }
}
