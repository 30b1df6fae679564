//! `herringbone topo`: how the nodes of a machine or a cluster are linked.

use crate::{drawing, failure::Failure, job, machine, outcome::Outcome, progress::LateBar, topologies};
use herringbone::{
    Communicator,
    core::topology::{LinkKind, NodeKind, Topology, TopologyLink},
    measure::LinkMeasurement,
};
use std::{collections::BTreeMap, io::Write};

/// Show a topology: its nodes, its links by kind, what is connected, the slowest link
///
/// Reads the text of nvidia-smi topo -m, NCCL's topology XML, and matrices of weights as JSON or CSV. Without a file it shows this
/// machine: processors, network cards with their speed, and GPUs if nvidia-smi is there. With --measure, on each rank of a job, it
/// measures the links between the ranks, and rank 0 prints them.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// The file; FILE#NAME for one of several in a JSON list, - for standard input. Without one: this machine
    #[arg(value_name = "FILE")]
    file: Option<String>,
    /// Measure the links between the ranks of a job, as in `herringbone launch -n 4 -- herringbone topo --measure`
    #[arg(long, conflicts_with = "file")]
    measure: bool,
    /// Print nodes and links as JSON, which every FILE may be
    #[arg(long)]
    json: bool,
    /// Write the text or the JSON into this file, for launchers that mark the lines of each rank
    #[arg(long, value_name = "FILE")]
    output: Option<String>,
    /// Draw it into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<String>,
}

pub(crate) fn run(options: &Options, out: &mut dyn Write) -> Result<Outcome, Failure> {
    let topology = match &options.file {
        Some(file) => topologies::read(file)?,
        None if options.measure => match measured()? {
            Some(topology) => topology,
            None => return Ok(Outcome::Passed),
        },
        None => machine::topology(),
    };
    if let Some(path) = &options.svg {
        topologies::write(
            path,
            &drawing::picture(&topology, &format!("Links of {}", counted(&topology)), &[]),
        )?;
    }
    let text = if options.json { topology.to_json() } else { described(&topology) };
    match &options.output {
        Some(path) => topologies::write(path, &text)?,
        None => write!(out, "{text}")?,
    }
    Ok(Outcome::Passed)
}

/// The links between the ranks of this job, for rank 0, which prints them.
fn measured() -> Result<Option<Topology>, Failure> {
    const START: &str = "start it on each host with the job's launcher, or here with `herringbone launch -n 4 -- herringbone topo --measure`";
    let communicator = Communicator::connect(job::of_environment(START)?.without_links())?;
    let measurement = LinkMeasurement::of(&communicator)?;
    let is_first = communicator.rank() == 0;
    if is_first {
        let (rounds, limit) = (measurement.rounds(), measurement.limit().as_secs_f64());
        eprintln!(
            "# measuring the links of {} ranks: {rounds} rounds, {limit:.1} s at most",
            communicator.size()
        );
    }
    let bar = is_first.then(|| LateBar::of(measurement.rounds() as u64));
    let topology = measurement.run(|_round| bar.iter().for_each(LateBar::step))?;
    drop(bar);
    communicator.barrier()?;
    Ok(is_first.then_some(topology))
}

/// Links of one kind, in one line for each speed.
const MOST_SPEEDS: usize = 8;

fn described(topology: &Topology) -> String {
    let mut lines = vec![format!("nodes       {}", counted(topology))];
    let mut kinds: BTreeMap<LinkKind, BTreeMap<u64, usize>> = BTreeMap::new();
    for link in topology.links() {
        *kinds.entry(link.kind).or_default().entry(link.bandwidth.to_bits()).or_default() += 1;
    }
    for (kind, speeds) in &kinds {
        let speed = |bits: &u64| f64::from_bits(*bits);
        if let (true, Some((least, _)), Some((most, _))) =
            (speeds.len() > MOST_SPEEDS, speeds.first_key_value(), speeds.last_key_value())
        {
            let count: usize = speeds.values().sum();
            lines.push(format!("{count} of {kind}, {} to {} GB/s each way", speed(least), speed(most)));
            continue;
        }
        lines.extend(speeds.iter().map(|(bits, count)| match speed(bits) {
            0.0 => format!("{count} of {kind}, of a speed that is not known"),
            speed => format!("{count} of {kind}, {speed} GB/s each way"),
        }));
    }
    for (at, line) in lines.iter_mut().enumerate().skip(1) {
        *line = format!("{} {line}", if at == 1 { "links      " } else { "           " });
    }
    let components = topology.components();
    let listed = components.iter().map(|members| {
        let names: Vec<&str> = members.iter().map(|node| topology.nodes()[*node].name.as_str()).collect();
        names.join(" ")
    });
    lines.push(match components.len() {
        1 => "components  1: all nodes are connected".into(),
        many => format!("components  {many}: {}", listed.collect::<Vec<_>>().join("; ")),
    });
    lines.push(match topology.slowest() {
        None => "slowest     there is no link whose speed is known".into(),
        Some(TopologyLink { from, to, kind, bandwidth, .. }) => {
            let name = |node: &usize| &topology.nodes()[*node].name;
            format!("slowest     {} to {}: {kind}, {bandwidth} GB/s", name(from), name(to))
        }
    });
    let latencies = topology.links().iter().filter_map(|link| link.latency);
    if let Some((least, most)) = latencies.fold(None, |range: Option<(f64, f64)>, latency| {
        let (least, most) = range.unwrap_or((latency, latency));
        Some((least.min(latency), most.max(latency)))
    }) {
        lines.push(format!("latency     {least} to {most} us"));
    }
    lines.join("\n") + "\n"
}

fn counted(topology: &Topology) -> String {
    let of_kind = |kind: NodeKind| {
        let count = topology.nodes().iter().filter(|node| node.kind == kind).count();
        (count > 0).then(|| format!("{count} {}", kind.name()))
    };
    NodeKind::ALL.into_iter().filter_map(of_kind).collect::<Vec<_>>().join(", ")
}
