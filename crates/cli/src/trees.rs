//! `herringbone trees`: trees over the links of a topology, and their speed.

mod compare;

use crate::{
    drawing::{self, DrawnEdge},
    failure::Failure,
    names,
    numbers::{decimal, time, whole_of_64_bits},
    outcome::Outcome,
    table, topologies,
};
use herringbone::core::topology::{
    LinkMatrix, MOST_RANKS, Topology, TopologyError, by_mxnet_rules,
    trees::{SpanningTree, TreeFigures, TreeMode, TreeRequest, TreeSet, all_reduce_bound, plan},
};
use serde_json::{Value, json};
use std::{io::Write, str::FromStr};

/// Plan trees for all-reduces over the links of a topology
///
/// Rounds are counted for a broadcast in which a rank sends or receives one message per round. Weights have no unit:
/// they are MXNet's, or the matrix's. A tree's weight is the sum of its links' weights; a link's load is the number
/// of trees that use it, divided by its weight. The bound is the least time of an all-reduce of 1 GB over these links
/// by any schedule, if bandwidths are in GB/s.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// The file, as for topo; FILE#NAME for one of several in a JSON list
    #[arg(long, value_name = "FILE")]
    topology: String,
    /// mxnet: as MXNet's planner; best: few rounds, and the least load on the busiest link; throughput: as much at
    /// once as the links carry
    #[arg(long, default_value = "best", value_parser = names::one_of::<TreeMode>(&TreeMode::ALL.map(TreeMode::name)))]
    mode: TreeMode,
    /// mxnet: factor on a link's weight for each tree that uses it
    #[arg(long, default_value_t = 0.7, value_name = "FACTOR", value_parser = decimal(0.0..=1e6))]
    penalty: f64,
    /// mxnet: seed of the shuffles; also tries Kernighan and Lin's clusters for up to 8 ranks
    #[arg(long, value_name = "NUMBER", value_parser = whole_of_64_bits)]
    seed: Option<u64>,
    /// Roots, each once: 0,2 or 0..3 (both included) [default: each rank]
    #[arg(long, value_name = "A,B")]
    roots: Option<Roots>,
    /// Read the matrix as link ranks, CUDA's plus 1, and turn them into weights by MXNet's rules
    #[arg(long)]
    ranks: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Draw the trees over the links into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<String>,
    /// Compare the bytes on each link with ring, star and radix
    #[arg(long)]
    compare: bool,
}

pub(crate) fn run(options: &Options, out: &mut dyn Write) -> Result<Outcome, Failure> {
    let mut topology = topologies::read(&options.topology)?;
    if options.ranks {
        topology = by_mxnet_rules(&topology, None).map_err(unusable)?;
    }
    let links = LinkMatrix::of(&topology).map_err(unusable)?;
    let Options { mode, penalty, seed, ref roots, .. } = *options;
    let is_mxnet = mode == TreeMode::Mxnet;
    let useless = [("--seed", seed.is_some() && !is_mxnet), ("--penalty", penalty != 0.7 && !is_mxnet)];
    Failure::if_useless(&useless, format!("--mode {}", mode.name()), "leave it out, or use --mode mxnet")?;
    let roots = roots.as_ref().map_or_else(Vec::new, |Roots(roots)| roots.clone());
    let set =
        plan(&links, &TreeRequest { mode, roots, penalty: penalty as f32, seed, ..TreeRequest::of(mode) })
            .map_err(unusable)?;
    if let Some(path) = &options.svg {
        topologies::write(path, &drawn(&topology, &set))?;
    }
    if options.compare {
        return compare::run(&topology, &links, mode, options.json, out);
    }
    match options.json {
        true => writeln!(out, "{}", object(&set, &links))?,
        false => print(&set, &links, &topology, out)?,
    }
    Ok(Outcome::Passed)
}

/// Ranks, each once, in the order in which they were said.
#[derive(Clone, Debug)]
struct Roots(Vec<usize>);

impl FromStr for Roots {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |part: &str| {
            let part = part.trim();
            part.parse::<usize>()
                .map_err(|_| format!("`{part}` is not a rank: write 0,2 or 0..3 (both included)"))
        };
        let mut roots = vec![];
        for part in text.split(',') {
            let (first, last) = part.split_once("..").unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last.strip_prefix('=').unwrap_or(last))?);
            if last < first {
                return Err(format!("`{part}` is empty: write {last}..{first}"));
            }
            if last >= MOST_RANKS {
                return Err(format!(
                    "rank {last} is too large: trees are planned for at most {MOST_RANKS} ranks"
                ));
            }
            for root in first..=last {
                if roots.contains(&root) {
                    return Err(format!("root {root} is listed twice: write each root once"));
                }
                roots.push(root);
            }
        }
        Ok(Self(roots))
    }
}

fn unusable(error: TopologyError) -> Failure {
    Failure::Usage { problem: error.to_string(), hint: "see herringbone trees --help" }
}

/// A number as JSON has it; a load of links that are not there has none.
fn number(number: f64) -> Value {
    let rounded = (number * 1e6).round() / 1e6;
    if rounded.is_finite() { json!(rounded) } else { Value::Null }
}

fn object(set: &TreeSet, links: &LinkMatrix) -> Value {
    let tree = |tree: &SpanningTree| {
        json!({
            "root": tree.root(),
            "edges": tree.edges(),
            "rounds": tree.rounds(),
            "weight": number(tree.weight(links)),
            "slices": tree.slices(),
            "by": tree.by().to_string(),
        })
    };
    let TreeFigures { weight, worst_load, max_link_use, links_used } = set.figures(links);
    json!({
        "trees": set.trees().iter().map(tree).collect::<Vec<_>>(),
        "weight": number(weight),
        "worst_load": number(worst_load),
        "max_link_use": max_link_use,
        "links_used": links_used,
        "bound": number(all_reduce_bound(links)),
        "time": number(set.all_reduce_time(links)),
        "part_of_bound": number(set.part_of_bound(links)),
    })
}

fn print(set: &TreeSet, links: &LinkMatrix, topology: &Topology, out: &mut dyn Write) -> Result<(), Failure> {
    let ranks = topology.ranks();
    let name = |rank: usize| topology.nodes()[ranks[rank]].name.as_str();
    for tree in set.trees() {
        let edge = |[a, b]: &[usize; 2]| format!("{}-{}", name(*a), name(*b));
        let edges: Vec<String> = tree.edges().iter().map(edge).collect();
        let slices = if tree.slices() > 1 { format!(", {} slices", tree.slices()) } else { String::new() };
        let line = format!(
            "root {}: {} rounds, weight {}, by {}{slices}: {}",
            name(tree.root()),
            tree.rounds(),
            number(tree.weight(links)),
            tree.by(),
            edges.join(" ")
        );
        writeln!(out, "{}", table::wrapped(line.trim_end()))?;
    }
    let TreeFigures { weight, worst_load, max_link_use, links_used } = set.figures(links);
    let mut figure =
        |name: &str, text: String| writeln!(out, "{}", table::wrapped(&format!("{name:<11} {text}")));
    figure("weight", format!("{}, the sum of the weights of the links of all trees", number(weight)))?;
    let load = number(worst_load);
    figure(
        "worst load",
        format!("{load} trees per weight of the busiest link; at most {max_link_use} trees on one link"),
    )?;
    figure("links used", links_used.to_string())?;
    let [shortest, needed] = [all_reduce_bound(links), set.all_reduce_time(links)].map(time);
    let reached = 100.0 * set.part_of_bound(links);
    figure(
        "bound",
        format!(
            "{shortest} for an all-reduce of 1 GB by any schedule, if bandwidths are in GB/s. These trees, with sums up and results down at once, need {needed}: {reached:.1} % of that speed"
        ),
    )?;
    let least = set.size().next_power_of_two().ilog2();
    let most = set.trees().iter().map(SpanningTree::rounds).max().unwrap_or(0);
    if most > least && set.trees().iter().any(|tree| tree.by().to_string() == "best") {
        writeln!(out, "rounds      {most}, because the links do not seem to allow {least}")?;
    }
    Ok(())
}

fn drawn(topology: &Topology, set: &TreeSet) -> String {
    let panel = |tree: &SpanningTree| {
        let title = format!("root {}, {} rounds", tree.root(), tree.rounds());
        (title, timed(tree, set.size()))
    };
    let (drawn, trees) = (drawing::most_panels(set.size()), set.trees());
    let title = match trees.len() > drawn {
        true => format!("The first {drawn} of {} trees over {} ranks", trees.len(), set.size()),
        false => format!("{} trees over {} ranks", trees.len(), set.size()),
    };
    drawing::picture(topology, &title, &trees.iter().take(drawn).map(panel).collect::<Vec<_>>())
}

/// Each edge with the round of its message in a broadcast.
fn timed(tree: &SpanningTree, size: usize) -> Vec<DrawnEdge> {
    let children = tree.children(size);
    let mut edges = vec![];
    let mut open = vec![(tree.root(), 0)];
    while let Some((rank, known)) = open.pop() {
        for (round, child) in (known..).zip(&children[rank]) {
            edges.push((rank, *child, round));
            open.push((*child, round + 1));
        }
    }
    edges
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Command, Verb};
    use clap::Parser;

    const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/topologies");

    fn said(args: &str) -> Result<String, Failure> {
        let args = args.replace('@', FOLDER);
        let command = Command::parse_from(["herringbone"].into_iter().chain(args.split(' ')));
        let mut out = Vec::new();
        match command.verb {
            Verb::Trees(options) => run(&options, &mut out)?,
            Verb::Topo(options) => crate::topo::run(&options, &mut out)?,
            _ => panic!("topo or trees"),
        };
        Ok(String::from_utf8(out).unwrap())
    }

    const NVLINKS: &str = "trees --topology @/link_matrices.json#derived_dgx1v_weights_nvlink_only";

    #[test]
    fn trees_are_json_for_programs() {
        let text = said(&format!("{NVLINKS} --mode mxnet --json")).unwrap();
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["trees"][0]["edges"][0], json!([0, 1]));
        assert_eq!(value["trees"][0]["by"], "exhaustive");
        let figures = ["weight", "worst_load", "max_link_use", "links_used", "bound"].map(|key| &value[key]);
        assert_eq!(figures, [&json!(145.0), &json!(2.0), &json!(5), &json!(16), &json!(0.175)]);
        let roots = said(&format!("{NVLINKS} --roots 3,1 --json")).unwrap();
        let value: Value = serde_json::from_str(&roots).unwrap();
        assert_eq!([&value["trees"][0]["root"], &value["trees"][1]["root"]], [3, 1]);
    }

    #[test]
    fn times_of_trees_have_units() {
        let text = said(NVLINKS).unwrap();
        assert!(text.contains("bound       175.00 ms for an all-reduce of 1 GB"), "{text}");
    }

    #[test]
    fn trees_are_compared_by_the_bytes_of_programs() {
        let text = said(&format!("{NVLINKS} --compare --json")).unwrap();
        let value: Value = serde_json::from_str(&text).unwrap();
        let algorithms = value["algorithms"].as_array().unwrap();
        let of = |name: &str| algorithms.iter().find(|found| found["algorithm"] == name).unwrap();
        // In a ring every link carries 14 of 8 parts; the trees carry what their load says.
        let ring = of("ring")["bytes"].as_array().unwrap();
        assert!(ring.iter().all(|link| link["buffers"] == json!(1.75)) && ring.len() == 8);
        assert_eq!(of("ring")["missing"], json!(["3-4", "7-0"]));
        assert_eq!(of("trees(best)")["missing"], json!([]));
        assert!(of("trees(best)")["slowest"].as_f64() < of("trees(best,single)")["slowest"].as_f64());
    }

    #[test]
    fn what_topo_prints_as_json_is_read_again() {
        for file in ["dgx1v_4x_ib.txt", "a100_pcie_8x_nvlink_bridge_pairs_truncated_nic.txt"] {
            let json = said(&format!("topo @/{file} --json")).unwrap();
            let again = herringbone::core::topology::read(&json, None).unwrap();
            let first = topologies::read(&format!("{FOLDER}/{file}")).unwrap();
            assert_eq!((again.nodes(), again.links()), (first.nodes(), first.links()));
        }
        let text = said("topo @/dgx1v_4x_ib.txt").unwrap();
        for line in [
            "nodes       8 gpu, 4 nic",
            "16 of NV1, 25 GB/s",
            "16 of NV2, 50 GB/s",
            "slowest     GPU0 to GPU5: SYS, 10 GB/s",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }

    #[test]
    fn roots_are_ranks_each_once() {
        let parsed = |text: &str| text.parse::<Roots>().map(|Roots(roots)| roots);
        assert_eq!(parsed("3,0..2"), Ok(vec![3, 0, 1, 2]));
        for (text, said) in [
            ("0,0", "root 0 is listed twice"),
            ("-1", "`-1` is not a rank"),
            ("3..1", "write 1..3"),
            ("0..99999999999", "rank 99999999999 is too large"),
            ("", "`` is not a rank"),
        ] {
            assert!(parsed(text).unwrap_err().contains(said), "{text}");
        }
    }

    #[test]
    fn one_rank_alone_has_a_tree_without_links() {
        let set = plan(&LinkMatrix::uniform(1, 1.0), &TreeRequest::of(TreeMode::Best)).unwrap();
        let text = object(&set, &LinkMatrix::uniform(1, 1.0)).to_string();
        assert!(text.contains("\"weight\":0.0") && !text.contains("-0"), "{text}");
    }

    /// Names of many ranks stand outside of the circle, and a picture of 64 ranks has a few trees.
    #[test]
    fn pictures_have_a_title_a_legend_and_room() {
        let drawn_of = |size: usize| {
            let rows: Vec<String> = (0..size)
                .map(|a| {
                    let entries =
                        (0..size).map(|b| if a == b { "0".into() } else { (1 + (a * b) % 3).to_string() });
                    format!("[{}]", entries.collect::<Vec<String>>().join(","))
                })
                .collect();
            let topology = herringbone::core::topology::read(&format!("[{}]", rows.join(",")), None).unwrap();
            let links = LinkMatrix::of(&topology).unwrap();
            let trees = (0..size.min(5)).collect();
            let request = TreeRequest { roots: trees, ..TreeRequest::of(TreeMode::Best) };
            drawn(&topology, &plan(&links, &request).unwrap())
        };
        let (small, large) = (drawn_of(8), drawn_of(64));
        assert!(small.contains("5 trees over 8 ranks") && small.contains("a link of 3 GB/s"), "{small}");
        assert_eq!(small.matches("<g transform=\"translate(0 58)\">").count(), 1);
        assert!(large.contains("The first 4 of 5 trees over 64 ranks"));
        assert!(large.contains("rotate(") && large.len() < 300_000, "{} bytes", large.len());
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        for (args, said_why) in [
            (format!("{NVLINKS} --roots 8"), "root 8 is none of 8 ranks; use roots from 0 to 7"),
            (format!("{NVLINKS} --mode mxnet --penalty 0"), "above 0, and at most 1"),
            (format!("{NVLINKS} --seed 3"), "--seed has no effect on --mode best"),
            ("trees --topology @/link_matrices.json".into(), "7 topologies; expected one to be named"),
            ("trees --topology @/none.txt".into(), "cannot read the topology"),
            (
                "topo @/README.md".into(),
                "README.md: line 2, column 1: \"The\"; expected the text of nvidia-smi topo -m",
            ),
        ] {
            let failure = said(&args).unwrap_err();
            assert!(failure.to_string().contains(said_why), "{failure}");
            assert_eq!(failure.code(), 2);
        }
    }
}
