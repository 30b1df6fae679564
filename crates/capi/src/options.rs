//! The options of a program that joins a job.

use crate::{failure::InterfaceFailure, pointers::InitOptions};
use herringbone::{Communicator, Config, Rendezvous};
use std::time::Duration;

/// The configuration that options give: what the environment says, but for what is said here.
///
/// # Errors
/// If a field cannot be used, or the environment's settings cannot.
pub(crate) fn config_of(options: &InitOptions) -> Result<Config, InterfaceFailure> {
    let (address, token) = (options.address.read("address")?, options.token.read("token")?);
    let address = match address {
        Some(address) if !address.is_empty() => address,
        _ if options.world_size == 1 => "127.0.0.1:0".to_owned(),
        _ => {
            return Err(InterfaceFailure::argument(
                "address is missing: give the address of rank 0, as host:port, alike on all ranks",
            ));
        }
    };
    let place = Config::new(options.rank, options.world_size, Rendezvous::Tcp(address));
    let place = place.token(token.clone().unwrap_or_default());
    let decline = |error: &_| Communicator::decline(&place.clone().named_by_env(), error);
    let mut config = place.clone().with_env().inspect_err(decline)?;
    if let Some(token) = token {
        config = config.token(token);
    }
    if options.timeout_seconds != 0.0 {
        config = config.timeout(duration("timeout_seconds", options.timeout_seconds)?);
    }
    Ok(config)
}

/// Seconds as a duration.
///
/// # Errors
/// If they are negative, no number, or more than the machine can count.
pub(crate) fn duration(name: &str, seconds: f64) -> Result<Duration, InterfaceFailure> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| InterfaceFailure::argument(format!("{name}: {seconds} is no number of seconds from 0")))
}
