//! The algorithms: pure functions from a group and a collective to a schedule. One algorithm, one file.
//!
//! With N workers and K bytes a worker sends and receives:
//!
//! | name | serves | bytes | rounds | canonical |
//! |---|---|---|---|---|
//! | `radix(r1,r2,...)` | all_reduce | 2(N-1)/N K | 2 per stage | yes |
//! | | reduce_scatter, all_gather | (N-1)/N K | 1 per stage | yes |
//! | `radix` | reduce, broadcast | K | 2 | yes |
//! | `doubling` | all_reduce, barrier | ceil(log2(N)) K received, and sent for powers of two | ceil(log2(N)) | yes |
//! | `one_shot` | all_reduce, barrier, all_gather | (N-1) K | 1 | yes |
//! | | gather, scatter | (N-1) K at the root, K at each other rank, one way each | 1 | - |
//! | | all_to_all | (N-1)/N K | 1 | - |
//! | `star` | all_reduce, barrier | K up and K down each edge, N-1 edges at rank 0 | 2 | yes |
//! | `tree` | all_reduce, reduce, broadcast | K up and K down each edge | floor(log2(N)) up, as many down | yes |
//! | `reduction_server` | all_reduce | K; a reducer N K / reducers | 2 | yes |
//! | `hierarchical(inner,outer)` | all_reduce | one partial sum per host, or piece of one, on the slow links; with `reduction_server` K each way of a host's, a reducer hosts K / reducers | of its parts | yes |
//! | `hierarchical(radix,radix)` | reduce_scatter, all_gather | half of that | of its parts | yes |
//! | `sites(inner,outer,sizes)` | all_reduce, reduce_scatter, all_gather | likewise per site, or piece of one, on the uplinks of sites | of its parts | yes |
//! | `ring` | all_reduce | 2(N-1)/N K | 2(N-1) | for N = 2 |
//! | `mixed` | all_reduce | 2 n (n-1) / (n^2 + k n - 2 k) K each way of each of n workers and k reducers | 2 | yes |
//! | `weighted(plain,shares)` | all_reduce | by one stage of `radix` each way K + (N-2) x, where a rank folds x; K for x = 0 | as `plain` | yes |
//! | `chain` | all_reduce, reduce, broadcast | K up and K down each edge | N-1 up, as many down | for N = 2 |
//! | `double_tree` | all_reduce | K/2 up and down each edge of two trees | floor(log2(N)) + 1 up, as many down, at most | for N = 2 |
//! | `trees` | all_reduce, reduce, broadcast | K / trees up and down each edge of a tree, one tree for each rank | of its trees | yes |
//! | `trees(mxnet)`, `trees(best)`, `trees(throughput)` | all_reduce, reduce, broadcast | likewise | of its trees | for N = 2 |
//! | `file=PATH`, in the rules of a plan | all_reduce | of its schedule | of its schedule | yes |
//!
//! Trees follow the [links](crate::topology) that a layout knows; `trees(single)` and `trees(best,single)` send the
//! whole buffer over one of them. `coded(radix)` and `coded(reduction_server)` are all_reduces whose messages a
//! [codec](crate::codec) shortens, both ways. `sharded` is `radix` with a single stage; `radix(4;2,2)` scatters in one
//! of four and gathers in two of two. Canonical algorithms give the bits of the group's [canonical tree](crate::group),
//! for any group and any message size, and all of them give the same bits. [`Cost`](cost::Cost) counts a schedule;
//! tests hold the table against it.
//!
//! ```
//! use herringbone_core::algorithm::{Algorithm, Layout};
//! use herringbone_core::{collective::Collective, group::Group, verify::verify};
//!
//! let (algorithm, group): (Algorithm, _) = ("reduction_server".parse()?, Group::of_size(3));
//! let layout = Layout { reducers: 2, ..Layout::default() };
//! let schedule = algorithm.schedule(Collective::AllReduce, &group, &layout)?;
//! println!("{schedule}");
//! assert!(verify(schedule, Collective::AllReduce, &group)?.restartable());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod branches;
mod chain;
mod coded;
pub mod cost;
mod double_tree;
mod doubling;
mod file;
mod generate;
mod hierarchical;
mod mixed;
mod name;
mod one_shot;
mod owners;
mod partial;
mod radix;
mod reduction_server;
mod ring;
mod shares;
mod sites;
mod spread;
mod star;
mod tree;
mod trees;
mod weighted;

pub use file::{FileTextError, ScheduleFile};
pub(crate) use hierarchical::{Carried, carried, pieces_of_hosts};
pub use mixed::MixedShares;
pub use name::ParseAlgorithmError;
pub use shares::{Shares, SharesError};
pub use sites::{SiteSizes, SiteSizesError};
pub(crate) use weighted::OwnedBy;

use crate::group::Rank;
use crate::topology::{LinkMatrix, MOST_RANKS, trees::TreeMode};
use alloc::{boxed::Box, string::String, vec, vec::Vec};

/// A way to do a collective. [`FromStr`](core::str::FromStr) reads the names of the [table](self), and
/// [`Display`](core::fmt::Display) writes them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Chunks travel round a ring of all ranks (Patarasuk and Yuan, 2009): reduce-scatter, then all-gather.
    Ring,
    /// Reduce-scatter, then all-gather, over the levels of the canonical tree, each with factors: powers of two, the
    /// lowest level first. None: a single stage, in which each rank folds its own chunk (`sharded`). The last stage
    /// covers the levels that the factors leave over; factors beyond the tree's top are ignored.
    Radix {
        /// The factors of the reduce-scatter.
        scatter: Vec<u32>,
        /// The factors of the all-gather, which runs its stages from the top down.
        gather: Vec<u32>,
    },
    /// Recursive doubling along the canonical tree: in each round the halves of a node swap their partial sums.
    Doubling,
    /// Every rank sends its whole input to every other, and folds them all. If parts only move, each goes straight to
    /// its destination.
    OneShot,
    /// Every rank sends its whole input to rank 0, which folds them all and sends the result back.
    Star,
    /// A binomial tree in the canonical tree's shape, towards the root, from the root, or both.
    Tree,
    /// Trees that follow the links (Wang, Li, Liberty and Smola, 2018): a chunk over each.
    Trees {
        /// How they are planned; `None` leaves the order of sums canonical.
        mode: Option<TreeMode>,
        /// Whether one tree carries the whole buffer, for small ones.
        single: bool,
    },
    /// Each reducer folds one chunk for all workers and sends the result back (Herring, BytePS).
    ReductionServer,
    /// Reducers and workers fold side by side, each as much as its link can bear (BytePS, OSDI 2020).
    Mixed {
        /// How many chunks each has; `None`: the best numbers for links of one rate.
        shares: Option<MixedShares>,
    },
    /// From rank to rank: towards the root, from it, or both.
    Chain,
    /// Two binary trees, each for half of the buffer (Sanders, Speck and Traeff, 2009; NCCL).
    DoubleTree,
    /// Inside hosts, across hosts, inside hosts, for hosts of consecutive ranks. If the ranks of a host form several
    /// nodes of the canonical tree, only [`Radix`](Self::Radix) works across hosts. It sends a partial sum for each
    /// node.
    Hierarchical {
        /// Reduces and gathers inside a host: [`Radix`](Self::Radix), the same factors for both.
        inner: Box<Algorithm>,
        /// All-reduces across hosts: [`Radix`](Self::Radix), the same factors for both halves,
        /// [`Doubling`](Self::Doubling), [`OneShot`](Self::OneShot) or [`ReductionServer`](Self::ReductionServer).
        outer: Box<Algorithm>,
    },
    /// Inside sites, across sites, inside sites: a level above hosts, for sites of consecutive ranks.
    Sites {
        /// Reduces and gathers inside a site: [`Radix`](Self::Radix), or [`Hierarchical`](Self::Hierarchical) of two of them, each with the
        /// same factors for both halves.
        inner: Box<Algorithm>,
        /// All-reduces across sites: [`Radix`](Self::Radix), the same factors for both halves.
        outer: Box<Algorithm>,
        /// How many ranks each site has.
        sizes: SiteSizes,
    },
    /// The all-reduce of another algorithm, whose owners fold different amounts. It can be [`Radix`](Self::Radix),
    /// [`ReductionServer`](Self::ReductionServer), [`Mixed`](Self::Mixed) without shares of its own,
    /// [`Sites`](Self::Sites), or [`Hierarchical`](Self::Hierarchical) with one of the first two across hosts. Even
    /// shares make the schedule of the other algorithm. For [`Mixed`](Self::Mixed) this is the schedule in which all
    /// fold the same amount.
    Weighted {
        /// The other one.
        plain: Box<Algorithm>,
        /// How much each owner folds.
        shares: Shares,
    },
    /// The all-reduce that a file has as a text, for groups of as many ranks.
    File(ScheduleFile),
    /// Another one with [coded](crate::codec) messages: [`Radix`](Self::Radix) with a single stage, or
    /// [`ReductionServer`](Self::ReductionServer), either of them by shares or not. One schedule serves every codec.
    Coded {
        /// The other one.
        plain: Box<Algorithm>,
    },
}

/// The knowledge of an algorithm about the machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout<'a> {
    /// How many reducers the roster has.
    pub reducers: u32,
    /// The host of each worker, as any number that is equal for workers of one host; empty if unknown.
    pub hosts: &'a [u32],
    /// The links between the workers; if they are unknown, trees take them all as equal.
    pub links: Option<&'a LinkMatrix>,
}

impl Layout<'_> {
    /// How many reducers there are, for who cannot do without.
    fn at_least_one(&self) -> Result<u32, Unsupported> {
        match self.reducers {
            0 => Err(Unsupported::NoReducers),
            reducers => Ok(reducers),
        }
    }
}

/// Why an algorithm cannot serve, and what can.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unsupported {
    /// The algorithm has no schedule for this collective.
    #[error("{algorithm} has no {collective}: use {instead}")]
    Collective {
        /// The algorithm.
        algorithm: String,
        /// The collective's name.
        collective: &'static str,
        /// An algorithm that has one.
        instead: &'static str,
    },
    /// The root is not in the group.
    #[error("root {root} is not in a group of {size}: use a rank below {size}")]
    Root {
        /// The root asked for.
        root: Rank,
        /// The group's size.
        size: u32,
    },
    /// The collective takes one input of each member.
    #[error("{collective} folds one input of each member, and some have several: use all_reduce")]
    OneInputEach {
        /// The collective's name.
        collective: &'static str,
    },
    /// The algorithm takes one input of each member.
    #[error(
        "{algorithm} folds one input of each member, and some have several, one for each node of their shards. Use radix in one \
         stage, one_shot, star, mixed or reduction_server, or aligned runs of shards"
    )]
    SeveralInputs {
        /// The algorithm.
        algorithm: String,
    },
    /// A factor cannot be a number of the canonical tree's children.
    #[error("radix factor {factor} is not a power of two above 1: use 2, 4, 8, ...")]
    Factor {
        /// The factor asked for.
        factor: u32,
    },
    /// The group has no reducers.
    #[error("reduction_server needs a reducer and the group has none: name reducers, or use radix")]
    NoReducers,
    /// The algorithms do not compose.
    #[error(
        "hierarchical takes radix inside hosts, and radix, doubling, one_shot or reduction_server across them, each radix \
         with the same factors for both halves, but not hierarchical({inner},{outer})"
    )]
    Composition {
        /// The requested algorithm inside hosts.
        inner: String,
        /// The requested algorithm across hosts.
        outer: String,
    },
    /// Not every worker's host is known.
    #[error("hierarchical needs every worker's host and knows {known} of {workers}: use radix")]
    UnknownHosts {
        /// How many hosts were given.
        known: usize,
        /// How many workers there are.
        workers: u32,
    },
    /// All workers are on one host, so the level across hosts is missing.
    #[error("hierarchical needs several hosts and all {workers} workers are on one: use radix")]
    OneHost {
        /// How many workers there are.
        workers: u32,
    },
    /// Each worker is alone on its host, so the level inside hosts is missing.
    #[error("hierarchical needs hosts with several workers and all {workers} have one: use radix")]
    LoneWorkers {
        /// How many workers there are.
        workers: u32,
    },
    /// A host has ranks on both sides of another's.
    #[error(
        "hierarchical needs each host's workers to be consecutive ranks, but on rank {rank}'s host they are not: use \
         radix, or number the workers host by host"
    )]
    SplitHost {
        /// A worker of the host: the first of a run of ranks that is not all of its host.
        rank: Rank,
    },
    /// A host has several partial sums of the canonical tree.
    #[error(
        "hierarchical without radix across hosts needs each host to be one node of the canonical tree, but rank {rank}'s host is \
         {pieces} nodes. Use hierarchical, or the fold order of hosts (HERRINGBONE_FOLD_ORDER), or give every host the same power of two of \
         consecutive ranks"
    )]
    HostInPieces {
        /// The host's first worker.
        rank: Rank,
        /// How many nodes its workers are.
        pieces: usize,
    },
    /// The algorithms do not compose over sites.
    #[error(
        "sites takes radix or hierarchical(radix,radix) inside sites and radix across them, each radix with the same factors for both \
         halves, but not sites({inner},{outer},...)"
    )]
    SiteComposition {
        /// The requested algorithm inside sites.
        inner: String,
        /// The requested algorithm across sites.
        outer: String,
    },
    /// The sites belong to another group.
    #[error(
        "sites of {ranks} ranks in all need a group of as many, and it has {workers}: give the number of ranks of each site"
    )]
    SiteSizes {
        /// How many ranks the sites have together.
        ranks: usize,
        /// How many workers there are.
        workers: u32,
    },
    /// A host's ranks are in two sites.
    #[error(
        "rank {rank} has the host of the rank before it and another site: give all ranks of a host one site"
    )]
    HostInTwoSites {
        /// The first rank in another site than the others of its host.
        rank: Rank,
    },
    /// The links belong to other workers.
    #[error(
        "trees needs the links between all {workers} workers and the topology has {known}: give it a node for each"
    )]
    UnknownLinks {
        /// How many workers the topology has.
        known: usize,
        /// How many there are.
        workers: u32,
    },
    /// More ranks than trees are planned for.
    #[error("trees are planned for at most {MOST_RANKS} workers and there are {workers}: use radix")]
    TooManyForTrees {
        /// How many workers there are.
        workers: u32,
    },
    /// Each tree in the canonical order needs a link that is not there.
    #[error(
        "trees keeps the canonical order of sums, and each tree in that order goes over a link of weight 0: use trees(best), \
         which has an order of its own"
    )]
    NoCanonicalTree,
    /// The links carry no trees of this kind.
    #[error("trees: {reason}")]
    NoTrees {
        /// Why, and what to change.
        reason: String,
    },
    /// The algorithm has no owners that could have shares.
    #[error(
        "{plain} has no shares: weighted takes radix, reduction_server, sites, mixed without shares of its own, or hierarchical with \
         radix or reduction_server across hosts"
    )]
    NoShares {
        /// The algorithm.
        plain: String,
    },
    /// The number of shares differs from the number of owners.
    #[error("{plain} of {owners} {kind} needs as many shares and has {shares}: give each its share, 0 to 16")]
    Shares {
        /// The algorithm.
        plain: String,
        /// How many shares there are.
        shares: usize,
        /// How many owners there are.
        owners: u32,
        /// The kind of the owners.
        kind: &'static str,
    },
    /// The schedule of a file is for other groups.
    #[error("{file}: {reason}")]
    OfFile {
        /// The file.
        file: String,
        /// For which groups it is.
        reason: String,
    },
    /// The algorithm has no coded form.
    #[error("{plain} has no coded form: use radix or reduction_server, or no compression")]
    NoCodedForm {
        /// The algorithm.
        plain: String,
    },
    /// The algorithms compose, but neither half stands alone.
    #[error(
        "hierarchical has reduce_scatter and all_gather with radix across hosts, not {outer}: use hierarchical"
    )]
    Halves {
        /// The requested algorithm across hosts.
        outer: String,
    },
}

impl Unsupported {
    /// Whether the reason is the place of workers on hosts, or a group with fewer owners than shares, rather than the
    /// request. A group of some ranks, or one that has lost members, can have too few owners.
    pub fn is_layout(&self) -> bool {
        if let Self::Shares { shares, owners, .. } = self {
            return *shares > *owners as usize;
        }
        matches!(
            self,
            Self::UnknownHosts { .. }
                | Self::OneHost { .. }
                | Self::LoneWorkers { .. }
                | Self::SplitHost { .. }
                | Self::HostInPieces { .. }
                | Self::SiteSizes { .. }
                | Self::HostInTwoSites { .. }
                | Self::UnknownLinks { .. }
                | Self::TooManyForTrees { .. }
                | Self::NoCanonicalTree
                | Self::OfFile { .. }
                | Self::NoTrees { .. }
        )
    }
}

impl Algorithm {
    /// One of each, of trees one of each kind, with its default parameters, in the order of the [table](self).
    pub fn all() -> [Self; 15] {
        let trees = |mode| Self::Trees { mode, single: false };
        let [mxnet, best, throughput] = TreeMode::ALL.map(|mode| trees(Some(mode)));
        [
            Self::radix(vec![]),
            Self::Doubling,
            Self::OneShot,
            Self::Star,
            Self::Tree,
            Self::ReductionServer,
            Self::hierarchical(),
            Self::Ring,
            Self::Mixed { shares: None },
            Self::Chain,
            Self::DoubleTree,
            trees(None),
            mxnet,
            best,
            throughput,
        ]
    }

    /// [`Radix`](Self::Radix) that scatters and gathers with the same factors.
    pub fn radix(factors: Vec<u32>) -> Self {
        Self::Radix { scatter: factors.clone(), gather: factors }
    }

    /// Sharded inside hosts and across them.
    pub fn hierarchical() -> Self {
        Self::Hierarchical { inner: Box::new(Self::radix(vec![])), outer: Box::new(Self::radix(vec![])) }
    }

    /// Sharded inside hosts, through reducers across them.
    pub fn hosts_and_reducers() -> Self {
        Self::Hierarchical { inner: Box::new(Self::radix(vec![])), outer: Box::new(Self::ReductionServer) }
    }

    /// The algorithm for a buffer of `count` elements: with up to `bound` elements one tree carries the whole buffer.
    pub fn for_elements(&self, count: usize, bound: u64) -> Self {
        match self {
            Self::Trees { mode, single: false } if count as u64 <= bound => {
                Self::Trees { mode: *mode, single: true }
            }
            other => other.clone(),
        }
    }

    /// Itself without coded messages.
    pub fn plain(&self) -> &Self {
        if let Self::Coded { plain } = self { plain } else { self }
    }

    /// Itself with coded messages.
    #[must_use]
    pub fn coded(self) -> Self {
        Self::Coded { plain: Box::new(self) }
    }

    /// Itself by shares.
    #[must_use]
    pub fn weighted(self, shares: Shares) -> Self {
        Self::Weighted { plain: Box::new(self), shares }
    }

    /// Whether it is [`Radix`](Self::Radix) in a single stage.
    fn is_one_stage(&self) -> bool {
        matches!(self, Self::Radix { scatter, gather } if scatter.is_empty() && gather.is_empty())
    }

    /// Whether it has no schedule without reducers.
    pub fn needs_reducers(&self) -> bool {
        match self {
            Self::ReductionServer | Self::Mixed { .. } => true,
            Self::Hierarchical { outer, .. } => outer.needs_reducers(),
            Self::Weighted { plain, .. } | Self::Coded { plain } => plain.needs_reducers(),
            _ => false,
        }
    }
}
