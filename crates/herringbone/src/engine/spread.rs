//! Spreading the ranks of a host over its cores while they wait for each other.
//!
//! A rank that waits yields its core to others. To the kernel, ranks that yield to each other are all busy, and it may
//! leave most of them on one core for a tenth of a second while others have little to do; every operation then takes
//! as long as that core needs for all its ranks. So each rank says in its segment where it runs, and one that shares
//! its core with at least two ranks more than another core has moves there, if `HERRINGBONE_SPREAD` lets it.
//!
//! It is not tied to that core: its thread may run where it might before, and the kernel goes on balancing. To the kernel
//! that is a wish of its own from then on, so cores that its container is given later are not for this thread.
//!
//! Where many ranks share few cores, most have little to do beside the one that folds for all, and the kernel does better:
//! it leaves that one a core for itself.

use crate::sys::segment::Words;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use std::{fmt, sync::atomic::Ordering};

/// How many waits go by between two looks.
const SELDOM: u32 = 16;
/// With more ranks than this to a core the kernel is left alone.
const MOST_PER_CORE: usize = 4;

/// Where this rank and its host-mates run, as each of them has said.
pub(crate) struct Spread {
    own: Words,
    /// By rank.
    mates: Vec<(u32, Words)>,
    waits: u32,
    cores: usize,
    /// Whether this rank moves.
    pub(crate) allowed: bool,
}

/// Another core, which a thread should move to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Elsewhere {
    core: usize,
    allowed: CpuSet,
}

impl Spread {
    /// With this rank's word.
    pub(crate) fn new(own: Words) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self { own, mates: Vec::new(), waits: 0, cores, allowed: false }
    }

    /// A host-mate, and its word.
    pub(crate) fn joined(&mut self, rank: u32, word: Words) {
        self.gone(rank);
        self.mates.push((rank, word));
    }

    /// A host-mate is gone.
    pub(crate) fn gone(&mut self, rank: u32) {
        self.mates.retain(|(mate, _)| *mate != rank);
    }

    /// This thread, of rank `me`, is about to wait. From time to time it is told to do so elsewhere.
    pub(crate) fn wait(&mut self, me: u32) -> Option<Elsewhere> {
        self.waits = self.waits.wrapping_add(1);
        if !self.allowed || self.mates.is_empty() || self.waits % SELDOM != 1 {
            return None;
        }
        if self.mates.len() >= MOST_PER_CORE * self.cores {
            return None;
        }
        let here = sched_getcpu();
        self.own[0].store(here as u64 + 1, Ordering::Relaxed);
        let seats = self.mates.iter().map(|(rank, word)| (*rank, word[0].load(Ordering::Relaxed)));
        let seats: Vec<_> =
            seats.filter_map(|(rank, cpu)| Some((rank, cpu.checked_sub(1)? as usize))).collect();
        // Who is alone on its core has nothing to ask the kernel for.
        if seats.iter().all(|(_, cpu)| *cpu != here) {
            return None;
        }
        let allowed = sched_getaffinity(None).ok()?;
        let core = better(me, here, &seats, |cpu| allowed.is_set(cpu))?;
        // Others are to know at once, and not to choose the same.
        self.own[0].store(core as u64 + 1, Ordering::Relaxed);
        Some(Elsewhere { core, allowed })
    }
}

impl Elsewhere {
    /// Moves this thread; without the engine's lock, since it may have to wait for that core.
    pub(crate) fn go(self) {
        let mut only = CpuSet::new();
        only.set(self.core);
        // Whoever may not do this stays where it is.
        let _moved = sched_setaffinity(None, &only);
        let _as_before = sched_setaffinity(None, &self.allowed);
    }
}

impl fmt::Debug for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spread").field("mates", &self.mates.len()).finish_non_exhaustive()
    }
}

/// The core that a rank should move to, given where the others run. Of several ranks on one core the last one moves, so
/// that they do not all do; of several cores it takes the next one, since other jobs' ranks are not seen.
fn better(me: u32, here: usize, seats: &[(u32, usize)], allowed: impl Fn(usize) -> bool) -> Option<usize> {
    let on = |cpu: usize| seats.iter().filter(move |(_, at)| *at == cpu);
    if on(here).any(|(rank, _)| *rank > me) {
        return None;
    }
    let others = (1..CpuSet::MAX_CPU).map(|further| (here + further) % CpuSet::MAX_CPU);
    let there = others.filter(|cpu| allowed(*cpu)).min_by_key(|cpu| on(*cpu).count())?;
    (on(here).count() > on(there).count()).then_some(there)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_rank_of_a_crowded_core_moves_to_the_emptiest() {
        let seats = [(0, 0), (1, 0), (2, 1), (4, 0)];
        let any = |cpu| cpu < 4;
        assert_eq!(better(5, 0, &seats, any), Some(2), "of cores 2 and 3 the next");
        assert_eq!(better(3, 0, &seats, any), None, "rank 4 is there too, and moves");
        assert_eq!(better(5, 0, &seats, |cpu| cpu < 2), Some(1));
        assert_eq!(better(5, 0, &seats, |cpu| cpu == 0), None, "it may not be anywhere else");
        assert_eq!(better(5, 1, &seats, |cpu| cpu < 2), None, "three are elsewhere, two here");
        assert_eq!(better(1, 3, &[(0, 3)], any), Some(0), "two on one core");
        assert_eq!(better(1, 0, &[(0, 1)], |cpu| cpu < 2), None, "one each");
    }

    #[test]
    fn who_moves_may_run_where_it_might_before() {
        let before = sched_getaffinity(None).unwrap();
        Elsewhere { core: sched_getcpu(), allowed: before }.go();
        assert_eq!(sched_getaffinity(None).unwrap(), before);
    }
}
