//! A reducer's knowledge of a group: it plans and calls nothing by itself.

use super::super::fence::{Admission, Check, REMEMBERED};
use crate::algorithm::Algorithm;
use alloc::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    string::String,
};

use super::super::membership::MemberId;

/// How many plans a reducer remembers for a generation of a group. Few algorithms go through reducers.
const PLANS: usize = 64;

/// A reducer got more plans than it remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyPlans;

/// A reducer's knowledge about a generation of a group, from workers.
#[derive(Debug)]
pub struct ReducerMember {
    generation: u32,
    /// The operations that were announced last, and those that run: their numbers and rolling hashes.
    announced: VecDeque<(u64, u64)>,
    /// By digest: the algorithm of a plan, or why operations of it are refused.
    plans: BTreeMap<u64, Result<Algorithm, String>>,
    /// Workers that have introduced the group over the links that they have.
    met: BTreeSet<MemberId>,
    /// Workers that take no part in the group any more.
    left: BTreeSet<MemberId>,
}

impl ReducerMember {
    /// Nothing, of a generation that begins.
    pub(super) fn new(generation: u32) -> Self {
        let (met, left) = (BTreeSet::new(), BTreeSet::new());
        Self { generation, announced: VecDeque::new(), plans: BTreeMap::new(), met, left }
    }

    pub(super) fn generation(&self) -> u32 {
        self.generation
    }

    pub(super) fn admit(&self, generation: u32) -> Admission {
        if generation == self.generation { Admission::Accept } else { Admission::Discard }
    }

    pub(super) fn check(&self, sequence: u64, hash: u64) -> Check {
        match self.announced.iter().find(|(announced, _)| *announced == sequence) {
            Some((_, known)) if *known == hash => Check::Match,
            Some(_) => Check::Differs,
            None => Check::NotYet,
        }
    }

    /// The first worker to come announces an operation. `runs` tells which of the earlier ones still run and are
    /// remembered.
    pub fn announce(&mut self, sequence: u64, hash: u64, runs: impl Fn(u64) -> bool) {
        if self.announced.len() >= REMEMBERED {
            // Few run at once, so what is over is found soon.
            let over = self.announced.iter().position(|(earlier, _)| !runs(*earlier));
            over.and_then(|over| self.announced.remove(over));
        }
        self.announced.push_back((sequence, hash));
    }

    /// A worker sends the inputs of the plan with this digest. The first time, `judge` gives its algorithm, or the
    /// reason why its operations are refused.
    ///
    /// # Errors
    /// If there are too many.
    pub fn plan(
        &mut self,
        digest: u64,
        judge: impl FnOnce() -> Result<Algorithm, String>,
    ) -> Result<(), TooManyPlans> {
        if self.plans.contains_key(&digest) {
            return Ok(());
        }
        if self.plans.len() >= PLANS {
            return Err(TooManyPlans);
        }
        self.plans.insert(digest, judge());
        Ok(())
    }

    /// Why operations of a plan are refused, if they are.
    pub fn refused(&self, plan: u64) -> Option<&str> {
        self.plans.get(&plan)?.as_ref().err().map(String::as_str)
    }

    /// The algorithm of a plan, if it is known and accepted.
    pub fn algorithm(&self, plan: u64) -> Option<&Algorithm> {
        self.plans.get(&plan)?.as_ref().ok()
    }

    /// A worker introduces the group, over the link that it has now: it takes part.
    pub fn introduced_by(&mut self, worker: MemberId) {
        self.met.insert(worker);
        self.left.remove(&worker);
    }

    /// Whether a worker has introduced the group over its present link, so that the end of that link concerns the
    /// group. A link that a worker gave up can end after others have introduced later groups.
    pub fn has_met(&self, worker: MemberId) -> bool {
        self.met.contains(&worker)
    }

    /// A worker takes no part in the group any more, unless it introduces it again. Returns whether none of these does.
    pub fn left_by(&mut self, worker: MemberId, workers: &[MemberId]) -> bool {
        self.met.remove(&worker);
        self.left.insert(worker);
        workers.iter().all(|worker| self.left.contains(worker))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Its link may have ended before it came to the group.
    #[test]
    fn a_worker_that_introduces_a_group_takes_part_whatever_was_before() {
        let workers = [0, 1].map(MemberId::new);
        let mut reducer = ReducerMember::new(0);
        reducer.introduced_by(workers[0]);
        assert!(reducer.has_met(workers[0]) && !reducer.has_met(workers[1]));
        assert!(!reducer.left_by(workers[1], &workers));
        reducer.introduced_by(workers[1]);
        assert!(reducer.has_met(workers[1]));
        assert!(!reducer.left_by(workers[0], &workers), "the other one takes part");
        assert!(!reducer.has_met(workers[0]));
        assert!(reducer.left_by(workers[1], &workers));
    }
}
