//! `herringbone topo`: how the nodes of a machine or a cluster are linked.

use crate::{drawing, failure::Failure, machine, outcome::Outcome, topologies};
use herringbone::core::topology::{LinkKind, NodeKind, Topology, TopologyLink};
use std::{collections::BTreeMap, io::Write};

/// Show a topology: its nodes, its links by kind, what is connected, the slowest link
///
/// Reads the text of nvidia-smi topo -m, NCCL's topology XML, and matrices of weights as JSON or CSV. Without a file it shows this
/// machine: processors, network cards with their speed, and GPUs if nvidia-smi is there.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// The file; FILE#NAME for one of several in a JSON list, - for standard input. Without one: this machine
    #[arg(value_name = "FILE")]
    file: Option<String>,
    /// Print nodes and links as JSON, which every FILE may be
    #[arg(long)]
    json: bool,
    /// Draw it into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<String>,
}

pub(crate) fn run(options: &Options, out: &mut dyn Write) -> Result<Outcome, Failure> {
    let topology = match &options.file {
        Some(file) => topologies::read(file)?,
        None => machine::topology(),
    };
    if let Some(path) = &options.svg {
        topologies::write(path, &drawing::picture(&topology, &[]))?;
    }
    match options.json {
        true => write!(out, "{}", topology.to_json())?,
        false => write!(out, "{}", described(&topology))?,
    }
    Ok(Outcome::Passed)
}

fn described(topology: &Topology) -> String {
    let mut lines = vec![format!("nodes       {}", counted(topology))];
    let mut kinds: BTreeMap<(LinkKind, u64), usize> = BTreeMap::new();
    for link in topology.links() {
        *kinds.entry((link.kind, link.bandwidth.to_bits())).or_default() += 1;
    }
    for (at, ((kind, bits), count)) in kinds.iter().enumerate() {
        let label = if at == 0 { "links      " } else { "           " };
        let speed = match f64::from_bits(*bits) {
            0.0 => "of a speed that is not known".into(),
            speed => format!("{speed} GB/s each way"),
        };
        lines.push(format!("{label} {count} of {kind}, {speed}"));
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
    lines.join("\n") + "\n"
}

fn counted(topology: &Topology) -> String {
    let of_kind = |kind: NodeKind| {
        let count = topology.nodes().iter().filter(|node| node.kind == kind).count();
        (count > 0).then(|| format!("{count} {}", kind.name()))
    };
    NodeKind::ALL.into_iter().filter_map(of_kind).collect::<Vec<_>>().join(", ")
}
