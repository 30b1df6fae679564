//! The queues as a picture: a row for each variable, and a block for each operation that uses it.

use super::queues::{BlockState, QueueShown};
use crate::svg::{CURVES, GREY, INK, Svg, TINTS};

/// Room for the variables' names.
const LEFT: f64 = 130.0;
const TOP: f64 = 74.0;
const HIGH: f64 = 44.0;
const BLOCK: (f64, f64) = (104.0, 28.0);
const GAP: f64 = 8.0;
/// What a row and a picture have room for; more is counted in words.
const MOST: (usize, usize) = (24, 64);
/// What reads, and what mutates.
const COLOURS: [(&str, &str); 2] = [("reads", TINTS[4]), ("mutates", TINTS[5])];

/// Rows of the variables that are used, then the others up to the most that there is room for.
pub(crate) fn picture(queues: &[QueueShown]) -> String {
    let mut rows: Vec<&QueueShown> = queues.iter().collect();
    rows.sort_by_key(|queue| (queue.blocks.is_empty(), queue.variable));
    let left_out = rows.len().saturating_sub(MOST.1);
    rows.truncate(MOST.1);
    let longest = rows.iter().map(|queue| queue.blocks.len().min(MOST.0 + 1)).max().unwrap_or(0);
    let width = (LEFT + longest as f64 * (BLOCK.0 + GAP) + 20.0).max(560.0);
    let mut svg = Svg::default();
    head(&mut svg, queues);
    for (at, queue) in rows.iter().enumerate() {
        row(&mut svg, queue, TOP + at as f64 * HIGH);
    }
    if left_out > 0 {
        let y = TOP + rows.len() as f64 * HIGH + 12.0;
        svg.text((8.0, y), "", format_args!("and {left_out} more variables"));
    }
    svg.finish(width, TOP + rows.len() as f64 * HIGH + 24.0)
}

fn head(svg: &mut Svg, queues: &[QueueShown]) {
    let mut pending: Vec<u64> =
        queues.iter().flat_map(|queue| &queue.blocks).map(|block| block.number).collect();
    pending.sort_unstable();
    pending.dedup();
    let (variables, pending) = (queues.len(), pending.len());
    let title = format_args!(
        "Queues of {variables} variables, {pending} pending operations that use them: the oldest at the left"
    );
    svg.text((8.0, 20.0), "font-size=\"14\"", title);
    let colours = COLOURS.map(|(name, colour)| (name, format!("fill=\"{colour}\"")));
    let strokes = [BlockState::Running, BlockState::Ready, BlockState::Waiting]
        .map(|state| (words(state), format!("fill=\"none\" {}", stroke(state))));
    for (at, (name, style)) in colours.iter().chain(&strokes).enumerate() {
        let x = 8.0 + 90.0 * at as f64;
        svg.rect((x, 36.0), (14.0, 14.0), style, "");
        svg.text((x + 20.0, 47.0), "", name);
    }
}

fn words(state: BlockState) -> &'static str {
    match state {
        BlockState::Running => "runs",
        BlockState::Ready => "ready",
        BlockState::Waiting => "waits",
    }
}

fn stroke(state: BlockState) -> String {
    match state {
        BlockState::Running => format!("stroke=\"{INK}\" stroke-width=\"2.5\""),
        BlockState::Ready => format!("stroke=\"{INK}\""),
        BlockState::Waiting => format!("stroke=\"{GREY}\" stroke-dasharray=\"3 2\""),
    }
}

fn row(svg: &mut Svg, queue: &QueueShown, y: f64) {
    let middle = y + BLOCK.1 / 2.0 + 4.0;
    let name = queue.name.as_deref().map_or_else(|| format!("variable {}", queue.variable), str::to_owned);
    let colour = if queue.spoiled.is_some() { CURVES[1] } else { INK };
    let state = match &queue.spoiled {
        Some(failure) => format!("version {}, spoiled: {failure}", queue.version),
        None => format!("version {}", queue.version),
    };
    svg.text_with_tip((8.0, middle), &format!("fill=\"{colour}\""), &state, shortened(&name));
    for (at, block) in queue.blocks.iter().take(MOST.0).enumerate() {
        let x = LEFT + at as f64 * (BLOCK.0 + GAP);
        let (_, colour) = COLOURS[usize::from(block.writes)];
        let name = match &block.name {
            _ if block.is_wait => format!("{} wait", block.number),
            Some(name) => format!("{} {name}", block.number),
            None => block.number.to_string(),
        };
        svg.rect((x, y), BLOCK, &format!("rx=\"3\" fill=\"{colour}\" {}", stroke(block.state)), "");
        let centre = (x + BLOCK.0 / 2.0, middle);
        svg.text_with_tip(centre, "text-anchor=\"middle\"", &name, shortened(&name));
    }
    if queue.blocks.len() > MOST.0 {
        let x = LEFT + MOST.0 as f64 * (BLOCK.0 + GAP);
        svg.text((x, middle), "", format_args!("and {} more", queue.blocks.len() - MOST.0));
    }
}

/// What a block has room for.
fn shortened(name: &str) -> String {
    if name.chars().count() <= 16 {
        return name.to_owned();
    }
    name.chars().take(15).chain(['…']).collect()
}
