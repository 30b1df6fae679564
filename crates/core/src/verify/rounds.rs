//! The messages of each round: the messages whose chains have one length, and how many of them leave or reach the
//! busiest rank.

use crate::schedule::Rank;
use alloc::vec::Vec;

/// The most messages that are told apart. Schedules of more have many chunks for each rank, so that their segments' messages are
/// small in any case.
const MOST: usize = 1 << 20;

/// Between whom a message goes.
#[derive(Clone, Copy)]
pub(super) struct MessageEnds {
    pub(super) from: Rank,
    pub(super) to: Rank,
}

/// The messages of all rounds.
pub(super) struct Rounds {
    longest: u32,
    /// A round and a rank's port, for each message that passes it; none if there are too many.
    passed: Option<Vec<Passed>>,
    /// How many messages are told apart.
    most: usize,
}

/// The order is that of rounds, then of ports.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Passed {
    round: u32,
    rank: Rank,
    is_out: bool,
    /// Of how many chunks it is.
    span: u32,
}

impl Passed {
    /// When and where it passes.
    fn port(&self) -> (u32, Rank, bool) {
        (self.round, self.rank, self.is_out)
    }
}

impl Rounds {
    /// None yet, of messages of which each stands for so many.
    pub(super) fn new(each: u32) -> Self {
        Self { longest: 0, passed: Some(Vec::new()), most: MOST / each as usize }
    }

    /// Notes a message of so many chunks that is the last of a chain of so many messages.
    pub(super) fn note(&mut self, round: u32, span: u32, ends: impl FnOnce() -> MessageEnds) {
        self.longest = self.longest.max(round);
        let Some(passed) = &mut self.passed else { return };
        if passed.len() == 2 * self.most {
            self.passed = None;
            return;
        }
        let MessageEnds { from, to } = ends();
        passed.push(Passed { round, rank: from, is_out: true, span });
        passed.push(Passed { round, rank: to, is_out: false, span });
    }

    /// The longest chain.
    pub(super) fn longest(&self) -> u32 {
        self.longest
    }

    /// For each round the chunks that pass its busiest port, added up.
    pub(super) fn alone(mut self) -> Option<u32> {
        let mut passed = self.passed.take()?;
        passed.sort_unstable();
        let rounds = passed.chunk_by(|a, b| a.round == b.round);
        let busiest = |round: &[Passed]| {
            let ports = round.chunk_by(|a, b| a.port() == b.port());
            ports.map(|port| port.iter().map(|passed| passed.span).sum()).max().unwrap_or(0)
        };
        Some(rounds.map(busiest).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_takes_as_long_as_its_busiest_port() {
        let mut rounds = Rounds::new(1);
        // Three to one rank, side by side with one to another; then one that needs them, and sends to two.
        for (round, from, to) in [(1, 1, 0), (1, 2, 0), (1, 3, 0), (1, 4, 5), (2, 0, 1), (2, 0, 2)] {
            rounds.note(round, 1, || MessageEnds { from, to });
        }
        rounds.note(3, 7, || MessageEnds { from: 0, to: 1 });
        assert_eq!(
            (rounds.longest(), rounds.alone()),
            (3, Some(12)),
            "a message counts as often as it has chunks"
        );
        assert_eq!((Rounds::new(1).longest(), Rounds::new(1).alone()), (0, Some(0)));
    }

    #[test]
    fn what_is_too_much_is_not_counted() {
        let mut rounds = Rounds::new(1);
        (0..=MOST).for_each(|_| rounds.note(7, 1, || MessageEnds { from: 0, to: 1 }));
        assert_eq!((rounds.longest(), rounds.alone()), (7, None));
    }
}
