//! The job that a launcher has started this process for.

use crate::failure::Failure;
use herringbone::{Communicator, Config, settings::Environment};

/// The job that the environment describes. Where there is none, `alone` says how to start one.
pub(crate) fn of_environment(alone: &'static str) -> Result<Config, Failure> {
    if Environment::of_process().place()?.is_none() {
        let problem = "no job: this process was not started by a launcher".to_owned();
        return Err(Failure::Usage { problem, hint: alone });
    }
    Config::from_env().map_err(|error| {
        // The other ranks wait for rank 0, and need not.
        if let Ok(place) = Config::place_from_env() {
            Communicator::decline(&place, &error);
        }
        error.into()
    })
}
