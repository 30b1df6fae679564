//! The common parts of charts: axes with round numbers and units, and names at the ends of curves.

use herringbone::svg::{FAINT, GREY, Point, Svg};
use std::ops::Range;

/// The least distance of two names at ends of curves.
const APART: f64 = 14.0;
/// The most ticks of an axis.
const MOST_TICKS: i32 = 10;

/// An axis: the values that it shows, where they lie in the picture, and their unit, such as `s`; prices have none.
pub(crate) struct Axis {
    pub(crate) values: Range<f64>,
    /// From the place of the first value to the place of the last one.
    pub(crate) places: Point,
    pub(crate) scale: Scale,
    pub(crate) unit: &'static str,
}

/// What equal distances on an axis are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    /// Equal differences.
    Even,
    /// The same, with ticks at whole numbers only.
    Whole,
    /// Equal factors.
    Factors,
}

impl Axis {
    /// Where a value lies.
    pub(crate) fn at(&self, value: f64) -> f64 {
        let Range { start, end } = self.values;
        let share = match self.scale {
            Scale::Factors => (value / start).ln() / (end / start).ln(),
            Scale::Even | Scale::Whole => (value - start) / (end - start),
        };
        self.places.0 + share * (self.places.1 - self.places.0)
    }

    /// Values that are 1, 2 or 5 times a power of ten, or as far apart, and what stands beside them.
    pub(crate) fn ticks(&self) -> Vec<(f64, String)> {
        let Range { start, end } = self.values;
        if self.scale == Scale::Factors {
            return factors(start, end).into_iter().map(|value| (value, si(value, self.unit))).collect();
        }
        let least = if self.scale == Scale::Whole { 1.0 } else { 0.0 };
        let step = step(end - start).max(least);
        let (first, last) = ((start / step - 1e-9).ceil() as i64, (end / step + 1e-9).floor() as i64);
        // All ticks of an axis have one unit, and as many digits as tell neighbours apart.
        let (factor, prefix) = prefix(start.abs().max(end.abs()), self.unit);
        let digits = (-(step / factor * 1.000_001).log10().floor()).clamp(0.0, 12.0) as usize;
        let unit = unit(prefix, self.unit);
        (first..=last)
            .map(|at| at as f64 * step)
            .map(|value| (value, format!("{:.digits$}{unit}", value / factor)))
            .collect()
    }
}

/// A panel between an axis that goes to the right and one that goes up.
pub(crate) struct Panel {
    pub(crate) across: Axis,
    pub(crate) up: Axis,
}

impl Panel {
    pub(crate) fn at(&self, (x, y): Point) -> Point {
        (self.across.at(x), self.up.at(y))
    }

    /// Lines at ticks, what stands beside them, and the axes' titles.
    pub(crate) fn grid(&self, svg: &mut Svg, across: &str, up: &str) {
        let ((left, right), (bottom, top)) = (self.across.places, self.up.places);
        let faint = format!("stroke=\"{FAINT}\"");
        let style = |anchor: &str| format!("fill=\"{GREY}\" text-anchor=\"{anchor}\"");
        for (value, words) in self.across.ticks() {
            let x = self.across.at(value);
            svg.line((x, top), (x, bottom), &faint);
            svg.text((x, bottom + 16.0), &style("middle"), words);
        }
        for (value, words) in self.up.ticks() {
            let y = self.up.at(value);
            svg.line((left, y), (right, y), &faint);
            svg.text((left - 7.0, y + 4.0), &style("end"), words);
        }
        svg.text(((left + right) / 2.0, bottom + 34.0), &style("middle"), across);
        svg.text((left, top - 9.0), &style("start"), up);
    }

    /// A name beside the end of each curve, with a stroke from the end to its name.
    pub(crate) fn name_ends(&self, svg: &mut Svg, ends: &[CurveEnd]) {
        let heights: Vec<f64> = ends.iter().map(|end| end.at.1).collect();
        for (end, height) in ends.iter().zip(apart(&heights, self.up.places.1, self.up.places.0)) {
            let CurveEnd { at: (x, y), colour, words } = end;
            let beside = x.max(self.across.places.1) + 14.0;
            svg.line((x + 3.0, *y), (beside, height), &format!("stroke=\"{colour}\" stroke-width=\"0.7\""));
            svg.text((beside + 4.0, height + 4.0), &format!("fill=\"{colour}\""), words);
        }
    }
}

/// Where a curve ends in the picture, its colour, and what stands there.
pub(crate) struct CurveEnd {
    pub(crate) at: Point,
    pub(crate) colour: &'static str,
    pub(crate) words: String,
}

/// A value with four digits and a unit: 4.912 GB/s, 25 ms. Without a unit, as prices, it has no prefix.
pub(crate) fn si(value: f64, of: &str) -> String {
    let (factor, prefix) = prefix(value.abs(), of);
    let value = value / factor;
    let places = (3.0 - value.abs().max(1e-12).log10().floor()).clamp(0.0, 12.0) as usize;
    let text = format!("{value:.places$}");
    let text = if places > 0 { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{}", unit(prefix, of))
}

/// The factor that leaves 1 to 999 of a value, and its name. Numbers without a unit have none below 100,000, where they are read easily.
fn prefix(value: f64, unit: &str) -> (f64, &'static str) {
    const PREFIXES: [(f64, &str); 8] =
        [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K"), (1.0, ""), (1e-3, "m"), (1e-6, "u"), (1e-9, "n")];
    let least = |(factor, _): &&(f64, &str)| value >= factor * 0.99995;
    if value == 0.0 || (unit.is_empty() && value < 99_995.0) {
        (1.0, "")
    } else {
        *PREFIXES.iter().find(least).unwrap_or(&PREFIXES[7])
    }
}

fn unit(prefix: &str, unit: &str) -> String {
    if unit.is_empty() && prefix.is_empty() { String::new() } else { format!(" {prefix}{unit}") }
}

/// 1, 2 or 5 times a power of ten: the least with at most `MOST_TICKS` in a span.
fn step(span: f64) -> f64 {
    let power = (span / f64::from(MOST_TICKS)).log10().floor();
    let steps = [1.0, 2.0, 5.0, 10.0].map(|times| times * 10f64.powf(power));
    steps.into_iter().find(|step| span / step <= f64::from(MOST_TICKS)).unwrap_or(steps[3])
}

/// 1, 2 and 5 times powers of ten within a range; only some of the powers if all were too many. None in a range that does
/// not lie above 0, or has no end.
fn factors(low: f64, high: f64) -> Vec<f64> {
    if !(low > 0.0 && high.is_finite()) {
        return Vec::new();
    }
    let powers = low.log10().floor() as i32..=high.log10().ceil() as i32;
    let of = |times: &[f64], apart: i32| -> Vec<f64> {
        let powers = powers.clone().filter(|power| power.rem_euclid(apart) == 0);
        let all = powers.flat_map(|power| times.iter().map(move |time| time * 10f64.powi(power)));
        all.filter(|value| (low..=high).contains(value)).collect()
    };
    let fits = |found: &Vec<f64>| found.len() as i32 <= MOST_TICKS;
    let all = of(&[1.0, 2.0, 5.0], 1);
    if fits(&all) { all } else { (1..).map(|apart| of(&[1.0], apart)).find(fits).unwrap_or_default() }
}

/// These heights, moved so that neighbours are `APART` from each other, between `top` and `bottom` as far as there is room.
fn apart(heights: &[f64], top: f64, bottom: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..heights.len()).collect();
    order.sort_by(|one, other| heights[*one].total_cmp(&heights[*other]));
    let mut moved = heights.to_vec();
    let mut free = top;
    for at in &order {
        moved[*at] = moved[*at].max(free);
        free = moved[*at] + APART;
    }
    let mut free = bottom;
    for at in order.iter().rev() {
        moved[*at] = moved[*at].min(free);
        free = moved[*at] - APART;
    }
    moved
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(values: Range<f64>, scale: Scale, unit: &'static str) -> Vec<String> {
        let axis = Axis { values, places: (0.0, 100.0), scale, unit };
        axis.ticks().into_iter().map(|(_, words)| words).collect()
    }

    #[test]
    fn ticks_are_round_and_have_units() {
        let even = labels(0.0..0.148_049, Scale::Even, "s");
        assert_eq!((even[0].as_str(), even[1].as_str(), even.len()), ("0 ms", "20 ms", 8));
        assert_eq!(labels(1.0..1.009, Scale::Even, "s")[..3], ["1.000 s", "1.001 s", "1.002 s"]);
        assert_eq!(labels(71.5..72.1, Scale::Even, "")[..2], ["71.5", "71.6"]);
        assert_eq!(labels(3e8..7e9, Scale::Factors, "B/s"), ["500 MB/s", "1 GB/s", "2 GB/s", "5 GB/s"]);
        assert_eq!(labels(0.0..2.0, Scale::Whole, ""), ["0", "1", "2"]);
        assert_eq!(labels(1e3..1e7, Scale::Factors, ""), ["1000", "10000", "100 K", "1 M", "10 M"]);
        assert!(labels(1e-30..1e30, Scale::Factors, "").len() <= 10);
        for endless in [0.0..1.0, -1.0..1.0, 1.0..f64::INFINITY, f64::NAN..1.0, f64::INFINITY..f64::INFINITY]
        {
            assert!(labels(endless.clone(), Scale::Factors, "").is_empty(), "{endless:?}");
        }
    }

    #[test]
    fn values_have_four_digits() {
        let found = [0.0, 4.9123e9, 999.96, 0.0123, 7.0, 250.0].map(|value| si(value, "B"));
        assert_eq!(found, ["0 B", "4.912 GB", "1 KB", "12.3 mB", "7 B", "250 B"]);
        assert_eq!([0.05, 73.026, 12_345.0].map(|value| si(value, "")), ["0.05", "73.03", "12345"]);
    }

    #[test]
    fn names_are_apart_and_inside() {
        let moved = apart(&[50.0, 52.0, 51.0, 99.0, 98.0], 0.0, 100.0);
        let mut sorted = moved.clone();
        sorted.sort_by(f64::total_cmp);
        assert!(sorted.windows(2).all(|pair| pair[1] - pair[0] >= APART - 1e-9), "{moved:?}");
        assert!(sorted[0] >= 0.0 && sorted[4] <= 100.0, "{moved:?}");
        assert!(moved[0] < moved[2] && moved[2] < moved[1] && moved[4] < moved[3], "{moved:?}");
    }
}
