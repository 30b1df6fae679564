//! The page of a job: one file that needs nothing else.

use super::{
    figures::{Figures, StepOfRank, seconds},
    read::{PHASES, ReadTimeline},
};
use crate::html;
use herringbone::svg::{Svg, escaped};
use indicatif::HumanBytes;
use serde_json::Value;
use std::fmt::Write;

const STYLE: &str = include_str!("assets/page.css");
const SCRIPT: &str = include_str!("assets/page.js");
/// The most bars of a rank: steps that follow each other share one if there are more.
const BARS: usize = 120;
/// The most ranks that have bars, and the most rows of a table. `--json` has all.
const ROWS: usize = 64;

/// A cell of a table: a text, or a number as it is shown and as it is sorted by.
enum Cell {
    Text(String),
    Number { shown: String, value: f64 },
}

impl Cell {
    fn text(text: impl Into<String>) -> Self {
        Cell::Text(text.into())
    }

    fn time(nanoseconds: i64) -> Self {
        Cell::Number { shown: span(nanoseconds), value: seconds(nanoseconds) }
    }

    fn count(count: u64) -> Self {
        Cell::Number { shown: count.to_string(), value: count as f64 }
    }

    fn bytes(bytes: u64) -> Self {
        Cell::Number { shown: HumanBytes(bytes).to_string(), value: bytes as f64 }
    }

    fn html(&self) -> String {
        match self {
            Cell::Text(text) => format!("<td>{}</td>", escaped(text)),
            Cell::Number { shown, value } => {
                format!("<td class=\"number\" data-value=\"{value}\">{}</td>", escaped(shown))
            }
        }
    }
}

/// A time as people read it.
fn span(nanoseconds: i64) -> String {
    match nanoseconds {
        ..10_000 => format!("{:.1} us", nanoseconds as f64 / 1e3),
        10_000..1_000_000 => format!("{:.0} us", nanoseconds as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", nanoseconds as f64 / 1e6),
        _ => format!("{:.2} s", seconds(nanoseconds)),
    }
}

/// A table of at most [`ROWS`] rows.
fn table(heads: &[&str], rows: impl ExactSizeIterator<Item = Vec<Cell>>) -> String {
    let left_out = rows.len().saturating_sub(ROWS);
    let mut text = String::from("<div class=\"wide\" tabindex=\"0\"><table><thead><tr>");
    heads.iter().for_each(|head| add(&mut text, format_args!("<th>{}</th>", escaped(head))));
    text.push_str("</tr></thead><tbody>\n");
    for row in rows.take(ROWS) {
        let cells: String = row.iter().map(Cell::html).collect();
        add(&mut text, format_args!("<tr>{cells}</tr>\n"));
    }
    text.push_str("</tbody></table></div>\n");
    if left_out > 0 {
        add(&mut text, format_args!("<p class=\"quiet\">{left_out} more rows: see --json</p>\n"));
    }
    text
}

fn add(text: &mut String, what: std::fmt::Arguments<'_>) {
    // Writing to a text does not fail.
    let _written = text.write_fmt(what);
}

/// What the page shows: what was read, what it comes to, and the roofs as `herringbone roofline --json` prints them.
pub(super) struct Page<'a> {
    pub(super) read: &'a ReadTimeline,
    pub(super) figures: &'a Figures,
    pub(super) roofline: &'a Value,
}

impl Page<'_> {
    /// The whole page.
    pub(super) fn html(&self) -> String {
        let parts = [
            self.head(),
            self.late(),
            self.steps(),
            self.operations(),
            self.roofs(),
            self.longest(),
            self.faults(),
        ];
        html::page(&html::Parts {
            title: &format!("Job {}", self.read.job),
            style: STYLE,
            main: &parts.concat(),
            script: SCRIPT,
        })
    }

    fn name(&self, process: u32) -> String {
        let found = self.read.processes.get(&process);
        found.map_or_else(|| format!("process {process}"), |found| found.about.name())
    }

    fn head(&self) -> String {
        let count =
            |role: usize| self.read.processes.values().filter(|found| found.about.role == role).count();
        let each = ["ranks", "reducers", "table servers"].iter().enumerate();
        let each =
            each.filter(|(role, _)| count(*role) > 0).map(|(role, name)| format!("{} {name}", count(role)));
        let mut text = format!(
            "<h1>Job {}</h1>\n<p class=\"quiet\">{}, {} from the first call to the last result; clocks agree within {}</p>\n",
            escaped(&self.read.job),
            each.collect::<Vec<_>>().join(", "),
            span(self.figures.total),
            span(self.read.error as i64)
        );
        if self.read.left_out > 0 {
            add(
                &mut text,
                format_args!(
                    "<p class=\"bad\">{} events are missing because processes could not keep up</p>\n",
                    self.read.left_out
                ),
            );
        }
        text
    }

    fn late(&self) -> String {
        let mut text = String::from("<h2>Slowest ranks</h2>\n");
        match self.figures.slowest.first().filter(|late| late.cost > 0) {
            Some(late) => add(
                &mut text,
                format_args!(
                    "<p class=\"finding\">The others waited <b>{}</b> for <b>{}</b>, {:.1} % of the time: it was the last to call {} operations</p>\n",
                    span(late.cost),
                    self.name(late.process),
                    100.0 * late.cost as f64 / self.figures.total.max(1) as f64,
                    late.last_in
                ),
            ),
            None => text.push_str("<p class=\"finding\">No rank waited for another one</p>\n"),
        }
        let rows = self.figures.slowest.iter().map(|late| {
            vec![
                Cell::text(self.name(late.process)),
                Cell::time(late.cost),
                Cell::time(late.waited),
                Cell::time(late.worst),
                Cell::count(late.last_in),
            ]
        });
        let heads = [
            "rank",
            "others waited (mean)",
            "summed over ranks",
            "most in one operation",
            "last in operations",
        ];
        text + &table(&heads, rows)
    }

    fn steps(&self) -> String {
        let steps = &self.figures.steps;
        let mut text = format!(
            "<h2>Steps</h2>\n<p><span class=\"key computing\"></span>no operation<span class=\"key waiting\"></span>waiting\
             <span class=\"key busy\"></span>moving, folding, copying</p>\n<p class=\"quiet\">{} steps{}</p>\n",
            steps.len(),
            if self.figures.has_marks {
                ""
            } else {
                ", guessed from the gaps between operations; comm.mark_step() marks them"
            }
        );
        let per_bar = steps.len().div_ceil(BARS).max(1);
        let longest = steps.chunks(per_bar).map(|steps| {
            let sum: i64 = steps.iter().map(|step| step.window.whole.end - step.window.whole.start).sum();
            sum / steps.len() as i64
        });
        let longest = longest.max().unwrap_or(0).max(1);
        let mut ranks: Vec<u32> =
            steps.iter().flat_map(|step| &step.ranks).map(|rank| rank.process).collect();
        ranks.sort_unstable();
        ranks.dedup();
        let left_out = ranks.len().saturating_sub(ROWS);
        for rank in ranks.into_iter().take(ROWS) {
            let bars: Vec<Bar> = steps
                .chunks(per_bar)
                .map(|steps| {
                    let of_rank = |step: &super::figures::StepFigures| {
                        step.ranks.iter().find(|found| found.process == rank).copied()
                    };
                    Bar { first: steps[0].window.step, parts: mean(steps.iter().filter_map(of_rank), rank) }
                })
                .collect();
            let name = self.name(rank);
            add(
                &mut text,
                format_args!(
                    "<div class=\"strip\"><div>{}</div>{}</div>\n",
                    escaped(&name),
                    strip(&name, &bars, longest)
                ),
            );
        }
        if left_out > 0 {
            add(&mut text, format_args!("<p class=\"quiet\">{left_out} more ranks: see --json</p>\n"));
        }
        text
    }

    fn operations(&self) -> String {
        let best = self.figures.kinds.iter().filter_map(|kind| kind.bus).fold(0.0, f64::max);
        let rows = self.figures.kinds.iter().map(|figures| {
            let kind = &self.read.kinds[figures.kind as usize];
            let bus = figures.bus.unwrap_or(0.0);
            let shown = match figures.bus {
                Some(bus) => format!("{:.2} GB/s ({:.0} %)", bus / 1e9, 100.0 * bus / best),
                None => String::new(),
            };
            vec![
                Cell::text(&kind.name),
                Cell::bytes(kind.bytes),
                Cell::text(&kind.algorithm),
                Cell::text(&kind.group),
                Cell::count(figures.count),
                Cell::time(figures.time),
                Cell::Number { shown, value: bus },
                Cell::text(figures.slowest.map_or_else(String::new, |rank| self.name(rank))),
                Cell::time(figures.cost),
                Cell::time(figures.worst),
            ]
        });
        let heads = [
            "operation",
            "bytes",
            "algorithm",
            "group",
            "count",
            "time once all have called",
            "bus (of the best)",
            "slowest rank",
            "others waited",
            "most in one",
        ];
        format!("<h2>Operations</h2>\n{}", table(&heads, rows))
    }

    fn roofs(&self) -> String {
        let Some(roofs) = self.roofline["roofs"].as_array() else { return String::new() };
        let rows = roofs.iter().map(|roof| {
            let number = |field: &str| roof[field].as_f64().unwrap_or(0.0);
            vec![
                Cell::text(roof["roof"].as_str().unwrap_or("")),
                Cell::text(roof["place"].as_str().unwrap_or("")),
                Cell::bytes(roof["bytes"].as_u64().unwrap_or(0)),
                Cell::time((number("alone_s") * 1e9) as i64),
                Cell::Number { shown: format!("{:.1} %", 100.0 * number("part")), value: number("part") },
            ]
        });
        let rows = rows.collect::<Vec<_>>();
        format!(
            "<h2>All-reduces against the roofs</h2>\n<p>{:.2} GB/s on the bus, as defined by nccl-tests, over {}</p>\n{}",
            self.roofline["busbw"].as_f64().unwrap_or(0.0),
            span((self.roofline["seconds"].as_f64().unwrap_or(0.0) * 1e9) as i64),
            table(&["roof", "place", "bytes", "alone", "of the time"], rows.into_iter())
        )
    }

    fn longest(&self) -> String {
        let rows = self.figures.longest.iter().map(|long| {
            let operation = &long.operation;
            let kind = &self.read.kinds[operation.kind as usize];
            let mut row = vec![
                Cell::text(format!("{} #{} {}", kind.group, operation.key.sequence, kind.name)),
                Cell::bytes(kind.bytes),
                Cell::text(self.name(operation.process)),
                Cell::time(operation.issued),
                Cell::time(operation.ended - operation.issued),
            ];
            row.extend(operation.phases.map(Cell::time));
            row.push(Cell::text(match long.last {
                Some((rank, by)) => format!("{}, {} later", self.name(rank), span(by)),
                None => String::new(),
            }));
            row
        });
        let heads = [&["operation", "bytes", "on", "at", "time"][..], &PHASES, &["called last by"]].concat();
        format!("<h2>Longest operations</h2>\n{}", table(&heads, rows))
    }

    fn faults(&self) -> String {
        if self.read.faults.is_empty() {
            return String::from("<h2>Faults</h2>\n<p>None</p>\n");
        }
        let rows = self.read.faults.iter().map(|fault| {
            vec![Cell::time(fault.at), Cell::text(self.name(fault.process)), Cell::text(&fault.what)]
        });
        format!("<h2>Faults</h2>\n{}", table(&["at", "seen by", "what"], rows))
    }
}

/// Steps that follow each other.
struct Bar {
    first: u64,
    /// The mean of them.
    parts: StepOfRank,
}

fn mean(steps: impl Iterator<Item = StepOfRank>, process: u32) -> StepOfRank {
    let mut sum = StepOfRank { process, computing: 0, waiting: 0, busy: 0 };
    let mut count = 0;
    for step in steps {
        sum.computing += step.computing;
        sum.waiting += step.waiting;
        sum.busy += step.busy;
        count += 1;
    }
    let count = count.max(1);
    StepOfRank {
        process,
        computing: sum.computing / count,
        waiting: sum.waiting / count,
        busy: sum.busy / count,
    }
}

/// Bars of one rank, as high as its steps are long.
fn strip(name: &str, bars: &[Bar], longest: i64) -> String {
    const HEIGHT: f64 = 48.0;
    const WIDTH: f64 = 720.0;
    let mut svg = Svg::default();
    let width = WIDTH / bars.len().max(1) as f64;
    for (index, bar) in bars.iter().enumerate() {
        let StepOfRank { computing, waiting, busy, .. } = bar.parts;
        let tip = format!(
            "{name}, step {}: no operation {}, waiting {}, busy {}",
            bar.first,
            span(computing),
            span(waiting),
            span(busy)
        );
        let mut below = HEIGHT;
        for (part, class) in [(computing, "computing"), (waiting, "waiting"), (busy, "busy")] {
            let height = HEIGHT * part.max(0) as f64 / longest as f64;
            below -= height;
            let at = (index as f64 * width, below);
            svg.rect(at, ((width * 0.9).max(0.5), height), &format!("class=\"{class}\""), &tip);
        }
    }
    svg.inline(WIDTH, HEIGHT, &format!("steps of {name}"))
}
