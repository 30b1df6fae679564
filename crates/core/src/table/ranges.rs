//! How keys are cut over servers: each range of keys is one server's.

use super::row_keys::RowKeys;
use alloc::vec::Vec;
use core::ops::Range;

/// The keys 0 to `rows - 1`, cut into ranges of about equal length: range `i` is server `i`'s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ranges {
    rows: u64,
    servers: u32,
}

/// The keys of a request that are in one range, and their positions among all of its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangePiece {
    /// Whose range.
    pub range: u32,
    /// The keys.
    pub keys: RowKeys,
    /// Which of the request's keys they are, counted from 0.
    pub at: Range<usize>,
}

impl Ranges {
    /// The ranges of `rows` keys on `servers` servers. 0 servers are taken as 1.
    pub fn new(rows: u64, servers: u32) -> Self {
        Self { rows, servers: servers.max(1) }
    }

    /// How many there are: as many as servers. Some are empty if there are fewer keys.
    pub fn count(self) -> u32 {
        self.servers
    }

    /// The keys of a range.
    pub fn keys(self, range: u32) -> Range<u64> {
        self.begin(range)..self.begin(range + 1)
    }

    /// The first key of a range: as `i·rows / servers`, rounded down.
    fn begin(self, range: u32) -> u64 {
        (u128::from(self.rows) * u128::from(range) / u128::from(self.servers)) as u64
    }

    /// The range of a key below `rows`.
    pub fn of(self, key: u64) -> u32 {
        // The last range that begins at or before it: there is none before `i` where `key < begin(i)`.
        let guess = (u128::from(key) * u128::from(self.servers) / u128::from(self.rows)) as u32;
        (guess..self.servers).take_while(|range| self.begin(*range) <= key).last().unwrap_or(guess)
    }

    /// Cuts keys by ranges, into pieces of at most `most` keys; the keys are below `rows`.
    pub fn cut(self, keys: &RowKeys, most: usize) -> Vec<RangePiece> {
        let (mut pieces, mut at, most) = (Vec::new(), 0, most.max(1));
        while at < keys.len() {
            let range = self.of(keys.get(at));
            let end = self.begin(range + 1);
            let longest = (keys.len() - at).min(most);
            let inside = match keys {
                RowKeys::Run { first, .. } => (end - first - at as u64).min(longest as u64) as usize,
                RowKeys::Listed(keys) => keys[at..at + longest].partition_point(|key| *key < end),
            };
            pieces.push(RangePiece { range, keys: keys.part(at..at + inside), at: at..at + inside });
            at += inside;
        }
        pieces
    }
}
