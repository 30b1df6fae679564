//! What an operation needs of the engine.

use super::staging::Staging;
use crate::{observe::Observer, transport::endpoint::Endpoints};

/// What an operation needs of the engine while it runs.
pub(crate) struct Io<'a> {
    pub(crate) endpoints: &'a mut Endpoints,
    pub(crate) staging: &'a Staging,
    pub(crate) observer: &'a mut Observer,
}
