//! Kubernetes: Indexed Jobs (also in a JobSet), and Kubeflow Trainer's `PET_` variables.

use super::assignment::{Assignment, COUNT, Detection, RdzvHint, address, first_number, number};
use crate::{Error, Result, config::environment::Environment};

/// A pod of an Indexed Job. Kubernetes says which one it is; the manifest has to say how many there are.
pub(super) fn indexed(environment: &Environment) -> Result<Option<Detection>> {
    const INDEX: &str = "JOB_COMPLETION_INDEX";
    let Some(rank) = number(environment, INDEX, COUNT)? else { return Ok(None) };
    // With a size of this machine they are of a launcher that starts several processes in each pod.
    let sizes: &[&str] = match environment.text("LOCAL_WORLD_SIZE")? {
        None => &["HERRINGBONE_WORLD_SIZE", "WORLD_SIZE"],
        Some(_) => &[],
    };
    let Some((size_name, size)) = first_number(environment, sizes)? else {
        let problem = format!(
            "this is pod {rank} of an Indexed Job of Kubernetes, which gives no number of pods. In the manifest, set \
             HERRINGBONE_WORLD_SIZE to the Job's completions, and HERRINGBONE_STORE to host:port of pod 0 (in a JobSet \
             <jobset>-<job>-0-0.<jobset>:29400). For pods that work alone, set HERRINGBONE_RANK=0 and \
             HERRINGBONE_WORLD_SIZE=1"
        );
        return Ok(Some(Detection::Lacking(Error::config(INDEX, problem))));
    };
    Ok(Some(Detection::Place(Assignment::new("Kubernetes", INDEX, rank, size_name, size))))
}

/// A pod of Kubeflow Trainer, which tells torchrun these; a program with one process a pod needs no torchrun.
pub(super) fn kubeflow(environment: &Environment) -> Result<Option<Detection>> {
    let [Some(nodes), Some(rank)] = [environment.text("PET_NNODES")?, environment.text("PET_NODE_RANK")?]
    else {
        return Ok(None);
    };
    let lacks = |name: &str, problem: String| Ok(Some(Detection::Lacking(Error::config(name, problem))));
    let [Ok(nodes), Ok(rank)] = [nodes.trim().parse::<u32>(), rank.trim().parse::<u32>()] else {
        let problem = format!(
            "Kubeflow Trainer gives node {rank} of {nodes:?}, which only torchrun understands: start the program with torchrun"
        );
        return lacks("PET_NNODES", problem);
    };
    let processes = environment.text("PET_NPROC_PER_NODE")?.unwrap_or("1");
    if processes.trim() != "1" {
        let problem = format!(
            "Kubeflow Trainer asks for {processes:?} processes in each pod, and torchrun has to start them: start the program \
             with torchrun, or ask for 1"
        );
        return lacks("PET_NPROC_PER_NODE", problem);
    }
    let mut place = Assignment::new("Kubeflow Trainer", "PET_NODE_RANK", rank, "PET_NNODES", nodes);
    let master = [environment.text("PET_MASTER_ADDR")?, environment.text("PET_MASTER_PORT")?];
    if let [Some(host), Some(port)] = master {
        place.rendezvous = RdzvHint::Address(address(host, port));
    }
    Ok(Some(Detection::Place(place)))
}
