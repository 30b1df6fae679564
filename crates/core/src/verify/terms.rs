//! Terms: the contents of a place, as a symbol.

use super::{flaw::Flaw, orbits::Orbits};
use crate::{
    group::{Group, merges},
    schedule::Symmetry,
};
use alloc::{vec, vec::Vec};
use core::mem::replace;

/// An input, a merge of two terms, or a finished one of either. Equal terms mean equal bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Term(u32);

/// Above every input and merge: the graph's limit keeps them far below.
const FINISHED: u32 = 1 << 31;

impl Term {
    /// Nothing has been written yet.
    pub(super) const NONE: Term = Term(u32::MAX);

    /// An input, by its number among all.
    pub(crate) fn input(number: u32) -> Self {
        Self(number)
    }

    /// The term after dividing, rounding and making NaNs canonical.
    pub(crate) fn finish(self) -> Self {
        debug_assert!(!self.is_finished());
        Self(self.0 | FINISHED)
    }

    /// The number of the term that it is, finished or not.
    pub(super) fn number(self) -> usize {
        (self.0 & !FINISHED) as usize
    }

    pub(crate) fn is_finished(self) -> bool {
        self != Self::NONE && self.0 & FINISHED != 0
    }
}

/// How a term was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Made {
    /// Nothing made it: it is the input of this number.
    Input(u32),
    /// A merge of two terms, of which either may come first.
    Merge([Term; 2]),
    /// A codec, of this term.
    Code(Term),
    /// The finish, of this term.
    Finish(Term),
}

/// All merges made so far, each once: `a + b` and `b + a` are the same bits, so they are the same term.
///
/// What a codec makes of a term is a term, too: the merge of it and [`CODE`]. Merge number i is term `inputs + i`. The table finds a merge by its operands: open addressing with linear
/// probing, at most half full, in place of a map whose order could differ between runs.
pub(crate) struct Terms {
    inputs: u32,
    merges: Vec<[u32; 2]>,
    /// By merge: the term as it were without codecs.
    uncoded: Vec<u32>,
    table: Vec<u32>,
    seen: Vec<u32>,
    audits: u32,
    /// Where terms turn with the ranks: what they are up to shifts. Nothing is coded then.
    orbits: Option<Orbits>,
}

const FREE: u32 = u32::MAX;

/// In place of the second operand: the first one, coded and decoded.
const CODE: u32 = u32::MAX - 1;

impl Terms {
    pub(crate) fn new(inputs: u32) -> Self {
        let table = vec![FREE; (4 * inputs as usize).next_power_of_two()];
        let (merges, uncoded) = (Vec::new(), Vec::new());
        Self { inputs, merges, uncoded, table, seen: vec![0; inputs as usize], audits: 0, orbits: None }
    }

    /// The same where all terms have [counterparts](Self::counterpart): they are known up to shifts, and not coded.
    pub(super) fn turning(symmetry: &Symmetry) -> Self {
        Self { orbits: Some(Orbits::new(symmetry)), ..Self::new(symmetry.size()) }
    }

    /// Whether terms are the same only if they are equal.
    pub(super) fn are_distinct(&self) -> bool {
        self.orbits.as_ref().is_none_or(Orbits::are_numbers_unique)
    }

    /// What a term becomes after a shift, where terms turn with the ranks.
    pub(super) fn counterpart(&mut self, term: Term, by: u32) -> Option<Term> {
        let orbits = self.orbits.as_mut()?;
        Some(Term(orbits.counterpart(term.0 & !FINISHED, by) | term.0 & FINISHED))
    }

    /// The merge of two unfinished terms.
    pub(crate) fn merge(&mut self, a: Term, b: Term) -> Term {
        if let Some(orbits) = &mut self.orbits {
            return Term(orbits.merge(a.0, b.0));
        }
        let merged = self.known([a.0.min(b.0), a.0.max(b.0)]);
        let (plain_a, plain_b) = (self.uncoded(a), self.uncoded(b));
        if (plain_a, plain_b) != (a, b) {
            let plain = self.merge(plain_a, plain_b);
            self.uncoded[(merged - self.inputs) as usize] = plain.0;
        }
        Term(merged)
    }

    /// What a codec makes of a term, which is finished if that is.
    pub(crate) fn code(&mut self, term: Term) -> Term {
        let coded = self.known([term.0, CODE]);
        let plain = self.uncoded(term);
        self.uncoded[(coded - self.inputs) as usize] = plain.0 & !FINISHED;
        Term(coded | term.0 & FINISHED)
    }

    /// The term as it were without codecs: itself if it is.
    pub(super) fn uncoded(&self, term: Term) -> Term {
        if self.orbits.is_some() {
            return term;
        }
        match (term.0 & !FINISHED).checked_sub(self.inputs) {
            Some(merge) => Term(self.uncoded[merge as usize] | term.0 & FINISHED),
            None => term,
        }
    }

    /// Whether a codec has made it as it is. An input that was coded and finished since was made so by the finish.
    pub(super) fn is_code(&self, term: Term) -> bool {
        if self.orbits.is_some() {
            return false;
        }
        let merge = (term.0 & !FINISHED).checked_sub(self.inputs);
        merge.is_some_and(|merge| {
            let [of, with] = self.merges[merge as usize];
            with == CODE && of & FINISHED == term.0 & FINISHED
        })
    }

    /// The result that was coded to make this one; itself if it is no code of a result.
    pub(super) fn result(&self, term: Term) -> Term {
        match (self.is_code(term), term.number().checked_sub(self.inputs as usize)) {
            (true, Some(merge)) if term.is_finished() => Term(self.merges[merge][0]),
            _ => term,
        }
    }

    /// The number of the term of these operands, which is its own without codecs if it is new.
    fn known(&mut self, operands: [u32; 2]) -> u32 {
        let mut at = self.home(operands);
        while self.table[at] != FREE {
            if self.merges[self.table[at] as usize] == operands {
                return self.inputs + self.table[at];
            }
            at = (at + 1) & (self.table.len() - 1);
        }
        let number = self.inputs + self.merges.len() as u32;
        self.table[at] = self.merges.len() as u32;
        self.merges.push(operands);
        self.uncoded.push(number);
        if self.merges.len() * 2 > self.table.len() {
            self.grow();
        }
        number
    }

    fn home(&self, [a, b]: [u32; 2]) -> usize {
        let mixed = (u64::from(a) << 32 | u64::from(b)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 24) as usize & (self.table.len() - 1)
    }

    fn grow(&mut self) {
        let len = self.table.len() * 2;
        self.table.clear();
        self.table.resize(len, FREE);
        for (merge, operands) in self.merges.iter().enumerate() {
            let mut at = self.home(*operands);
            while self.table[at] != FREE {
                at = (at + 1) & (len - 1);
            }
            self.table[at] = merge as u32;
        }
    }

    /// The canonical tree over a group's inputs. Where terms turn with the ranks it is none of them: results are counterparts of each other then,
    /// and not all of them the same, if terms [are distinct](Self::are_distinct).
    pub(super) fn canonical(&mut self, group: &Group) -> Term {
        if self.orbits.is_some() {
            return Term::NONE;
        }
        self.folded((0..).map(Term::input).zip(merges(group.keys())))
    }

    /// The fold of unfinished terms, in the shape that their merges give: each is pushed on a stack, and each of its merges joins the
    /// top two.
    ///
    /// # Panics
    /// If there is no term, or a merge has nothing to join.
    pub(crate) fn folded(&mut self, terms: impl IntoIterator<Item = (Term, u8)>) -> Term {
        let mut stack: Vec<Term> = Vec::new();
        for (mut top, merges) in terms {
            for _ in 0..merges {
                let below = stack.pop().expect("the merges make one tree");
                top = self.merge(below, top);
            }
            stack.push(top);
        }
        stack[0]
    }

    /// How a term was made, where terms do not turn with the ranks.
    pub(crate) fn made(&self, term: Term) -> Made {
        if term.is_finished() && !self.is_code(term) {
            return Made::Finish(Term(term.0 & !FINISHED));
        }
        let number = term.0 & !FINISHED;
        match number.checked_sub(self.inputs) {
            None => Made::Input(number),
            Some(merge) => match self.merges[merge as usize] {
                [of, CODE] => Made::Code(Term(of)),
                operands => Made::Merge(operands.map(Term)),
            },
        }
    }

    /// Checks that a term, finished or not, is made of every input exactly once, and of all of them coded or of none.
    ///
    /// The walk stops at the first input that it meets again, so a term that shares much costs no more than one
    /// that shares nothing.
    pub(super) fn audit(&mut self, term: Term) -> Result<(), Flaw> {
        if let Some(orbits) = &mut self.orbits {
            return orbits.audit(term.0 & !FINISHED);
        }
        self.audits += 1;
        let mut open = vec![term.0 & !FINISHED];
        let (mut met, mut coded, mut uncoded) = (0, false, None);
        while let Some(id) = open.pop() {
            if id >= self.inputs {
                match self.merges[(id - self.inputs) as usize] {
                    // A result, whose own code says nothing of its inputs.
                    [term, CODE] if term & FINISHED != 0 => open.push(term & !FINISHED),
                    // Nothing is coded twice, so no code is below this one.
                    [term, CODE] => {
                        coded = true;
                        met += self.audit_below(term)?;
                    }
                    operands => open.extend(operands),
                }
            } else if self.seen[id as usize] == self.audits {
                return Err(Flaw::Twice(id));
            } else {
                self.seen[id as usize] = self.audits;
                met += 1;
                uncoded = Some(id);
            }
        }
        if met == self.inputs {
            return uncoded.filter(|_| coded).map_or(Ok(()), |input| Err(Flaw::Uncoded(input)));
        }
        let missing = self.seen.iter().position(|audit| *audit != self.audits);
        Err(Flaw::Missing(missing.expect("fewer were met than there are") as u32))
    }

    /// The same for what was coded. Returns how many inputs it has.
    fn audit_below(&mut self, term: u32) -> Result<u32, Flaw> {
        let mut open = vec![term];
        let mut met = 0;
        while let Some(id) = open.pop() {
            if id >= self.inputs {
                open.extend(self.merges[(id - self.inputs) as usize]);
            } else if replace(&mut self.seen[id as usize], self.audits) == self.audits {
                return Err(Flaw::Twice(id));
            } else {
                met += 1;
            }
        }
        Ok(met)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_merge_is_found_again_whichever_side_comes_first() {
        let mut terms = Terms::new(3);
        let [a, b, c] = [0, 1, 2].map(Term::input);
        let left = terms.merge(a, b);
        assert_eq!(left, terms.merge(b, a));
        let right = terms.merge(b, c);
        let one = terms.merge(left, c);
        let other = terms.merge(a, right);
        assert_ne!(one, other);
        assert_eq!((terms.audit(one), terms.audit(other.finish())), (Ok(()), Ok(())));
        assert_eq!(terms.audit(left), Err(Flaw::Missing(2)));
        let twice = terms.merge(left, right);
        assert_eq!(terms.audit(twice), Err(Flaw::Twice(1)));
    }

    #[test]
    fn the_table_grows() {
        let mut terms = Terms::new(200);
        let all: Vec<Term> = (0..200)
            .flat_map(|a| (0..a).map(move |b| (a, b)))
            .map(|(a, b)| terms.merge(Term::input(a), Term::input(b)))
            .collect();
        for (at, (a, b)) in (0..200).flat_map(|a| (0..a).map(move |b| (a, b))).enumerate() {
            assert_eq!(terms.merge(Term::input(b), Term::input(a)), all[at]);
        }
        assert_eq!(terms.merges.len(), 199 * 100);
    }

    /// A term of 2^200 inputs in 200 merges is walked no further than its second leaf.
    #[test]
    fn an_audit_is_never_exponential() {
        let mut terms = Terms::new(2);
        let mut term = terms.merge(Term::input(0), Term::input(1));
        for _ in 0..200 {
            term = terms.merge(term, term);
        }
        assert!(matches!(terms.audit(term), Err(Flaw::Twice(_))));
    }

    #[test]
    fn codes_show_and_can_be_thought_away() {
        let mut terms = Terms::new(2);
        let [a, b] = [0, 1].map(Term::input);
        let [coded_a, coded_b] = [a, b].map(|term| terms.code(term));
        assert!(coded_a != a && terms.is_code(coded_a) && !terms.is_code(a));
        let (plain, coded) = (terms.merge(a, b), terms.merge(coded_a, coded_b));
        assert_eq!((terms.uncoded(coded), terms.uncoded(plain)), (plain, plain));
        let result = terms.code(coded.finish());
        assert!(result.is_finished() && result != coded.finish());
        assert_eq!(terms.uncoded(result), plain.finish());
        assert_eq!((terms.audit(result), terms.audit(coded), terms.audit(plain)), (Ok(()), Ok(()), Ok(())));
        assert!(terms.is_code(result) && !terms.is_code(coded_a.finish()));
        let mixed = terms.merge(coded_a, b);
        assert_eq!(terms.audit(mixed), Err(Flaw::Uncoded(1)));
        let twice = terms.merge(coded, coded_a);
        assert_eq!(terms.audit(twice), Err(Flaw::Twice(0)));
    }

    #[test]
    fn a_term_tells_how_it_was_made() {
        let mut terms = Terms::new(2);
        let [a, b] = [0, 1].map(Term::input);
        let coded = terms.code(b);
        let sum = terms.folded([(a, 0), (coded, 1)]);
        let result = terms.code(sum.finish());
        assert_eq!(terms.made(a), Made::Input(0));
        assert_eq!(terms.made(coded), Made::Code(b));
        assert_eq!(terms.made(sum), Made::Merge([a, coded]));
        assert_eq!(terms.made(sum.finish()), Made::Finish(sum));
        assert_eq!(terms.made(result), Made::Code(sum.finish()));
        // A coded input that is finished alone, as in a group of one.
        assert_eq!(terms.made(coded.finish()), Made::Finish(coded));
    }

    #[test]
    fn finishing_shows() {
        let term = Term::input(0);
        assert!(!term.is_finished() && term.finish().is_finished() && !Term::NONE.is_finished());
        assert_ne!(term, term.finish());
    }

    #[test]
    fn the_canonical_tree_is_the_trie() {
        let mut terms = Terms::new(3);
        let canonical = terms.canonical(&Group::with_keys(vec![1, 2, 3]).unwrap());
        let right = terms.merge(Term::input(1), Term::input(2));
        assert_eq!(canonical, terms.merge(Term::input(0), right));
    }
}
