//! A rank that has connected to another one to elect a new hub.

use crate::core::{
    group::Rank,
    session::{control::ControlChannel, survivors::Shrink},
};
use std::net::TcpStream;

/// A rank that has sent its request, and waits for the answer on this connection.
pub(crate) struct Arrival {
    pub(super) rank: Rank,
    pub(super) stream: TcpStream,
    pub(super) channel: ControlChannel,
    pub(super) request: Shrink,
}
