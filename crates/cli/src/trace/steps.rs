//! The steps of a program: as it has marked them, or between long gaps.

use super::read::{Interval, ReadProcess};
use std::collections::BTreeMap;

/// Gaps between steps are at least this many times as long as gaps within steps.
const CLEAR: f64 = 3.0;

/// When a step was.
#[derive(Clone, Debug)]
pub(super) struct StepWindow {
    pub(super) step: u64,
    /// From the first process's beginning to the last one's end.
    pub(super) whole: Interval,
    /// For each process that has marked it; empty if the steps are guessed, because they are the same for all.
    marked: BTreeMap<u32, Interval>,
}

impl StepWindow {
    /// When a process was in it.
    pub(super) fn of(&self, process: u32) -> Option<Interval> {
        match self.marked.is_empty() {
            true => Some(self.whole),
            false => self.marked.get(&process).copied(),
        }
    }
}

/// The steps between the first call and the last result, and whether the program has marked them.
pub(super) fn windows(ranks: &[(&u32, &ReadProcess)], all: Interval) -> (Vec<StepWindow>, bool) {
    let marked = marked(ranks, all);
    if !marked.is_empty() {
        return (marked, true);
    }
    let gaps = ranks.first().map_or_else(Vec::new, |(_, rank)| gaps(rank));
    let bounds = std::iter::once(all.start).chain(boundaries(&gaps)).chain([all.end]).collect::<Vec<_>>();
    let windows = (0..).zip(bounds.windows(2)).map(|(step, bounds)| StepWindow {
        step,
        whole: Interval { start: bounds[0], end: bounds[1] },
        marked: BTreeMap::new(),
    });
    (windows.collect(), false)
}

fn marked(ranks: &[(&u32, &ReadProcess)], all: Interval) -> Vec<StepWindow> {
    let mut steps: BTreeMap<u64, BTreeMap<u32, Interval>> = BTreeMap::new();
    for (process, rank) in ranks {
        // Before the first mark a step is under way already.
        if let Some(first) = rank.steps.first().filter(|first| first.step > 0 && first.at > all.start) {
            let window = Interval { start: all.start, end: first.at };
            steps.entry(first.step - 1).or_default().insert(**process, window);
        }
        for (index, mark) in rank.steps.iter().enumerate() {
            let end = rank.steps.get(index + 1).map_or(all.end, |next| next.at);
            // The last mark might be the program's end.
            if end <= mark.at {
                continue;
            }
            steps.entry(mark.step).or_default().insert(**process, Interval { start: mark.at, end });
        }
    }
    let windows = steps.into_iter().filter_map(|(step, marked)| {
        let start = marked.values().map(|own| own.start).min()?;
        let end = marked.values().map(|own| own.end).max()?;
        Some(StepWindow { step, whole: Interval { start, end }, marked })
    });
    windows.collect()
}

/// When a rank has no operation under way.
fn gaps(rank: &ReadProcess) -> Vec<Interval> {
    let under_way: Vec<Interval> = rank.under_way.iter().copied().collect();
    under_way.windows(2).map(|pair| Interval { start: pair[0].end, end: pair[1].start }).collect()
}

/// Where steps begin: at the ends of the long gaps, which stand out from the short ones. If none stand out, each gap is
/// between two steps.
fn boundaries(gaps: &[Interval]) -> Vec<i64> {
    let mut lengths: Vec<i64> = gaps.iter().map(|gap| (gap.end - gap.start).max(1)).collect();
    lengths.sort_unstable();
    // A few long gaps might be where the program loaded something.
    let most = lengths.len().saturating_sub((lengths.len() / 100).max(1));
    let jump = (1..most).map(|index| (lengths[index] as f64 / lengths[index - 1] as f64, lengths[index]));
    let jump = jump.max_by(|one, other| one.0.total_cmp(&other.0)).filter(|(ratio, _)| *ratio >= CLEAR);
    let least = jump.map_or(0, |(_, length)| length);
    gaps.iter().filter(|gap| gap.end - gap.start >= least).map(|gap| gap.end).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_lengths(lengths: &[i64]) -> Vec<Interval> {
        let mut at = 0;
        let each = lengths.iter().map(|length| {
            let start = at + 10;
            at = start + length;
            Interval { start, end: at }
        });
        each.collect()
    }

    #[test]
    fn steps_begin_after_the_long_gaps() {
        let gaps = of_lengths(&[100, 1000, 90, 1100, 110, 950, 100, 1000, 80]);
        let expected: Vec<i64> = [1, 3, 5, 7].map(|index: usize| gaps[index].end).into();
        assert_eq!(boundaries(&gaps), expected);
    }

    #[test]
    fn one_pause_is_no_step_and_equal_gaps_all_are() {
        let gaps = of_lengths(&[100, 110, 90, 100_000, 100]);
        assert_eq!(boundaries(&gaps).len(), 5);
        assert!(boundaries(&[]).is_empty());
        assert_eq!(boundaries(&of_lengths(&[5])).len(), 1);
    }
}
