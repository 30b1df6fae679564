//! The record of a simulation, limited to the size that viewers can open.

use herringbone::core::simulate::{BusySpan, Resource};
use std::collections::BTreeMap;

/// The most spans that are kept; what comes later is only counted.
const MOST: usize = 1_000_000;

#[derive(Debug, Default)]
pub(super) struct Recorded {
    pub(super) spans: BTreeMap<Resource, Vec<BusySpan>>,
    kept: usize,
    /// How many there were too many.
    pub(super) left_out: usize,
}

impl Recorded {
    pub(super) fn add(&mut self, span: BusySpan) {
        if self.kept == MOST {
            self.left_out += 1;
            return;
        }
        self.kept += 1;
        self.spans.entry(span.place).or_default().push(span);
    }
}
