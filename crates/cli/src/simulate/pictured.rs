//! Roofs as lines, an operation as a point below them; both axes count by factors.

use super::{roofs::Roofline, words::seconds};
use herringbone::{
    core::simulate::{Bound, Roof, binding},
    svg::Svg,
};
use std::ops::Range;

const LEFT: f64 = 80.0;
const TOP: f64 = 60.0;
const WIDE: f64 = 620.0;
const HIGH: f64 = 380.0;
/// How many times as much or as little as the operation's own is shown along the lower edge.
const AROUND: f64 = 16.0;

/// A roof's colour and its bytes/s of the link, by bytes folded and copied for each byte on it.
struct Line<'a> {
    roof: Roof,
    colour: &'static str,
    of: Box<dyn Fn(f64) -> f64 + 'a>,
}

/// The picture; none where nothing goes over a link.
pub(super) fn picture(roofline: &Roofline) -> Option<String> {
    let link = roofline.bound(Roof::Link).filter(|link| link.bytes > 0)?;
    let own = roofline.intensity()?.max(0.01);
    let attained = link.bytes as f64 / seconds(roofline.total).max(f64::MIN_POSITIVE);
    let lines = lines(roofline, link.bytes as f64, own);
    let at_own: Vec<f64> = lines.iter().map(|line| (line.of)(own)).chain([attained]).collect();
    let low = at_own.iter().copied().fold(f64::MAX, f64::min) / 8.0;
    let high = at_own.iter().copied().fold(f64::MIN_POSITIVE, f64::max) * 2.0;
    let frame = Frame { x: own / AROUND..own * AROUND, y: low..high };
    let mut svg = Svg::default();
    svg.text((8.0, 20.0), "font-size=\"14\"", &roofline.title);
    frame.grid(&mut svg);
    let binds = binding(&roofline.bounds).map(|bound| bound.roof);
    for (at, line) in lines.iter().enumerate() {
        frame.curve(&mut svg, line, at, binds == Some(line.roof));
    }
    let (x, y) = (frame.across(own), frame.up(attained));
    svg.circle((x, y), 5.0, "", &format!("{:.4} GB/s at {own:.2}", attained / 1e9));
    svg.text((x + 8.0, y + 16.0), "", format_args!("{:.3} GB/s", attained / 1e9));
    Some(svg.finish(LEFT + WIDE + 30.0, TOP + HIGH + 50.0))
}

/// Where folds, copies and codes keep their parts of what is folded, copied and coded, and messages their sizes.
fn lines(roofline: &Roofline, link: f64, own: f64) -> Vec<Line<'_>> {
    let alone = move |bound: &Bound<String>| seconds(bound.alone) / link;
    let line = |roof: Roof, colour| {
        let each = roofline.bound(roof).map(alone)?;
        // Of them there are more, the more there is of all.
        let grows = matches!(roof, Roof::Fold | Roof::Copy | Roof::Code);
        let of = move |x: f64| 1.0 / (each * if grows { x / own } else { 1.0 });
        Some(Line { roof, colour, of: Box::new(of) })
    };
    let mut lines: Vec<Line<'_>> = [
        line(Roof::Link, "#2166ac"),
        line(Roof::Messages, "#1b7837"),
        line(Roof::Copy, "#e08214"),
        line(Roof::Fold, "#b2182b"),
        line(Roof::Code, "#5aae61"),
    ]
    .into_iter()
    .flatten()
    .collect();
    if let Some(thread) = roofline.bound(Roof::Thread).map(alone) {
        let messages = roofline.bound(Roof::Messages).map_or(0.0, alone).min(thread);
        let of = move |x: f64| 1.0 / (messages + (thread - messages) * x / own);
        lines.push(Line { roof: Roof::Thread, colour: "#762a83", of: Box::new(of) });
    }
    lines
}

/// What the axes show.
struct Frame {
    x: Range<f64>,
    y: Range<f64>,
}

impl Frame {
    fn across(&self, x: f64) -> f64 {
        LEFT + WIDE * (x / self.x.start).ln() / (self.x.end / self.x.start).ln()
    }

    fn up(&self, y: f64) -> f64 {
        TOP + HIGH * (1.0 - (y / self.y.start).ln() / (self.y.end / self.y.start).ln())
    }

    fn grid(&self, svg: &mut Svg) {
        let doubled = |low: f64, high: f64| {
            let first = low.log2().ceil() as i32;
            (first..).map(|power| 2f64.powi(power)).take_while(move |value| *value <= high)
        };
        let (bottom, right, faint) = (TOP + HIGH, LEFT + WIDE, "stroke=\"#e5e5e5\"");
        for x in doubled(self.x.start, self.x.end) {
            let at = self.across(x);
            svg.line((at, TOP), (at, bottom), faint);
            svg.text((at, bottom + 16.0), MIDDLE, x);
        }
        for y in doubled(self.y.start / 1e9, self.y.end / 1e9) {
            let at = self.up(y * 1e9);
            svg.line((LEFT, at), (right, at), faint);
            svg.text((LEFT - 6.0, at + 4.0), "text-anchor=\"end\"", (y * 1e4).round() / 1e4);
        }
        let below = "bytes folded and copied for each byte on the link";
        svg.text((LEFT + WIDE / 2.0, bottom + 36.0), MIDDLE, below);
        svg.text((8.0, TOP - 8.0), "", "GB/s on the link");
    }

    fn curve(&self, svg: &mut Svg, line: &Line<'_>, at: usize, binds: bool) {
        let Range { start, end } = self.x;
        let points = (0..=64).map(|step| start * (end / start).powf(f64::from(step) / 64.0));
        let inside = points.map(|x| (x, (line.of)(x))).filter(|(_, y)| self.y.contains(y));
        let (colour, width, words) =
            (line.colour, if binds { 3 } else { 1 }, if binds { " (binds)" } else { "" });
        let style = format!("stroke=\"{colour}\" stroke-width=\"{width}\"");
        svg.polyline(inside.map(|(x, y)| (self.across(x), self.up(y))), &style);
        let x = LEFT + 110.0 * at as f64;
        svg.rect((x, 34.0), (12.0, 4.0), &format!("fill=\"{colour}\""), "");
        svg.text((x + 18.0, 40.0), "", format_args!("{}{words}", line.roof.name()));
    }
}

const MIDDLE: &str = "text-anchor=\"middle\"";
