//! The order in which a rank's messages leave over links: to one receiver after the other.
//!
//! Where every rank sends to several at once, several send to each: their packets meet before its link and queue there,
//! and what one of them has lost to another its partners wait for. So a rank's sends are put into **turns**, runs of
//! messages to one receiver, in the order of its program. A turn covers a **lap**, as many segments as are in flight: a
//! message waits until all those of earlier turns and laps have left.
//!
//! A turn begins when the one before has left. It does not wait until the receivers have taken that, and no receiver says
//! when a turn may begin.
//!
//! Why that cannot deadlock: turns keep the order of the program's sends, and of every schedule that runs in turns it is
//! proved that it completes in that order ([`Verified::sends_in_order`](crate::verify::Verified::sends_in_order)). So its
//! steps can be numbered such that each waits for lower ones only, and so do a lap's segments of each step. And no message
//! of a lap waits for a later one: a segment begins when the one a lap before is over, of which every rank tells the others
//! at a lap's end at the latest.
//!
//! Why no message overwrites an earlier one: turns have no part in that, the [window](super::lane::Window) has. Each message
//! of a program has a place of its own at its receiver, for each segment of a lap. So two messages of a lap never share a
//! place, whatever their turns are. Segment k takes the places of segment k - lap. Its sender begins it only when each
//! receiver has granted that segment, and a receiver grants a segment when it has used all its messages. A receiver refuses a
//! message of a segment that is not in its window, and a second one for a place. At the sender a message that has left is in
//! the kernel's memory, so the sender may write its source again. `crates/core/tests/segments` tries this: with grants no
//! message comes to a place that is in use, and without them some do.

use crate::{
    group::Rank,
    schedule::{Program, Step},
};
use alloc::vec::Vec;

/// The turns in which one rank sends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Turns {
    /// Per number: how many messages a segment has in it.
    messages: Vec<u32>,
}

/// A turn of an operation: its lap and its number within it. Earlier ones are less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Turn {
    /// Which lap.
    pub lap: u32,
    /// Which of its turns.
    pub number: u32,
}

/// How far a rank has sent in its turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sending {
    turn: Turn,
    /// How many of its messages have not left; none when all laps are over.
    unsent: u32,
    segments: u32,
    lap: u32,
}

/// The turn of each message of a program, in the order of the program. A turn ends where the receiver changes, or where
/// something is received before the next message.
pub fn numbered(program: &Program) -> Vec<u32> {
    let mut numbers = Vec::new();
    let mut last: Option<(Rank, u32)> = None;
    let mut received = false;
    for step in program.steps() {
        received |= program.received(step).next().is_some();
        let Step::Send { to, .. } = *step else { continue };
        for &rank in program.lanes(to) {
            let number = last.map_or(0, |(before, number)| number + u32::from(before != rank || received));
            received = false;
            numbers.push(number);
            last = Some((rank, number));
        }
    }
    numbers
}

impl Turns {
    /// One more message per segment in turn `number`.
    pub fn add(&mut self, number: u32) {
        let number = number as usize;
        if self.messages.len() <= number {
            self.messages.resize(number + 1, 0);
        }
        self.messages[number] += 1;
    }
}

impl Sending {
    /// Before the first message of an operation of so many segments, of which `lap` are in flight.
    pub fn new(turns: &Turns, segments: u32, lap: u32) -> Self {
        let mut sending = Self { turn: Turn::default(), unsent: 0, segments, lap };
        sending.unsent = sending.messages(turns);
        sending.skip_empty(turns);
        sending
    }

    /// The turn in which it sends.
    pub fn turn(self) -> Turn {
        self.turn
    }

    /// One of this turn's messages has left: after the last the next turn begins.
    pub fn left(&mut self, turns: &Turns) {
        self.unsent = self.unsent.saturating_sub(1);
        if self.unsent == 0 {
            self.turn.number += 1;
            self.unsent = self.messages(turns);
            self.skip_empty(turns);
        }
    }

    fn skip_empty(&mut self, turns: &Turns) {
        while self.unsent == 0 && self.in_lap() > 0 && !turns.messages.is_empty() {
            if self.turn.number as usize >= turns.messages.len() {
                self.turn = Turn { lap: self.turn.lap + 1, number: 0 };
            } else {
                self.turn.number += 1;
            }
            self.unsent = self.messages(turns);
        }
    }

    /// How many segments the lap has; none after the last.
    fn in_lap(self) -> u32 {
        self.segments.saturating_sub(self.turn.lap.saturating_mul(self.lap)).min(self.lap)
    }

    /// How many messages the turn has in all.
    fn messages(self, turns: &Turns) -> u32 {
        turns.messages.get(self.turn.number as usize).map_or(0, |messages| messages * self.in_lap())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_follow_each_other_lap_by_lap() {
        let mut turns = Turns::default();
        // None has the number 1.
        [0, 0, 2, 3].into_iter().for_each(|number| turns.add(number));
        // Five segments, of which three are in flight: a whole lap, and two segments more.
        let mut sending = Sending::new(&turns, 5, 3);
        for (lap, segments) in [(0, 3), (1, 2)] {
            for (number, messages) in [(0, 2), (2, 1), (3, 1)] {
                for unsent in (1..=messages * segments).rev() {
                    assert_eq!((sending.turn(), sending.unsent), (Turn { lap, number }, unsent));
                    sending.left(&turns);
                }
            }
        }
        assert_eq!(sending.unsent, 0);
        assert_eq!(Sending::new(&Turns::default(), 5, 3).unsent, 0);
    }
}
