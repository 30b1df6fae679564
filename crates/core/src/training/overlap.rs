//! When buckets are summed, and how long a step takes by it.

use super::{
    bucket::{Bucket, BucketCost},
    cores::{ComputingCores, SumClock},
};
use crate::simulate::Picoseconds;
use alloc::{collections::BinaryHeap, vec::Vec};
use core::cmp::Reverse;

/// The work of a worker in a step, without the sums of gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrainingStep {
    /// Until the backward pass begins.
    pub forward: Picoseconds,
    /// The backward pass.
    pub backward: Picoseconds,
    /// The work that needs all sums and follows them: the optimizer, and the rest of the step.
    pub after: Picoseconds,
    /// The cores that it computes on, if threads of sums run on them, too. A thread that computes keeps its core. A
    /// thread that sums sleeps between messages, and whenever it wakes it waits for a core. So sums have the idle cores
    /// until the backward pass is over. `None`: sums take none of its cores.
    pub cores: Option<ComputingCores>,
}

impl TrainingStep {
    /// The time of a worker that trains alone and sums nothing.
    pub fn computing(&self) -> Picoseconds {
        self.forward.saturating_add(self.backward).saturating_add(self.after)
    }
}

/// When a bucket is summed, from the beginning of the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SummedBucket {
    /// The call.
    pub begin: Picoseconds,
    /// The last worker has the sum.
    pub end: Picoseconds,
}

/// A step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepTimeline {
    /// Each bucket, in the order of the sums.
    pub buckets: Vec<SummedBucket>,
    /// How long the sums continue after the backward pass.
    pub exposed: Picoseconds,
    /// The whole step: computing, and the exposed part of the sums.
    pub total: Picoseconds,
}

/// The timeline of a step whose buckets are summed in their order, at most `in_flight` at once (0 means 1). A sum
/// begins as soon as its bucket is ready and the sum before it has begun.
///
/// With one at once a step without overlap takes its computing and the sum of all costs. More at once never take
/// longer: they share the busiest thread or port of each sum, first come, first served.
pub fn timeline(
    step: &TrainingStep,
    buckets: &[Bucket],
    in_flight: u32,
    mut cost: impl FnMut(&Bucket) -> BucketCost,
) -> StepTimeline {
    let most = in_flight.max(1) as usize;
    let computed = step.forward.saturating_add(step.backward);
    let costs: Vec<BucketCost> = buckets.iter().map(&mut cost).collect();
    let clock = SumClock::of(computed, step.cores, &costs);
    // From here on times are those of sums.
    let mut ends = BinaryHeap::new();
    // When the last bucket was begun, and from when on the busiest place is free.
    let (mut begun, mut free): (Picoseconds, Picoseconds) = (0, 0);
    let mut summed = Vec::with_capacity(buckets.len());
    for (bucket, cost) in buckets.iter().zip(costs) {
        let mut begin = begun.max(clock.of_sums(step.forward.saturating_add(bucket.ready)));
        if ends.len() == most
            && let Some(Reverse(end)) = ends.pop()
        {
            begin = begin.max(end);
        }
        let BucketCost { time, busy, .. } = cost;
        let served = begin.max(free);
        let end = served.saturating_add(time);
        (begun, free) = (begin, served.saturating_add(busy.min(time)));
        ends.push(Reverse(end));
        summed.push(SummedBucket { begin, end });
    }
    for bucket in &mut summed {
        (bucket.begin, bucket.end) = (clock.of_all(bucket.begin), clock.of_all(bucket.end));
    }
    let last = summed.iter().map(|bucket| bucket.end).max().unwrap_or(0);
    let exposed = last.saturating_sub(computed);
    StepTimeline { buckets: summed, exposed, total: step.computing().saturating_add(exposed) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::random::SplitMix;

    const STEP: TrainingStep = TrainingStep { forward: 100, backward: 200, after: 30, cores: None };

    fn bucket(bytes: u64, ready: Picoseconds) -> Bucket {
        Bucket { kind: 0, bytes, ready }
    }

    /// A byte takes a picosecond.
    fn by_bytes(bucket: &Bucket) -> BucketCost {
        BucketCost { time: bucket.bytes, busy: bucket.bytes, cores: 0 }
    }

    #[test]
    fn without_overlap_a_step_is_computing_and_all_costs() {
        let buckets = [10, 20, 30].map(|bytes| bucket(bytes, STEP.backward));
        let found = timeline(&STEP, &buckets, 1, by_bytes);
        assert_eq!((found.exposed, found.total), (60, 330 + 60));
        let begins = found.buckets.iter().map(|bucket| bucket.begin).collect::<Vec<_>>();
        assert_eq!(begins, [300, 310, 330]);
    }

    #[test]
    fn where_all_others_are_hidden_the_last_cost_is_exposed() {
        let buckets = [bucket(40, 50), bucket(40, 100), bucket(25, 200)];
        for in_flight in [0, 1, 2, 9] {
            let found = timeline(&STEP, &buckets, in_flight, by_bytes);
            assert_eq!((found.exposed, found.total), (25, 330 + 25), "{in_flight}");
        }
        assert_eq!(found_begin(&buckets), [150, 200, 300]);
    }

    fn found_begin(buckets: &[Bucket]) -> Vec<Picoseconds> {
        timeline(&STEP, buckets, 1, by_bytes).buckets.iter().map(|bucket| bucket.begin).collect()
    }

    #[test]
    fn what_ends_within_the_backward_pass_is_not_exposed_and_no_bucket_is_no_sum() {
        assert_eq!(timeline(&STEP, &[bucket(10, 50)], 1, by_bytes).exposed, 0);
        let alone = timeline(&STEP, &[], 1, by_bytes);
        assert_eq!((alone.exposed, alone.total, alone.buckets.len()), (0, STEP.computing(), 0));
    }

    /// Each sum takes 10, of which 4 are on the busiest port: three at once end at 10, 14 and 18, and the fourth waits for the first.
    #[test]
    fn sums_at_once_share_what_is_busiest() {
        let buckets = [bucket(1, 200); 4];
        let cost = |_: &Bucket| BucketCost { time: 10, busy: 4, cores: 0 };
        let ends = |in_flight| -> Vec<Picoseconds> {
            let found = timeline(&STEP, &buckets, in_flight, cost);
            found.buckets.iter().map(|bucket| bucket.end - 300).collect()
        };
        assert_eq!(ends(3), [10, 14, 18, 22]);
        assert_eq!(ends(1), [10, 20, 30, 40]);
        assert_eq!(ends(2), [10, 14, 20, 24]);
        // A port that is busy all the time leaves nothing to hide.
        let found = timeline(&STEP, &buckets, 4, |_| BucketCost { time: 10, busy: 99, cores: 0 });
        assert_eq!(found.exposed, 40);
    }

    /// The backward pass ends at 300. The first bucket is ready at 140, and its sum takes 80, with two cores for all that time; the second one is ready with the
    /// last gradient and takes 20.
    #[test]
    fn while_workers_compute_sums_have_the_idle_cores() {
        let buckets = [bucket(80, 40), bucket(20, 200)];
        let cost = |bucket: &Bucket| BucketCost { cores: 2 * bucket.bytes, ..by_bytes(bucket) };
        let on = |all, threads| {
            let step = TrainingStep { cores: Some(ComputingCores { all, threads }), ..STEP };
            let StepTimeline { buckets, exposed, total } = timeline(&step, &buckets, 4, cost);
            assert_eq!(total, STEP.computing() + exposed);
            (buckets[0].end, exposed)
        };
        // Two idle cores are enough.
        for (all, threads) in [(2, 0), (3, 1), (6, 4), (9, 2)] {
            assert_eq!(on(all, threads), (220, 20));
        }
        // One has half of it done in twice the time, until 300.
        assert_eq!(on(2, 1), (300, 20));
        assert_eq!(on(4, 3), (300, 20));
        // Without an idle core all sums are after the backward pass.
        for (all, threads) in [(2, 2), (2, 4), (0, 1), (1, 8)] {
            assert_eq!(on(all, threads), (380, 100));
        }
        // Half done is half left.
        let step = TrainingStep { cores: Some(ComputingCores { all: 2, threads: 1 }), ..STEP };
        let late = timeline(&step, &[bucket(80, 100)], 4, cost);
        assert_eq!((late.buckets[0].begin, late.exposed), (200, 30));
    }

    #[test]
    fn more_idle_cores_never_take_longer() {
        for seed in 0..2_000 {
            let chance = &mut SplitMix::new(seed);
            let (buckets, mut costs) = random(chance);
            for cost in &mut costs {
                cost.cores = chance.below(1 + cost.time as usize * 3) as u64;
            }
            let of = |cores| {
                let step = TrainingStep { cores, ..STEP };
                timeline(&step, &buckets, 4, |bucket| costs[bucket.bytes as usize]).total
            };
            let apart = of(None);
            let all: Vec<_> = (4..=7).map(|all| of(Some(ComputingCores { all, threads: 4 }))).collect();
            assert!(all.is_sorted_by(|fewer, more| fewer >= more), "seed {seed}: {all:?}");
            assert_eq!(all[3], apart, "seed {seed}: three cores are enough for each sum");
            let most: Picoseconds = costs.iter().map(|cost| cost.time).sum();
            assert!(all[0] <= STEP.computing() + most, "seed {seed}");
        }
    }

    #[test]
    fn times_beyond_all_counting_stay_at_the_end() {
        let cost = |_: &Bucket| BucketCost { time: u64::MAX, busy: u64::MAX, cores: 0 };
        assert_eq!(timeline(&STEP, &[bucket(1, 0); 3], 1, cost).total, u64::MAX);
    }

    /// A step of chance: its buckets in the order of arrival, and the cost of each.
    fn random(chance: &mut SplitMix) -> (Vec<Bucket>, Vec<BucketCost>) {
        let count = 1 + chance.below(12);
        let mut ready: Vec<Picoseconds> = (0..count).map(|_| chance.below(201) as u64).collect();
        ready.sort_unstable();
        let costs = (0..count).map(|_| {
            let time = chance.below(120) as u64;
            BucketCost { time, busy: chance.below(120) as u64, cores: 0 }
        });
        let costs = costs.collect();
        // The bytes are the place, by which the cost is found.
        (ready.iter().zip(0..).map(|(ready, place)| bucket(place, *ready)).collect(), costs)
    }

    #[test]
    fn more_at_once_and_cheaper_sums_never_take_longer() {
        for seed in 0..2_000 {
            let chance = &mut SplitMix::new(seed);
            let (buckets, mut costs) = random(chance);
            let total = |costs: &[BucketCost], buckets: &[Bucket], in_flight| {
                timeline(&STEP, buckets, in_flight, |bucket| costs[bucket.bytes as usize]).total
            };
            let all: Vec<_> = (1..=13).map(|in_flight| total(&costs, &buckets, in_flight)).collect();
            assert!(all.is_sorted_by(|fewer, more| fewer >= more), "seed {seed}: {all:?}");
            let most: Picoseconds = costs.iter().map(|cost| cost.time).sum();
            let least: Picoseconds = costs.iter().map(|cost| cost.busy.min(cost.time)).sum();
            assert!(all[0] <= STEP.computing() + most, "seed {seed}");
            let earliest = STEP.forward + buckets[0].ready + least + STEP.after;
            assert!(all[12] >= earliest.max(STEP.computing()), "seed {seed}");
            let place = chance.below(costs.len());
            costs[place].time += chance.below(50) as u64;
            costs[place].busy += chance.below(50) as u64;
            for in_flight in 1..=13 {
                let dearer = total(&costs, &buckets, in_flight);
                assert!(dearer >= all[in_flight as usize - 1], "seed {seed}, {in_flight} at once");
            }
        }
    }
}
