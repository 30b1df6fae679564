//! The paths of arrows in one row of blocks: messages of one chunk in one round, between columns.
//!
//! A message between neighbours goes straight through the gap between them. Others use a level above the row. Messages from one
//! sender, or to one receiver, share a level and look like a bus. Buses with overlapping columns have different levels.

use herringbone::core::terms::TermHistory;
use std::collections::BTreeMap;

/// Columns from the left, one for each rank.
pub(super) type RankColumn = usize;

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Hop {
    pub(super) from: RankColumn,
    pub(super) to: RankColumn,
}

impl Hop {
    fn is_short(self) -> bool {
        self.from.abs_diff(self.to) == 1
    }
}

/// Messages that share a level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bus {
    /// The sender of all, or the receiver of all.
    pub(super) hub: RankColumn,
    /// The others, from left to right.
    pub(super) ends: Vec<RankColumn>,
    /// Whether the hub is the sender.
    pub(super) is_sent: bool,
    /// 0 is next to the row.
    pub(super) level: usize,
}

impl Bus {
    fn new(hub: RankColumn, mut ends: Vec<RankColumn>, is_sent: bool) -> Self {
        ends.sort_unstable();
        ends.dedup();
        Self { hub, ends, is_sent, level: 0 }
    }

    /// The hub, then the ends.
    pub(super) fn columns(&self) -> impl Iterator<Item = RankColumn> {
        [self.hub].into_iter().chain(self.ends.iter().copied())
    }

    /// The first and the last column.
    fn reach(&self) -> (RankColumn, RankColumn) {
        let (first, last) = (self.columns().min(), self.columns().max());
        (first.unwrap_or(self.hub), last.unwrap_or(self.hub))
    }

    fn overlaps(&self, other: &Self) -> bool {
        let ((first, last), (others_first, others_last)) = (self.reach(), other.reach());
        first <= others_last && others_first <= last
    }
}

/// The arrows of a row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Arrows {
    /// Between neighbours.
    pub(super) short: Vec<Hop>,
    pub(super) buses: Vec<Bus>,
}

impl Arrows {
    /// For the messages of a chunk that a step begins with; step 0 is the start.
    pub(super) fn of_step(history: &TermHistory, step: usize, chunk: u32) -> Self {
        let round = step.checked_sub(1).map(|round| &history.rounds()[round]);
        let messages = round.into_iter().flat_map(|round| &round.messages);
        let of_chunk = messages.filter(|message| message.chunk == chunk);
        Self::of(
            of_chunk.map(|sent| Hop { from: sent.from as RankColumn, to: sent.to as RankColumn }).collect(),
        )
    }

    /// For these messages, in any order.
    pub(super) fn of(mut hops: Vec<Hop>) -> Self {
        hops.sort_unstable();
        hops.dedup();
        let (mut sent, mut received) = (BTreeMap::new(), BTreeMap::new());
        for hop in &hops {
            *sent.entry(hop.from).or_insert(0) += 1;
            *received.entry(hop.to).or_insert(0) += 1;
        }
        let mut arrows = Self::default();
        let (mut of_sender, mut of_receiver) = (BTreeMap::new(), BTreeMap::<_, Vec<RankColumn>>::new());
        for hop in hops {
            if sent[&hop.from] > 1 && sent[&hop.from] >= received[&hop.to] {
                of_sender.entry(hop.from).or_insert_with(Vec::new).push(hop.to);
            } else if received[&hop.to] == 1 && hop.is_short() {
                arrows.short.push(hop);
            } else {
                of_receiver.entry(hop.to).or_default().push(hop.from);
            }
        }
        let sent = of_sender.into_iter().map(|(hub, ends)| Bus::new(hub, ends, true));
        let received = of_receiver.into_iter().map(|(hub, ends)| Bus::new(hub, ends, false));
        arrows.buses = sent.chain(received).collect();
        arrows.find_levels();
        arrows
    }

    /// The shortest next to the row, each as near as those before let it.
    fn find_levels(&mut self) {
        self.buses.sort_by_key(|bus| {
            let (first, last) = bus.reach();
            (last - first, first, bus.hub)
        });
        for at in 0..self.buses.len() {
            let (known, rest) = self.buses.split_at_mut(at);
            let taken = |level: &usize| known.iter().any(|bus| bus.level == *level && bus.overlaps(&rest[0]));
            rest[0].level = (0..).find(|level| !taken(level)).unwrap_or(0);
        }
    }

    /// Whether the arrow of a short hop lies above (-1) or below (1) the middle of the row: neighbours might swap chunks.
    pub(super) fn side(&self, hop: Hop) -> i32 {
        match self.short.contains(&Hop { from: hop.to, to: hop.from }) {
            true if hop.to > hop.from => -1,
            true => 1,
            false => 0,
        }
    }

    /// How many levels there are.
    pub(super) fn levels(&self) -> usize {
        self.buses.iter().map(|bus| bus.level + 1).max().unwrap_or(0)
    }

    /// How many buses have an end at a column, and how many of these come before bus number `bus`. Buses to the left come first, from
    /// the lowest, so that they do not cross.
    pub(super) fn port(&self, bus: usize, column: RankColumn) -> ArrowPort {
        let mut here: Vec<usize> =
            (0..self.buses.len()).filter(|at| self.buses[*at].columns().any(|of| of == column)).collect();
        here.sort_by_key(|at| {
            let bus = &self.buses[*at];
            let (first, last) = bus.reach();
            let level = bus.level as isize;
            match (column - first).cmp(&(last - column)) {
                std::cmp::Ordering::Greater => (0, level),
                std::cmp::Ordering::Equal => (1, level),
                std::cmp::Ordering::Less => (2, -level),
            }
        });
        ArrowPort { at: here.iter().position(|of| *of == bus).unwrap_or(0), of: here.len().max(1) }
    }
}

/// A place along the upper edge of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ArrowPort {
    /// Counted from the left.
    pub(super) at: usize,
    /// How many there are.
    pub(super) of: usize,
}

impl ArrowPort {
    /// Where it is between 0 and 1.
    pub(super) fn part(self) -> f64 {
        (self.at + 1) as f64 / (self.of + 1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hops(pairs: &[(RankColumn, RankColumn)]) -> Vec<Hop> {
        pairs.iter().map(|(from, to)| Hop { from: *from, to: *to }).collect()
    }

    fn bus(hub: RankColumn, ends: &[RankColumn], is_sent: bool, level: usize) -> Bus {
        Bus { hub, ends: ends.to_vec(), is_sent, level }
    }

    #[test]
    fn neighbours_need_no_level() {
        let arrows = Arrows::of(hops(&[(1, 0), (0, 1), (3, 2)]));
        assert_eq!((arrows.short.len(), arrows.levels()), (3, 0));
        assert_eq!(
            hops(&[(0, 1), (1, 0), (3, 2)]).into_iter().map(|hop| arrows.side(hop)).collect::<Vec<_>>(),
            [-1, 1, 0]
        );
    }

    #[test]
    fn messages_of_one_sender_or_to_one_receiver_share_a_level() {
        let gathered = Arrows::of(hops(&[(0, 2), (1, 2), (3, 2)]));
        assert_eq!(gathered.buses, [bus(2, &[0, 1, 3], false, 0)]);
        let sent = Arrows::of(hops(&[(2, 3), (2, 0)]));
        assert_eq!(sent.buses, [bus(2, &[0, 3], true, 0)]);
        // All to all: one level for each sender.
        let all = Arrows::of(hops(&[(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]));
        assert_eq!((all.buses.len(), all.levels(), all.short.len()), (3, 3, 0));
        assert!(all.buses.iter().all(|bus| bus.is_sent));
    }

    #[test]
    fn levels_that_overlap_are_apart_and_the_shortest_is_lowest() {
        let arrows = Arrows::of(hops(&[(0, 7), (1, 3), (4, 6), (3, 5)]));
        let levels: Vec<(RankColumn, usize)> = arrows.buses.iter().map(|bus| (bus.hub, bus.level)).collect();
        assert_eq!(levels, [(3, 0), (5, 1), (6, 0), (7, 2)]);
    }

    #[test]
    fn ports_of_a_block_are_apart() {
        let arrows = Arrows::of(hops(&[(0, 2), (2, 0), (2, 4), (6, 2)]));
        let ports: Vec<usize> = (0..arrows.buses.len())
            .filter(|at| arrows.buses[*at].columns().any(|column| column == 2))
            .map(|at| arrows.port(at, 2).at)
            .collect();
        let mut sorted = ports.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..ports.len()).collect::<Vec<_>>());
        assert_eq!(ArrowPort { at: 0, of: 1 }.part(), 0.5);
    }
}
