//! A level above hosts: the sums of a site's ranks cross the link between sites.
//!
//! A site is a run of ranks whose hosts share an uplink, such as a building. Inside a site [`radix`](super::radix)
//! scatters, or [`hierarchical`](super::hierarchical) first inside its hosts and then across them. Across sites radix
//! continues. Then the stages gather backwards. Each site sends one partial sum for each node of the canonical tree in
//! it (its *pieces*), and a result enters a site once.

use super::hierarchical::{
    NestedRuns, half_through, nested_levels, pieces_of_hosts, pieces_of_runs, same_factors,
};
use super::owners::Level;
use super::radix::{self, checked};
use super::shares::Shares;
use super::{Algorithm, Layout, Unsupported};
use crate::collective::Collective;
use crate::group::{Group, Rank};
use crate::schedule::{Schedule, read_runs, write_runs};
use crate::topology::MOST_SITES;
use alloc::{string::String, string::ToString, sync::Arc, vec::Vec};
use core::{fmt, str::FromStr};

/// How many ranks each site has, site by site in the order of ranks. Cheap to clone.
///
/// ```
/// use herringbone_core::algorithm::SiteSizes;
///
/// let sizes: SiteSizes = "3x2,4".parse()?;
/// assert_eq!(sizes.ranks(), [3, 3, 4]);
/// # Ok::<(), herringbone_core::algorithm::SiteSizesError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SiteSizes(Arc<[u16]>);

/// Why numbers are no sizes of sites.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} has no sizes of sites: write how many ranks each site has, 1 to {}, for 2 to {} sites, with commas between, equal \
     ones as a run: 3x2,4",
    SiteSizes::MOST_RANKS,
    SiteSizes::MOST
)]
pub struct SiteSizesError {
    text: String,
}

impl SiteSizes {
    /// The most sites.
    pub const MOST: usize = MOST_SITES;

    /// The most ranks of a site.
    pub const MOST_RANKS: u16 = 4096;

    /// Sites with these numbers of ranks.
    ///
    /// # Errors
    /// [`SiteSizesError`] unless there are 2 to [`MOST`](Self::MOST) sites of 1 to [`MOST_RANKS`](Self::MOST_RANKS) ranks.
    pub fn new(ranks: Vec<u16>) -> Result<Self, SiteSizesError> {
        let are_sizes = ranks.iter().all(|ranks| (1..=Self::MOST_RANKS).contains(ranks));
        if (2..=Self::MOST).contains(&ranks.len()) && are_sizes {
            return Ok(Self(ranks.into()));
        }
        let text: String = Self(ranks.into()).to_string();
        Err(SiteSizesError { text: text.chars().take(40).collect() })
    }

    /// The sizes of the runs of equal numbers in a list with one number for each rank. `None` unless there are several
    /// sites, each with consecutive ranks.
    pub fn of_numbers(numbers: &[u32]) -> Option<Self> {
        let runs: Vec<&[u32]> = numbers.chunk_by(|a, b| a == b).collect();
        let mut known: Vec<u32> = runs.iter().map(|run| run[0]).collect();
        known.sort_unstable();
        known.dedup();
        let sizes = runs.iter().map(|run| u16::try_from(run.len()).ok()).collect::<Option<Vec<u16>>>()?;
        if known.len() == runs.len() { Self::new(sizes).ok() } else { None }
    }

    /// How many ranks each site has.
    pub fn ranks(&self) -> &[u16] {
        &self.0
    }

    /// The number of each rank's site.
    pub fn numbers(&self) -> impl Iterator<Item = u32> {
        (0..).zip(self.0.iter()).flat_map(|(site, ranks)| core::iter::repeat_n(site, usize::from(*ranks)))
    }
}

impl fmt::Display for SiteSizes {
    /// The sizes, equal ones that follow each other as a run: `3x2,4`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_runs(f, &self.0)
    }
}

impl FromStr for SiteSizes {
    type Err = SiteSizesError;

    /// Reads what [`Display`](fmt::Display) writes; spaces around numbers do not count.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unreadable = || SiteSizesError { text: text.chars().take(40).collect() };
        Self::new(read_runs(text, Self::MOST).ok_or_else(unreadable)?).map_err(|_| unreadable())
    }
}

/// What the schedules of sites are made from.
#[derive(Clone, Copy, Debug)]
pub(super) struct SiteLevels<'a> {
    pub(super) inner: &'a Algorithm,
    pub(super) outer: &'a Algorithm,
    pub(super) sizes: &'a SiteSizes,
}

impl SiteLevels<'_> {
    pub(super) fn all_reduce(
        &self,
        group: &Group,
        layout: &Layout<'_>,
        shares: Option<&Shares>,
    ) -> Result<Schedule, Unsupported> {
        let [scatter, gather] = self.levels(group, layout)?;
        Ok(radix::both_halves(group, shares, scatter, gather))
    }

    /// The all_reduce or, as `collective` says, one half of it.
    pub(super) fn schedule(
        &self,
        collective: Collective,
        group: &Group,
        layout: &Layout<'_>,
    ) -> Result<Schedule, Unsupported> {
        match collective {
            Collective::AllReduce => self.all_reduce(group, layout, None),
            half => Ok(half_through(half, group, self.levels(group, layout)?)),
        }
    }

    fn levels(&self, group: &Group, layout: &Layout<'_>) -> Result<[Vec<Level>; 2], Unsupported> {
        let Self { inner, outer, sizes } = *self;
        let refused = || Unsupported::SiteComposition { inner: inner.to_string(), outer: outer.to_string() };
        let factors = |algorithm: &'_ Algorithm| same_factors(algorithm).map(<[u32]>::to_vec);
        let across = factors(outer).ok_or_else(refused)?;
        let numbers: Vec<u32> = sizes.numbers().collect();
        if numbers.len() != group.size() as usize {
            return Err(Unsupported::SiteSizes { ranks: numbers.len(), workers: group.size() });
        }
        let mut partitions = Vec::new();
        let inside_site = match inner {
            Algorithm::Hierarchical { inner: inside_host, outer: across_hosts } => {
                let inside = factors(inside_host).ok_or_else(refused)?;
                let pieces = pieces_of_hosts(group, layout.hosts)?;
                if let Some(rank) = straddling(layout.hosts, &numbers) {
                    return Err(Unsupported::HostInTwoSites { rank });
                }
                checked(&inside)?;
                partitions.push(NestedRuns { pieces, inside });
                factors(across_hosts).ok_or_else(refused)?
            }
            _ => factors(inner).ok_or_else(refused)?,
        };
        checked(&inside_site)?;
        checked(&across)?;
        partitions.push(NestedRuns { pieces: pieces_of_runs(group.keys(), &numbers), inside: inside_site });
        Ok(nested_levels(group.keys(), &partitions, &across))
    }
}

/// A rank on the host of the one before it, but of another site.
fn straddling(hosts: &[u32], sites: &[u32]) -> Option<Rank> {
    let parts = |at: &usize| hosts[*at] == hosts[at - 1] && sites[*at] != sites[at - 1];
    (1..hosts.len()).find(parts).map(|at| at as Rank)
}
