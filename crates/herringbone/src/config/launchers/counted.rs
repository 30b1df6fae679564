//! Launchers of MPI, which set rank and size, in the job and on this machine.

use super::assignment::{Assignment, Detection, Nesting, RdzvHint, first_number};
use crate::{Error, Result, config::environment::Environment};

/// What a launcher calls what it says; of several names the first that is set counts.
pub(super) struct Names {
    launcher: &'static str,
    rank: &'static [&'static str],
    size: &'static [&'static str],
    local_rank: &'static [&'static str],
    local_size: &'static [&'static str],
    /// What no other job on this machine has in common with this one.
    job: &'static [&'static str],
}

pub(super) const HOROVOD: Names = Names {
    launcher: "Horovod",
    rank: &["HOROVOD_RANK"],
    size: &["HOROVOD_SIZE"],
    local_rank: &["HOROVOD_LOCAL_RANK"],
    local_size: &["HOROVOD_LOCAL_SIZE"],
    job: &["HOROVOD_GLOO_RENDEZVOUS_PORT"],
};

pub(super) const OPEN_MPI: Names = Names {
    launcher: "Open MPI",
    rank: &["OMPI_COMM_WORLD_RANK"],
    size: &["OMPI_COMM_WORLD_SIZE"],
    local_rank: &["OMPI_COMM_WORLD_LOCAL_RANK"],
    local_size: &["OMPI_COMM_WORLD_LOCAL_SIZE"],
    job: &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"],
};

pub(super) const MVAPICH: Names = Names {
    launcher: "MVAPICH",
    rank: &["MV2_COMM_WORLD_RANK"],
    size: &["MV2_COMM_WORLD_SIZE"],
    local_rank: &["MV2_COMM_WORLD_LOCAL_RANK"],
    local_size: &["MV2_COMM_WORLD_LOCAL_SIZE"],
    job: &[],
};

/// MPICH's Hydra, Intel MPI, Cray's launchers and Slurm's plugin for PMI.
pub(super) const PMI: Names = Names {
    launcher: "MPICH (PMI)",
    rank: &["PMI_RANK"],
    size: &["PMI_SIZE"],
    local_rank: &["MPI_LOCALRANKID", "PMI_LOCAL_RANK"],
    local_size: &["MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"],
    job: &["PMI_JOBID"],
};

impl Names {
    pub(super) fn read(&self, environment: &Environment) -> Result<Option<Detection>> {
        let ((rank_name, rank), (size_name, size)) =
            match [first_number(environment, self.rank)?, first_number(environment, self.size)?] {
                [Some(rank), Some(size)] => (rank, size),
                [None, None] => return Ok(None),
                [Some((set, _)), None] => return Ok(Some(self.lacks(set, self.size[0]))),
                [None, Some((set, _))] => return Ok(Some(self.lacks(set, self.rank[0]))),
            };
        let mut place = Assignment::new(self.launcher, rank_name, rank, size_name, size);
        let local =
            [first_number(environment, self.local_rank)?, first_number(environment, self.local_size)?];
        if let [Some((_, rank)), Some((_, size))] = local {
            place.local = Some((rank, size));
        }
        place.nesting = Nesting::Daemons;
        let job = self.job(environment)?;
        if place.local.is_some_and(|(_, size)| size == place.world) {
            place.rendezvous = RdzvHint::Machine(job.as_ref().map(|(name, text)| format!("{name}={text}")));
        }
        place.job = job;
        Ok(Some(Detection::Place(place)))
    }

    fn lacks(&self, set: &'static str, missing: &'static str) -> Detection {
        let problem = format_args!(
            "{} has set it, and not {missing}: set HERRINGBONE_RANK and HERRINGBONE_WORLD_SIZE on every rank",
            self.launcher
        );
        Detection::Lacking(Error::config(set, problem))
    }

    fn job(&self, environment: &Environment) -> Result<Option<(&'static str, String)>> {
        for name in self.job {
            if let Some(text) = environment.text(name)? {
                return Ok(Some((name, text.to_owned())));
            }
        }
        Ok(None)
    }
}
