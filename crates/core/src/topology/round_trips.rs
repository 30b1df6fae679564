//! How long messages are on their way between hosts, as rank 0 sees it while a world forms.
//!
//! At that time each rank has a connection to rank 0. Its kernel knows the least round trip of that connection, from
//! TCP's own handshake on (RFC 9293; the minimum filter of BBR, Cardwell et al., 2016). So nothing more is sent, and
//! nothing waits. The latency between ranks other than 0 is not measured. It is taken to be the longest one to rank 0,
//! which is at least half of the longest of all.

use alloc::vec::Vec;

/// Round trips below these microseconds count as none: the thresholds of sizes are those of such networks, and a busy machine's kernel is
/// off by as much.
const NEAR_MICROSECONDS: u32 = 1_000;

/// The longest round trip that counts, in microseconds.
const MOST_MICROSECONDS: u32 = 10_000_000;

/// The round trips of a job's ranks to rank 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoundTrips {
    /// Of each rank, in microseconds; 0 for those on or near rank 0's host, and where none is known.
    microseconds: Vec<u32>,
}

impl RoundTrips {
    /// The round trips of ranks on these hosts, by rank, with rank 0 first; 0 means unknown. If none is known, the
    /// result is empty.
    ///
    /// Times are rounded down to quarters of powers of two, so that one network leads to one plan.
    pub fn new(microseconds: &[u32], hosts: &[u32]) -> Self {
        let here = hosts.first();
        let of_rank = |(rank, time): (usize, &u32)| match hosts.get(rank) == here {
            false if *time >= NEAR_MICROSECONDS => rounded((*time).min(MOST_MICROSECONDS)),
            _ => 0,
        };
        let all: Vec<u32> = microseconds.iter().enumerate().map(of_rank).collect();
        if all.iter().all(|time| *time == 0) { Self::default() } else { Self { microseconds: all } }
    }

    /// Round trips with these [`numbers`](Self::numbers) from another process. `None` if one is longer than the longest
    /// that is used.
    pub fn of_numbers(numbers: Vec<u32>) -> Option<Self> {
        numbers.iter().all(|time| *time <= MOST_MICROSECONDS).then_some(Self { microseconds: numbers })
    }

    /// The microseconds of each rank; empty if none is known.
    pub fn numbers(&self) -> &[u32] {
        &self.microseconds
    }

    /// The round trips of these ranks, in their order.
    #[must_use]
    pub fn among(&self, ranks: &[u32]) -> Self {
        if self.microseconds.is_empty() {
            return Self::default();
        }
        let of_rank = |rank: &u32| self.microseconds.get(*rank as usize).copied().unwrap_or(0);
        Self { microseconds: ranks.iter().map(of_rank).collect() }
    }

    /// Nanoseconds from a host to another among these ranks: half of the longest round trip. `None` if no rank of rank
    /// 0's host is among them, because then nothing was measured, or if all are on that host.
    pub fn nanoseconds(&self, ranks: &[u32]) -> Option<u64> {
        let times = ranks.iter().map(|rank| self.microseconds.get(*rank as usize).copied().unwrap_or(0));
        let least = times.clone().min()?;
        let most = times.max()?;
        (least == 0 && most > 0).then_some(u64::from(most) * 500)
    }
}

/// The largest quarter of a power of two that is no more.
fn rounded(time: u32) -> u32 {
    match time.checked_ilog2() {
        Some(power @ 2..) => time >> (power - 2) << (power - 2),
        _ => time,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_way_to_rank_0_is_taken_for_all() {
        let trips = RoundTrips::new(&[0, 1_400, 2_100, 40_100, u32::MAX], &[7, 7, 8, 9, 4]);
        assert_eq!(trips.numbers(), [0, 0, 2_048, 32_768, 8_388_608]);
        assert_eq!(trips.nanoseconds(&[0, 1, 2, 3]), Some(16_384_000));
        assert_eq!(trips.nanoseconds(&[1, 2]), Some(1_024_000), "rank 1 shares rank 0's host");
        assert_eq!(trips.nanoseconds(&[0, 1]), None, "they share a host");
        assert_eq!(trips.nanoseconds(&[2, 3]), None, "nobody has measured from one to the other");
        assert_eq!(trips.nanoseconds(&[]), None);
        assert_eq!(trips.among(&[3, 1]).nanoseconds(&[0, 1]), trips.nanoseconds(&[1, 3]));
        assert_eq!(RoundTrips::of_numbers(trips.numbers().to_vec()), Some(trips));
    }

    #[test]
    fn what_is_not_known_is_nothing() {
        assert_eq!(RoundTrips::new(&[0, 3_000], &[1, 1]), RoundTrips::default());
        assert_eq!(RoundTrips::new(&[0, 999, 400], &[1, 2, 3]), RoundTrips::default(), "hosts that are near");
        assert_eq!(RoundTrips::new(&[0, 0, 0], &[1, 2, 3]), RoundTrips::default());
        assert_eq!(RoundTrips::default().nanoseconds(&[0, 1, 2]), None);
        assert_eq!(
            RoundTrips::new(&[0, u32::MAX], &[1, 2])
                .numbers()
                .iter()
                .max()
                .map(|most| *most <= MOST_MICROSECONDS),
            Some(true)
        );
        assert!(RoundTrips::of_numbers(vec![0, MOST_MICROSECONDS]).is_some());
        assert_eq!(RoundTrips::of_numbers(vec![0, MOST_MICROSECONDS + 1]), None);
    }

    #[test]
    fn equal_networks_have_equal_times() {
        assert_eq!([0, 1, 3, 4, 5, 9, 10, 39, 40, 47].map(rounded), [0, 1, 3, 4, 5, 8, 10, 32, 40, 40]);
    }
}
