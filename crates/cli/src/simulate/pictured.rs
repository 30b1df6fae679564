//! Roofs as lines, an operation as a point below them, on logarithmic axes.

use super::{roofs::Roofline, words::seconds};
use crate::{
    chart::{Axis, CurveEnd, Panel, Scale, si},
    failure::Failure,
};
use herringbone::{
    core::simulate::{Bound, Roof, binding},
    svg::{CURVES, Svg},
};

const LEFT: f64 = 80.0;
const TOP: f64 = 64.0;
const WIDE: f64 = 620.0;
const HIGH: f64 = 380.0;
/// Room for the names of roofs.
const RIGHT: f64 = 190.0;
/// How many times as much or as little as the operation's own is shown along the lower edge.
const AROUND: f64 = 16.0;

/// A roof's look and its bytes/s of the link, by bytes folded and copied for each byte on it.
struct Line<'a> {
    roof: Roof,
    colour: &'static str,
    dashes: &'static str,
    of: Box<dyn Fn(f64) -> f64 + 'a>,
}

/// The picture. A roof that limits nothing is not in it.
///
/// # Errors
/// Where nothing goes over a link, or all of it takes no time, so that no rate is a number.
pub(super) fn picture(roofline: &Roofline) -> Result<String, Failure> {
    let link = roofline.bound(Roof::Link).filter(|link| link.bytes > 0);
    let (Some(link), Some(own)) = (link, roofline.intensity()) else {
        return Err(Failure::Usage {
            problem: "no byte goes over a link, but the picture shows the rates of links".into(),
            hint: "leave --svg out, or spread the ranks over hosts with --per-host",
        });
    };
    if roofline.total == 0 {
        return Err(Failure::Usage {
            problem: "the operation takes no time, but the picture shows rates".into(),
            hint: "leave --svg out, or pass a trace whose spans have a length",
        });
    }
    let own = own.max(0.01);
    let attained = link.bytes as f64 / seconds(roofline.total);
    let mut lines = lines(roofline, link.bytes as f64, own);
    lines.retain(|line| (line.of)(own).is_finite());
    let at_own: Vec<f64> = lines.iter().map(|line| (line.of)(own)).chain([attained]).collect();
    let low = at_own.iter().copied().fold(f64::MAX, f64::min) / 8.0;
    let high = at_own.iter().copied().fold(f64::MIN_POSITIVE, f64::max) * 2.0;
    let panel = Panel {
        across: Axis {
            values: own / AROUND..own * AROUND,
            places: (LEFT, LEFT + WIDE),
            scale: Scale::Factors,
            unit: "",
        },
        up: Axis { values: low..high, places: (TOP + HIGH, TOP), scale: Scale::Factors, unit: "B/s" },
    };
    let mut svg = Svg::default();
    svg.text((8.0, 20.0), "font-size=\"14\"", &roofline.title);
    let below = "bytes folded and copied per byte on the link";
    panel.grid(
        &mut svg,
        below,
        "bytes/s on the link: the point is the operation, and each line is a roof with its limit there",
    );
    let binds = binding(&roofline.bounds).map(|bound| bound.roof);
    let ends: Vec<CurveEnd> = lines
        .iter()
        .filter_map(|line| curve(&mut svg, &panel, line, own, binds == Some(line.roof)))
        .collect();
    panel.name_ends(&mut svg, &ends);
    let (x, y) = panel.at((own, attained));
    svg.circle((x, y), 5.0, "", &format!("{} at {own:.2}", si(attained, "B/s")));
    svg.text((x + 8.0, y + 18.0), "", si(attained, "B/s"));
    Ok(svg.finish(LEFT + WIDE + RIGHT, TOP + HIGH + 50.0))
}

/// Where folds, copies and codes keep their parts of what is folded, copied and coded, and messages their sizes.
fn lines(roofline: &Roofline, link: f64, own: f64) -> Vec<Line<'_>> {
    let alone = move |bound: &Bound<String>| seconds(bound.alone) / link;
    let line = |roof: Roof, colour, dashes| {
        let each = roofline.bound(roof).map(alone)?;
        // Their bytes grow along the axis.
        let grows = matches!(roof, Roof::Fold | Roof::Copy | Roof::Code);
        let of = move |x: f64| 1.0 / (each * if grows { x / own } else { 1.0 });
        Some(Line { roof, colour, dashes, of: Box::new(of) })
    };
    let mut lines: Vec<Line<'_>> = [
        line(Roof::Link, CURVES[0], ""),
        line(Roof::Messages, CURVES[3], "6 3"),
        line(Roof::Copy, CURVES[2], "2 3"),
        line(Roof::Fold, CURVES[1], "9 3 2 3"),
        line(Roof::Code, CURVES[6], "2 3"),
    ]
    .into_iter()
    .flatten()
    .collect();
    if let Some(thread) = roofline.bound(Roof::Thread).map(alone) {
        let messages = roofline.bound(Roof::Messages).map_or(0.0, alone).min(thread);
        let of = move |x: f64| 1.0 / (messages + (thread - messages) * x / own);
        lines.push(Line { roof: Roof::Thread, colour: CURVES[4], dashes: "", of: Box::new(of) });
    }
    lines
}

/// Draws a roof; returns its end, unless all of it is outside.
fn curve(svg: &mut Svg, panel: &Panel, line: &Line<'_>, own: f64, binds: bool) -> Option<CurveEnd> {
    let points = (0..=64).map(|step| own / AROUND * AROUND.powf(f64::from(step) / 32.0));
    let points = points.map(|x| (x, (line.of)(x))).filter(|(_, y)| panel.up.values.contains(y));
    let points: Vec<_> = points.map(|point| panel.at(point)).collect();
    let (width, word) = if binds { (3, " (binds)") } else { (1, "") };
    let (colour, dashes) = (line.colour, line.dashes);
    let style = format!("stroke=\"{colour}\" stroke-width=\"{width}\" stroke-dasharray=\"{dashes}\"");
    svg.polyline(points.iter().copied(), &style);
    let words = format!("{}{word}, {}", line.roof.name(), si((line.of)(own), "B/s"));
    Some(CurveEnd { at: *points.last()?, colour, words })
}

#[cfg(test)]
mod tests {
    use super::*;
    use herringbone::{Collective, core::simulate::Picoseconds};

    fn roofline(total: Picoseconds, alone: Picoseconds) -> Roofline {
        let bound = |roof| Bound { roof, place: String::new(), bytes: 1000, alone };
        Roofline {
            title: String::new(),
            total,
            collective: Collective::AllReduce,
            bytes: 1000,
            ranks: 2,
            parts: None,
            bounds: vec![bound(Roof::Link), Bound { alone: 5_000, ..bound(Roof::Fold) }],
        }
    }

    #[test]
    fn what_takes_no_time_has_no_rate() {
        assert!(picture(&roofline(10_000, 10_000)).unwrap().contains(Roof::Link.name()));
        let without = picture(&roofline(10_000, 0)).unwrap();
        assert!(without.contains(Roof::Fold.name()) && !without.contains("inf"), "{without}");
        let error = picture(&roofline(0, 0)).unwrap_err();
        assert!(error.to_string().contains("takes no time"), "{error}");
    }
}
