//! The job's token, for verbs that need it.

use crate::failure::Failure;

/// The token in a file, or else the environment's.
pub(crate) fn token(file: Option<&str>) -> Result<Option<String>, Failure> {
    Ok(match file {
        Some(path) => Some(herringbone::token_from_file(path)?),
        None => herringbone::token_from_env()?,
    })
}

/// As [`token`]. If none is set, the token of the job whose process, of this user on this host, listens at one of these addresses.
pub(crate) fn token_at(file: Option<&str>, addresses: &[String]) -> Result<Option<String>, Failure> {
    let found = || addresses.iter().find_map(|address| herringbone::token_of_listener(address));
    Ok(token(file)?.or_else(found))
}
