//! Imagined jobs: the number of ranks on each host.

use herringbone::{Algorithm, FoldOrder};

/// The host of each rank: `per_host` ranks on each, in order.
pub(crate) fn hosts(ranks: u32, per_host: u32) -> Vec<u32> {
    (0..ranks).map(|rank| rank / per_host).collect()
}

/// Ranks on each host where nobody says how many: the largest power of two up to the square root, and 2 at the least.
pub(crate) fn usual_per_host(ranks: u32) -> u32 {
    (1 << (ranks.ilog2() / 2)).max(2)
}

/// Whether its schedules depend on which ranks share a host.
pub(crate) fn follows_hosts(algorithm: &Algorithm, order: FoldOrder) -> bool {
    match algorithm {
        Algorithm::Weighted { plain, .. } => follows_hosts(plain, order),
        Algorithm::Sites { inner, .. } => follows_hosts(inner, order),
        Algorithm::Hierarchical { .. } => true,
        _ => order != FoldOrder::Ranks,
    }
}

/// The sites in an algorithm's name: a number for each rank, or nothing.
pub(crate) fn sites(algorithm: &Algorithm) -> Vec<u32> {
    match algorithm {
        Algorithm::Weighted { plain, .. } => sites(plain),
        Algorithm::Sites { sizes, .. } => sizes.numbers().collect(),
        _ => Vec::new(),
    }
}
