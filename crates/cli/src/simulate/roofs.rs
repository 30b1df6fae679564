//! An operation and the resources that limit it.

use super::parts::PartsOption;
use herringbone::{
    Collective,
    core::simulate::{Bound, Picoseconds, Roof},
};

/// An operation and the roofs above it.
#[derive(Debug)]
pub(super) struct Roofline {
    /// What was done, in words.
    pub(super) title: String,
    pub(super) total: Picoseconds,
    pub(super) collective: Collective,
    /// For all operations.
    pub(super) bytes: u64,
    pub(super) ranks: u32,
    /// Where parts differ.
    pub(super) parts: Option<PartsOption>,
    pub(super) bounds: Vec<Bound<String>>,
}

impl Roofline {
    pub(super) fn bound(&self, roof: Roof) -> Option<&Bound<String>> {
        self.bounds.iter().find(|bound| bound.roof == roof)
    }

    /// Bytes that a thread folds and copies for each byte on the busiest link.
    pub(super) fn intensity(&self) -> Option<f64> {
        let bytes = |roof| self.bound(roof).map_or(0, |bound| bound.bytes) as f64;
        let link = self.bound(Roof::Link).filter(|link| link.bytes > 0)?;
        Some((bytes(Roof::Fold) + bytes(Roof::Copy) + bytes(Roof::Code)) / link.bytes as f64)
    }
}

/// How long any of these spans lasts.
pub(super) fn covered(spans: &[(Picoseconds, Picoseconds)]) -> Picoseconds {
    let mut spans = spans.to_vec();
    spans.sort_unstable();
    let (mut all, mut until) = (0, 0);
    for (start, end) in spans {
        all += end.saturating_sub(start.max(until));
        until = until.max(end);
    }
    all
}
