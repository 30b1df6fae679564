//! How a server keeps tables.

use super::own::OwnOptimizer;
use crate::{Error, Result, Transport, core::table::replication::SERVERS_MOST, fabric::greet::random_number};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::{SocketAddr, ToSocketAddrs, UdpSocket},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

/// How tables are kept.
#[derive(Clone, Debug)]
pub struct TableOptions {
    /// The limit of their bytes, with pushes that wait for the end of a step, and pulls that are not answered.
    pub memory_bytes: u64,
    /// How long the others wait for a worker whose connection has ended without a goodbye. Then they continue without
    /// it. `None`: until it is back.
    pub patience: Option<Duration>,
    /// The directory of snapshots, which all servers see, or copies of one. `None`: no snapshots.
    pub data: Option<PathBuf>,
    /// The servers that have copies of each other's ranges. `None`: this server has none, and no copies of its own.
    pub group: Option<TableGroup>,
    /// The transport that is forced: with TCP no memory is shared with workers on this host.
    /// [`transport_from_env`](crate::transport_from_env) has the choice of a program's user.
    pub transport: Option<Transport>,
    /// The optimizers that this server has in addition to [`OptimizerKind`](crate::core::table::OptimizerKind)'s.
    pub optimizers: Vec<Arc<dyn OwnOptimizer>>,
}

/// Servers that have copies of each other's ranges.
#[derive(Clone, Debug)]
pub struct TableGroup {
    /// All servers, each `host:port`, as workers name them in `HERRINGBONE_TABLES`: the same list on all of them.
    pub servers: Vec<String>,
    /// Which of them this one is, counted from 0.
    pub place: u32,
    /// How many copies each range should have in addition to its owner's: fewer than the number of servers.
    pub replicas: u32,
}

impl TableGroup {
    /// The group of the server that listens at an address of this machine.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) if that is not one of `servers`, or could be several of them.
    pub fn at(listen: SocketAddr, servers: Vec<String>, replicas: u32) -> Result<Self> {
        check_different(&servers)?;
        let is_here = |address: SocketAddr| {
            // An address of this machine can be bound.
            listen.ip() == address.ip()
                || listen.ip().is_unspecified() && UdpSocket::bind((address.ip(), 0)).is_ok()
        };
        let is_this = |server: &str| {
            let addresses = server.to_socket_addrs().map(Vec::from_iter).unwrap_or_default();
            addresses.into_iter().any(|address| address.port() == listen.port() && is_here(address))
        };
        let places: Vec<u32> =
            (0..).zip(&servers).filter(|(_, server)| is_this(server)).map(|(place, _)| place).collect();
        match *places {
            [place] => Ok(Self { servers, place, replicas }),
            _ => {
                let problem = format!(
                    "{listen} is not one of {}: give its place in the list, from 0",
                    servers.join(", ")
                );
                Err(Error::config("servers", problem))
            }
        }
    }

    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) if there can be no such group.
    pub(crate) fn check(&self) -> Result<()> {
        let count = self.servers.len() as u32;
        let wrong = |problem: String| Err(Error::config("servers", problem));
        if !(2..=SERVERS_MOST).contains(&count) {
            return wrong(format!(
                "{count} servers with copies of each other's ranges: name 2 to {SERVERS_MOST}"
            ));
        }
        check_different(&self.servers)?;
        if self.place >= count {
            return wrong(format!("this server's place is {}, and {count} are named, from 0", self.place));
        }
        if self.replicas >= count {
            return wrong(format!(
                "{} copies on {count} servers: at most {} have room",
                self.replicas,
                count - 1
            ));
        }
        Ok(())
    }
}

/// # Errors
/// [`ErrorKind::Config`](crate::ErrorKind::Config) if a server is named twice, perhaps by two names. Names that cannot be looked up
/// now may be known later.
fn check_different(servers: &[String]) -> Result<()> {
    let refuse =
        |problem| Err(Error::config("servers", format!("{problem}: each server has one place in the list")));
    let mut known: BTreeMap<SocketAddr, &String> = BTreeMap::new();
    for (at, server) in servers.iter().enumerate() {
        if servers[..at].contains(server) {
            return refuse(format!("{server} is named twice"));
        }
        let addresses: BTreeSet<SocketAddr> = server.to_socket_addrs().into_iter().flatten().collect();
        for address in addresses {
            if let Some(other) = known.insert(address, server) {
                return refuse(format!("{other} and {server} are both {address}"));
            }
        }
    }
    Ok(())
}

impl TableOptions {
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) if there is no memory for tables, there can be no such group, or nothing can be written to where snapshots
    /// are to be: that is told at the start, not at the first snapshot.
    pub(crate) fn check(&self) -> Result<()> {
        if self.memory_bytes == 0 {
            return Err(Error::config(
                "memory",
                "the limit for tables is 0 bytes: raise it, for example to 8G",
            ));
        }
        self.group.as_ref().map_or(Ok(()), TableGroup::check)?;
        let Some(data) = &self.data else { return Ok(()) };
        let written = random_number().and_then(|number| {
            fs::create_dir_all(data)?;
            let probe = data.join(format!("{number:016x}.temporary"));
            fs::write(&probe, "is there room?").and(fs::remove_file(&probe))
        });
        written.map_err(|error| {
            let data = data.display();
            Error::config("data", format!("{data} is to have snapshots, and cannot be written: {error}"))
        })
    }
}

impl Default for TableOptions {
    /// Half of this machine's memory, and ten seconds.
    fn default() -> Self {
        let machine = rustix::system::sysinfo();
        let memory = machine.totalram.saturating_mul(u64::from(machine.mem_unit.max(1)));
        Self {
            memory_bytes: memory / 2,
            patience: Some(Duration::from_secs(10)),
            data: None,
            group: None,
            transport: None,
            optimizers: Vec::new(),
        }
    }
}
