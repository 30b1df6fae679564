//! Pictures of links: nodes on a circle, lines as wide as the links are fast.

mod labels;

use herringbone::{
    core::topology::{NodeKind, Topology, TopologyLink},
    svg::{CURVES, GREY, Svg, TINTS},
};
use labels::{DISK, EdgeLine, NodeBox, ROOM, spread};
use std::{collections::BTreeMap, f64::consts::TAU, fmt::Write};

/// The side of a panel of few nodes.
const SIDE: f64 = 260.0;
/// Room for the title and the legend.
const HEAD: f64 = 58.0;
/// Room for a panel's own title.
const LABEL: f64 = 24.0;
/// How far the places of two nodes are from each other, at least.
const APART: f64 = 24.0;
/// How high the box of a name is.
const HIGH: f64 = 18.0;
/// The radius of a node whose name stands outside of the circle.
const DOT: f64 = 5.0;
/// Above this many nodes their names stand outside of the circle, turned.
const FEW: usize = 16;
/// Colours of edges, round by round.
const ROUNDS: [&str; 6] = [CURVES[1], CURVES[2], CURVES[3], CURVES[0], CURVES[4], CURVES[7]];
/// Up to this many speeds of links, each is in the legend.
const SPEEDS: usize = 4;

/// An edge of a tree: sender, receiver, and the round of its broadcast, from 0.
pub(crate) type DrawnEdge = (usize, usize, u32);

/// How many trees a picture shows, by the number of ranks.
pub(crate) fn most_panels(ranks: usize) -> usize {
    if ranks > FEW { 4 } else { 16 }
}

/// A panel for each of these trees, or one without a tree if there are none, below a title and a legend.
pub(crate) fn picture(topology: &Topology, title: &str, trees: &[(String, Vec<DrawnEdge>)]) -> String {
    let panel = Panel::new(topology, !trees.is_empty());
    let most_across = if panel.nodes.len() > FEW { 2 } else { 4 };
    let across = trees.len().clamp(1, most_across);
    let down = trees.len().div_ceil(across).max(1);
    let side = panel.side;
    let rounds = trees.iter().flat_map(|(_, edges)| edges).map(|(_, _, round)| *round).max();
    let mut svg = Svg::default();
    svg.text((8.0, 20.0), "font-size=\"15\"", title);
    let least = panel.legend(&mut svg, rounds);
    let none = [(String::new(), vec![])];
    let panels = if trees.is_empty() { &none[..] } else { trees };
    for (at, (title, edges)) in panels.iter().enumerate() {
        let place = ((at % across) as f64 * side, HEAD + (at / across) as f64 * (side + LABEL));
        svg.group(place, |svg| panel.draw(svg, title, edges));
    }
    svg.finish((side * across as f64).max(least), HEAD + (side + LABEL) * down as f64)
}

/// The colour of an edge of a round.
fn colour_of(round: u32) -> &'static str {
    ROUNDS[round as usize % ROUNDS.len()]
}

/// How a box looks.
fn boxed(fill: &str) -> String {
    format!("rx=\"3\" fill=\"{fill}\" stroke=\"{GREY}\"")
}

/// How opaque and how wide a link is, in percent and in tenths of the picture's units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LinkLook {
    percent: u32,
    tenths: u32,
}

impl LinkLook {
    fn style(self) -> String {
        let (opacity, width) = (f64::from(self.percent) / 100.0, f64::from(self.tenths) / 10.0);
        format!("stroke=\"{GREY}\" stroke-opacity=\"{opacity:.2}\" stroke-width=\"{width:.1}\"")
    }
}

struct Panel<'a> {
    topology: &'a Topology,
    /// The numbers of the nodes that are drawn.
    nodes: Vec<usize>,
    fastest: f64,
    side: f64,
    radius: f64,
}

impl<'a> Panel<'a> {
    fn new(topology: &'a Topology, only_ranks: bool) -> Self {
        let nodes = if only_ranks { topology.ranks() } else { (0..topology.nodes().len()).collect() };
        let fastest = topology.links().iter().map(|link| link.bandwidth).fold(0.0, f64::max);
        let longest =
            nodes.iter().map(|node| topology.nodes()[*node].name.chars().count()).max().unwrap_or(0);
        let name = 12.0 + 6.5 * longest as f64;
        // Boxes whose corners face each other need their diagonals, and room for a number between; turned names need their height.
        let apart = if nodes.len() > FEW { APART } else { name.hypot(HIGH) + ROOM };
        let least = if only_ranks { SIDE * 0.38 } else { SIDE * 0.76 };
        let radius = match nodes.len() {
            0 | 1 => 0.0,
            many => least.max(apart * many as f64 / TAU),
        };
        let side = (2.0 * radius + name.max(APART) * if nodes.len() > FEW { 2.2 } else { 1.1 }).max(SIDE);
        Self { topology, nodes, fastest, side, radius }
    }

    fn links(&self) -> impl Iterator<Item = &TopologyLink> {
        self.topology.links().iter().filter(|link| link.bandwidth > 0.0)
    }

    /// The look of a link with this rate in GB/s.
    fn look(&self, speed: f64) -> LinkLook {
        let part = speed / self.fastest;
        // Many links of full width would be a grey disk.
        let wide = (5.0 + 40.0 * part) * (FEW as f64 / self.nodes.len() as f64).min(1.0).powi(3);
        LinkLook { percent: (30.0 + 40.0 * part).round() as u32, tenths: wide.ceil() as u32 }
    }

    /// What lines, numbers and boxes mean; returns how wide that is.
    fn legend(&self, svg: &mut Svg, rounds: Option<u32>) -> f64 {
        let mut x = 8.0;
        let mut entry = |text: &str, mark: &dyn Fn(&mut Svg)| {
            svg.group((x, 40.0), |svg| {
                mark(svg);
                svg.text((30.0, 4.0), "", text);
            });
            x += 42.0 + 6.2 * text.chars().count() as f64;
        };
        let line = |svg: &mut Svg, style: &str| svg.line((0.0, 0.0), (24.0, 0.0), style);
        let mut speeds: Vec<f64> = self.links().map(|link| link.bandwidth).collect();
        speeds.sort_by(|one, other| other.total_cmp(one));
        speeds.dedup();
        if let [fastest, .., slowest] = speeds[..]
            && speeds.len() > SPEEDS
        {
            speeds = vec![fastest, slowest];
        }
        for (at, speed) in speeds.iter().enumerate() {
            let text = if at == 0 { format!("a link of {speed} GB/s") } else { format!("of {speed} GB/s") };
            entry(&text, &|svg| line(svg, &self.look(*speed).style()));
        }
        if rounds.is_some() {
            entry("a tree's edge, with its round", &|svg| {
                line(svg, &format!("stroke=\"{}\" stroke-width=\"2\"", ROUNDS[0]));
                svg.circle((16.0, 0.0), DISK, &format!("fill=\"{}\"", ROUNDS[0]), "");
            });
        }
        for (fill, kinds, text) in BOXES {
            if self.nodes.iter().any(|node| kinds.contains(&self.topology.nodes()[*node].kind)) {
                entry(text, &|svg| svg.rect((0.0, -8.0), (24.0, 16.0), &boxed(fill), ""));
            }
        }
        x
    }

    /// A node's place, and its angle.
    fn at(&self, place: usize) -> (f64, f64, f64) {
        let turn = TAU * place as f64 / self.nodes.len() as f64 - TAU / 4.0;
        let middle = self.side / 2.0;
        (middle + self.radius * turn.cos(), middle + 10.0 + self.radius * turn.sin(), turn)
    }

    fn draw(&self, svg: &mut Svg, title: &str, edges: &[DrawnEdge]) {
        svg.text((8.0, 14.0), "", title);
        let is_drawn = |node: usize| self.nodes.iter().position(|drawn| *drawn == node);
        // Links that look alike are one path.
        let mut links: BTreeMap<LinkLook, String> = BTreeMap::new();
        for link in self.links().filter(|link| link.from < link.to) {
            let (Some(from), Some(to)) = (is_drawn(link.from), is_drawn(link.to)) else { continue };
            let look = self.look(link.bandwidth);
            let ((x, y, _), (to_x, to_y, _)) = (self.at(from), self.at(to));
            let _written = write!(links.entry(look).or_default(), "M{x:.0} {y:.0}L{to_x:.0} {to_y:.0}");
        }
        for (look, path) in links {
            svg.path(&path, &look.style());
        }
        let lines = self.lines(edges);
        for (line, (.., round)) in lines.iter().zip(edges) {
            let style = format!("stroke=\"{}\" stroke-width=\"2\"", colour_of(*round));
            svg.line(line.from, line.to, &style);
        }
        // Above all lines, so that no edge is drawn over a number.
        for ((x, y), (.., round)) in spread(&lines, &self.boxes()).into_iter().zip(edges) {
            svg.circle((x, y), DISK, &format!("fill=\"{}\"", colour_of(*round)), "");
            svg.text((x, y + 3.0), "fill=\"white\" text-anchor=\"middle\" font-size=\"9\"", round + 1);
        }
        for (place, node) in self.nodes.iter().enumerate() {
            self.node(svg, place, *node);
        }
    }

    /// Edges of a tree over the nodes that are drawn, from middle to middle.
    fn lines(&self, edges: &[DrawnEdge]) -> Vec<EdgeLine> {
        let middle = |node: usize| {
            let (x, y, _) = self.at(node);
            (x, y)
        };
        edges.iter().map(|(from, to, _)| EdgeLine { from: middle(*from), to: middle(*to) }).collect()
    }

    /// What the nodes cover.
    fn boxes(&self) -> Vec<NodeBox> {
        let boxed = |(place, node): (usize, &usize)| {
            let (x, y, _) = self.at(place);
            match self.nodes.len() > FEW {
                true => NodeBox { middle: (x, y), wide: 0.0, high: 0.0, radius: DOT },
                false => NodeBox { middle: (x, y), wide: self.width_of(*node), high: HIGH, radius: 0.0 },
            }
        };
        self.nodes.iter().enumerate().map(boxed).collect()
    }

    /// How wide the box of a node's name is.
    fn width_of(&self, node: usize) -> f64 {
        12.0 + 6.5 * self.topology.nodes()[node].name.chars().count() as f64
    }

    fn node(&self, svg: &mut Svg, place: usize, number: usize) {
        let (x, y, turn) = self.at(place);
        let node = &self.topology.nodes()[number];
        let fill =
            BOXES.iter().find(|(_, kinds, _)| kinds.contains(&node.kind)).map_or("none", |found| found.0);
        if self.nodes.len() > FEW {
            // On the left half a text that is turned further stands on its head.
            let (degrees, is_left) = (turn.to_degrees(), turn.cos() < 0.0);
            let (degrees, anchor, away) =
                if is_left { (degrees + 180.0, "end", -9.0) } else { (degrees, "start", 9.0) };
            svg.circle((x, y), DOT, &format!("fill=\"{fill}\" stroke=\"{GREY}\""), "");
            let turned = format!(
                "transform=\"translate({x:.1} {y:.1}) rotate({degrees:.1})\" text-anchor=\"{anchor}\""
            );
            svg.text((away, 4.0), &turned, &node.name);
            return;
        }
        let wide = self.width_of(number);
        svg.rect((x - wide / 2.0, y - HIGH / 2.0), (wide, HIGH), &boxed(fill), "");
        svg.text((x, y + 4.0), "text-anchor=\"middle\"", &node.name);
    }
}

/// The colours of boxes, by kinds of nodes.
const BOXES: [(&str, &[NodeKind], &str); 4] = [
    (TINTS[0], &[NodeKind::Gpu, NodeKind::Rank], "GPU or rank"),
    (TINTS[1], &[NodeKind::Nic], "network card"),
    (TINTS[2], &[NodeKind::Cpu], "processor"),
    (TINTS[3], &[NodeKind::Host, NodeKind::Switch], "host or switch"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topologies;
    use herringbone::core::topology::{
        self, LinkMatrix, by_mxnet_rules,
        trees::{TreeMode, TreeRequest, plan},
    };

    const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/topologies");
    const MATRICES: [&str; 7] = [
        "dgx1v_p3_16xlarge_raw",
        "p3_16xlarge_p2p_matrix",
        "derived_dgx1v_weights_nvlink_only",
        "derived_dgx1v_first5_nvlink_only",
        "derived_dgx1v_first6_nvlink_only",
        "derived_nvswitch8_uniform",
        "derived_pcie8_all_nonp2p",
    ];

    /// All topologies that the tests have, by their names.
    fn all() -> Vec<(String, Topology)> {
        let mut found = vec![];
        let mut read = |name: String| {
            if let Ok(topology) = topologies::read(&name) {
                found.push((name, topology));
            }
        };
        for entry in std::fs::read_dir(FOLDER).unwrap() {
            let path = entry.unwrap().path().display().to_string();
            match path.ends_with("matrices.json") {
                true => MATRICES.iter().for_each(|name| read(format!("{path}#{name}"))),
                false => read(path),
            }
        }
        for ranks in [1, 2, 3, 12, 16, 17, 33] {
            let row = |a: usize| {
                let weights = (0..ranks).map(|b| if a == b { 0 } else { 1 + a * b % 3 }.to_string());
                format!("[{}]", weights.collect::<Vec<String>>().join(","))
            };
            let rows = (0..ranks).map(row).collect::<Vec<String>>().join(",");
            found.push((format!("{ranks} ranks"), topology::read(&format!("[{rows}]"), None).unwrap()));
        }
        found
    }

    #[test]
    fn no_number_lies_upon_another_one_or_upon_a_node() {
        let mut pictures = 0;
        for (name, topology) in all() {
            let weighted = by_mxnet_rules(&topology, None).ok();
            let both = std::iter::once(&topology).chain(&weighted);
            for (topology, mode) in both.flat_map(|topology| TreeMode::ALL.map(|mode| (topology, mode))) {
                let Ok(links) = LinkMatrix::of(topology) else { continue };
                let Ok(set) = plan(&links, &TreeRequest::of(mode)) else { continue };
                let panel = Panel::new(topology, true);
                for tree in set.trees().iter().take(4) {
                    let edges: Vec<DrawnEdge> =
                        tree.edges().iter().map(|[from, to]| (*from, *to, 0)).collect();
                    let (lines, boxes) = (panel.lines(&edges), panel.boxes());
                    let room = labels::least_room(&spread(&lines, &boxes), &boxes);
                    assert!(room > 0.0, "{name}, {}, root {}: {room}", mode.name(), tree.root());
                    pictures += 1;
                }
            }
        }
        assert!(pictures > 100, "{pictures} pictures");
    }
}
