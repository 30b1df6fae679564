//! The names of a process's job by launchers and batch systems, so that ranks of two jobs do not make one world.

use super::Assignment;
use crate::{
    Result,
    config::{environment::Environment, settings},
    core::session::{formation::JobName, is_unseen},
};

/// The longest name of a job, in bytes.
pub(crate) const NAME_BYTES: usize = 128;

/// What torchrun's jobs are called by default: all of them, so it tells nothing.
const UNNAMED_RUN: &str = "none";

/// The names of the job, in the order in which they count: the user's, torchrun's, that of the launcher's one start of
/// these ranks, and those of batch systems.
pub(crate) fn names(environment: &Environment, place: Option<&Assignment>) -> Result<Vec<JobName>> {
    let (own, [run, batches @ ..]) = (settings::JOB.name, settings::JOB.fallbacks) else {
        return Ok(Vec::new());
    };
    let of = |name: &str| environment.text(name).map(|text| text.map(|text| named(name, text)));
    let mut names = Vec::new();
    names
        .extend(environment.text(own)?.map(|name| JobName { source: own.to_owned(), name: name.to_owned() }));
    names.extend(of(run[0])?.filter(|run| run.name != UNNAMED_RUN));
    names.extend(place.and_then(|place| place.job.as_ref()).map(|(source, name)| named(source, name)));
    for batch in batches {
        names.extend(of(batch[0])?);
    }
    Ok(names)
}

/// A name that fits a message. What distinguishes names of jobs is at their ends.
fn named(source: &str, name: &str) -> JobName {
    let mut start = name.len().saturating_sub(NAME_BYTES);
    while !name.is_char_boundary(start) {
        start += 1;
    }
    let name = name[start..].replace(is_unseen, " ");
    JobName { source: source.to_owned(), name }
}
