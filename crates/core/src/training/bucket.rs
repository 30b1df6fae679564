//! Gradients in buckets, as torch's DistributedDataParallel groups them from the second step on.

use crate::simulate::Picoseconds;
use alloc::{collections::BTreeMap, vec::Vec};

/// The gradient of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gradient {
    /// A number for its type: gradients of one bucket have one type.
    pub kind: u32,
    /// How long it is.
    pub bytes: u64,
    /// From the beginning of the backward pass until it is ready.
    pub ready: Picoseconds,
}

/// Gradients that are summed by one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// The type of its gradients.
    pub kind: u32,
    /// All of them together.
    pub bytes: u64,
    /// From the beginning of the backward pass until its last gradient is ready.
    pub ready: Picoseconds,
}

impl From<Gradient> for Bucket {
    fn from(Gradient { kind, bytes, ready }: Gradient) -> Self {
        Self { kind, bytes, ready }
    }
}

impl Bucket {
    /// The bucket of these gradients, which have one type; `None` of no gradients.
    pub fn of(gradients: impl IntoIterator<Item = Gradient>) -> Option<Self> {
        gradients.into_iter().map(Self::from).reduce(Self::with)
    }

    fn with(self, more: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(more.bytes),
            ready: self.ready.max(more.ready),
            kind: self.kind,
        }
    }
}

/// The cost of a bucket's sum if no other one is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BucketCost {
    /// From the call to the return on the last worker.
    pub time: Picoseconds,
    /// For how long the busiest thread or port is busy with it, at most `time`. Sums that are under way together share
    /// that thread or port, and hide the rest of `time`, such as latencies, behind each other.
    pub busy: Picoseconds,
    /// For how long it keeps cores busy on which workers compute: all threads of one computer together.
    pub cores: Picoseconds,
}

/// From how many bytes on a bucket is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketLimits {
    /// The first bucket of a type.
    pub first: u64,
    /// All others.
    pub others: u64,
}

impl BucketLimits {
    /// torch's, unless a program passes `bucket_cap_mb`: 1 MiB, so that sums begin early, then 25.
    pub const DEFAULT: Self = Self { first: 1 << 20, others: 25 << 20 };

    /// torch's, if a program passes `bucket_cap_mb`: one limit for all buckets.
    pub fn capped(bytes: u64) -> Self {
        Self { first: bytes, others: bytes }
    }
}

/// The positions of `gradients`, which are in the order of registration, sorted by arrival. If several arrive together
/// the last one comes first, because a backward pass goes from the last layer to the first.
pub fn by_arrival(gradients: &[Gradient]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..gradients.len()).rev().collect();
    order.sort_by_key(|place| gradients[*place].ready);
    order
}

/// The buckets of `gradients`, which stand in the order of registration, in the order in which they are summed.
///
/// The rule is torch's `compute_bucket_assignment_by_size` for gradients in the order of arrival. Each type has an open
/// bucket and limits of its own. A bucket is full when it has at least as many bytes as its limit, and no gradient is
/// cut. Buckets that are open at the end follow the full ones.
pub fn buckets(gradients: &[Gradient], limits: BucketLimits) -> Vec<Bucket> {
    struct Open {
        bucket: Option<Bucket>,
        limit: u64,
        began: usize,
    }
    let (mut full, mut open) = (Vec::new(), BTreeMap::<u32, Open>::new());
    for (turn, place) in by_arrival(gradients).into_iter().enumerate() {
        let more = Bucket::from(gradients[place]);
        let first = Open { bucket: None, limit: limits.first, began: turn };
        let of_kind = open.entry(more.kind).or_insert(first);
        if of_kind.bucket.is_none() {
            of_kind.began = turn;
        }
        let bucket = of_kind.bucket.take().map_or(more, |bucket| bucket.with(more));
        if bucket.bytes >= of_kind.limit {
            full.push(bucket);
            of_kind.limit = limits.others;
        } else {
            of_kind.bucket = Some(bucket);
        }
    }
    let mut left: Vec<Open> = open.into_values().collect();
    left.sort_by_key(|open| open.began);
    full.extend(left.into_iter().filter_map(|open| open.bucket));
    full
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gradient(kind: u32, bytes: u64, ready: Picoseconds) -> Gradient {
        Gradient { kind, bytes, ready }
    }

    fn sizes(gradients: &[Gradient], first: u64, others: u64) -> Vec<u64> {
        buckets(gradients, BucketLimits { first, others }).iter().map(|bucket| bucket.bytes).collect()
    }

    #[test]
    fn a_bucket_is_full_from_its_limit_on_and_no_gradient_is_cut() {
        let gradients = [gradient(0, 90, 4), gradient(0, 5, 3), gradient(0, 6, 2), gradient(0, 4, 1)];
        assert_eq!(sizes(&gradients, 10, 90), [10, 95]);
        assert_eq!(sizes(&gradients, 4, 12), [4, 101]);
        assert_eq!(sizes(&gradients, 1000, 1000), [105]);
        assert_eq!(sizes(&gradients, 1, 1), [4, 6, 5, 90]);
        assert_eq!(sizes(&[], 1, 1), [0; 0]);
    }

    #[test]
    fn buckets_are_ready_with_their_last_gradient_and_equal_moments_go_backwards() {
        let gradients = [gradient(0, 1, 7), gradient(0, 2, 7), gradient(0, 4, 3)];
        assert_eq!(by_arrival(&gradients), [2, 1, 0]);
        let found = buckets(&gradients, BucketLimits { first: 6, others: 100 });
        let ready: Vec<_> = found.iter().map(|bucket| (bucket.bytes, bucket.ready)).collect();
        assert_eq!(ready, [(6, 7), (1, 7)]);
    }

    #[test]
    fn each_type_has_buckets_and_limits_of_its_own() {
        let gradients =
            [gradient(1, 8, 5), gradient(0, 3, 4), gradient(1, 1, 3), gradient(0, 2, 2), gradient(1, 1, 1)];
        let kinds = |first, others| -> Vec<(u32, u64)> {
            let found = buckets(&gradients, BucketLimits { first, others });
            found.iter().map(|bucket| (bucket.kind, bucket.bytes)).collect()
        };
        assert_eq!(kinds(2, 100), [(0, 2), (1, 2), (0, 3), (1, 8)]);
        // What is open at the end stands in the order in which it was begun.
        assert_eq!(kinds(100, 100), [(1, 10), (0, 5)]);
    }
}
