//! A simulation as a picture: a row for each thread and port, time from left to right.

use super::{
    options::Described,
    recorded::Recorded,
    traced::label,
    words::{named, seconds},
};
use crate::chart::{Axis, Scale, si};
use herringbone::{
    core::simulate::{BusySpan, Prediction, Resource, WorkItem},
    svg::{CURVES, FAINT, GREY, Svg},
};

const LEFT: f64 = 190.0;
const WIDE: f64 = 900.0;
const HIGH: f64 = 18.0;
const TOP: f64 = 64.0;
/// The most rows: a picture with more shows the first of them and says so.
const MOST_ROWS: usize = 48;
/// What is closer together than this is drawn as one, and narrower as wide.
const LEAST: f64 = 0.4;
const KINDS: [(&str, &str); 4] =
    [("messages", CURVES[0]), ("folds", CURVES[1]), ("copies", CURVES[2]), ("codes", CURVES[3])];

pub(super) fn picture(recorded: &Recorded, described: &Described, outcome: &Prediction) -> String {
    let rows: Vec<(&Resource, &Vec<BusySpan>)> = recorded.spans.iter().take(MOST_ROWS).collect();
    let total = seconds(outcome.total()).max(f64::MIN_POSITIVE);
    let bottom = TOP + HIGH * rows.len() as f64;
    let mut svg = Svg::default();
    head(&mut svg, recorded, described, total);
    axis(&mut svg, bottom, total);
    let workers = described.verified.schedule().workers();
    for (at, (place, spans)) in rows.iter().enumerate() {
        let y = TOP + HIGH * at as f64;
        let name = named(**place, workers);
        svg.text((8.0, y + 12.0), "", name.strip_prefix("the ").unwrap_or(&name));
        svg.line((LEFT, y + HIGH), (LEFT + WIDE, y + HIGH), &format!("stroke=\"{FAINT}\""));
        bars(&mut svg, spans, y, total);
    }
    svg.finish(LEFT + WIDE + 30.0, bottom + 30.0)
}

fn head(svg: &mut Svg, recorded: &Recorded, described: &Described, total: f64) {
    let schedule = described.verified.schedule();
    let all = recorded.spans.len();
    let cut = if all > MOST_ROWS { format!("; the first {MOST_ROWS} of {all} rows") } else { String::new() };
    let late = if recorded.left_out > 0 { "; the end is omitted" } else { "" };
    let (workers, reducers) = (schedule.workers(), schedule.reducers());
    let (name, collective) = (&described.name, described.call.collective);
    let title = format_args!(
        "{name}: simulated {collective} of {workers} workers and {reducers} reducers: {}{cut}{late}",
        si(total, "s")
    );
    svg.text((8.0, 20.0), "font-size=\"14\"", title);
    for (at, (name, colour)) in KINDS.iter().enumerate() {
        let x = LEFT + 90.0 * at as f64;
        svg.rect((x, 36.0), (12.0, 12.0), &format!("fill=\"{colour}\""), "");
        svg.text((x + 18.0, 46.0), "", name);
    }
}

/// A row's bars; touching bars of one kind are joined.
fn bars(svg: &mut Svg, spans: &[BusySpan], y: f64, total: f64) {
    let mut open: Option<(f64, f64, usize, String)> = None;
    for span in spans {
        let kind = match span.what {
            WorkItem::Message { .. } => 0,
            WorkItem::Fold(_) => 1,
            WorkItem::Copy(_) => 2,
            WorkItem::Code(_) => 3,
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

fn bar(svg: &mut Svg, bar: Option<(f64, f64, usize, String)>, y: f64) {
    if let Some((start, end, kind, title)) = bar {
        let style = format!("fill=\"{}\"", KINDS[kind].1);
        svg.rect((start, y + 2.0), ((end - start).max(LEAST), HIGH - 4.0), &style, &title);
    }
}

fn axis(svg: &mut Svg, bottom: f64, total: f64) {
    let axis = Axis { values: 0.0..total, places: (LEFT, LEFT + WIDE), scale: Scale::Even, unit: "s" };
    for (time, words) in axis.ticks() {
        let x = axis.at(time);
        svg.line((x, TOP), (x, bottom + 5.0), &format!("stroke=\"{FAINT}\""));
        svg.text((x, bottom + 18.0), &format!("fill=\"{GREY}\" text-anchor=\"middle\""), words);
    }
    svg.text((8.0, bottom + 18.0), &format!("fill=\"{GREY}\""), "time");
}
