//! A schedule as a picture: a panel for each step, in which each rank has a column and each chunk a row of blocks.

use super::{
    arrows::{Arrows, RankColumn},
    words::{self, Subject},
};
use herringbone::{
    core::terms::{Composition, HistoryLimits, TermHistory, TermNumber},
    svg::{CURVES, FAINT, GREY, INK, Point, Svg, TINTS},
};

/// What a picture has room for.
pub(super) const LIMITS: HistoryLimits = HistoryLimits { ranks: 16, blocks: 2048 };

/// Room for the steps' names, and at the right edge.
const LEFT: f64 = 62.0;
const RIGHT: f64 = 14.0;
/// Room for the title, how terms are read, and the legend.
const HEAD: f64 = 96.0;
/// The names of ranks above the rows of a panel.
const NAMES: f64 = 22.0;
/// Between two columns, for messages of neighbours.
const GAP: f64 = 34.0;
/// Between two panels.
const APART: f64 = 20.0;
/// The least height between two rows, and what a level of arrows adds.
const ROW_GAP: f64 = 6.0;
const LEVEL: f64 = 8.0;
const LINE: f64 = 13.0;
/// Above this many columns a line has room for one pair of brackets only.
const FEW: u32 = 4;
/// What is a sum of some inputs, and what is a result.
const PARTIAL: &str = TINTS[3];
const RESULT: &str = TINTS[0];

/// The whole file.
pub(super) fn picture(history: &TermHistory, subject: &Subject<'_>, folds: bool) -> String {
    let sheet = Sheet::new(history);
    let mut svg = Svg::default();
    let least = head(&mut svg, history, subject, folds);
    let width = sheet.width().max(least);
    let mut y = HEAD;
    for step in 0..=history.rounds().len() {
        if step > 0 {
            let middle = y - APART / 2.0;
            svg.line((8.0, middle), (width - 8.0, middle), &format!("stroke=\"{FAINT}\""));
        }
        y = sheet.panel(&mut svg, step, y) + APART;
    }
    svg.finish(width, y)
}

/// The title, how terms are read, and what colours mean; returns how wide that is.
fn head(svg: &mut Svg, history: &TermHistory, subject: &Subject<'_>, folds: bool) -> f64 {
    let (title, order) = (subject.title(history), words::order(history, folds));
    svg.text((12.0, 24.0), "font-size=\"15\" font-weight=\"600\"", &title);
    let grey = format!("fill=\"{GREY}\"");
    let reading = words::reading(history);
    svg.text((12.0, 43.0), &grey, &reading);
    svg.text((12.0, 58.0), &grey, order);
    let mut x = 12.0;
    for (look, text) in [
        (Look { fill: "none", is_new: false }, "input"),
        (Look { fill: PARTIAL, is_new: false }, "partial sum"),
        (Look { fill: RESULT, is_new: false }, "result"),
        (Look { fill: "none", is_new: true }, "new in this step"),
    ] {
        if folds || look.fill == "none" {
            svg.rect((x, 70.0), (22.0, 14.0), &look.style(), "");
            svg.text((x + 28.0, 81.0), &grey, text);
            x += 46.0 + 6.0 * text.len() as f64;
        }
    }
    let widest = [7.6 * title.len() as f64, 5.7 * reading.len() as f64, 5.7 * order.len() as f64, x];
    24.0 + widest.into_iter().fold(0.0, f64::max)
}

/// How a block looks.
#[derive(Clone, Copy)]
struct Look {
    fill: &'static str,
    is_new: bool,
}

impl Look {
    fn style(self) -> String {
        let (stroke, width) = if self.is_new { (INK, 1.6) } else { (GREY, 0.7) };
        format!("rx=\"4\" fill=\"{}\" stroke=\"{stroke}\" stroke-width=\"{width}\"", self.fill)
    }
}

/// The width of a line of a term at most, in usual fonts.
fn width_of(line: &str) -> f64 {
    let of_letter = |letter| match letter {
        '+' => 9.3,
        '(' | ')' => 4.4,
        _ => 7.1,
    };
    line.chars().map(of_letter).sum()
}

/// A block of a panel.
struct Block {
    term: TermNumber,
    lines: Vec<String>,
    is_new: bool,
}

/// Where things are.
struct Sheet<'a> {
    history: &'a TermHistory,
    /// How wide a block is.
    wide: f64,
    /// How many letters a line of a block has room for.
    letters: usize,
}

impl<'a> Sheet<'a> {
    fn new(history: &'a TermHistory) -> Self {
        let input = 1 + history.chunks().saturating_sub(1).to_string().len();
        let letters = if history.ranks() > FEW { 5 + 2 * input } else { 7 + 4 * input };
        // The last chunk's number is the longest.
        let last = history.chunks().saturating_sub(1);
        let texts = (0..history.terms()).map(|term| history.text(term, last));
        let widths = texts.flat_map(|text| words::lines(&text, letters)).map(|line| width_of(&line));
        let wide = widths.fold(64.0, |wide: f64, line| wide.max(14.0 + line));
        Self { history, wide, letters }
    }

    fn width(&self) -> f64 {
        let columns = f64::from(self.history.ranks());
        LEFT + columns * self.wide + (columns - 1.0) * GAP + RIGHT
    }

    fn left(&self, column: RankColumn) -> f64 {
        LEFT + column as f64 * (self.wide + GAP)
    }

    /// The blocks of one chunk after a step, by rank.
    fn blocks(&self, step: usize, chunk: u32) -> Vec<Option<Block>> {
        let block = |rank| {
            let term = self.history.held(step, rank, chunk)?;
            let before = step.checked_sub(1).and_then(|before| self.history.held(before, rank, chunk));
            Some(Block {
                term,
                lines: words::lines(&self.history.text(term, chunk), self.letters),
                is_new: step > 0 && before != Some(term),
            })
        };
        (0..self.history.ranks()).map(block).collect()
    }

    /// Draws a step below a height, and returns how far down it goes.
    fn panel(&self, svg: &mut Svg, step: usize, top: f64) -> f64 {
        let name = if step == 0 { "start".to_owned() } else { format!("step {step}") };
        svg.text((12.0, top + 12.0), "font-weight=\"600\"", name);
        for rank in 0..self.history.ranks() {
            let x = self.left(rank as RankColumn) + self.wide / 2.0;
            let style = format!("fill=\"{GREY}\" text-anchor=\"middle\"");
            svg.text((x, top + 12.0), &style, words::rank(self.history, rank));
        }
        let mut y = top + NAMES;
        for chunk in 0..self.history.chunks() {
            let blocks = self.blocks(step, chunk);
            let arrows = Arrows::of_step(self.history, step, chunk);
            y += ROW_GAP + LEVEL * arrows.levels() as f64 + if arrows.levels() > 0 { 4.0 } else { 0.0 };
            let lines = blocks.iter().flatten().map(|block| block.lines.len()).max().unwrap_or(1);
            let high = 9.0 + LINE * lines as f64;
            for (column, block) in blocks.iter().enumerate() {
                if let Some(block) = block {
                    self.block(svg, block, (self.left(column), y), high);
                }
            }
            self.draw_arrows(svg, &arrows, y, high);
            y += high;
        }
        y
    }

    fn block(&self, svg: &mut Svg, block: &Block, (x, y): Point, high: f64) {
        let fill = match self.history.composition(block.term) {
            _ if self.history.is_result(block.term) => RESULT,
            Composition::Input(_) => "none",
            Composition::Code(of) if self.history.inputs(of) == 1 => "none",
            _ => PARTIAL,
        };
        svg.rect((x, y), (self.wide, high), &Look { fill, is_new: block.is_new }.style(), "");
        let ink = if block.is_new || fill != "none" { INK } else { GREY };
        let style = format!("fill=\"{ink}\" text-anchor=\"middle\"");
        let first = y + (high - LINE * block.lines.len() as f64) / 2.0 + 10.0;
        for (at, line) in block.lines.iter().enumerate() {
            svg.text((x + self.wide / 2.0, first + LINE * at as f64), &style, line);
        }
    }

    fn draw_arrows(&self, svg: &mut Svg, arrows: &Arrows, top: f64, high: f64) {
        for hop in &arrows.short {
            let is_right = hop.to > hop.from;
            let y = top + high / 2.0 + 4.0 * f64::from(arrows.side(*hop));
            let (near, far) = (self.left(hop.from), self.left(hop.to));
            let ends = if is_right {
                ((near + self.wide + 3.0, y), (far - 3.0, y))
            } else {
                ((near - 3.0, y), (far + self.wide + 3.0, y))
            };
            arrow(svg, &[ends.0, ends.1], hop.from);
        }
        for (at, bus) in arrows.buses.iter().enumerate() {
            let level = top - 8.0 - LEVEL * bus.level as f64;
            let x = |column: RankColumn| self.left(column) + self.wide * arrows.port(at, column).part();
            let [above, edge] = [level, top - 2.0].map(|y| move |column: RankColumn| (x(column), y));
            for end in &bus.ends {
                let (from, to) = if bus.is_sent { (bus.hub, *end) } else { (*end, bus.hub) };
                arrow(svg, &[edge(from), above(from), above(to), edge(to)], bus.hub);
            }
        }
    }
}

/// A line with a head at its end, in the colour of a column.
fn arrow(svg: &mut Svg, points: &[Point], column: RankColumn) {
    let style = format!(
        "stroke=\"{}\" stroke-width=\"1.6\" stroke-linejoin=\"round\"",
        CURVES[column % CURVES.len()]
    );
    svg.polyline(points.iter().copied(), &style);
    if let [.., (from_x, from_y), (x, y)] = *points {
        let long = (x - from_x).hypot(y - from_y).max(f64::MIN_POSITIVE);
        let (along_x, along_y) = ((x - from_x) / long, (y - from_y) / long);
        let side = |by: f64| (x - 5.0 * along_x - by * along_y, y - 5.0 * along_y + by * along_x);
        svg.polyline([side(3.5), (x, y), side(-3.5)].into_iter(), &style);
    }
}
