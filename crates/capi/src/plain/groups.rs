//! How a process joins a job, makes groups, and leaves.

use crate::{
    failure::{InterfaceFailure, code_of},
    options::{config_of, duration},
    pointers::{ArrayPointer, OptionsPointer, ResultPointer},
    registry::COMMUNICATORS,
};
use herringbone::Communicator;
use std::ffi::c_int;

/// Joins the job that the environment describes.
#[unsafe(no_mangle)]
pub extern "C" fn herringbone_init(communicator: ResultPointer<u64>) -> c_int {
    code_of(|| communicator.fill("communicator", || Ok(shown(Communicator::from_env()?))))
}

/// Joins a job with these options.
#[unsafe(no_mangle)]
pub extern "C" fn herringbone_init_with(options: OptionsPointer, communicator: ResultPointer<u64>) -> c_int {
    code_of(|| {
        communicator.fill("communicator", || {
            let config = config_of(&options.read()?)?;
            Ok(shown(Communicator::connect(config)?))
        })
    })
}

/// The handle of a job's communicator, which is shown where HERRINGBONE_ADMIN says.
fn shown(communicator: Communicator) -> u64 {
    herringbone_admin::attach(&communicator);
    COMMUNICATORS.add(communicator)
}

/// Ends a communicator in order.
#[unsafe(no_mangle)]
pub extern "C" fn herringbone_finalize(communicator: u64) -> c_int {
    code_of(|| Ok(COMMUNICATORS.remove(communicator)?.close()?))
}

/// Ends a communicator's operations at once, on all ranks.
#[unsafe(no_mangle)]
pub extern "C" fn herringbone_abort(communicator: u64) -> c_int {
    with(communicator, |group| {
        group.abort();
        Ok(())
    })
}

/// This process's rank.
#[unsafe(no_mangle)]
pub extern "C" fn herringbone_rank(communicator: u64, rank: ResultPointer<u32>) -> c_int {
    with(communicator, |group| rank.fill("rank", || Ok(group.rank())))
}

/// How many ranks there are.
#[unsafe(no_mangle)]
pub extern "C" fn herringbone_size(communicator: u64, size: ResultPointer<u32>) -> c_int {
    with(communicator, |group| size.fill("size", || Ok(group.size())))
}

/// Sets the timeout of later operations.
#[unsafe(no_mangle)]
pub extern "C" fn herringbone_set_timeout(communicator: u64, seconds: f64) -> c_int {
    with(communicator, |group| {
        group.set_timeout(duration("seconds", seconds)?);
        Ok(())
    })
}

/// Makes a communicator of some of the ranks.
#[unsafe(no_mangle)]
pub extern "C" fn herringbone_subgroup(
    communicator: u64,
    ranks: ArrayPointer<u32>,
    count: usize,
    subgroup: ResultPointer<u64>,
) -> c_int {
    with(communicator, |group| {
        subgroup.fill("subgroup", || {
            let ranks = ranks.read("ranks", count)?;
            Ok(COMMUNICATORS.add(group.subgroup_of(&ranks)?))
        })
    })
}

/// Makes a call of C on a communicator.
pub(super) fn with(
    communicator: u64,
    call: impl FnOnce(&Communicator) -> Result<(), InterfaceFailure>,
) -> c_int {
    code_of(|| call(&COMMUNICATORS.find(communicator)?))
}
