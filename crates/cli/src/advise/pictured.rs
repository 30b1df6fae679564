//! Step time and price as curves over the number of reducers, with the best of each marked.

use crate::chart::{Axis, Panel, Scale, si};
use herringbone::{
    core::plan::advice::Offer,
    svg::{CURVES, GREY, Svg},
};

const LEFT: f64 = 76.0;
const WIDE: f64 = 560.0;
const HIGH: f64 = 190.0;
const TOP: f64 = 64.0;
/// From one panel to the next.
const BELOW: f64 = 76.0;
/// Room for the last figure of a curve.
const RIGHT: f64 = 90.0;
/// Up to this many offers, each has a dot.
const DOTS: usize = 65;

/// The value of an offer that a panel shows.
struct Shown<'a> {
    title: &'static str,
    /// The name of the best one.
    best: &'static str,
    unit: &'static str,
    colour: &'static str,
    of: fn(&Offer) -> f64,
    least: &'a Offer,
}

/// The picture of offers by number of reducers, from none; the cheapest is there if prices are known.
pub(super) fn picture(workers: u32, offers: &[Offer], fastest: &Offer, cheapest: Option<&Offer>) -> String {
    let steps = Shown {
        title: "step time",
        best: "fastest",
        unit: "s",
        colour: CURVES[0],
        of: |offer| offer.step,
        least: fastest,
    };
    let prices = cheapest.map(|cheapest| Shown {
        title: "price of 1,000 steps",
        best: "cheapest",
        unit: "",
        colour: CURVES[2],
        of: |offer| 1e3 * offer.price,
        least: cheapest,
    });
    let panels: Vec<Shown<'_>> = [steps].into_iter().chain(prices).collect();
    let mut svg = Svg::default();
    let what = if panels.len() > 1 { "Step time and price" } else { "Step time" };
    let title = format_args!("{what} with {workers} workers, by number of reducers");
    svg.text((8.0, 22.0), "font-size=\"15\"", title);
    for (at, shown) in panels.iter().enumerate() {
        panel(&mut svg, offers, shown, TOP + at as f64 * (HIGH + BELOW));
    }
    svg.finish(LEFT + WIDE + RIGHT, TOP + panels.len() as f64 * (HIGH + BELOW) - 30.0)
}

fn panel(svg: &mut Svg, offers: &[Offer], shown: &Shown<'_>, top: f64) {
    let values: Vec<f64> = offers.iter().map(shown.of).collect();
    let (low, high) =
        values.iter().fold((f64::MAX, 0.0_f64), |(low, high), of| (low.min(*of), high.max(*of)));
    // A line that is flat has room, too.
    let span = (high - low).max(0.02 * high).max(1e-12);
    let last = (offers.len() - 1).max(1) as f64;
    let panel = Panel {
        across: Axis { values: 0.0..last, places: (LEFT, LEFT + WIDE), scale: Scale::Whole, unit: "" },
        up: Axis {
            values: (low - 0.2 * span).max(0.0)..high + 0.2 * span,
            places: (top + HIGH, top),
            scale: Scale::Even,
            unit: shown.unit,
        },
    };
    let begins = if panel.up.values.start > 0.0 { "; the axis does not start at 0" } else { "" };
    panel.grid(svg, "reducers", &format!("{}{begins}", shown.title));
    let points: Vec<_> =
        offers.iter().map(|offer| panel.at((f64::from(offer.reducers), (shown.of)(offer)))).collect();
    let colour = shown.colour;
    let none = format!("stroke=\"{GREY}\" stroke-dasharray=\"2 4\"");
    svg.line(points[0], (LEFT + WIDE, points[0].1), &none);
    svg.polyline(points.iter().copied(), &format!("stroke=\"{colour}\" stroke-width=\"2\""));
    if points.len() <= DOTS {
        points.iter().for_each(|point| svg.circle(*point, 2.0, &format!("fill=\"{colour}\""), ""));
    }
    let words = |offer: &Offer| si((shown.of)(offer), shown.unit);
    let best = shown.least;
    for (offer, point, dx, dy, anchor) in [
        (&offers[0], points[0], 4.0, -7.0, "start"),
        (&offers[offers.len() - 1], points[points.len() - 1], 10.0, 4.0, "start"),
    ] {
        if offer.reducers != best.reducers {
            let without = if offer.reducers == 0 { " without reducers" } else { "" };
            let style = format!("text-anchor=\"{anchor}\"");
            svg.text((point.0 + dx, point.1 + dy), &style, format_args!("{}{without}", words(offer)));
        }
    }
    let (x, y) = points[best.reducers as usize];
    svg.circle((x, y), 5.0, &format!("fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\""), "");
    let anchor = match (x - LEFT) / WIDE {
        share if share < 0.25 => "start",
        share if share > 0.75 => "end",
        _ => "middle",
    };
    let plural = if best.reducers == 1 { "" } else { "s" };
    let words = format!("{}: {} reducer{plural}, {}", shown.best, best.reducers, words(best));
    svg.text((x, y + 20.0), &format!("text-anchor=\"{anchor}\" font-weight=\"bold\""), words);
}
