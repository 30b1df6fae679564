//! The few shapes that the pictures of the engine and of the command line consist of.

use std::fmt::{Display, Write};

/// Text and strokes, and the default fill.
pub const INK: &str = "#1f2933";
/// Text and strokes of less weight.
pub const GREY: &str = "#5f6b7a";
/// Grids and frames.
pub const FAINT: &str = "#dde2e9";
/// Colours of curves and bars. Each has a contrast of at least 3 with white and with GitHub's dark page.
pub const CURVES: [&str; 8] =
    ["#2f81f7", "#dc4a4a", "#d97706", "#0f9d76", "#9b6bdf", "#d64f9f", "#a07a1f", "#1296b0"];
/// Fills behind text: green, pink, violet, yellow, and a stronger green and red.
pub const TINTS: [&str; 6] = ["#d9f0d3", "#fde0ef", "#e6e6f5", "#fff7bc", "#7fbf7b", "#ef8a80"];
/// What these are on a dark page. Shapes name light colours, and a style sheet in the file replaces them, so a program that knows no
/// style sheets shows the light picture.
const DARK: [(&str, &str); 9] = [
    (INK, "#e6edf3"),
    (GREY, "#9aa5b4"),
    (FAINT, "#343c47"),
    (TINTS[0], "#1f4a26"),
    (TINTS[1], "#5c2747"),
    (TINTS[2], "#37376b"),
    (TINTS[3], "#55490f"),
    (TINTS[4], "#2c6a34"),
    (TINTS[5], "#8f3a33"),
];

/// A place, in the picture's units from its upper left corner.
pub type Point = (f64, f64);

/// A picture that is being drawn. Shapes take further attributes of SVG, such as `fill="red"`, as `style`, and a
/// tooltip text as `tip`; both can be empty.
#[derive(Debug, Default)]
pub struct Svg(String);

impl Svg {
    /// A line of text; the place is the beginning of its baseline, unless the style has another `text-anchor`.
    pub fn text(&mut self, at: Point, style: &str, text: impl Display) {
        self.text_with_tip(at, style, "", text);
    }

    /// The same with a tip.
    pub fn text_with_tip(&mut self, (x, y): Point, style: &str, tip: &str, text: impl Display) {
        let (x, y, tip, text) = (short(x), short(y), titled(tip), escaped(&text.to_string()));
        self.add(format_args!("<text x=\"{x}\" y=\"{y}\" {style}>{tip}{text}</text>"));
    }

    /// A rectangle below and to the right of a place.
    pub fn rect(&mut self, (x, y): Point, (width, height): Point, style: &str, tip: &str) {
        let [x, y, width, height] = [x, y, width, height].map(short);
        let tip = titled(tip);
        self.add(format_args!(
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" {style}>{tip}</rect>"
        ));
    }

    /// A circle around a place.
    pub fn circle(&mut self, (x, y): Point, radius: f64, style: &str, tip: &str) {
        let (x, y, tip) = (short(x), short(y), titled(tip));
        self.add(format_args!("<circle cx=\"{x}\" cy=\"{y}\" r=\"{radius}\" {style}>{tip}</circle>"));
    }

    /// A line.
    pub fn line(&mut self, from: Point, to: Point, style: &str) {
        let [x, y, to_x, to_y] = [from.0, from.1, to.0, to.1].map(short);
        self.add(format_args!("<line x1=\"{x}\" y1=\"{y}\" x2=\"{to_x}\" y2=\"{to_y}\" {style}/>"));
    }

    /// A line through these places.
    pub fn polyline(&mut self, points: impl Iterator<Item = Point>, style: &str) {
        let points: Vec<String> = points.map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        self.add(format_args!("<polyline fill=\"none\" points=\"{}\" {style}/>", points.join(" ")));
    }

    /// Lines in SVG's language of paths.
    pub fn path(&mut self, path: &str, style: &str) {
        self.add(format_args!("<path d=\"{path}\" fill=\"none\" {style}/>"));
    }

    /// Shapes whose places count from this one.
    pub fn group(&mut self, (x, y): Point, draw: impl FnOnce(&mut Self)) {
        self.add(format_args!("<g transform=\"translate({x:.0} {y:.0})\">"));
        draw(self);
        self.add(format_args!("</g>"));
    }

    /// The whole file: a picture of this width and height without a background, with other colours on a dark page.
    pub fn finish(self, width: f64, height: f64) -> String {
        let rules = DARK.map(|(light, dark)| {
            format!("[fill=\"{light}\"]{{fill:{dark}}}[stroke=\"{light}\"]{{stroke:{dark}}}")
        });
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
             font-family=\"sans-serif\" font-size=\"11\" fill=\"{INK}\">\n\
             <style>@media (prefers-color-scheme:dark){{{}}}</style>\n{}</svg>\n",
            rules.concat(),
            self.0
        )
    }

    /// A picture within a page, as wide as the page permits, with the page's background and colours; `label` is for
    /// readers who do not see it.
    pub fn inline(self, width: f64, height: f64, label: &str) -> String {
        format!(
            "<svg role=\"img\" aria-label=\"{}\" viewBox=\"0 0 {width:.0} {height:.0}\" preserveAspectRatio=\"none\">\n{}</svg>\n",
            escaped(label).replace('"', "&quot;"),
            self.0
        )
    }

    fn add(&mut self, shape: std::fmt::Arguments<'_>) {
        // Writing to a text does not fail.
        let _written = writeln!(self.0, "{shape}");
    }
}

/// A number in hundredths, without zeros at its end.
fn short(number: f64) -> f64 {
    (100.0 * number).round() / 100.0
}

fn titled(tip: &str) -> String {
    if tip.is_empty() { String::new() } else { format!("<title>{}</title>", escaped(tip)) }
}

/// A text between the tags of XML or HTML, which know no control characters.
pub fn escaped(text: &str) -> String {
    let known = |letter: char| match letter {
        '\u{0}'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{fffe}' | '\u{ffff}' => '\u{fffd}',
        _ => letter,
    };
    let text: String = text.chars().map(known).collect();
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_has_no_background_and_other_colours_on_dark_pages() {
        let mut svg = Svg::default();
        svg.text((1.0, 2.0), "", "<words>");
        let whole = svg.finish(30.0, 20.0);
        assert!(!whole.contains("<rect") && !whole.contains("white"), "{whole}");
        assert!(whole.contains("&lt;words&gt;"), "{whole}");
        for (light, dark) in DARK {
            assert!(whole.contains(&format!("[fill=\"{light}\"]{{fill:{dark}}}")), "{light}");
        }
        assert!(
            whole.contains(&format!("fill=\"{INK}\">")),
            "text has a colour that the style sheet replaces"
        );
    }
}
