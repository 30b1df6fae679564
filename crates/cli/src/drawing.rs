//! Pictures of links: nodes on a circle, lines as wide as the links are fast.

use herringbone::core::topology::{NodeKind, Topology};
use std::{collections::BTreeMap, f64::consts::TAU, fmt::Write};

/// The side of a panel of few nodes.
const SIDE: f64 = 260.0;
/// Room for the title and the legend.
const HEAD: f64 = 58.0;
/// Room for a panel's own title.
const LABEL: f64 = 24.0;
/// How far the places of two nodes are from each other, at least.
const APART: f64 = 24.0;
/// Above so many nodes their names stand outside of the circle, turned.
const FEW: usize = 16;
/// Colours of edges, round by round.
const ROUNDS: [&str; 6] = ["#b2182b", "#e08214", "#1b7837", "#2166ac", "#762a83", "#35978f"];

/// An edge of a tree: sender, receiver, and the round of its broadcast, from 0.
pub(crate) type DrawnEdge = (usize, usize, u32);

/// How many trees over so many ranks a picture shows.
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
    let (legend, least) = panel.legend(rounds);
    let width = (side * across as f64).max(least);
    let height = HEAD + (side + LABEL) * down as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"8\" y=\"20\" font-size=\"15\">{}</text>\n{legend}",
        escaped(title)
    );
    let none = [(String::new(), vec![])];
    let panels = if trees.is_empty() { &none[..] } else { trees };
    for (at, (title, edges)) in panels.iter().enumerate() {
        let (x, y) = ((at % across) as f64 * side, HEAD + (at / across) as f64 * (side + LABEL));
        // Writing to a text does not fail.
        let _written = writeln!(svg, "<g transform=\"translate({x:.0} {y:.0})\">");
        panel.draw(&mut svg, title, edges);
        svg.push_str("</g>\n");
    }
    svg.push_str("</svg>\n");
    svg
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
        // Names that stand beside each other on the circle need their width, turned ones their height.
        let apart = if nodes.len() > FEW { APART } else { name.max(APART) + 6.0 };
        let least = if only_ranks { SIDE * 0.38 } else { SIDE * 0.76 };
        let radius = match nodes.len() {
            0 | 1 => 0.0,
            many => least.max(apart * many as f64 / TAU),
        };
        let side = (2.0 * radius + name.max(APART) * if nodes.len() > FEW { 2.2 } else { 1.1 }).max(SIDE);
        Self { topology, nodes, fastest, side, radius }
    }

    /// What lines, numbers and boxes mean, and how wide that is.
    fn legend(&self, rounds: Option<u32>) -> (String, f64) {
        let (mut svg, mut x) = (String::new(), 8.0);
        let mut entry = |mark: String, text: &str| {
            let _written = writeln!(
                svg,
                "<g transform=\"translate({x:.0} 40)\">{mark}<text x=\"30\" y=\"4\">{}</text></g>",
                escaped(text)
            );
            x += 42.0 + 6.2 * text.chars().count() as f64;
        };
        if self.fastest > 0.0 {
            let line = "<line x1=\"0\" y1=\"0\" x2=\"24\" y2=\"0\" stroke=\"rgb(155,155,155)\" stroke-width=\"4.5\"/>";
            entry(line.into(), &format!("a link of {} GB/s; slower ones are thinner", self.fastest));
        }
        if rounds.is_some() {
            let line = format!(
                "<line x1=\"0\" y1=\"0\" x2=\"24\" y2=\"0\" stroke=\"{0}\" stroke-width=\"2\"/><circle cx=\"16\" cy=\"0\" \
                 r=\"6\" fill=\"{0}\"/>",
                ROUNDS[0]
            );
            entry(line, "a tree's edge, with its round");
        }
        for (fill, kinds, text) in BOXES {
            if self.nodes.iter().any(|node| kinds.contains(&self.topology.nodes()[*node].kind)) {
                let mark = format!(
                    "<rect x=\"0\" y=\"-8\" width=\"24\" height=\"16\" rx=\"3\" fill=\"{fill}\" stroke=\"#444\"/>"
                );
                entry(mark, text);
            }
        }
        (svg, x)
    }

    /// A node's place, and its angle.
    fn at(&self, place: usize) -> (f64, f64, f64) {
        let turn = TAU * place as f64 / self.nodes.len() as f64 - TAU / 4.0;
        let middle = self.side / 2.0;
        (middle + self.radius * turn.cos(), middle + 10.0 + self.radius * turn.sin(), turn)
    }

    fn draw(&self, svg: &mut String, title: &str, edges: &[DrawnEdge]) {
        let _written = writeln!(svg, "<text x=\"8\" y=\"14\">{}</text>", escaped(title));
        let is_drawn = |node: usize| self.nodes.iter().position(|drawn| *drawn == node);
        // Links that look alike are one path.
        let mut links: BTreeMap<(u32, u32), String> = BTreeMap::new();
        for link in self.topology.links().iter().filter(|link| link.from < link.to && link.bandwidth > 0.0) {
            let (Some(from), Some(to)) = (is_drawn(link.from), is_drawn(link.to)) else { continue };
            let part = link.bandwidth / self.fastest;
            // Many links of full width would be a grey disk.
            let wide = (5.0 + 40.0 * part) * (FEW as f64 / self.nodes.len() as f64).min(1.0).powi(3);
            let look = ((225.0 - 70.0 * part).round() as u32, wide.ceil() as u32);
            let ((x, y, _), (to_x, to_y, _)) = (self.at(from), self.at(to));
            let _written = write!(links.entry(look).or_default(), "M{x:.0} {y:.0}L{to_x:.0} {to_y:.0}");
        }
        for ((shade, wide), path) in links {
            let wide = f64::from(wide) / 10.0;
            let _written = writeln!(
                svg,
                "<path d=\"{path}\" fill=\"none\" stroke=\"rgb({shade},{shade},{shade})\" stroke-width=\"{wide:.1}\"/>"
            );
        }
        for (from, to, round) in edges {
            self.edge(svg, self.at(*from), self.at(*to), *round);
        }
        for (place, node) in self.nodes.iter().enumerate() {
            self.node(svg, self.at(place), *node);
        }
    }

    fn edge(&self, svg: &mut String, start: (f64, f64, f64), end: (f64, f64, f64), round: u32) {
        let colour = ROUNDS[round as usize % ROUNDS.len()];
        // The round's number, nearer to the receiver.
        let (x, y) = (start.0 + 0.7 * (end.0 - start.0), start.1 + 0.7 * (end.1 - start.1));
        let _written = writeln!(
            svg,
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\" stroke-width=\"2\"/>\
             <circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"6\" fill=\"{colour}\"/><text x=\"{x:.1}\" y=\"{:.1}\" fill=\"white\" \
             text-anchor=\"middle\" font-size=\"9\">{}</text>",
            start.0,
            start.1,
            end.0,
            end.1,
            y + 3.0,
            round + 1
        );
    }

    fn node(&self, svg: &mut String, (x, y, turn): (f64, f64, f64), node: usize) {
        let node = &self.topology.nodes()[node];
        let fill =
            BOXES.iter().find(|(_, kinds, _)| kinds.contains(&node.kind)).map_or("white", |found| found.0);
        let name = escaped(&node.name);
        if self.nodes.len() > FEW {
            // On the left half a text that is turned further stands on its head.
            let (degrees, is_left) = (turn.to_degrees(), turn.cos() < 0.0);
            let (degrees, anchor, away) =
                if is_left { (degrees + 180.0, "end", -9.0) } else { (degrees, "start", 9.0) };
            let _written = writeln!(
                svg,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\" fill=\"{fill}\" stroke=\"#444\"/>\
                 <text transform=\"translate({x:.1} {y:.1}) rotate({degrees:.1})\" x=\"{away}\" y=\"4\" \
                 text-anchor=\"{anchor}\">{name}</text>"
            );
            return;
        }
        let wide = 12.0 + 6.5 * node.name.chars().count() as f64;
        let _written = writeln!(
            svg,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{wide:.1}\" height=\"18\" rx=\"3\" fill=\"{fill}\" stroke=\"#444\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{name}</text>",
            x - wide / 2.0,
            y - 9.0,
            y + 4.0
        );
    }
}

/// The colours of boxes, by kinds of nodes.
const BOXES: [(&str, &[NodeKind], &str); 4] = [
    ("#d9f0d3", &[NodeKind::Gpu, NodeKind::Rank], "GPU or rank"),
    ("#fde0ef", &[NodeKind::Nic], "network card"),
    ("#e6e6f5", &[NodeKind::Cpu], "processor"),
    ("#fff7bc", &[NodeKind::Host, NodeKind::Switch], "host or switch"),
];

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
