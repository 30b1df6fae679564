//! Scaling efficiency as a curve for each way over the number of workers.

use super::{
    report::{TrainingReport, named},
    rows::StepRow,
};
use crate::chart::{Axis, CurveEnd, Panel, Scale};
use herringbone::svg::{CURVES, Point, Svg};

const LEFT: f64 = 64.0;
const WIDE: f64 = 560.0;
const TOP: f64 = 66.0;
const HIGH: f64 = 320.0;
/// Room for names at the ends of curves.
const RIGHT: f64 = 230.0;
/// The axis is not narrower than this factor, where there is one number of workers.
const LEAST_FACTOR: f64 = 2.0;

/// The picture of all rows.
pub(super) fn picture(report: &TrainingReport<'_>) -> String {
    let workers = || report.simulated.rows.iter().map(|row| f64::from(row.workers));
    let (first, last) = (workers().fold(f64::MAX, f64::min), workers().fold(1.0, f64::max));
    let panel = Panel {
        across: Axis {
            values: first..last.max(LEAST_FACTOR * first),
            places: (LEFT, LEFT + WIDE),
            scale: Scale::Factors,
            unit: "",
        },
        up: Axis { values: 0.0..100.0, places: (TOP + HIGH, TOP), scale: Scale::Even, unit: "" },
    };
    let mut svg = Svg::default();
    let title = format_args!("{}: scaling efficiency by workers", report.asked.model.profile.name);
    svg.text((8.0, 22.0), "font-size=\"15\"", title);
    svg.text((8.0, 40.0), "", &report.asked.worker.basis);
    panel.grid(
        &mut svg,
        "workers",
        "% of the steps/s of one worker alone; hollow: prices instead of simulations",
    );
    let curves = report
        .simulated
        .rows
        .chunk_by(|one, next| (&one.algorithm, one.codec) == (&next.algorithm, next.codec));
    let mut ends = Vec::new();
    for (curve, colour) in curves.zip(CURVES.iter().cycle()) {
        let point = |row: &StepRow| panel.at((f64::from(row.workers), 100.0 * report.efficiency(row)));
        let points: Vec<Point> = curve.iter().map(point).collect();
        svg.polyline(points.iter().copied(), &format!("stroke=\"{colour}\" stroke-width=\"2\""));
        for (row, at) in curve.iter().zip(&points) {
            let words =
                format!("{} of {}: {:.1} %", row.algorithm, row.workers, 100.0 * report.efficiency(row));
            let look = match row.has_prices {
                true => format!("fill=\"none\" stroke=\"{colour}\""),
                false => format!("fill=\"{colour}\""),
            };
            svg.circle(*at, 2.5, &look, &words);
        }
        if let (Some(row), Some(at)) = (curve.last(), points.last()) {
            let words =
                format!("{}, {:.1} %", named(&row.algorithm, row.codec), 100.0 * report.efficiency(row));
            ends.push(CurveEnd { at: *at, colour, words });
        }
    }
    panel.name_ends(&mut svg, &ends);
    svg.finish(LEFT + WIDE + RIGHT, TOP + HIGH + 50.0)
}
