//! Many short lists, most of one number or none, at four bytes each.

use alloc::vec::Vec;

/// Names a list of [`Lists`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct List(u32);

/// What a list's number is if it has no entries, and with [`RUN`] if it has several: where its run starts. Else the
/// number is the only entry.
const NONE: u32 = u32::MAX;
const RUN: u32 = 1 << 31;

impl List {
    pub(super) const EMPTY: List = List(NONE);

    /// The list of this number.
    pub(super) fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// Its number.
    pub(super) fn bits(self) -> u32 {
        self.0
    }

    /// The only entry.
    fn only(self) -> Option<u32> {
        (self.0 & RUN == 0).then_some(self.0)
    }

    /// Where its run starts.
    fn run(self) -> Option<usize> {
        (self.0 & RUN != 0 && self != Self::EMPTY).then_some((self.0 & !RUN) as usize)
    }
}

/// The entries of the lists that have several, each run with its length before it. Entries are below 2^31.
#[derive(Default)]
pub(super) struct Lists {
    runs: Vec<u32>,
}

impl Lists {
    /// A new list.
    pub(super) fn add(&mut self, mut entries: impl ExactSizeIterator<Item = u32>) -> List {
        match entries.len() {
            0 => List::EMPTY,
            1 => entries.next().map_or(List::EMPTY, List),
            len => {
                let start = self.runs.len() as u32;
                self.runs.push(len as u32);
                self.runs.extend(entries);
                List(RUN | start)
            }
        }
    }

    /// How many entries a list has.
    pub(super) fn len(&self, list: List) -> u32 {
        match list.run() {
            Some(start) => self.runs[start],
            None => u32::from(list != List::EMPTY),
        }
    }

    /// The entries, in order.
    pub(super) fn of(&self, list: List) -> impl Iterator<Item = u32> + '_ {
        let run = list.run().map_or(&[][..], |start| &self.runs[start + 1..][..self.runs[start] as usize]);
        list.only().into_iter().chain(run.iter().copied())
    }

    /// The list with more entries, one at least, after its own; the list before is gone.
    pub(super) fn extend(&mut self, list: List, more: impl ExactSizeIterator<Item = u32>) -> List {
        if list == List::EMPTY {
            return self.add(more);
        }
        let (start, len) = (self.runs.len(), self.len(list));
        self.runs.push(len + more.len() as u32);
        match list.run() {
            Some(run) => self.runs.extend_from_within(run + 1..=run + len as usize),
            None => self.runs.extend(list.only()),
        }
        self.runs.extend(more);
        List(RUN | start as u32)
    }

    /// How many numbers the runs take.
    pub(super) fn size(&self) -> usize {
        self.runs.len()
    }

    /// The list with every entry replaced; the list before is gone.
    pub(super) fn map(&mut self, list: List, mut with: impl FnMut(u32) -> u32) -> List {
        if let Some(start) = list.run() {
            let len = self.runs[start] as usize;
            for entry in &mut self.runs[start + 1..][..len] {
                *entry = with(*entry);
            }
        }
        list.only().map_or(list, |only| List(with(only)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_any_length_keep_their_entries_and_change_them() {
        let mut lists = Lists::default();
        let made: Vec<List> = (0..4).map(|len| lists.add(10..10 + len)).collect();
        let changed: Vec<List> = made.iter().map(|list| lists.map(*list, |entry| 2 * entry)).collect();
        for (len, list) in (0..).zip(changed) {
            let entries: Vec<u32> = lists.of(list).collect();
            let expected: Vec<u32> = (10..10 + len).map(|entry| 2 * entry).collect();
            assert_eq!((lists.len(list), entries), (len, expected));
            assert!(List::from_bits(list.bits()) == list);
        }
        assert_eq!(lists.size(), 3 + 4);
    }

    #[test]
    fn lists_grow() {
        let mut lists = Lists::default();
        let mut list = List::EMPTY;
        for (more, expected) in [(0..0, 0), (0..1, 1), (1..2, 2), (2..6, 6), (6..7, 7)] {
            list = lists.extend(list, more);
            assert_eq!(lists.of(list).collect::<Vec<_>>(), (0..expected).collect::<Vec<_>>());
        }
    }
}
