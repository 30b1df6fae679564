//! The queues as a picture: a row for each variable, and a block for each operation that uses it.

use super::queues::{BlockState, QueueShown};
use std::fmt::Write;

/// Room for the variables' names.
const LEFT: f64 = 130.0;
const TOP: f64 = 74.0;
const HIGH: f64 = 44.0;
const BLOCK: (f64, f64) = (104.0, 28.0);
const GAP: f64 = 8.0;
/// What a row and a picture have room for; more is counted in words.
const MOST: (usize, usize) = (24, 64);
/// What reads, and what mutates.
const COLOURS: [(&str, &str); 2] = [("reads", "#7fbf7b"), ("mutates", "#ef8a80")];

/// Rows of the variables that are used, then the others up to the most that there is room for.
pub(crate) fn picture(queues: &[QueueShown]) -> String {
    let mut rows: Vec<&QueueShown> = queues.iter().collect();
    rows.sort_by_key(|queue| (queue.blocks.is_empty(), queue.variable));
    let left_out = rows.len().saturating_sub(MOST.1);
    rows.truncate(MOST.1);
    let longest = rows.iter().map(|queue| queue.blocks.len().min(MOST.0 + 1)).max().unwrap_or(0);
    let width = (LEFT + longest as f64 * (BLOCK.0 + GAP) + 20.0).max(560.0);
    let height = TOP + rows.len() as f64 * HIGH + 24.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    head(&mut svg, queues);
    for (at, queue) in rows.iter().enumerate() {
        row(&mut svg, queue, TOP + at as f64 * HIGH);
    }
    if left_out > 0 {
        let y = TOP + rows.len() as f64 * HIGH + 12.0;
        let _written = writeln!(svg, "<text x=\"8\" y=\"{y:.0}\">and {left_out} more variables</text>");
    }
    svg.push_str("</svg>\n");
    svg
}

fn head(svg: &mut String, queues: &[QueueShown]) {
    let mut pending: Vec<u64> =
        queues.iter().flat_map(|queue| &queue.blocks).map(|block| block.number).collect();
    pending.sort_unstable();
    pending.dedup();
    // Writing to a text does not fail.
    let _written = writeln!(
        svg,
        "<text x=\"8\" y=\"20\" font-size=\"14\">Queues of {} variables, {} pending operations that use them: the oldest at the \
         left</text>",
        queues.len(),
        pending.len(),
    );
    let said =
        [("runs", "stroke=\"black\" stroke-width=\"2.5\""), ("ready", "stroke=\"black\""), ("waits", DASHED)];
    for (at, (name, colour)) in COLOURS.iter().enumerate() {
        legend(svg, at, name, &format!("fill=\"{colour}\""));
    }
    for (at, (name, stroke)) in said.iter().enumerate() {
        legend(svg, at + COLOURS.len(), name, &format!("fill=\"white\" {stroke}"));
    }
}

const DASHED: &str = "stroke=\"#888888\" stroke-dasharray=\"3 2\"";

fn legend(svg: &mut String, at: usize, name: &str, style: &str) {
    let x = 8.0 + 90.0 * at as f64;
    let _written = writeln!(
        svg,
        "<rect x=\"{x}\" y=\"36\" width=\"14\" height=\"14\" {style}/><text x=\"{}\" y=\"47\">{name}</text>",
        x + 20.0
    );
}

fn row(svg: &mut String, queue: &QueueShown, y: f64) {
    let middle = y + BLOCK.1 / 2.0 + 4.0;
    let name = queue.name.as_deref().map_or_else(|| format!("variable {}", queue.variable), str::to_owned);
    let colour = if queue.spoiled.is_some() { "#b2182b" } else { "black" };
    let state = match &queue.spoiled {
        Some(failure) => format!("version {}, spoiled: {}", queue.version, escaped(failure)),
        None => format!("version {}", queue.version),
    };
    let _written = writeln!(
        svg,
        "<text x=\"8\" y=\"{middle:.0}\" fill=\"{colour}\"><title>{state}</title>{}</text>",
        escaped(&shortened(&name))
    );
    for (at, block) in queue.blocks.iter().take(MOST.0).enumerate() {
        let x = LEFT + at as f64 * (BLOCK.0 + GAP);
        let (_, colour) = COLOURS[usize::from(block.writes)];
        let stroke = match block.state {
            BlockState::Running => "stroke=\"black\" stroke-width=\"2.5\"",
            BlockState::Ready => "stroke=\"black\"",
            BlockState::Waiting => DASHED,
        };
        let name = match &block.name {
            _ if block.is_wait => format!("{} wait", block.number),
            Some(name) => format!("{} {name}", block.number),
            None => block.number.to_string(),
        };
        let _written = writeln!(
            svg,
            "<rect x=\"{x:.0}\" y=\"{y:.0}\" width=\"{:.0}\" height=\"{:.0}\" rx=\"3\" fill=\"{colour}\" {stroke}/>\
             <text x=\"{:.0}\" y=\"{middle:.0}\" text-anchor=\"middle\"><title>{}</title>{}</text>",
            BLOCK.0,
            BLOCK.1,
            x + BLOCK.0 / 2.0,
            escaped(&name),
            escaped(&shortened(&name))
        );
    }
    if queue.blocks.len() > MOST.0 {
        let x = LEFT + MOST.0 as f64 * (BLOCK.0 + GAP);
        let more = queue.blocks.len() - MOST.0;
        let _written = writeln!(svg, "<text x=\"{x:.0}\" y=\"{middle:.0}\">and {more} more</text>");
    }
}

/// What a block has room for.
fn shortened(name: &str) -> String {
    if name.chars().count() <= 16 {
        return name.to_owned();
    }
    name.chars().take(15).chain(['…']).collect()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
