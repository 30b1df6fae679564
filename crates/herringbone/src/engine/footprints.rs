//! The bytes that operations read and write. They show which operation has to wait for which.

use crate::execute::issue::{Footprint, OpPlace};
use std::{collections::BTreeSet, ops::Range};

/// So many are looked through one by one: fewer steps than keeping them in order.
const FEW: usize = 8;

/// What some operations touch. However many these are, finding one that is in the way takes few steps.
#[derive(Debug, Default)]
pub(crate) struct Footprints {
    few: Vec<Footprint>,
    reads: Intervals,
    writes: Intervals,
}

impl Footprints {
    pub(crate) fn insert(&mut self, footprint: &Footprint) {
        if self.few.len() < FEW {
            self.few.push(footprint.clone());
        } else {
            self.reads.insert(&footprint.reads, footprint.place);
            self.writes.insert(&footprint.writes, footprint.place);
        }
    }

    pub(crate) fn remove(&mut self, footprint: &Footprint) {
        if let Some(at) = self.few.iter().position(|few| few.place == footprint.place) {
            self.few.swap_remove(at);
        } else {
            self.reads.remove(&footprint.reads, footprint.place);
            self.writes.remove(&footprint.writes, footprint.place);
        }
    }

    /// Whether an operation that was called before `place` writes what another one touches, or touches what that writes.
    #[inline]
    pub(crate) fn interferes(&self, own: &Footprint, place: OpPlace) -> bool {
        self.few.iter().any(|few| few.place < place && few.interferes(own))
            || self.interferes_with_many(own, place)
    }

    #[inline]
    fn interferes_with_many(&self, own: &Footprint, place: OpPlace) -> bool {
        let Self { reads, writes, .. } = self;
        !(reads.0.is_empty() && writes.0.is_empty())
            && (writes.has(&own.reads, place)
                || writes.has(&own.writes, place)
                || reads.has(&own.writes, place))
    }
}

/// Intervals of memory of operations. By size, of which each class has lengths up to twice the least: what reaches into a
/// interval begins in it, or before it by less than the longest of its class. Then by where they begin, and by their places.
#[derive(Debug, Default)]
struct Intervals(BTreeSet<(u32, usize, OpPlace, usize)>);

/// The first place of all.
const FIRST: OpPlace = (0, 0);
/// A place after all others.
pub(super) const LAST: OpPlace = (u64::MAX, u64::MAX);

impl Intervals {
    fn key(bytes: &Range<usize>, place: OpPlace) -> Option<(u32, usize, OpPlace, usize)> {
        let class = bytes.len().checked_ilog2()?;
        Some((class, bytes.start, place, bytes.end))
    }

    fn insert(&mut self, bytes: &Range<usize>, place: OpPlace) {
        self.0.extend(Self::key(bytes, place));
    }

    fn remove(&mut self, bytes: &Range<usize>, place: OpPlace) {
        if let Some(key) = Self::key(bytes, place) {
            self.0.remove(&key);
        }
    }

    /// Whether an interval of an operation before `place` has bytes of these.
    fn has(&self, bytes: &Range<usize>, place: OpPlace) -> bool {
        if bytes.is_empty() {
            return false;
        }
        let mut next = self.0.first();
        while let Some(&(class, start, other, end)) = next {
            let before = bytes.start.saturating_sub((2_usize << class) - 1);
            next = if start < before {
                self.0.range((class, before, FIRST, 0)..).next()
            } else if start >= bytes.end {
                self.0.range((class + 1, 0, FIRST, 0)..).next()
            } else if other >= place {
                // All that begin here are of later ones.
                self.0.range((class, start + 1, FIRST, 0)..).next()
            } else if end > bytes.start {
                return true;
            } else {
                self.0.range((class, start, other, end + 1)..).next()
            };
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compared with looking at each, on random intervals that come and go.
    #[test]
    fn finds_what_looking_at_each_finds() {
        let mut state = 1_u64;
        let mut below = |most: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % most
        };
        let (mut footprints, mut all) = (Footprints::default(), Vec::<Footprint>::new());
        let mut found = 0;
        for number in 1..4000 {
            let mut interval = || {
                let (start, most) = (below(2000) as usize, 1 << below(10));
                start..start + below(most) as usize
            };
            let (reads, writes) = (interval(), interval());
            let own = Footprint { place: (number, number), reads, writes };
            let place = (number - below(40).min(number), 0);
            let expected = all.iter().any(|other| other.place < place && other.interferes(&own));
            assert_eq!(footprints.interferes(&own, place), expected, "{own:?} {place:?}");
            found += usize::from(expected);
            footprints.insert(&own);
            all.push(own);
            if all.len() > 5 + below(40) as usize {
                footprints.remove(&all.swap_remove(below(all.len() as u64) as usize));
            }
        }
        assert!((500..3500).contains(&found), "{found}");
        all.iter().for_each(|one| footprints.remove(one));
        assert!(footprints.few.is_empty() && footprints.reads.0.is_empty() && footprints.writes.0.is_empty());
    }
}
