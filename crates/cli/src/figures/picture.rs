//! A figure's charts as one picture, one below the other.

use super::figure::{AxisWords, Chart, Figure};
use crate::chart::{Axis, CurveEnd, Panel, Scale};
use herringbone::svg::{CURVES, INK, Point, Svg};
use std::ops::Range;

const LEFT: f64 = 84.0;
const WIDE: f64 = 520.0;
/// Room for names at the ends of curves.
const RIGHT: f64 = 270.0;
/// Above the first chart: the figure's title.
const HEAD: f64 = 34.0;
/// Above a chart: its title, and the words of the axis that goes up.
const TOP: f64 = 44.0;
const HIGH: f64 = 230.0;
/// Below a chart: ticks and the words of the axis that goes across.
const BELOW: f64 = 46.0;
/// An axis of factors is not narrower than this.
const LEAST_FACTOR: f64 = 2.0;

/// The picture of all charts.
pub(super) fn picture(figure: &Figure) -> String {
    let mut svg = Svg::default();
    svg.text((8.0, 22.0), "font-size=\"15\"", figure.title);
    let each = TOP + HIGH + BELOW;
    for (place, chart) in figure.charts.iter().enumerate() {
        draw(&mut svg, chart, HEAD + each * place as f64 + TOP);
    }
    svg.finish(LEFT + WIDE + RIGHT, HEAD + each * figure.charts.len() as f64)
}

/// A chart whose panel begins at this height.
fn draw(svg: &mut Svg, chart: &Chart, top: f64) {
    let all = || {
        let points = chart.curves.iter().flat_map(|curve| curve.points.iter().map(|point| point.at));
        points.chain(chart.marks.iter().map(|mark| mark.at))
    };
    let panel = Panel {
        across: axis(chart.across, all().map(|(x, _)| x), (LEFT, LEFT + WIDE)),
        up: axis(chart.up, all().map(|(_, y)| y), (top + HIGH, top)),
    };
    svg.text((LEFT, top - 24.0), "font-weight=\"bold\"", &chart.title);
    panel.grid(svg, chart.across.words, chart.up.words);
    let mut ends = Vec::new();
    for (curve, colour) in chart.curves.iter().zip(CURVES.iter().cycle()) {
        let points: Vec<Point> = curve.points.iter().map(|point| panel.at(point.at)).collect();
        svg.polyline(points.iter().copied(), &format!("stroke=\"{colour}\" stroke-width=\"2\""));
        for (point, at) in curve.points.iter().zip(&points) {
            let (x, y) = point.at;
            let look = match point.is_price {
                true => format!("fill=\"none\" stroke=\"{colour}\""),
                false => format!("fill=\"{colour}\""),
            };
            svg.circle(*at, 2.5, &look, &format!("{}: {} at {}", curve.name, short(y), short(x)));
        }
        ends.extend(points.last().map(|at| CurveEnd { at: *at, colour, words: curve.name.clone() }));
    }
    for mark in &chart.marks {
        let (x, y) = panel.at(mark.at);
        svg.circle((x, y), 5.0, &format!("fill=\"none\" stroke=\"{INK}\" stroke-width=\"1.5\""), &mark.words);
        svg.text((x + 8.0, y - 7.0), &format!("fill=\"{INK}\""), &mark.words);
    }
    panel.name_ends(svg, &ends);
}

/// From 0 where differences are equal, so that heights can be compared; as far as the points go where factors are.
fn axis(words: AxisWords, values: impl Iterator<Item = f64>, places: Point) -> Axis {
    let AxisWords { scale, unit, .. } = words;
    let finite = values.filter(|value| value.is_finite() && (scale != Scale::Factors || *value > 0.0));
    let Range { start, end } =
        finite.fold(f64::MAX..f64::MIN, |seen, value| seen.start.min(value)..seen.end.max(value));
    let values = match scale {
        _ if start > end => 1.0..LEAST_FACTOR,
        Scale::Factors => start..end.max(LEAST_FACTOR * start),
        Scale::Even | Scale::Whole => start.min(0.0)..if end > 0.0 { 1.05 * end } else { 1.0 },
    };
    Axis { values, places, scale, unit }
}

/// Without a unit.
fn short(value: f64) -> String {
    crate::chart::si(value, "")
}
