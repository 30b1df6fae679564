//! All-reduces whose owners do not fold as much as each other: another algorithm, with its chunks by [shares](Shares).
//!
//! Who folds what changes no bits: chunks are of other lengths, and each is folded in the same shape.

use super::shares::Owners;
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

/// Checks that there is a share for each owner.
fn check(plain: &Algorithm, shares: &Shares, group: &Group, layout: &Layout<'_>) -> Result<(), Unsupported> {
    let workers = group.size();
    let (owners, kind) = match plain {
        Algorithm::Radix { .. } => (workers, "workers"),
        Algorithm::ReductionServer => (layout.at_least_one()?, "reducers"),
        Algorithm::Mixed { shares: None } => (workers + layout.at_least_one()?, "workers and reducers"),
        Algorithm::Hierarchical { outer, .. } => match &**outer {
            Algorithm::Radix { .. } => (workers, "workers"),
            Algorithm::ReductionServer => (layout.at_least_one()?, "reducers"),
            _ => return Err(Unsupported::NoShares { plain: plain.to_string() }),
        },
        _ => return Err(Unsupported::NoShares { plain: plain.to_string() }),
    };
    let found = shares.parts().len();
    if found == owners as usize {
        return Ok(());
    }
    Err(Unsupported::Shares { plain: plain.to_string(), shares: found, owners, kind })
}
