//! Vertex AI, which describes a job's worker pools in `CLUSTER_SPEC`: pools 0 and 1 work, pool 2 has the reducers.

use super::assignment::{Assignment, Detection, RdzvHint};
use crate::{Error, Result, config::environment::Environment};
use herringbone_core::topology::json::{JsonValue, parse};

const VARIABLE: &str = "CLUSTER_SPEC";
const PRIMARY: &str = "workerpool0";
const WORKERS: &str = "workerpool1";
const REDUCERS: &str = "workerpool2";

/// What `CLUSTER_SPEC` says, if it is of Vertex AI.
struct Spec(JsonValue);

impl Spec {
    fn find(environment: &Environment) -> Result<Option<Self>> {
        let Some(text) = environment.text(VARIABLE)? else { return Ok(None) };
        // Others use this name, too.
        Ok(parse(text).ok().map(Spec).filter(|spec| !spec.pool(PRIMARY).is_empty()))
    }

    /// The addresses of a pool's replicas; none if there is no such pool.
    fn pool(&self, name: &str) -> Vec<&str> {
        let pool = self.0.get("cluster").and_then(|cluster| cluster.get(name));
        let replicas = pool.and_then(|pool| pool.list("replicas").ok()).unwrap_or_default();
        replicas.iter().filter_map(|replica| replica.text("an address").ok()).collect()
    }

    /// This replica's pool and its number there.
    fn task(&self) -> Option<(&str, u32)> {
        let task = self.0.get("task")?;
        let index = task.get("index")?;
        // It is a number in some jobs and a text in others.
        let index = match index.number("an index") {
            Ok(number) => number.to_string(),
            Err(_) => index.text("an index").ok()?.to_owned(),
        };
        Some((task.get("type")?.text("a pool").ok()?, index.parse().ok()?))
    }
}

pub(super) fn read(environment: &Environment) -> Result<Option<Detection>> {
    let Some(spec) = Spec::find(environment)? else { return Ok(None) };
    let lacks = |problem: String| Ok(Some(Detection::Lacking(Error::config(VARIABLE, problem))));
    let Some((pool, index)) = spec.task() else {
        return lacks("it has no task with a type and an index; Vertex AI sets both".to_owned());
    };
    let (primary, workers) = (spec.pool(PRIMARY), spec.pool(WORKERS));
    let before = match pool {
        PRIMARY => 0,
        WORKERS => primary.len(),
        REDUCERS => {
            return lacks(format!(
                "replica {index} of {pool} is a reducer: run `herringbone serve` there, and the program in worker pools 0 and 1"
            ));
        }
        _ => return lacks(format!("{pool} has no part in the training: use worker pools 0, 1 and 2")),
    };
    let count = |replicas: usize| u32::try_from(replicas).unwrap_or(u32::MAX);
    let (rank, world) = (count(before).saturating_add(index), count(primary.len() + workers.len()));
    let mut place = Assignment::new("Vertex AI", VARIABLE, rank, VARIABLE, world);
    place.said = vec![(VARIABLE, format!("{pool}, replica {index}"))];
    place.rendezvous = RdzvHint::Address(primary[0].to_owned());
    Ok(Some(Detection::Place(place)))
}

/// The reducers of a job on Vertex AI.
pub(crate) fn reducers(environment: &Environment) -> Result<Vec<String>> {
    let spec = Spec::find(environment)?;
    Ok(spec.map_or_else(Vec::new, |spec| spec.pool(REDUCERS).into_iter().map(str::to_owned).collect()))
}
