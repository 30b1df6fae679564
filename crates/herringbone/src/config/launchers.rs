//! Which launcher started this process, and as which rank: read from the variables that launchers set.
//!
//! Each reader is a pure function from an [`Environment`] to one launcher's assignment. [`find`] asks all of them,
//! takes the first that knows a place, and refuses places that contradict each other. `config/place.rs` turns the place
//! into a meeting.

mod assignment;
mod counted;
mod dmlc;
mod hostlist;
mod job;
mod kubernetes;
mod pair;
mod slurm;
mod vertex;

use super::environment::Environment;
use crate::Result;
use assignment::Detection;

pub(crate) use assignment::Assignment;
pub(super) use assignment::{RdzvHint, address};
pub(crate) use job::NAME_BYTES;
pub(super) use job::names;
pub(super) use pair::AGENT_STORE;
pub(super) use vertex::reducers;

type Reader = fn(&Environment) -> Result<Option<Detection>>;

/// All launchers, in the order in which they count.
const READERS: [Reader; 10] = [
    pair::torchrun_pair,
    |environment| counted::HOROVOD.read(environment),
    |environment| counted::OPEN_MPI.read(environment),
    |environment| counted::MVAPICH.read(environment),
    |environment| counted::PMI.read(environment),
    slurm::read,
    kubernetes::kubeflow,
    kubernetes::indexed,
    vertex::read,
    dmlc::read,
];

/// The place that counts; `None` if no launcher started this process.
///
/// # Errors
/// [`ErrorKind::Config`](crate::ErrorKind::Config) if a value is no number, if launchers contradict each other, and if a
/// launcher does not say which rank of how many this process is.
pub(crate) fn find(environment: &Environment) -> Result<Option<Assignment>> {
    // It is there to overrule the others.
    let (mut found, mut lacking) = match pair::herringbone_pair(environment)? {
        Some(Detection::Place(place)) => return Ok(Some(place)),
        Some(Detection::Lacking(error)) => (None, Some(error)),
        None => (None, None),
    };
    for read in READERS {
        match read(environment)? {
            None => {}
            Some(Detection::Lacking(error)) => lacking = lacking.or(Some(error)),
            Some(Detection::Place(place)) => match &mut found {
                None => found = Some(place),
                Some(winner) => winner.compare(place)?,
            },
        }
    }
    match (found, lacking) {
        (Some(place), _) => {
            pair::compare_halves(environment, &place)?;
            Ok(Some(place))
        }
        (None, Some(error)) => Err(error),
        (None, None) => Ok(None),
    }
}

/// Why it may be a mistake that no launcher gave this process a place.
pub(super) fn missing_launcher(environment: &Environment) -> Result<Option<String>> {
    slurm::outside_a_step(environment)
}

#[cfg(test)]
mod tests;
