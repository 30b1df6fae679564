//! ps-lite's variables, which BytePS, MXNet and xgboost set.

use super::assignment::{Assignment, COUNT, Detection, RdzvHint, first_number, number};
use crate::{Error, Result, config::environment::Environment};

const ROLE: &str = "DMLC_ROLE";

pub(super) fn read(environment: &Environment) -> Result<Option<Detection>> {
    let Some(role) = environment.text(ROLE)? else { return Ok(None) };
    let lacks = |name: &str, problem: String| Ok(Some(Detection::Lacking(Error::config(name, problem))));
    match role {
        "worker" => {}
        "server" => {
            let problem = "this process is a server, which sums and has no data. `kvstore.create` serves in it; for a program \
                           without a KVStore run `herringbone serve` in its place, and name it in HERRINGBONE_REDUCERS";
            return lacks(ROLE, problem.to_owned());
        }
        _ => {
            return lacks(
                ROLE,
                format!(
                    "{role:?} has no part in the training: `kvstore.create` schedules in it; for a program without a KVStore rank 0 is \
                     enough, so start no {role}"
                ),
            );
        }
    }
    let id = first_number(environment, &["DMLC_WORKER_ID", "DMLC_TASK_ID"])?;
    let (Some((id, machine)), Some(machines)) = (id, number(environment, "DMLC_NUM_WORKER", COUNT)?) else {
        let problem = "a worker needs DMLC_WORKER_ID and DMLC_NUM_WORKER, or a KVStore, which the scheduler gives a rank; or set \
                       HERRINGBONE_RANK and HERRINGBONE_WORLD_SIZE";
        return lacks(ROLE, problem.to_owned());
    };
    let local =
        [number(environment, "BYTEPS_LOCAL_RANK", COUNT)?, number(environment, "BYTEPS_LOCAL_SIZE", COUNT)?];
    // A worker of BytePS is a machine, which has a process for each of its devices.
    let (local_rank, local_size) = local[0].zip(local[1]).unwrap_or((0, 1));
    let rank = machine.saturating_mul(local_size).saturating_add(local_rank);
    let world = machines.saturating_mul(local_size);
    let mut place = Assignment::new("ps-lite", id, rank, "DMLC_NUM_WORKER", world);
    place.said = vec![(id, machine.to_string()), ("DMLC_NUM_WORKER", machines.to_string())];
    if let [Some(rank), Some(size)] = local {
        place.said.extend([("BYTEPS_LOCAL_RANK", rank.to_string()), ("BYTEPS_LOCAL_SIZE", size.to_string())]);
        place.local = Some((rank, size));
    }
    place.rendezvous = rendezvous(environment)?;
    Ok(Some(Detection::Place(place)))
}

/// The scheduler's address is not rank 0's. It only says whether all are on one machine.
fn rendezvous(environment: &Environment) -> Result<RdzvHint> {
    for [host, port] in [["DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT"], ["DMLC_TRACKER_URI", "DMLC_TRACKER_PORT"]]
    {
        if let (Some("localhost" | "127.0.0.1" | "::1"), Some(port)) =
            (environment.text(host)?, environment.text(port)?)
        {
            return Ok(RdzvHint::Machine(Some(format!("ps-lite {port}"))));
        }
    }
    Ok(RdzvHint::Unknown)
}
