//! The options of a simulation: a schedule, the machines, a call.

use super::parts::PartsOption;
use crate::numbers::{whole, whole_of_64_bits};
use crate::{constants::ConstantsOptions, failure::Failure, layout, names, topologies};
use herringbone::{
    Algorithm, Collective, DType, ReduceOp,
    core::{
        algorithm::Layout,
        codec::Codec,
        collective::UnevenParts,
        group::Group,
        plan::{self, Guidance},
        prepare::{Call, Sizing},
        schedule::Schedule,
        session::TREE_BOUND,
        simulate::{Calibration, Cores, Port, Rig},
        topology::{Ports, Switches, Wiring},
        verify::{Verified, verify},
    },
    settings::{Bytes, Environment},
};
use std::{path::PathBuf, str::FromStr};

/// Predict the time of a collective on given machines
///
/// A job's schedule is simulated event by event. Each rank's thread does one thing at a time, and each host's port
/// carries one message at a time. Costs come from a file of constants (--constants prints one). Options override the
/// file.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SimulateOptions {
    #[command(flatten)]
    pub(super) question: Question,
    #[command(flatten)]
    pub(super) shown: ShownOptions,
}

/// What is simulated.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Question {
    #[command(flatten)]
    pub(super) call: CallOptions,
    #[command(flatten)]
    pub(super) machines: RigOptions,
    /// Most messages to simulate one by one (of one rank, if it stands for all); more are extrapolated. 0: no limit
    #[arg(long, default_value_t = MOST_MESSAGES, value_name = "N", value_parser = whole_of_64_bits)]
    pub(super) most_messages: u64,
}

/// They take some seconds.
const MOST_MESSAGES: u64 = 2_000_000;
/// The largest buffer, and the most of all parts together.
const MOST_BYTES: usize = 64 << 40;
/// The most ranks. With this many ranks in all-to-all traffic, only identical ones can be proved.
const MOST_RANKS: u32 = 16384;
/// The most ranks with unequal parts, because none stands for another.
const MOST_RANKS_OF_PARTS: u32 = 4096;

/// What is called.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct CallOptions {
    /// A name as for verify: radix, radix(8,8), ring, ... [default: the plan's choice]
    #[arg(long, value_name = "NAME", value_parser = names::algorithm(), hide_possible_values = true)]
    pub(super) algorithm: Option<Algorithm>,
    /// Codec of the messages, like int8, for an all_reduce of f32
    #[arg(long, value_name = "CODEC")]
    pub(super) compression: Option<Codec>,
    /// Simulate the schedule in this file, in the form that show prints
    #[arg(long, value_name = "FILE", conflicts_with = "algorithm")]
    pub(super) schedule: Option<PathBuf>,
    /// Bytes per rank, or of the whole buffer for collectives with parts: 25M, 64KiB
    #[arg(long, default_value = "25M", value_name = "B")]
    pub(super) bytes: Bytes,
    /// Unequal parts in place of --bytes: a list with the part of each rank (4M,0,1M), or for all_to_all a row per
    /// rank with its part for each rank (1M,2M;0,3M)
    #[arg(long, value_name = "B,B,...", conflicts_with_all = ["bytes", "schedule"])]
    pub(super) parts: Option<PartsOption>,
    /// Number of calls in flight at once
    #[arg(long, default_value_t = 1, value_name = "K", value_parser = whole(1..=1024))]
    pub(super) operations: u32,
    /// all_reduce, reduce(root), broadcast(root), reduce_scatter, all_gather, gather(root), scatter(root), all_to_all
    #[arg(long, default_value = "all_reduce", value_name = "NAME", value_parser = names::collective(), hide_possible_values = true)]
    pub(super) collective: Collective,
    /// Type of the elements
    #[arg(long, default_value = "f32", value_parser = names::one_of::<DType>(&DType::ALL.map(DType::name)))]
    pub(super) dtype: DType,
}

/// On which machines.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct RigOptions {
    /// Number of workers [default: the topology's or the schedule's]
    #[arg(long, value_name = "N", value_parser = whole(1..=MOST_RANKS))]
    pub(super) ranks: Option<u32>,
    /// Number of reducers, each on its own host
    #[arg(long, default_value_t = 0, value_name = "M", value_parser = whole(0..=MOST_RANKS))]
    pub(super) reducers: u32,
    /// Workers per host, as consecutive ranks
    #[arg(long, default_value_t = 1, value_name = "P", value_parser = whole(1..=MOST_RANKS))]
    pub(super) per_host: u32,
    #[command(flatten)]
    pub(super) constants: ConstantsOptions,
    /// File with ports of hosts or links between workers, in a form that topo reads, or FILE#NAME. With --gbps only
    /// plans use it, and messages go through ports of that rate
    #[arg(long, value_name = "FILE")]
    pub(super) topology: Option<String>,
    /// Slow a member down F times, in computing and on its port: 3:1.5; can be repeated
    #[arg(long, value_name = "RANK:F")]
    pub(super) slow: Vec<Slow>,
    /// Percent of each port that other traffic uses all the time
    #[arg(long, default_value_t = 0, value_name = "PERCENT", value_parser = whole(0..=99))]
    pub(super) background: u32,
}

/// What is shown of it.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ShownOptions {
    /// Print the constants in use, as a file for --calibration, and exit
    #[arg(long)]
    pub(super) constants: bool,
    /// Write the activity of each thread and port as Chrome events, for Perfetto (ui.perfetto.dev)
    #[arg(long, value_name = "FILE")]
    pub(super) trace: Option<PathBuf>,
    /// Draw the activity of each thread and port into this file
    #[arg(long, value_name = "FILE")]
    pub(super) svg: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub(super) json: bool,
}

/// A member that is slower than others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slow {
    rank: u32,
    per_mille: u32,
}

impl FromStr for Slow {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once(':').and_then(|(rank, times)| {
            let times: f64 = times.trim().parse().ok().filter(|times| (1.0..=1000.0).contains(times))?;
            Some(Self { rank: rank.trim().parse().ok()?, per_mille: (times * 1000.0).round() as u32 })
        });
        parsed.ok_or_else(|| "expected RANK:F with F from 1 to 1000, such as 3:1.5".to_owned())
    }
}

/// Everything that a simulation needs.
pub(super) struct Described {
    pub(super) name: String,
    pub(super) verified: Verified,
    pub(super) machine: Rig,
    pub(super) call: Call,
    /// Each rank's, where they differ.
    pub(super) parts: Option<Vec<UnevenParts>>,
    pub(super) calibration: Calibration,
    pub(super) per_host: u32,
    /// How a job with this environment's settings cuts the call.
    pub(super) sizing: Sizing,
}

impl Described {
    /// The whole buffer's bytes, of one operation.
    pub(super) fn bytes(&self) -> u64 {
        let Call { collective, dtype, count, .. } = self.call;
        if let Some(parts) = &self.parts {
            let most = parts.iter().map(|parts| parts.input_elements().max(parts.output_elements())).max();
            return (most.unwrap_or(0) as u64).saturating_mul(dtype.bytes() as u64);
        }
        let workers = self.verified.schedule().workers();
        let root = collective.root().unwrap_or(0);
        let most = collective
            .input_elements(workers, root, count)
            .max(collective.output_elements(workers, root, count));
        (most as u64).saturating_mul(dtype.bytes() as u64)
    }
}

impl CallOptions {
    /// Refuses what is larger than can be simulated.
    fn is_small(&self) -> Result<(), Failure> {
        let (said, bytes) = match &self.parts {
            Some(parts) => ("--parts has", parts.bytes()),
            None => ("--bytes is", self.bytes),
        };
        if bytes.0 <= MOST_BYTES {
            return Ok(());
        }
        Err(Failure::Usage {
            problem: format!("{said} {bytes}, but at most 64 TiB are allowed"),
            hint: "the time of large buffers grows with the size: simulate a smaller one",
        })
    }
}

impl Question {
    /// The constants: the file's or the built-in ones, overridden by other options.
    pub(super) fn constants(&self) -> Result<Calibration, Failure> {
        self.machines.constants.constants()
    }

    /// Makes and proves the schedule, and puts the machines together.
    pub(super) fn described(&self) -> Result<Described, Failure> {
        self.call.is_small()?;
        let environment = &Environment::of_process();
        let codec = self.call.compression.unwrap_or_default();
        if codec != Codec::Plain
            && (self.call.collective, self.call.dtype) != (Collective::AllReduce, DType::F32)
        {
            return Err(Failure::Usage {
                problem: format!("{} of {} cannot be compressed", self.call.collective, self.call.dtype),
                hint: "codecs are for all_reduce of f32; leave --compression out",
            });
        }
        let constants = self.constants()?;
        let topology = self.machines.topology.as_deref().map(topologies::read).transpose()?;
        let wiring = self.machines.topology.as_deref().zip(topology.as_ref());
        let wiring = wiring.map(|(file, topology)| topologies::wiring(file, topology));
        let wiring = wiring.transpose()?.unwrap_or_default();
        let listed = self.call.schedule.as_deref().map(topologies::schedule).transpose()?;
        let ranks = self.ranks(listed.as_ref(), &wiring)?;
        let hosts = layout::hosts(ranks, self.machines.per_host.min(ranks));
        let wiring = topologies::among(wiring, &hosts)?;
        let sizing = environment.sizing(&hosts)?;
        let parts = self.call.parts.as_ref();
        let parts = parts.map(|parts| parts.of(self.call.collective, self.call.dtype, ranks)).transpose()?;
        let known = wiring.ports.as_ref().map(Ports::site_numbers).unwrap_or_default();
        let named = self.call.algorithm.as_ref().map(layout::sites).unwrap_or_default();
        let sites = if known.is_empty() { named } else { known };
        let group = topologies::group(environment.fold_order()?.unwrap_or_default(), &hosts, &sites)?;
        let count = match &parts {
            Some(_) => Call::UNEVEN,
            None => {
                let (bytes, width) = (self.call.bytes.0, self.call.dtype.bytes());
                crate::numbers::elements(self.call.collective, ranks, bytes, width)
            }
        };
        let (name, schedule) = match listed {
            Some(schedule) => ("the schedule of the file".to_owned(), schedule),
            None => self.made(environment, &group, &hosts, &wiring, count)?,
        };
        let reducers = schedule.reducers();
        let verified = verify(schedule, self.call.collective, &group).map_err(|error| Failure::Usage {
            problem: error.to_string(),
            hint: "only proven schedules are simulated",
        })?;
        let mut machine = self.machine(&constants, hosts, reducers, &wiring)?;
        machine.switches = topology.as_ref().filter(|_| machine.links.is_some()).and_then(Switches::of);
        let call = Call { codec, ..Call::new(self.call.collective, self.call.dtype, ReduceOp::Sum, count) };
        let is_coded = verified.schedule().cut().is_coded();
        if is_coded != (codec != Codec::Plain) {
            return Err(Failure::Usage {
                problem: format!("{name} of {} with the codec {codec}", self.call.dtype),
                hint: "--compression is for all_reduce of f32 and schedules with encode steps, which need it",
            });
        }
        Ok(Described {
            name,
            verified,
            machine,
            call,
            parts,
            calibration: constants,
            per_host: self.machines.per_host.min(ranks),
            sizing,
        })
    }

    /// The number of ranks. All sources of it have to agree.
    fn ranks(&self, listed: Option<&Schedule>, wiring: &Wiring) -> Result<u32, Failure> {
        let said = [
            ("--ranks gives", self.machines.ranks),
            ("the schedule has", listed.map(Schedule::workers)),
            ("the topology has", wiring.links.as_ref().map(|links| links.size() as u32)),
            ("--parts has", self.call.parts.as_ref().map(PartsOption::ranks)),
        ];
        let mut said = said.iter().filter_map(|(who, ranks)| Some((who, (*ranks)?)));
        let Some((first, ranks)) = said.next() else {
            // Ports without links belong to hosts.
            let of_hosts = wiring.ports.as_ref().map(|ports| ports.size() as u32);
            return Ok(
                of_hosts.map_or(4, |hosts| hosts.saturating_mul(self.machines.per_host).min(MOST_RANKS))
            );
        };
        if let Some((other, others)) = said.find(|(_, others)| *others != ranks) {
            return Err(Failure::Usage {
                problem: format!("{first} {ranks} ranks, but {other} {others}"),
                hint: "make them equal, or leave --ranks out",
            });
        }
        let most = if self.call.parts.is_some() { MOST_RANKS_OF_PARTS } else { MOST_RANKS };
        if ranks > most {
            return Err(Failure::Usage {
                problem: format!("{first} {ranks} ranks, but at most {most} are allowed"),
                hint: "use fewer",
            });
        }
        Ok(ranks)
    }

    /// The schedule of the algorithm, or of the plan's choice.
    fn made(
        &self,
        environment: &Environment,
        group: &Group,
        hosts: &[u32],
        wiring: &Wiring,
        count: usize,
    ) -> Result<(String, Schedule), Failure> {
        let (links, ports) = (wiring.links.as_ref(), wiring.ports.as_ref());
        let usage = |problem: String| Failure::Usage { problem, hint: "see herringbone simulate --help" };
        let reducers = self.machines.reducers;
        let codec = self.call.compression.unwrap_or_default();
        // As a job takes an algorithm that is forced.
        let guidance =
            Guidance { calibration: self.machines.constants.calibrated()?, ..environment.guidance()? };
        let bound = guidance.tree_bound.unwrap_or(TREE_BOUND);
        let said = self.call.algorithm.as_ref().map(|algorithm| algorithm.for_elements(count, bound));
        let is_uneven_gather = (self.call.collective, count) == (Collective::AllGather, Call::UNEVEN);
        if let Some(algorithm) = said.as_ref().filter(|said| is_uneven_gather && **said != Algorithm::OneShot)
        {
            return Err(usage(format!(
                "unequal parts go straight to every rank (one_shot), not by {algorithm}"
            )));
        }
        let algorithm = match &said {
            Some(algorithm) if codec != Codec::Plain => algorithm.plain().clone().coded(),
            Some(algorithm) => algorithm.clone(),
            None if is_uneven_gather => Algorithm::OneShot,
            None => {
                let request = plan::Request::of_elements(
                    self.call.collective,
                    self.call.dtype,
                    ReduceOp::Sum,
                    count,
                    group,
                );
                let forced = guidance.for_call(self.call.collective, count, request.bytes);
                let request = plan::Request {
                    reducers,
                    hosts,
                    links,
                    ports,
                    codec,
                    forced: forced.as_ref(),
                    ..request
                };
                let sizing = environment.sizing(hosts)?;
                guidance.choose(&request, sizing).map_err(|why| usage(why.to_string()))?.algorithm
            }
        };
        if reducers > 0 && self.call.algorithm.is_some() && !algorithm.needs_reducers() {
            return Err(Failure::Usage {
                problem: format!("--reducers has no effect on {algorithm}"),
                hint: crate::failure::ABOUT_ALGORITHM,
            });
        }
        if reducers == 0 && algorithm.needs_reducers() {
            return Err(usage(format!("{algorithm} needs reducers: pass their number with --reducers")));
        }
        let layout = Layout { reducers: if algorithm.needs_reducers() { reducers } else { 0 }, hosts, links };
        let schedule =
            algorithm.schedule(self.call.collective, group, &layout).map_err(|why| usage(why.to_string()))?;
        Ok((algorithm.to_string(), schedule))
    }

    fn machine(
        &self,
        constants: &Calibration,
        mut hosts: Vec<u32>,
        reducers: u32,
        wiring: &Wiring,
    ) -> Result<Rig, Failure> {
        let links = wiring.links.as_ref();
        let workers_hosts = hosts.iter().max().map_or(0, |most| most + 1);
        hosts.extend((0..reducers).map(|reducer| workers_hosts + reducer));
        let members = hosts.len();
        let workers = members - reducers as usize;
        let ports = Ports::deciding(wiring.ports.as_ref(), links, &hosts[..workers], workers);
        let mut machine = match (ports, links) {
            (Some(ports), _) if self.machines.constants.gbps.is_none() => {
                Rig::with_known_ports(hosts, ports, constants.port, constants.latency, constants.costs)
            }
            (None, Some(links)) if reducers == 0 && self.machines.constants.gbps.is_none() => {
                Rig::with_links(links, constants.latency, constants.costs)
            }
            (None, Some(_)) if self.machines.constants.gbps.is_none() => {
                return Err(Failure::Usage {
                    problem: "a topology has no links of reducers".into(),
                    hint: "leave out --topology or the reducers",
                });
            }
            _ => Rig::with_ports(hosts, constants.port, constants.latency, constants.costs),
        };
        let reducer = Port { out: constants.reducer_port, into: constants.reducer_port };
        machine.ports[workers_hosts as usize..].fill(reducer);
        machine.background_per_mille = self.machines.background * 10;
        machine.cores = match constants.shared_cores {
            0 => Cores::Enough,
            cores => Cores::InAll(cores),
        };
        if !self.machines.slow.is_empty() {
            machine.slowness = vec![1000; members];
        }
        for slow in &self.machines.slow {
            let Some(slowness) = machine.slowness.get_mut(slow.rank as usize) else {
                return Err(Failure::Usage {
                    problem: format!("--slow has member {}, but there are {members} members", slow.rank),
                    hint: "workers count from 0, reducers follow",
                });
            };
            *slowness = slow.per_mille;
        }
        Ok(machine)
    }
}
