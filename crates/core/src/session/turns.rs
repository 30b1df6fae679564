//! The order in which a rank's messages leave over links: to one receiver after the other.
//!
//! Where every rank sends to several at once, several send to each: their packets meet before its link and stand in line
//! there, and what one of them has lost to another its partners wait for. So a rank's sends are put into **turns**, runs
//! of messages to one receiver, in the order of its program. A turn covers a **lap**, as many segments as are in flight:
//! a message waits until all those of earlier turns and laps have left. In algorithms in which all ranks do the same at the
//! same time, as of halving and doubling, each link then has one sender at a time, and ranks fall into step by what they
//! wait for.
//!
//! Why that cannot deadlock: turns keep the order of the program's sends, and of every schedule that runs in turns it is
//! proved that it completes in that order ([`Verified::sends_in_order`](crate::verify::Verified::sends_in_order)). So its steps
//! can be numbered such that each waits for lower ones only, and so do a lap's segments of each step. And no message of a
//! lap waits for a later one: a segment begins when the one a lap before is over, of which every rank tells the others at a
//! lap's end at the latest.

use crate::group::Rank;
use alloc::vec::Vec;

/// The turns of one rank's program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Turns {
    /// Per turn: to whom, and how many messages a segment has in it.
    runs: Vec<(Rank, u32)>,
}

/// A turn of an operation: its lap and its number within it. Earlier ones are less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Turn {
    /// Which lap.
    pub lap: u32,
    /// Which of its turns.
    pub number: u32,
}

/// Whose turn it is in a running operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Line {
    turn: Turn,
    left: u32,
}

impl Turns {
    /// The program's next message goes to `to`. Returns the number of its turn.
    pub fn add(&mut self, to: Rank) -> u32 {
        match self.runs.last_mut() {
            Some((last, messages)) if *last == to => *messages += 1,
            _ => self.runs.push((to, 1)),
        }
        self.runs.len() as u32 - 1
    }
}

impl Line {
    /// The first turn of an operation of so many segments, of which `lap` are in flight.
    pub fn new(turns: &Turns, segments: u32, lap: u32) -> Self {
        let mut line = Self::default();
        line.left = line.messages(turns, segments, lap);
        line
    }

    /// Whose turn it is.
    pub fn turn(self) -> Turn {
        self.turn
    }

    /// One of this turn's messages has left: after the last it is the next one's turn.
    pub fn left(&mut self, turns: &Turns, segments: u32, lap: u32) {
        self.left = self.left.saturating_sub(1);
        if self.left > 0 {
            return;
        }
        self.turn.number += 1;
        if self.turn.number as usize >= turns.runs.len() {
            self.turn = Turn { lap: self.turn.lap + 1, number: 0 };
        }
        self.left = self.messages(turns, segments, lap);
    }

    /// How many messages the turn has in all; none after the last lap.
    fn messages(self, turns: &Turns, segments: u32, lap: u32) -> u32 {
        let begun = self.turn.lap.saturating_mul(lap);
        let in_lap = segments.saturating_sub(begun).min(lap);
        turns.runs.get(self.turn.number as usize).map_or(0, |(_, messages)| messages * in_lap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_follow_each_other_lap_by_lap() {
        let mut turns = Turns::default();
        let numbers = [7, 7, 3, 7].map(|to| turns.add(to));
        assert_eq!(numbers, [0, 0, 1, 2]);
        // Five segments, of which three are in flight: a whole lap, and two segments more.
        let mut line = Line::new(&turns, 5, 3);
        for (lap, segments) in [(0, 3), (1, 2)] {
            for (number, messages) in [(0, 2), (1, 1), (2, 1)] {
                for _ in 0..messages * segments {
                    assert_eq!(line.turn(), Turn { lap, number });
                    line.left(&turns, 5, 3);
                }
            }
        }
        assert_eq!(line.turn(), Turn { lap: 2, number: 0 });
    }
}
