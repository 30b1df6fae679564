//! Decides whether the program of an ended rank restarts, without a process, a file or a clock.

use super::progress_files::NotedProgress;
use crate::failure::RankFailure;
use std::process::ExitStatus;
use std::time::Duration;

/// The pauses before a rank starts again after 1, 2, ... failures without progress; the last one holds for all later ones.
/// So a program that fails at once keeps no processor busy, and one that has made progress loses no time.
const PAUSES: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(100), Duration::from_millis(500), Duration::from_secs(1)];

/// The consequence of the end of a rank's process.
#[derive(Debug, PartialEq, Eq)]
pub enum RankDecision {
    /// The rank has done its work.
    Done,
    /// The rank restarts, alone.
    Restart {
        /// The number of the next start.
        attempt: u32,
        /// How long to wait before it.
        pause: Duration,
    },
    /// The job ends, or is being ended already.
    EndJob(RankFailure),
}

/// Counts the failures of each rank, as RABIT's and dmlc-core's trackers do; and, unlike these, only failures without
/// progress between.
#[derive(Debug)]
pub(super) struct Restarts {
    max_attempts: u32,
    is_ending: bool,
    ranks: Vec<History>,
}

#[derive(Clone, Debug, Default)]
struct History {
    /// The number of the latest start, from 0.
    attempt: u32,
    /// How the starts since the last progress ended.
    endings: Vec<ExitStatus>,
    /// The last progress that was known when the rank failed.
    progress: Option<u64>,
    /// What the rank had noted when it succeeded.
    success: Option<NotedProgress>,
}

impl Restarts {
    /// For this many ranks. Each can fail fewer than `max_attempts` times without progress.
    pub(super) fn new(ranks: usize, max_attempts: u32) -> Self {
        Self { max_attempts, is_ending: false, ranks: vec![History::default(); ranks] }
    }

    /// From now on no rank starts again.
    pub(super) fn end_job(&mut self) {
        self.is_ending = true;
    }

    /// Decides about a rank whose process has ended so, with what it last noted: progress is any number that differs from the one at
    /// its last failure.
    pub(super) fn decide(&mut self, rank: usize, status: ExitStatus, noted: NotedProgress) -> RankDecision {
        let history = &mut self.ranks[rank];
        if status.success() {
            history.success = Some(noted);
            return RankDecision::Done;
        }
        if let NotedProgress::At(number) = noted
            && history.progress != Some(number)
        {
            history.endings.clear();
            history.progress = Some(number);
        }
        history.endings.push(status);
        let failures = history.endings.len();
        if self.is_ending || failures >= self.max_attempts as usize || self.others_have_left(rank) {
            self.is_ending = true;
            return RankDecision::EndJob(self.failure(rank));
        }
        let history = &mut self.ranks[rank];
        history.attempt += 1;
        RankDecision::Restart { attempt: history.attempt, pause: PAUSES[failures.min(PAUSES.len()) - 1] }
    }

    /// How a rank that has failed did so, since its last progress.
    pub(super) fn failure(&self, rank: usize) -> RankFailure {
        let others_have_left = self.others_have_left(rank);
        RankFailure { rank, endings: self.ranks[rank].endings.clone(), others_have_left }
    }

    /// A rank that was started again and waits for others in vain: all that it could meet have come to the program's end without it,
    /// and have left. What ranks have noted says whether they have come there.
    pub(super) fn waits_in_vain(&self, noted: impl Fn(usize) -> NotedProgress) -> Option<RankFailure> {
        let mut waiting = None;
        for (rank, history) in self.ranks.iter().enumerate() {
            match history.success {
                Some(NotedProgress::Complete) => {}
                None if history.attempt > 0 && noted(rank) != NotedProgress::Complete => {
                    waiting = waiting.or(Some(rank));
                }
                _ => return None,
            }
        }
        let has_others = self.ranks.iter().any(|history| history.success.is_some());
        waiting
            .filter(|_| has_others)
            .map(|rank| RankFailure { others_have_left: true, ..self.failure(rank) })
    }

    fn others_have_left(&self, rank: usize) -> bool {
        let mut others = self.ranks.iter().enumerate().filter(|(other, _)| *other != rank).peekable();
        others.peek().is_some() && others.all(|(_, history)| history.success == Some(NotedProgress::Complete))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use NotedProgress::{At, Complete, Nothing};
    use std::os::unix::process::ExitStatusExt;

    const KILLED: i32 = 9;
    const STATUS_7: i32 = 7 << 8;

    fn ended(raw: i32) -> ExitStatus {
        ExitStatus::from_raw(raw)
    }

    fn failure(rank: usize, endings: &[i32]) -> RankFailure {
        RankFailure {
            rank,
            endings: endings.iter().map(|raw| ended(*raw)).collect(),
            others_have_left: false,
        }
    }

    /// The attempt and the pause in milliseconds of a rank that starts again.
    fn restart(decision: &RankDecision) -> Option<(u32, u128)> {
        match decision {
            RankDecision::Restart { attempt, pause } => Some((*attempt, pause.as_millis())),
            _ => None,
        }
    }

    #[test]
    fn one_attempt_ends_the_job_whatever_the_progress() {
        for progress in [Nothing, At(3)] {
            let mut restarts = Restarts::new(2, 1);
            assert_eq!(restarts.decide(0, ended(0), progress), RankDecision::Done);
            assert_eq!(
                restarts.decide(1, ended(STATUS_7), progress),
                RankDecision::EndJob(failure(1, &[STATUS_7]))
            );
        }
    }

    #[test]
    fn a_rank_that_always_fails_starts_as_often_as_it_may_with_longer_pauses() {
        let mut restarts = Restarts::new(2, 6);
        let decisions: Vec<_> = (0..5).map(|_| restarts.decide(1, ended(KILLED), Nothing)).collect();
        let starts: Vec<_> = decisions.iter().filter_map(restart).collect();
        assert_eq!(starts, [(1, 0), (2, 100), (3, 500), (4, 1000), (5, 1000)]);
        let last = restarts.decide(1, ended(STATUS_7), Nothing);
        assert_eq!(last, RankDecision::EndJob(failure(1, &[9, 9, 9, 9, 9, STATUS_7])));
        let text = restarts.failure(1).to_string();
        assert!(text.contains("failed 6 times without progress"), "{text}");
        assert!(text.contains("with signal: 9 (SIGKILL), 5 times; exit status: 7;"), "{text}");
    }

    #[test]
    fn progress_counts_once_and_only_if_it_can_be_read() {
        let mut restarts = Restarts::new(1, 2);
        let said = [At(0), At(1), At(9), Nothing];
        let starts: Vec<_> =
            said.iter().map(|progress| restart(&restarts.decide(0, ended(KILLED), *progress))).collect();
        assert_eq!(starts, [Some((1, 0)), Some((2, 0)), Some((3, 0)), None]);
        let mut restarts = Restarts::new(1, 3);
        for (said, expected) in [(At(4), Some((1, 0))), (Nothing, Some((2, 100))), (At(4), None)] {
            assert_eq!(restart(&restarts.decide(0, ended(KILLED), said)), expected, "{said:?}");
        }
    }

    #[test]
    fn nothing_starts_again_while_the_job_ends() {
        let mut restarts = Restarts::new(3, 5);
        restarts.end_job();
        assert_eq!(restarts.decide(2, ended(15), At(1)), RankDecision::EndJob(failure(2, &[15])));
        let mut restarts = Restarts::new(2, 2);
        assert!(restart(&restarts.decide(0, ended(KILLED), Nothing)).is_some());
        assert!(matches!(restarts.decide(0, ended(KILLED), Nothing), RankDecision::EndJob(_)));
        assert_eq!(
            restarts.decide(1, ended(STATUS_7), Nothing),
            RankDecision::EndJob(failure(1, &[STATUS_7]))
        );
        assert_eq!(restarts.decide(1, ended(0), Nothing), RankDecision::Done);
    }

    #[test]
    fn who_fails_when_the_others_have_left_does_not_start_again() {
        let mut restarts = Restarts::new(3, 9);
        assert_eq!(restarts.decide(0, ended(0), Complete), RankDecision::Done);
        assert!(restart(&restarts.decide(1, ended(KILLED), Complete)).is_some(), "rank 2 is there");
        assert_eq!(restarts.waits_in_vain(|_| Nothing), None);
        restarts.decide(2, ended(0), Complete);
        assert_eq!(restarts.waits_in_vain(|_| Complete), None, "it has met them");
        let left = RankFailure { others_have_left: true, ..failure(1, &[KILLED]) };
        assert_eq!(restarts.waits_in_vain(|_| At(7)).as_ref(), Some(&left));
        let text = left.to_string();
        assert!(text.contains("after the other ranks had left"), "{text}");
        let left = RankFailure { others_have_left: true, ..failure(1, &[KILLED, KILLED]) };
        assert_eq!(restarts.decide(1, ended(KILLED), Nothing), RankDecision::EndJob(left));
    }

    #[test]
    fn ranks_that_note_no_end_start_again_on_their_own() {
        let mut restarts = Restarts::new(2, 9);
        restarts.decide(0, ended(0), At(3));
        assert!(restart(&restarts.decide(1, ended(KILLED), Complete)).is_some());
        assert_eq!(restarts.waits_in_vain(|_| Nothing), None);
        let mut alone = Restarts::new(1, 9);
        assert!(restart(&alone.decide(0, ended(KILLED), Complete)).is_some());
        assert_eq!(alone.waits_in_vain(|_| Nothing), None);
    }

    /// All histories of up to six ends of two ranks, each with success, a failure, or a failure after progress.
    #[test]
    fn a_rank_fails_so_often_in_a_row_if_and_only_if_the_job_ends() {
        const EVENTS: u32 = 6;
        for max_attempts in 1..=3 {
            for history in 0..6_u32.pow(EVENTS) {
                let mut restarts = Restarts::new(2, max_attempts);
                let mut in_a_row = [0; 2];
                let mut starts = [0; 2];
                let mut version = 0;
                for event in (0..EVENTS).map(|at| history / 6_u32.pow(at) % 6) {
                    let (rank, kind) = ((event % 2) as usize, event / 2);
                    version += u64::from(kind == 2);
                    let progress = if kind == 2 { At(version) } else { Nothing };
                    let status = ended(if kind == 0 { 0 } else { KILLED });
                    in_a_row[rank] = if kind == 2 { 1 } else { in_a_row[rank] + u32::from(kind == 1) };
                    let ends = kind != 0 && in_a_row[rank] >= max_attempts;
                    match restarts.decide(rank, status, progress) {
                        RankDecision::Done => assert_eq!(kind, 0),
                        RankDecision::Restart { attempt, .. } => {
                            starts[rank] += 1;
                            assert!(!ends && attempt == starts[rank]);
                        }
                        RankDecision::EndJob(failed) => {
                            assert!(ends && failed.endings.len() == max_attempts as usize);
                            break;
                        }
                    }
                }
            }
        }
    }
}
