//! What a simulation shows, kept: not more than viewers can take.

use herringbone::core::simulate::{Place, Span};
use std::collections::BTreeMap;

/// The most spans that are kept; what comes later is only counted.
const MOST: usize = 1_000_000;

#[derive(Debug, Default)]
pub(super) struct Recorded {
    pub(super) spans: BTreeMap<Place, Vec<Span>>,
    kept: usize,
    /// How many there were too many.
    pub(super) left_out: usize,
}

impl Recorded {
    pub(super) fn add(&mut self, span: Span) {
        if self.kept == MOST {
            self.left_out += 1;
            return;
        }
        self.kept += 1;
        self.spans.entry(span.place).or_default().push(span);
    }
}
