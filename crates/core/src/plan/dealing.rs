//! How shards are dealt to workers: in aligned runs, which give one partial sum each, or in even runs, which can give
//! several. The time of a step decides.

use super::{
    Request,
    predicted::{best, shown_time},
};
use crate::{
    prepare::Sizing,
    shards::{ShardRuns, ShardsError},
    simulate::{Calibration, Picoseconds},
};
use alloc::{format, string::String};

/// Runs of shards, and why these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenRuns {
    /// The runs.
    pub runs: ShardRuns,
    /// The reason, as a sentence without a full stop.
    pub why: String,
}

/// Chooses between [aligned](ShardRuns::aligned) and [even](ShardRuns::even) runs for the workers of `sum`, the
/// all-reduce of a step's partial sums. The choice minimizes the time of the longest run, where a shard takes
/// `shard_time`, plus the predicted time of the sum. Sums have the same bits in either case. But all ranks have to
/// choose the same, so the arguments must be agreed.
///
/// # Errors
/// As [`ShardRuns::even`].
pub fn choose_runs(
    shards: u32,
    shard_time: Picoseconds,
    sum: &Request<'_>,
    known: &Calibration,
    sizing: Sizing,
) -> Result<ChosenRuns, ShardsError> {
    let workers = sum.group.size();
    let (aligned, even) = (ShardRuns::aligned(shards, workers)?, ShardRuns::even(shards, workers)?);
    let (most_aligned, most_even) = (longest(&aligned), longest(&even));
    if most_aligned == most_even {
        let why = format!("aligned runs: of {shards} shards some worker has {most_even} in any case");
        return Ok(ChosenRuns { runs: aligned, why });
    }
    let step = |runs: &ShardRuns| {
        let group = runs.group();
        let sum = best(&Request { group: &group, ..*sum }, known, sizing)?.outcome.total();
        Some(shard_time.saturating_mul(longest(runs).into()).saturating_add(sum))
    };
    let (Some(with_aligned), Some(with_even)) = (step(&aligned), step(&even)) else {
        let why = String::from("aligned runs: no way to sum even ones is known to end");
        return Ok(ChosenRuns { runs: aligned, why });
    };
    let said = |most: u32, time| format!("{most} shards and their sum take {}", shown_time(time));
    let (of_aligned, of_even) = (said(most_aligned, with_aligned), said(most_even, with_even));
    Ok(match with_even < with_aligned {
        true => ChosenRuns { runs: even, why: format!("even runs: {of_even}, {of_aligned} in aligned runs") },
        false => {
            ChosenRuns { runs: aligned, why: format!("aligned runs: {of_aligned}, {of_even} in even runs") }
        }
    })
}

fn longest(runs: &ShardRuns) -> u32 {
    (0..runs.workers()).map(|worker| runs.of(worker).len() as u32).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::counted::tests::large;
    use super::*;
    use crate::group::Group;

    #[test]
    fn what_a_step_takes_decides() {
        let (group, hosts) = (Group::of_size(3), [0, 1, 2]);
        let sum = Request { bytes: 25 << 20, ..large(&group, &hosts) };
        let sizing = Sizing { hosts: 3, shared: false, segment_bytes: 0, most_staged: 56 << 20 };
        let chosen = |shards, shard_time| {
            choose_runs(shards, shard_time, &sum, &Calibration::default(), sizing).unwrap()
        };
        let (slow, fast) = (chosen(8, 1_000_000_000_000), chosen(8, 1_000_000));
        assert_eq!(slow.runs, ShardRuns::even(8, 3).unwrap());
        assert!(slow.why.starts_with("even runs: 3 shards and their sum take 3."), "{}", slow.why);
        assert_eq!(fast.runs, ShardRuns::aligned(8, 3).unwrap());
        assert!(fast.why.starts_with("aligned runs: 4 shards and their sum take "), "{}", fast.why);
        let alike = chosen(3, 1);
        assert_eq!(alike.runs, ShardRuns::aligned(3, 3).unwrap());
        assert_eq!(alike.why, "aligned runs: of 3 shards some worker has 1 in any case");
        assert_eq!(
            choose_runs(0, 1, &sum, &Calibration::default(), sizing),
            Err(ShardsError::Number { shards: 0 })
        );
        // A forced algorithm that folds one input of each rank only leaves aligned runs.
        let doubling = "doubling".parse().unwrap();
        let forced = Request { forced: Some(&doubling), ..sum };
        let chosen = choose_runs(8, 1_000_000_000_000, &forced, &Calibration::default(), sizing).unwrap();
        assert_eq!(chosen.runs, ShardRuns::aligned(8, 3).unwrap());
    }
}
