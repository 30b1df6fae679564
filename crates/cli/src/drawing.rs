//! Pictures of links: nodes on a circle, lines as wide as the links are fast.

use herringbone::core::topology::{NodeKind, Topology};
use std::{f64::consts::TAU, fmt::Write};

/// A panel's side.
const SIDE: f64 = 260.0;

/// Colours of edges, round by round.
const ROUNDS: [&str; 6] = ["#b2182b", "#e08214", "#1b7837", "#2166ac", "#762a83", "#35978f"];

/// An edge of a tree: sender, receiver, and the round of its broadcast, from 0.
pub(crate) type DrawnEdge = (usize, usize, u32);

/// A panel for each of these trees, or one without a tree if there are none.
pub(crate) fn picture(topology: &Topology, trees: &[(String, Vec<DrawnEdge>)]) -> String {
    let across = trees.len().clamp(1, 4);
    let down = trees.len().div_ceil(across).max(1);
    let scale = if trees.is_empty() { 2.0 } else { 1.0 };
    let (width, height) = (SIDE * scale * across as f64, (SIDE * scale + 24.0) * down as f64);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let none = [(String::new(), vec![])];
    let panels = if trees.is_empty() { &none[..] } else { trees };
    for (at, (title, edges)) in panels.iter().enumerate() {
        let (x, y) = ((at % across) as f64 * SIDE, (at / across) as f64 * (SIDE + 24.0));
        // Writing to a text does not fail.
        let _written = writeln!(svg, "<g transform=\"translate({x:.0} {y:.0}) scale({scale})\">");
        Panel::new(topology, !trees.is_empty()).draw(&mut svg, title, edges);
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
}

impl<'a> Panel<'a> {
    fn new(topology: &'a Topology, only_ranks: bool) -> Self {
        let nodes = if only_ranks { topology.ranks() } else { (0..topology.nodes().len()).collect() };
        let fastest = topology.links().iter().map(|link| link.bandwidth).fold(0.0, f64::max);
        Self { topology, nodes, fastest }
    }

    fn at(&self, place: usize) -> (f64, f64) {
        let turn = TAU * place as f64 / self.nodes.len() as f64 - TAU / 4.0;
        let radius = if self.nodes.len() == 1 { 0.0 } else { SIDE * 0.38 };
        (SIDE / 2.0 + radius * turn.cos(), SIDE / 2.0 + 10.0 + radius * turn.sin())
    }

    fn draw(&self, svg: &mut String, title: &str, edges: &[DrawnEdge]) {
        let _written = writeln!(svg, "<text x=\"8\" y=\"14\">{}</text>", escaped(title));
        let is_drawn = |node: usize| self.nodes.iter().position(|drawn| *drawn == node);
        for link in self.topology.links().iter().filter(|link| link.from < link.to && link.bandwidth > 0.0) {
            let (Some(from), Some(to)) = (is_drawn(link.from), is_drawn(link.to)) else { continue };
            let part = link.bandwidth / self.fastest;
            let (shade, wide) = (225.0 - 70.0 * part, 0.5 + 4.0 * part);
            let colour = format!("rgb({shade:.0},{shade:.0},{shade:.0})");
            self.line(
                svg,
                self.at(from),
                self.at(to),
                &format!("stroke=\"{colour}\" stroke-width=\"{wide:.1}\""),
            );
        }
        for (from, to, round) in edges {
            let colour = ROUNDS[*round as usize % ROUNDS.len()];
            let (start, end) = (self.at(*from), self.at(*to));
            self.line(svg, start, end, &format!("stroke=\"{colour}\" stroke-width=\"2\""));
            // The round's number, nearer to the receiver.
            let (x, y) = (start.0 + 0.7 * (end.0 - start.0), start.1 + 0.7 * (end.1 - start.1));
            let _written = writeln!(
                svg,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"6\" fill=\"{colour}\"/><text x=\"{x:.1}\" y=\"{:.1}\" fill=\"white\" \
                 text-anchor=\"middle\" font-size=\"9\">{}</text>",
                y + 3.0,
                round + 1
            );
        }
        for (place, node) in self.nodes.iter().enumerate() {
            self.node(svg, self.at(place), *node);
        }
    }

    fn line(&self, svg: &mut String, from: (f64, f64), to: (f64, f64), how: &str) {
        let _written = writeln!(
            svg,
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" {how}/>",
            from.0, from.1, to.0, to.1
        );
    }

    fn node(&self, svg: &mut String, (x, y): (f64, f64), node: usize) {
        let node = &self.topology.nodes()[node];
        let fill = match node.kind {
            NodeKind::Gpu | NodeKind::Rank => "#d9f0d3",
            NodeKind::Nic => "#fde0ef",
            NodeKind::Cpu => "#e6e6f5",
            NodeKind::Host | NodeKind::Switch => "#fff7bc",
        };
        let wide = 12.0 + 6.5 * node.name.chars().count() as f64;
        // Hosts and what is in one are boxes.
        let _written = writeln!(
            svg,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{wide:.1}\" height=\"18\" rx=\"3\" fill=\"{fill}\" stroke=\"#444\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            x - wide / 2.0,
            y - 9.0,
            y + 4.0,
            escaped(&node.name)
        );
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
