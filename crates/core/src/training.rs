//! The time of a step of data-parallel training: a worker's computing, its gradients in buckets, and the cost of each
//! sum.
//!
//! The model is wait-free back-propagation (Zhang et al., Poseidon, USENIX ATC 2017; DistributedDataParallel of Li et
//! al., VLDB 2020). The sum of a bucket begins when its last gradient is ready, while the backward pass continues. The
//! part of the sums after the backward pass is exposed, and lengthens the step.
//!
//! [`buckets`] groups a step's gradients as torch does. [`timeline`] computes when each bucket is summed, given the
//! costs of sums. Costs come from outside, such as from [`simulate`](crate::simulate): this module knows no machine.
//! Times are whole picoseconds, so all machines come to the same ones.
//!
//! ```
//! use herringbone_core::training::{Bucket, BucketCost, TrainingStep, timeline};
//!
//! // 10 forward, 20 backward; two buckets, each of whose sums takes 8.
//! let step = TrainingStep { forward: 10, backward: 20, after: 0, cores: None };
//! let buckets = [(12, 100), (20, 100)].map(|(ready, bytes)| Bucket { kind: 0, bytes, ready });
//! let cost = |_: &Bucket| BucketCost { time: 8, busy: 8, cores: 0 };
//! let found = timeline(&step, &buckets, 1, cost);
//! assert_eq!((found.exposed, found.total), (8, 38));
//! ```

mod bucket;
mod cores;
mod overlap;

pub use bucket::{Bucket, BucketCost, BucketLimits, Gradient, buckets, by_arrival};
pub use cores::ComputingCores;
pub use overlap::{StepTimeline, SummedBucket, TrainingStep, timeline};
