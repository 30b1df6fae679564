//! Places that two variables set: ours, and `RANK` with `WORLD_SIZE`, which torchrun and many others set.

use super::assignment::{Assignment, COUNT, Detection, Nesting, number};
use crate::{
    Error, Result,
    config::{environment::Environment, settings},
};

/// Whether torchrun's own store listens at `MASTER_ADDR` and `MASTER_PORT`: "True" or "False". Set by torchrun only.
pub(crate) const AGENT_STORE: &str = "TORCHELASTIC_USE_AGENT_STORE";

const OURS: [&str; 2] = [settings::RANK.name, settings::WORLD_SIZE.name];
const THEIRS: [&str; 2] = ["RANK", "WORLD_SIZE"];

/// `HERRINGBONE_RANK` and `HERRINGBONE_WORLD_SIZE`.
pub(super) fn herringbone_pair(environment: &Environment) -> Result<Option<Detection>> {
    read(environment, "the environment", OURS)
}

/// `RANK` and `WORLD_SIZE`: of torchrun, `herringbone launch`, Ray Train, Volcano, Lightning or a script.
pub(super) fn torchrun_pair(environment: &Environment) -> Result<Option<Detection>> {
    let is_torchrun = environment.text("TORCHELASTIC_RUN_ID")?.is_some();
    let launcher = if is_torchrun { "torchrun" } else { "the environment" };
    let Some(Detection::Place(mut place)) = read(environment, launcher, THEIRS)? else {
        return read(environment, launcher, THEIRS);
    };
    let local = [number(environment, "LOCAL_RANK", COUNT)?, number(environment, "LOCAL_WORLD_SIZE", COUNT)?];
    place.local = local[0].zip(local[1]);
    let groups = number(environment, "GROUP_WORLD_SIZE", COUNT)?.filter(|_| is_torchrun);
    let by_size = place.local.filter(|(_, size)| *size > 0).map(|(_, size)| place.world.div_ceil(size));
    place.nesting = groups.or(by_size).map_or(Nesting::Plain, Nesting::Groups);
    Ok(Some(Detection::Place(place)))
}

fn read(
    environment: &Environment,
    launcher: &'static str,
    [rank, world]: [&'static str; 2],
) -> Result<Option<Detection>> {
    let [rank_is, world_is] = [
        number(environment, rank, settings::RANK.values)?,
        number(environment, world, settings::WORLD_SIZE.values)?,
    ];
    Ok(match (rank_is, world_is) {
        (Some(rank_is), Some(world_is)) => {
            Some(Detection::Place(Assignment::new(launcher, rank, rank_is, world, world_is)))
        }
        (None, None) => None,
        _ => {
            let problem = format_args!("set both {rank} and {world}, or neither");
            Some(Detection::Lacking(Error::config(rank, problem)))
        }
    })
}

/// Checks that a variable whose partner is not set says what the launcher says that has both.
pub(super) fn compare_halves(environment: &Environment, place: &Assignment) -> Result<()> {
    for names in [OURS, THEIRS] {
        let values = [settings::RANK.values, settings::WORLD_SIZE.values];
        let [rank, world] =
            [number(environment, names[0], values[0])?, number(environment, names[1], values[1])?];
        let (name, half, whole) = match (rank, world) {
            (Some(rank), None) => (names[0], rank, place.rank),
            (None, Some(world)) => (names[1], world, place.world),
            _ => continue,
        };
        if half != whole {
            return Err(place.contradicted(&format!("{name}={half}")));
        }
    }
    Ok(())
}
