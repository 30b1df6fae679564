//! Converts the times of all processes to one clock.

use std::collections::BTreeMap;

/// One measurement: what two clocks said at the same moment, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClockPair {
    pub(super) here: i64,
    pub(super) there: i64,
    pub(super) round_trip: i64,
}

/// Converts times of a process to the reference: straight lines between measurements, which follow clocks that
/// drift, and no drift before the first and after the last one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ClockLine {
    /// Each once, by the other clock's time.
    readings: Vec<ClockPair>,
}

impl ClockLine {
    pub(super) fn new(mut readings: Vec<ClockPair>) -> Self {
        readings.sort_unstable_by_key(|reading| (reading.there, reading.round_trip));
        // Neither clock goes backwards: a reading that says so was measured worse than the one before it.
        let mut kept: Vec<ClockPair> = Vec::new();
        for reading in readings {
            let is_after =
                kept.last().is_none_or(|last| reading.there > last.there && reading.here > last.here);
            if is_after {
                kept.push(reading);
            }
        }
        Self { readings: kept }
    }

    /// By how much times are wrong at most: the two ways of a round trip might have taken different times.
    pub(super) fn error(&self) -> i64 {
        self.readings.iter().map(|reading| reading.round_trip / 2).max().unwrap_or(0)
    }

    /// The reference's time at the process's time.
    pub(super) fn here(&self, there: i64) -> i64 {
        let shifted = |reading: &ClockPair| there.saturating_add(reading.here.saturating_sub(reading.there));
        let next = self.readings.partition_point(|reading| reading.there <= there);
        match (next.checked_sub(1).map(|last| &self.readings[last]), self.readings.get(next)) {
            (Some(last), Some(next)) => {
                let (run, rise) = (next.there - last.there, next.here - last.here);
                let on_the_way = i128::from(there - last.there) * i128::from(rise) / i128::from(run);
                last.here.saturating_add(on_the_way as i64)
            }
            (Some(end), None) | (None, Some(end)) => shifted(end),
            (None, None) => there,
        }
    }
}

/// What is known of a process's clock.
#[derive(Clone, Debug, Default)]
pub(super) struct ProcessClock {
    /// A text that processes with the same clock have in common; empty where it is not known.
    pub(super) name: String,
    pub(super) member: u64,
    /// What it has measured, by member.
    pub(super) readings: BTreeMap<u64, Vec<ClockPair>>,
}

/// The line of each process, in their order; `None` if nothing says how its clock stands. `reference` is the process whose
/// times are kept.
pub(super) fn lines(processes: &[&ProcessClock], reference: usize) -> Vec<Option<ClockLine>> {
    let Some(base) = processes.get(reference) else { return vec![None; processes.len()] };
    let measured = |member: u64| base.readings.get(&member).map(|readings| ClockLine::new(readings.clone()));
    let line = |process: &ProcessClock| {
        let has_same = |other: &ProcessClock| !process.name.is_empty() && other.name == process.name;
        if process.member == base.member || has_same(base) {
            return Some(ClockLine::default());
        }
        // Another process with the same clock will do, for example of one that has died before it was asked.
        measured(process.member).or_else(|| {
            processes.iter().filter(|other| has_same(other)).find_map(|other| measured(other.member))
        })
    };
    processes.iter().map(|process| line(process)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(here: i64, there: i64, round_trip: i64) -> ClockPair {
        ClockPair { here, there, round_trip }
    }

    #[test]
    fn a_clock_that_drifts_is_followed_between_measurements() {
        // It is 5 s ahead, and gains 1 ms in each second.
        let line = ClockLine::new(vec![
            reading(0, 5_000_000_000, 200),
            reading(10_000_000_000, 15_010_000_000, 4_000),
        ]);
        assert_eq!(line.here(5_000_000_000), 0);
        assert_eq!(line.here(5_000_000_000 + 1_001_000_000), 1_000_000_000);
        assert_eq!(line.here(15_010_000_000), 10_000_000_000);
        assert_eq!(line.here(4_999_999_000), -1000);
        assert_eq!(line.here(15_010_001_000), 10_000_001_000);
        assert_eq!(line.error(), 2_000);
        assert_eq!(ClockLine::default().here(7), 7);
    }

    #[test]
    fn a_reading_that_goes_backwards_is_left_out() {
        let line = ClockLine::new(vec![
            reading(10, 20, 1),
            reading(5, 30, 1),
            reading(10, 20, 9),
            reading(40, 50, 1),
        ]);
        assert_eq!(line.readings, [reading(10, 20, 1), reading(40, 50, 1)]);
    }

    #[test]
    fn processes_of_one_host_share_a_measurement() {
        let clock = |name: &str, member, measured: &[(u64, ClockPair)]| ProcessClock {
            name: name.into(),
            member,
            readings: measured.iter().map(|(member, reading)| (*member, vec![*reading])).collect(),
        };
        let base = clock("a", 0, &[(2, reading(0, 50, 2))]);
        let others = [
            clock("a", 1, &[]),
            clock("b", 2, &[]),
            clock("b", 3, &[]),
            clock("c", 4, &[]),
            clock("", 5, &[]),
        ];
        let all: Vec<&ProcessClock> = std::iter::once(&base).chain(&others).collect();
        let found: Vec<Option<i64>> =
            lines(&all, 0).iter().map(|line| line.as_ref().map(|line| line.here(100))).collect();
        assert_eq!(found, [Some(100), Some(100), Some(50), Some(50), None, None]);
    }
}
