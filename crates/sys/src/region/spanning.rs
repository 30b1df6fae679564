//! Regions that lie one behind the other, as one.

use super::{Memory, Region, Turn};
use std::ptr::{NonNull, with_exposed_provenance_mut};
use std::sync::Arc;

impl Region {
    /// These regions as one, if each begins where the one before it ends, all can be written, and all are memory that
    /// something else owns ([`from_raw`](Self::from_raw)). An access to it is one to each of them, so it fails once any
    /// of them was revoked.
    pub fn spanning(parts: &[Region]) -> Option<Region> {
        let first = parts.first()?;
        let follows = |pair: &[Region]| pair[0].address() + pair[0].len == pair[1].address();
        let fits = |part: &Region| part.memory.foreign && part.memory.writable;
        if !parts.windows(2).all(follows) || !parts.iter().all(fits) {
            return None;
        }
        // The address came from its owner as a number, or comes from memory that was exposed like this.
        for part in parts {
            let _exposed = part.memory.start.as_ptr().expose_provenance();
        }
        let start = NonNull::new(with_exposed_provenance_mut(first.address()))?;
        let len = parts.iter().map(|part| part.len).sum();
        // The invariant of `Memory` holds while all parts are entered, and `enter` enters all.
        let memory = Memory {
            start,
            writable: true,
            foreign: false,
            lacking: false,
            parts: parts.into(),
            turn: Turn::new(),
            keep: None,
        };
        Some(Region { memory: Arc::new(memory), from: 0, len })
    }

    /// The same, of memory that something else owns.
    pub(super) fn marked_foreign(mut self) -> Region {
        if let Some(memory) = Arc::get_mut(&mut self.memory) {
            memory.foreign = true;
        }
        self
    }
}

impl Memory {
    /// Enters the memory and what it consists of; `false` if any of it was revoked.
    #[inline]
    pub(super) fn enter(&self) -> bool {
        self.turn.enter() && (self.parts.is_empty() || self.enter_parts())
    }

    #[cold]
    fn enter_parts(&self) -> bool {
        for (number, part) in self.parts.iter().enumerate() {
            if !part.memory.enter() {
                self.parts[..number].iter().for_each(|part| part.memory.leave());
                self.turn.leave();
                return false;
            }
        }
        true
    }

    /// Takes back one `enter` of this thread.
    #[inline]
    pub(super) fn leave(&self) {
        if !self.parts.is_empty() {
            self.parts.iter().for_each(|part| part.memory.leave());
        }
        self.turn.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parts of a vector that only lives here.
    fn parts(bounds: &[(usize, usize)]) -> Vec<Region> {
        let whole = Arc::new(vec![0u8; 64].into_boxed_slice());
        let start = Arc::as_ptr(&whole).cast::<Box<[u8]>>();
        // SAFETY: the box lives as long as `whole`.
        let start = unsafe { (*start).as_ptr().cast_mut() };
        let part = |(from, to): &(usize, usize)| {
            // SAFETY: the bytes live as long as the box, which the region keeps, and only regions touch them.
            unsafe { Region::from_raw(start.add(*from), to - from, true, Box::new(whole.clone())) }
        };
        bounds.iter().map(part).collect()
    }

    #[test]
    fn what_is_written_to_the_whole_is_in_the_parts() {
        let parts = parts(&[(8, 16), (16, 16), (16, 40)]);
        let whole = Region::spanning(&parts).unwrap();
        assert_eq!(whole.len(), 32);
        whole.part(6..10).access().unwrap().span().write(&[1, 2, 3, 4]);
        assert_eq!(parts[0].access().unwrap().span().to_vec(), [0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(parts[2].access().unwrap().span().to_vec()[..3], [3, 4, 0]);
    }

    #[test]
    fn the_whole_is_gone_with_any_part() {
        let parts = parts(&[(0, 8), (8, 16)]);
        let whole = Region::spanning(&parts).unwrap();
        drop(whole.access().unwrap());
        parts[1].revoke();
        assert!(whole.access().is_none());
        assert!(parts[0].access().is_some(), "the other part is free again");
        parts[0].revoke();
    }

    #[test]
    fn only_neighbours_make_a_whole() {
        assert!(Region::spanning(&parts(&[(0, 8), (9, 16)])).is_none());
        assert!(Region::spanning(&parts(&[(8, 16), (0, 8)])).is_none());
        assert!(Region::spanning(&[]).is_none());
        let owned = Region::own(vec![0u8; 8]);
        assert!(Region::spanning(&[owned.region().part(0..4), owned.region().part(4..8)]).is_none());
    }
}
