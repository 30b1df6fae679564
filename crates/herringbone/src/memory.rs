//! Memory whose size comes from a user or another rank: the system might have less.

use crate::sys::{plain::Plain, region::Region};
use std::ops::Range;

/// So many zeros, or `None` if there is not so much memory.
pub(crate) fn zeros<T: Plain + Default>(count: usize) -> Option<Vec<T>> {
    let mut zeros = Vec::new();
    zeros.try_reserve_exact(count).ok()?;
    zeros.resize(count, T::default());
    Some(zeros)
}

/// A region of so many zeroed bytes, or `None` if there is not so much memory.
pub(crate) fn region(bytes: usize) -> Option<Region> {
    let words = zeros::<u64>(bytes.div_ceil(size_of::<u64>()))?;
    Some(Region::own(words).region().part(0..bytes))
}

/// A region of its own with the same bytes, or `None` if there is not so much memory.
pub(crate) fn copy(of: &Region) -> Option<Region> {
    let copy = region(of.len())?;
    // If the original was revoked, nobody sees what the copy has.
    if let (Some(to), Some(from)) = (copy.access(), of.access()) {
        to.span().copy_from(from.span());
    }
    Some(copy)
}

/// A region of its own with these bytes of another, one after the other, or `None` if there is not so much memory.
pub(crate) fn gathered(of: &Region, ranges: impl Iterator<Item = Range<usize>> + Clone) -> Option<Region> {
    let gathered = region(ranges.clone().map(|range| range.len()).sum())?;
    if let (Some(to), Some(from)) = (gathered.access(), of.access()) {
        let mut at = 0;
        for range in ranges {
            let len = range.len();
            to.span().slice(at..at + len).copy_from(from.span().slice(range));
            at += len;
        }
    }
    Some(gathered)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_as_much_as_was_asked_for_or_nothing() {
        assert_eq!(zeros::<f32>(3), Some(vec![0.0; 3]));
        assert_eq!((zeros::<f32>(usize::MAX), zeros::<u8>(1 << 60)), (None, None));
        assert!(region(usize::MAX).is_none() && region(1 << 60).is_none());
        let region = region(13).unwrap();
        region.access().unwrap().span().write(&[7; 13]);
        let copy = copy(&region).unwrap();
        assert!(!copy.overlaps(&region));
        assert_eq!(copy.access().unwrap().span().to_vec(), [7; 13]);
        region.access().unwrap().span().write(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
        let gathered = gathered(&region, [1..3, 5..5, 6..9].into_iter()).unwrap();
        assert_eq!(gathered.access().unwrap().span().to_vec(), [1, 2, 6, 7, 8]);
    }
}
