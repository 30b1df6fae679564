//! How many groups this process has made, of each kind. These numbers name groups to which programs give no name.

use crate::core::session::control::Ordinal;
use std::{collections::BTreeMap, ops::Range};

/// How many groups of each kind this process has made, by the number that stands for a kind and its members.
#[derive(Debug, Default)]
pub(super) struct Counts {
    counts: BTreeMap<u32, Count>,
}

#[derive(Debug, Default)]
struct Count {
    next: u64,
    /// Those that others have made, and this process never will.
    passed: Vec<Range<u64>>,
}

impl Counts {
    /// Names the next group of a kind.
    pub(super) fn name_next(&mut self, of: u32) -> Ordinal {
        let count = self.counts.entry(of).or_default();
        count.next += 1;
        Ordinal { of, at: count.next - 1 }
    }

    /// Whether this process has made a group.
    pub(super) fn has_made(&self, Ordinal { of, at }: Ordinal) -> bool {
        let made = |count: &Count| at < count.next && !count.passed.iter().any(|passed| passed.contains(&at));
        self.counts.get(&of).is_some_and(made)
    }

    /// Others have given up waiting in a group that this process has not made: the next one here is the next one there.
    pub(super) fn pass(&mut self, Ordinal { of, at }: Ordinal) {
        let count = self.counts.entry(of).or_default();
        if let Some(next) = at.checked_add(1).filter(|next| *next > count.next) {
            count.passed.push(count.next..next);
            count.next = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_goes_on_where_the_others_are() {
        let mut counts = Counts::default();
        let next = |counts: &mut Counts| counts.name_next(7).at;
        assert_eq!((next(&mut counts), next(&mut counts)), (0, 1));
        counts.pass(Ordinal { of: 7, at: 5 });
        counts.pass(Ordinal { of: 7, at: 3 });
        counts.pass(Ordinal { of: 8, at: 0 });
        counts.pass(Ordinal { of: 7, at: u64::MAX });
        assert_eq!(next(&mut counts), 6);
        let made = (0..9).filter(|at| counts.has_made(Ordinal { of: 7, at: *at }));
        assert_eq!(made.collect::<Vec<_>>(), [0, 1, 6]);
        assert!(!counts.has_made(Ordinal { of: 8, at: 0 }));
        assert_eq!(counts.name_next(8).at, 1);
    }
}
