//! All-reduces whose owners do not fold as much as each other: another algorithm, with its chunks by [shares](Shares).
//!
//! The owners of chunks do not affect the bits: chunks have other lengths, and each is folded in the same shape.

use super::shares::Owners;
use super::sites::SiteLevels;
use super::{Algorithm, Layout, Shares, Unsupported, coded, hierarchical, mixed, radix, reduction_server};
use crate::group::Group;
use crate::schedule::Schedule;
use alloc::string::ToString;

/// The all-reduce of `plain` by shares.
///
/// # Errors
/// [`Unsupported`] if there are other owners than shares, if `plain` has none, and as `plain` is.
pub(super) fn all_reduce(
    plain: &Algorithm,
    shares: &Shares,
    group: &Group,
    layout: &Layout<'_>,
) -> Result<Schedule, Unsupported> {
    check(plain, shares, group, layout)?;
    Ok(match plain {
        Algorithm::Radix { scatter, gather } => {
            let [scatter, gather] = [radix::checked(scatter)?, radix::checked(gather)?];
            radix::all_reduce(group, Some(shares), scatter, gather)
        }
        Algorithm::Hierarchical { inner, outer } => {
            hierarchical::all_reduce(group, layout, inner, outer, Some(shares))?
        }
        Algorithm::Sites { inner, outer, sizes } => {
            SiteLevels { inner, outer, sizes }.all_reduce(group, layout, Some(shares))?
        }
        Algorithm::ReductionServer => {
            reduction_server::all_reduce(group, layout.reducers, Owners::of(shares))
        }
        _ => mixed::by_shares(group, layout.reducers, shares),
    })
}

/// The same with coded messages.
///
/// # Errors
/// As [`all_reduce`]; and if `plain` has no coded form.
pub(super) fn coded(
    plain: &Algorithm,
    shares: &Shares,
    group: &Group,
    layout: &Layout<'_>,
) -> Result<Schedule, Unsupported> {
    check(plain, shares, group, layout)?;
    match plain {
        plain if plain.is_one_stage() => Ok(coded::sharded(group, Owners::of(shares))),
        Algorithm::ReductionServer => Ok(coded::served(group, layout.reducers, Owners::of(shares))),
        plain => {
            let plain = Algorithm::Weighted { plain: plain.clone().into(), shares: shares.clone() };
            Err(Unsupported::NoCodedForm { plain: plain.to_string() })
        }
    }
}

/// The same of members some of which have several inputs.
///
/// # Errors
/// As [`all_reduce`]; and if `plain` takes one input of each member.
pub(super) fn of_several(
    plain: &Algorithm,
    shares: &Shares,
    group: &Group,
    layout: &Layout<'_>,
) -> Result<Schedule, Unsupported> {
    check(plain, shares, group, layout)?;
    match plain {
        plain if plain.is_one_stage() => Ok(mixed::of_workers(group, &Owners::of(shares))),
        Algorithm::ReductionServer => Ok(mixed::of_reducers(group, layout.reducers, &Owners::of(shares))),
        Algorithm::Mixed { .. } => Ok(mixed::by_shares(group, layout.reducers, shares)),
        plain => Err(Unsupported::SeveralInputs { algorithm: plain.to_string() }),
    }
}

/// Whose chunks have shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnedBy {
    /// Each worker has one.
    Workers,
    /// Each reducer has some.
    Reducers,
    /// Each worker and each reducer has some.
    Both,
}

impl OwnedBy {
    /// Of an algorithm, if it takes shares.
    pub(crate) fn of(plain: &Algorithm) -> Option<Self> {
        match plain {
            Algorithm::Radix { .. } | Algorithm::Sites { .. } => Some(Self::Workers),
            Algorithm::ReductionServer => Some(Self::Reducers),
            Algorithm::Mixed { shares: None } => Some(Self::Both),
            Algorithm::Hierarchical { outer, .. } => Self::of(outer).filter(|by| *by != Self::Both),
            _ => None,
        }
    }

    /// How many owners there are.
    pub(crate) fn count(self, workers: u32, reducers: u32) -> u32 {
        match self {
            Self::Workers => workers,
            Self::Reducers => reducers,
            Self::Both => workers + reducers,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Workers => "workers",
            Self::Reducers => "reducers",
            Self::Both => "workers and reducers",
        }
    }
}

/// Checks that there is a share for each owner.
fn check(plain: &Algorithm, shares: &Shares, group: &Group, layout: &Layout<'_>) -> Result<(), Unsupported> {
    let by = OwnedBy::of(plain).ok_or_else(|| Unsupported::NoShares { plain: plain.to_string() })?;
    let reducers = if by == OwnedBy::Workers { 0 } else { layout.at_least_one()? };
    let (owners, kind) = (by.count(group.size(), reducers), by.name());
    let found = shares.parts().len();
    if found == owners as usize {
        return Ok(());
    }
    Err(Unsupported::Shares { plain: plain.to_string(), shares: found, owners, kind })
}
