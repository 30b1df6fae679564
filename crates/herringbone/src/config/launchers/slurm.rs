//! Slurm: the tasks of a step, which srun starts.

use super::{
    assignment::{Assignment, COUNT, Detection, Nesting, RdzvHint, address, first_number, number},
    hostlist,
};
use crate::{Error, Result, config::environment::Environment};

/// The ports among which a job on several nodes finds its own: below those that kernels hand out.
const PORTS: std::ops::Range<u32> = 10_000..30_000;

/// The place of a task. A batch script has many of the same variables, and is none: it belongs to no step.
pub(super) fn read(environment: &Environment) -> Result<Option<Detection>> {
    let step = first_number(environment, &["SLURM_STEP_ID", "SLURM_STEPID"])?;
    let (Some((_, step)), Some(rank)) = (step, number(environment, "SLURM_PROCID", COUNT)?) else {
        return Ok(None);
    };
    let sizes = ["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"];
    let Some((size_name, size)) = first_number(environment, &sizes)? else {
        let problem = "Slurm has set it, and not SLURM_STEP_NUM_TASKS: set HERRINGBONE_RANK and HERRINGBONE_WORLD_SIZE on \
                       every rank";
        return Ok(Some(Detection::Lacking(Error::config("SLURM_PROCID", problem))));
    };
    let mut place = Assignment::new("Slurm", "SLURM_PROCID", rank, size_name, size);
    place.nesting = Nesting::Daemons;
    place.local = local(environment, place.world)?;
    place.job = job(environment)?.map(|job| ("SLURM_STEP_ID", format!("{job}.{step}")));
    place.rendezvous = rendezvous(environment, &mut place.said, step)?;
    Ok(Some(Detection::Place(place)))
}

/// The task's number on its node, and how many the node has.
fn local(environment: &Environment, world: u32) -> Result<Option<(u32, u32)>> {
    let rank = number(environment, "SLURM_LOCALID", COUNT)?;
    if nodes(environment)? == Some(1) {
        return Ok(rank.map(|rank| (rank, world)));
    }
    let node = number(environment, "SLURM_NODEID", COUNT)?;
    let list = match environment.text("SLURM_STEP_TASKS_PER_NODE")? {
        Some(list) => Some(list),
        None => environment.text("SLURM_TASKS_PER_NODE")?,
    };
    let size = list.zip(node).and_then(|(list, node)| hostlist::tasks(list, node));
    Ok(rank.zip(size))
}

fn job(environment: &Environment) -> Result<Option<u32>> {
    Ok(first_number(environment, &["SLURM_JOB_ID", "SLURM_JOBID"])?.map(|(_, job)| job))
}

fn nodes(environment: &Environment) -> Result<Option<u32>> {
    let found = first_number(environment, &["SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"])?;
    Ok(found.map(|(_, nodes)| nodes))
}

/// On one node the step's name is enough. On several, task 0 runs on the first one, at a port that follows from the step.
fn rendezvous(
    environment: &Environment,
    said: &mut Vec<(&'static str, String)>,
    step: u32,
) -> Result<RdzvHint> {
    let Some(job) = job(environment)? else {
        return Ok(RdzvHint::Unknown);
    };
    if nodes(environment)? == Some(1) {
        return Ok(RdzvHint::Machine(Some(format!("slurm {job}.{step}"))));
    }
    for name in ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"] {
        let Some(list) = environment.text(name)? else { continue };
        let Some(host) = hostlist::first(list) else {
            let problem =
                format_args!("{list:?} is no list of hosts; set HERRINGBONE_STORE to host:port of rank 0");
            return Err(Error::config(name, problem));
        };
        said.push((name, list.to_owned()));
        return Ok(RdzvHint::Address(address(&host, port(job, step))));
    }
    Ok(RdzvHint::Unknown)
}

/// Jobs, and steps of one job, that run at the same time on a node mostly have numbers near each other.
fn port(job: u32, step: u32) -> u32 {
    let spread = u64::from(job) * 131 + u64::from(step);
    PORTS.start + (spread % u64::from(PORTS.end - PORTS.start)) as u32
}

/// What is odd about a process of a job of several tasks that is none of them.
pub(super) fn outside_a_step(environment: &Environment) -> Result<Option<String>> {
    if environment.text("SLURM_JOB_ID")?.is_none() || environment.text("SLURM_STEP_ID")?.is_some() {
        return Ok(None);
    }
    let tasks = number(environment, "SLURM_NTASKS", COUNT)?.filter(|tasks| *tasks > 1);
    Ok(tasks.map(|tasks| {
        format!(
            "Slurm's job has {tasks} tasks (SLURM_NTASKS), and only srun starts them: `srun python train.py`"
        )
    }))
}
