//! The job's token, as verbs that need it find it.

use crate::failure::Failure;

/// That of a file, or else the environment's.
pub(crate) fn token(file: Option<&str>) -> Result<Option<String>, Failure> {
    Ok(match file {
        Some(path) => Some(herringbone::token_from_file(path)?),
        None => herringbone::token_from_env()?,
    })
}
