//! Which keys are asked for most.

use super::RowKeys;
use crate::session::status::HotKey;
use alloc::vec::Vec;

/// How many keys are counted at once. A key that is in more than one of so many requests is among them.
const COUNTED: usize = 256;
/// How many are shown.
const SHOWN: usize = 8;
/// One of so many keys is looked at, so that counting costs a push or a pull next to nothing.
const STRIDE: usize = 61;

/// Counts the keys of pushes and pulls in little memory: "space-saving" of Metwally, Agrawal and El Abbadi (ICDT 2005), of one key
/// in 61.
#[derive(Clone, Debug, Default)]
pub struct HotKeys {
    counts: Vec<Count>,
    /// How many keys were looked at.
    seen: u64,
    /// How many keys go by before the next is looked at.
    skip: usize,
}

#[derive(Clone, Copy, Debug)]
struct Count {
    key: u64,
    /// At most so often was it seen,
    most: u64,
    /// and less often by this at most.
    over: u64,
}

impl HotKeys {
    /// A request has these keys.
    pub fn count(&mut self, keys: &RowKeys) {
        while self.skip < keys.len() {
            self.see(keys.get(self.skip));
            self.skip += STRIDE;
        }
        self.skip -= keys.len();
    }

    fn see(&mut self, key: u64) {
        self.seen += 1;
        if let Some(count) = self.counts.iter_mut().find(|count| count.key == key) {
            count.most += 1;
        } else if self.counts.len() < COUNTED {
            self.counts.push(Count { key, most: 1, over: 0 });
        } else if let Some(least) = self.counts.iter_mut().min_by_key(|count| count.most) {
            *least = Count { key, most: least.most + 1, over: least.most };
        }
    }

    /// The keys that were certainly requested more often than others, the hottest first.
    pub fn hottest(&self) -> Vec<HotKey> {
        let least = self.seen / COUNTED as u64;
        let mut certain: Vec<HotKey> = self
            .counts
            .iter()
            .filter(|count| count.most - count.over > least.max(1))
            .map(|count| HotKey { key: count.key, share: share(count.most - count.over, self.seen) })
            .collect();
        certain.sort_by_key(|hot| (core::cmp::Reverse(hot.share), hot.key));
        certain.truncate(SHOWN);
        certain
    }
}

/// In millionths.
fn share(of: u64, all: u64) -> u32 {
    (u128::from(of) * 1_000_000 / u128::from(all.max(1))) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hot_key_is_found_among_a_million() {
        let mut hot = HotKeys::default();
        for round in 0..3000_u64 {
            // Key 7 is in each request, key 9 in every second; the rest are different each time.
            let mut keys: Vec<u64> = (0..20).map(|at| 100 + round * 20 + at).collect();
            keys.insert(0, 7);
            if round % 2 == 0 {
                keys.insert(1, 9);
            }
            hot.count(&RowKeys::Listed(keys.into()));
        }
        let found = hot.hottest();
        assert_eq!(found.iter().map(|hot| hot.key).collect::<Vec<_>>(), [7, 9]);
        let of = |at: usize, share: f64| (f64::from(found[at].share) / 1e6 - share).abs() < 0.01;
        assert!(of(0, 1.0 / 21.5) && of(1, 0.5 / 21.5), "{found:?}");
    }

    #[test]
    fn keys_of_which_none_is_hot_are_not_shown() {
        let mut hot = HotKeys::default();
        (0..1000).for_each(|round| hot.count(&RowKeys::Run { first: round * 50, count: 50 }));
        assert_eq!(hot.hottest(), []);
    }

    #[test]
    fn requests_of_one_key_are_counted() {
        let mut hot = HotKeys::default();
        (0..1000).for_each(|_| hot.count(&RowKeys::Listed([3].into())));
        assert_eq!(hot.hottest(), [HotKey { key: 3, share: 1_000_000 }]);
    }
}
