//! A simulation as a picture: a row for each thread and port, time from left to right.

use super::{
    options::Described,
    recorded::Recorded,
    traced::label,
    words::{named, seconds},
};
use herringbone::core::simulate::{BusySpan, Prediction, Resource, What};
use std::fmt::Write;

const LEFT: f64 = 190.0;
const WIDE: f64 = 900.0;
const HIGH: f64 = 18.0;
const TOP: f64 = 64.0;
/// The most rows: a picture with more shows the first of them and says so.
const MOST_ROWS: usize = 48;
/// What is closer together than this is drawn as one, and narrower as wide.
const LEAST: f64 = 0.4;
const KINDS: [(&str, &str); 4] =
    [("messages", "#2166ac"), ("folds", "#b2182b"), ("copies", "#e08214"), ("codes", "#1b7837")];

pub(super) fn picture(recorded: &Recorded, described: &Described, outcome: &Prediction) -> String {
    let rows: Vec<(&Resource, &Vec<BusySpan>)> = recorded.spans.iter().take(MOST_ROWS).collect();
    let total = seconds(outcome.total()).max(f64::MIN_POSITIVE);
    let (width, height) = (LEFT + WIDE + 20.0, TOP + HIGH * rows.len() as f64 + 40.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    head(&mut svg, recorded, described, rows.len());
    let workers = described.verified.schedule().workers();
    for (at, (place, spans)) in rows.iter().enumerate() {
        let y = TOP + HIGH * at as f64;
        let name = named(**place, workers);
        let name = name.strip_prefix("the ").unwrap_or(&name);
        // Writing to a text does not fail.
        let _written = writeln!(svg, "<text x=\"8\" y=\"{:.1}\">{name}</text>", y + 12.0);
        let _written = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{:.0}\" y1=\"{:.1}\" y2=\"{:.1}\" stroke=\"#e5e5e5\"/>",
            LEFT + WIDE,
            y + HIGH,
            y + HIGH
        );
        bars(&mut svg, spans, y, total);
    }
    axis(&mut svg, TOP + HIGH * rows.len() as f64, total);
    svg.push_str("</svg>\n");
    svg
}

fn head(svg: &mut String, recorded: &Recorded, described: &Described, rows: usize) {
    let schedule = described.verified.schedule();
    let all = recorded.spans.len();
    let cut = if all > rows { format!("; the first {rows} of {all} rows") } else { String::new() };
    let late = if recorded.left_out > 0 { "; the end is left out" } else { "" };
    let _written = writeln!(
        svg,
        "<text x=\"8\" y=\"20\" font-size=\"14\">{}: {} among {} workers and {} reducers, simulated{cut}{late}</text>",
        described.name,
        described.call.collective,
        schedule.workers(),
        schedule.reducers(),
    );
    for (at, (name, colour)) in KINDS.iter().enumerate() {
        let x = LEFT + 90.0 * at as f64;
        let _written = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"36\" width=\"12\" height=\"12\" fill=\"{colour}\"/><text x=\"{}\" y=\"46\">{name}</text>",
            x + 18.0
        );
    }
}

/// A row's bars; those of one kind that touch are one.
fn bars(svg: &mut String, spans: &[BusySpan], y: f64, total: f64) {
    let mut open: Option<(f64, f64, usize, String)> = None;
    for span in spans {
        let kind = match span.what {
            What::Message { .. } => 0,
            What::Fold(_) => 1,
            What::Copy(_) => 2,
            What::Code(_) => 3,
        };
        let at = |time| LEFT + WIDE * seconds(time) / total;
        let (start, end) = (at(span.start), at(span.end));
        match &mut open {
            Some((_, until, of, _)) if *of == kind && start - *until < LEAST && end - start < 3.0 => {
                *until = until.max(end);
            }
            _ => {
                bar(svg, open.take(), y);
                open = Some((start, end, kind, label(span)));
            }
        }
    }
    bar(svg, open, y);
}

fn bar(svg: &mut String, bar: Option<(f64, f64, usize, String)>, y: f64) {
    if let Some((start, end, kind, title)) = bar {
        let _written = writeln!(
            svg,
            "<rect x=\"{start:.2}\" y=\"{:.1}\" width=\"{:.2}\" height=\"{}\" fill=\"{}\" stroke=\"white\" \
             stroke-width=\"0.2\"><title>{title}</title></rect>",
            y + 2.0,
            (end - start).max(LEAST),
            HIGH - 4.0,
            KINDS[kind].1
        );
    }
}

fn axis(svg: &mut String, y: f64, total: f64) {
    for tenth in 0..=10 {
        let x = LEFT + WIDE * f64::from(tenth) / 10.0;
        let _written = writeln!(
            svg,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{y:.1}\" y2=\"{:.1}\" stroke=\"black\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{:.4}</text>",
            y + 5.0,
            y + 18.0,
            1e3 * total * f64::from(tenth) / 10.0
        );
    }
    let _written = writeln!(svg, "<text x=\"8\" y=\"{:.1}\">milliseconds</text>", y + 18.0);
}
