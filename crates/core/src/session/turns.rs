//! The order in which a rank's messages leave over links: to one receiver after the other, from one sender after the other.
//!
//! Where every rank sends to several at once, several send to each: their packets meet before its link and stand in line
//! there, and what one of them has lost to another its partners wait for. So a rank's sends are put into **turns**, runs
//! of messages to one receiver, in the order of its program. A turn covers a **lap**, as many segments as are in flight:
//! a message waits until all those of earlier turns and laps have left.
//!
//! Ranks that are a little early would still meet those that are a little late, and a line before a link, once there, stays
//! as long as the link is busy. So where in each turn every rank has one sender at most ([`arrivals`]), a turn begins when
//! its receiver has **cleared** it, as all of earlier turns is there, and when all of its sender's turn before is **taken**:
//! two messages never share a link.
//!
//! Why that cannot deadlock: turns keep the order of the program's sends, and of every schedule that runs in turns it is
//! proved that it completes in that order ([`Verified::sends_in_order`]). So its steps can be numbered such that each waits
//! for lower ones only, and so do a lap's segments of each step. And no message of a lap waits for a later one: a segment
//! begins when the one a lap before is over, of which every rank tells the others at a lap's end at the latest. As to
//! waiting to be cleared: of all ranks that have not ended, look at those in the earliest turn. What they wait to be taken or
//! to be there was sent in turns before, by all ranks in full, and is received whatever else waits. So they wait for data
//! only, and none for what is sent in a later turn: they are among themselves, and would wait for each other without any
//! clearing, too, against what was proved.

use crate::{
    group::Rank,
    schedule::{Program, Step},
    verify::Verified,
};
use alloc::{
    collections::{BTreeMap, VecDeque},
    vec::Vec,
};

/// The turns in which one rank sends, or in which it receives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Turns {
    /// Per number: with whom, and how many messages a segment has in it.
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
    /// How many of its messages are left; none when all laps are over.
    left: u32,
    segments: u32,
    lap: u32,
}

/// How far a rank has sent in its turns, and who has to say what before it goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sending {
    /// The turn in which it sends.
    pub line: Line,
    /// The last one before that, and to whom.
    before: Option<(Rank, Turn)>,
}

/// Word of a rank that receives in turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Words {
    /// Who may send now, and up to which of its turns.
    pub clear: Option<(Rank, Turn)>,
    /// Whose messages are all there, up to which turn.
    pub taken: Option<(Rank, Turn)>,
}

/// What a rank has heard of another one: up to which turn it may send to it, and up to which all is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// Up to which turn it may send.
    pub clear: Option<Turn>,
    /// Up to which turn all that it sent is there.
    pub taken: Option<Turn>,
}

/// To whom the messages of a program go and in which turn, in the order of the program. A turn ends where the receiver
/// changes, or where something is received before the next message.
pub fn numbered(program: &Program) -> Vec<(Rank, u32)> {
    let mut messages: Vec<(Rank, u32)> = Vec::new();
    let mut received = false;
    for step in program.steps() {
        received |= program.received(step).next().is_some();
        let Step::Send { to, .. } = *step else { continue };
        for &rank in program.lanes(to) {
            let number = messages.last().map_or(0, |&(last, number)| {
                let goes_on = last == rank && !received;
                number + u32::from(!goes_on)
            });
            received = false;
            messages.push((rank, number));
        }
    }
    messages
}

/// The messages of all lanes by their turns: from whom to whom, the receiver first.
type Lanes = BTreeMap<(Rank, Rank), VecDeque<u32>>;

/// The turns in which rank `me` receives over links, if all ranks can clear them: in each turn every rank receives from one
/// other at most, and a rank that has received what was sent in one sends nothing of an earlier one. And if that is worth it:
/// there are ranks that change to another one, but none does so more often in a lap than `most_changes`. With how often that
/// is. What goes between `mates`, who share memory, is in no turn.
pub fn arrivals(
    verified: &Verified,
    me: Rank,
    mates: impl Fn(Rank, Rank) -> bool,
    most_changes: usize,
) -> Option<(Turns, usize)> {
    let schedule = verified.schedule();
    let (mut lanes, mut changes) = (Lanes::new(), 0);
    for rank in 0..schedule.ranks() {
        let mut turns = Turns::default();
        for (to, number) in numbered(&schedule.program(rank)).into_iter().filter(|(to, _)| !mates(rank, *to))
        {
            lanes.entry((to, rank)).or_default().push_back(number);
            turns.add(to, number);
        }
        changes = changes.max(turns.changes());
        if changes > most_changes {
            return None;
        }
    }
    let mut mine = Turns::default();
    for ((_, from), numbers) in lanes.range((me, 0)..=(me, Rank::MAX)) {
        numbers.iter().for_each(|number| mine.add(*from, *number));
    }
    let mut ranks = 0..schedule.ranks();
    let clears = changes > 0 && has_one_sender_each(&lanes);
    let keeps_order = |rank| keeps_order(rank, &schedule.program(rank), &mates, &mut lanes);
    (clears && ranks.all(keeps_order)).then_some((mine, changes))
}

/// Whether every rank receives from one other at most in each turn.
fn has_one_sender_each(lanes: &Lanes) -> bool {
    let mut senders = BTreeMap::new();
    lanes.iter().all(|((to, from), numbers)| {
        numbers.iter().all(|number| *senders.entry((*to, *number)).or_insert(*from) == *from)
    })
}

/// Whether a rank that has received what was sent in a turn sends nothing of an earlier one. Takes what it receives off
/// `lanes`.
fn keeps_order(rank: Rank, program: &Program, mates: impl Fn(Rank, Rank) -> bool, lanes: &mut Lanes) -> bool {
    let mut sent = numbered(program).into_iter();
    let mut latest = None;
    for step in program.steps() {
        for from in program.received(step) {
            latest = latest.max(lanes.get_mut(&(rank, from)).and_then(VecDeque::pop_front));
        }
        if let Step::Send { to, .. } = *step {
            let is_earlier = |(to, number)| latest > Some(number) && !mates(rank, to);
            if sent.by_ref().take(program.lanes(to).len()).any(is_earlier) {
                return false;
            }
        }
    }
    true
}

impl Turns {
    /// One more message per segment, with `rank`, in turn `number`.
    pub fn add(&mut self, rank: Rank, number: u32) {
        let number = number as usize;
        if self.runs.len() <= number {
            self.runs.resize(number + 1, (rank, 0));
        }
        let run = &mut self.runs[number];
        *run = (rank, run.1 + 1);
    }

    /// How often the other one changes in a lap, and from its end to the next one's beginning.
    pub fn changes(&self) -> usize {
        let ranks: Vec<Rank> = self.runs.iter().filter(|run| run.1 > 0).map(|run| run.0).collect();
        let next = ranks.iter().cycle().skip(1);
        ranks.iter().zip(next).filter(|(rank, next)| rank != next).count()
    }
}

impl Sending {
    /// Before the first message.
    pub fn new(line: Line) -> Self {
        Self { line, before: None }
    }

    /// One of this turn's messages has left.
    pub fn left(&mut self, turns: &Turns) {
        let to = self.line.with(turns);
        if let Some(ended) = self.line.pass(turns) {
            self.before = to.map(|rank| (rank, ended));
        }
    }

    /// Whose word this turn waits for, where turns are cleared: that all of the turn before is there, or that it may begin.
    /// `heard` is what a rank has said, nothing of one that says no more.
    pub fn awaited(self, turns: &Turns, heard: impl Fn(Rank) -> Option<Heard>) -> Option<Rank> {
        let to = self.line.with(turns)?;
        let (last, ended) = self.before.filter(|(last, _)| *last != to).unzip();
        let not_taken = last.filter(|last| heard(*last).is_some_and(|heard| heard.taken < ended));
        let not_clear = heard(to).is_some_and(|heard| heard.clear < Some(self.line.turn()));
        not_taken.or(not_clear.then_some(to))
    }
}

impl Line {
    /// The first turn of an operation of so many segments, of which `lap` are in flight.
    pub fn new(turns: &Turns, segments: u32, lap: u32) -> Self {
        let mut line = Self { turn: Turn::default(), left: 0, segments, lap };
        line.left = line.messages(turns);
        line.skip_empty(turns);
        line
    }

    /// What to say before anything has come.
    pub fn welcome(self, turns: &Turns) -> Words {
        let clear = self.with(turns).map(|rank| (rank, self.last_with_same(turns)));
        Words { clear, taken: None }
    }

    /// A message of the rank whose turn it is has come: what to say. A sender whose next turn is to this rank, too, need not
    /// know that all of the last one is there.
    pub fn came(&mut self, turns: &Turns) -> Words {
        let from = self.with(turns);
        let (Some(ended), Some(rank)) = (self.pass(turns), from) else { return Words::default() };
        if self.with(turns) != from {
            return Words { taken: Some((rank, ended)), ..self.welcome(turns) };
        }
        let goes_on = self.turn == Turn { number: ended.number + 1, ..ended };
        Words { clear: None, taken: (!goes_on).then_some((rank, ended)) }
    }

    /// Which turn it is.
    pub fn turn(self) -> Turn {
        self.turn
    }

    /// With whom it is; nobody when all laps are over.
    pub fn with(self, turns: &Turns) -> Option<Rank> {
        turns.runs.get(self.turn.number as usize).filter(|_| self.left > 0).map(|run| run.0)
    }

    /// The last turn with the same rank before any with another.
    fn last_with_same(mut self, turns: &Turns) -> Turn {
        let (with, mut last) = (self.with(turns), self.turn);
        while self.left > 0 && self.with(turns) == with {
            last = self.turn;
            self.next(turns);
        }
        last
    }

    /// One of this turn's messages is dealt with: after the last it is the next one's turn. Returns the turn that has ended.
    pub fn pass(&mut self, turns: &Turns) -> Option<Turn> {
        let turn = self.turn;
        self.left = self.left.saturating_sub(1);
        if self.left > 0 {
            return None;
        }
        self.next(turns);
        Some(turn)
    }

    fn next(&mut self, turns: &Turns) {
        self.turn.number += 1;
        self.left = self.messages(turns);
        self.skip_empty(turns);
    }

    fn skip_empty(&mut self, turns: &Turns) {
        while self.left == 0 && self.in_lap() > 0 && !turns.runs.is_empty() {
            if self.turn.number as usize >= turns.runs.len() {
                self.turn = Turn { lap: self.turn.lap + 1, number: 0 };
            } else {
                self.turn.number += 1;
            }
            self.left = self.messages(turns);
        }
    }

    /// How many segments the lap has; none after the last.
    fn in_lap(self) -> u32 {
        self.segments.saturating_sub(self.turn.lap.saturating_mul(self.lap)).min(self.lap)
    }

    /// How many messages the turn has in all.
    fn messages(self, turns: &Turns) -> u32 {
        turns.runs.get(self.turn.number as usize).map_or(0, |(_, messages)| messages * self.in_lap())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        algorithm::{Algorithm, Layout},
        collective::Collective,
        group::Group,
        verify::verify,
    };

    fn turns(of: &[(Rank, u32)]) -> Turns {
        let mut turns = Turns::default();
        of.iter().for_each(|(rank, number)| turns.add(*rank, *number));
        turns
    }

    #[test]
    fn turns_follow_each_other_lap_by_lap() {
        // None has the number 1.
        let turns = turns(&[(7, 0), (7, 0), (3, 2), (7, 3)]);
        // Five segments, of which three are in flight: a whole lap, and two segments more.
        let mut line = Line::new(&turns, 5, 3);
        for (lap, segments) in [(0, 3), (1, 2)] {
            for (number, with, messages) in [(0, 7, 2), (2, 3, 1), (3, 7, 1)] {
                let turn = Turn { lap, number };
                for left in (0..messages * segments).rev() {
                    assert_eq!((line.turn(), line.with(&turns)), (turn, Some(with)));
                    assert_eq!(line.pass(&turns), (left == 0).then_some(turn));
                }
            }
        }
        assert_eq!(line.with(&turns), None);
        assert_eq!(Line::new(&Turns::default(), 5, 3).with(&turns), None);
    }

    #[test]
    fn a_rank_that_comes_again_is_cleared_for_all_of_its_turns_in_a_row() {
        let turns = turns(&[(7, 0), (3, 1), (3, 2), (7, 4)]);
        let mut line = Line::new(&turns, 4, 2);
        let turn = |lap, number| Turn { lap, number };
        let mut cleared = Vec::new();
        while line.with(&turns).is_some() {
            cleared.push((line.turn(), line.last_with_same(&turns)));
            line.pass(&turns);
            line.pass(&turns);
        }
        let ends = [(0, 0), (1, 2), (2, 2), (4, 0)];
        let expected = (0..2).flat_map(|lap| ends.map(|(from, to)| (turn(lap, from), turn(lap, to))));
        let mut expected: Vec<_> = expected.collect();
        // From a lap's end it goes on into the next.
        expected[3].1 = turn(1, 0);
        expected[7].1 = turn(1, 4);
        assert_eq!(cleared, expected);
        assert_eq!(turns.changes(), 2);
    }

    /// The turns in which rank 0 receives.
    fn arriving(algorithm: &str, workers: u32, most_changes: usize) -> Option<(Turns, usize)> {
        on_hosts(algorithm, &(0..workers).collect::<Vec<_>>(), most_changes)
    }

    fn on_hosts(algorithm: &str, hosts: &[u32], most_changes: usize) -> Option<(Turns, usize)> {
        let (algorithm, group): (Algorithm, _) =
            (algorithm.parse().unwrap(), Group::of_size(hosts.len() as u32));
        let layout = Layout { reducers: 0, hosts };
        let schedule = algorithm.schedule(Collective::AllReduce, &group, &layout).unwrap();
        let verified = verify(schedule, Collective::AllReduce, &group).unwrap();
        let mates = |one: Rank, other: Rank| hosts[one as usize] == hosts[other as usize];
        arrivals(&verified, 0, mates, most_changes)
    }

    #[test]
    fn halving_and_doubling_changes_partners_once_for_each_of_its_levels() {
        // Two chunks of one partner, one of the next and its half of the result, then back.
        let halves = turns(&[(1, 0), (1, 0), (2, 1), (2, 2), (1, 3), (1, 3)]);
        assert_eq!(arriving("radix(2,2)", 4, 2), Some((halves, 2)));
        assert_eq!(arriving("radix(2,2)", 4, 1), None);
        assert_eq!(arriving("radix(2,2,2)", 8, 100).map(|(_, changes)| changes), Some(4));
        assert_eq!(arriving("radix", 3, 4), Some((turns(&[(2, 0), (1, 1), (2, 2), (1, 3)]), 4)));
    }

    #[test]
    fn only_what_goes_over_links_changes_partners() {
        let changes = |algorithm, hosts: &[u32]| on_hosts(algorithm, hosts, 100).map(|(_, changes)| changes);
        // One partner on the other host, or two in turn, to and fro.
        assert_eq!(changes("radix(4,2)", &[0, 0, 0, 0, 1, 1, 1, 1]), None);
        assert_eq!(
            changes("radix(4,4)", &[0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]),
            changes("radix", &[0, 1, 2, 3])
        );
        assert_eq!(changes("radix(2,2,2)", &[0, 0, 1, 1, 2, 2, 3, 3]), changes("radix(2,2)", &[0, 1, 2, 3]));
        let (turns, _) = on_hosts("radix(2,2,2)", &[0, 0, 1, 1, 2, 2, 3, 3], 100).unwrap();
        assert!(turns.runs.iter().all(|(rank, messages)| *messages == 0 || *rank != 1));
    }

    #[test]
    fn turns_in_which_a_rank_has_two_senders_are_not_cleared() {
        assert_eq!(arriving("star", 4, 100), None);
    }
}
