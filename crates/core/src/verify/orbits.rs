//! Terms up to shifts: sums that turn with the ranks, as in a ring.
//!
//! A shift of the ranks takes each input to another one, and each sum to the sum of the operands' counterparts. All
//! terms that shifts make of one are its **orbit**. So a term is an orbit and a shift of the orbit's first term, and
//! its counterpart is the same orbit with the sum of both shifts. No counterpart is written out, and a ring of N ranks
//! has N orbits of sums, not N² sums.

use super::flaw::Flaw;
use crate::schedule::Symmetry;
use alloc::{collections::BTreeMap, vec, vec::Vec};

/// A term: the first one of an orbit after a shift that adds `by`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Shifted {
    orbit: u32,
    by: u32,
}

/// The first term of an orbit: the merge of the first one of orbit `one` and of another term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct OrbitMerge {
    one: u32,
    other: Shifted,
}

/// The orbit of the inputs, of which the first is rank 0's.
const INPUTS: u32 = 0;

/// See the [module](self). Inputs are numbered as their ranks are, and other terms behind them as they come up.
///
/// Terms of one number are the same term. A shift that swaps the operands of a merge leaves it as it is, so that merge has two numbers: then
/// [numbers](Self::are_numbers_unique) do not tell whether terms differ. Without such merges no shift leaves any term as it is, because it would
/// have to leave or swap the operands.
pub(super) struct Orbits {
    symmetry: Symmetry,
    /// By orbit, but for that of the inputs.
    merges: Vec<OrbitMerge>,
    orbits: BTreeMap<OrbitMerge, u32>,
    /// By number, behind the inputs.
    terms: Vec<Shifted>,
    numbers: BTreeMap<Shifted, u32>,
    are_numbers_unique: bool,
    /// The last orbit whose terms were found to have every input exactly once.
    audited: Option<u32>,
}

impl Orbits {
    /// The inputs of ranks that are alike in this way.
    pub(super) fn new(symmetry: &Symmetry) -> Self {
        Self {
            symmetry: symmetry.clone(),
            merges: Vec::new(),
            orbits: BTreeMap::new(),
            terms: Vec::new(),
            numbers: BTreeMap::new(),
            are_numbers_unique: true,
            audited: None,
        }
    }

    fn inputs(&self) -> u32 {
        self.symmetry.size()
    }

    fn term(&self, number: u32) -> Shifted {
        match number.checked_sub(self.inputs()) {
            None => Shifted { orbit: INPUTS, by: number },
            Some(at) => self.terms[at as usize],
        }
    }

    fn number(&mut self, term: Shifted) -> u32 {
        if term.orbit == INPUTS {
            return term.by;
        }
        let next = self.inputs() + self.terms.len() as u32;
        let number = *self.numbers.entry(term).or_insert(next);
        if number == next {
            self.terms.push(term);
        }
        number
    }

    /// What takes a shift to another one.
    fn between(&self, from: u32, to: u32) -> u32 {
        self.symmetry.shifted(to, self.symmetry.opposite(from))
    }

    /// The merge of two terms: of both ways to write it the lesser one.
    pub(super) fn merge(&mut self, a: u32, b: u32) -> u32 {
        let [a, b] = [a, b].map(|number| self.term(number));
        let written = |one: Shifted, other: Shifted| {
            let other = Shifted { by: self.between(one.by, other.by), ..other };
            (OrbitMerge { one: one.orbit, other }, one.by)
        };
        let (merge, by) = written(a, b).min(written(b, a));
        let (between, back) = (self.between(a.by, b.by), self.between(b.by, a.by));
        self.are_numbers_unique &= a.orbit != b.orbit || between != back || between == 0;
        let next = self.merges.len() as u32 + 1;
        let orbit = *self.orbits.entry(merge).or_insert(next);
        if orbit == next {
            self.merges.push(merge);
        }
        self.number(Shifted { orbit, by })
    }

    /// Whether terms of different numbers differ.
    pub(super) fn are_numbers_unique(&self) -> bool {
        self.are_numbers_unique
    }

    /// The counterpart of a term after a shift.
    pub(super) fn counterpart(&mut self, number: u32, by: u32) -> u32 {
        let term = self.term(number);
        let by = self.symmetry.shifted(term.by, by);
        self.number(Shifted { by, ..term })
    }

    /// Whether a term is made of every input exactly once, as all of its orbit are then.
    pub(super) fn audit(&mut self, number: u32) -> Result<(), Flaw> {
        let term = self.term(number);
        if self.audited == Some(term.orbit) {
            return Ok(());
        }
        let mut seen = vec![false; self.inputs() as usize];
        let mut open = vec![term];
        while let Some(Shifted { orbit, by }) = open.pop() {
            if orbit == INPUTS {
                if core::mem::replace(&mut seen[by as usize], true) {
                    return Err(Flaw::Twice(by));
                }
                continue;
            }
            let OrbitMerge { one, other } = self.merges[orbit as usize - 1];
            let other_by = self.symmetry.shifted(other.by, by);
            open.extend([Shifted { orbit: one, by }, Shifted { by: other_by, ..other }]);
        }
        if let Some(missing) = (0..).zip(&seen).find_map(|(input, seen)| (!seen).then_some(input)) {
            return Err(Flaw::Missing(missing));
        }
        self.audited = Some(term.orbit);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sum of inputs one after the other, from one on, round a ring.
    fn chain(orbits: &mut Orbits, from: u32, len: u32) -> u32 {
        let size = orbits.inputs();
        (1..len).fold(from, |sum, step| orbits.merge(sum, (from + step) % size))
    }

    #[test]
    fn sums_that_turn_are_one_orbit() {
        let mut orbits = Orbits::new(&Symmetry::new(vec![7], true));
        let first = chain(&mut orbits, 0, 7);
        for from in 1..7 {
            let turned = chain(&mut orbits, from, 7);
            assert_ne!(turned, first);
            assert_eq!(orbits.counterpart(first, from), turned);
            assert_eq!(orbits.counterpart(turned, 7 - from), first);
        }
        assert_eq!(orbits.merges.len(), 6, "an orbit for each length");
        assert_eq!(orbits.audit(first), Ok(()));
        assert!(orbits.are_numbers_unique());
    }

    #[test]
    fn merges_whose_operands_a_shift_swaps_are_noticed() {
        let of = |size: u32, a: u32, b: u32| {
            let mut orbits = Orbits::new(&Symmetry::new(vec![size], true));
            orbits.merge(a, b);
            orbits.are_numbers_unique()
        };
        assert!(!of(2, 0, 1) && !of(6, 1, 4) && !of(6, 4, 1));
        assert!(of(3, 0, 1) && of(6, 1, 3) && of(6, 1, 1));
    }

    #[test]
    fn a_merge_is_found_again_whichever_side_comes_first() {
        let mut orbits = Orbits::new(&Symmetry::new(vec![2, 3], true));
        for (a, b) in (0..6).flat_map(|a| (0..6).map(move |b| (a, b))).filter(|(a, b)| a != b) {
            assert_eq!(orbits.merge(a, b), orbits.merge(b, a), "{a} {b}");
        }
        let (left, right) = (orbits.merge(0, 1), orbits.merge(1, 2));
        assert_ne!(orbits.merge(left, 2), orbits.merge(right, 0));
    }

    #[test]
    fn inputs_that_are_missing_or_there_twice_are_named() {
        let mut orbits = Orbits::new(&Symmetry::new(vec![4], true));
        let three = chain(&mut orbits, 2, 3);
        assert_eq!(orbits.audit(three), Err(Flaw::Missing(1)));
        let four = chain(&mut orbits, 2, 4);
        let twice = orbits.merge(four, 3);
        assert_eq!((orbits.audit(twice), orbits.audit(four)), (Err(Flaw::Twice(3)), Ok(())));
        // As many merges as inputs in 2^30 places.
        let doubled = (0..30).fold(four, |sum, _| orbits.merge(sum, sum));
        assert!(matches!(orbits.audit(doubled), Err(Flaw::Twice(_))));
    }
}
