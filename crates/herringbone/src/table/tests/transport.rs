//! Whether a server shares memory with workers on its host.

use super::{Servers, TableOptions};
use crate::{
    Transport,
    core::session::{Role, handshake::Identity},
    table::reach::{Reach, connect_once},
};

/// The link of a worker that wants to share memory.
fn link_of_worker(transport: Option<Transport>) -> String {
    let servers = Servers::with(1, &TableOptions { transport, ..TableOptions::default() });
    let identity = Identity { role: Role::Worker, job: 0, rank: 0, world: 1, incarnation: 7 };
    let reach = Reach { token: None, identity, shares: true };
    format!("{:?}", connect_once(&servers.addresses[0], &reach, None).unwrap().0)
}

#[test]
fn a_server_that_is_to_use_tcp_offers_no_memory() {
    assert!(link_of_worker(None).contains("SharedPipe"));
    assert!(link_of_worker(Some(Transport::Shm)).contains("SharedPipe"));
    assert!(!link_of_worker(Some(Transport::Tcp)).contains("SharedPipe"));
}
