//! A rank that calls another one to go on without the hub.

use crate::core::{
    group::Rank,
    session::{control::ControlChannel, survivors::Shrink},
};
use std::net::TcpStream;

/// A rank that has said what it wants, and waits at this connection.
pub(crate) struct Arrival {
    pub(super) rank: Rank,
    pub(super) stream: TcpStream,
    pub(super) channel: ControlChannel,
    pub(super) wish: Shrink,
}
