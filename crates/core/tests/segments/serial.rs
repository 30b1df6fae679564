//! A model of ranks that run their programs strictly in order: who waits for whom, without any data.

use herringbone_core::schedule::{Rank, Schedule, Step};
use std::collections::BTreeMap;

/// How ranks run in order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InOrder {
    /// How many messages a lane holds.
    pub(crate) credit: usize,
    /// Whether a send puts its message on all its lanes at once, rather than on each as soon as it has room.
    pub(crate) at_once: bool,
}

impl InOrder {
    /// Whether a schedule completes.
    pub(crate) fn completes(self, schedule: &Schedule) -> bool {
        let programs: Vec<_> = (0..schedule.ranks()).map(|rank| schedule.program(rank)).collect();
        // Per rank: how many steps are over, and to how many receivers the next one has sent.
        let mut at = vec![(0, 0); programs.len()];
        let mut waiting: BTreeMap<(Rank, Rank), usize> = BTreeMap::new();
        let mut moved = true;
        while std::mem::take(&mut moved) {
            for (rank, program) in (0..).zip(&programs) {
                let (over, sent) = &mut at[rank as usize];
                let Some(step) = program.steps().get(*over) else { continue };
                if let Step::Send { to, .. } = *step {
                    let left = &program.lanes(to)[*sent..];
                    let has_room =
                        |to: &&Rank| waiting.get(&(rank, **to)).is_none_or(|full| *full < self.credit);
                    let goes = left.iter().take_while(has_room).count();
                    if self.at_once && goes < left.len() {
                        continue;
                    }
                    left[..goes].iter().for_each(|to| *waiting.entry((rank, *to)).or_default() += 1);
                    *sent += goes;
                    moved |= goes > 0;
                    if *sent < program.lanes(to).len() {
                        continue;
                    }
                } else {
                    let mut needed: BTreeMap<Rank, usize> = BTreeMap::new();
                    program.received(step).for_each(|from| *needed.entry(from).or_default() += 1);
                    let has_come =
                        |(from, needed): (&Rank, &usize)| waiting.get(&(*from, rank)) >= Some(needed);
                    if !needed.iter().all(has_come) {
                        continue;
                    }
                    needed
                        .iter()
                        .for_each(|(from, needed)| *waiting.entry((*from, rank)).or_default() -= needed);
                }
                (*over, *sent, moved) = (*over + 1, 0, true);
            }
        }
        programs.iter().zip(&at).all(|(program, (over, _))| *over == program.steps().len())
    }
}
