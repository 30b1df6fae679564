//! The choice of an algorithm, with its reason in words.
//!
//! The choice is a pure function of facts on which all ranks agree, so all ranks make the same one. If constants of the
//! machines are known, from a calibration or from round trips, [`price()`](price()) decides; see [`predicted`].
//! Otherwise sizes decide. For an all-reduce of K bytes with N workers, this is the first line that holds:
//!
//! | when | algorithm |
//! |---|---|
//! | one is forced | that one; hierarchical only where the hosts allow it |
//! | N is 1 | `radix`, which then only finishes the input |
//! | N at most [`ONE_SHOT_RANKS`] and N K at most [`ONE_SHOT_BYTES`]; or on one host N K at most [`ONE_SHOT_BYTES_HERE`] and K at most [`ONE_SHOT_MESSAGE`] | `one_shot` |
//! | more workers, all of them on one host, and N K at most [`STAR_BYTES`] | `star` |
//! | K at most [`DOUBLING_BYTES`], but for [`ONE_SHOT_RANKS`] or fewer on one host | `doubling` |
//! | K is at least [`REDUCTION_SERVER_BYTES`] and the busiest link carries less with reducers than without | `reduction_server`, or `hierarchical(radix,reduction_server)` if that leaves no more and each of its chunks has at least [`HOST_CHUNK_BYTES`]; between lone workers `mixed`, if it leaves a twentieth less than these |
//! | several workers on a host, each host's a whole node of the canonical tree, if that leaves no more to the busiest link | `radix`, a host's workers in one stage, then hosts two by two |
//! | several workers on a host, each host's consecutive, but some host's no whole node, or hosts that differ in size; if that leaves less than the other lines | `hierarchical(radix,radix)`, which sends a partial sum for each piece of a host |
//! | each worker on a host of its own, N even, K at least N times [`PAIR_BYTES`], likewise | `radix`, two by two as long as N can be halved, then the rest |
//! | N at most [`SHARDED_RANKS`] | `radix`, a single stage |
//! | else | `radix` with factors of [`FACTOR`] |
//!
//! The busiest link carries the following each way, with N workers on H hosts, m workers behind a host's link, and k
//! reducers behind one link each. Without reducers it is 2 m (N-m)/N K in a single stage of `radix`, and 2 (H-1)/H K if
//! hosts sum first and partial sums are as wide as elements. With reducers it is m K at a worker's host and N/k K at a
//! reducer's, or, if hosts sum first, K and H/k K. So as many reducers as hosts nearly halve it, and fewer than about
//! half as many plus 1 are not worth it. Workers that all share a host need no link.
//!
//! Hosts in pieces, of three workers for example, send one partial sum for each piece: with p to a host (p + 1) (H-1)/H K.
//!
//! Scatter and gather are chosen each by itself: lone workers whose partial sums are wider than their inputs scatter in a
//! single stage and gather two by two.
//!
//! Members have several inputs if their shards are several nodes of the canonical tree. They take `one_shot` and `star`
//! by the same bounds, with the number of all inputs in place of N. Otherwise they take `reduction_server` or a single
//! stage of `radix`, whichever puts less on the busiest link.
//!
//! If the links between workers are known, an all-reduce of at least [`LINKED_BYTES`] whose algorithm was not forced
//! can take `trees` or `radix` in other stages. It does so if their programs put less on the slowest link.
//!
//! If the ports of hosts are known, they decide instead of the links between workers. If they differ by more than a
//! sixteenth, such an all-reduce takes an algorithm by shares, provided that it reduces the time of the busiest port by
//! at least 3 %. The same holds between hosts with unequal numbers of ranks, or of nodes of the canonical tree. Unknown
//! ports are taken as equal. If sites are known, their uplinks are such ports, `sites` is a candidate, and
//! reduce_scatter and all_gather choose in the same way.
//!
//! If messages are coded, an all-reduce takes the coded form of `reduction_server` if there are reducers, otherwise the
//! coded form of `radix`.
//!
//! Reduce and broadcast with more than two workers on several hosts, of at least [`LINKED_BYTES`] and N times
//! [`SPREAD_BYTES`], take the algorithm that puts least on the busiest link. The candidates are `chain`, for a
//! broadcast of at least N times [`CHAIN_BYTES`]; `radix` in a single stage, for N at most [`SHARDED_RANKS`]; and
//! `tree`. Others take `tree`. reduce_scatter and all_gather take `radix`, in stages as above; gather, scatter and
//! all_to_all `one_shot`; a barrier `one_shot` for N at most [`ONE_SHOT_RANKS`], else `star` on one host and `doubling`
//! on several.

pub mod advice;
mod candidates;
mod choose;
mod coded;
mod counted;
mod dealing;
pub mod files;
pub mod fitting;
mod guidance;
mod known_ports;
mod linked;
mod port_loads;
mod ports;
pub mod predicted;
mod price;
mod reckoned;
mod rooted;
mod rules;
mod served;
mod several;
mod shares;
mod size;
mod stages;
mod walked;
mod worth;

pub use choose::choose;
pub use counted::busiest_link;
pub use dealing::{ChosenRuns, choose_runs};
pub use guidance::Guidance;
pub use linked::missing_link;
pub use price::{PriceBasis, price};
pub use rules::{PlanRules, RULED, RULES_BYTES, RulesError};
pub use worth::{automatic, compare_codecs};

use crate::algorithm::Algorithm;
use crate::codec::Codec;
use crate::collective::Collective;
use crate::element::{DType, ReduceOp};
use crate::group::Group;
use crate::topology::{LinkMatrix, Ports};
use alloc::string::String;

/// The smallest buffer, in bytes, for which the load of links matters more than the number of messages.
pub const LINKED_BYTES: u64 = 64 << 10;

/// The most ranks that all send to all in one shot.
pub const ONE_SHOT_RANKS: u32 = 8;

/// The most bytes, in all ranks' inputs together, that one shot is for: one rank receives as many.
pub const ONE_SHOT_BYTES: u64 = 4 << 10;

/// The same inside a host, because a message costs little there.
pub const ONE_SHOT_BYTES_HERE: u64 = 64 << 10;

/// The largest message, in bytes, of one shot inside a host: larger ones do not go with their frames.
pub const ONE_SHOT_MESSAGE: u64 = 16 << 10;

/// The most bytes, in all ranks' inputs together, that one rank of a host folds for all if they are too many for one shot.
pub const STAR_BYTES: u64 = 1 << 20;

/// The largest buffer, in bytes, for which few rounds matter more than few bytes.
pub const DOUBLING_BYTES: u64 = 32 << 10;

/// The smallest buffer, in bytes, that is worth the way to the reducers and back.
pub const REDUCTION_SERVER_BYTES: u64 = 256 << 10;

/// The least bytes of a chunk for which hosts sum before reducers do. A buffer has as many chunks as workers on a host
/// times reducers. With smaller chunks, it has too few pieces to overlap the ways up and down.
pub const HOST_CHUNK_BYTES: u64 = 128 << 10;

/// The least bytes of the buffer for each worker that are worth a round more for each halving of their number.
pub const PAIR_BYTES: u64 = 8 << 10;

/// The least bytes of the buffer for each worker that are worth it for a reduce or a broadcast to go through all ranks.
pub const SPREAD_BYTES: u64 = 8 << 10;

/// The least bytes of the buffer for each worker that are worth it for a broadcast to go along all of them, one after the other.
pub const CHAIN_BYTES: u64 = 256 << 10;

/// The most ranks that scatter and gather in a single stage, each with every other.
pub const SHARDED_RANKS: u32 = 64;

/// The factor of each stage above [`SHARDED_RANKS`] ranks.
pub const FACTOR: u32 = 8;

/// The call, and the machines.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The collective.
    pub collective: Collective,
    /// The size of the whole buffer in bytes: the larger of a worker's input and output.
    pub bytes: u64,
    /// How many times as wide as an element a partial sum is: 1, except for 16-bit floats and averages of integers.
    pub widening: u32,
    /// The workers.
    pub group: &'a Group,
    /// How many reducers the roster has.
    pub reducers: u32,
    /// The host of each worker, as in [`Layout::hosts`](crate::algorithm::Layout::hosts).
    pub hosts: &'a [u32],
    /// The user's choice.
    pub forced: Option<&'a Algorithm>,
    /// How messages are coded, if they are: of an all-reduce of f32.
    pub codec: Codec,
    /// The links between the workers, as in [`Layout::links`](crate::algorithm::Layout::links).
    pub links: Option<&'a LinkMatrix>,
    /// The ports of the workers' hosts, by worker. They decide instead of the links, unless a link is slower than its
    /// ports.
    pub ports: Option<&'a Ports>,
}

impl<'a> Request<'a> {
    /// A call with `count` elements, as [`Collective::input_elements`] counts them, in a group of workers about which
    /// nothing else is known: no reducers, no hosts, nothing forced.
    pub fn of_elements(
        collective: Collective,
        dtype: DType,
        op: ReduceOp,
        count: usize,
        group: &'a Group,
    ) -> Self {
        let parts = collective.given(group.size()).map_or(1, |_| u64::from(group.size()));
        Self {
            collective,
            bytes: (count as u64).saturating_mul(dtype.bytes() as u64 * parts),
            widening: (dtype.accumulator(op).bytes() / dtype.bytes()) as u32,
            group,
            reducers: 0,
            hosts: &[],
            forced: None,
            codec: Codec::Plain,
            links: None,
            ports: None,
        }
    }
}

/// An algorithm, and why this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The algorithm; its [`schedule`](Algorithm::schedule) exists for the request.
    pub algorithm: Algorithm,
    /// The reason, as a sentence without a full stop.
    pub why: String,
}

/// Whether all workers are known to share a host.
fn is_one_host(request: &Request<'_>) -> bool {
    let Request { group, hosts, .. } = request;
    hosts.len() == group.size() as usize && hosts.windows(2).all(|pair| pair[0] == pair[1])
}
