//! How the surviving ranks of a group agree on the members of the next one.
//!
//! ```text
//! worker    Shrink       the group cannot be used any more: continue with the survivors
//! hub       Shrunk       once every live member has sent Shrink: the survivors, or why they do not continue
//! ```
//!
//! A member whose process is known to have ended is not included. A silent member might still run on the other side of
//! a network split, together with others. So the members that answer continue only if they outnumber the silent ones.
//! At most one side of a split continues, and neither does if both are equal.

use super::codec::{Malformed, Reader, Writer};
use crate::group::Rank;
use alloc::{collections::BTreeMap, vec::Vec};

/// A member asks to continue with the survivors. To the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shrink {
    /// The group.
    pub group: u32,
    /// Its members, ascending.
    pub members: Vec<Rank>,
    /// The least number of members with which the job continues.
    pub least: u32,
    /// Members whose processes are known to have ended, ascending.
    pub dead: Vec<Rank>,
    /// How many operations of the group this member has completed: all that came before the first that failed or never ended.
    pub completed: u64,
}

/// The outcome of a [`Shrink`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShrinkOutcome {
    /// These ranks continue, ascending.
    Continue(Vec<Rank>),
    /// These are left, and they are fewer than some of them want.
    TooFew {
        /// The remaining ranks, ascending.
        left: Vec<Rank>,
        /// The required number.
        least: u32,
    },
    /// These ranks are silent, and might continue by themselves.
    NoMajority {
        /// The silent ranks, ascending.
        silent: Vec<Rank>,
    },
    /// A rank that receives this stops waiting. Until then these ranks were alive and had not agreed to continue.
    Late {
        /// The ranks, ascending.
        missing: Vec<Rank>,
    },
}

impl ShrinkOutcome {
    /// The outcome if the ranks `left` have answered and the ranks `silent` have not; both ascend.
    pub fn of(left: Vec<Rank>, silent: Vec<Rank>, least: u32) -> Self {
        if silent.len() >= left.len() {
            ShrinkOutcome::NoMajority { silent }
        } else if (left.len() as u32) < least {
            ShrinkOutcome::TooFew { left, least }
        } else {
            ShrinkOutcome::Continue(left)
        }
    }
}

/// The answer. From the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shrunk {
    /// The group.
    pub group: u32,
    /// The outcome.
    pub outcome: ShrinkOutcome,
    /// How many operations of the group all survivors have completed.
    pub completed: u64,
}

/// The hub's side.
#[derive(Debug, Default)]
pub struct Survivors {
    calls: BTreeMap<u32, Calls>,
    /// Ranks that are gone, and whether that is certain.
    gone: BTreeMap<Rank, bool>,
}

#[derive(Debug, Default)]
struct Calls {
    members: Vec<Rank>,
    /// Who has called, with how many operations each has completed.
    called: BTreeMap<Rank, u64>,
    least: u32,
}

impl Survivors {
    /// A member asks to continue with the survivors. Returns the answers and their receivers, like all methods here.
    pub fn call(&mut self, from: Rank, shrink: Shrink) -> Vec<(Rank, Shrunk)> {
        let Shrink { group, members, least, dead: _, completed } = shrink;
        let calls = self.calls.entry(group).or_default();
        calls.members = members;
        calls.called.insert(from, completed);
        calls.least = calls.least.max(least);
        self.decide(group)
    }

    /// A member no longer waits.
    pub fn withdraw(&mut self, from: Rank, group: u32) -> Vec<(Rank, Shrunk)> {
        let Some(calls) = self.calls.get_mut(&group) else { return Vec::new() };
        let is_missing = |rank: &Rank| !calls.called.contains_key(rank) && !self.gone.contains_key(rank);
        let missing = calls.members.iter().copied().filter(is_missing).collect();
        calls.called.remove(&from);
        if calls.called.is_empty() {
            self.calls.remove(&group);
        }
        Vec::from([(from, Shrunk { group, outcome: ShrinkOutcome::Late { missing }, completed: 0 })])
    }

    /// A rank is gone: for certain, or it is only silent.
    pub fn lose(&mut self, rank: Rank, is_certain: bool) -> Vec<(Rank, Shrunk)> {
        self.gone.insert(rank, is_certain);
        let groups: Vec<u32> = self.calls.keys().copied().collect();
        groups.into_iter().flat_map(|group| self.decide(group)).collect()
    }

    fn decide(&mut self, group: u32) -> Vec<(Rank, Shrunk)> {
        let Self { calls, gone } = self;
        let Some(Calls { members, called, least }) = calls.get(&group) else { return Vec::new() };
        let left: Vec<Rank> = members.iter().copied().filter(|rank| !gone.contains_key(rank)).collect();
        if !left.iter().all(|rank| called.contains_key(rank)) {
            return Vec::new();
        }
        let silent: Vec<Rank> =
            members.iter().copied().filter(|rank| gone.get(rank) == Some(&false)).collect();
        let outcome = ShrinkOutcome::of(left.clone(), silent, *least);
        let completed = left.iter().filter_map(|rank| called.get(rank)).copied().min().unwrap_or_default();
        calls.remove(&group);
        let shrunk = Shrunk { group, outcome, completed };
        left.into_iter().map(|to| (to, shrunk.clone())).collect()
    }
}

impl Shrink {
    pub(super) fn write(&self, to: &mut Writer) {
        to.u32(self.group);
        to.ranks(&self.members);
        to.u32(self.least);
        to.ranks(&self.dead);
        to.u64(self.completed);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (group, members, least) = (from.u32()?, from.ranks()?, from.u32()?);
        Ok(Self { group, members, least, dead: from.ranks()?, completed: from.u64()? })
    }
}

impl Shrunk {
    pub(super) fn write(&self, to: &mut Writer) {
        to.u32(self.group);
        match &self.outcome {
            ShrinkOutcome::Continue(left) => {
                to.u8(1);
                to.ranks(left);
            }
            ShrinkOutcome::TooFew { left, least } => {
                to.u8(2);
                to.ranks(left);
                to.u32(*least);
            }
            ShrinkOutcome::NoMajority { silent } => {
                to.u8(3);
                to.ranks(silent);
            }
            ShrinkOutcome::Late { missing } => {
                to.u8(4);
                to.ranks(missing);
            }
        }
        to.u64(self.completed);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let group = from.u32()?;
        let outcome = match from.u8()? {
            1 => ShrinkOutcome::Continue(from.ranks()?),
            2 => ShrinkOutcome::TooFew { left: from.ranks()?, least: from.u32()? },
            3 => ShrinkOutcome::NoMajority { silent: from.ranks()? },
            4 => ShrinkOutcome::Late { missing: from.ranks()? },
            _ => return Err(Malformed("its outcome is unknown")),
        };
        Ok(Self { group, outcome, completed: from.u64()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shrink(members: u32, least: u32) -> Shrink {
        Shrink { group: 7, members: (0..members).collect(), least, dead: Vec::new(), completed: 9 }
    }

    fn outcome_of(all: &[(Rank, Shrunk)]) -> (Vec<Rank>, Option<ShrinkOutcome>) {
        (all.iter().map(|(to, _)| *to).collect(), all.first().map(|(_, shrunk)| shrunk.outcome.clone()))
    }

    #[test]
    fn those_that_are_left_go_on_once_all_of_them_say_so() {
        let mut hub = Survivors::default();
        assert_eq!(hub.call(0, shrink(4, 1)), []);
        assert_eq!(hub.lose(2, true), []);
        assert_eq!(hub.call(3, shrink(4, 1)), []);
        let directed = hub.call(1, Shrink { completed: 8, ..shrink(4, 1) });
        assert!(directed.iter().all(|(_, shrunk)| shrunk.completed == 8));
        assert_eq!(
            outcome_of(&directed),
            (Vec::from([0, 1, 3]), Some(ShrinkOutcome::Continue(Vec::from([0, 1, 3]))))
        );
        assert!(hub.calls.is_empty());
    }

    #[test]
    fn a_death_while_they_wait_decides() {
        let mut hub = Survivors::default();
        hub.lose(1, true);
        for rank in [0, 2] {
            assert_eq!(hub.call(rank, shrink(4, 1)), []);
        }
        assert_eq!(outcome_of(&hub.lose(3, true)).1, Some(ShrinkOutcome::Continue(Vec::from([0, 2]))));
    }

    #[test]
    fn too_few_do_not_go_on() {
        let mut hub = Survivors::default();
        hub.lose(1, true);
        hub.call(0, shrink(3, 1));
        let outcome = outcome_of(&hub.call(2, shrink(3, 3))).1;
        assert_eq!(outcome, Some(ShrinkOutcome::TooFew { left: Vec::from([0, 2]), least: 3 }));
    }

    /// Whoever is only silent may go on elsewhere: never do both halves.
    #[test]
    fn of_all_ways_to_cut_a_group_in_two_at_most_one_half_goes_on() {
        for members in 2..7u32 {
            for mask in 1..(1u32 << members) - 1 {
                let go_on = [mask, !mask].map(|here| {
                    let mut hub = Survivors::default();
                    let mut last = Vec::new();
                    for rank in (0..members).filter(|rank| here >> rank & 1 == 0) {
                        last = hub.lose(rank, false);
                    }
                    for rank in (0..members).filter(|rank| here >> rank & 1 == 1) {
                        last = hub.call(rank, shrink(members, 1));
                    }
                    matches!(outcome_of(&last).1, Some(ShrinkOutcome::Continue(_)))
                });
                assert!(go_on != [true, true], "{members} {mask:b}");
                let ones = (mask & ((1 << members) - 1)).count_ones();
                assert_eq!(go_on[0], ones > members - ones);
            }
        }
    }

    #[test]
    fn who_waits_no_longer_does_not_count() {
        let mut hub = Survivors::default();
        hub.call(0, shrink(2, 1));
        assert_eq!(outcome_of(&hub.withdraw(0, 7)).1, Some(ShrinkOutcome::Late { missing: Vec::from([1]) }));
        assert!(hub.calls.is_empty());
        assert_eq!(hub.call(1, shrink(2, 1)), []);
    }
}
