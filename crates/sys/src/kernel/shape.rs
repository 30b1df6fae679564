//! The shape of a fold, in the pieces that a pass takes it in.

use super::Source;

/// The deepest stack that a canonical tree over 32-bit fold keys needs. With a limit, a pass can give each partial
/// result a fair share of a small scratch memory.
pub(super) const MAX_DEPTH: usize = 33;

/// One, two, four or eight sources of one form that fold into one partial result without leaving the registers.
pub(super) struct Group<'s, 'a> {
    pub(super) sources: &'s [Source<'a>],
    /// How many merges with earlier partial results follow.
    pub(super) merges: usize,
}

/// Takes the groups of a list of sources, from left to right.
pub(super) struct SourceGroups<'s, 'a>(&'s [Source<'a>]);

impl<'s, 'a> SourceGroups<'s, 'a> {
    pub(super) fn of(sources: &'s [Source<'a>]) -> Self {
        Self(sources)
    }

    /// Whether no group is left.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'s, 'a> Iterator for SourceGroups<'s, 'a> {
    type Item = Group<'s, 'a>;

    #[inline]
    fn next(&mut self) -> Option<Group<'s, 'a>> {
        let form = self.0.first()?.form;
        let merges =
            |at: usize| self.0.get(at).filter(|source| source.form == form).map(|source| source.merges);
        let pairs = |pairs: usize| (0..2 * pairs).step_by(2).all(|at| merges(at) == Some(0));
        let (size, inner) = match [merges(1), merges(3), merges(5), merges(7)] {
            [Some(1), Some(2), Some(1), Some(3..)] if pairs(4) => (8, 3),
            [Some(1), Some(2..), ..] if pairs(2) => (4, 2),
            [Some(1..), ..] if pairs(1) => (2, 1),
            _ => (1, 0),
        };
        let (sources, rest) = self.0.split_at(size);
        self.0 = rest;
        Some(Group { sources, merges: usize::from(sources[size - 1].merges - inner) })
    }
}

/// How many partial results a pass has to put aside at once.
#[inline(never)]
pub(super) fn rows(sources: &[Source<'_>]) -> usize {
    let (mut open, mut rows) = (0, 0);
    let mut groups = SourceGroups::of(sources);
    while let Some(group) = groups.next() {
        open = open + 1 - group.merges;
        if !groups.is_empty() {
            rows = rows.max(open);
        }
    }
    rows
}
