//! A figure: sentences of an article with their numbers, our numbers for them, and curves.

use crate::chart::{Scale, si};
use herringbone::svg::Point;

/// Predictions that differ from the article's number by a larger part of it disagree.
const PREDICTED_TOLERANCE: f64 = 0.05;
/// The same of formulas: articles round to three digits.
const FORMULA_TOLERANCE: f64 = 0.01;

/// A figure: what one article says, and what Herringbone's own schedules and simulations come to.
#[derive(Clone, Debug)]
pub(super) struct Figure {
    /// As `--only` names it, and as its files are called.
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    /// The article, in words that a reader finds it by.
    pub(super) source: &'static str,
    /// What was computed, in a sentence or two.
    pub(super) about: String,
    /// All inputs, in the order of the options.
    pub(super) inputs: Vec<FigureInput>,
    /// The one constant that was fitted to the article's baseline, if there is one.
    pub(super) fitted: Option<FittedConstant>,
    pub(super) claims: Vec<ArticleClaim>,
    /// One below the other.
    pub(super) charts: Vec<Chart>,
}

/// An input: its option, and its value as the command line takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FigureInput {
    pub(super) option: &'static str,
    pub(super) value: String,
}

impl FigureInput {
    pub(super) fn of(option: &'static str, value: impl ToString) -> Self {
        Self { option, value: value.to_string() }
    }
}

/// A constant that was chosen so that a baseline comes out as the article says.
#[derive(Clone, Debug)]
pub(super) struct FittedConstant {
    pub(super) constant: String,
    pub(super) value: Quantity,
    /// The article's sentence that it was fitted to.
    pub(super) to: String,
}

/// A sentence of the article, its number, and ours.
#[derive(Clone, Debug)]
pub(super) struct ArticleClaim {
    /// The sentence, shortened.
    pub(super) said: String,
    pub(super) seed: Quantity,
    pub(super) ours: Quantity,
    pub(super) how: How,
    /// Why ours differs: a sentence. A claim with numbers that differ has one; one that agrees can have a remark.
    pub(super) why: Option<String>,
}

/// How our number came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// It is the baseline that the figure's constant was fitted to.
    Fitted,
    /// Simulated, or priced where a simulation has too many messages.
    Predicted,
    /// The article gives a formula; ours is counted in schedules that are proved, or simulated without any cost but the formula's.
    Formula,
}

impl How {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Fitted => "fitted",
            Self::Predicted => "predicted",
            Self::Formula => "formula",
        }
    }

    fn tolerance(self) -> f64 {
        if self == Self::Formula { FORMULA_TOLERANCE } else { PREDICTED_TOLERANCE }
    }
}

/// A number with its unit as people read it; or words alone.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Quantity {
    pub(super) words: String,
    /// In that unit.
    pub(super) value: Option<f64>,
}

impl Quantity {
    /// Four digits and a unit as it is, as `0.4 steps/s` and `42.8 %`.
    pub(super) fn of(value: f64, unit: &str) -> Self {
        let space = if unit.is_empty() { "" } else { " " };
        Self { words: format!("{}{space}{unit}", si(value, "")), value: Some(value) }
    }

    pub(super) fn words(words: impl Into<String>) -> Self {
        Self { words: words.into(), value: None }
    }
}

impl ArticleClaim {
    /// A claim without a reason; see [`because`](Self::because).
    pub(super) fn new(said: impl Into<String>, seed: Quantity, ours: Quantity, how: How) -> Self {
        Self { said: said.into(), seed, ours, how, why: None }
    }

    /// Says why ours differs.
    pub(super) fn because(self, why: impl Into<String>) -> Self {
        Self { why: Some(why.into()), ..self }
    }

    /// Says why ours differs, if it does: for reasons that other inputs remove.
    pub(super) fn if_it_differs(self, why: impl Into<String>) -> Self {
        if self.agrees() { self } else { self.because(why) }
    }

    /// Whether the numbers are the same but for the tolerance, or the words are the same.
    pub(super) fn agrees(&self) -> bool {
        match (self.seed.value, self.ours.value) {
            (Some(seed), Some(ours)) => (ours - seed).abs() <= self.how.tolerance() * seed.abs(),
            _ => self.seed.words == self.ours.words,
        }
    }
}

/// Curves over one axis, with the article's numbers as marks.
#[derive(Clone, Debug)]
pub(super) struct Chart {
    pub(super) title: String,
    pub(super) across: AxisWords,
    pub(super) up: AxisWords,
    pub(super) curves: Vec<Curve>,
    pub(super) marks: Vec<Mark>,
}

/// What stands at an axis.
#[derive(Clone, Copy, Debug)]
pub(super) struct AxisWords {
    pub(super) words: &'static str,
    pub(super) scale: Scale,
    /// With prefixes at the ticks; empty where the words name the unit.
    pub(super) unit: &'static str,
}

#[derive(Clone, Debug)]
pub(super) struct Curve {
    pub(super) name: String,
    /// Ascending across.
    pub(super) points: Vec<CurvePoint>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct CurvePoint {
    /// In the axes' units.
    pub(super) at: Point,
    /// It was priced, and not simulated, as it has too many messages: it is drawn hollow.
    pub(super) is_price: bool,
}

impl Curve {
    /// A curve of simulated or counted points.
    pub(super) fn of(name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let points = points.into_iter().map(|at| CurvePoint { at, is_price: false });
        Self { name: name.into(), points: points.collect() }
    }
}

/// A number of the article.
#[derive(Clone, Debug)]
pub(super) struct Mark {
    /// In the axes' units.
    pub(super) at: Point,
    pub(super) words: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn predictions_agree_within_five_percent_formulas_within_one_and_words_if_they_are_the_same() {
        let claim = |seed, ours| ArticleClaim::new("", seed, ours, How::Predicted);
        let steps = |value| Quantity::of(value, "steps/s");
        assert!(claim(steps(0.7), steps(0.73)).agrees() && !claim(steps(0.7), steps(0.74)).agrees());
        let counted = |ours| ArticleClaim::new("", steps(840.0), steps(ours), How::Formula);
        assert!(counted(845.0).agrees() && !counted(861.0).agrees());
        assert!(claim(Quantity::words("slower"), Quantity::words("slower")).agrees());
        assert!(!claim(Quantity::words("slower"), steps(1.0)).agrees());
        assert_eq!(claim(steps(1.0), steps(1.0)).if_it_differs("because").why, None);
        assert!(claim(steps(1.0), steps(2.0)).if_it_differs("because").why.is_some());
    }

    #[test]
    fn quantities_have_four_digits_and_a_unit() {
        assert_eq!(Quantity::of(42.824, "%").words, "42.82 %");
        assert_eq!(Quantity::of(27.552, "Gbit/s").words, "27.55 Gbit/s");
        assert_eq!(Quantity::of(8.0, "").words, "8");
    }
}
