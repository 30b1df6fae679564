//! Calling a table server.

use crate::{
    config::{WaitLimits, check_exposure},
    core::session::{
        Role,
        handshake::{Expected, Hello, Identity, Purpose, Versions},
    },
    fabric::{
        acceptor, dial,
        greet::{self, GreetError},
        same_host,
    },
    transport::tcp::TcpLink,
};

/// What a process says of itself to a table server.
#[derive(Clone)]
pub(super) struct Reach {
    pub(super) token: Option<String>,
    pub(super) identity: Identity,
    /// Whether a worker goes on through shared memory if the server is on its host.
    pub(super) shares: bool,
}

/// Calls a table server, which is to be in this place among the others.
pub(super) fn connect_once(
    address: &str,
    reach: &Reach,
    place: Option<u32>,
) -> Result<(TcpLink, Identity), GreetError> {
    let token = reach.token.as_deref().filter(|token| !token.is_empty());
    let mut stream = dial::dial(address, None, |there| check_exposure(there, token))?;
    let hello = Hello { identity: reach.identity, purpose: Purpose::Table, versions: Versions::CURRENT };
    let expected = Expected { role: Role::TableServer, rank: place, incarnation: None };
    let token = token.unwrap_or_default().as_bytes();
    let established = greet::greet(&mut stream, hello, expected, token)?;
    let (there, patience) = (established.other, WaitLimits::default().patience);
    let link = match reach.identity.role {
        Role::Worker => same_host::call_link(stream, established.keys, patience, reach.shares)?,
        _ => acceptor::into_link(stream, established.keys, patience)?,
    };
    Ok((link, there))
}
