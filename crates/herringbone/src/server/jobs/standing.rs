//! What a reducer says of its jobs to those who ask.

use super::{Job, Jobs};
use crate::{
    core::session::{
        Role,
        handshake::Identity,
        status::{Doing, JOBS, ServedJob},
    },
    fabric::{
        answer::{Inquiry, standing_soon},
        greet::GreetError,
    },
};
use std::sync::Arc;

/// Answers. `job` is the one that is asked about, 0 if it was not said.
pub(super) fn answer(jobs: &Jobs, job: u64, inquiry: Inquiry) -> Result<(), GreetError> {
    let (present, served) = {
        let table = jobs.table();
        let present: Vec<(u64, Arc<Job>)> =
            table.present.iter().map(|(number, job)| (*number, job.clone())).collect();
        (present, table.served)
    };
    let listed = present.len().min(JOBS);
    let unlisted = (present.len() - listed) as u32;
    let shown = |(number, job): &(u64, Arc<Job>)| {
        let standing = standing_soon(&job.node, listed);
        ServedJob { job: *number, world: job.world, standing }
    };
    let jobs_shown = present[..listed].iter().map(shown).collect();
    let own = Identity { role: Role::Reducer, job, rank: 0, world: 1, incarnation: jobs.incarnation };
    inquiry.answer(own, [], Doing::Serves { served, jobs: jobs_shown, unlisted })
}
