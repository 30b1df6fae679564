//! `herringbone topo`: the links between the nodes of a machine or a cluster.

use crate::{
    drawing, failure::Failure, job, machine, numbers::time, outcome::Outcome, progress::LateBar, table,
    topologies,
};
use herringbone::{
    Communicator,
    core::{
        algorithm::{Algorithm, Layout},
        collective::Collective,
        group::Group,
        plan::missing_link,
        topology::{
            LinkKind, LinkMatrix, NodeKind, Ports, Switches, Topology, TopologyError, TopologyLink,
            TopologyNode, TopologyPort, TopologySite, trees::all_reduce_bound,
        },
    },
    measure::{LinkMeasurement, PortMeasurement, SiteMeasurement},
};
use std::{collections::BTreeMap, io::Write};

/// Show a topology: nodes, links, ports and sites
///
/// Reads the text of nvidia-smi topo -m, NCCL's topology XML, and matrices of weights as JSON or CSV. Without FILE it
/// shows this machine: processors, network cards, and GPUs if nvidia-smi is installed.
///
/// With --measure, on each rank of a job, it measures the ports of hosts and, up to 64 ranks, the links between
/// ranks; rank 0 prints them. Other traffic distorts the result.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// The file, FILE#NAME for one of several in a JSON list, or - for standard input [default: this machine]
    #[arg(value_name = "FILE")]
    file: Option<String>,
    /// Measure ports and links of a job, as in `herringbone launch -n 4 -- herringbone topo --measure`
    #[arg(long, conflicts_with = "file")]
    measure: bool,
    /// Print nodes and links as JSON, which this command can read
    #[arg(long)]
    json: bool,
    /// Write the output into this file, for launchers that mark each line with its rank
    #[arg(long, value_name = "FILE")]
    output: Option<String>,
    /// Draw the topology into this file
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
    let (ports, links) = (PortMeasurement::of(&communicator), LinkMeasurement::of(&communicator).ok());
    let is_first = communicator.rank() == 0;
    let (turns, rounds) = (ports.turns(), links.as_ref().map_or(0, LinkMeasurement::rounds));
    if is_first {
        let limit = ports.limit() + links.as_ref().map_or_else(Default::default, LinkMeasurement::limit);
        eprintln!(
            "# measuring the links of {} ranks in {rounds} rounds and the ports of their hosts in {turns} turns, at most {:.1} s",
            communicator.size(),
            limit.as_secs_f64()
        );
    }
    let bar = is_first.then(|| LateBar::of((turns + rounds) as u64));
    let hosts = ports.hosts().to_vec();
    let ports = ports.run(|_turn| bar.iter().for_each(LateBar::step))?;
    let links = links.map(|links| links.run(|_round| bar.iter().for_each(LateBar::step))).transpose()?;
    drop(bar);
    let unusable = |error: TopologyError| Failure::Usage {
        problem: error.to_string(),
        hint: "measure with one rank on each host",
    };
    let ports = match (ports, &links) {
        (Some(ports), Some(links)) => {
            let links = LinkMatrix::of(links).map_err(unusable)?;
            let ports = ports.at_least(&links, &hosts);
            Some(with_sites(&communicator, ports, &links, &hosts)?)
        }
        (ports, _) => ports,
    };
    communicator.barrier()?;
    let topology = with_ports(links, ports.as_ref(), &hosts).map_err(unusable)?;
    Ok(is_first.then_some(topology))
}

/// The ports with the sites that they and the links show, whose uplinks are measured.
fn with_sites(
    communicator: &Communicator,
    ports: Ports,
    links: &LinkMatrix,
    hosts: &[u32],
) -> Result<Ports, Failure> {
    let Some(sites) = SiteMeasurement::of(communicator, &ports, links, hosts) else { return Ok(ports) };
    let is_first = communicator.rank() == 0;
    if is_first {
        let (turns, seconds) = (sites.turns(), sites.limit().as_secs_f64());
        eprintln!("# hosts form sites: measuring their uplinks in {turns} turns, at most {seconds:.1} s");
    }
    let bar = is_first.then(|| LateBar::of(sites.turns() as u64));
    let sites = sites.run(|_turn| bar.iter().for_each(LateBar::step))?;
    let found = ports.with_sites(sites).map(|ports| ports.at_least(links, hosts));
    found.map_err(|error| Failure::Usage { problem: error.to_string(), hint: "measure again" })
}

/// The topology of measured links, or of ranks whose links nobody has measured, with the ports of their hosts.
fn with_ports(
    links: Option<Topology>,
    ports: Option<&Ports>,
    hosts: &[u32],
) -> Result<Topology, TopologyError> {
    let node = |rank: usize| TopologyNode { name: rank.to_string(), kind: NodeKind::Rank, device: None };
    let ranks = || Topology::of_parts((0..hosts.len()).map(node).collect(), Vec::new());
    let topology = links.map_or_else(ranks, Ok)?;
    let Some(ports) = ports else { return Ok(topology) };
    let topology = topology.with_ports(ports.listed(hosts))?;
    match ports.sites() {
        Some(sites) => topology.with_sites(sites.listed()),
        None => Ok(topology),
    }
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
            0.0 => format!("{count} of {kind}, speed unknown"),
            speed => format!("{count} of {kind}, {speed} GB/s each way"),
        }));
    }
    for (at, line) in lines.iter_mut().enumerate().skip(1) {
        *line = format!("{} {line}", if at == 1 { "links      " } else { "           " });
    }
    // Where only ports or sites are known, links say nothing.
    let knows_links =
        !topology.links().is_empty() || topology.ports().is_empty() && topology.sites().is_empty();
    if knows_links {
        lines.extend(connected(topology));
    }
    let latencies = topology.links().iter().filter_map(|link| link.latency);
    if let Some((least, most)) = latencies.fold(None, |range: Option<(f64, f64)>, latency| {
        let (least, most) = range.unwrap_or((latency, latency));
        Some((least.min(latency), most.max(latency)))
    }) {
        lines.push(format!("latency     {} to {}", of_latency(least), of_latency(most)));
    }
    if knows_links {
        lines.extend(carried(topology));
    }
    if !topology.ports().is_empty() {
        lines.push("\nports of hosts, shared by all links of a host".into());
        lines.push(ports(topology).trim_end().to_owned());
    }
    if !topology.sites().is_empty() {
        lines.push("\nuplinks of sites, shared by all hosts of a site".into());
        lines.push(sites(topology).trim_end().to_owned());
    }
    lines.join("\n") + "\n"
}

/// What links connect, and the slowest of them.
fn connected(topology: &Topology) -> [String; 2] {
    let components = topology.components();
    let listed = components.iter().map(|members| {
        let names: Vec<&str> = members.iter().map(|node| topology.nodes()[*node].name.as_str()).collect();
        names.join(" ")
    });
    let first = match components.len() {
        1 => "components  1: all nodes are connected".into(),
        many => format!("components  {many}: {}", listed.collect::<Vec<_>>().join("; ")),
    };
    let second = match topology.slowest() {
        None => "slowest     unknown, because no link has a known speed".into(),
        Some(TopologyLink { from, to, kind, bandwidth, .. }) => {
            let name = |node: &usize| &topology.nodes()[*node].name;
            format!("slowest     {} to {}: {kind}, {bandwidth} GB/s", name(from), name(to))
        }
    };
    [first, second]
}

/// A rate in a table; one that is far too small to be true without hundreds of zeros.
fn rate(rate: f64) -> String {
    match rate {
        0.0 => "unknown".to_owned(),
        rate if rate < 1e-6 => format!("{rate:e}"),
        rate => rate.to_string(),
    }
}

/// A latency, which a topology has in microseconds.
fn of_latency(microseconds: f64) -> String {
    time(microseconds / 1e6)
}

/// A table of the ports.
fn ports(topology: &Topology) -> String {
    const COLUMNS: [&str; 4] = ["host", "out GB/s", "into GB/s", "latency"];
    let row = |port: &TopologyPort| {
        let latency = port.latency.map_or_else(|| "unknown".to_owned(), of_latency);
        [topology.nodes()[port.host].name.clone(), rate(port.out), rate(port.into), latency]
    };
    table::text(&COLUMNS, &COLUMNS[1..], topology.ports().iter().map(row))
}

/// A table of the sites.
fn sites(topology: &Topology) -> String {
    const COLUMNS: [&str; 4] = ["site", "out GB/s", "into GB/s", "hosts"];
    let row = |site: &TopologySite| {
        let names: Vec<&str> = site.hosts.iter().map(|host| topology.nodes()[*host].name.as_str()).collect();
        [site.name.clone(), rate(site.out), rate(site.into), names.join(" ")]
    };
    table::text(&COLUMNS, &COLUMNS[1..3], topology.sites().iter().map(row))
}

/// What an all-reduce over the links between ranks takes at least, and which algorithms keep to them, if some links are missing.
fn carried(topology: &Topology) -> Vec<String> {
    let Ok(links) = LinkMatrix::of(topology) else { return vec![] };
    let (size, bound) = (links.size(), all_reduce_bound(&links));
    let mut lines = vec![];
    if bound > 0.0 && bound.is_finite() {
        let bound = time(bound);
        lines.push(format!(
            "bound       {bound} for an all-reduce of 1 GB by any schedule over the links that trees use"
        ));
    }
    let is_missing = |at: usize| at / size != at % size && links.speed(at / size, at % size) <= 0.0;
    if Switches::of(topology).is_some() || !(0..size * size).any(is_missing) {
        return lines;
    }
    let (group, layout) = (Group::of_size(size as u32), Layout { links: Some(&links), ..Layout::default() });
    let keeps_to_links = |algorithm: &Algorithm| {
        let schedule = algorithm.schedule(Collective::AllReduce, &group, &layout);
        schedule.is_ok_and(|schedule| missing_link(&schedule, &links).is_none())
    };
    let names: Vec<String> = Algorithm::all()
        .iter()
        .filter(|algorithm| keeps_to_links(algorithm))
        .map(Algorithm::to_string)
        .collect();
    lines.push(match names.is_empty() {
        true => {
            "runs        no algorithm, because links are missing; ring needs one from each rank to the next"
                .into()
        }
        false => format!("runs        {}; other all-reduces need missing links", names.join(", ")),
    });
    lines
}

fn counted(topology: &Topology) -> String {
    let of_kind = |kind: NodeKind| {
        let count = topology.nodes().iter().filter(|node| node.kind == kind).count();
        (count > 0).then(|| format!("{count} {}", kind.name()))
    };
    NodeKind::ALL.into_iter().filter_map(of_kind).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use herringbone::core::topology::read;

    #[test]
    fn sites_have_a_table_and_links_that_nobody_knows_are_not_missing() {
        let text = include_str!("../../../examples/sites.json");
        let said = described(&read(text, None).unwrap());
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines[..3], ["nodes       6 host", "", "uplinks of sites, shared by all hosts of a site"]);
        assert!(lines.iter().any(|line| line.trim() == "north     0.125      0.125  a b c"), "{said}");
        assert!(!said.contains("runs") && !said.contains("components"), "{said}");
    }

    #[test]
    fn rates_are_shown_in_few_digits() {
        for (given, shown) in [(0.0, "unknown"), (0.125, "0.125"), (1e-5, "0.00001"), (1e-300, "1e-300")] {
            assert_eq!(rate(given), shown);
        }
    }

    #[test]
    fn missing_links_leave_some_algorithms() {
        let said = |matrix: &str| described(&read(matrix, None).unwrap());
        let ring = said("0 1 0 0\n0 0 1 0\n0 0 0 1\n1 0 0 0\n");
        assert!(ring.contains("runs        ring; other all-reduces need missing links"), "{ring}");
        assert!(ring.contains("bound       1.50 s for an all-reduce of 1 GB"), "{ring}");
        let chain = said("0 1 0\n1 0 1\n0 1 0\n");
        assert!(chain.contains("trees(best)") && !chain.contains("runs        ring"), "{chain}");
        let back = said("0 0 1\n1 0 0\n0 1 0\n");
        assert!(back.contains("runs        no algorithm"), "{back}");
        let all = said("0 2\n2 0\n");
        assert!(all.contains("bound       500.00 ms") && !all.contains("runs"), "{all}");
    }
}
