//! The fixed pool from which operations take their slots.

use crate::sys::segment::Segment;
use std::{collections::BTreeMap, ops::Range, sync::Arc};

/// A pool of slots in one segment. First fit at the lowest address: what was used last is used again, while it is in cache.
#[derive(Debug)]
pub(crate) struct Staging {
    segment: Arc<Segment>,
    free: BTreeMap<usize, usize>,
    bytes: usize,
}

impl Staging {
    /// A pool over `range` of a segment.
    pub(crate) fn new(segment: Arc<Segment>, range: Range<usize>) -> Self {
        Self { segment, bytes: range.len(), free: BTreeMap::from([(range.start, range.len())]) }
    }

    pub(crate) fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// The pool's size.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes `bytes` from the pool, or nothing if there is no such stretch now.
    pub(crate) fn take(&mut self, bytes: usize) -> Option<Range<usize>> {
        if bytes == 0 {
            return Some(0..0);
        }
        let (&at, &length) = self.free.iter().find(|(_, length)| **length >= bytes)?;
        self.free.remove(&at);
        if length > bytes {
            self.free.insert(at + bytes, length - bytes);
        }
        Some(at..at + bytes)
    }

    /// Gives back what `take` gave.
    pub(crate) fn give_back(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        if let Some((&before, &length)) = self.free.range(..start).next_back()
            && before + length == start
        {
            self.free.remove(&before);
            start = before;
        }
        if let Some(length) = self.free.remove(&end) {
            end += length;
        }
        self.free.insert(start, end - start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_is_whole_again() {
        let segment = Arc::new(Segment::create("staging-test", 1 << 20).unwrap());
        let mut staging = Staging::new(segment, 4096..1 << 20);
        let whole = staging.bytes();
        let taken: Vec<_> = (1..20).map(|i| staging.take(i * 64).unwrap()).collect();
        for pair in taken.windows(2) {
            assert_eq!(pair[0].end, pair[1].start);
        }
        assert_eq!(staging.take(whole), None);
        for range in taken.iter().step_by(2).chain(taken.iter().skip(1).step_by(2)) {
            staging.give_back(range.clone());
        }
        assert_eq!(staging.take(whole), Some(4096..1 << 20));
    }
}
